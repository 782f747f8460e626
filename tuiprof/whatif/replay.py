"""Replays a captured step: as it was captured, as it is without the profiler, and with a change.

Profiler overhead: if the session saw the same step uncaptured, the cost of recording an event is fitted so that the
replayed step takes as long. A device-bound step says nothing about the host, and without a session there is nothing to
fit to: then the default costs in :mod:`tuiprof.whatif.graph` are used, with a wide range.

Other ranks: a rank that becomes faster waits longer for the others. So the saving of a change is that of a step without
waits for other ranks, as if it was made on all of them; if it is made on this rank alone, the waits absorb it. Only a
change that removes those waits is credited with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, sqrt
from typing import Final, Literal

import numpy as np

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Floats, Ints
from tuiprof.model.steps import Uncaptured
from tuiprof.whatif import Edit
from tuiprof.whatif.graph import SHORT_GAP_NS, WAIT, WORK, Graph
from tuiprof.whatif.phases import weigh, without_interruptions

#: Rounds are replayed until two take the same time within this share; minimum and maximum number of rounds.
SAME, MIN_ROUNDS, MAX_ROUNDS = 0.001, 2, 12


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round of a replay."""

    reached: Floats  # when each node of the graph was reached, ns, shape ``(n,)``
    before: Floats  # the same in the previous round, or before the first one

    def took(self, nodes: Ints) -> Floats:
        """Return the time between the previous round and this one at the given nodes, ns."""
        return self.reached[nodes] - self.before[nodes]

    def predecessors(self, graph: Graph, nodes: Ints) -> Floats:
        """Return when the predecessors of the given nodes were reached, possibly in the previous round, ns."""
        before = graph.before[nodes]
        return np.where(before >= nodes, self.before[before], self.reached[before])


