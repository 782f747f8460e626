"""What a timeline shows and what a person put over it: range, cursor, selection, marks. Draws nothing."""

from __future__ import annotations

from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget

from tuiprof.model.window import Window
from tuiprof.tui.timeline.lanes import Lane, Lanes
from tuiprof.tui.timeline.links import Link, links_of
from tuiprof.tui.timeline.marks import Search
from tuiprof.tui.timeline.results import row_in
from tuiprof.tui.timeline.viewport import Viewport

#: Lines that a timeline keeps for lanes before it gives one to the map of the whole.
_LANES_BEFORE_MAP = 4


class TimelineState(Widget):
    """The state of a timeline.

    Attributes:
        lanes: What there is to show; None = nothing yet.
        selection: Begin and end of what is selected, ns.
        window: The part that the analyses look at.
        visible_lanes: The lanes there is room for.
        chosen: Which of them the keys act on.
        event: Row of the chosen event.
        links: What the chosen event is linked with: its launch or its work, what a sync waited for and delayed.
        mark: Where measuring began, ns.
        bookmarks: Instants in ns, ascending.
        search: What was searched for.
    """

    class Moved(Message):
        """Range or cursor of a timeline changed.

        Attributes:
            timeline: Which.
        """

        def __init__(self, timeline: TimelineState) -> None:
            super().__init__()
            self.timeline = timeline

        def can_replace(self, message: Message) -> bool:
            """Only the latest of one timeline counts."""
            return isinstance(message, TimelineState.Moved) and message.timeline is self.timeline

    class Chose(Message):
        """An event was chosen.

        Attributes:
            timeline: Where.
            row: Its row in the event table; None = none is any more.
        """

        def __init__(self, timeline: TimelineState, row: int | None) -> None:
            super().__init__()
            self.timeline = timeline
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.lanes: Lanes | None = None
        self._view = Viewport.over(0, 1, 1)
        self._cursor = 0
        self.selection: tuple[int, int] | None = None
        self.window = Window()
        self.chosen = 0
        self.event: int | None = None
        self.links: tuple[Link, ...] = ()
        self.mark: int | None = None
        self.bookmarks: list[int] = []
        self.search: Search | None = None
        self.visible_lanes: list[Lane] = []

    # -- content -------------------------------------------------------------------------------------------

    @property
    def view(self) -> Viewport:
        """The range of time in view."""
        return self._view

    @view.setter
    def view(self, view: Viewport) -> None:
        if view != self._view:
            self._view = view
            self._tell()

    @property
    def cursor(self) -> int:
        """Where the cursor is, ns."""
        return self._cursor

    @cursor.setter
    def cursor(self, instant: int) -> None:
        if instant != self._cursor:
            self._cursor = instant
            self._tell()

    def _tell(self) -> None:
        if self.is_attached:
            self.post_message(self.Moved(self))

    def show(self, lanes: Lanes, extent: tuple[int, int] | None = None) -> None:
        """Show a trace.

        Args:
            lanes: Its lanes.
            extent: Between which instants one can move, ns; None = begin and end of the trace.
        """
        self.lanes = lanes
        first, last = extent or lanes.trace.span
        self.view = Viewport.over(first, last, self.columns)
        self.cursor, self.chosen = lanes.trace.span[0], 0
        self._redraw_all()

    def stretch(self, first: int, last: int) -> None:
        """Move between other instants, keeping what is in view.

        Args:
            first: ns.
            last: ns.
        """
        low, high = self.view.low, self.view.high
        self.view = Viewport.over(first, last, self.columns).over_range(low, high)
        self._redraw_all()

    def replace(self, lanes: Lanes, by: int) -> None:
        """Show more of the same trace, keeping cursor, selection, range and the chosen event; a search ends.

        Args:
            lanes: Its lanes.
            by: ns by which what shows stands later in it.
        """
        if self.lanes is None:
            self.show(lanes)
            return
        old, before = self.view, self.lanes.trace
        first, last = lanes.trace.span
        whole = Viewport.over(first, last, self.columns)
        if (old.low, old.high) == (old.first, old.last):
            self.view = whole
        else:
            self.view = whole.over_range(old.low + by, old.high + by)
        self.lanes = lanes
        self.cursor += by
        if self.selection is not None:
            self.selection = (self.selection[0] + by, self.selection[1] + by)
        if self.mark is not None:
            self.mark += by
        self.bookmarks = [at + by for at in self.bookmarks]
        # These name rows of the table that was replaced.
        self.search = None
        self.event = row_in(before, lanes.trace, self.event) if self.event is not None else None
        self.links = links_of(lanes.trace, self.event) if self.event is not None else ()
        self._redraw_all()

    def _redraw_all(self) -> None:
        """Draw anew, whatever was drawn before."""
        self.refresh()

    @property
    def chosen_range(self) -> tuple[int, int] | None:
        """What is selected, else what is being measured, ns; None = nothing."""
        if self.selection is not None:
            return self.selection
        if self.mark is not None and self.mark != self.cursor:
            return min(self.mark, self.cursor), max(self.mark, self.cursor)
        return None

    @property
    def label_cells(self) -> int:
        """Cells in front of the lanes."""
        return 11 if self.size.width < 140 else 18

    @property
    def columns(self) -> int:
        """Number of columns that show time."""
        return max(self.size.width - self.label_cells, 1)

    def set_window(self, window: Window) -> None:
        """Show which part the analyses look at.

        Args:
            window: The window.
        """
        self.window = window
        self.refresh()

    def go_to(self, instant: int, length: int = 0) -> None:
        """Put the cursor on an instant and bring it into view.

        Args:
            instant: ns.
            length: Length of the event there, ns; the view widens when less than all of it would show.
        """
        self.cursor = max(self.view.first, min(instant, self.view.last - 1))
        self.view = self.view.showing(self.cursor)
        if length > self.view.span:
            self.view = self.view.fitted(instant, instant + length)
        self.refresh()

    def zoom(self, factor: float) -> None:
        """Zoom around the cursor, or around the middle when the cursor is out of view.

        Args:
            factor: Above 1 shows less time.
        """
        seen = self.view.low <= self.cursor < self.view.high
        middle = (self.view.low + self.view.high) // 2
        self.view = self.view.zoomed(factor, self.cursor if seen else middle)
        self.refresh()

    def fit(self, low: int | None = None, high: int | None = None) -> None:
        """Show a range, or everything.

        Args:
            low: ns; None = everything.
            high: ns.
        """
        if low is None or high is None:
            self.view = Viewport.over(self.view.first, self.view.last, self.columns)
        else:
            self.view = self.view.fitted(low, high)
        self.refresh()

    def on_resize(self) -> None:
        """Keep the range over the new width."""
        self.view = self.view.resized(self.columns)
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return as many lines as there are lanes, and three for map, axis and readout."""
        return len(self.lanes.lanes) + 3 if self.lanes else 3

    @property
    def map_lines(self) -> int:
        """1 where the map of the whole has a line: where there is room, and always when only a part shows."""
        room = self.size.height - 2
        zoomed = (self.view.low, self.view.high) != (self.view.first, self.view.last)
        return int(room > _LANES_BEFORE_MAP or (zoomed and room > 2))

    def lane_at(self, y: int) -> int | None:
        """Return which lane is drawn in a line; None = none.

        Args:
            y: Line within the widget.
        """
        index = y - self.map_lines
        return index if 0 <= index < len(self.visible_lanes) else None

    def line_of(self, row: int) -> int | None:
        """Return which of the visible lanes draws an event; None = none.

        Args:
            row: Row in the event table.
        """
        return next((i for i, lane in enumerate(self.visible_lanes) if lane.holds(row)), None)
