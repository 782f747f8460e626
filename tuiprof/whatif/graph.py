"""A captured stretch of training as a dependency graph of calls and device work.

Every node is an instant: the begin of a host call, the return of a wait, the end of device work. It is reached after
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
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints
from tuiprof.whatif.clock import Floats, HostClock
from tuiprof.whatif.edit import Edit, HostTime

Mask = npt.NDArray[np.bool_]

CALL, WAIT, WORK, JOIN = range(4)


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
    clocks: tuple[HostClock, ...]  # host time of each thread
    tracks: tuple[int, ...]  # track of each thread
    last: Ints  # the last node of the main thread and of each stream, which end a round
    last_captured_ns: Floats  # when each of ``last`` was reached in the capture, ns since ``low``
    low: int  # begin of the stretch, ns since the trace origin
    high: int  # its end on the host
    step_count: int  # steps in it; 0 = the trace marks none
    #: Busy time of the busiest device per step (in total without steps), overlaps counted once.
    device_busy_ns: float
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

    def part_of(self, edit: Edit) -> Edit:
        """Return the part of a change in this stretch: only a small part of a long trace is replayed."""
        host = edit.host
        kept = (host.starts < self.high) & (host.ends > self.low)
        calls, works = (np.sort(self.row[which]) for which in (self.kind == WAIT, self.kind == WORK))
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
