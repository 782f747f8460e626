"""What to profile: how many steps, and what to record with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.validation import Integer
from textual.widgets import Checkbox, Input, Label

from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar


@dataclass(frozen=True, slots=True)
class CaptureWish:
    """What the user wants profiled.

    Attributes:
        steps: How many steps.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
    """

    steps: int
    stack: bool = False
    shapes: bool = False
    memory: bool = False


class CaptureForm(ModalScreen[CaptureWish | None], inherit_bindings=False):
    """Answers a wish, or None.

    Args:
        steps: Number of steps proposed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("enter", "submit", "capture", "Ask the script for it", id="capture.submit", group="Capture"),
        key(
            "escape",
            "cancel",
            "cancel",
            "Ask for nothing",
            id="capture.cancel",
            group="Capture",
            display="esc",
        ),
        key("tab", "app.focus_next", "next field", "To the next field", id="capture.next", group="Capture"),
        key(
            "shift+tab",
            "app.focus_previous",
            "field before",
            "To the field before",
            id="capture.before",
            group="Capture",
            show=False,
        ),
    ]

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def compose(self) -> ComposeResult:
        """One box with the fields."""
        with Vertical(classes="dialog") as box:
            box.border_title = "capture"
            yield Label("steps")
            yield Input(str(self._steps), id="steps", validators=[Integer(1, 1000)], compact=True)
            yield Checkbox(
                "Python stacks: names the source line of each sync; slows the steps captured",
                id="stack",
                compact=True,
            )
            yield Checkbox("operator input shapes", id="shapes", compact=True)
            yield Checkbox("allocations", id="memory", compact=True)
            yield KeyBar()

    @on(Input.Submitted)
    def action_submit(self) -> None:
        """Answer, when the number of steps is one."""
        field = self.query_one("#steps", Input)
        if not field.is_valid:
            self.notify("steps must be a whole number from 1 to 1000", severity="warning", markup=False)
            return
        marked = {name: self.query_one(f"#{name}", Checkbox).value for name in ("stack", "shapes", "memory")}
        self.dismiss(CaptureWish(int(field.value), **marked))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
