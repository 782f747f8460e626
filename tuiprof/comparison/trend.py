"""A figure over many runs: where it changed for good, how much it varies otherwise, and what that allows the next run.

:func:`history` reads the points of recorded runs; :func:`report` only works on points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.comparison.limits import Limit, Result
from tuiprof.errors import SessionError, TraceError
from tuiprof.fleet.gather import Executor, File, Progress, gather
from tuiprof.formats import open_set
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Unavailable, Verdict
from tuiprof.model.report import Kind
from tuiprof.model.units import format_share, format_value, plural
from tuiprof.session.live.listing import Summary, summary_of
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import group_parts
from tuiprof.session.store.meta import SESSION_FILE

if TYPE_CHECKING:
    from tuiprof.model.traceset import RankFile

By = Literal["run", "commit", "day"]

#: What is followed: key -> (label, kind).
FIGURES: Final[dict[str, tuple[str, Kind]]] = {
    "step_ns": ("step", "ns"),
    "syncs_per_step": ("syncs a step", "number"),
    "launches_per_step": ("launches a step", "number"),
    "peak_bytes": ("peak memory", "bytes"),
}
#: With fewer runs nothing is said of a figure.
MIN_RUNS: Final = 5
#: A run is beyond the limit where it lies above the runs since the last change by so many deviations, and this share.
DEVIATIONS: Final = 4.0
MIN_CHANGE: Final = 0.02
_REMEDY: Final = "pip install 'tuiprof[trend]'"

_RULES = (
    Rule(
        "change",
        "Where the level of the figures changes: PELT (Killick 2012) with a penalty of three times the logarithm of "
        "the number of runs, in units of the noise; at least two runs on each side.",
    ),
    Rule(
        "noise",
        "1.4826 times the median absolute difference of neighbouring runs, divided by the square root of 2.",
    ),
    Rule(
        "limit",
        "Median of the runs since the last change, without the newest one, plus "
        f"{DEVIATIONS:g} times the noise, at least {format_share(MIN_CHANGE)} of the median.",
    ),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One run."""

    name: str  # what it is called; of a commit or a day with several runs, that
    unix_ns: int  # when it began
    commit: str = ""  # commit of its checkout; empty = not known
    #: Its figures by key of :data:`FIGURES`; what it does not have is left out.
    figures: dict[str, float] = field(default_factory=dict)
    runs: int = 1  # runs that it is the median of

    @property
    def day(self) -> str:
        """Day on which it began, UTC."""
        return datetime.fromtimestamp(self.unix_ns / 1e9, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class Course:
    """One figure over all runs that have it."""

    key: str  # which
    points: tuple[Point, ...]  # the runs, in order of time
    values: npt.NDArray[np.float64]  # the figure, shape ``(n,)``
    changes: tuple[int, ...]  # indices of the first run after each change
    noise: float  # how much neighbouring runs differ
    limit: float | None  # what the newest run may be at most; None = too few runs to say

    @property
    def exceeded(self) -> bool:
        """Whether the newest run is beyond the limit."""
        return self.limit is not None and bool(self.values[-1] > self.limit)

    @property
    def result(self) -> Result:
        """The newest run against the limit, as ``tuiprof check`` words it."""
        kind = FIGURES[self.key][1]
        if self.limit is None:
            why = f"{plural(len(self.values), 'run')} with this figure, a limit needs {MIN_RUNS}"
            return Result(Limit(self.key, "max", 0.0), "unknown", None, None, why=why, kind=kind)
        outcome: Literal["passed", "failed"] = "failed" if self.exceeded else "passed"
        bound = Limit(self.key, "max", self.limit)
        return Result(bound, outcome, float(self.values[-1]), self.limit, kind=kind)


def grouped(points: Sequence[Point], by: By) -> list[Point]:
    """Return one point a run, a commit or a day, in order of time: medians; a run without a commit is one by itself."""
    ordered = sorted(points, key=lambda point: point.unix_ns)
    groups: dict[str, list[Point]] = {}
    for point in ordered:
        name = {"run": "", "commit": point.commit[:10], "day": point.day}[by]
        groups.setdefault(name or f"{point.name} {point.unix_ns}", []).append(point)
    made = []
    for name, members in groups.items():
        keys = dict.fromkeys(key for point in members for key in point.figures)
        figures = {
            key: float(np.median([point.figures[key] for point in members if key in point.figures]))
            for key in keys
        }
        own = members[0].name if len(members) == 1 and by == "run" else name
        own = members[0].name if not own or own.endswith(str(members[0].unix_ns)) else own
        made.append(Point(own, members[0].unix_ns, members[0].commit, figures, len(members)))
    return made


def course(points: Sequence[Point], key: str) -> Course | None:
    """Return how a figure went; None = no run has it."""
    having = tuple(point for point in points if key in point.figures)
    if not having:
        return None
    values = np.array([point.figures[key] for point in having])
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2) if len(values) > 1 else 0.0
    changes = _changes(values, noise) if len(values) >= MIN_RUNS else ()
    limit = None
    if len(values) >= MIN_RUNS:
        # A level that only the newest run has is not one to judge that run by.
        start = max((at for at in changes if at <= len(values) - 3), default=0)
        median = float(np.median(values[start:-1]))
        limit = median + max(DEVIATIONS * noise, MIN_CHANGE * abs(median))
    return Course(key, having, values, changes, noise, limit)


