"""The timeline: keys and mouse over :class:`~tuiprof.tui.timeline.canvas.TimelineCanvas`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.canvas import TimelineCanvas
from tuiprof.tui.timeline.lanes import Bars, Lane, LaneStyle
from tuiprof.tui.timeline.links import links_of
from tuiprof.tui.timeline.viewport import Viewport

_WHEEL_ZOOM = 1.3


@dataclass(slots=True)
class _Drag:
    """A button is held.

    Attributes:
        what: What moving does.
        x: Where it was pressed.
        view: What was in view then.
        moved: Whether the pointer has left the cell.
    """

    what: Literal["pan", "select", "map"]
    x: int
    view: Viewport
    moved: bool = False


def _key(keys: str, action: str, label: str, tooltip: str, show: bool = False) -> Binding:
    name = f"timeline.{label.replace(' ', '_')}"
    return key(keys, action, label, tooltip.capitalize(), id=name, group="Timeline", show=show)


class Timeline(TimelineCanvas, can_focus=True):
    """A timeline that a person moves in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("left,h", "step(-1)", "cursor back", "one column back"),
        _key("right,l", "step(1)", "cursor on", "one column on"),
        _key("shift+left", "select(-1)", "select back", "extend the selection back"),
        _key("shift+right", "select(1)", "select on", "extend the selection on"),
        _key("ctrl+left,H", "pan(-0.25)", "pan back", "move the view back"),
        _key("ctrl+right,L", "pan(0.25)", "pan on", "move the view on"),
        _key("up,k", "lane(-1)", "lane up", "choose the lane above"),
        _key("down,j", "lane(1)", "lane down", "choose the lane below"),
        _key("home,g", "edge(False)", "begin", "to the begin of the trace"),
        _key("end,G", "edge(True)", "end", "to the end of the trace"),
        _key("comma", "event(False)", "event before", "to the previous event of the chosen lane"),
        _key("full_stop", "event(True)", "event after", "to the next event of the chosen lane"),
        _key("enter", "open", "event", "open the event under the cursor in the chosen lane", show=True),
        _key("slash", "search", "search", "search the names of all events", show=True),
    ]

    class Opened(Message):
        """An event was opened.

        Attributes:
            row: Its row in the event table.
        """

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class SearchWanted(Message):
        """A text to search for is to be asked for."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._anchor: int | None = None
        self._drag: _Drag | None = None

    @property
    def lane(self) -> Lane | None:
        """The chosen lane."""
        return self.visible_lanes[self.chosen] if self.chosen < len(self.visible_lanes) else None

    def choose(self, style: LaneStyle) -> None:
        """Choose the first lane of a style, where one shows.

        Args:
            style: Its style.
        """
        self._paint()
        self.chosen = next(
            (i for i, lane in enumerate(self.visible_lanes) if lane.style == style), self.chosen
        )
        self.refresh()

    def select(self, selection: tuple[int, int] | None) -> None:
        """Select a range.

        Args:
            selection: Begin and end in ns; None = nothing.
        """
        self.selection, self._anchor = selection, None
        self.refresh()

    def take_event(self, row: int | None) -> None:
        """Choose an event, and tell.

        Args:
            row: Its row in the event table; None = none.
        """
        self.mark_event(row)
        self.post_message(self.Chose(self, row))

    def mark_event(self, row: int | None) -> None:
        """Mark an event, and what it is linked with.

        Args:
            row: Its row in the event table; None = none.
        """
        if self.lanes is None:
            return
        self.event = row
        self.links = links_of(self.lanes.trace, row) if row is not None else ()
        self._paint()
        if row is not None and (line := self.line_of(row)) is not None:
            self.chosen = line
        self.relay()

    def show_event(self, row: int) -> None:
        """Choose an event and bring it into view.

        Args:
            row: Its row in the event table.
        """
        if self.lanes is not None:
            start, end = int(self.lanes.trace.starts[row]), int(self.lanes.trace.ends[row])
            self.go_to(start, end - start)
            self.take_event(row)

    # -- keys ----------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        """Move the cursor by columns; the selection ends."""
        self.selection = self._anchor = None
        self._move(by)

    def action_select(self, by: int) -> None:
        """Extend the selection by columns."""
        if self._anchor is None:
            self._anchor = self.cursor
        self._move(by)
        self.selection = (min(self._anchor, self.cursor), max(self._anchor, self.cursor))
        self.refresh()

    def _move(self, by: int) -> None:
        column = self.view.column_of(self.cursor)
        if not 0 <= column < self.view.columns:  # after a pan: come back into view first
            self.go_to(self.view.instant_of(0 if column < 0 else self.view.columns - 1))
            return
        self.go_to(self.view.instant_of(column + by))

    def action_pan(self, share: float) -> None:
        """Move the view by a share of itself."""
        self.view = self.view.panned(share)
        self.refresh()

    def action_lane(self, by: int) -> None:
        """Choose another lane."""
        if self.visible_lanes:
            self.chosen = max(0, min(self.chosen + by, len(self.visible_lanes) - 1))
            self.refresh()

    def action_edge(self, last: bool) -> None:
        """Go to the begin or the end of the trace."""
        self.go_to(self.view.last - 1 if last else self.view.first)

    def action_event(self, forward: bool) -> None:
        """Go to the next or the previous event of the chosen lane."""
        if self.lane is not None:
            self.go_to_event(self.lane.bars, forward)

    def go_to_event(self, bars: Bars, forward: bool) -> int | None:
        """Go to the next or the previous start of an event.

        Args:
            bars: The events.
            forward: Next rather than previous.

        Returns:
            Row of the event in the event table; None = there is none that way.
        """
        index = bars.next_start(self.cursor, forward)
        if index is None:
            return None
        row = int(bars.rows[index])
        self.show_event(row)
        return row

    def event_under_cursor(self) -> int | None:
        """Return the row of the event under the cursor in the chosen lane; None = there is none."""
        lane = self.lane
        if lane is None or not lane.has_events:
            return None
        index = int(lane.bars.at(np.array([self.cursor]))[0])
        if index < 0:
            column = self.view.column_of(self.cursor)
            index = int(lane.bars.within(self.view.edges)[column]) if 0 <= column < self.view.columns else -1
        return int(lane.bars.rows[index]) if index >= 0 else None

    def action_open(self) -> None:
        """Open the event under the cursor in the chosen lane."""
        row = self.event_under_cursor()
        if row is None:
            self.notify("no event of this lane under the cursor; , and . go to one", timeout=3)
        else:
            self.take_event(row)
            self.post_message(self.Opened(row))

    def action_search(self) -> None:
        """Ask for a text to search for."""
        self.post_message(self.SearchWanted())

    # -- mouse ---------------------------------------------------------------------------------------------

    def _instant_at(self, x: int) -> int:
        return self.view.instant_of(max(0, min(x - self.label_cells, self.view.columns - 1)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to move the view; on the axis or with a key held to select, on the map to choose what is in view."""
        self._paint()
        at = self._instant_at(event.x)
        lane = self.lane_at(event.y)
        if self.map_lines and event.y == 0:
            self._drag = _Drag("map", event.x, self.view)
            self._look_at(event.x)
        elif lane is None or event.shift or event.ctrl:
            self._drag = _Drag("select", event.x, self.view)
            self.selection, self._anchor = None, at
            self.go_to(at)
        else:
            self._drag = _Drag("pan", event.x, self.view)
            self.chosen = lane
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the view, or select, while a button is held."""
        drag = self._drag
        if drag is None:
            return
        if drag.what == "map":
            self._look_at(event.x)
        elif drag.what == "select" and self._anchor is not None:
            self.go_to(self._instant_at(event.x))
            low, high = sorted((self._anchor, self.cursor))
            self.selection = (low, high) if high > low else None
        elif event.x != drag.x or drag.moved:
            drag.moved = True
            self.view = drag.view.panned((drag.x - event.x) / drag.view.columns)
        self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End moving or selecting; where nothing was moved, choose the event under the pointer."""
        drag, self._drag, self._anchor = self._drag, None, None
        self.release_mouse()
        if drag is not None and drag.what == "pan" and not drag.moved:
            self.selection = None
            self.go_to(self._instant_at(event.x))
            self.take_event(self.event_under_cursor())

    def _look_at(self, x: int) -> None:
        """Put the middle of the view where the map was pointed at."""
        whole = Viewport.over(self.view.first, self.view.last, self.view.columns)
        at = whole.instant_of(max(0, min(x - self.label_cells, self.view.columns - 1)))
        self.view = self.view.over_range(at - self.view.span // 2, at - self.view.span // 2 + self.view.span)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Open the event under a double click."""
        if event.chain == 2:
            self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the mouse; with shift, pan back."""
        self._wheel(event, _WHEEL_ZOOM, -0.1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out at the mouse; with shift, pan on."""
        self._wheel(event, 1 / _WHEEL_ZOOM, 0.1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        """Pan back."""
        event.stop()
        self.action_pan(-0.1)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        """Pan on."""
        event.stop()
        self.action_pan(0.1)

    def _wheel(self, event: events.MouseEvent, factor: float, share: float) -> None:
        event.stop()
        if event.shift:
            self.action_pan(share)
            return
        self.view = self.view.zoomed(factor, self._instant_at(event.x))
        self.refresh()
