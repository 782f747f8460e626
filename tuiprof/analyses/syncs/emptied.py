"""Device cost of a wait: how long the device is empty, and how long it then runs dry until the host is ahead again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.shared.codes import distinct
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints, complement, intersection, union


@dataclass(frozen=True, slots=True)
class Emptied:
    """Effect of each of ``k`` waits on the device; arrays of shape ``(k,)``."""

    device: Ints  # device index; -1 = no device worked
    starts: Ints  # when the device became empty, ns
    ends: Ints  # end of that, ns; ``starts`` if it always had work
    waited_for: Ints  # row of the last device work that ended before the wait did; -1 = none
    delayed: Ints  # row of the first device work launched after the wait; -1 = none in this trace

    @property
    def ns(self) -> Ints:
        """Device-empty time of each wait, ns, shape ``(k,)``."""
        return self.ends - self.starts


def emptied(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Emptied:
    """Compute the device-empty time of waits.

    For a wait of the host in ``[b, e)`` let *dry* be the end of all device work launched before ``e``, and ``f`` the
    start of the first device work launched after ``e``, by any thread. The device is empty from ``max(dry, b)`` to
    ``f``: it had nothing queued because the host was blocked, until the next launch arrived. By construction the
    device is idle on all streams between these two instants, so empty time is a part of device idle time. Two waits
    without a launch between them share it: every instant is charged once, to the wait that began last, so the figures
    of several waits can be added. Time before the first work of a device does not count, nor does a wait without a
    later launch.
    """
    k = len(starts)
    result = Emptied(*(np.full(k, -1, dtype=np.int64) for _ in range(5)))
    result.starts[:], result.ends[:] = starts, starts
    if not k or not len(trace.device_work):
        return result
    result.device[:] = _device_of(trace, tracks, copies, starts, ends)
    for one in distinct(result.device):
        mine = np.flatnonzero(result.device == one)
        _on_one_device(trace, result, mine, trace.work_of(int(one)), starts[mine], ends[mine])
    return result


def _on_one_device(trace: Trace, result: Emptied, mine: Ints, work: Ints, starts: Ints, ends: Ints) -> None:
    """Fill in the waits for one device; ``ends`` ascend."""
    launch = trace.links.launch_of[work]
    # Work without a launch in the trace counts as launched when it started, which can only shorten empty time.
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
    # Charge every instant once, to the wait that began last: a wait's time ends where the next one's begins. Waits of
    # other threads may have begun earlier.
    empty = np.flatnonzero(until > begin)
    empty = empty[np.argsort(begin[empty], kind="stable")]
    until[empty[:-1]] = np.minimum(until[empty[:-1]], begin[empty[1:]])
    result.starts[mine], result.ends[mine] = begin, until


def _device_of(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the device of each wait: that of its copy, else of its thread's last launch before it."""
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


Mask = npt.NDArray[np.bool_]

#: The host is ahead of the device again once a launch has returned this long before the device was free for its work.
LEAD_NS = 100_000


def refill(trace: Trace, empty: Emptied, starts: Ints, ends: Ints, reads: Mask) -> Ints:
    """Compute how long the device is idle after each wait, beyond empty time, until the host is ahead again.

    Before a wait the host runs ahead: launches are queued, and the device never runs dry between two kernels. After it
    the queue is empty, and every launch may be late until the host is ahead again. Refill is the device's idle time in
    gaps that a late launch ended (the call began after the device had run dry; a gap whose work had been submitted
    before is a hand-over and does not count), outside of all empty time, from the later of the wait's end and its
    emptied's end to the earliest of

    - the instant at which the device became free for the first work that had by then been launched for
      ``LEAD_NS``: the host is ahead again. Only the first work of each call counts;
    - the begin of the next wait for that device.

    An XLA read launches its own copy, late if it has to allocate memory first: such gaps inside a read are its refill.

    These spans are disjoint, so every instant is charged to one wait at most, and empty time and refill together are a
    part of device idle time.
    """
    result = np.zeros(len(starts), dtype=np.int64)
    for device in trace.device_indices:
        mine = np.flatnonzero(empty.device == device)
        busy_starts, busy_ends = trace.busy(device)
        if not len(mine) or len(busy_starts) < 2:
            continue
        work = trace.work_of(device)
        late = _late_gaps(trace, work, busy_ends[:-1], busy_starts[1:])
        charged = union(empty.starts[mine], empty.ends[mine])
        late = intersection(*late, *complement(*charged, int(busy_starts[0]), int(busy_ends[-1])))
        begins = starts[mine]
        following = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], busy_ends[-1])
        recovered = _ahead_again(trace, work, ends[mine], int(busy_ends[-1]))
        since = np.maximum(ends[mine], empty.ends[mine])
        covered = Coverage(*late)
        result[mine] = covered.between(since, np.minimum(following, recovered))
        if reads[mine].any():
            before = np.append(begins[0], ends[mine][:-1])
            inside = covered.between(np.maximum(begins, before), ends[mine])
            result[mine] += np.where(reads[mine], inside, 0)
    return result


def _late_gaps(trace: Trace, work: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return those gaps whose first work was launched after the device had run dry."""
    launch = trace.links.launch_of[work[np.searchsorted(trace.starts[work], ends, side="left")]]
    late = (launch >= 0) & (trace.starts[np.maximum(launch, 0)] > starts)
    return starts[late], ends[late]


def _ahead_again(trace: Trace, work: Ints, instants: Ints, never: int) -> Ints:
    """Return when the host is ahead of the device again after each instant; ``never`` if it is not."""
    dry = np.maximum.accumulate(trace.ends[work])
    free = np.minimum(trace.starts[work], np.append(never, dry[:-1]))
    launch, first = np.unique(trace.links.launch_of[work], return_index=True)
    known = launch >= 0
    launch, free = launch[known], free[first[known]]
    ahead = np.flatnonzero(free - trace.ends[launch] >= LEAD_NS)
    # Rows ascend with start, so launches are in the order in which they were made.
    following = np.searchsorted(trace.starts[launch[ahead]], instants, side="left")
    return np.append(free[ahead], never)[following]
