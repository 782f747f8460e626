"""How to measure a ladder: preset, rounds, steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.tui.dialogs.form import Form, form_keys, preset_chosen, preset_field


@dataclass(frozen=True, slots=True)
class LadderWish:
    """How the user wants it measured.

    Attributes:
        preset: Name of a preset, or ``fit``.
        rounds: Timing trials a variant.
        steps: Steps a trial; None = the preset's.
    """

    preset: str = "fit"
    rounds: int = 5
    steps: int | None = None


class LadderForm(Form[LadderWish], inherit_bindings=False):
    """Answers how to measure a ladder, or None.

    Args:
        name: Its name.
        presets: Names of its presets, the one proposed first.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "measure", "Measure", "measure", "Start it", "Start nothing"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "preset": "preset — fit: as published on an accelerator, small on a CPU",
        "rounds": "rounds — timing trials a variant, in turns; a ratio takes two",
        "steps": "steps a trial",
    }

    def __init__(self, name: str, presets: Sequence[str]) -> None:
        super().__init__(f"measure {name}")
        self._presets = presets

    def fields(self) -> Sequence[Widget]:
        """Preset, rounds, steps."""
        return (
            preset_field(self._presets),
            Input("5", id="rounds", compact=True),
            Input(placeholder="as the preset says", id="steps", compact=True),
        )

    def problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""
        rounds, steps = self.typed("rounds"), self.typed("steps")
        if not (rounds.isdecimal() and 1 <= int(rounds) <= 1000):
            return "rounds must be a whole number from 1 to 1000"
        if steps and not (steps.isdecimal() and int(steps) >= 2):
            return "steps must be a whole number above 1"
        return ""

    def answer(self) -> LadderWish:
        """Return what the fields say."""
        steps = self.typed("steps")
        preset = preset_chosen(self, self._presets)
        return LadderWish(preset, int(self.typed("rounds")), int(steps) if steps else None)