@dataclass(frozen=True, eq=False)
class Replay:
    """A graph without profiler overhead."""

    graph: Graph
    #: Factor on the subtracted recording costs; 0 = the step as captured.
    scale: float = 0.0
    host: float = 1.0  # factor on the remaining host time
    gaps: float = 1.0  # share of the gaps between queued items of a stream that remains

    @cached_property
    def unchanged_ns(self) -> float:
        """Step time without a change, ns."""
        return self.step_ns()

    @cached_property
    def alone_ns(self) -> float:
        """Step time without waits for other ranks, ns."""
        return self.step_ns(self.graph.alone) if len(self.graph.alone.waits) else self.unchanged_ns

    def once(self) -> Floats:
        """Replay the first round: when each of ``graph.last`` is reached, ns since the start of the stretch."""
        return self.first_round().reached[self.graph.last]

    def first_round(self, edit: Edit | None = None) -> Round:
        """Replay one round from how the streams were at its start."""
        reached: list[float] = self.graph.rest.tolist()
        _round(reached, *self._edges(edit or Edit()))
        return Round(np.array(reached), self.graph.rest)

    def settled_round(self, edit: Edit | None = None) -> Round:
        """Replay rounds until two take the same time, and return the last; without marked steps the first."""
        if not self.graph.step_count:
            return self.first_round(edit)
        edges = self._edges(edit or Edit())
        reached: list[float] = self.graph.rest.tolist()
        last: list[int] = self.graph.last.tolist()
        took = 0.0
        for count in range(MAX_ROUNDS):
            before = reached.copy()
            _round(reached, *edges)
            # The slowest of host and streams limits the step: a host that runs ahead only fills the queue.
            newly = max(reached[node] - before[node] for node in last)
            if count >= MIN_ROUNDS and abs(newly - took) <= SAME * took:
                break
            took = newly
        return Round(np.array(reached), np.array(before))

    def step_ns(self, edit: Edit | None = None) -> float:
        """Return the steady-state step time, ns; without marked steps, of the whole stretch."""
        took = self.settled_round(edit).took(self.graph.last)
        return float(took.max()) / max(self.graph.step_count, 1)

    def least_ns(self, edit: Edit, *, overlap: bool = True) -> float:
        """Return the busy time per step with a change, ns, which is the minimum step time.

        It is that of the busiest stream. Kernels of different streams share the device: unless all of them may
        ``overlap``, they do so only as far as in the capture.
        """
        graph = self.graph
        works = graph.kind == WORK
        if not works.any():
            return 0.0
        kept = graph.work_ns * self.kept_work(edit)
        busiest = np.bincount(-1 - graph.thread[works], weights=kept[works]).max()
        least = float(busiest) / max(graph.step_count, 1)
        computing = graph.computing
        if overlap or not len(computing):
            return least
        part = kept[computing].sum() / max(graph.work_ns[computing].sum(), 1.0)
        return max(least, float(part) * graph.computing_ns)

    def _edges(self, edit: Edit) -> tuple[list[int], list[float], list[int], list[float]]:
        """Return the predecessors of all nodes and the delays after them."""
        graph = self.graph
        keep = self.kept_work(edit)
        waits = (graph.kind == WAIT) & np.isin(graph.row, edit.waits)
        gone = (keep == 0) & (graph.kind == WORK)
        arrived = gone | np.isin(graph.row, edit.waits)
        work_ns = graph.work_ns * keep + np.where(arrived, 0.0, graph.peers_ns)
        # The time of a wait with nothing to wait for is host time.
        gap = (graph.kind == WORK) & (graph.before_ns <= SHORT_GAP_NS)
        before_ns = np.select([graph.kind == WAIT, gap], [self.host, self.gaps], 1.0) * graph.before_ns
        before_ns = np.where(waits | gone, 0.0, before_ns) + work_ns
        other_ns = graph.other_ns + work_ns
        for thread, clock in enumerate(graph.clocks):
            passed = self.passed(thread, edit)
            mine = np.flatnonzero(graph.thread == thread)
            start, end, resumed = graph.host_start[mine], graph.host_end[mine], graph.other_start[mine]
            reached = np.interp(end, clock.at, passed)
            before_ns[mine] += reached - np.interp(start, clock.at, passed)
            other_ns[mine] += np.where(resumed >= 0, reached - np.interp(resumed, clock.at, passed), 0.0)
        cut = waits | gone
        other = np.where(cut, -1, graph.other).tolist() if cut.any() else graph.others
        return graph.befores, before_ns.tolist(), other, other_ns.tolist()

    def passed(self, thread: int, edit: Edit) -> Floats:
        """Return the elapsed host time of a thread with a change at each instant of its clock, ns."""
        clock = self.graph.clocks[thread]
        return self.host * clock.passed(self.scale, _kept_host(edit, self.graph.tracks[thread], clock.at))

    def kept_work(self, edit: Edit) -> Floats:
        """Return the share of its device work that each node keeps with a change, shape ``(n,)``."""
        graph = self.graph
        keep = np.ones(len(graph))
        if len(edit.work):
            order = np.argsort(edit.work, kind="stable")
            rows, parts = edit.work[order], edit.keep[order]
            rows, first = np.unique(rows, return_index=True)
            parts = np.minimum.reduceat(parts, first)
            at = np.minimum(np.searchsorted(rows, graph.row), len(rows) - 1)
            hit = (graph.kind == WORK) & (rows[at] == graph.row)
            keep[hit] = parts[at[hit]]
        return keep


def _kept_host(edit: Edit, track: int, at: Ints) -> Floats | None:
    """Return the share of host time between the instants of a clock that remains; None = all of it."""
    host = edit.host
    mine = np.flatnonzero(host.tracks == track)
    if not len(mine):
        return None
    keep = np.ones(len(at) - 1)
    first = np.searchsorted(at, host.starts[mine], side="left")
    last = np.searchsorted(at, host.ends[mine], side="right") - 1
    parts = host.keep[mine]
    counts = np.maximum(last - first, 0)
    inside = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(
        counts.sum()
    )
    np.minimum.at(keep, inside, np.repeat(parts, counts))
    # A change that begins or ends between two events shrinks a part of the time between them.
    for index, start, end, part in (
        (
            first - 1,
            host.starts[mine],
            np.minimum(host.ends[mine], at[np.minimum(first, len(at) - 1)]),
            parts,
        ),
        (last, np.maximum(at[last], host.starts[mine]), np.where(last >= first, host.ends[mine], 0), parts),
    ):
        partly = (index >= 0) & (index < len(keep)) & (end > start)
        at_index = index[partly]
        covered = (end - start)[partly] / np.maximum((at[at_index + 1] - at[at_index]), 1)
        np.multiply.at(keep, at_index, 1 - np.minimum(covered, 1.0) * (1 - part[partly]))
    return keep


