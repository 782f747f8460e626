"""Why a rung of a ladder is faster or slower than the one it builds on: what changed between their traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import polars as pl

from tuiprof.analyses import run
from tuiprof.analyses.compare import compare
from tuiprof.errors import TuiprofError
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace, Unavailable
from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.session.ladder_state import LadderMeta, LadderRun, Trial

#: Differences of time below this share of a step are not told on a device …
DEVICE_SHARE: Final = 0.01
#: … and below this one of the operators' self time on a CPU, where the same work takes longer or shorter by the load.
HOST_SHARE: Final = 0.10
#: So many of a sort are named.
_MOST: Final = 3
WHY_RULE: Final = (
    "What differs between the captured steps of a variant and of the one it builds on (else its baseline): syncs and "
    "launches a step; device time by kind of kernel; without device activity, operators by self time. Times count from "
    f"{DEVICE_SHARE * 100:.0f} % of a step, shares of the operators' self time from {HOST_SHARE * 100:.0f} points. "
    "Captured steps are slowed down by the profiler and are not among the timed ones."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the trace of one variant shows.

    Attributes:
        path: The trace; None = there is none.
        syncs: Syncs a step; None = cannot be told.
        launches: Launches a step; None = cannot be told.
        problem: Why there is no trace, or why it cannot be read; empty = none.
    """

    path: Path | None
    syncs: float | None = None
    launches: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """What changed in one variant.

    Attributes:
        variant: The variant.
        against: The variant it is held against.
        changes: What changed, one clause each, what matters most first; empty = nothing beyond the thresholds.
    """

    variant: str
    against: str
    changes: tuple[str, ...]


class Traces:
    """The captured traces of a ladder, read when asked for; a few are kept.

    Args:
        ladder: The ladder.
        opener: Reads a trace.
    """

    def __init__(self, ladder: LadderRun, opener: Callable[[Path], Trace] = open_trace) -> None:
        self._ladder = ladder
        self._trials = {
            trial.variant: trial
            for trial in ladder.meta.trials
            if trial.kind == "trace" and trial.state == "done"
        }
        # A ladder's rungs mostly build on one another: two or three are needed at a time, and they may be large.
        self._open = lru_cache(maxsize=3)(opener)

    def path(self, variant: str) -> tuple[Path | None, str]:
        """Return where the trace of a variant is, and why there is none.

        Args:
            variant: Its name.
        """
        trial = self._trials.get(variant)
        if trial is None:
            return None, ""
        try:
            found = self._ladder.session(trial).traces()
        except TuiprofError as error:
            return None, str(error)
        return (found[0], "") if found else (None, trial.why or "no trace was captured")

    def get(self, variant: str) -> Trace | None:
        """Return the trace of a variant; None = there is none that can be read.

        Args:
            variant: Its name.
        """
        path, _ = self.path(variant)
        try:
            return self._open(path) if path is not None else None
        except TuiprofError:  # said by `seen`
            return None


def seen(traces: Traces, variant: str) -> Seen:
    """Return what the trace of a variant shows.

    Args:
        traces: The ladder's traces.
        variant: Its name.
    """
    path, problem = traces.path(variant)
    if path is None:
        return Seen(None, problem=problem)
    trace = traces.get(variant)
    if trace is None:
        return Seen(path, problem=f"its trace cannot be read: tuiprof report {path}")
    # Without device activity blocking copies cannot be told, so that a count of syncs would be too low.
    syncs = _figure(run("sync_events", trace), "syncs_per_step") if trace.device_indices else None
    return Seen(path, syncs, _figure(run("kernel_launches", trace), "launches_per_step"))


def why(traces: Traces, meta: LadderMeta, told: Mapping[str, Seen]) -> list[Why]:
    """Return what changed in each variant against the one it builds on, else against its baseline.

    Args:
        traces: The ladder's traces.
        meta: The ladder.
        told: What the trace of each variant shows.
    """
    found = []
    for rung in meta.rungs:
        builds_on = rung.builds_on if rung.builds_on in told else rung.baseline
        before, after = traces.get(builds_on), traces.get(rung.name)
        if builds_on != rung.name and before is not None and after is not None:
            found.append(Why(rung.name, builds_on, changes(before, after)))
    return found


def changes(before: Trace, after: Trace) -> tuple[str, ...]:
    """Return what changed between two traces of a few steps each, in words.

    Args:
        before: The trace of the variant that is built on.
        after: The other one.
    """
    if not (before.steps.numbers.size and after.steps.numbers.size):
        return ("cannot be told: not both traces mark steps",)
    report = compare(before, after)
    if before.device_indices and after.device_indices:
        return (
            *_syncs(report),
            *_launches(report),
            *_kinds(before, after, _median_step(before) * DEVICE_SHARE),
        )
    return tuple(_operators(report))


