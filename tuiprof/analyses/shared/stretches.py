"""Long stretches of launching threads inside calls that take microseconds: first uses, and interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask, row_type
from tuiprof.model.trace import cached_on_trace

#: Operators that compute nothing: they are long only if the thread is held up.
VIEWS: Final = (
    r"^aten::(_?(reshape|view|unsafe_view)\w*|expand(_as)?|slice|select|narrow|transpose|permute|t|"
    r"(un)?squeeze_?|(un)?flatten|unbind|(tensor_)?split\w*|chunk|detach_?|as_strided_?|alias|movedim|empty\w*|"
    r"new_empty\w*|resize_\w*|set_|lift_fresh|result_type|is_\w+|item|_local_scalar_dense|"
    r"numpy_T|real|imag|view_as_\w+|record_stream|requires_grad_?|broadcast_to|meshgrid|diagonal|unfold)$"
)
#: Minimum length, ns: the host does nothing in these calls that takes so long.
MIN_NS: Final = 2_000_000
#: Minimum share of the steps that first uses take; below it, the figures are nearly those of a warm run.
MIN_FIRST_USE: Final = 0.1
#: Minimum number of calls of an operator in a step to tell its first one; the others take at most this share of it.
_MIN_CALLS, _MOST_OTHERS = 4, 0.1
#: Share of the steps in which something happens that is usual.
IN_MOST: Final = 0.75
#: The device is idle for at least this share of a stretch: the call does not wait for it.
_IDLE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches between two neighboring events inside a runtime call, or an operator that does not compute on the
    CPU; arrays of shape ``(k,)``.

    Stretches between the same events are of one kind; launches of different kernels are not.
    """

    tracks: Ints
    starts: Ints
    ends: Ints
    inside: Ints  # row of the innermost call or operator
    usual_ns: Floats  # median length of its kind
    times: Ints  # number of stretches of its kind
    first: Mask  # whether it is the first of its kind
    idle: Mask  # whether the device is idle meanwhile


@cached_on_trace
def long_stretches(trace: Trace) -> Stretches:
    """Return the stretches that take at least :data:`MIN_NS`, without waits and data loading."""
    launches = trace.links.launches
    main = main_thread(trace)
    tracks = np.unique(np.append(trace.track_codes[launches], [] if main is None else main)).astype(np.int64)
    found = [_of_track(trace, track) for track in tracks.tolist()]
    columns = zip(*found, strict=True) if found else ([np.empty(0, dtype=np.int64)] for _ in range(7))
    on, starts, ends, inside, usual, times, first = (np.concatenate(column) for column in columns)
    held = np.isin(inside, _waiting(trace)) | ~_without_computing(trace, inside)
    on, starts, ends, inside, usual, times, first = (
        column[~held] for column in (on, starts, ends, inside, usual, times, first)
    )
    busy = Coverage(*trace.union(trace.device_work))
    idle = busy.between(starts, ends) <= (1 - _IDLE) * (ends - starts)
    return Stretches(on, starts, ends, inside, usual, times, first.astype(bool), idle)


def first_uses(trace: Trace) -> tuple[Ints, float]:
    """Return which long stretches are first uses of kernels and libraries within the steps, and their share of these.

    Code is loaded and compiled then, and contexts and memory pools are made. Without steps, all of the trace counts.
    """
    found = long_stretches(trace)
    first = found.first & found.idle
    first[new_sizes(trace)] = True
    which = np.flatnonzero(first & trace.steps.have(found.inside))
    return which, float((found.ends - found.starts)[which].sum()) / max(recorded_ns(trace), 1)


@cached_on_trace
def new_sizes(trace: Trace) -> Ints:
    """Return which long stretches prepare a kernel for a size that is new in the step.

    Of several calls of an operator in a step, only the first takes long: libraries such as cuDNN build a plan for each
    size of an input, and keep it. The device is idle meanwhile, or it happens in most of several steps.
    """
    found = long_stretches(trace)
    candidates = trace.steps.step_of[found.inside] >= 0
    candidates &= trace.is_category("cpu_op", rows=found.inside) & trace.named("^aten::", found.inside)
    which = np.flatnonzero(candidates)
    if not len(which):
        return which
    names = np.zeros(len(trace.names), dtype=bool)
    names[trace.name_codes[found.inside[which]]] = True
    rows = np.flatnonzero(names[trace.name_codes] & (trace.steps.step_of >= 0))
    # All calls of an operator in a step are neighbors, in order of time.
    group = _pairs(trace.name_codes[rows], trace.steps.step_of[rows])
    order = np.argsort(group, kind="stable")
    rows, group = rows[order], group[order]
    groups, begin, count = np.unique(group, return_index=True, return_counts=True)
    others = trace.lengths(rows)
    others[begin] = 0
    longest = np.maximum.reduceat(others, begin)
    starts = trace.starts[rows]
    several = (count >= _MIN_CALLS) & (starts[np.minimum(begin + 1, len(rows) - 1)] > starts[begin])
    inside = found.inside[which]
    mine = np.searchsorted(groups, _pairs(trace.name_codes[inside], trace.steps.step_of[inside]))
    # A call that is not the first one is among the others, and longer than a part of itself.
    short = longest[mine] <= _MOST_OTHERS * (found.ends - found.starts)[which]
    chosen: Ints = which[several[mine] & short]
    codes, steps = trace.name_codes[found.inside[chosen]], trace.steps.step_of[found.inside[chosen]]
    known, of = np.unique(codes, return_inverse=True)
    in_steps = np.array([len(np.unique(steps[codes == code])) for code in known.tolist()], dtype=np.int64)
    usual = in_steps >= max(IN_MOST * len(trace.steps), 2)
    return chosen[found.idle[chosen] | usual[of]]