def _round(
    reached: list[float], before: list[int], before_ns: list[float], other: list[int], other_ns: list[float]
) -> None:
    """Compute every node once; predecessors later in the order still hold the instants of the previous round."""
    nodes = range(
        len(reached)
    )  # without enumerate, which pairs each with the rest, a round takes 15 % less time
    for node, a, a_ns, b, b_ns in zip(nodes, before, before_ns, other, other_ns, strict=True):
        at = reached[a] + a_ns
        if b >= 0 and (late := reached[b] + b_ns) > at:
            at = late
        reached[node] = at


# -- without the profiler ---------------------------------------------------------------------------------


#: How host time was corrected: fitted to the steps of the session, with the default costs, or not at all.
Basis = Literal["session", "table", "none"]

#: Relative tolerance of the unchanged replay against the captured time.
TOLERANCE: Final = 0.02
#: Variation between two runs of the same script: of steps (clocks, kernel selection in libraries), and of savings,
#: each as a share of itself.
NOISE, NOISE_OF_WIN = 0.01, 0.1
#: The idle time of the device varies more, as hosts are shared: by this share of itself, or as much as the steps of
#: the session. And the host may be faster or slower in total, by these factors on its time.
HOST_NOISE: Final = 0.06
HOSTS: Final = (0.8, 1.25)
#: Range of factors on the default costs on other machines.
RANGE: Final = (0.25, 2.0)
#: Maximum factor on the default costs.
_MAX_SCALE: Final = 16.0
#: A host that keeps up with its device is probably faster than required: this factor applies to the recording costs.
_KEEPS_UP: Final = 1.4
#: Where only the device limits the steps of a session: the median of the factors fitted to other sessions, 18 µs an
#: event (docs/predictions.md).
_USUAL: Final = 1.8
#: Range of factors around a fit to the session's median, as the split of recording costs among events is unknown.
_FIT_RANGE: Final = (0.75, 1.33)
#: The profiler also makes the gaps between queued kernels longer: in 56 sessions that the device limits, this share of
#: them remains (median).
GAPS: Final = 0.74
#: A step within this share of its time with the fastest host is device-bound.
_PACED_BY_DEVICE: Final = 0.01
#: The host does not limit a step either if the device alone takes this share of it and the capture was no
#: slower. An estimate: the share is 0.89 in a session that its device limits, and 0.6 in one that its loader limits
#: (server-json of set 8 and skeleton-loader of set 13 in tests/predictions).
_MOSTLY_DEVICE: Final = 0.8
#: Launches that CUDA queues, about. A step of more of them waits for the device even if nothing was queued when it
#: began; if it takes less than this multiple of that, it does not show what the host takes. An estimate.
_QUEUE: Final = 1024
_MORE_THAN_FILLED: Final = 1.25
#: A rank that waits for others in the capture for this share of a step, and whose host took less than that share of
#: it in the first steps, when nothing was queued yet, is bound by them.
_LONG_WAITS: Final = 0.1
_FAST_HOST: Final = 0.75
_BISECTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class Win:
    """Saving of a change per step (in total if the trace marks no steps), ns."""

    ns: float  # the likely figure
    low_ns: float  # at least
    high_ns: float  # at most


