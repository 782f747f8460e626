"""The framework calls of a trace in order: outermost operators, their device work, backward and arguments; loops.

PyTorch numbers the autograd nodes that operators create. An operator has the number of the next node, a backward node
its own; so the nodes of an operator are those from its number up to that of the next operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints, Mask, row_type
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif import Edit, HostTime

#: Category of copies and fills, in addition to those of kernels.
COPY = "copy"
BACKWARD = "autograd::engine::evaluate_function: "
#: Nodes that store the gradient of a weight, or add it to the existing one.
ACCUMULATE: Final = f"^{BACKWARD}torch::autograd::AccumulateGrad$"
#: Between two calls Python takes a few µs, or a few tens of µs when profiled with stacks.
_LONGEST_BETWEEN_NS: Final = 200_000


@dataclass(frozen=True)
class Calls:
    """Outermost operators in order of start; arrays of shape ``(k,)`` unless said otherwise."""

    trace: Trace
    rows: Ints
    backward: Mask  # whether each is a node of autograd's backward pass
    #: For a backward node, the index of the call that created it; -1 = unknown, or not a backward node.
    forward: Ints
    #: For a node that another one created, as gradients are differentiated again, the index of that; -1 = none.
    created_in: Ints
    call_of_host_call: Ints  # call that each of ``trace.host_calls`` lies in, as an index; -1 = none
    call_of_work: Ints  # call that launched each of ``trace.device_work``, as an index; -1 = none

    @cached_property
    def names(self) -> list[str]:
        """Name of each."""
        return [self.trace.names[code] for code in self.codes.tolist()]

    @cached_property
    def codes(self) -> npt.NDArray[np.int32]:
        """Name of each, as an index into the trace's names."""
        return self.trace.name_codes[self.rows].astype(np.int32)

    @cached_property
    def tracks(self) -> Ints:
        """Thread of each."""
        return self.trace.track_codes[self.rows].astype(np.int32)

    @cached_property
    def steps(self) -> Ints:
        """Step of each, as an index into the trace's steps; -1 = none."""
        return self.trace.steps.step_of[self.rows]

    @cached_property
    def work_ns(self) -> Ints:
        """Total device time of the work launched by each, ns."""
        return self.work_ns_of(np.ones(len(self.trace.device_work), dtype=bool))

    @property
    def took_ns(self) -> Ints:
        """Device time of the work launched by each, ns; in a trace without device work, its own."""
        return self.work_ns if len(self.trace.device_work) else self.trace.lengths(self.rows)

    def share_of_time(self, which: Mask) -> float:
        """Return the time of some calls as a share of that of all."""
        return float(self.took_ns[which].sum() / max(self.took_ns.sum(), 1))

    @cached_property
    def work_count(self) -> Ints:
        """Number of device events launched by each."""
        return self.work_count_of(np.ones(len(self.trace.device_work), dtype=bool)).astype(np.int32)

    @cached_property
    def differentiated(self) -> Mask:
        """Whether a backward pass visits a node that each created."""
        return self.mask(self.forward)

    @cached_property
    def differentiated_twice(self) -> Mask:
        """Whether the gradient of each is differentiated again, as for a gradient penalty."""
        return self.mask(self.forward[self.created_in[self.created_in >= 0]])

    @cached_property
    def _kinds(self) -> tuple[list[str], npt.NDArray[np.uint8]]:
        """Categories of device work, and the index of the category of each of ``trace.device_work``."""
        trace = self.trace
        work = trace.device_work
        words = _kernel_names.classify(trace.names, trace.name_codes[work])
        kinds = sorted({*words.values(), COPY})
        table = np.zeros(len(trace.names), dtype=np.uint8)
        for code, word in words.items():
            table[code] = kinds.index(word)
        found = table[trace.name_codes[work]]
        found[trace.is_category("memcpy", "memset", rows=work)] = kinds.index(COPY)
        return kinds, found

    @property
    def kinds(self) -> list[str]:
        """Categories of device work: those of kernels, and ``copy`` for copies and fills."""
        return self._kinds[0]

    def works_of(self, *kinds: str) -> Mask:
        """Return which of ``trace.device_work`` are in one of the given categories."""
        known, found = self._kinds
        result: Mask = np.isin(known, kinds)[found]
        return result

    def work_count_of(self, which: Mask) -> Ints:
        """Return how many of some of ``trace.device_work`` each call launched."""
        return np.bincount(self.call_of_work[which & (self.call_of_work >= 0)], minlength=len(self.rows))

    def work_ns_of(self, which: Mask) -> Ints:
        """Return the device time of some of ``trace.device_work`` by the call that launched them, ns."""
        trace = self.trace
        chosen = which & (self.call_of_work >= 0)
        lengths = trace.lengths(trace.device_work[chosen])
        return np.bincount(self.call_of_work[chosen], weights=lengths, minlength=len(self.rows)).astype(
            np.int64
        )

    def launched_by(self, which: Mask) -> Mask:
        """Return which of ``trace.device_work`` the given calls launched."""
        launched: Mask = np.append(which, False)[self.call_of_work]  # -1 (no call) reads the last entry
        return launched

    def names_of(self, indices: Ints) -> tuple[str, ...]:
        """Return the names of some calls, given as indices."""
        return tuple(self.names[index] for index in indices.tolist())

    def mask(self, *indices: Ints | list[int]) -> Mask:
        """Return some calls, given as indices, as a mask; -1 is none."""
        result = np.zeros(len(self.rows), dtype=bool)
        for some in indices:
            chosen = np.asarray(some, dtype=np.int64)
            result[chosen[chosen >= 0]] = True
        return result

    def between(self, first: int, last: int) -> Ints:
        """Return the calls from one to another on the thread of the first, as indices."""
        return first + np.flatnonzero(self.tracks[first : last + 1] == self.tracks[first])

    def after(self, index: int, count: int) -> Ints:
        """Return which of the next ``count`` calls are on the same thread, as indices."""
        return self.between(index, index + count)[1:]

    def with_backward(self, which: Mask) -> Mask:
        """Return the given calls and the backward nodes that they created, and those that these nodes created."""
        result: Mask = which | np.append(which, False)[self.forward]
        while (self.created_in >= 0).any():  # as often as gradients are differentiated again
            more = result | np.append(result, False)[self.created_in]
            if (more == result).all():
                break
            result = more
        return result

    def edit(self, which: Mask, keep_host: float | Floats = 0.0, keep_work: float | Floats = 0.0) -> Edit:
        """Return the edit in which the given calls take less time or are not made, and no longer wait.

        Short host time between two of them disappears too, if no other call of the thread with device work (on a CPU,
        no other call) lies between; longer host time is other work. ``keep_host`` and ``keep_work`` are the remaining
        shares of the calls' host time and device work.
        """
        trace = self.trace
        chosen = np.flatnonzero(which)
        until = trace.ends[self.rows[chosen]]
        works = self.work_count > 0 if len(trace.device_work) else np.ones(len(which), dtype=bool)
        for track in np.unique(self.tracks[which]):
            mine = np.flatnonzero((self.tracks == track) & (which | works))
            joined = which[mine[:-1]] & which[mine[1:]] & (self.steps[mine[:-1]] == self.steps[mine[1:]])
            before, after = mine[:-1][joined], mine[1:][joined]
            starts = trace.starts[self.rows[after]]
            near = starts - trace.ends[self.rows[before]] <= _LONGEST_BETWEEN_NS
            until[np.searchsorted(chosen, before[near])] = starts[near]
        parts = np.broadcast_to(np.asarray(keep_host, dtype=np.float64), which.shape)
        host = HostTime(self.tracks[chosen], trace.starts[self.rows[chosen]], until, parts[chosen])
        launched = self.launched_by(which)
        keep = np.broadcast_to(np.asarray(keep_work, dtype=np.float64), launched.shape)
        inside = self.call_of_host_call
        waits = trace.host_calls[(inside >= 0) & which[inside]]
        return Edit(waits, host, trace.device_work[launched], keep[launched])

    def shortened(self, keep: Floats) -> Edit:
        """Return the edit in which each call keeps a share of its time; on a device, as many calls launch it."""
        keep_host = 1.0 if len(self.trace.device_work) else keep
        return self.edit(keep < 1, keep_host, np.append(keep, 1.0)[self.call_of_work])

    def backward_passes(self) -> Iterator[Ints]:
        """Yield the nodes of each backward pass, as indices.

        A call that creates a node separates two passes. So does a node that runs again, as a pass visits each once.
        """
        either = np.flatnonzero(self.backward | self.differentiated)
        edges = np.flatnonzero(np.diff(self.backward[either])) + 1
        for run in np.split(either, edges):
            if len(run) and self.backward[run[0]]:
                yield from np.split(run, _revisits(self.nodes[run]))

    @cached_property
    def nodes(self) -> Ints:
        """Number of the node that each call evaluates, apart for each thread; -1 = unknown, or it stores a gradient."""
        numbers = self.trace.ints("sequence", self.rows)
        numbered = self.backward & (numbers >= 0) & ~self.trace.named(ACCUMULATE, self.rows)
        return np.where(numbered, numbers + self.tracks.astype(np.int64) * (numbers.max(initial=0) + 1), -1)

    def within(self, pattern: str) -> Mask:
        """Return which calls begin inside a host event whose name matches; such events do not overlap."""
        return self.begin_in(self.trace.host_events(pattern))

    def begin_in(self, around: Ints) -> Mask:
        """Return which calls begin inside one of these host events, which do not overlap."""
        return index_of_outer(self.trace, around, self.rows) >= 0

    def inside(self, rows: Ints) -> Ints:
        """Return the call that each of some host events lies in, as an index; -1 = none."""
        return index_of_outer(self.trace, self.rows, rows)


