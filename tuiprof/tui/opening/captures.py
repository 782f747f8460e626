"""The traces that belong with the one on the screen: the other ranks of its run, the other captures of its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TuiprofError
from tuiprof.model.report import Report
from tuiprof.model.traceset import RankFile, TraceSet

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace


@dataclass(frozen=True, slots=True)
class Captures:
    """Position of a trace among those it belongs with.

    Attributes:
        sets: The captures, oldest first; each holds its ranks.
        path: The trace that is shown.
    """

    sets: tuple[TraceSet, ...]
    path: Path

    def __len__(self) -> int:
        """Return the number of traces."""
        return sum(len(one) for one in self.sets)

    @property
    def shown(self) -> TraceSet | None:
        """The capture that the shown trace is of; None = it was not found among them."""
        return next((one for one in self.sets if any(file.path == self.path for file in one.files)), None)

    @property
    def files(self) -> tuple[RankFile, ...]:
        """All traces, those of the shown capture first."""
        shown = self.shown
        sets = sorted(self.sets, key=lambda one: one is not shown)
        return tuple(file for one in sets for file in one.files)

    def label(self, world_size: int | None = None) -> str:
        """Say which of them is shown, such as ``rank 0 of 8, capture 2 of 3``.

        Args:
            world_size: Ranks of the job as the trace says; None = it does not.

        Returns:
            The words; empty = there is only this one.
        """
        shown, parts = self.shown, []
        if shown is None or len(self) < 2:
            return ""
        if len(shown) > 1:
            rank = next(file.rank for file in shown.files if file.path == self.path)
            fewer = f" ({len(shown)} here)" if (world_size or 0) > len(shown) else ""
            parts.append(f"rank {rank} of {max(len(shown), world_size or 0)}{fewer}")
        if len(self.sets) > 1:
            parts.append(f"capture {self.sets.index(shown) + 1} of {len(self.sets)}")
        return ", ".join(parts)


def session_folder(path: Path) -> Path | None:
    """Return the folder of the session that captured a trace; None = it is not in one."""
    return next((folder for folder in path.parents if (folder / "session.json").is_file()), None)


def trace_title(path: Path) -> str:
    """Return what a trace is called on the screen: as its session, else as its file; untrusted.

    The files of a session are named after ranks and moments, ``rank0.1795465808049.pt.trace.json.gz``, which tells
    nobody which run it was.
    """
    session = session_folder(path.absolute())
    return path.name if session is None else re.sub(r"^\d{8}T\d{6}Z-", "", session.name)


def captures_of(path: Path, directory: Path | None = None) -> Captures:
    """Find the traces that a trace belongs with; none of them is read. Takes a worker: folders are walked."""
    from tuiprof.formats import open_trace
    from tuiprof.formats.directory import sets_in, siblings

    session = session_folder(path)
    directory = directory or (session / "traces" if session is not None else None)
    if directory is not None:
        try:
            found = Captures(sets_in(directory, open_trace), path)
        except TuiprofError:  # the folder was deleted: the trace itself may still be readable
            found = Captures((), path)
        if found.shown is not None:
            return found
    together = siblings(path, open_trace)
    return Captures((together,) if together is not None else (), path)


@dataclass(frozen=True, slots=True)
class Figures:
    """Description of a trace in a list.

    Attributes:
        events: Number of events.
        busy_share: Busy time of its devices between first and last work; None = no device activity.
        step_ns: Median step; None = it marks no steps.
    """

    events: int
    busy_share: float | None
    step_ns: float | None


def figures(trace: Trace) -> Figures:
    """Work out what a list of traces says of one of them."""
    from tuiprof import analyses

    def fact(name: str, key: str) -> float | None:
        answer = analyses.run(name, trace)
        value = answer.fact(key) if isinstance(answer, Report) else None
        return float(value) if isinstance(value, (int, float)) else None

    idle = fact("device_idle", "idle_share")
    return Figures(len(trace), None if idle is None else 1 - idle, fact("steps", "step_period_ns"))
