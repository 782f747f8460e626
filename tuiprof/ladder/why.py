"""Why a variant of a ladder is faster or slower than the one it builds on: what changed between their traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tuiprof.advice.proof import Proof, prove
from tuiprof.analyses import run
from tuiprof.analyses.compare import DEVICE_SHARE, HOST_SHARE, change_clauses, compare
from tuiprof.analyses.shared.changes import figure_of
from tuiprof.errors import TuiprofError
from tuiprof.formats import open_trace
from tuiprof.ladder.state import LadderMeta, LadderRun, Trial
from tuiprof.model import Report, Trace
from tuiprof.model.characters import shell_word

WHY_RULE: Final = (
    "Differences between the captured steps of a variant and of the one it builds on (else its baseline): syncs and "
    "launches a step; device time by kind of kernel; without device activity, operators by self time. Times are listed "
    f"from {DEVICE_SHARE * 100:.0f} % of a step, shares of the operators' self time from {HOST_SHARE * 100:.0f} "
    "percentage points. Captured steps are slowed down by the profiler and are not timed."
)


#: Device times that differ by less than this share count as equal.
_SAME_SHARE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures from the trace of one variant."""

    path: Path | None  # the trace; None = there is none
    syncs: float | None = None  # syncs a step; None = unknown
    launches: float | None = None  # launches a step; None = unknown
    problem: str = ""  # why there is no trace, or why it cannot be read; empty = none
    #: Kernels of a step on the device, with their number; empty = none, or unknown.
    work: frozenset[tuple[str, float]] = frozenset()
    work_ns: float = 0.0  # their time a step


@dataclass(frozen=True, slots=True)
class Why:
    """Changes of one variant."""

    variant: str
    against: str  # the variant with which it is compared
    #: What changed, one clause each, most important first; empty = nothing above the thresholds.
    changes: tuple[str, ...]
    #: Findings of the other variant that this one does not have, and their predicted saving; None = there is none.
    proof: Proof | None = None


class Traces:
    """The captured traces of a ladder, read on demand; a few are cached."""

    def __init__(self, ladder: LadderRun, opener: Callable[[Path], Trace] = open_trace) -> None:
        self._ladder = ladder
        self._trials = {
            trial.variant: trial
            for trial in ladder.meta.trials
            if trial.kind in ("trace", "once") and trial.state == "done"
        }
        # Variants mostly build on one another, so two or three traces are needed at a time, and they may be large.
        self._open = lru_cache(maxsize=3)(opener)

    def path(self, variant: str) -> tuple[Path | None, str]:
        """Return the path of the trace of a variant, or why there is none."""
        trial = self._trials.get(variant)
        if trial is None:
            return None, ""
        try:
            found = self._ladder.session(trial).traces()
        except TuiprofError as error:
            return None, str(error)
        return (found[0], "") if found else (None, trial.why or "no trace was captured")

    def get(self, variant: str) -> Trace | None:
        """Return the trace of a variant; None = there is none, or it cannot be read."""
        path, _ = self.path(variant)
        try:
            return self._open(path) if path is not None else None
        except TuiprofError:  # said by `seen`
            return None


def seen(traces: Traces, variant: str) -> Seen:
    """Return the figures from the trace of a variant."""
    path, problem = traces.path(variant)
    if path is None:
        return Seen(None, problem=problem)
    trace = traces.get(variant)
    if trace is None:
        return Seen(path, problem=f"its trace cannot be read: tuiprof report {shell_word(str(path))}")
    # Without device activity blocking copies cannot be recognised, so that a count of syncs would be too low.
    syncs = figure_of(run("sync_events", trace), "syncs_per_step") if trace.device_indices else None
    launches = figure_of(run("kernel_launches", trace), "launches_per_step")
    return Seen(path, syncs, launches, "", *_device_work(trace))


def _device_work(trace: Trace) -> tuple[frozenset[tuple[str, float]], float]:
    found = run("kernels", trace) if trace.device_indices else None
    if not isinstance(found, Report) or not trace.steps.numbers.size:
        return frozenset(), 0.0
    rows = found.table("kernels").rows
    return frozenset(rows.select("kernel", "per_step").iter_rows()), float(rows["per_step_ns"].sum())


def why(traces: Traces, meta: LadderMeta, seen_of: Mapping[str, Seen]) -> list[Why]:
    """Return what changed in each variant compared with the one it builds on, else with its baseline."""
    found = []
    for rung in meta.rungs:
        builds_on = rung.builds_on if rung.builds_on in seen_of else rung.baseline
        before, after = traces.get(builds_on), traces.get(rung.name)
        if builds_on != rung.name and before is not None and after is not None:
            found.append(Why(rung.name, builds_on, changes(before, after), prove(before, after)))
    return found


def changes(before: Trace, after: Trace) -> tuple[str, ...]:
    """Return what changed between two traces of a few steps each, in words."""
    if not (before.steps.numbers.size and after.steps.numbers.size):
        return ("unknown: not both traces mark steps",)
    return change_clauses(compare(before, after), before, after)


def problems(seen_of: Mapping[str, Seen], trials: Mapping[str, Trial]) -> list[str]:
    """Return why variants have no trace, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for variant, what in seen_of.items():
        if what.problem and variant in trials:
            by_reason.setdefault(what.problem, []).append(variant)
    return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def same_work(seen_of: Mapping[str, Seen]) -> list[str]:
    """Return which variants ran the same kernels, equally often and long, so that they do not differ on the device.

    That may be the point of a variant (a metric computed elsewhere), or an accident: a cache of compiled graphs that
    does not tell two variants apart hands one of them the other's.
    """
    groups: list[list[str]] = []
    for variant, what in seen_of.items():
        for group in groups:
            first = seen_of[group[0]]
            if what.work == first.work and abs(what.work_ns - first.work_ns) <= _SAME_SHARE * first.work_ns:
                group.append(variant)
                break
        else:
            if what.work:
                groups.append([variant])
    return [
        f"{', '.join(group)}: the same kernels in the captured steps, as often and as long"
        for group in groups
        if len(group) > 1
    ]
