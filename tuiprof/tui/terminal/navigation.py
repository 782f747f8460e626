"""Navigation targets of a screen, without a dependency on the other screens."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Navigation(Protocol):
    """Ways to the screens. What cannot be shown is said in a notice."""

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session: live or as it ended; with a speed, replayed from its beginning."""

    def switch(self, path: Path, origin: Path) -> None:
        """Show another run beside the one in front; each keeps its state."""

    def trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace, whole or at one step."""

    def path(self, path: Path) -> None:
        """Show what a path names: a session directory or a trace file."""

    def ladder(self, name: str, folder: Path | None = None) -> None:
        """Show a ladder: the measurement in a folder; None = the newest of that name, if there is one."""

    def compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs, named as ``tuiprof compare`` takes them."""

    def scenario(self, ladder: str, variant: str) -> None:
        """Ask how to run a variant, then run and watch it."""

    def back(self, code: int = 0) -> None:
        """Close the screen in front; the last one closes the dashboard with this exit status."""
