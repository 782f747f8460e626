"""Long stretches of launching threads inside calls that take microseconds: first uses, and interruptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.replay import main_thread
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask
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
    which = np.flatnonzero(found.first & found.idle & trace.steps.have(found.inside))
    return which, float((found.ends - found.starts)[which].sum()) / max(recorded_ns(trace), 1)


def recorded_ns(trace: Trace) -> int:
    """Return the time of all steps, ns; without steps, of the trace."""
    low, high = trace.span
    return int(trace.steps.lengths.sum()) if len(trace.steps) else high - low


def _of_track(trace: Trace, track: int) -> tuple[Ints, ...]:
    """Return the columns of the stretches of a thread, waits included."""
    rows = np.flatnonzero((trace.track_codes == track) & trace.is_category("cpu_op", "runtime", "driver"))
    rows = rows.astype(np.int32)
    at = np.concatenate((trace.starts[rows], trace.ends[rows]))
    order = np.argsort(at, kind="stable").astype(np.int32)
    at = at[order]
    long = np.flatnonzero(at[1:] - at[:-1] >= MIN_NS)
    row = rows[order % max(len(rows), 1)]
    # A launch is known by what it launches.
    names = trace.name_codes.astype(np.int32)
    links = trace.links.launch_of[trace.device_work]
    names[links[links >= 0]] = trace.name_codes[trace.device_work[links >= 0]]
    event = names[row]
    del names, links
    event *= 2
    event += order >= len(rows)
    # Of all stretches, only those between the same events as a long one are compared.
    before, after = np.zeros((2, 2 * len(trace.names)), dtype=bool)
    before[event[long]] = after[event[long + 1]] = True
    same = np.flatnonzero(before[event[:-1]] & after[event[1:]])
    kinds, kind = np.unique(_pairs(event, same), return_inverse=True)
    mine = np.searchsorted(kinds, _pairs(event, long))
    lengths, times = at[same + 1] - at[same], np.bincount(kind, minlength=len(kinds))
    usual = {one: float(np.median(lengths[kind == one])) for one in np.unique(mine).tolist()}
    first = same[np.unique(kind, return_index=True)[1]]
    inside = _innermost(trace, rows, row[long], order[long] >= len(rows))
    known = inside >= 0
    long, mine, inside = long[known], mine[known], inside[known]
    return (
        np.full(len(long), track, dtype=np.int64),
        at[long],
        at[long + 1],
        inside,
        np.array([usual[one] for one in mine.tolist()], dtype=np.float64),
        times[mine],
        first[mine] == long,
    )


def _pairs(event: Ints, at: Ints) -> Ints:
    """Return a number for each pair of neighboring events."""
    return event[at].astype(np.int64) << 32 | event[at + 1]


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
