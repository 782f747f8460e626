"""The initial request to the dashboard. Lightweight: the command line imports it before Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Start:
    """The initial request."""

    #: Which screen.
    view: Literal["library", "live", "replay", "trace", "compare", "ladder", "fleet"] = "library"
    #: The session directory, trace file or folder of ranks it shows; None for the library.
    path: Path | None = None
    sessions: Path | None = None  # folder of recorded sessions; None = the default one
    scenarios: tuple[Path, ...] = ()  # more folders of scenarios
    python: Path | None = None  # interpreter that scenarios are to run in; None = the active environment's
    speed: float = 1.0  # session seconds a second of a replay
    launched: bool = False  # the session was started by this very command: its exit status becomes ours
    compared: tuple[str, str] | None = None  # what to compare, before and after; None unless that is the view
    #: The directory that the trace was chosen from; None = the trace itself was named.
    directory: Path | None = None

    @classmethod
    def library(
        cls, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = (), python: Path | None = None
    ) -> Start:
        """Show scenarios, sessions and traces."""
        return cls("library", sessions=sessions, scenarios=scenarios, python=python)

    @classmethod
    def live(cls, path: Path, *, launched: bool = False) -> Start:
        """Show a session: live while it runs, else as it ended."""
        return cls("live", path, launched=launched)

    @classmethod
    def replay(cls, path: Path, *, speed: float = 1.0) -> Start:
        """Show a session from its beginning, by a clock."""
        return cls("replay", path, speed=speed)

    @classmethod
    def trace(cls, path: Path, *, directory: Path | None = None) -> Start:
        """Show a trace."""
        return cls("trace", path, directory=directory)

    @classmethod
    def fleet(cls, path: Path) -> Start:
        """Show all ranks of a folder at once."""
        return cls("fleet", path)

    @classmethod
    def compare(cls, before: str, after: str, *, sessions: Path | None = None) -> Start:
        """Show two runs side by side.

        Args:
            before: The baseline: a trace file, a session or ``LADDER:VARIANT``.
            after: What to judge; the same.
            sessions: Folder of recorded sessions; None = the default one.
        """
        return cls("compare", sessions=sessions, compared=(before, after))

    @classmethod
    def ladder(cls, path: Path, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = ()) -> Start:
        """Show a ladder that was measured, or that is measured now."""
        return cls("ladder", path, sessions=sessions, scenarios=scenarios)
