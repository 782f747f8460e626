"""What the dashboard shows first. The command line imports this module instead of Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Start:
    """The first screen of the dashboard and its options."""

    view: Literal["library", "live", "replay", "trace", "compare", "ladder", "fleet"] = "library"
    path: Path | None = None  # session directory, trace file or folder of ranks; None for the library
    sessions: Path | None = None  # folder of recorded sessions; None = the default
    scenarios: tuple[Path, ...] = ()  # additional folders of scenarios
    python: Path | None = None  # interpreter for scenarios; None = the active environment's
    speed: float = 1.0  # of a replay; 2 = twice as fast as recorded
    launched: bool = False  # whether this command started the session, and exits with its exit status
    compared: tuple[str, str] | None = None  # before and after; None unless ``view`` is ``compare``
    #: Directory of traces that the trace was chosen from; None = it was named itself
    directory: Path | None = None

    @classmethod
    def library(
        cls, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = (), python: Path | None = None
    ) -> Start:
        """Show scenarios, sessions and traces."""
        return cls("library", sessions=sessions, scenarios=scenarios, python=python)

    @classmethod
    def live(cls, path: Path, *, launched: bool = False) -> Start:
        """Show a session: live while it runs, else its end."""
        return cls("live", path, launched=launched)

    @classmethod
    def replay(cls, path: Path, *, speed: float = 1.0) -> Start:
        """Replay a session from its start."""
        return cls("replay", path, speed=speed)

    @classmethod
    def trace(cls, path: Path, *, directory: Path | None = None) -> Start:
        """Show a trace."""
        return cls("trace", path, directory=directory)

    @classmethod
    def fleet(cls, path: Path) -> Start:
        """Show all ranks of a job, given the folder of their traces."""
        return cls("fleet", path)

    @classmethod
    def compare(cls, before: str, after: str, *, sessions: Path | None = None) -> Start:
        """Compare two runs, each given as a trace file, a session or ``LADDER:VARIANT``; ``before`` is the baseline."""
        return cls("compare", sessions=sessions, compared=(before, after))

    @classmethod
    def ladder(cls, path: Path, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = ()) -> Start:
        """Show a measurement of a ladder, finished or running."""
        return cls("ladder", path, sessions=sessions, scenarios=scenarios)