def recorded_ns(trace: Trace) -> int:
    """Return the time of all steps, ns; without steps, of the trace."""
    low, high = trace.span
    return int(trace.steps.lengths.sum()) if len(trace.steps) else high - low


def _of_track(trace: Trace, track: int) -> tuple[Ints, ...]:
    """Return the columns of the stretches of a thread, waits included."""
    rows = np.flatnonzero((trace.track_codes == track) & trace.is_category("cpu_op", "runtime", "driver"))
    rows = rows.astype(row_type(len(trace)))
    names = trace.name_codes.copy()
    # A launch is known by what it launches.
    links = trace.links.launch_of[trace.device_work]
    names[links[links >= 0]] = trace.name_codes[trace.device_work[links >= 0]]
    long = [
        (at[long], at[long + 1], row[long], event[long], event[long + 1])
        for at, row, event in _instants(trace, rows, names)
        if len(long := np.flatnonzero(at[1:] - at[:-1] >= MIN_NS))
    ]
    if not long:
        return tuple(np.empty(0, dtype=np.int64) for _ in range(7))
    starts, ends, row, begin, end = (np.concatenate(column) for column in zip(*long, strict=True))
    # Of all stretches, only those between the same events as a long one are compared.
    before, after = np.zeros((2, 2 * len(trace.names)), dtype=bool)
    before[begin] = after[end] = True
    same = [
        (at[same], at[same + 1], _pairs(event[same], event[same + 1]))
        for at, _, event in _instants(trace, rows, names)
        if len(same := np.flatnonzero(before[event[:-1]] & after[event[1:]]))
    ]
    same_starts, same_ends, pairs = (np.concatenate(column) for column in zip(*same, strict=True))
    kinds, first, kind = np.unique(pairs, return_index=True, return_inverse=True)
    mine = np.searchsorted(kinds, _pairs(begin, end))
    lengths, times = same_ends - same_starts, np.bincount(kind, minlength=len(kinds))
    usual = {one: float(np.median(lengths[kind == one])) for one in np.unique(mine).tolist()}
    inside = _innermost(trace, rows, row, begin % 2 == 1)
    known = inside >= 0
    starts, ends, mine, inside = starts[known], ends[known], mine[known], inside[known]
    return (
        np.full(len(mine), track, dtype=np.int64),
        starts,
        ends,
        inside,
        np.array([usual[one] for one in mine.tolist()], dtype=np.float64),
        times[mine],
        (same_starts[first[mine]] == starts) & (same_ends[first[mine]] == ends),
    )


#: Events whose instants are sorted together.
_BLOCK: Final = 1 << 15


def _instants(trace: Trace, rows: Ints, names: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the instants at which some events of a thread begin or end, in order: when, the row, and which event it is.

    That is twice the code of its name, and one more for its end. They come in blocks, as those of all events take much
    memory; the last of a block is also the first of the next one.
    """
    running = rows[:0]
    last: tuple[Ints, Ints, Ints] = np.empty(0, dtype=np.int64), running, np.empty(0, dtype=np.int32)
    for low in range(0, len(rows), _BLOCK):
        block, following = rows[low : low + _BLOCK], rows[low + _BLOCK : low + _BLOCK + 1]
        running = np.concatenate((running, block))
        ends = trace.ends[running]
        # What ends when the next block begins belongs to that one: at any instant, starts come first.
        ending = ends < trace.starts[following] if len(following) else np.ones(len(running), dtype=bool)
        at = np.concatenate((trace.starts[block], ends[ending]))
        row = np.concatenate((block, running[ending]))
        running = running[~ending]
        event = 2 * names[row].astype(np.int32)
        event[len(block) :] += 1
        order = np.argsort(at, kind="stable")
        at = np.concatenate((last[0], at[order]))
        row = np.concatenate((last[1], row[order]))
        event = np.concatenate((last[2], event[order]))
        yield at, row, event
        last = at[-1:], row[-1:], event[-1:]


def _pairs(begin: Ints, end: Ints) -> Ints:
    """Return a number for each pair of events."""
    return begin.astype(np.int64) << 32 | end


def _innermost(trace: Trace, rows: Ints, after: Ints, ended: Mask) -> Ints:
    """Return the row in which a stretch after the start or the end of an event lies; -1 = in none of ``rows``."""
    known = np.zeros(len(trace) + 1, dtype=bool)
    known[rows] = True
    parent = trace.nesting.parent
    found = np.where(ended, parent[after], after).astype(np.int64)
    while (todo := np.flatnonzero((found >= 0) & ~known[found])).size:  # annotations and Python frames
        found[todo] = parent[found[todo]]
    return found


def _waiting(trace: Trace) -> Ints:
    """Return the calls that wait for a device, except the allocator's, and the loading of batches."""
    waits = _waits.find(trace, Window())
    allocator = waits.kinds.index("allocator") if "allocator" in waits.kinds else -1
    some = waits.kind != allocator
    return np.concatenate((waits.first[some], waits.last[some], fetches(trace)))


def _without_computing(trace: Trace, rows: Ints) -> Mask:
    """Return which rows are calls, views, or operators that launch work: they compute nothing on the CPU."""
    every = calls(trace)
    call = every.inside(rows)
    launching = np.append(every.work_count > 0, False)[call]  # -1 reads the last one
    launches = launching & trace.named("^aten::", rows)
    result: Mask = ~trace.is_category("cpu_op", rows=rows) | trace.named(VIEWS, rows) | launches
    return result
