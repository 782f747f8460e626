"""Phases: parts of a step that the script times itself with ``tuiprof.phase(name)``."""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .counting import Steps

_MAX_PHASES = 1000


class Phase:
    """A part of a step that the script times itself; one reused object per name."""

    __slots__ = ("_again", "_began", "_name", "_note", "_steps")

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._note = steps.marks.append
        self._name = name
        self._began = 0
        self._again = 0  # times it was entered inside itself; the outermost is timed

    def __enter__(self) -> None:
        """Start the clock."""
        steps = self._steps
        if get_ident() != steps.thread and steps.source:  # before the first step any thread may be the one
            return
        if self._began:
            self._again += 1
        else:
            self._began = monotonic_ns()

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        """Stop it; an exception passes."""
        t = monotonic_ns()
        began = self._began
        steps = self._steps
        thread = get_ident()
        if not began or (thread != steps.thread and steps.source):
            return
        if self._again:
            self._again -= 1
            return
        self._began = 0
        self._note((self._name, began, t, thread))

    @property
    def is_open(self) -> bool:
        """Whether the script is inside."""
        return self._began > 0

    def forget(self) -> None:
        """Reset to outside (in a child process forked inside)."""
        self._began = self._again = 0


class Phases(dict[str, Phase]):
    """The phases by name, created on access."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def __missing__(self, name: str) -> Phase:
        """Create a phase, and keep it unless the script seems to number its phases."""
        phase = Phase(self._steps, str(name))
        if len(self) < _MAX_PHASES:
            self[name] = phase
        return phase

    def any_open(self) -> bool:
        """Whether the script is inside one of them."""
        return any(phase.is_open for phase in list(self.values()))
