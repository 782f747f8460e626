"""How to run a variant or a script: the command, preset, steps, what to capture."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType

from tuiprof.errors import UsageProblem
from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.form import PRESET_LABEL, Form, OneOf, Text, Tick, form_keys, optional, whole
from tuiprof.tui.library.view import LadderItem, PastCommand, VariantItem

FIT = "fit"


@dataclass(frozen=True, slots=True)
class LaunchWish:
    """The user's options.

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

    BINDINGS: ClassVar[list[BindingType]] = form_keys("launch", "Launch", "run", "Start the run", "Cancel")

    def __init__(self, ladder: LadderItem, variant: VariantItem) -> None:
        steps = optional(whole("steps must be a whole number above 0", 1))
        fields = (
            OneOf("preset", PRESET_LABEL, [FIT, *(name for name in ladder.presets if name != FIT)]),
            Text("steps", "steps", placeholder="from the preset", parse=steps),
            *_capture_fields(),
        )
        super().__init__(f"run {ladder.name}:{variant.name}", fields, LaunchWish)


@dataclass(frozen=True, slots=True)
class RunWish:
    """The user's choice of what to run.

    Attributes:
        argv: The command.
        cwd: Where to run it.
        capture: As of :class:`LaunchWish`.
        stack: Record Python stacks while capturing.
    """

    argv: tuple[str, ...]
    cwd: Path
    capture: str = ""
    stack: bool = False


class RunForm(Form[RunWish], inherit_bindings=False):
    """Asks for the command of a script.

    Args:
        command: What the fields hold at first; None = nothing was run yet.
        python: The interpreter that it will run in; empty = not known yet.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys("script", "Run", "run", "Start the run", "Cancel")

    def __init__(self, command: PastCommand | None, python: str) -> None:
        where = f" — python is {python}" if python else ""
        typed = shlex.join(command.argv) if command is not None else ""
        fields = (
            Text("argv", f"command{where}", typed, "python train.py --epochs 1", _argv, replace=False),
            Text(
                "cwd", "directory", command.cwd if command is not None else str(Path.cwd()), parse=_directory
            ),
            *_capture_fields(),
        )
        super().__init__("run my script", fields, RunWish)


def _capture_fields() -> tuple[Text, Tick]:
    label = "capture — N: so many steps after warm-up; N@STEP: from STEP on; empty: none"
    stack = "with Python stacks (names source lines; slows the captured steps)"
    return Text("capture", label, "3", parse=_capture), Tick("stack", stack)


def _argv(text: str) -> tuple[str, ...]:
    """Return a command line in parts, as a shell splits it.

    Raises:
        ValueError: It is empty, or a quotation is not closed.
    """
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"the command cannot be read: {error}") from None
    if not argv:
        raise ValueError("type a command, for example python train.py")
    return argv


def _directory(text: str) -> Path:
    """Return a directory that exists.

    Raises:
        ValueError: There is none.
    """
    path = typed_path(text or ".")
    if not path.is_dir():
        raise ValueError(f"there is no directory {path}")
    return path.absolute()


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