@dataclass(frozen=True)
class Calibrated:
    """A captured step, calibrated to run without the profiler."""

    graph: Graph  # the captured step
    scale: float  # factor on the default recording costs
    #: The lowest and the highest plausible factor, for the range of a prediction.
    scales: tuple[float, ...]
    basis: Basis  # the source of the factor
    gaps: float = 1.0  # share of the gaps between queued items of a stream that remains without the profiler
    uncaptured: Uncaptured | None = None  # steps of the session; None = none
    #: The step as captured, if its batches came earlier than in the session; None = it is ``graph``.
    with_early_batches: Graph | None = None

    @property
    def captured(self) -> Graph:
        """The step as captured."""
        return self.with_early_batches or self.graph

    @cached_property
    def error(self) -> float:
        """Relative error of the unchanged replay, maximum over all threads and streams."""
        captured = self.captured.last_captured_ns
        return float(np.abs(Replay(self.captured).once() - captured).max() / max(captured.max(), 1.0))

    @property
    def trusted(self) -> bool:
        """Whether the replay reproduces the capture, within :data:`TOLERANCE`."""
        return self.error <= TOLERANCE

    @cached_property
    def captured_ns(self) -> float:
        """Time of a step while it is captured, ns."""
        return Replay(self.captured).step_ns()

    @cached_property
    def replayed_ns(self) -> float:
        """Time of the replayed step without the profiler, ns."""
        return self.likely.unchanged_ns

    @property
    def step_ns(self) -> float:
        """Time of a step without the profiler, ns: as measured by the session, else as replayed."""
        return self.uncaptured.step_ns if self.basis == "session" and self.uncaptured else self.replayed_ns

    @cached_property
    def host_part(self) -> float:
        """Share of the captured host time that remains without the profiler, 0 to 1."""
        clocks = self.captured.clocks
        captured = sum(float(clock.captured_ns.sum()) for clock in clocks)
        without = sum(float(clock.passed(self.scale)[-1]) for clock in clocks)
        return without / captured if captured else 1.0

    @property
    def unplaced_ns(self) -> float:
        """Excess of a replayed step over the steps of the session even with the fastest host, ns.

        The replay cannot tell which part of the captured step disappears without the profiler.
        """
        return max(self.likely.alone_ns - self.step_ns, 0.0)

    @property
    def waiting_ns(self) -> float:
        """Waiting for other ranks in a step, ns: what it takes longer than without.

        Until this rank is the last one, a change that is not made on the others saves nothing.
        """
        return max(min(self.replayed_ns, self.step_ns) - self.likely.alone_ns, 0.0)

    def others_of(self, edit: Edit) -> Edit:
        """Return the change in which there are no waits for other ranks but those that a change removes."""
        waits = self.graph.alone.waits
        return Edit(waits=waits[~np.isin(waits, edit.waits)])

    def likely_ns(self, edit: Edit, *, on: Edit | None = None) -> float:
        """Return the likely saving of a change per step, ns."""
        return min(max(self._wins(self.likely, edit, on), 0.0), self.step_ns)

    def win(
        self,
        edit: Edit,
        least: Edit | None = None,
        most: Edit | None = None,
        *,
        on: Edit | None = None,
        likely_ns: float | None = None,
    ) -> Win:
        """Return the saving of a change, with its range.

        Args:
            edit: The likely change.
            least: The change where it helps least; None = as likely.
            most: The change where it helps most; None = as likely.
            on: A change that is made first.
            likely_ns: The result of :meth:`likely_ns` if known.
        """
        likely = self.likely_ns(edit, on=on) if likely_ns is None else likely_ns
        limit = self._limit_ns((edit, least or edit, most or edit), on or Edit())
        wins = [
            self._wins(replay, one or edit, on)
            for replay in self._others
            for one in {least or edit, most or edit}
        ]
        # The uncertainty of the change and the variation of steps are independent.
        below = hypot(likely - (1 - NOISE_OF_WIN) * min(likely, *wins), self.noise_ns)
        above = hypot((1 + NOISE_OF_WIN) * max(likely, *wins) - likely, self.noise_ns)
        # The unplaced time may be what the change removes.
        slack = self.waiting_ns if len(self.others_of(edit).waits) else 0.0
        low = max(likely - below - self.unplaced_ns - slack, 0.0)
        return Win(likely, low, max(min(likely + above, limit), likely))

    def _limit_ns(self, edits: Sequence[Edit], on: Edit) -> float:
        """Return the maximum saving of any of several changes, ns, after another change.

        The device work that they do not touch remains. The step of a session is measured, and may be longer in another
        process; for an estimated step, the range of the default costs may exceed the host time itself.
        """
        if self.basis == "session":
            return self.step_ns
        touched = np.concatenate([edit.work for edit in edits])
        left_ns = self.likely.least_ns(on | Edit(work=touched, keep=np.zeros(len(touched))))
        return max(self.step_ns - left_ns, 0.0)

    @property
    def noise_ns(self) -> float:
        """Variation of the step time between two runs of the same script, ns."""
        idle = max(1 - self.graph.own_busy_ns / max(self.step_ns, 1.0), 0.0)
        scatter = HOST_NOISE * self.step_ns
        if self.basis == "session" and self.uncaptured is not None:
            scatter = max(scatter, (self.uncaptured.high_ns - self.uncaptured.low_ns) / 2)
        return NOISE * self.step_ns + idle * scatter

    @cached_property
    def likely(self) -> Replay:
        """The likely step without the profiler."""
        return Replay(self.graph, self.scale, gaps=self.gaps)

    @cached_property
    def _others(self) -> tuple[Replay, ...]:
        """Other plausible steps: with a slower or faster host, and with higher or lower recording costs."""
        if self.basis == "none":
            return (Replay(self.graph, 0.0),)
        slower, faster = min(self.scales), max(self.scales)
        return (
            Replay(self.graph, slower, max(HOSTS), self.gaps),
            Replay(self.graph, faster, min(HOSTS), self.gaps),
        )

    def _wins(self, replay: Replay, edit: Edit, on: Edit | None) -> float:
        if on is not None:
            return self._taken_away(replay, on | edit) - self._taken_away(replay, on)
        return self._taken_away(replay, edit)

    def _taken_away(self, replay: Replay, edit: Edit) -> float:
        """Return the reduction of the step time by a change; the rest is never less than the device work."""
        placed = self.step_ns / max(self.likely.alone_ns, self.step_ns, 1.0)
        before, others = placed * replay.alone_ns, self.others_of(edit)
        if len(others.waits) < len(self.graph.alone.waits):
            # Outside the capture, a step waits for as long as it takes longer than without.
            before = min(placed * replay.step_ns(others), max(before, self.step_ns))
        after = placed * replay.step_ns(edit | others)
        overlap = replay is not self.likely
        least, whole = (replay.least_ns(one, overlap=overlap) for one in (edit, Edit()))
        # Where all of it takes longer while captured than a step of the session, so does what remains.
        least *= min(before / max(whole, 1.0), 1.0)
        return before - max(after, min(before, least))


