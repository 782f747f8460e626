"""State of a timeline, without widgets: view, cursor, selected event and its links, marks, search.

A :class:`Viewport` implements zooming and panning; a :class:`Search` finds events by name.
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

#: Relation of an event to the one it is linked with.
Relation = Literal["launches", "launched by", "waited for", "delayed", "waited for by", "delayed by"]

#: Up to this many events, the costs of syncs are computed at once; in larger traces their analysis must run first.
_MAX_EVENTS_AT_ONCE = 300_000
#: With more lanes than this, a line shows the map of the whole trace.
_LANES_BEFORE_MAP = 4


@dataclass(frozen=True, slots=True)
class Viewport:
    """The visible range of time, which is kept within the trace. All times are in ns."""

    low: int  # start of the view
    high: int  # end of the view, exclusive
    columns: int
    first: int  # start of the trace
    last: int  # end of the trace

    @classmethod
    def over(cls, first: int, last: int, columns: int) -> Viewport:
        """Return a view of the whole trace."""
        columns = max(columns, 1)
        last = max(last, first + columns)
        return cls(first, last, columns, first, last)

    @property
    def span(self) -> int:
        """Length of the view, ns."""
        return self.high - self.low

    @property
    def edges(self) -> Ints:
        """Edges of the columns, shape ``(columns + 1,)``, ns."""
        steps = np.arange(self.columns + 1, dtype=np.int64)
        # Split the product so that it fits into 64 bits however long the trace is.
        whole, rest = divmod(self.span, self.columns)
        return self.low + steps * whole + (steps * rest) // self.columns

    def resized(self, columns: int) -> Viewport:
        """Return the same range with another number of columns."""
        return replace(self, columns=max(columns, 1))._kept(self.low, self.span)

    def column_of(self, instant: int) -> int:
        """Return the column of an instant; outside the view, it is negative or too large."""
        return int((instant - self.low) * self.columns // self.span)

    def instant_of(self, column: int) -> int:
        """Return the middle of a column."""
        return self.low + (2 * column + 1) * self.span // (2 * self.columns)

    def zoomed(self, factor: float, around: int) -> Viewport:
        """Return a view zoomed in (factor above 1) or out; the instant ``around`` keeps its column."""
        span = max(round(self.span / factor), self.columns)
        share = (around - self.low) / self.span
        return self._kept(around - round(span * share), span)

    def panned(self, share: float) -> Viewport:
        """Return the view moved by a share of its length."""
        return self._kept(self.low + round(self.span * share), self.span)

    def fitted(self, low: int, high: int) -> Viewport:
        """Return a view of a range with small margins."""
        margin = max((high - low) // 20, 1)
        return self.over_range(low - margin, high + margin)

    def over_range(self, low: int, high: int) -> Viewport:
        """Return a view of a range without margins."""
        return self._kept(low, high - low)

    def showing(self, instant: int) -> Viewport:
        """Return this view if it shows an instant, else one of the same length around it."""
        return self if self.low <= instant < self.high else self._kept(instant - self.span // 2, self.span)

    def _kept(self, low: int, span: int) -> Viewport:
        """Return a view within the trace, at least 1 ns per column."""
        span = min(max(span, self.columns), max(self.last - self.first, self.columns))
        low = max(self.first, min(low, self.last - span))
        return replace(self, low=low, high=low + span)

    def ticks(self, spacing: int = 14) -> list[tuple[int, str]]:
        """Return column and label of round times since the start of the trace, at least ``spacing`` columns apart."""
        least = self.span * spacing / self.columns
        step = next(s for e in range(19) for s in (10**e, 2 * 10**e, 5 * 10**e) if s >= least)
        start = -(-(self.low - self.first) // step) * step
        instants = range(start, self.high - self.first, step)
        return [(self.column_of(self.first + t), _tick_label(t, step)) for t in instants]


def _tick_label(offset: int, step: int) -> str:
    """Return a time with as many digits as the tick step needs."""
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
    """A link of one event to another."""

    row: int  # of the other event
    relation: Relation  # of the one event to the other

    def call_and_work(self, event: int) -> tuple[int, int]:
        """Return the rows of the host call and of the device work that are linked."""
        forward = self.relation in ("launches", "waited for", "delayed")
        return (event, self.row) if forward else (self.row, event)

    def instants(self, trace: Trace, event: int) -> tuple[int, int]:
        """Return the times in the call and in the work (ns) between which the link is drawn.

        A launch is linked from its start to the start of the work; a sync, from its end to the end of the work that it
        waited for, or to the start of the work that it delayed.
        """
        call, work = self.call_and_work(event)
        if self.relation in ("launches", "launched by"):
            return int(trace.starts[call]), int(trace.starts[work])
        ended = self.relation in ("waited for", "waited for by")
        return int(trace.ends[call]) - 1, int(trace.ends[work]) - 1 if ended else int(trace.starts[work])


def links_of(trace: Trace, row: int, *, slow: bool = False) -> tuple[Link, ...]:
    """Return the links of an event: between launch and work first, then those of syncs.

    Links of syncs in large traces are included only if their costs are known, or if this may be ``slow``.
    """
    launch = int(trace.links.launch_of[row])
    found = [Link(launch, "launched by")] if launch >= 0 else []
    if not found and len(work := trace.launched_by(row)):
        found.append(Link(int(work[0]), "launches"))
    if slow or len(trace) <= _MAX_EVENTS_AT_ONCE or _wait_table.costs.is_cached(trace):
        known = {link.row for link in found}
        found += [link for link in _sync_links(trace, row) if link.row not in known]
    return tuple(found)


def _sync_links(trace: Trace, row: int) -> list[Link]:
    """Return the links of a sync to the work that it waited for or delayed, or of such work to the sync."""
    waits = _waits.find(trace, Window())
    empty, _ = _wait_table.costs(trace)
    is_sync = np.flatnonzero((waits.last == row) | (waits.first == row))
    if len(is_sync):
        works: tuple[tuple[int, Relation], ...] = (
            (int(empty.waited_for[is_sync[0]]), "waited for"),
            (int(empty.delayed[is_sync[0]]), "delayed"),
        )
        return [Link(work, relation) for work, relation in works if work >= 0]
    for work_rows, relation in ((empty.delayed, "delayed by"), (empty.waited_for, "waited for by")):
        found = np.flatnonzero(work_rows == row)
        if len(found):
            return [Link(int(waits.last[found[-1]]), relation)]  # type: ignore[arg-type]
    return []


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Events whose names contain a text."""

    needle: str
    hits: Bars  # in order of start
    by_lane: dict[int, Bars]  # hits in each lane, by ``id`` of the lane

    @classmethod
    def of(cls, lanes: Lanes, needle: str) -> Search:
        """Search all names of a trace, ignoring case."""
        trace, folded = lanes.trace, needle.casefold()
        names = np.fromiter((folded in name.casefold() for name in trace.names), bool, len(trace.names))
        found: Mask = names[trace.name_codes] if names.any() else np.zeros(len(trace), dtype=bool)
        by_lane = {
            id(lane): lane.bars.where(found[lane.bars.rows]) for lane in lanes.lanes if lane.has_events
        }
        return cls(needle, Bars(trace, np.flatnonzero(found).astype(np.int64)), by_lane)

    def step(self, cursor: int, event: int | None, forward: bool) -> int | None:
        """Return the index of the next or previous hit, wrapping around; None = no hits.

        It is counted from the selected event if that is a hit, else from the cursor.
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
        """Return the index of an event among the hits; None = it is not a hit."""
        if event is None:
            return None
        position = int(np.searchsorted(self.hits.rows, event))
        return position if position < len(self.hits) and int(self.hits.rows[position]) == event else None

    def columns(self, lane: Lane, edges: Ints) -> Mask:
        """Return which columns of a lane show a hit."""
        bars = self.by_lane.get(id(lane))
        if bars is None:
            return np.zeros(len(edges) - 1, dtype=bool)
        shown: Mask = bars.within(edges) >= 0
        return shown


def later_by(part: Trace, trace: Trace) -> int:
    """Return the ns to add to times in a part of a file to get times in a larger part of the same file.

    Times are relative to a trace's first event, which may be missing in the part that was read first.
    """
    row = row_in(part, trace, 0) if len(part) else None
    return int(trace.starts[row] - part.starts[0]) if row is not None else 0


def row_in(part: Trace, trace: Trace, row: int) -> int | None:
    """Return the row in a larger part of the same file of an event in ``part``; None = it is not there."""
    found = np.flatnonzero(trace.events["ordinal"].to_numpy() == part.events["ordinal"][row])
    return int(found[0]) if len(found) else None


def moved(window: Window, by: int) -> Window:
    """Return a window moved by a number of ns."""
    return replace(
        window,
        start_ns=None if window.start_ns is None else window.start_ns + by,
        end_ns=None if window.end_ns is None else window.end_ns + by,
    )


class TimelineState:
    """The state of a timeline; all times are in ns. Methods that change it call ``on_change`` once, at the end."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._lines = 0
        self._laid_out: tuple[Lanes | None, int, bool] = (None, 0, False)
        self.lanes: Lanes | None = None  # None = no trace yet
        self.view = Viewport.over(0, 1, 1)
        self.cursor = 0
        self.selection: tuple[int, int] | None = None  # selected range
        self.anchor: int | None = None  # fixed end of the selection; None = it is not being extended
        self.window = Window()  # the analysed range
        self.visible_lanes: list[Lane] = []  # the lanes that fit
        self.chosen = 0  # index of the selected lane among them
        self.event: int | None = None  # row of the selected event
        self.links: tuple[Link, ...] = ()  # of the selected event
        self.mark: int | None = None  # start of a measurement in progress
        self.measured: tuple[int, int] | None = None  # range of a finished measurement
        self.nested = False  # whether nested lanes are shown
        self.bookmarks: list[int] = []  # ascending
        self.search: Search | None = None
        self.caption = ""  # text beside the axis; sanitized
        #: Which symbols the legend explains: those drawn, all (for another timeline too), or none (no legend).
        self.legend: Literal["drawn", "all", ""] = "drawn"

    def _changed(self) -> None:
        """Update the visible lanes, keeping the selected one, and report the change."""
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
        """Set the size of the widget, keeping the range in view."""
        self.view = self.view.resized(columns)
        self._lines = lines
        self._changed()

    def show(self, lanes: Lanes, extent: tuple[int, int] | None = None) -> None:
        """Show a trace; ``extent`` is the navigable range of time (default: the trace's)."""
        self.lanes = lanes
        first, last = extent or lanes.trace.span
        self.view = Viewport.over(first, last, self.view.columns)
        self.cursor, self.chosen = lanes.trace.span[0], 0
        if extent is None and lanes.stride == 1 and len(steps := lanes.trace.steps):
            # Start with the steps, and a margin for device work that ends after the last one.
            low, high = int(steps.starts[0]), int(steps.ends[-1])
            self.view = self.view.fitted(low, min(high + (high - low) // 40, last))
            self.cursor = low
        self._changed()

    def stretch(self, first: int, last: int) -> None:
        """Change the navigable range of time, keeping the view."""
        self.view = Viewport.over(first, last, self.view.columns).over_range(self.view.low, self.view.high)
        self._changed()

    def replace(self, lanes: Lanes, by: int) -> None:
        """Show a larger part of the same file, in which times are later by ``by``; the search is cleared."""
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
        # Rows of the old trace are invalid now.
        self.search = None
        self.event = row_in(before, lanes.trace, self.event) if self.event is not None else None
        self.links = links_of(lanes.trace, self.event) if self.event is not None else ()
        self._changed()

    def set_window(self, window: Window) -> None:
        self.window = window
        self._changed()

    def set_search(self, search: Search | None) -> None:
        self.search = search
        self._changed()

    # -- lanes ---------------------------------------------------------------------------------------------

    @property
    def has_readout(self) -> bool:
        """Whether the readout has more to describe than the cursor's position."""
        return (
            self.event is not None
            or self.search is not None
            or self.chosen_range is not None
            or self.mark is not None
            or (self.lanes is not None and self.lanes.stride > 1)
        )

    @property
    def lane_count(self) -> int:
        """Number of lanes to show if all fit."""
        return len(self.lanes.shown(nested=self.nested)) if self.lanes is not None else 0

    @property
    def has_nested(self) -> bool:
        return self.lanes is not None and any(lane.nested for lane in self.lanes.lanes)

    def show_nested(self, nested: bool) -> None:
        self.nested = nested
        self._changed()

    def show_lost(self, lost: Lost | None) -> None:
        """Show the lane of the time that a finding costs; None = hide it."""
        if self.lanes is not None and self.lanes.lost is not lost:
            self.lanes = self.lanes.with_lost(lost)
            self._changed()

    @property
    def map_lines(self) -> int:
        """Lines for the map of the whole trace, 0 or 1: 1 if there is room, or if the view is zoomed."""
        room = self._lines - 2
        zoomed = (self.view.low, self.view.high) != (self.view.first, self.view.last)
        if not zoomed and self.lanes is not None and self.lanes.replayed is not None:
            return 0
        return int(room > _LANES_BEFORE_MAP or (zoomed and room > 2))

    @property
    def lane(self) -> Lane | None:
        return self.visible_lanes[self.chosen] if self.chosen < len(self.visible_lanes) else None

    def lane_at(self, y: int) -> int | None:
        """Return the index of the visible lane in a line of the widget; None = no lane there."""
        index = y - self.map_lines
        return index if 0 <= index < len(self.visible_lanes) else None

    def line_of(self, row: int) -> int | None:
        """Return the index of the visible lane that shows an event; None = none."""
        return next((i for i, lane in enumerate(self.visible_lanes) if lane.holds(row)), None)

    def choose_lane(self, index: int) -> None:
        """Select a visible lane; the index is limited to the existing lanes."""
        if self.visible_lanes:
            self.chosen = max(0, min(index, len(self.visible_lanes) - 1))
            self._changed()

    # -- range and cursor ----------------------------------------------------------------------------------

    def set_view(self, view: Viewport) -> None:
        """Set the view, not the cursor."""
        self.view = view
        self._changed()

    def follow(self, view: Viewport, cursor: int) -> None:
        """Set view and cursor, which may be out of view."""
        self.view, self.cursor = view, cursor
        self._changed()

    def go_to(self, instant: int, length: int = 0) -> None:
        """Move the cursor to an instant and scroll to it; zoom out if ``length`` from there does not fit."""
        self.cursor = max(self.view.first, min(instant, self.view.last - 1))
        self.view = self.view.showing(self.cursor)
        if length > self.view.span:
            self.view = self.view.fitted(instant, instant + length)
        self._changed()

    def instant_beside(self, by: int) -> int:
        """Return the instant a number of columns from the cursor; if the cursor is out of view, the nearest edge."""
        column = self.view.column_of(self.cursor)
        if not 0 <= column < self.view.columns:
            return self.view.instant_of(0 if column < 0 else self.view.columns - 1)
        return self.view.instant_of(column + by)

    def zoom(self, factor: float) -> None:
        """Zoom in (factor above 1) or out, around the cursor or, if that is out of view, the middle."""
        visible = self.view.low <= self.cursor < self.view.high
        middle = (self.view.low + self.view.high) // 2
        self.set_view(self.view.zoomed(factor, self.cursor if visible else middle))

    def fit(self, low: int | None = None, high: int | None = None) -> None:
        """Show a range, or everything."""
        if low is None or high is None:
            self.set_view(Viewport.over(self.view.first, self.view.last, self.view.columns))
        else:
            self.set_view(self.view.fitted(low, high))

    # -- selection and marks -------------------------------------------------------------------------------

    @property
    def chosen_range(self) -> tuple[int, int] | None:
        """The selected range, else the measured one; None = neither."""
        if self.selection is not None:
            return self.selection
        if self.mark is not None and self.mark != self.cursor:
            return min(self.mark, self.cursor), max(self.mark, self.cursor)
        return self.measured

    def select(self, selection: tuple[int, int] | None) -> None:
        """Select a range; None = clear the selection."""
        self.selection, self.anchor = selection, None
        self._changed()

    def select_to(self, instant: int) -> None:
        """Extend the selection to an instant; a new selection starts at the cursor."""
        if self.anchor is None:
            self.anchor = self.cursor
        self.go_to(instant)
        low, high = sorted((self.anchor, self.cursor))
        self.selection = (low, high) if high > low else None
        self._changed()

    def clear_range(self) -> None:
        """Clear selection and measurement."""
        self.mark = self.measured = None
        self.select(None)

    def toggle_mark(self) -> None:
        """Start measuring at the cursor, or stop and keep the measured range."""
        if self.mark is None:
            self.mark, self.measured = self.cursor, None
        else:
            self.measured, self.mark = self.chosen_range if self.selection is None else None, None
        self._changed()

    def toggle_bookmark(self) -> None:
        """Set a bookmark at the cursor, or remove those in its column."""
        column = self.view.column_of(self.cursor)
        kept = [at for at in self.bookmarks if self.view.column_of(at) != column]
        removed = len(kept) < len(self.bookmarks)
        self.bookmarks = kept if removed else sorted([*kept, self.cursor])
        self._changed()

    # -- events --------------------------------------------------------------------------------------------

    def mark_event(self, row: int | None) -> None:
        """Select an event, its links and its lane; None = no event."""
        if self.lanes is None:
            return
        self.event = row
        self.links = links_of(self.lanes.trace, row) if row is not None else ()
        if row is not None and (line := self.line_of(row)) is not None:
            self.chosen = line
        self._changed()

    def event_under_cursor(self) -> int | None:
        """Return the row of the event at the cursor or in its column, in the selected lane; None = none."""
        lane = self.lane
        if lane is None or not lane.has_events:
            return None
        index = int(lane.bars.at(np.array([self.cursor]))[0])
        if index < 0:
            column = self.view.column_of(self.cursor)
            index = int(lane.bars.within(self.view.edges)[column]) if 0 <= column < self.view.columns else -1
        return int(lane.bars.rows[index]) if index >= 0 else None
