"""Links of an event: launches with their work, syncs with the work they waited for and delayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.analyses.shared import waits as _waits
from tuiprof.model.intervals import Window
from tuiprof.model.trace import Trace

#: What the other event is to this one.
Way = Literal["launches", "launched by", "waited for", "delayed", "waited for by", "delayed by"]

#: Up to this many events the effect of syncs is computed at once; for larger traces after their analysis.
_AT_ONCE = 300_000


@dataclass(frozen=True, slots=True)
class Link:
    """One event that another is linked with.

    Attributes:
        row: Its row.
        way: What it is to the other.
    """

    row: int
    way: Way

    def call_and_work(self, event: int) -> tuple[int, int]:
        """Return the rows of the host's call and of the device's work that are linked."""
        return (event, self.row) if self.way in ("launches", "waited for", "delayed") else (self.row, event)

    def instants(self, trace: Trace, event: int) -> tuple[int, int]:
        """Return between which instants the link is: in the call and in the work, ns.

        A launch leads from its beginning to that of the work. A sync ends when the work that it waited for has
        ended, and from its end on what it delayed may begin.
        """
        call, work = self.call_and_work(event)
        if self.way in ("launches", "launched by"):
            return int(trace.starts[call]), int(trace.starts[work])
        ended = self.way in ("waited for", "waited for by")
        return int(trace.ends[call]) - 1, int(trace.ends[work]) - 1 if ended else int(trace.starts[work])


def links_of(trace: Trace, row: int, *, patient: bool = False) -> tuple[Link, ...]:
    """Return what an event is linked with: launch or work first, what it delayed last."""
    launch = int(trace.links.launch_of[row])
    found = [Link(launch, "launched by")] if launch >= 0 else []
    if not found and (work := first_work(trace, row)) is not None:
        found.append(Link(work, "launches"))
    if patient or len(trace) <= _AT_ONCE or _wait_table.costs.is_cached(trace):
        known = {link.row for link in found}
        found += [link for link in _of_syncs(trace, row) if link.row not in known]
    return tuple(found)


def first_work(trace: Trace, row: int) -> int | None:
    """Return the first work that a call launched; None = it launched nothing."""
    launches = trace.links.launches
    index = int(np.searchsorted(launches, row))
    if index >= len(launches) or launches[index] != row:
        return None
    # The work of a launch is nearly always near: look among what starts later first.
    work = trace.device_work
    begin = int(np.searchsorted(work, row))
    for part in (work[begin : begin + 100_000], work):
        found = np.flatnonzero(trace.links.launch_of[part] == row)
        if len(found):
            return int(part[found[0]])
    return None


def _of_syncs(trace: Trace, row: int) -> list[Link]:
    """Return the work that a sync waited for and delayed, or the sync that waited for work or delayed it."""
    waits = _waits.find(trace, Window())
    empty, _ = _wait_table.costs(trace)
    mine = np.flatnonzero((waits.last == row) | (waits.first == row))
    if len(mine):
        ways: tuple[tuple[int, Way], ...] = (
            (int(empty.waited_for[mine[0]]), "waited for"),
            (int(empty.delayed[mine[0]]), "delayed"),
        )
        return [Link(work, way) for work, way in ways if work >= 0]
    for work_rows, way in ((empty.delayed, "delayed by"), (empty.waited_for, "waited for by")):
        found = np.flatnonzero(work_rows == row)
        if len(found):
            return [Link(int(waits.last[found[-1]]), way)]  # type: ignore[arg-type]
    return []