def _changes(values: npt.NDArray[np.float64], noise: float) -> tuple[int, ...]:
    """Return the indices at which a new level begins."""
    if find_spec("ruptures") is None:
        return ()
    import ruptures

    # Counts do not vary at all from run to run: then any step of 1 % is one.
    unit = max(noise, 0.01 * float(np.median(np.abs(values))), 1e-9)
    found = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(values / unit)
    return tuple(int(at) for at in found.predict(pen=3 * np.log(len(values)))[:-1])


def report(points: Sequence[Point], by: By = "run") -> list[Report | Unavailable]:
    """Report the course of every figure that a run has; a point is a run, or whatever ``by`` says."""
    members = grouped(points, by)
    courses = [found for key in FIGURES if (found := course(members, key)) is not None]
    if not courses:
        return [Unavailable("trend", "no run has a step time", "record runs with tuiprof record")]
    return [_report(found, by) for found in courses]


def _report(found: Course, by: By) -> Report:
    label, kind = FIGURES[found.key]
    first, after = (0, *found.changes), (*found.changes, len(found.values))
    level = [float(np.median(found.values[low:high])) for low, high in zip(first, after, strict=True)]
    levels = pl.DataFrame(
        {
            "since": [found.points[at].name for at in first],
            "day": [found.points[at].day for at in first],
            "commit": [found.points[at].commit[:10] for at in first],
            "level": level,
            "change": [None, *(own / last - 1 if last else None for last, own in pairwise(level))],
            "points": [high - low for low, high in zip(first, after, strict=True)],
        },
        schema_overrides={"change": pl.Float64},
    )
    rows = pl.DataFrame(
        {
            "run": [point.name for point in found.points],
            "day": [point.day for point in found.points],
            "commit": [point.commit[:10] for point in found.points],
            "value": found.values,
            "changed": [int(at in found.changes) for at in range(len(found.values))],
            "runs": [point.runs for point in found.points],
        }
    )
    notes = () if find_spec("ruptures") is not None else (f"Changes are not detected: {_REMEDY}.",)
    level_columns = (
        Column("since", f"since {by}", elide="start"),
        Column("day", "day"),
        Column("commit", "commit", hidden=by == "commit"),
        Column("level", label, kind, "Median of the level."),
        Column("change", "change", "share", "Compared with the level before.", signed=True),
        Column("points", f"{by}s", "count"),
    )
    columns = (
        Column("run", by, elide="start"),
        Column("day", "day"),
        Column("commit", "commit", hidden=by == "commit"),
        Column("value", label, kind),
        Column("runs", "runs", "count", hidden=by == "run"),
        Column("changed", "a new level", "count", hidden=True),
    )
    return Report(
        f"trend_{found.key}",
        f"Trend: {label}",
        _verdict(found, by, level),
        (
            Fact("newest", "newest", float(found.values[-1]), kind),
            Fact("limit", "allowed", found.limit, kind),
            Fact("noise", "noise", found.noise if len(found.values) > 1 else None, kind),
            Fact("changes", "changes", len(found.changes) if found.limit is not None else None, "count"),
        ),
        (
            Table("levels", "Levels, the oldest first", level_columns, levels),
            Table(
                "runs",
                f"By {by}, the oldest first",
                columns,
                rows,
                chart=Chart(label, (Series("value"),), at="run", marked="changed"),
            ),
        ),
        _RULES,
        notes,
    )


