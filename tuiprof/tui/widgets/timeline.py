"""The timeline: keys and mouse over :class:`~tuiprof.tui.widgets.timeline_canvas.TimelineCanvas`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from tuiprof.tui.keys import key
from tuiprof.tui.lanes import Bars, Lane, LaneStyle
from tuiprof.tui.widgets.timeline_canvas import TimelineCanvas

_WHEEL_ZOOM = 1.3


def _key(keys: str, action: str, label: str, tooltip: str, show: bool = False) -> Binding:
    name = f"timeline.{label.replace(' ', '_')}"
    return key(keys, action, label, tooltip.capitalize(), id=name, group="Timeline", show=show)


class Timeline(TimelineCanvas, can_focus=True):
    """A timeline that a person moves in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("left", "step(-1)", "cursor back", "one column back"),
        _key("right", "step(1)", "cursor on", "one column on"),
        _key("shift+left", "select(-1)", "select back", "extend the selection back"),
        _key("shift+right", "select(1)", "select on", "extend the selection on"),
        _key("ctrl+left,H", "pan(-0.25)", "pan back", "move the view back"),
        _key("ctrl+right,L", "pan(0.25)", "pan on", "move the view on"),
        _key("up", "lane(-1)", "lane up", "choose the lane above"),
        _key("down", "lane(1)", "lane down", "choose the lane below"),
        _key("home", "edge(False)", "begin", "to the begin of the trace"),
        _key("end", "edge(True)", "end", "to the end of the trace"),
        _key("comma", "event(False)", "event before", "to the previous event of the chosen lane"),
        _key("full_stop", "event(True)", "event after", "to the next event of the chosen lane"),
        _key("enter", "open", "event", "open the event under the cursor in the chosen lane", show=True),
    ]

    class Opened(Message):
        """An event was opened.

        Attributes:
            row: Its row in the event table.
        """

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._anchor: int | None = None
        self._dragging = False

    @property
    def lane(self) -> Lane | None:
        """The chosen lane."""
        return self._visible[self.chosen] if self.chosen < len(self._visible) else None

    def choose(self, style: LaneStyle) -> None:
        """Choose the first lane of a style, where one shows.

        Args:
            style: Its style.
        """
        self._paint()
        self.chosen = next((i for i, lane in enumerate(self._visible) if lane.style == style), self.chosen)
        self.refresh()

    def select(self, selection: tuple[int, int] | None) -> None:
        """Select a range.

        Args:
            selection: Begin and end in ns; None = nothing.
        """
        self.selection, self._anchor = selection, None
        self.refresh()

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
        if self._visible:
            self.chosen = max(0, min(self.chosen + by, len(self._visible) - 1))
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
        start = int(bars.starts[index])
        self.go_to(start, int(bars.ends[index]) - start)
        return int(bars.rows[index])

    def event_under_cursor(self) -> int | None:
        """Return the row of the event under the cursor in the chosen lane; None = there is none."""
        lane = self.lane
        if lane is None or lane.style == "idle":
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
            self.post_message(self.Opened(row))

    # -- mouse ---------------------------------------------------------------------------------------------

    def _instant_at(self, x: int) -> int:
        return self.view.instant_of(max(0, min(x - self.label_cells, self.view.columns - 1)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Put the cursor where the mouse is, and begin to select."""
        self.selection, self._dragging = None, True
        self._anchor = self._instant_at(event.x)
        if event.y < len(self._visible):
            self.chosen = event.y
        self.capture_mouse()
        self.go_to(self._anchor)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Select while a button is held."""
        if self._dragging and self._anchor is not None:
            self.go_to(self._instant_at(event.x))
            low, high = sorted((self._anchor, self.cursor))
            self.selection = (low, high) if high > low else None
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End selecting."""
        self._dragging, self._anchor = False, None
        self.release_mouse()

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
