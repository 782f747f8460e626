"""A captured stretch of training as a dependency graph of calls and device work.

Every node is an instant: the start of a host call, the return of a wait, the end of device work. It is reached after
the last of its predecessors, each plus a delay::

    reached[node] = max(reached[before] + before_ns, reached[other] + other_ns)

======================  ==================================  ================================================
node                    before                              other
======================  ==================================  ================================================
call                    the call before it on its thread    the thread that handed over to it
wait                    the call before it on its thread    the work that it waits for
device work             the work before it on its stream    its launch
join                    any node                            any other: for nodes with more than two
======================  ==================================  ================================================

The first node of a thread or stream follows the last one of the previous round: replaying several rounds reproduces
consecutive steps of a long run, in which the host may run ahead of the device.

The capture shows which predecessor held a node back: work that started as soon as its stream was free was held back by
the stream, work that started later by its launch, or by work on another stream that ended just before it. The captured
delay is kept for that predecessor; for the other one the median of such cases is used. The method is that of Daydream
(Zhu et al., USENIX ATC 2020).

A profiler takes host time when it records: at the start and the end of every operator and device API call. Between
events the host runs at its normal speed: a Python loop without operators takes no longer while captured. So captured
host time is corrected per event (:class:`HostClock`), never by one factor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask
from tuiprof.whatif import Edit, HostTime

CALL, WAIT, WORK, JOIN = range(4)

#: Default host cost of recording one event, ns, without a session to fit to; docs/predictions.md has fitted values.
OPERATOR_NS, CALL_NS, FRAME_NS = 10_000.0, 10_000.0, 2_500.0
#: That of each further kernel of a launch of several, a CUDA graph.
NODE_NS = 3_000.0
#: A gap in a stream that is at most this long does not imply a late launch, ns.
SHORT_GAP_NS = 4_000
#: A stretch of host time is a hiccup (a preempted thread, a buffer flush of the profiler) if it takes at least this
#: long, ns, and this many times as long as elsewhere, in at most half of the steps.
HICCUP_NS, HICCUP_TIMES = 200_000, 6.0
#: The probe notes the line of a wait within this time after it, ns. It stamps the site when PyTorch's warning arrives,
#: then looks at each frame: all of it takes so many times as long as until the stamp, and so much more a frame. In 17
#: sessions with 20 and more waits a step, the shortest stretches with a site are 8 to 20 µs long, 1.5 of which remain.
MAX_NOTING_NS, NOTING, NOTING_A_FRAME = 50_000, 1.2, 0.1
#: Host time that only a capture takes is a cost so many times as long, so that next to nothing of it is left.
_ALL_OF_IT = 50.0
_NUMBER = re.compile(r"#\d+$")
#: Minimum number of steps to know an ordinary one.
MIN_STEPS = 3


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order within a round; arrays of shape ``(n,)``."""

    kind: npt.NDArray[np.int8]  # ``CALL``, ``WAIT``, ``WORK`` or ``JOIN``
    row: Ints  # row of the trace, of the call or of the work; -1 = none
    #: The previous node on the thread or stream; one that is later in the order belongs to the previous round.
    before: Ints
    other: Ints  # the other predecessor; -1 = none
    thread: Ints  # index into ``clocks`` for a host node; for device work -1 minus the index of its stream
    host_start: Ints  # from when to …
    host_end: Ints  # … when the host worked between ``before`` and the node, captured ns
    other_start: Ints  # from when to ``host_end`` it worked after ``other``; -1 = not at all
    before_ns: Floats  # delay after ``before``: a gap on a stream, the minimum time of a wait
    other_ns: Floats  # delay after ``other``: launch latency, the return from a wait
    work_ns: Floats  # length of the work of a node, ns; 0 = none
    peers_ns: Floats  # time for which a collective waits for other ranks before that, ns
    #: When each was reached before the first round, ns since ``low``: of the last node of a stream, the end of the work
    #: that had been launched before; 0 = the stream was idle.
    rest: Floats
    clocks: tuple[HostClock, ...]  # host time of each thread
    tracks: tuple[int, ...]  # track of each thread
    last: Ints  # the last node of the main thread and of each stream, which end a round
    last_captured_ns: Floats  # when each of ``last`` was reached in the capture, ns since ``low``
    low: int  # start of the stretch, ns since the trace origin
    high: int  # its end on the host
    step_count: int  # steps in it; 0 = the trace marks none
    #: Busy time of the busiest device per step (in total without steps), overlaps counted once.
    device_busy_ns: float
    own_busy_ns: float  # the same without waits for other ranks
    computing: (
        Ints  # nodes of the kernels of the device that computes longest, without copies and communication
    )
    computing_ns: float  # for how long it computes per step, overlaps counted once
    unexplained_ns: float  # total waiting time of device work without a known predecessor

    @cached_property
    def befores(self) -> list[int]:
        """``before`` as a list, for the loop of a round."""
        result: list[int] = self.before.tolist()
        return result

    @cached_property
    def others(self) -> list[int]:
        """``other`` as a list."""
        result: list[int] = self.other.tolist()
        return result

    @cached_property
    def alone(self) -> Edit:
        """The change in which no collective waits for another rank."""
        return Edit(waits=self.row[self.peers_ns > 0])

    def part_of(self, edit: Edit) -> Edit:
        """Return the part of a change in this stretch: only a small part of a long trace is replayed."""
        host = edit.host
        kept = (host.starts < self.high) & (host.ends > self.low)
        calls, works = (
            np.sort(self.row[which])
            for which in ((self.kind == WAIT) | (self.peers_ns > 0), self.kind == WORK)
        )
        waits, work = _member(edit.waits, calls), _member(edit.work, works)
        columns = (getattr(host, name)[kept] for name in HostTime.__slots__)
        return Edit(edit.waits[waits], HostTime(*columns), edit.work[work], edit.keep[work])

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.kind)