def _verdict(found: Course, by: By, level: Sequence[float]) -> Verdict:
    """Return what to say of a figure, whose levels have these medians."""
    label, kind = FIGURES[found.key]
    newest = (
        f"{label}: {format_value(found.values[-1], kind)} in the newest of {plural(len(found.values), by)}"
    )
    if found.exceeded:
        return Verdict(f"{newest} is beyond {format_value(found.limit, kind)}", "bad")
    if found.changes:
        before, now = (format_value(median, kind) for median in level[-2:])
        since = found.points[found.changes[-1]].name
        words = f"{label}: last changed from {before} to {now} with {since}"
        return Verdict(words, "warn" if level[-1] > level[-2] else "good")
    if found.limit is None:
        return Verdict(f"{newest}; changes are told from noise from {MIN_RUNS} runs on", "info")
    return Verdict(f"{newest}, at most {format_value(found.limit, kind)} is allowed", "good")


def sessions_below(path: Path) -> list[Path]:
    """Return the sessions that a path names: itself, or those in it."""
    if (path / SESSION_FILE).is_file():
        return [path]
    return sorted(found.parent for found in path.glob(f"*/{SESSION_FILE}")) if path.is_dir() else []


def script_of(session: Session) -> str:
    """Return the scenario or the script that a session ran, else its name."""
    meta = session.meta
    return str(meta.scenario or (meta.source.script if meta.source is not None else "") or meta.name)


def history(
    targets: Sequence[Path],
    executor: Callable[[Sequence[File]], Executor],
    progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Point], list[str]]:
    """Return a point for each session and each run of traces where there is no session, and what is left out.

    Sessions in a folder are those of one script: of the newest session that the targets name.

    ``executor`` makes what reads traces; for ``progress`` see :func:`tuiprof.fleet.gather.gather`.
    """
    problems: list[str] = []
    below = [sessions_below(target) for target in targets]
    readable = [_readable(folders, problems) for folders in below]
    every = [session for sessions in readable for session, _ in sessions]
    every = [session for session in every if not session.meta.trial] or every
    script = script_of(max(every, key=lambda session: session.meta.unix_ns)) if every else ""
    points: list[Point] = []
    traces: list[tuple[int, RankFile]] = []  # with the index of the point that each is of
    for target, folders, sessions in zip(targets, below, readable, strict=True):
        named = folders == [target]
        runs = sessions if named else [one for one in sessions if not one[0].meta.trial]
        if trials := len(sessions) - len(runs):
            problems.append(f"{plural(trials, 'trial')} of tuiprof fix")
        chosen = runs if named else [one for one in runs if script_of(one[0]) == script]
        if others := len(runs) - len(chosen):
            problems.append(
                f"{plural(others, 'run')} of other scripts than {script}; name a session to include it"
            )
        for point, file in _recorded(chosen) if folders else _captured(target):
            traces += [] if file is None else [(len(points), file)]
            points.append(point)
    if not points:
        raise TraceError("no session or trace found", "tuiprof list shows recorded sessions")
    files = [
        File(number, str(file.path.absolute()), number, file.size_bytes)
        for number, (_, file) in enumerate(traces)
    ]
    if files:
        found = gather(files, executor(files), progress).files
        for row in found.iter_rows(named=True):
            index, _ = traces[row["file"]]
            if row["problem"]:
                problems.append(f"{row['path']}: {row['problem']}")
                continue
            in_trace = {key: float(row[key]) for key in FIGURES if row[key] is not None}
            # A session saw its steps without the profiler, the trace with it.
            points[index] = replace(points[index], figures={**in_trace, **points[index].figures})
    return points, problems


def _readable(folders: Sequence[Path], problems: list[str]) -> list[tuple[Session, Summary]]:
    """Return sessions with their summaries; why one cannot be read is added to the problems."""
    found = []
    for folder in folders:
        try:
            session = Session(folder)
            found.append((session, summary_of(session)))
        except SessionError as error:
            problems.append(error.message)
    return found


def _recorded(sessions: Sequence[tuple[Session, Summary]]) -> Iterator[tuple[Point, RankFile | None]]:
    """Yield a point for each run, with its newest trace; of a run of several hosts the first stands for all."""
    groups = group_parts(seen.part for _, seen in sessions if seen.part is not None)
    beside = {part.id for group in groups for part in group[1:]}
    for session, seen in sessions:
        if seen.id not in beside:
            git = session.meta.git
            steps = {} if seen.median_ns is None else {"step_ns": float(seen.median_ns)}
            file = open_set(session.path / "traces").file() if session.traces() else None
            yield Point(seen.id, seen.unix_ns, git.commit if git else "", steps), file


def _captured(folder: Path) -> Iterator[tuple[Point, RankFile]]:
    """Yield a point for each run of traces, with its trace."""
    newest = open_set(folder)
    for run in newest.runs or ("",):
        file = (open_set(folder, run=run) if run else newest).file()
        yield Point(run or file.path.name, int(file.path.stat().st_mtime * 1e9)), file
