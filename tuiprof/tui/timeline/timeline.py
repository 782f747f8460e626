"""The timeline widget, operated by keys and mouse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.timeline.canvas import STYLES, Canvas, label_cells
from tuiprof.tui.timeline.lanes import Bars
from tuiprof.tui.timeline.navigation import Navigation
from tuiprof.tui.timeline.state import TimelineState, Viewport

_WHEEL_ZOOM = 1.3


@dataclass(slots=True)
class _Drag:
    action: Literal["pan", "select", "map"]
    x: int  # where it started
    view: Viewport  # at the start
    moved: bool = False


def _key(keys: str, action: str, label: str, tooltip: str, show: bool = False) -> Binding:
    name = f"timeline.{label.replace(' ', '_')}"
    return key(keys, action, label, tooltip.capitalize(), id=name, group="Timeline", show=show)


class Timeline(Widget, can_focus=True):
    """A trace over time; empty until its state shows one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = STYLES

    DEFAULT_CSS = """
    Timeline {
        height: 6;
        background: $background;
        color: $foreground;
        & > .timeline--blank { color: $foreground; }
        & > .timeline--kernel { color: $primary; }
        & > .timeline--copy { color: $text-warning; }
        & > .timeline--fill { color: $text-muted; }
        & > .timeline--collective { color: $text-accent; }
        & > .timeline--launch { color: $text-success; }
        & > .timeline--sync { color: $text-error; text-style: bold; }
        & > .timeline--call { color: $text-muted; }
        & > .timeline--idle { color: $lane-idle; }
        & > .timeline--counter { color: $lane-counter; }
        & > .timeline--lost-bad { color: $text-error; }
        & > .timeline--lost-warn { color: $text-warning; }
        & > .timeline--note { color: $text-muted; }
        & > .timeline--range-a { color: $text-primary; }
        & > .timeline--range-b { color: $text-secondary; }
        & > .timeline--range-c { color: $text-accent; }
        & > .timeline--range-d { color: $text-success; }
        & > .timeline--range-e { color: $text-warning; }
        & > .timeline--range-f { color: $foreground; }
        & > .timeline--step { color: $foreground; text-style: bold; }
        & > .timeline--label { color: $text-muted; }
        & > .timeline--label-chosen { color: $block-cursor-foreground; background: $block-cursor-background; }
        & > .timeline--axis { color: $text-muted; }
        & > .timeline--cursor { background: $surface-active; text-style: bold; }
        & > .timeline--selection { background: $primary-muted; }
        & > .timeline--outside { color: $lane-outside; text-style: $lane-outside-style; }
        & > .timeline--hit { text-style: underline bold; color: $accent; }
        & > .timeline--link { color: $accent; text-style: bold; }
        & > .timeline--event { text-style: reverse bold; }
        & > .timeline--readout { color: $foreground; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("left,h", "step(-1)", "cursor back", "move the cursor one column back"),
        _key("right,l", "step(1)", "cursor forward", "move the cursor one column forward"),
        _key("shift+left", "select(-1)", "select back", "extend the selection back"),
        _key("shift+right", "select(1)", "select forward", "extend the selection forward"),
        _key("ctrl+left,H", "pan(-0.25)", "pan back", "move the view back"),
        _key("ctrl+right,L", "pan(0.25)", "pan forward", "move the view forward"),
        _key("up,k", "lane(-1)", "lane up", "select the lane above"),
        _key("down,j", "lane(1)", "lane down", "select the lane below"),
        _key("home,g", "edge(False)", "start", "go to the start of the trace"),
        _key("end,G", "edge(True)", "end", "go to the end of the trace"),
        _key("comma", "event(False)", "previous event", "go to the previous event of the selected lane"),
        _key("full_stop", "event(True)", "next event", "go to the next event of the selected lane"),
        _key("enter", "open", "event", "open the event under the cursor in the selected lane", show=True),
        _key("slash", "search", "search", "search the names of all events", show=True),
    ]

    @dataclass(eq=False)
    class Moved(Message):
        """The view or the cursor changed."""

        timeline: Timeline

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, Timeline.Moved) and message.timeline is self.timeline

    @dataclass(eq=False)
    class Chose(Message):
        """An event was selected, given as a row of the trace; None = the selection was cleared."""

        timeline: Timeline
        row: int | None

    @dataclass(eq=False)
    class Opened(Message):
        """An event was opened, given as a row of the trace."""

        row: int

    @dataclass(eq=False)
    class Followed(Message):
        """The user followed a link to an event, given as a row of the trace."""

        row: int

    @dataclass(eq=False)
    class SearchWanted(Message):
        """The user wants to search."""

        timeline: Timeline

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        #: Changes to it redraw the widget and post :class:`Moved`
        self.state = TimelineState(self._state_changed)
        self.canvas = Canvas(self.state, self.get_component_rich_style)
        self.navigation = Navigation(self)
        self._posted = self.state.view, self.state.cursor
        self._drag: _Drag | None = None

    def _state_changed(self) -> None:
        self.refresh()
        moved = self.state.view, self.state.cursor
        if moved != self._posted and self.is_attached:
            self.post_message(self.Moved(self))
        self._posted = moved

    # -- drawing -------------------------------------------------------------------------------------------

    @property
    def label_cells(self) -> int:
        """Cells for the labels of the lanes."""
        return label_cells(self.size.width)

    def on_resize(self) -> None:
        self.state.resize(max(self.size.width - self.label_cells, 1), self.size.height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return one line for each lane, and three for map, axis and readout."""
        return self.state.lane_count + 3 if self.state.lanes else 3

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.canvas.forget_styles()

    def render_line(self, y: int) -> Strip:
        return self.canvas.line(y, self.size.width, self.rich_style, focused=self.has_focus)

    # -- events of the trace -------------------------------------------------------------------------------

    def choose_event(self, row: int | None) -> None:
        """Select an event, given as a row of the trace, and post :class:`Chose`; None = clear the selection."""
        self.state.mark_event(row)
        self.post_message(self.Chose(self, row))

    def show_event(self, row: int) -> None:
        """Select an event and scroll to it; not while lanes show a simulation."""
        if self.state.lanes is not None and self.state.lanes.replayed is None:
            trace = self.state.lanes.trace
            start, end = int(trace.starts[row]), int(trace.ends[row])
            self.state.go_to(start, end - start)
            self.choose_event(row)

    def show_next_event(self, bars: Bars, forward: bool) -> bool:
        """Select the first of the events that starts after the cursor, or the last before; False = there is none."""
        index = bars.next_start(self.state.cursor, forward)
        if index is not None:
            self.show_event(int(bars.rows[index]))
        return index is not None

    # -- keys ----------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        self.state.select(None)
        self.state.go_to(self.state.instant_beside(by))

    def action_select(self, by: int) -> None:
        self.state.select_to(self.state.instant_beside(by))

    def action_pan(self, share: float) -> None:
        self.state.set_view(self.state.view.panned(share))

    def action_lane(self, by: int) -> None:
        self.state.choose_lane(self.state.chosen + by)

    def action_edge(self, last: bool) -> None:
        self.state.go_to(self.state.view.last - 1 if last else self.state.view.first)

    def action_event(self, forward: bool) -> None:
        if self.state.lane is not None:
            self.show_next_event(self.state.lane.bars, forward)

    def action_open(self) -> None:
        row = self.state.event_under_cursor()
        if row is None:
            self.notify("no event of this lane under the cursor; , and . go to one", timeout=3)
        else:
            self.choose_event(row)
            self.post_message(self.Opened(row))

    def action_search(self) -> None:
        self.post_message(self.SearchWanted(self))

    on_worker_state_changed = notify_worker_error

    # -- mouse ---------------------------------------------------------------------------------------------

    def _instant_at(self, x: int, view: Viewport) -> int:
        return view.instant_of(max(0, min(x - self.label_cells, view.columns - 1)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start to drag: in the lanes, pan; on the axis or with shift or ctrl, select; on the map, center the view."""
        state, lane = self.state, self.state.lane_at(event.y)
        if state.map_lines and event.y == 0:
            self._drag = _Drag("map", event.x, state.view)
            self._center(event.x)
        elif lane is None or event.shift or event.ctrl:
            self._drag = _Drag("select", event.x, state.view)
            state.select(None)
            state.go_to(self._instant_at(event.x, state.view))
        else:
            self._drag = _Drag("pan", event.x, state.view)
            state.choose_lane(lane)
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        drag = self._drag
        if drag is None:
            return
        if drag.action == "map":
            self._center(event.x)
        elif drag.action == "select":
            self.state.select_to(self._instant_at(event.x, self.state.view))
        elif event.x != drag.x or drag.moved:
            drag.moved = True
            self.state.set_view(drag.view.panned((drag.x - event.x) / drag.view.columns))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End dragging; if the mouse was not moved, select the event under the pointer."""
        drag, self._drag, self.state.anchor = self._drag, None, None
        self.release_mouse()
        if drag is not None and drag.action == "pan" and not drag.moved:
            self.state.select(None)
            self.state.go_to(self._instant_at(event.x, self.state.view))
            self.choose_event(self.state.event_under_cursor())

    def _center(self, x: int) -> None:
        """Center the view at a position of the map."""
        view = self.state.view
        at = self._instant_at(x, Viewport.over(view.first, view.last, view.columns))
        self.state.set_view(view.over_range(at - view.span // 2, at - view.span // 2 + view.span))

    def on_click(self, event: events.Click) -> None:
        """Open a double-clicked event."""
        if event.chain == 2:
            self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer; with shift, pan back."""
        self._wheel(event, _WHEEL_ZOOM, -0.1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out at the pointer; with shift, pan forward."""
        self._wheel(event, 1 / _WHEEL_ZOOM, 0.1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self.action_pan(-0.1)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self.action_pan(0.1)

    def _wheel(self, event: events.MouseEvent, factor: float, share: float) -> None:
        event.stop()
        if event.shift:
            self.action_pan(share)
            return
        view = self.state.view
        self.state.set_view(view.zoomed(factor, self._instant_at(event.x, view)))


class SearchLine(Input):
    """The input of a search in a timeline; hidden until it is opened."""

    DEFAULT_CSS = """
    SearchLine { height: 1; border: none; background: $surface; display: none; }
    SearchLine, SearchLine.-textual-compact { padding: 0 1; }
    SearchLine:focus { border: none; background-tint: transparent 0%; }
    SearchLine.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "cancel", "Cancel the search", id="prompt.give_up", group="Search")
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(placeholder="search the names of all events", compact=True, id=id)
        self._timeline: Timeline | None = None

    def ask(self, timeline: Timeline) -> None:
        """Open the input for a timeline, with its current search."""
        self._timeline = timeline
        self.value = timeline.state.search.needle if timeline.state.search is not None else ""
        self.add_class("-open")
        self.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search; without text, clear the search."""
        event.stop()
        self._close(event.value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Stop the message, which the screen's filter would handle."""
        event.stop()

    def action_give_up(self) -> None:
        self._close("")

    def _close(self, text: str) -> None:
        self.remove_class("-open")
        if self._timeline is None:
            return
        self._timeline.focus()
        if text:
            self._timeline.navigation.search(text)
        else:
            self._timeline.navigation.end_search()
