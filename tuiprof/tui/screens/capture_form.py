"""What to profile: how many steps, and what to record with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input

from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted

#: More steps than this make a trace that nobody can read.
_MOST_STEPS: Final = 1000


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

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter",
            "submit",
            "capture",
            "Ask the script for it",
            id="capture.submit",
            group="Capture",
            priority=True,
        ),
        key("escape", "cancel", "cancel", "Ask for nothing", id="capture.cancel", group="Capture"),
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
        with Vertical(classes="dialog form") as box:
            box.border_title = "capture"
            yield Painted(id="steps-label")
            yield Input(str(self._steps), id="steps", compact=True)
            yield Checkbox("Python stacks: name source lines; slow the steps", id="stack", compact=True)
            yield Checkbox("operator input shapes", id="shapes", compact=True)
            yield Checkbox("allocations", id="memory", compact=True)
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the label."""
        self.query_one("#steps-label", Painted).paint(lambda _width, _height: [[("steps", "dim")]])

    @on(Input.Changed)
    def _changed(self) -> None:
        self._tell("")

    def _tell(self, text: str) -> None:
        self.query_one("#problem", Painted).paint(lambda _width, _height: [[(text, "warn")]] if text else [])

    def action_submit(self) -> None:
        """Answer, when the number of steps is one."""
        text = self.query_one("#steps", Input).value.strip()
        if not (text.isdecimal() and 1 <= int(text) <= _MOST_STEPS):
            self._tell(f"steps must be a whole number from 1 to {_MOST_STEPS}")
            return
        marked = {name: self.query_one(f"#{name}", Checkbox).value for name in ("stack", "shapes", "memory")}
        self.dismiss(CaptureWish(int(text), **marked))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