def _member(rows: Ints, known: Ints) -> Mask:
    """Return which rows are in a sorted array."""
    if not len(known):
        return np.zeros(len(rows), dtype=bool)
    found: Mask = known[np.minimum(np.searchsorted(known, rows), len(known) - 1)] == rows
    return found


@dataclass(frozen=True)
class HostClock:
    """Host time of one thread, with and without profiler overhead."""

    at: Ints  # instants at which an event of the thread begins or ends, ns, ascending, shape ``(n,)``
    #: Host time between neighbors, shape ``(n - 1,)``; 0 where the profiler blocked the host.
    captured_ns: Floats
    recording_ns: Floats  # recording cost in each at the default costs, same shape
    hiccup_ns: Floats  # the part of ``captured_ns`` that is a hiccup, same shape
    noting_ns: Floats  # the part of it in which the probe notes the line of a wait, same shape

    @classmethod
    def of(
        cls, trace: Trace, track: int, low: int, high: int, profiler: Coverage, recording: Coverage
    ) -> HostClock:
        """Read the events of a thread; in ``profiler`` it is blocked, and in ``recording`` nothing else runs."""
        rows = trace.between(low, high)
        rows = rows[trace.track_codes[rows] == track]
        cost = np.zeros(len(rows))
        for categories, cost_ns in (
            (("runtime", "driver"), CALL_NS),
            (("cpu_op", "annotation"), OPERATOR_NS),
            (("python_function",), FRAME_NS),
        ):
            cost[trace.is_category(*categories, rows=rows)] = cost_ns
        works = np.bincount(trace.links.launch_of[trace.device_work] + 1, minlength=len(trace) + 1)[rows + 1]
        cost += NODE_NS * np.maximum(works - 1, 0)
        at = np.concatenate(([low], trace.starts[rows], trace.ends[rows], [high]))
        half = np.concatenate(([0.0], cost / 2, cost / 2, [0.0]))
        inside = (at >= low) & (at <= high)
        order = np.flatnonzero(inside)[np.argsort(at[inside], kind="stable")]
        at, half = at[order], half[order]
        captured = (np.diff(at) - profiler.between(at[:-1], at[1:])).astype(np.float64)
        names = _numberless(trace)[trace.name_codes[rows]]
        # Which event begins (even) or ends (odd) at each instant.
        events = np.concatenate(([-2], 2 * names, 2 * names + 1, [-1]))[order]
        # Recording the start of an event takes time after it, recording its end before it; splitting it around the
        # instant is close enough.
        only = recording.between(at[:-1], at[1:]) >= np.maximum(np.diff(at), 1)
        cost = (half[:-1] + half[1:]) / 2 + np.where(only, _ALL_OF_IT * captured, 0.0)
        return cls(
            at, captured, cost, _hiccups(trace, at, captured, events), _noting(trace, track, at, captured)
        )

    def as_captured(self) -> HostClock:
        """Return the clock without hiccups."""
        return replace(self, hiccup_ns=_none(self.hiccup_ns))

    def later(self, starts: Ints, ends: Ints, by_ns: float) -> HostClock:
        """Return the clock on which each of some intervals between its instants ends later, by ``by_ns``."""
        captured_ns, hiccup_ns = self.captured_ns.copy(), self.hiccup_ns.copy()
        for first, last in zip(
            np.searchsorted(self.at, starts, side="left"),
            np.searchsorted(self.at, ends, side="left"),
            strict=True,
        ):
            if first < last:
                # Not between two instants that are one: what passes there has no place on the clock.
                captured_ns[first + np.argmax(np.diff(self.at[first : last + 1]))] += by_ns
                hiccup_ns[first:last] = 0.0  # what is unusual in the capture is not in the session
        return replace(self, captured_ns=captured_ns, hiccup_ns=hiccup_ns)

    def hiccups_in(self, starts: Ints, ends: Ints) -> Floats:
        """Return how much of each of some intervals is hiccups, ns."""
        before = np.concatenate(([0.0], np.cumsum(self.hiccup_ns)))
        inside: Floats = np.interp(ends, self.at, before) - np.interp(starts, self.at, before)
        return inside

    def passed(self, scale: float, keep: Floats | None = None) -> Floats:
        """Return the host time that had passed at each instant of :attr:`at` without the profiler, ns.

        ``scale`` is a factor on the default costs (0 = as captured, hiccups included), ``keep`` the share of each
        stretch that remains, shape ``(n - 1,)``.
        """
        left = self._left_ns(scale)
        return np.concatenate(([0.0], np.cumsum(left if keep is None else left * keep)))

    def added_ns(self, scale: float) -> Floats:
        """Return what recording added to each stretch, ns."""
        return self._left_ns(1e-9) - self._left_ns(scale)

    def _left_ns(self, scale: float) -> Floats:
        # From a stretch much longer than its recording, the recording is subtracted; from a short one less, as it
        # cannot have taken all of it.
        ordinary = self.captured_ns
        if scale:
            ordinary = np.maximum(ordinary - self.hiccup_ns - self.noting_ns, 0.0)
        left: Floats = ordinary / (1 + scale * self.recording_ns / np.maximum(ordinary, 1.0))
        return left


