"""How long a device had nothing to do because the host had waited for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.analyses._codes import distinct
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints


@dataclass(frozen=True, slots=True)
class Starvation:
    """What each of ``k`` waits did to the device; arrays of shape ``(k,)``.

    Attributes:
        device: Device index; -1 = no device worked.
        starts: Since when the device had nothing to do, ns.
        ends: Until when, ns; ``starts`` where the wait starved nobody.
        waited_for: Row of the last device work that ended before the wait did; -1 = none.
        delayed: Row of the first device work launched after the wait; -1 = none in this trace.
    """

    device: Ints
    starts: Ints
    ends: Ints
    waited_for: Ints
    delayed: Ints

    @property
    def ns(self) -> Ints:
        """Device-starved time of each wait, ns, shape ``(k,)``."""
        return self.ends - self.starts


def starvation(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Starvation:
    """Work out the device-starved time of waits.

    For a wait of the host in ``[b, e)`` let *dry* be the end of all device work launched before ``e``, and
    ``f`` the start of the first device work launched after ``e``, by any thread. The device is starved from
    ``max(dry, b)`` to ``f``: it had nothing queued because the host stood, and until the host had got its next
    launch through. Between these two instants the device is idle on all its streams by construction, so starved
    time is a part of device idle time. Where two waits follow each other without a launch in between they starve the
    device together; every instant is then charged once, to the wait that began last, so that the figures of
    several waits may be added up. Before the first work of a device nothing counts, and neither does a wait after
    which nothing is launched.

    Args:
        trace: The trace.
        tracks: Track of each wait, shape ``(k,)``.
        copies: Device copy each wait made, as a row; -1 = none.
        starts: Start of each wait, ns.
        ends: End of each, ns, ascending.
    """
    k = len(starts)
    result = Starvation(*(np.full(k, -1, dtype=np.int64) for _ in range(5)))
    result.starts[:], result.ends[:] = starts, starts
    if not k or not len(trace.device_work):
        return result
    result.device[:] = _device_of(trace, tracks, copies, starts, ends)
    for one in distinct(result.device):
        mine = np.flatnonzero(result.device == one)
        _on_one_device(trace, result, mine, trace.work_of(int(one)), starts[mine], ends[mine])
    return result


def _on_one_device(
    trace: Trace, result: Starvation, mine: Ints, work: Ints, starts: Ints, ends: Ints
) -> None:
    """Fill in the waits for one device; ``ends`` ascend."""
    launch = trace.links.launch_of[work]
    # Work without a launch in the trace counts as launched when it started: it can only shorten starvation.
    launched = np.where(launch >= 0, trace.starts[np.maximum(launch, 0)], trace.starts[work])
    order = np.argsort(launched, kind="stable")
    work, launched = work[order], launched[order]
    work_starts, work_ends = trace.starts[work], trace.ends[work]
    dry = np.maximum.accumulate(work_ends)
    # Position of the first start among everything launched from here on.
    reverse = work_starts[::-1]
    is_new_first = reverse <= np.minimum.accumulate(reverse)
    last_new = np.maximum.accumulate(np.where(is_new_first, np.arange(len(work)), 0))
    first_position = (len(work) - 1 - last_new)[::-1]

    split = np.searchsorted(launched, ends, side="left")
    has_before, has_after = split > 0, split < len(work)
    first = first_position[np.minimum(split, len(work) - 1)]
    result.delayed[mine] = np.where(has_after, work[first], -1)

    by_end = np.argsort(work_ends, kind="stable")
    ended = np.searchsorted(work_ends[by_end], ends, side="right")
    result.waited_for[mine] = np.where(ended > 0, work[by_end[np.maximum(ended - 1, 0)]], -1)

    begin = np.maximum(dry[np.maximum(split - 1, 0)], starts)
    until = np.where(has_before & has_after, work_starts[first], begin)
    until = np.maximum(until, begin)
    # Charge every instant once, to the wait that began last: a wait starves until the next begins to.
    starving = np.flatnonzero(until > begin)
    starving = starving[
        np.argsort(begin[starving], kind="stable")
    ]  # waits of other threads may have begun earlier
    until[starving[:-1]] = np.minimum(until[starving[:-1]], begin[starving[1:]])
    result.starts[mine], result.ends[mine] = begin, until


def _device_of(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the device each wait waits for: that of its copy, else of its thread's last launch before it."""
    indices = trace.device_indices
    if len(indices) < 2:
        return np.full(len(starts), indices[0] if indices else -1, dtype=np.int64)
    links = trace.links
    work = trace.device_work[links.launch_of[trace.device_work] >= 0]
    calls, position = np.unique(links.launch_of[work], return_index=True)
    device_of_call = trace.ints("device", work[position])
    call_track, call_start = trace.track_codes[calls], trace.starts[calls]
    result = np.full(len(starts), indices[0], dtype=np.int64)
    for track in distinct(tracks):
        mine = np.flatnonzero(tracks == track)
        on_track = np.flatnonzero(call_track == track)
        if len(on_track):
            at = np.searchsorted(call_start[on_track], ends[mine], side="left") - 1
            result[mine] = device_of_call[on_track[np.maximum(at, 0)]]
    with_copy = copies >= 0
    result[with_copy] = trace.ints("device", copies[with_copy])
    return result
