"""How to measure a ladder: preset, rounds, steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType

from tuiprof.tui.dialogs.form import PRESET_LABEL, Form, OneOf, Text, form_keys, optional, whole


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
    """Asks how to measure a ladder."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "measure", "Measure", "measure", "Start measuring", "Cancel"
    )

    def __init__(self, name: str, presets: Sequence[str]) -> None:
        rounds = whole("rounds must be a whole number from 1 to 1000", 1, 1000)
        steps = optional(whole("steps must be a whole number above 1", 2))
        fields = (
            OneOf("preset", PRESET_LABEL, presets),
            Text(
                "rounds", "rounds — trials per variant, timed in turns; a ratio needs two", "5", parse=rounds
            ),
            Text("steps", "steps per trial", placeholder="from the preset", parse=steps),
        )
        super().__init__(f"measure {name}", fields, LadderWish)
