"""The figures of many recorded runs, for their trend: sessions, and folders of traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.comparison.trend import FIGURES, Point
from tuiprof.errors import SessionError, TraceError

if TYPE_CHECKING:
    from tuiprof.fleet.gather import Executor, Progress
    from tuiprof.fleet.task import File


def sessions_below(path: Path) -> list[Path]:
    """Return the sessions that a path names: itself, or those in it."""
    from tuiprof.session.store.folders import SESSION_FILE

    if (path / SESSION_FILE).is_file():
        return [path]
    return sorted(found.parent for found in path.glob(f"*/{SESSION_FILE}")) if path.is_dir() else []


def history(
    places: Sequence[Path],
    executor: Callable[[Sequence[File]], Executor],
    progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Point], list[str]]:
    """Return a point for each session, and for each run of traces where a place holds no session.

    Args:
        places: Sessions, folders of sessions, traces and folders of traces.
        executor: Makes what reads traces.
        progress: See :func:`tuiprof.fleet.gather.gather`.

    Returns:
        The points, and what could not be read.
    """
    from tuiprof.fleet.gather import gather
    from tuiprof.fleet.task import File
    from tuiprof.formats import open_set
    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.hosts import runs
    from tuiprof.session.store.summary import Summary, summary_of

    points: list[Point] = []
    problems: list[str] = []
    traces: list[tuple[int, Path, int]] = []
    for place in places:
        below = sessions_below(place)
        found_below: list[tuple[Session, Summary]] = []
        for folder in below:
            try:
                session = Session(folder)
                found_below.append((session, summary_of(session)))
            except SessionError as error:
                problems.append(error.message)
        # Of a run of several hosts the first host stands for all of them.
        groups = runs(seen.part for _, seen in found_below if seen.part is not None)
        others = {part.id for group in groups for part in group[1:]}
        for session, seen in found_below:
            if seen.id in others:
                continue
            git = session.meta.git
            steps = {} if seen.median_ns is None else {"step_ns": float(seen.median_ns)}
            points.append(Point(seen.id, seen.unix_ns, git.commit if git else "", steps))
            if session.traces():
                file = open_set(session.path / "traces").file()
                traces.append((len(points) - 1, file.path, file.size_bytes))
        if not below:
            newest = open_set(place)
            for run in newest.runs or ("",):
                file = (newest if not run else open_set(place, run=run)).file()
                written = int(file.path.stat().st_mtime * 1e9)
                points.append(Point(run or file.path.name, written))
                traces.append((len(points) - 1, file.path, file.size_bytes))
    if not points:
        raise TraceError("no session and no trace is there", "tuiprof list shows recorded sessions")
    files = [
        File(number, str(path.absolute()), number, size) for number, (_, path, size) in enumerate(traces)
    ]
    if files:
        found = gather(files, executor(files), progress).files
        for row in found.iter_rows(named=True):
            index = traces[row["file"]][0]
            if row["problem"]:
                problems.append(f"{row['path']}: {row['problem']}")
                continue
            in_trace = {key: float(row[key]) for key in FIGURES if row[key] is not None}
            # A session saw its steps without the profiler, the trace with it.
            points[index] = replace(points[index], figures={**in_trace, **points[index].figures})
    return points, problems
