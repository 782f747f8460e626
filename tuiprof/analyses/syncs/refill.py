"""How long a device runs dry after a wait because the host, having lost its head start, launches late."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.syncs.emptied import Emptied
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints, complement, intersection, union

Mask = npt.NDArray[np.bool_]

#: The host is ahead of the device again once a launch has returned this long before the device was free for its work.
LEAD_NS = 100_000


def refill(trace: Trace, empty: Emptied, starts: Ints, ends: Ints, reads: Mask) -> Ints:
    """Work out how long the device idles after each wait, beyond running empty, until the host is ahead again.

    Before a wait the host runs ahead: what it launches waits its turn, and the device never runs dry between two
    kernels. After it the queue is empty, and every launch may come late until the host has gained a head start again.
    Refill is the device's idle time in gaps that a late launch ended (the call began after the device had run
    dry; a gap whose work had been submitted before is a hand-over and does not count), outside of all empty time,
    from the later of the wait's end and its emptied's end to the earliest of

    - the instant at which the device became free for the first work that had by then been launched for
      ``LEAD_NS``: the host is ahead again. Of what one call launches only the first work is looked at;
    - the begin of the next wait for that device.

    A read of XLA's makes its copy itself, and late where it has to find memory for it first: such gaps inside a read
    are its own refill.

    These spans are disjoint, so every instant is charged to one wait at most, and empty time and refill
    together are a part of device idle time.

    Args:
        trace: The trace.
        empty: What the same waits empty, shape ``(k,)``.
        starts: Start of each wait, ns.
        ends: End of each, ns, ascending.
        reads: Which of them read a buffer of XLA's.

    Returns:
        Refill of each wait, ns, shape ``(k,)``.
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
    """Return when the host is ahead of the device again after each instant; ``never`` where it is not again."""
    dry = np.maximum.accumulate(trace.ends[work])
    free = np.minimum(trace.starts[work], np.append(never, dry[:-1]))
    launch, first = np.unique(trace.links.launch_of[work], return_index=True)
    known = launch >= 0
    launch, free = launch[known], free[first[known]]
    ahead = np.flatnonzero(free - trace.ends[launch] >= LEAD_NS)
    # Rows ascend with start, so launches are in the order in which they were made.
    following = np.searchsorted(trace.starts[launch[ahead]], instants, side="left")
    return np.append(free[ahead], never)[following]