@dataclass(frozen=True)
class Kinds:
    """The steps of a session: the usual one, and those of another kind, which take several times as long.

    A saving is the mean over all steps.
    """

    usual: Calibrated
    long: Calibrated | None = None
    long_count: int = 0  # of the session's steps
    count: int = 1

    @property
    def share(self) -> float:
        """Share of long steps."""
        return self.long_count / self.count

    @property
    def step_ns(self) -> float:
        """Mean time of a step without the profiler, ns."""
        return self._mean(self.usual.step_ns, self.long.step_ns if self.long else 0.0)

    @property
    def captured_ns(self) -> float:
        """Mean time of a step if all were captured, ns."""
        return self._mean(self.usual.captured_ns, self.long.captured_ns if self.long else 0.0)

    @property
    def busy_ns(self) -> float:
        """Mean busy time of the busiest device in a step, without waits for other ranks, ns."""
        return self._mean(self.usual.graph.own_busy_ns, self.long.graph.own_busy_ns if self.long else 0.0)

    @property
    def device_busy_ns(self) -> float:
        """Mean busy time of the busiest device in a step, ns."""
        return self._mean(
            self.usual.graph.device_busy_ns, self.long.graph.device_busy_ns if self.long else 0.0
        )

    def likely_ns(self, edit: Edit, *, on: Edit | None = None) -> float:
        """Return the likely saving of a change per step, ns."""
        return self._mean(
            self.usual.likely_ns(edit, on=on), self.long.likely_ns(edit, on=on) if self.long else 0.0
        )

    def win(
        self,
        edit: Edit,
        least: Edit | None = None,
        most: Edit | None = None,
        *,
        on: Edit | None = None,
        likely_ns: float | None = None,
    ) -> Win:
        """Return the saving of a change, with its range, in which the share of long steps varies too."""
        if self.long is None:
            return self.usual.win(edit, least, most, on=on, likely_ns=likely_ns)
        usual = self.usual.win(edit, least, most, on=on)
        long = self.long.win(edit, least, most, on=on)
        varies = sqrt(self.long_count) / self.count
        return Win(
            self._mean(usual.ns, long.ns),
            self._mean(usual.low_ns, long.low_ns, -varies),
            min(self._mean(usual.high_ns, long.high_ns, varies), self.step_ns),
        )

    def _mean(self, usual: float, long: float, more: float = 0.0) -> float:
        return (1 - self.share) * usual + (self.share + more) * long


