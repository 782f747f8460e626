"""When captured events happen in a replayed step, and where on the captured time axis a change saves time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif.calibration import Calibrated
from tuiprof.whatif.edit import Edit
from tuiprof.whatif.graph import WORK
from tuiprof.whatif.replay import Floats, Replay, Round

#: A stream whose rounds take at least this share of the slowest one's also limits the step.
_PACES = 0.98


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Where a stretch loses the time that a change saves; stretches of captured time in order, shape ``(k,)``."""

    starts: Ints  # begin of each, captured ns
    ends: Ints  # end of each, captured ns
    #: Time lost in each and not recovered later, ns without the profiler. The sum is the saving of the change.
    ns: Floats
    high: int  # end of the replayed stretch, captured ns


@dataclass(frozen=True, slots=True, eq=False)
class Instants:
    """The replayed times of a stretch on the axis of the trace, starting when it was captured."""

    work: Ints  # rows of the remaining device work, in order of ``starts``
    starts: Ints  # begin of each, ns
    ends: Ints  # end of each, ns
    captured: Ints  # instants of the main thread in the capture, ns, ascending
    replayed: Ints  # when the main thread reaches them, ns, shape of ``captured``

    def of_host(self, captured: Ints) -> Ints:
        """Return when the main thread reaches captured instants, ns."""
        return np.rint(np.interp(captured, self.captured, self.replayed)).astype(np.int64)

    @property
    def end_ns(self) -> int:
        """End of the last event, ns."""
        return int(max(self.ends.max(initial=0), self.replayed.max(initial=0)))


def instants(step: Calibrated, edit: Edit | None = None) -> Instants:
    """Return the times of a captured stretch without the profiler and with a change, starting idle."""
    graph, replay, edit = step.graph, step.likely, edit or Edit()
    done = replay.first_round(edit)
    keep = replay.kept_work(edit)
    works = np.flatnonzero((graph.kind == WORK) & (keep > 0))
    ends = done.reached[works]
    starts = ends - graph.work_ns[works] * keep[works]
    order = np.argsort(starts, kind="stable")
    captured, reached = _of_main_thread(replay, done, edit)
    return Instants(
        graph.row[works][order],
        graph.low + np.rint(starts[order]).astype(np.int64),
        graph.low + np.rint(ends[order]).astype(np.int64),
        captured,
        graph.low + np.rint(reached).astype(np.int64),
    )


def losses(trace: Trace, step: Calibrated, edit: Edit, saved_ns: float, *, on: Edit | None = None) -> Losses:
    """Return where the captured stretch loses the saving of a change (``saved_ns`` per step), made on top of another.

    The stretch is replayed with and without the change until the step time is constant. The lag between the two grows
    where time is lost; a delay that is caught up later is no loss.
    """
    graph, replay = step.graph, step.likely
    before, after = on or Edit(), edit if on is None else on | edit
    at, behind = _of_pacing_stream(trace, replay, before, after)
    # The part of each delay that remains until the end of the stretch.
    left = np.minimum.accumulate(behind[::-1])[::-1]
    total = max(float(behind[-1]), 0.0)
    lost = np.diff(np.clip(left, 0.0, total), prepend=0.0)
    some = (lost > 0) & (at[1:] > at[:-1])
    if not some.any():
        nothing = np.empty(0, dtype=np.int64)
        return Losses(nothing, nothing, np.empty(0), graph.high)
    scale = saved_ns * max(graph.step_count, 1) / lost[some].sum()
    return Losses(at[:-1][some], at[1:][some], lost[some] * scale, graph.high)


def _of_pacing_stream(trace: Trace, replay: Replay, before: Edit, after: Edit) -> tuple[Ints, Floats]:
    """Return captured instants, and the lag of ``before`` behind ``after`` at each except the first, ns."""
    graph = replay.graph
    now, then = replay.settled_round(before), replay.settled_round(after)
    took = now.took(graph.last)
    streams = [
        (float(graph.work_ns[graph.thread == graph.thread[node]].sum()), node)
        for node, ns in zip(graph.last.tolist(), took.tolist(), strict=True)
        if graph.kind[node] == WORK and ns >= _PACES * took.max()
    ]
    if not streams:  # host-bound
        at, late = _of_main_thread(replay, now, before)
        _, early = _of_main_thread(replay, then, after)
        main = graph.last[0]
        return at, (late - now.before[main] - (early - then.before[main]))[1:]
    last = max(streams)[1]
    mine = np.flatnonzero((graph.kind == WORK) & (graph.thread == graph.thread[last]))
    rows = graph.row[mine]
    # Begin and end of each item alternate.
    captured = np.stack((trace.starts[rows], trace.ends[rows]), axis=1).ravel()
    late, early = (
        np.stack(
            (done.reached[mine] - graph.work_ns[mine] * replay.kept_work(edit)[mine], done.reached[mine]),
            axis=1,
        ).ravel()
        - done.before[last]
        for done, edit in ((now, before), (then, after))
    )
    at = np.maximum.accumulate(np.concatenate(([graph.low], captured)))
    return at, late - early


def _of_main_thread(replay: Replay, done: Round, edit: Edit) -> tuple[Ints, Floats]:
    """Return the instants of the main thread's clock, and when it reaches each, ns."""
    graph, clock = replay.graph, replay.graph.clocks[0]
    mine = np.flatnonzero(graph.thread == 0)
    mine = mine[np.argsort(graph.host_start[mine], kind="stable")]
    begin, end = graph.host_start[mine], graph.host_end[mine]
    at = np.unique(np.concatenate((clock.at, begin, end)))
    passed = replay.passed(0, edit)
    node = np.maximum(np.searchsorted(begin, at, side="right") - 1, 0)
    from_ns = done.predecessors(graph, mine)[node]
    worked = np.interp(np.minimum(at, end[node]), clock.at, passed) - np.interp(begin[node], clock.at, passed)
    reached = np.where(at <= end[node], from_ns + worked, done.reached[mine][node])
    return at, np.maximum.accumulate(reached)
