"""Builds the graph of a captured stretch."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints, Mask, complement, total, union
from tuiprof.whatif.graph import CALL, JOIN, SHORT_GAP_NS, WAIT, WORK, Graph, HostClock

#: Tolerance of the host and device clocks, ns.
SKEW_NS = 5_000
#: Work that starts this soon after the start of its launch was held back by it, ns.
PROMPT_NS = 40_000
#: A thread that records nothing for this long while another works has handed over to it, ns.
SILENT_NS = 50_000
#: A launch call that takes this long, ns, was blocked by a full launch queue if at least this many launches were
#: queued (CUDA queues about a thousand); otherwise the host was slow.
BLOCKED_LAUNCH_NS, FULL_QUEUE = 200_000, 256
#: If ordering the nodes takes more iterations than this, their dependencies are circular.
MAX_PASSES = 200
#: Defaults for captures without a case to take the median of, ns.
DEFAULT_LATENCY_NS, DEFAULT_GAP_NS, DEFAULT_CALL_NS = 8_000.0, 1_000.0, 5_000.0

_NO_WAIT, _BLOCKED = -1, -2
#: Calls by which a stream waits for work on another one, and those that mark that work.
_STREAM_WAIT, _EVENT_RECORD = r"^(cuda|hip|cu)StreamWaitEvent", r"^(cuda|hip|cu)EventRecord"


class Unreplayable(Exception):
    """No graph can be built from a trace; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Calls in which the host waits for a device; arrays of shape ``(k,)``."""

    rows: Ints  # the call whose return ends each, as a row of the trace
    starts: Ints  # when the host began to wait, ns
    ends: Ints  # when it continued, ns
    copies: Ints  # the row of the copy that it waits for; -1 = none
    all_streams: Mask  # whether it waits for all streams
    #: Whether it waits for a point marked earlier, so that not all earlier launches have to be done.
    by_event: Mask
    by_profiler: Mask  # whether the profiler made it


@dataclass(slots=True)
class _Nodes:
    """The columns of a graph, growing node by node; ``key`` orders them."""

    kind: array[int] = field(default_factory=lambda: array("b"))
    row: array[int] = field(default_factory=lambda: array("q"))
    key: array[int] = field(default_factory=lambda: array("q"))
    before: array[int] = field(default_factory=lambda: array("q"))
    other: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("q"))
    host_start: array[int] = field(default_factory=lambda: array("q"))
    host_end: array[int] = field(default_factory=lambda: array("q"))
    other_start: array[int] = field(default_factory=lambda: array("q"))
    before_ns: array[float] = field(default_factory=lambda: array("d"))
    other_ns: array[float] = field(default_factory=lambda: array("d"))
    work_ns: array[float] = field(default_factory=lambda: array("d"))
    peers_ns: array[float] = field(default_factory=lambda: array("d"))

    def host(self, kind: int, thread: int, row: int, before: int, start: int, end: int) -> int:
        """Append a node of the host, reached after host time from ``start`` to ``end``; return its index."""
        return self._add(kind, row, end, before, -1, thread, start, end, -1, 0.0, 0.0, 0.0, 0.0)

    def device(
        self,
        kind: int,
        row: int,
        key: int,
        before: int,
        before_ns: float,
        other: int = -1,
        other_ns: float = 0.0,
        work_ns: float = 0.0,
        peers_ns: float = 0.0,
        stream: int = 0,
    ) -> int:
        """Append a node of a device, or a join; return its index."""
        delays = before_ns, other_ns, work_ns, peers_ns
        return self._add(kind, row, key, before, other, -1 - stream, 0, 0, -1, *delays)

    def _add(self, *values: float) -> int:
        for name, value in zip(_COLUMNS, values, strict=True):
            getattr(self, name).append(value)
        return len(self.kind) - 1


_COLUMNS = tuple(column.name for column in fields(_Nodes))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that becomes one or two nodes."""

    start: int  # ns; for a wait, when the host began to wait
    end: int  # ns
    row: int
    launches: bool  # whether it launches work
    wait: int  # index into the waits; ``_BLOCKED`` = a launch blocked by a full queue


