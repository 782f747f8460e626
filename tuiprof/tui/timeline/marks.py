"""What a person puts over a timeline: a search, and the way from a chosen event to what it is linked with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Mask
from tuiprof.tui.timeline.lanes import Bars, Lane, Lanes


@dataclass(slots=True)
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
        """Look through all names of a trace, ignoring case.

        Args:
            lanes: Its lanes.
            needle: What to look for.
        """
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

        Args:
            cursor: ns.
            event: Row of the chosen event.
            forward: Next rather than previous.

        Returns:
            Its place among the hits; None = there is none.
        """
        count = len(self.hits)
        if not count:
            return None
        here = self.place(event)
        if here is not None:
            return (here + (1 if forward else -1)) % count
        place = int(np.searchsorted(self.hits.starts, cursor, side="left"))
        return (place if forward else place - 1) % count

    def place(self, event: int | None) -> int | None:
        """Return which of the hits an event is; None = none of them.

        Args:
            event: Its row.
        """
        if event is None:
            return None
        place = int(np.searchsorted(self.hits.rows, event))
        return place if place < len(self.hits) and int(self.hits.rows[place]) == event else None

    def columns(self, lane: Lane, edges: Ints) -> Mask:
        """Return in which columns of a lane a hit shows.

        Args:
            lane: The lane.
            edges: Column edges in ns.
        """
        bars = self.by_lane.get(id(lane))
        if bars is None:
            return np.zeros(len(edges) - 1, dtype=bool)
        shown: Mask = bars.within(edges) >= 0
        return shown


def link_cells(
    source: tuple[int, int], target: tuple[int, int], columns: int
) -> dict[tuple[int, int], tuple[str, bool]]:
    """Draw the way from a launch or a sync to work over the cells of a timeline.

    Args:
        source: Line and column of the call; the column may lie outside of the view.
        target: Line and column of the work.
        columns: Number of columns in view.

    Returns:
        By line and column: the sign, and whether it may stand over something that is drawn there.
    """
    (y1, x1), (y2, x2) = source, target
    down = 1 if y2 > y1 else -1
    cells: dict[tuple[int, int], tuple[str, bool]] = {}
    for y in range(y1 + down, y2, down):
        cells[y, x1] = ("│", True)
    if x1 == x2:
        return {place: sign for place, sign in cells.items() if 0 <= place[1] < columns}
    on = 1 if x2 > x1 else -1
    for x in range(max(min(x1, x2), -1) + 1, min(max(x1, x2), columns)):
        cells[y2, x] = ("─", False)
    corner = {(1, 1): "╰", (1, -1): "╯", (-1, 1): "╭", (-1, -1): "╮"}[down, on]
    cells[y2, x1] = (corner, True)
    head = min(max(x2 - on, 0), columns - 1)
    if head != x1:
        cells[y2, head] = ("▸" if on > 0 else "◂", True)
    return {place: sign for place, sign in cells.items() if 0 <= place[1] < columns}
