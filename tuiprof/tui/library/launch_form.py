"""How to run a variant: preset, steps, what to capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.errors import UsageProblem
from tuiprof.tui.dialogs.form import Form, form_keys, preset_chosen, preset_field
from tuiprof.tui.library.items import LadderItem, VariantItem
from tuiprof.tui.widgets.toggles import Check

FIT = "fit"


@dataclass(frozen=True, slots=True)
class LaunchWish:
    """How the user wants it run.

    Attributes:
        preset: Name of a preset, or ``fit``.
        steps: Number of steps; None = the preset's.
        capture: ``N@STEP``, or ``N`` for steps after warm-up; empty = capture nothing.
        stack: Record Python stacks while capturing.
    """

    preset: str = FIT
    steps: int | None = None
    capture: str = ""
    stack: bool = False


class LaunchForm(Form[LaunchWish], inherit_bindings=False):
    """Answers how to run a variant, or None.

    Args:
        ladder: Its ladder.
        variant: It.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys("launch", "Launch", "run", "Start it", "Start nothing")
    LABELS: ClassVar[Mapping[str, str]] = {
        "preset": "preset — fit: as published on an accelerator, small on a CPU",
        "steps": "steps",
        "capture": "capture — N: so many steps after warm-up; N@STEP: from STEP on; empty: none",
    }

    def __init__(self, ladder: LadderItem, variant: VariantItem) -> None:
        super().__init__(f"run {ladder.name}:{variant.name}")
        self._presets = [FIT, *(name for name in ladder.presets if name != FIT)]

    def fields(self) -> Sequence[Widget]:
        """Preset, steps, what to capture."""
        stacks = "with Python stacks (names source lines; slows the captured steps)"
        return (
            preset_field(self._presets),
            Input(placeholder="as the preset says", id="steps", compact=True),
            Input("3", id="capture", compact=True),
            Check(stacks, id="stack", compact=True),
        )

    def problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""
        from tuiprof.session.run.launch import parse_capture

        steps, capture = self.typed("steps"), self.typed("capture")
        if steps and not (steps.isdecimal() and int(steps) > 0):
            return "steps must be a whole number above 0"
        if capture:
            try:
                parse_capture(capture)
            except UsageProblem:
                return "capture must be N or N@STEP, for example 5@20"
        return ""

    def answer(self) -> LaunchWish:
        """Return what the fields say."""
        steps = self.typed("steps")
        return LaunchWish(
            preset=preset_chosen(self, self._presets),
            steps=int(steps) if steps else None,
            capture=self.typed("capture"),
            stack=self.query_one("#stack", Check).value,
        )