def _figure(report: Report | Unavailable, key: str) -> float | None:
    value = report.fact(key) if isinstance(report, Report) else None
    return float(value) if isinstance(value, (int, float)) else None


def _median_step(trace: Trace) -> float:
    return _figure(run("steps", trace), "step_period_ns") or 0.0


def _metric(report: Report, key: str) -> tuple[str, str, float | None]:
    rows = report.table("metrics").rows.filter(pl.col("key") == key)
    return str(rows["before"][0]), str(rows["after"][0]), rows["ratio"][0]


def _syncs(report: Report) -> list[str]:
    old, new, _ = _metric(report, "syncs_per_step")
    if old == new:
        return []
    rows = report.table("syncs").rows
    told = [f"syncs {old} → {new} a step"]
    for word, here, there in (("gone", "before", "after"), ("new", "after", "before")):
        names = rows.filter((pl.col(f"{there}_count") == 0) & (pl.col(f"{here}_count") > 0))
        named = [
            _place(name)
            for name in names.sort(f"{here}_ns", "name", descending=[True, False])["name"].head(_MOST)
        ]
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        if named:
            told.append(f"{word}: {', '.join(named)}{more}")
    return told


def _place(name: str) -> str:
    """Return the place of a sync once where it is named by its own operators."""
    where, _, through = name.partition(" ← ")
    return where if where == through else name


def _launches(report: Report) -> list[str]:
    old, new, ratio = _metric(report, "launches_per_step")
    if old == new or (ratio is not None and abs(ratio - 1) < DEVICE_SHARE):
        return []
    return [f"launches {old} → {new} a step"]


def _kinds(before: Trace, after: Trace, least_ns: float) -> list[str]:
    frames = []
    for trace, name in ((before, "before"), (after, "after")):
        kernels = run("kernels", trace)
        if not isinstance(kernels, Report):
            return []
        rows = kernels.table("kinds").rows
        if "per_step_ns" not in rows.columns:
            return []
        frames.append(rows.select("kind", pl.col("per_step_ns").cast(pl.Float64).alias(name)))
    rows = frames[0].join(frames[1], on="kind", how="full", coalesce=True).fill_null(0.0)
    rows = rows.with_columns((pl.col("after") - pl.col("before")).abs().alias("change"))
    largest = rows.filter(pl.col("change") >= max(least_ns, 1.0))
    largest = largest.sort("change", "kind", descending=[True, False]).head(_MOST)
    return [
        f"device time of {row['kind']} {format_ns(row['before'])} → {format_ns(row['after'])} a step"
        for row in largest.iter_rows(named=True)
    ]


def _operators(report: Report) -> list[str]:
    """Return what changed in the operators of a CPU: those that came or went, then shares of their time."""
    rows = report.table("operators").rows
    told = []
    for word, here, there in (("gone", "before", "after"), ("new", "after", "before")):
        names = rows.filter((pl.col(f"{there}_count") == 0) & (pl.col(f"{here}_count") > 0))
        ordered = names.sort(f"{here}_ns", "name", descending=[True, False])
        named = [
            f"{name} ({format_count(round(count, 2))} a step)"
            for name, count in ordered.select("name", f"{here}_count").head(_MOST).iter_rows()
        ]
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        if named:
            told.append(f"{word}: {', '.join(named)}{more}")
    # Shares, not times: a trace taken while the machine was busy is longer in all its parts.
    shares = rows.select(
        "name", *(pl.col(f"{side}_ns") / pl.col(f"{side}_ns").sum() for side in ("before", "after"))
    )
    shares = shares.fill_nan(0.0).with_columns(
        (pl.col("after_ns") - pl.col("before_ns")).abs().alias("change")
    )
    both = (pl.col("before_ns") > 0) & (pl.col("after_ns") > 0)
    largest = shares.filter(both & (pl.col("change") >= HOST_SHARE))
    largest = largest.sort("change", "name", descending=[True, False]).head(_MOST)
    told += [
        f"{name} {format_share(before)} → {format_share(after)} of the operators' time"
        for name, before, after in largest.select("name", "before_ns", "after_ns").iter_rows()
    ]
    return told


def problems(told: Mapping[str, Seen], trials: Mapping[str, Trial]) -> list[str]:
    """Return why variants have no trace, each reason once.

    Args:
        told: What the trace of each variant shows.
        trials: The trace trial of each variant that had one.
    """
    by_reason: dict[str, list[str]] = {}
    for variant, what in told.items():
        if what.problem and variant in trials:
            by_reason.setdefault(what.problem, []).append(variant)
    return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