@cached_on_trace
def calls(trace: Trace) -> Calls:
    """Return the framework calls of a trace."""
    rows = outermost(trace, trace.operators()).astype(row_type(len(trace)))
    backward = trace.named("^" + BACKWARD, rows)
    call_of_host_call = index_of_outer(trace, rows, trace.host_calls)
    launch = trace.links.launch_of[trace.device_work]
    launched = launch >= 0
    call_of_work = np.full(len(launch), -1, dtype=call_of_host_call.dtype)
    call_of_work[launched] = call_of_host_call[np.searchsorted(trace.host_calls, launch[launched])]
    makers = _makers(trace, rows, backward)
    forward, created_in = (
        np.where(mine, makers, -1).astype(makers.dtype)
        for mine in (~np.append(backward, True)[makers], np.append(backward, False)[makers])
    )
    return Calls(trace, rows, backward, forward, created_in, call_of_host_call, call_of_work)


def _revisits(nodes: Ints) -> list[int]:
    """Return where passes begin that evaluate nodes again, as indices.

    The engine takes the last created of the nodes that are ready, so a pass begins where numbers rise.
    """
    known = np.flatnonzero(nodes >= 0)
    if len(np.unique(nodes[known])) == len(known):
        return []
    begins, evaluated, begin, last = list[int](), set[int](), 0, -1
    for index, node in zip(known.tolist(), nodes[known].tolist(), strict=True):
        begin = index if node >= last else begin
        if node in evaluated:
            begins.append(begin)
            evaluated.clear()
        evaluated.add(node)
        last = node
    return begins


