"""State of a timeline, without widgets: range in view, cursor, selected event and its links, marks, search.

A :class:`Viewport` zooms and pans as arithmetic on nanoseconds; a :class:`Search` finds events by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.analyses.shared import waits as _waits
from tuiprof.model.intervals import Ints, Mask, Window
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_ns
from tuiprof.tui.timeline.lanes import Bars, Lane, Lanes, Lost

Way = Literal["launches", "launched by", "waited for", "delayed", "waited for by", "delayed by"]

#: Up to this many events the effect of syncs is computed at once; for larger traces after their analysis.
_AT_ONCE = 300_000
#: Lines that a timeline keeps for lanes before it gives one to the map of the whole.
_LANES_BEFORE_MAP = 4


@dataclass(frozen=True, slots=True)
class Viewport:
    """A range of time over a number of columns, kept within the trace."""

    low: int  # first instant shown, ns
    high: int  # first instant not shown, ns
    columns: int  # number of columns
    first: int  # begin of the trace, ns
    last: int  # end of the trace, ns

    @classmethod
    def over(cls, first: int, last: int, columns: int) -> Viewport:
        """Show all of a trace."""
        columns = max(columns, 1)
        last = max(last, first + columns)
        return cls(first, last, columns, first, last)

    @property
    def span(self) -> int:
        """Length of the range shown, ns."""
        return self.high - self.low

    @property
    def edges(self) -> Ints:
        """Edges of the columns, shape ``(columns + 1,)``, ns."""
        steps = np.arange(self.columns + 1, dtype=np.int64)
        # Split so that no product leaves 64 bits, however long the trace.
        whole, rest = divmod(self.span, self.columns)
        return self.low + steps * whole + (steps * rest) // self.columns

    def resized(self, columns: int) -> Viewport:
        """Return the same range over another number of columns."""
        return replace(self, columns=max(columns, 1))._kept(self.low, self.span)

    def column_of(self, instant: int) -> int:
        """Return the column an instant falls into; outside the range, below 0 or beyond the columns."""
        return int((instant - self.low) * self.columns // self.span)

    def instant_of(self, column: int) -> int:
        """Return the middle of a column, ns."""
        return self.low + (2 * column + 1) * self.span // (2 * self.columns)

    def zoomed(self, factor: float, around: int) -> Viewport:
        """Return a range narrower by a factor above 1, or wider, in which the instant ``around`` keeps its column."""
        span = max(round(self.span / factor), self.columns)
        share = (around - self.low) / self.span
        return self._kept(around - round(span * share), span)

    def panned(self, share: float) -> Viewport:
        """Return the range moved by a share of itself."""
        return self._kept(self.low + round(self.span * share), self.span)

    def fitted(self, low: int, high: int) -> Viewport:
        """Return a range that shows two instants with a little room around them."""
        margin = max((high - low) // 20, 1)
        return self.over_range(low - margin, high + margin)

    def over_range(self, low: int, high: int) -> Viewport:
        """Return exactly a range, kept within the trace."""
        return self._kept(low, high - low)

    def showing(self, instant: int) -> Viewport:
        """Return this range when it shows an instant, else one of the same length around it."""
        return self if self.low <= instant < self.high else self._kept(instant - self.span // 2, self.span)

    def _kept(self, low: int, span: int) -> Viewport:
        """Return a range within the trace, never shorter than 1 ns a column."""
        span = min(max(span, self.columns), max(self.last - self.first, self.columns))
        low = max(self.first, min(low, self.last - span))
        return replace(self, low=low, high=low + span)

    def ticks(self, spacing: int = 14) -> list[tuple[int, str]]:
        """Return column and text of round instants at least ``spacing`` columns apart, from the begin of the trace."""
        least = self.span * spacing / self.columns
        step = next(s for e in range(19) for s in (10**e, 2 * 10**e, 5 * 10**e) if s >= least)
        begin = -(-(self.low - self.first) // step) * step
        instants = range(begin, self.high - self.first, step)
        return [(self.column_of(self.first + t), _tick_label(t, step)) for t in instants]


def _tick_label(offset: int, step: int) -> str:
    """Return an offset with as many digits as the tick step needs."""
    if offset == 0:
        return "0"
    for scale, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if offset >= scale:
            digits = 0
            while step % scale and digits < 9:
                digits, step = digits + 1, step * 10
            return f"{offset / scale:.{digits}f} {unit}"
    return format_ns(offset)


@dataclass(frozen=True, slots=True)
class Link:
    """The row of an event that another is linked with, and what it is to the other."""

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
    if not found and (work := _first_work(trace, row)) is not None:
        found.append(Link(work, "launches"))
    if patient or len(trace) <= _AT_ONCE or _wait_table.costs.is_cached(trace):
        known = {link.row for link in found}
        found += [link for link in _of_syncs(trace, row) if link.row not in known]
    return tuple(found)


def _first_work(trace: Trace, row: int) -> int | None:
    """Return the first work that a call launched; None = it launched nothing."""
    launches = trace.links.launches
    index = int(np.searchsorted(launches, row))
    if index >= len(launches) or launches[index] != row:
        return None
    # The work of a launch is nearly always near: search what starts soon after it first.
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


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Events whose name contains a text."""

    needle: str  # the text
    hits: Bars  # the events, in order of start
    by_lane: dict[int, Bars]  # those of each lane that draws events, by ``id`` of the lane

    @classmethod
    def of(cls, lanes: Lanes, needle: str) -> Search:
        """Search all names of a trace, ignoring case."""
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
        """Return the index of the next hit, from the selected event on where that is one, around the ends."""
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