def _numberless(trace: Trace) -> Ints:
    """Return a code per name, equal for ``ProfilerStep#50`` and ``ProfilerStep#51``."""
    first: dict[str, int] = {}
    bare = (_NUMBER.sub("", name) for name in trace.names)
    return np.array([first.setdefault(name, code) for code, name in enumerate(bare)], dtype=np.int64)


def _none(like: Floats) -> Floats:
    """Return as many zeros, which take no memory and cannot be changed."""
    return np.broadcast_to(np.float64(0.0), like.shape)


def _noting(trace: Trace, track: int, at: Ints, captured_ns: Floats) -> Floats:
    """Return the part of each stretch in which the probe notes the lines of waits, ns."""
    sites, origin = trace.sync_sites, trace.info.origin_unix_ns
    tid = next((thread.tid for thread in trace.tracks if thread.index == track), None)
    if sites is None or origin is None or not len(sites):
        return _none(captured_ns)
    noting = np.zeros(len(captured_ns))
    mine = (sites["tid"].cast(str) == str(tid)) & sites["dur_ns"].is_null()
    sites = sites.filter(mine)
    stamped = sites["unix_ns"].to_numpy().astype(np.int64) - origin
    times = NOTING + NOTING_A_FRAME * sites["frames"].list.len().fill_null(0).to_numpy()
    stretch = np.searchsorted(at, stamped, side="right") - 1
    inside = (stretch >= 0) & (stretch < len(noting))
    stretch, stamped, times = stretch[inside], stamped[inside], times[inside]
    took = stamped - at[stretch]
    soon = took <= MAX_NOTING_NS
    np.add.at(noting, stretch[soon], (times * took)[soon])
    return np.minimum(noting, captured_ns)


def _hiccups(trace: Trace, at: Ints, captured_ns: Floats, events: Ints) -> Floats:
    """Return the excess of each hiccup over the same stretch elsewhere, ns; 0 for other stretches.

    Stretches between the same events are the same.
    """
    steps = np.sort(trace.steps.starts[(trace.steps.starts >= at[0]) & (trace.steps.starts < at[-1])])
    long = captured_ns >= HICCUP_NS
    if len(steps) < MIN_STEPS or not long.any():
        return _none(captured_ns)
    excess = np.zeros(len(captured_ns))
    _, kind = np.unique(events[:-1] * (2 * len(trace.names) + 3) + events[1:], return_inverse=True)
    step = np.searchsorted(steps, at[:-1], side="right")
    for one in np.unique(kind[long]):
        same = np.flatnonzero(kind == one)
        # The lower median, as the step of a session is a median too.
        usual = float(np.percentile(captured_ns[same], 50, method="lower"))
        longer = same[captured_ns[same] >= max(HICCUP_NS, HICCUP_TIMES * usual)]
        longest = np.zeros(len(steps) + 1)
        np.maximum.at(longest, step[longer], captured_ns[longer])
        # In more than half of the steps, one takes this long: twice as much is unusual.
        ordinary = np.sort(longest[1:])[(len(steps) - 1) // 2]
        longer = longer[captured_ns[longer] > 2 * ordinary]
        excess[longer] = captured_ns[longer] - usual
    return excess