def calibrate(
    graph: Graph, uncaptured: Uncaptured | None, *, recorded_events: bool, phases: Mapping[str, Coverage] = {}
) -> Calibrated:
    """Find the factor on the recording costs, also of each phase if ``phases`` says when they run."""
    if uncaptured is None or not graph.step_count:
        # Without an ordinary step to compare with, hiccups may be occasional work of the script.
        graph = replace(graph, clocks=tuple(clock.as_captured() for clock in graph.clocks))
        if not recorded_events:
            return Calibrated(graph, 0.0, (0.0,), "none")
        return Calibrated(graph, 1.0, RANGE, "table")
    if phases and uncaptured.phases_ns and not (graph.kind == WORK).any():  # nothing waits for a device
        graph = without_interruptions(graph, phases, uncaptured.phases_ns)
    # Waits for other ranks are not known outside the capture, but a step takes at least as long as without them.
    # A step that takes just longer than the fastest host allows seems to be limited by the device alone, since the
    # captured gaps are too long. One that takes less is a share of the replayed one, whatever is too long in that.
    floor = Replay(graph, _MAX_SCALE).step_ns(graph.alone)
    gaps = GAPS if floor < uncaptured.step_ns <= (1 + _PACED_BY_DEVICE) * floor else 1.0
    fitted = fit(graph, uncaptured.step_ns, graph.alone, gaps)
    usual = _USUAL
    if _bound_by_peers(graph, uncaptured, fitted):
        fitted, usual = Fit(fitted.scale, paced=True), 1.0
    elif fitted.scale < RANGE[0] and floor >= _MOSTLY_DEVICE * uncaptured.step_ns:
        # Hardly slower while captured, although a profiler always takes host time: the host does not limit the step.
        fitted = Fit(0.0, paced=True)
    host_ns = uncaptured.host_ns
    if host_ns is not None and host_ns < _MORE_THAN_FILLED * _filled_ns(graph, floor):
        host_ns = None
    if fitted.paced and host_ns is not None:
        # The host alone: its calls, without device work to wait for.
        alone = Edit(work=graph.row[graph.kind == WORK], keep=np.zeros(int((graph.kind == WORK).sum())))
        scale = max(fitted.scale, fit(graph, host_ns, alone, gaps).scale)
        scales = tuple(max(scale * part, fitted.scale) for part in _FIT_RANGE)
        return Calibrated(graph, scale, scales, "session", gaps, uncaptured)
    if fitted.paced:
        # The overhead is at least what would keep the host from keeping up, and probably somewhat more.
        scale = max(_KEEPS_UP * fitted.scale, usual)
        return Calibrated(
            graph, scale, (max(fitted.scale, RANGE[0]), RANGE[1] * scale), "session", gaps, uncaptured
        )
    if fitted.scale and phases and uncaptured.slowed_ns:
        graph = weigh(graph, phases, uncaptured.slowed_ns, fitted.scale)
        fitted = fit(graph, uncaptured.step_ns, graph.alone, gaps)
    scales = tuple(fitted.scale * part for part in _FIT_RANGE)
    return Calibrated(graph, fitted.scale, scales, "session", gaps, uncaptured)