@dataclass(slots=True)
class _Handover:
    """A pause of the main thread in which other threads work for it."""

    start: int  # ns
    end: int  # ns
    spans: dict[int, tuple[int, int]]  # start and end of the work of each other thread in it
    stops: int = -1  # the node in which the main thread stops; -1 = not made yet
    goes_on: int = -1  # the node in which it continues


@dataclass(frozen=True, slots=True)
class _Stream:
    """The work of one stream in order of start, with its launches; arrays of shape ``(k,)``."""

    rows: Ints
    starts: Ints
    ends: Ints
    launch: Ints
    launched: Ints
    busy_until: int  # end of the work before the first, which was launched before the stretch; 0 = none

    @property
    def free(self) -> Ints:
        """When the stream became free for each item; for the first: its launch."""
        return np.append(self.launched[:1], np.maximum.accumulate(self.ends)[:-1])


@dataclass(frozen=True, slots=True)
class _EventWait:
    """A call that waits for a recorded event."""

    at: int  # when it begins, ns
    recorded_at: int  # when the call that recorded the event began, ns
    recorded_on: int  # number of the stream that it was recorded on
    stream: int | None  # number of the stream that waits; None = the host


class GraphBuilder:
    """The parts of the graph of a stretch, from ``low`` to ``high``, during construction.

    ``peers_ns`` has the part of a collective, by row, that waits for other ranks. A thread is not silent in ``busy``
    host events, even if it records neither operators nor calls in them. ``kernels`` compute, and neither copy nor
    communicate. ``recording`` is host time that only a capture takes.
    """

    def __init__(
        self,
        trace: Trace,
        waits: Waits,
        low: int,
        high: int,
        main: int,
        step_count: int,
        peers_ns: Mapping[int, int],
        busy: Ints,
        kernels: Ints,
        recording: Coverage,
    ) -> None:
        self.trace, self.waits, self.peers_ns = trace, waits, peers_ns
        self.busy, self.kernels, self.recording = busy, kernels, recording
        self.low, self.high, self.main, self.step_count = low, high, main, step_count
        inside = (waits.starts >= low) & (waits.starts < high)
        held = inside & waits.by_profiler
        self.profiler = Coverage(*union(waits.starts[held], np.minimum(waits.ends[held], high)))
        self.wait_at = np.flatnonzero(inside & ~waits.by_profiler)
        launches = trace.links.launches
        self.launches = launches[(trace.starts[launches] >= low) & (trace.starts[launches] < high)]
        work, launch = trace.device_work, trace.links.launch_of[trace.device_work]
        here = np.isin(launch, self.launches)
        calls, first = np.unique(launch[here], return_index=True)
        self.first_start = dict(zip(calls.tolist(), trace.starts[work[here][first]].tolist(), strict=True))
        self.queued = np.sort(trace.starts[np.maximum(launch, 0)]), np.sort(trace.ends[work])
        self.event_waits = _event_waits(trace, low, high)
        self.nodes = _Nodes()
        self.node_of_launch: dict[int, int] = {}
        self.node_of_work: dict[int, int] = {}
        #: A join, and the row of the work on another stream before it.
        self.released: list[tuple[int, int]] = []
        self.waiting: list[tuple[int, _Call]] = []
        #: The last node of a stream, and when the work launched before the stretch ended, ns since the start.
        self.backlogs: list[tuple[int, int]] = []
        self.last: list[tuple[int, int]] = []  # a node, and when it was reached, ns since the start
        self.wrapped: list[int] = []  # nodes after one of the previous round, besides first ones
        self.unexplained_ns = 0

    def graph(self) -> Graph:
        """Build the graph."""
        trace, main = self.trace, self.main
        wait_rows = self.waits.rows[self.wait_at]
        working = [trace.track_codes[self.launches], trace.track_codes[wait_rows]]
        if not trace.device_indices:  # only threads
            working.append(trace.track_codes[trace.operators()])
        others = np.unique(np.concatenate(working))
        self.tracks = [main, *(int(track) for track in others if track != main)]
        calls = [self._calls(track) for track in self.tracks]
        islands = [self._islands(track) for track in self.tracks]
        handovers = self._handovers(islands)
        self._main_thread(calls[0], handovers, self._starts_beside(calls, islands, handovers))
        for thread in range(1, len(self.tracks)):
            self._other_thread(thread, calls[thread], islands[thread], handovers)
        self._waits_for(self._works())
        return self._sorted()

    # -- the host ------------------------------------------------------------------------------------------

    def _calls(self, track: int) -> list[_Call]:
        trace, waits = self.trace, self.waits
        rows = self.launches[trace.track_codes[self.launches] == track]
        at = self.wait_at[trace.track_codes[waits.rows[self.wait_at]] == track]
        wait_of = dict(zip(waits.rows[at].tolist(), at.tolist(), strict=True))
        found = []
        times = zip(rows.tolist(), trace.starts[rows].tolist(), trace.ends[rows].tolist(), strict=True)
        for row, start, end in times:
            wait = wait_of.pop(row, _NO_WAIT)
            if wait == _NO_WAIT and end - start >= BLOCKED_LAUNCH_NS:
                # Its work may have started before the call returned.
                launched, ended = (int(np.searchsorted(instants, start)) for instants in self.queued)
                end = max(start, min(end, self.first_start[row]))
                wait, start = (_BLOCKED, start) if launched - ended >= FULL_QUEUE else (_NO_WAIT, end)
            found.append(_Call(start, end, row, True, wait))
        for row, index in wait_of.items():
            found.append(_Call(int(waits.starts[index]), int(waits.ends[index]), row, False, index))
        return sorted(found, key=lambda call: (call.start, -call.end))

    def _islands(self, track: int) -> tuple[Ints, Ints]:
        """Return when a thread records operators or calls, short silences included."""
        trace = self.trace
        rows = trace.between(self.low, self.high)
        rows = rows[trace.track_codes[rows] == track]
        recorded = trace.is_category("cpu_op", "runtime", "driver", "compile", rows=rows)
        rows = rows[recorded | np.isin(rows, self.busy)]
        starts, ends = union(trace.starts[rows], trace.ends[rows] + SILENT_NS)
        return starts, ends - SILENT_NS

    def _handovers(self, islands: list[tuple[Ints, Ints]]) -> list[_Handover]:
        """Find pauses of the main thread in which other threads work, from their start to their end."""
        found = []
        silences = complement(*islands[0], self.low, self.high)
        for start, end in zip(*(part.tolist() for part in silences), strict=True):
            if end - start < SILENT_NS:
                continue
            spans = {}
            for thread, (starts, ends) in enumerate(islands[1:], 1):
                within = (starts >= start - SKEW_NS) & (ends <= end + SKEW_NS)
                if within.any():
                    spans[thread] = int(starts[within][0]), int(ends[within][-1])
            if spans:
                found.append(_Handover(start, end, spans))
        return found

    def _starts_beside(
        self, calls: list[list[_Call]], islands: list[tuple[Ints, Ints]], handovers: list[_Handover]
    ) -> list[int]:
        """Return when other threads start to work beside the main thread.

        It has caused that: JAX, for example, copies a batch in a thread of its own.
        """
        found: list[int] = []
        for thread in range(1, len(calls)):
            instants = np.array([call.start for call in calls[thread]], dtype=np.int64)
            spans = [handover.spans[thread] for handover in handovers if thread in handover.spans]
            # The first span is empty, so that each call has one before it.
            lows, highs = np.array([(-1, -1), *spans], dtype=np.int64).T
            beside = instants >= highs[np.searchsorted(lows, instants, side="right") - 1]
            starts = islands[thread][0]
            at = np.unique(np.searchsorted(starts, instants[beside], side="right")) - 1
            found += starts[at[at >= 0]].tolist()
        return found

    def _main_thread(self, calls: list[_Call], handovers: list[_Handover], beside: list[int]) -> None:
        nodes, node, at = self.nodes, -1, self.low
        plan: list[tuple[int, _Call | _Handover | None]] = [(call.start, call) for call in calls]
        plan += [(handover.start, handover) for handover in handovers]
        plan += [(instant, None) for instant in beside]
        for start, item in sorted(plan, key=lambda entry: entry[0]):
            if item is None:
                if start > at:
                    node, at = nodes.host(CALL, 0, -1, node, at, start), start
            elif isinstance(item, _Call):
                node, at = self._call(0, item, node, at)
            elif item.start >= at:
                item.stops = nodes.host(CALL, 0, -1, node, at, item.start)
                item.goes_on = node = nodes.host(CALL, 0, -1, item.stops, item.end, item.end)
                at = item.end
        node = nodes.host(CALL, 0, -1, node, at, self.high)
        nodes.before[0] = node  # the first node follows the last one of the previous round
        self.last.append((node, self._since_low(self.high, self.high)))
        self.main_nodes = len(nodes.kind)

    def _other_thread(
        self, thread: int, calls: list[_Call], islands: tuple[Ints, Ints], handovers: list[_Handover]
    ) -> None:
        nodes = self.nodes
        left = calls
        for handover in handovers:
            if thread not in handover.spans or handover.stops < 0:
                continue
            start, end = handover.spans[thread]
            inside = [call for call in left if start <= call.start < end]
            left = [call for call in left if not start <= call.start < end]
            node, at = handover.stops, handover.start
            for call in inside:
                node, at = self._call(thread, call, node, at)
            if end == max(until for _, until in handover.spans.values()):
                node = nodes.host(CALL, thread, -1, node, at, max(at, end))
                nodes.other[handover.goes_on], nodes.other_start[handover.goes_on] = node, max(at, end)
        # The work of another thread starts after the last node of the main thread, and ends with the round.
        keys = nodes.key[: self.main_nodes]
        node, at, island = -1, self.low, -1
        for call in left:
            now = int(np.searchsorted(islands[0], call.start, side="right"))
            if now != island or node < 0:
                # Keys of the main thread ascend: its nodes were added in order.
                node = bisect_right(keys, call.start) - 1
                at = keys[node] if node >= 0 else self.low
                if node < 0:  # the main thread has no node yet in this round
                    node = self.main_nodes - 1
                    self.wrapped.append(len(nodes.kind))
                island = now
            node, at = self._call(thread, call, node, at)

    def _call(self, thread: int, call: _Call, node: int, at: int) -> tuple[int, int]:
        """Add the nodes of a call; return the last one of the thread, and the instant from which host time counts."""
        nodes, start, row = self.nodes, max(call.start, at), call.row
        if call.launches and call.wait != _BLOCKED:
            node = self.node_of_launch[row] = nodes.host(CALL, thread, row, node, at, start)
            at = start
        if call.wait != _NO_WAIT:
            node = nodes.host(WAIT, thread, row, node, at, start)
            at = nodes.key[node] = max(call.end, start)
            self.waiting.append((node, call))
        if call.launches and call.wait == _BLOCKED:
            node = self.node_of_launch[row] = nodes.host(CALL, thread, row, node, at, at)
        return node, at

    def _since_low(self, instant: int, launched: int) -> int:
        """Return an instant since the start, without the time for which the profiler blocked a launch."""
        return instant - self.low - int(self.profiler.between(self.low, launched))

    # -- devices -------------------------------------------------------------------------------------------

    def _works(self) -> list[_Stream]:
        """Add the work of each stream."""
        trace = self.trace
        work = trace.device_work
        launch = trace.links.launch_of[work]
        known = np.isin(launch, np.fromiter(self.node_of_launch, dtype=np.int64))
        work, launch = work[known], launch[known]
        lanes = trace.track_codes[work]
        streams = []
        for lane in np.unique(lanes).tolist():
            rows, calls = work[lanes == lane], launch[lanes == lane]
            keys = (self.nodes.key[self.node_of_launch[call]] for call in calls.tolist())
            launched = np.fromiter(keys, dtype=np.int64, count=len(calls))
            every = trace.device_work[trace.track_codes[trace.device_work] == lane]
            before = every[trace.starts[every] < trace.starts[rows[0]]]
            busy_until = int(trace.ends[before].max(initial=0))
            streams.append(_Stream(rows, trace.starts[rows], trace.ends[rows], calls, launched, busy_until))
        gap_ns, latency_ns = _typical(streams)
        ordered = self._ordered(streams)
        for index in range(len(streams)):
            self._stream(streams, index, gap_ns, latency_ns, ordered)
        for join, row in self.released:
            self.nodes.other[join] = self.node_of_work[row]
        return streams

    def _ordered(self, streams: list[_Stream]) -> dict[int, list[int]]:
        """Return the works on other streams that each work waits for, by the calls before its launch.

        Where launches are late, the capture alone would not show that these works depend on each other.
        """
        if len(streams) < 2:
            return {}
        return self._guessed(streams) if self.trace.event_waits is None else self._recorded(streams)

    def _recorded(self, streams: list[_Stream]) -> dict[int, list[int]]:
        """Return them where the profiler recorded which event each stream waits for."""
        found = dict[int, list[int]]()
        numbered = self._numbered(streams)
        for wait in self.event_waits.values():
            waiting = numbered.get(wait.stream) if wait.stream is not None else None
            work = _marked(wait, numbered)
            if waiting is None or work is None:
                continue
            at = int(np.searchsorted(waiting.launched, wait.at))
            if at < len(waiting.rows) and work[0] <= waiting.starts[at]:
                found.setdefault(int(waiting.rows[at]), []).append(work[1])
        return found

    def _numbered(self, streams: list[_Stream]) -> dict[int, _Stream]:
        """Return the streams by number, without numbers that several devices use."""
        numbers = [int(self.trace.ints("stream", stream.rows[:1])[0]) for stream in streams]
        return {
            number: stream
            for number, stream in zip(numbers, streams, strict=True)
            if numbers.count(number) == 1
        }

    def _guessed(self, streams: list[_Stream]) -> dict[int, list[int]]:
        """Return them where it recorded neither the event nor the stream of these calls, which is its default.

        A stream is taken to wait when it is launched to next, once per call, for the streams that were launched to last
        before the last event was recorded.
        """
        trace, found = self.trace, dict[int, list[int]]()
        rows = trace.between(self.low, self.high)
        waits, records = rows[trace.named(_STREAM_WAIT)[rows]], rows[trace.named(_EVENT_RECORD)[rows]]
        if not len(waits) or not len(records):
            return found
        launches = np.concatenate([stream.launch for stream in streams])
        works = np.concatenate([stream.rows for stream in streams])
        on = np.repeat(np.arange(len(streams)), [len(stream.rows) for stream in streams])
        for track in np.unique(trace.track_codes[waits]).tolist():
            mine = np.flatnonzero(trace.track_codes[launches] == track)
            mine = mine[np.argsort(trace.starts[launches[mine]], kind="stable")]
            launched = trace.starts[launches[mine]]
            own_waits, own_records = (
                np.sort(trace.starts[which[trace.track_codes[which] == track]]) for which in (waits, records)
            )
            after = np.searchsorted(launched, own_waits)
            marked = np.searchsorted(own_records, own_waits) - 1
            known = (after < len(mine)) & (marked >= 0)
            waiting_launches, firsts, counts = np.unique(after[known], return_index=True, return_counts=True)
            untils = np.searchsorted(launched, own_records[marked[known][firsts + counts - 1]])
            last: dict[int, int] = {}  # of each stream, its last work, the stream launched to last at the end
            at = 0
            columns = (waiting_launches, counts, untils)
            for launch, count, until in zip(*(column.tolist() for column in columns), strict=True):
                for position in mine[at:until].tolist():
                    last.pop(int(on[position]), None)
                    last[int(on[position])] = int(works[position])
                at = max(at, until)
                waiting = mine[launch]
                before = [work for stream, work in last.items() if stream != on[waiting]]
                found[int(works[waiting])] = [
                    work for work in before[-count:] if trace.ends[work] <= trace.starts[works[waiting]]
                ]
        return found

    def _stream(
        self,
        streams: list[_Stream],
        index: int,
        gap_ns: float,
        latency_ns: float,
        ordered: Mapping[int, list[int]],
    ) -> None:
        stream, others = streams[index], streams[:index] + streams[index + 1 :]
        nodes, first = self.nodes, len(self.nodes.kind)
        gaps, latencies = stream.starts - stream.free, stream.starts - stream.launched
        # Work of the step before kept the first one waiting, as that of the previous round does.
        queued = (
            stream.launched[0] + PROMPT_NS
            < stream.busy_until
            <= stream.starts[0]
            <= stream.busy_until + PROMPT_NS
        )
        before = -1
        columns = (stream.rows, stream.starts, stream.ends, stream.launch, gaps, latencies)
        for row, start, end, launch, gap, latency in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            lag = min(latency, latency_ns)
            prompt = before < 0 or (latency <= PROMPT_NS and (latency <= gap or gap > SHORT_GAP_NS))
            cause = None if prompt or gap <= SHORT_GAP_NS else _released_by(others, start, start - gap)
            if before < 0 and queued:
                gap = start - stream.busy_until
            elif prompt or (cause is None and latency <= gap):
                gap, lag = min(gap, gap_ns), latency  # launched once the stream was free, or just before
            elif gap > SHORT_GAP_NS:
                if cause is None:
                    # Whatever the stream waits for, it also waits without this work.
                    self.unexplained_ns += gap
                    before, gap = nodes.device(JOIN, -1, start, before, float(gap)), 0
                else:
                    before = nodes.device(
                        JOIN, -1, start, before, min(gap, gap_ns), other_ns=float(start - cause[1])
                    )
                    self.released.append((before, cause[0]))
                    gap = 0
            for work in ordered.get(row, ()):
                free_ns = float(start - gap - self.trace.ends[work])
                before = nodes.device(JOIN, -1, start, before, 0.0, other_ns=min(free_ns, 0.0))
                self.released.append((before, work))
            peers = self.peers_ns.get(row, 0)
            before = nodes.device(
                WORK,
                row,
                end,
                before,
                float(gap),
                self.node_of_launch[launch],
                float(lag),
                float(end - start - peers),
                float(peers),
                index,
            )
            self.node_of_work[row] = before
        nodes.before[first] = before
        if queued:
            self.backlogs.append((before, self._since_low(stream.busy_until, int(stream.launched[0]))))
        self.last.append((before, self._since_low(int(stream.ends.max()), int(stream.launched.max()))))

    def _waits_for(self, streams: list[_Stream]) -> None:
        """Link each wait to the work that it waits for."""
        numbered = self._numbered(streams) if self.event_waits else {}
        found = [(node, call, self._awaited(call, streams, numbered)) for node, call in self.waiting]
        returns = [call.end - work[0][0] for _, call, work in found if work and work[0][0] > call.start]
        free = [call.end - call.start for _, call, work in found if not work or work[0][0] <= call.start]
        return_ns = max(_median(returns, DEFAULT_CALL_NS), 0.0)
        call_ns = min(_median(free, DEFAULT_CALL_NS), DEFAULT_CALL_NS)
        nodes = self.nodes
        for node, call, work in found:
            blocked = bool(work) and work[0][0] > call.start
            took = float(call.end - call.start)
            nodes.before_ns[node] = min(took, call_ns) if blocked else took
            if not work:
                continue
            other = self.node_of_work[work[0][1]]
            for end, row in work[1:]:
                other = nodes.device(JOIN, -1, max(end, nodes.key[other]), other, 0.0, self.node_of_work[row])
            nodes.other[node] = other
            nodes.other_ns[node] = float(max(call.end - work[0][0], 0)) if blocked else min(return_ns, took)

    def _awaited(
        self, call: _Call, streams: list[_Stream], numbered: Mapping[int, _Stream]
    ) -> list[tuple[int, int]]:
        """Return the work that a call waits for as (end, row), latest end first."""
        trace, waits = self.trace, self.waits
        copy = int(waits.copies[call.wait]) if call.wait >= 0 else -1
        if copy in self.node_of_work and trace.ends[copy] <= call.end + SKEW_NS:
            return [(int(trace.ends[copy]), copy)]
        if call.row in self.event_waits:
            marked = _marked(self.event_waits[call.row], numbered)
            return [marked] if marked is not None and marked[0] <= call.end + SKEW_NS else []
        # A copy of pageable memory that continues after the call blocked the host until its stream reached it.
        earlier = copy >= 0 or call.wait == _BLOCKED or bool(waits.by_event[call.wait])
        found = []
        for stream in streams:
            # Work in a stream starts in launch order.
            at = int(np.searchsorted(stream.launched, call.start)) - 1
            if earlier:
                at = min(at, int(np.searchsorted(stream.ends, call.end + SKEW_NS, side="right")) - 1)
            if at >= 0 and stream.ends[at] <= call.end + SKEW_NS:
                found.append((int(stream.ends[at]), int(stream.rows[at])))
        found.sort(reverse=True)
        return found if call.wait >= 0 and waits.all_streams[call.wait] else found[:1]

    # -- together ------------------------------------------------------------------------------------------

    def _sorted(self) -> Graph:
        """Sort the nodes topologically."""
        nodes = self.nodes
        columns = {name: np.array(getattr(nodes, name)) for name in _COLUMNS}
        key, before, other = columns.pop("key"), columns["before"], columns["other"]
        wraps = np.zeros(len(key), dtype=bool)
        for node, _ in self.last:
            wraps |= before == node
        wraps &= np.arange(len(key)) <= before
        wraps[self.wrapped] = True
        # Host and device clocks differ slightly, so instants alone do not order the nodes.
        for _ in range(MAX_PASSES):
            after = np.maximum(key, np.where(wraps, key, key[before] + 1))
            after = np.where(other >= 0, np.maximum(after, key[other] + 1), after)
            if (after == key).all():
                break
            key = after
        else:
            raise Unreplayable("its calls and its device work have inconsistent times")
        order = np.argsort(key, kind="stable")
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        columns["before"] = position[before]
        columns["other"] = np.where(other >= 0, position[other], -1)
        sorted_ = {name: column[order] for name, column in columns.items()}
        last = np.array([node for node, _ in self.last], dtype=np.int64)
        rest = np.zeros(len(order))
        for node, instant in self.backlogs:
            rest[position[node]] = instant
        work = np.flatnonzero((sorted_["kind"] == WORK) & np.isin(sorted_["row"], self.kernels))
        computing, computing_ns = self._computing(sorted_["row"][work])
        return Graph(
            **sorted_,
            rest=rest,
            computing=work[computing],
            computing_ns=computing_ns / max(self.step_count, 1),
            clocks=tuple(
                HostClock.of(self.trace, t, self.low, self.high, self.profiler, self.recording)
                for t in self.tracks
            ),
            tracks=tuple(self.tracks),
            last=position[last],
            last_captured_ns=np.array([instant for _, instant in self.last], dtype=np.float64),
            low=self.low,
            high=self.high,
            step_count=self.step_count,
            device_busy_ns=self._busy_ns({}) / max(self.step_count, 1),
            own_busy_ns=self._busy_ns(self.peers_ns) / max(self.step_count, 1),
            unexplained_ns=float(self.unexplained_ns),
        )

    def _computing(self, rows: Ints) -> tuple[Mask, int]:
        """Return which kernels run on the device that computes longest, and how long that is, overlaps counted once."""
        starts, ends, devices = (
            self.trace.starts[rows],
            self.trace.ends[rows],
            self.trace.ints("device", rows),
        )
        found = np.zeros(len(rows), dtype=bool), 0
        for device in np.unique(devices):
            mine = devices == device
            if (busy := total(*union(starts[mine], ends[mine]))) > found[1]:
                found = mine, busy
        return found

    def _busy_ns(self, without: Mapping[int, int]) -> int:
        rows = np.fromiter(self.node_of_work, dtype=np.int64)
        starts = self.trace.starts[rows] + [without.get(row, 0) for row in rows.tolist()]
        ends, devices = self.trace.ends[rows], self.trace.ints("device", rows)
        times = [
            total(*union(starts[mine], ends[mine])) for mine in (devices == d for d in np.unique(devices))
        ]
        return max(times, default=0)


