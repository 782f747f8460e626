"""Searches the names of all events of a timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Mask
from tuiprof.tui.timeline.lanes import Bars, Lane, Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Events whose name contains a text.

    Attributes:
        needle: The text.
        hits: The events, in order of start.
        by_lane: Those of each lane that draws events, by ``id`` of the lane.
    """

    needle: str
    hits: Bars
    by_lane: dict[int, Bars]

    @classmethod
    def of(cls, lanes: Lanes, needle: str) -> Search:
        """Look through all names of a trace, ignoring case."""
        trace, folded = lanes.trace, needle.casefold()
        words = np.fromiter((folded in name.casefold() for name in trace.names), bool, len(trace.names))
        found: Mask = words[trace.name_codes] if words.any() else np.zeros(len(trace), dtype=bool)
        by_lane = {
            id(lane): Bars(trace, lane.bars.rows[found[lane.bars.rows]])
            for lane in lanes.lanes
            if lane.has_events
        }
        return cls(needle, Bars(trace, np.flatnonzero(found).astype(np.int64)), by_lane)

    def step(self, cursor: int, event: int | None, forward: bool) -> int | None:
        """Return the next hit, from the chosen event on where that is one, around the ends of the trace.

        Returns:
            Its place among the hits; None = there is none.
        """
        count = len(self.hits)
        if not count:
            return None
        here = self.position(event)
        if here is not None:
            return (here + (1 if forward else -1)) % count
        position = int(np.searchsorted(self.hits.starts, cursor, side="left"))
        return (position if forward else position - 1) % count

    def position(self, event: int | None) -> int | None:
        """Return which of the hits an event is; None = none of them."""
        if event is None:
            return None
        position = int(np.searchsorted(self.hits.rows, event))
        return position if position < len(self.hits) and int(self.hits.rows[position]) == event else None

    def columns(self, lane: Lane, edges: Ints) -> Mask:
        """Return in which columns of a lane a hit shows."""
        bars = self.by_lane.get(id(lane))
        if bars is None:
            return np.zeros(len(edges) - 1, dtype=bool)
        shown: Mask = bars.within(edges) >= 0
        return shown