def _filled_ns(graph: Graph, floor_ns: float) -> float:
    """Return what a step of so much device time takes a host at least, as it fills the launch queue within it, ns."""
    launches = len(np.unique(graph.other[graph.kind == WORK])) / graph.step_count
    return floor_ns * max(1 - _QUEUE / max(launches, 1), 0.0)


def _bound_by_peers(graph: Graph, uncaptured: Uncaptured, fitted: Fit) -> bool:
    """Whether a step probably takes as long as it does because this rank waits for others, not because of its host."""
    waits_ns = float(graph.peers_ns.sum()) / max(graph.step_count, 1)
    if not waits_ns:
        return False
    host_ns = uncaptured.host_ns if uncaptured.host_ns is not None else uncaptured.step_ns
    waits_long = waits_ns >= _LONG_WAITS * uncaptured.step_ns
    return not fitted.scale or (waits_long and host_ns < _FAST_HOST * uncaptured.step_ns)


@dataclass(frozen=True, slots=True)
class Fit:
    """A factor on the recording costs that reproduces a step time."""

    scale: float  # the smallest such factor
    paced: bool  # device-bound: every larger factor gives the same time


def fit(graph: Graph, step_ns: float, edit: Edit | None = None, gaps: float = 1.0) -> Fit:
    """Find the factor at which the replayed step, with an edit, takes a given time."""
    low, high = 0.0, _MAX_SCALE
    floor = (1 + _PACED_BY_DEVICE) * Replay(graph, high, gaps=gaps).step_ns(edit)
    paced, wanted = floor >= step_ns, max(floor, step_ns)
    if Replay(graph, low, gaps=gaps).step_ns(edit) <= wanted:
        return Fit(low, paced)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        longer = Replay(graph, middle, gaps=gaps).step_ns(edit) > wanted
        low, high = (middle, high) if longer else (low, middle)
    return Fit(high, paced)


# -- when, and where time is lost -------------------------------------------------------------------------


#: A stream whose rounds take at least this share of the slowest one's also limits the step.
_PACES = 0.98


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Where a stretch loses the time that a change saves; stretches of captured time in order, shape ``(k,)``."""

    starts: Ints  # captured ns
    ends: Ints  # captured ns
    #: Time lost in each and not recovered later, ns without the profiler. The sum is the saving of the change.
    ns: Floats
    high: int  # end of the replayed stretch, captured ns


@dataclass(frozen=True, slots=True, eq=False)
class Instants:
    """The replayed times of a stretch on the axis of the trace, starting when it was captured."""

    work: Ints  # rows of the remaining device work, in order of ``starts``
    starts: Ints  # ns
    ends: Ints  # ns
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
    others = step.others_of(edit if on is None else on | edit)
    before = others if on is None else others | on
    after = before | edit
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
    # Start and end of each item alternate.
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
    # A node that continues after another thread has done its part begins when that has.
    resumed = graph.other_start[mine]
    start = np.where(resumed >= 0, np.minimum(graph.host_start[mine], resumed), graph.host_start[mine])
    order = np.argsort(start, kind="stable")
    mine, resumed, start = mine[order], resumed[order], start[order]
    end = graph.host_end[mine]
    at = np.unique(np.concatenate((clock.at, start, end)))
    passed = replay.passed(0, edit)
    node = np.maximum(np.searchsorted(start, at, side="right") - 1, 0)
    from_ns, until_ns = done.predecessors(graph, mine)[node], done.reached[mine][node]
    now, first, last = (np.interp(instant, clock.at, passed) for instant in (at, start[node], end[node]))
    continues = (resumed[node] >= 0) & (at >= resumed[node])
    reached = np.where(
        at > end[node], until_ns, np.where(continues, until_ns - (last - now), from_ns + now - first)
    )
    return at, np.maximum.accumulate(reached)
