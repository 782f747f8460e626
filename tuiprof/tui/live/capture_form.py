"""What to profile: how many steps, and what to record with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.tui.dialogs.form import Form, form_keys
from tuiprof.tui.widgets.toggles import Check

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


class CaptureForm(Form[CaptureWish], inherit_bindings=False):
    """Answers a wish, or None.

    Args:
        steps: Number of steps proposed.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "capture", "Capture", "capture", "Ask the script for it", "Ask for nothing"
    )
    LABELS: ClassVar[Mapping[str, str]] = {"steps": "steps"}

    def __init__(self, steps: int) -> None:
        super().__init__("capture")
        self._steps = steps

    def fields(self) -> Sequence[Widget]:
        """How many steps, and what to record with them."""
        return (
            Input(str(self._steps), id="steps", compact=True),
            Check("Python stacks: name source lines; slow the steps", id="stack", compact=True),
            Check("operator input shapes", id="shapes", compact=True),
            Check("allocations", id="memory", compact=True),
        )

    def problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""
        text = self.typed("steps")
        if text.isdecimal() and 1 <= int(text) <= _MOST_STEPS:
            return ""
        return f"steps must be a whole number from 1 to {_MOST_STEPS}"

    def answer(self) -> CaptureWish:
        """Return what the fields say."""
        marked = {name: self.query_one(f"#{name}", Check).value for name in ("stack", "shapes", "memory")}
        return CaptureWish(int(self.typed("steps")), **marked)