def later_by(part: Trace, trace: Trace) -> int:
    """Return by how many ns the events of a part of a file lie later in a longer part of the same file.

    A trace counts time from its first event, which need not be in the part of the file that was read first.
    """
    row = row_in(part, trace, 0) if len(part) else None
    return int(trace.starts[row] - part.starts[0]) if row is not None else 0


def row_in(part: Trace, trace: Trace, row: int) -> int | None:
    """Return which row an event of a part of a file is in more of the same file; None = it is not there."""
    found = np.flatnonzero(trace.events["ordinal"].to_numpy() == part.events["ordinal"][row])
    return int(found[0]) if len(found) else None


def moved(window: Window, by: int) -> Window:
    """Return a window moved in time."""
    return replace(
        window,
        start_ns=None if window.start_ns is None else window.start_ns + by,
        end_ns=None if window.end_ns is None else window.end_ns + by,
    )


class TimelineState:
    """The state of a timeline. Methods that change it call ``on_change`` once, when the change is complete."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._lines = 0
        self._laid_out: tuple[Lanes | None, int, bool] = (None, 0, False)
        self.lanes: Lanes | None = None  # what there is to show; None = nothing yet
        self.view = Viewport.over(0, 1, 1)  # the range of time in view
        self.cursor = 0  # where the cursor is, ns
        self.selection: tuple[int, int] | None = None  # begin and end of what is selected, ns
        #: Where extending the selection began, ns; None = it is not being extended.
        self.anchor: int | None = None
        self.window = Window()  # the part that is analysed
        self.visible_lanes: list[Lane] = []  # the lanes there is room for
        self.chosen = 0  # which of them the keys act on
        self.event: int | None = None  # row of the chosen event
        #: What the chosen event is linked with: its launch or its work, what a sync waited for and delayed.
        self.links: tuple[Link, ...] = ()
        self.mark: int | None = None  # where measuring began, ns
        #: What was measured, from when to when in ns; None = nothing.
        self.measured: tuple[int, int] | None = None
        self.nested = False  # whether lanes are drawn that are nested in what others draw
        self.bookmarks: list[int] = []  # instants in ns, ascending
        self.search: Search | None = None  # what was searched for
        self.caption = ""  # written beside the axis; safe for a terminal
        #: Whether the signs are explained below: those that are drawn, or all, for another timeline as well.
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
        """Mark the part that is analysed."""
        self.window = window
        self._changed()

    def set_search(self, search: Search | None) -> None:
        """Mark the hits of a search; None = of none."""
        self.search = search
        self._changed()

    # -- lanes ---------------------------------------------------------------------------------------------

    @property
    def has_readout(self) -> bool:
        """Whether the readout describes more than what is under the cursor."""
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
        """Whether there are nested lanes."""
        return self.lanes is not None and any(lane.nested for lane in self.lanes.lanes)

    def show_nested(self, nested: bool) -> None:
        """Draw the nested lanes, or leave them out."""
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