def _makers(trace: Trace, rows: Ints, backward: Mask) -> Ints:
    """Return which call of the same step made each backward node, by itself or in another node; -1 = unknown."""
    numbers = trace.ints("sequence", rows)
    steps = trace.steps.step_of[rows].astype(np.int64) + 1
    found = np.full(len(rows), -1, dtype=row_type(len(rows)))
    makers = np.flatnonzero(~backward & (numbers >= 0))
    nodes = np.flatnonzero(backward & (numbers >= 0))
    if not len(makers) or not len(nodes):
        return found
    inside, also = _made_in_nodes(trace, rows, backward, makers)
    size = max(int(numbers.max()), int(also.max(initial=0))) + 1
    keys = np.concatenate((numbers[makers], also)) + size * np.concatenate((steps[makers], steps[inside]))
    makers = np.concatenate((makers, inside))
    # Of several calls with one number, only the last created a node.
    order = np.lexsort((makers, keys))
    makers, keys = makers[order], keys[order]
    at = np.searchsorted(keys, numbers[nodes] + size * steps[nodes], side="right") - 1
    known = (at >= 0) & (steps[makers[np.maximum(at, 0)]] == steps[nodes])
    found[nodes[known]] = makers[at[known]]
    return found


def _made_in_nodes(trace: Trace, rows: Ints, backward: Mask, makers: Ints) -> tuple[Ints, Ints]:
    """Return the nodes that made others, as indices, and the numbers of these.

    Each thread counts its own nodes. If that of the backward pass is not that of the forward pass, only numbers above
    those of the latter are known to be of the former: checkpoints, too, number what they compute again.
    """
    numbers, steps = trace.ints("sequence", rows), trace.steps.step_of[rows] + 1
    nodes = np.flatnonzero(backward)
    operators = trace.operators()
    operators = operators[trace.ints("sequence", operators) >= 0]
    inside = index_of_outer(trace, rows[nodes], operators)
    operators, inside = operators[inside >= 0], nodes[inside[inside >= 0]]
    made = trace.ints("sequence", operators)
    last = np.full(int(steps.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, steps[makers], numbers[makers])
    tracks = trace.track_codes[rows]
    counted = np.isin(tracks[inside], tracks[makers]) | (made > last[steps[inside]])
    counted &= made != numbers[inside]  # the node itself, which is recorded inside of its evaluation
    return inside[counted], made[counted]


#: Events looked up together.
_BLOCK: Final = 1 << 15


def index_of_outer(trace: Trace, outer: Ints, rows: Ints) -> Ints:
    """Return the index of the outer event in which each event begins; -1 = none.

    Outer events of one thread do not overlap, and ascend with their start.
    """
    found = np.full(len(rows), -1, dtype=row_type(len(outer)))
    outer_tracks, tracks = trace.track_codes[outer], trace.track_codes[rows]
    for track in np.unique(outer_tracks):
        mine, asked = np.flatnonzero(outer_tracks == track), np.flatnonzero(tracks == track)
        begins = trace.starts[outer[mine]]
        for low in range(0, len(asked), _BLOCK):  # what is computed of all of them at once takes much memory
            some = asked[low : low + _BLOCK]
            starts = trace.starts[rows[some]]
            at = np.searchsorted(begins, starts, side="right") - 1
            within = (at >= 0) & (starts < trace.ends[outer[mine[at]]])
            found[some[within]] = mine[at[within]]
    return found


# -- loops: the same few names, repeated in the same order -----------------------------------------------


#: Maximum calls of an iteration in a step; and in one of more calls than the last figure, as the time to look for loops
#: grows with both.
_LONGEST_PERIOD, _LONGEST_OF_MANY, _MANY_CALLS = 160, 40, 20_000


def longest_period(calls: int) -> int:
    """Return the maximum calls of an iteration among so many calls."""
    return _LONGEST_PERIOD if calls <= _MANY_CALLS else _LONGEST_OF_MANY


def loops(
    words: npt.NDArray[np.int32], longest: int, least: int, *, alone: Mask | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield start, period and full iterations of each loop, shortest periods first; loops do not overlap."""
    # Entries that cannot be part of a loop (any more) get a unique value.
    own_word = -1 - np.arange(len(words), dtype=np.int32)
    words = np.where(words >= 0, words, own_word)
    for period in range(1, longest + 1):
        if len(words) < period * least:
            return
        same = words[:-period] == words[period:]
        if period == 1 and alone is not None:
            same &= alone[1:]
        for start, end in zip(*(part.tolist() for part in runs(same, period * (least - 1))), strict=True):
            times = (end + period - start) // period
            loop = slice(start, start + times * period)
            words[loop] = own_word[loop]
            yield start, period, times


def runs(mask: Mask, min_length: int) -> tuple[Ints, Ints]:
    """Return start and end of the runs of True with at least the given length."""
    at = np.flatnonzero(mask)
    breaks = np.flatnonzero(at[1:] != at[:-1] + 1)
    starts, ends = at[np.append(0, breaks + 1)[: len(at)]], at[np.append(breaks, len(at) - 1)[: len(at)]] + 1
    keep = ends - starts >= min_length
    return starts[keep], ends[keep]