def _event_waits(trace: Trace, low: int, high: int) -> dict[int, _EventWait]:
    """Return the calls that wait for recorded events in a stretch, by row; none if the profiler did not record them."""
    if trace.event_waits is None:
        return {}
    rows, known = trace.host_calls, trace.event_waits
    correlations = trace.ints("correlation", rows)
    named = np.isin(correlations, np.concatenate([known["correlation"], known["record"]]))
    row_of = dict(zip(correlations[named].tolist(), rows[named].tolist(), strict=True))
    found = {}
    for correlation, record, recorded_on, stream in known.iter_rows():
        row, recorded = row_of.get(correlation), row_of.get(record)
        if row is not None and recorded is not None and low <= trace.starts[row] < high:
            instants = int(trace.starts[row]), int(trace.starts[recorded])
            found[row] = _EventWait(*instants, recorded_on, stream)
    return found


def _marked(wait: _EventWait, numbered: Mapping[int, _Stream]) -> tuple[int, int] | None:
    """Return end and row of the last work before a recorded event; None = none was launched in the stretch."""
    stream = numbered.get(wait.recorded_on)
    at = -1 if stream is None else int(np.searchsorted(stream.launched, wait.recorded_at)) - 1
    return (int(stream.ends[at]), int(stream.rows[at])) if stream is not None and at >= 0 else None


