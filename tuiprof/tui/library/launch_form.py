"""How to run a variant: preset, steps, what to capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType

from tuiprof.errors import UsageProblem
from tuiprof.tui.dialogs.form import PRESET_LABEL, Form, OneOf, Text, Tick, form_keys, optional, whole
from tuiprof.tui.library.view import LadderItem, VariantItem

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
    """Asks how to run a variant of a ladder."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys("launch", "Launch", "run", "Start it", "Start nothing")

    def __init__(self, ladder: LadderItem, variant: VariantItem) -> None:
        steps = optional(whole("steps must be a whole number above 0", 1))
        capture = "capture — N: so many steps after warm-up; N@STEP: from STEP on; empty: none"
        fields = (
            OneOf("preset", PRESET_LABEL, [FIT, *(name for name in ladder.presets if name != FIT)]),
            Text("steps", "steps", placeholder="as the preset says", parse=steps),
            Text("capture", capture, "3", parse=_capture),
            Tick("stack", "with Python stacks (names source lines; slows the captured steps)"),
        )
        super().__init__(f"run {ladder.name}:{variant.name}", fields, LaunchWish)


def _capture(text: str) -> str:
    """Check what to capture.

    Raises:
        ValueError: It is neither empty, nor ``N``, nor ``N@STEP``.
    """
    from tuiprof.session.run.launch import parse_capture

    try:
        if text:
            parse_capture(text)
    except UsageProblem:
        raise ValueError("capture must be N or N@STEP, for example 5@20") from None
    return text
