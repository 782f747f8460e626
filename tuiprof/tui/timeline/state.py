"""State of a timeline: range, cursor, selection, marks. Independent of widgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tuiprof.model.intervals import Window
from tuiprof.tui.timeline.lanes import Lane, Lanes, Lost
from tuiprof.tui.timeline.links import Link, links_of
from tuiprof.tui.timeline.results import row_in
from tuiprof.tui.timeline.search import Search
from tuiprof.tui.timeline.viewport import Viewport

#: Lines that a timeline keeps for lanes before it gives one to the map of the whole.
_LANES_BEFORE_MAP = 4


class TimelineState:
    """The state of a timeline. Methods that change it call ``on_change`` once, when the change is complete.

    Attributes:
        lanes: What there is to show; None = nothing yet.
        view: The range of time in view.
        cursor: Where the cursor is, ns.
        selection: Begin and end of what is selected, ns.
        anchor: Where extending the selection began, ns; None = it is not being extended.
        window: The part that the analyses look at.
        visible_lanes: The lanes there is room for.
        chosen: Which of them the keys act on.
        event: Row of the chosen event.
        links: What the chosen event is linked with: its launch or its work, what a sync waited for and delayed.
        mark: Where measuring began, ns.
        measured: What was measured, from when to when in ns; None = nothing.
        nested: Whether lanes are drawn that spell out what others enclose.
        bookmarks: Instants in ns, ascending.
        search: What was searched for.
        caption: Written beside the axis; safe for a terminal.
        legend: Whether the signs are explained below: those that are drawn, or all, for another timeline as well.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._lines = 0
        self._laid_out: tuple[Lanes | None, int, bool] = (None, 0, False)
        self.lanes: Lanes | None = None
        self.view = Viewport.over(0, 1, 1)
        self.cursor = 0
        self.selection: tuple[int, int] | None = None
        self.anchor: int | None = None
        self.window = Window()
        self.visible_lanes: list[Lane] = []
        self.chosen = 0
        self.event: int | None = None
        self.links: tuple[Link, ...] = ()
        self.mark: int | None = None
        self.measured: tuple[int, int] | None = None
        self.nested = False
        self.bookmarks: list[int] = []
        self.search: Search | None = None
        self.caption = ""
        self.legend: Literal["drawn", "all", ""] = "drawn"

    def _changed(self) -> None:
        """Choose the lanes there is room for, keeping the chosen one, and report the change."""
        room = max(self._lines - 2 - self.map_lines, 1)
        if self.lanes is not None and self._laid_out != (self.lanes, room, self.nested):
            label = self.lane.label if self.lane is not None else ""
            self.visible_lanes = self.lanes.choose(room, nested=self.nested)
            labels = [lane.label for lane in self.visible_lanes]
            last = max(len(labels) - 1, 0)
            self.chosen = labels.index(label) if label in labels else min(self.chosen, last)
            self._laid_out = self.lanes, room, self.nested
        self._on_change()

    # -- content -------------------------------------------------------------------------------------------

    def resize(self, columns: int, lines: int) -> None:
        """Keep the range over another number of columns, and as many lanes as there are lines for."""
        self.view = self.view.resized(columns)
        self._lines = lines
        self._changed()

    def show(self, lanes: Lanes, extent: tuple[int, int] | None = None) -> None:
        """Show a trace; ``extent`` is the time range one can move in, ns (default: the trace's)."""
        self.lanes = lanes
        first, last = extent or lanes.trace.span
        self.view = Viewport.over(first, last, self.view.columns)
        self.cursor, self.chosen = lanes.trace.span[0], 0
        if extent is None and lanes.stride == 1 and len(steps := lanes.trace.steps):
            # What lies outside of the steps is one key away; a step's work ends a little after it.
            low, high = int(steps.starts[0]), int(steps.ends[-1])
            self.view = self.view.fitted(low, min(high + (high - low) // 40, last))
            self.cursor = low
        self._changed()

    def stretch(self, first: int, last: int) -> None:
        """Change the navigable time range, keeping the view."""
        self.view = Viewport.over(first, last, self.view.columns).over_range(self.view.low, self.view.high)
        self._changed()

    def replace(self, lanes: Lanes, by: int) -> None:
        """Show more of the same trace, keeping cursor, selection, range and the chosen event; a search ends."""
        if self.lanes is None:
            self.show(lanes)
            return
        old, before = self.view, self.lanes.trace
        self.view = Viewport.over(*lanes.trace.span, old.columns)
        if (old.low, old.high) != (old.first, old.last):
            self.view = self.view.over_range(old.low + by, old.high + by)
        self.lanes = lanes
        self.cursor += by
        if self.selection is not None:
            self.selection = (self.selection[0] + by, self.selection[1] + by)
        if self.mark is not None:
            self.mark += by
        if self.measured is not None:
            self.measured = (self.measured[0] + by, self.measured[1] + by)
        self.bookmarks = [at + by for at in self.bookmarks]
        # These are rows of the table that was replaced.
        self.search = None
        self.event = row_in(before, lanes.trace, self.event) if self.event is not None else None
        self.links = links_of(lanes.trace, self.event) if self.event is not None else ()
        self._changed()

    def set_window(self, window: Window) -> None:
        """Mark the part that the analyses look at."""
        self.window = window
        self._changed()

    def set_search(self, search: Search | None) -> None:
        """Mark the hits of a search; None = of none."""
        self.search = search
        self._changed()

    # -- lanes ---------------------------------------------------------------------------------------------

    @property
    def has_readout(self) -> bool:
        """Whether there is something to say besides what is under the cursor."""
        return (
            self.event is not None
            or self.search is not None
            or self.chosen_range is not None
            or self.mark is not None
            or (self.lanes is not None and self.lanes.stride > 1)
        )

    @property
    def lane_count(self) -> int:
        """Number of lanes that there are to show."""
        return len(self.lanes.shown(nested=self.nested)) if self.lanes is not None else 0

    @property
    def has_nested(self) -> bool:
        """Whether there are lanes that spell out what others enclose."""
        return self.lanes is not None and any(lane.nested for lane in self.lanes.lanes)

    def show_nested(self, nested: bool) -> None:
        """Draw lanes that spell out what others enclose, or leave them out."""
        self.nested = nested
        self._changed()

    def show_lost(self, lost: Lost | None) -> None:
        """Draw what a finding costs; None = of no finding."""
        if self.lanes is not None and self.lanes.lost is not lost:
            self.lanes = self.lanes.with_lost(lost)
            self._changed()

    @property
    def map_lines(self) -> int:
        """1 where the map of the whole has a line: where there is room, and always when only a part shows."""
        room = self._lines - 2
        zoomed = (self.view.low, self.view.high) != (self.view.first, self.view.last)
        if not zoomed and self.lanes is not None and self.lanes.replayed is not None:
            return 0
        return int(room > _LANES_BEFORE_MAP or (zoomed and room > 2))

    @property
    def lane(self) -> Lane | None:
        """The chosen lane."""
        return self.visible_lanes[self.chosen] if self.chosen < len(self.visible_lanes) else None

    def lane_at(self, y: int) -> int | None:
        """Return which of the visible lanes is drawn in a line of the widget; None = none."""
        index = y - self.map_lines
        return index if 0 <= index < len(self.visible_lanes) else None

    def line_of(self, row: int) -> int | None:
        """Return which of the visible lanes draws an event; None = none."""
        return next((i for i, lane in enumerate(self.visible_lanes) if lane.holds(row)), None)

    def choose_lane(self, index: int) -> None:
        """Select a visible lane, the nearest if the index does not exist."""
        if self.visible_lanes:
            self.chosen = max(0, min(index, len(self.visible_lanes) - 1))
            self._changed()

    # -- range and cursor ----------------------------------------------------------------------------------

    def set_view(self, view: Viewport) -> None:
        """Bring a range into view; the cursor stays."""
        self.view = view
        self._changed()

    def follow(self, view: Viewport, cursor: int) -> None:
        """Take over range and cursor of another timeline."""
        self.view, self.cursor = view, cursor
        self._changed()

    def go_to(self, instant: int, length: int = 0) -> None:
        """Put the cursor on an instant and bring it into view."""
        self.cursor = max(self.view.first, min(instant, self.view.last - 1))
        self.view = self.view.showing(self.cursor)
        if length > self.view.span:
            self.view = self.view.fitted(instant, instant + length)
        self._changed()

    def instant_beside(self, by: int) -> int:
        """Return the instant a number of columns from the cursor; if it is out of view, from the nearest edge."""
        column = self.view.column_of(self.cursor)
        if not 0 <= column < self.view.columns:
            return self.view.instant_of(0 if column < 0 else self.view.columns - 1)
        return self.view.instant_of(column + by)

    def zoom(self, factor: float) -> None:
        """Zoom around the cursor, or around the middle when it is out of view; above 1 shows less time."""
        seen = self.view.low <= self.cursor < self.view.high
        self.set_view(
            self.view.zoomed(factor, self.cursor if seen else (self.view.low + self.view.high) // 2)
        )

    def fit(self, low: int | None = None, high: int | None = None) -> None:
        """Show a range, ns, or everything."""
        if low is None or high is None:
            self.set_view(Viewport.over(self.view.first, self.view.last, self.view.columns))
        else:
            self.set_view(self.view.fitted(low, high))

    # -- selection and marks -------------------------------------------------------------------------------

    @property
    def chosen_range(self) -> tuple[int, int] | None:
        """What is selected, else what is or was measured, ns; None = nothing."""
        if self.selection is not None:
            return self.selection
        if self.mark is not None and self.mark != self.cursor:
            return min(self.mark, self.cursor), max(self.mark, self.cursor)
        return self.measured

    def select(self, selection: tuple[int, int] | None) -> None:
        """Select a range, ns; None = nothing."""
        self.selection, self.anchor = selection, None
        self._changed()

    def select_to(self, instant: int) -> None:
        """Extend the selection from where the cursor was when that began to an instant."""
        if self.anchor is None:
            self.anchor = self.cursor
        self.go_to(instant)
        low, high = sorted((self.anchor, self.cursor))
        self.selection = (low, high) if high > low else None
        self._changed()

    def clear_range(self) -> None:
        """Select and measure nothing."""
        self.mark = self.measured = None
        self.select(None)

    def toggle_mark(self) -> None:
        """Measure from the cursor on, or stop measuring and keep what was measured."""
        if self.mark is None:
            self.mark, self.measured = self.cursor, None
        else:
            self.measured, self.mark = self.chosen_range if self.selection is None else None, None
        self._changed()

    def toggle_bookmark(self) -> None:
        """Set a bookmark at the cursor, or remove those in its column."""
        column = self.view.column_of(self.cursor)
        kept = [at for at in self.bookmarks if self.view.column_of(at) != column]
        here = len(kept) < len(self.bookmarks)
        self.bookmarks = kept if here else sorted([*kept, self.cursor])
        self._changed()

    # -- events --------------------------------------------------------------------------------------------

    def mark_event(self, row: int | None) -> None:
        """Mark an event and what it is linked with; None = no event."""
        if self.lanes is None:
            return
        self.event = row
        self.links = links_of(self.lanes.trace, row) if row is not None else ()
        if row is not None and (line := self.line_of(row)) is not None:
            self.chosen = line
        self._changed()

    def event_under_cursor(self) -> int | None:
        """Return the row of the event under the cursor in the selected lane; None = none."""
        lane = self.lane
        if lane is None or not lane.has_events:
            return None
        index = int(lane.bars.at(np.array([self.cursor]))[0])
        if index < 0:
            column = self.view.column_of(self.cursor)
            index = int(lane.bars.within(self.view.edges)[column]) if 0 <= column < self.view.columns else -1
        return int(lane.bars.rows[index]) if index >= 0 else None
