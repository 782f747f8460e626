"""The screens. This module imports no Textual, so that the command line can say what to show first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Start:
    """The first screen of the dashboard and its options."""

    #: ``live`` shows a session while it runs or its end, ``ladder`` a measurement, ``fleet`` the ranks of a job.
    view: Literal["library", "live", "replay", "trace", "compare", "ladder", "fleet"] = "library"
    #: Session, trace file, measurement or folder of ranks; None for library and compare.
    path: Path | None = None
    sessions: Path | None = None  # folder of recorded sessions; None = the default
    scenarios: tuple[Path, ...] = ()  # additional folders of scenarios
    python: Path | None = None  # interpreter for scenarios; None = the active environment's
    speed: float = 1.0  # of a replay; 2 = twice as fast as recorded
    launched: bool = False  # whether this command started the session, and exits with its exit status
    #: Before and after, each a trace file, a session or ``LADDER:VARIANT``; None unless ``view`` is ``compare``
    compared: tuple[str, str] | None = None
    #: Directory of traces that the trace was chosen from; None = it was named itself
    directory: Path | None = None