def _typical(streams: list[_Stream]) -> tuple[float, float]:
    """Return the gap between queued items of a stream, and the latency of launches into an empty queue, ns."""
    gaps, latencies = [], []
    for stream in streams:
        free = stream.free
        gap, latency = stream.starts - free, stream.starts - stream.launched
        queued = stream.launched + PROMPT_NS < free
        gaps.append(gap[queued & (gap >= 0) & (gap <= SHORT_GAP_NS)])
        latencies.append(latency[(gap > SHORT_GAP_NS) & (latency >= 0) & (latency <= PROMPT_NS)])
    return (
        _median(np.concatenate([*gaps, np.empty(0)]), DEFAULT_GAP_NS),
        _median(np.concatenate([*latencies, np.empty(0)]), DEFAULT_LATENCY_NS),
    )


def _median(values: npt.ArrayLike, otherwise: float) -> float:
    given = np.asarray(values, dtype=np.float64)
    return float(np.median(given)) if len(given) else otherwise


def _released_by(others: list[_Stream], start: int, free: int) -> tuple[int, int] | None:
    """Return the row and the end of the work on another stream after which work started; None = no such work."""
    found = None
    for stream in others:
        at = int(np.searchsorted(stream.ends, start, side="right")) - 1
        if (
            at >= 0
            and stream.ends[at] > max(free, start - PROMPT_NS)
            and (found is None or stream.ends[at] > found[1])
        ):
            found = int(stream.rows[at]), int(stream.ends[at])
    return found
