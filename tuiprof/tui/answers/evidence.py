"""The result of an analysis, and beside it details of a row or an event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.getters import query_one
from textual.message import Message
from textual.timer import Timer
from textual.worker import get_current_worker

from tuiprof.model.trace import Trace
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.answers.view import (
    EVENTS,
    EventDetail,
    RowDetail,
    describe,
    event_rows,
    first_excerpt,
    row_detail_rows,
)
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.timeline.state import row_in
from tuiprof.tui.widgets.lines import Painted, Row
from tuiprof.tui.widgets.table import VirtualTable

#: What follows the cursor of a table does so when it has not moved for this long.
FOLLOW_DELAY_S: Final = 0.06


def _key(name: str, keys: str, action: str, label: str, tooltip: str, show: bool = True) -> Binding:
    return key(keys, action, label, tooltip, id=f"detail.{name}", group="Detail", show=show)


class DetailPane(VerticalScroll):
    """Shows details of a table row, an event, or both."""

    DEFAULT_CSS = """
    DetailPane {
        background: $background; border-left: solid $primary; padding: 0 1; scrollbar-size: 1 1;
        &:focus { border-left: solid $accent; }
        & > Painted { height: auto; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("link", "f", "link(0)", "launch ↔ work",
             "Go from a launch to its work, or from a sync to the work it waited for"),
        _key("link_last", "F", "link(-1)", "sync → delayed", "Go from a sync to the work it delayed, and back",
             False),
        _key("up", "u", "up", "enclosing", "Go to the enclosing event"),
        _key("back", "backspace", "back", "back", "Back to the previous event", False),
        _key("copy", "y", "copy", "copy raw", "Copy the raw event", False),
    ]  # fmt: skip

    @dataclass(eq=False)
    class Jump(Message):
        """The user goes to another event, given as a row of the trace."""

        row: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.event: EventDetail | None = None
        self.table_row: RowDetail | None = None
        self._trace: Trace | None = None
        self._history: list[int] = []

    def compose(self) -> ComposeResult:
        yield Painted()

    def show(self, trace: Trace, table_row: RowDetail | None, event: EventDetail | None) -> None:
        """Show a table row, an event, or a row with the event that represents it."""
        if event is not None and self.event is not None and event.row != self.event.row:
            self._history.append(self.event.row)
        self._trace, self.table_row, self.event = trace, table_row, event
        self.query_one(Painted).paint(self._draw)
        self.scroll_home(animate=False)

    def forget(self) -> None:
        """Forget the events shown so far, which are rows of a trace that was replaced."""
        self.event, self._history = None, []

    def action_link(self, index: int = 0) -> None:
        """Go to a linked event: 0 = the launch, the launched work or the awaited work; -1 = the last link."""
        if self.event is None:
            return
        if self.event.links:
            self.post_message(self.Jump(self.event.links[index].row))
        else:
            self.notify("this event is not linked to any other", timeout=3)

    def action_up(self) -> None:
        if self.event is None or self._trace is None:
            return
        enclosing = self._trace.ancestors(self.event.row)
        if enclosing:
            self.post_message(self.Jump(enclosing[0]))
        else:
            self.notify("no event encloses this one", timeout=3)

    def action_back(self) -> None:
        if self._history:
            row = self._history.pop()
            self.event = None  # do not add it to the history
            self.post_message(self.Jump(row))

    def action_copy(self) -> None:
        if self.event is not None and self.event.raw:
            self.app.copy_to_clipboard(self.event.raw)
            self.notify("raw event copied to the clipboard", timeout=2)

    # -- drawing -------------------------------------------------------------------------------------------

    def _draw(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        if self.table_row is not None:
            rows += row_detail_rows(self.table_row, width)
        if self.event is not None and self._trace is not None:
            if rows:
                rows += [[], [("its most expensive event", "title")]]
            rows += event_rows(self._trace, self.event, width)
        return rows


class Evidence(Horizontal):
    """The tables with the detail pane, whose content is collected in a worker."""

    @dataclass(eq=False)
    class EventShown(Message):
        """The detail pane shows another event, given as a row of the trace."""

        row: int

    @dataclass(eq=False)
    class AnalysisWanted(Message):
        """A row was opened that another analysis explains."""

        title: str

    pane = query_one(AnswerPane)
    detail = query_one(DetailPane)

    def __init__(self, trace: Trace, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._trace = trace
        self._follow_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield AnswerPane(id="answer")
        yield DetailPane(id="detail")

    @property
    def detail_open(self) -> bool:
        return self.has_class("-detail")

    def replace_trace(self, trace: Trace) -> None:
        """Switch to a larger part of the same file; details of an event stay open, details of a row are closed."""
        shown = self.detail.event if self.detail_open else None
        row = row_in(self._trace, trace, shown.row) if shown is not None else None
        self._trace = trace
        self.detail.forget()
        if row is None:
            self.close_detail()
        else:
            self.open_event(row, focus=False)

    def open_row(self, source: int, focus: bool) -> None:
        table_row = None if self.pane.tab == EVENTS else self.pane.row_detail(source)
        self._describe(table_row, self.pane.event_row(source), focus)

    def open_event(self, row: int, focus: bool = True) -> None:
        self._describe(None, row, focus)

    def close_detail(self) -> bool:
        """Close the detail pane; return whether it was open."""
        if not self.detail_open:
            return False
        if self._follow_timer is not None:
            self._follow_timer.stop()
        had_focus = self.detail.has_focus
        self.remove_class("-detail")
        self.pane.tables.set_row_in_detail(False)
        if had_focus:
            self.pane.take_focus()
        return True

    @work(thread=True, exclusive=True, group="detail")
    def _describe(self, table_row: RowDetail | None, row: int | None, focus: bool) -> None:
        """Collect details in a thread, because raw text and source are read from disk."""
        if table_row is not None:
            excerpt = first_excerpt([text for _, text in table_row.cells], near=self._trace.info.path)
            table_row = RowDetail(table_row.title, table_row.cells, excerpt)
        event = describe(self._trace, row) if row is not None else None
        if not get_current_worker().is_cancelled:
            self.call_later(self._show_detail, table_row, event, focus)

    on_worker_state_changed = notify_worker_error

    def _show_detail(self, table_row: RowDetail | None, event: EventDetail | None, focus: bool) -> None:
        self.add_class("-detail")
        self.pane.tables.set_row_in_detail(table_row is not None)
        self.detail.show(self._trace, table_row, event)
        if event is not None:
            self.post_message(self.EventShown(event.row))
        if focus:
            self.detail.focus()

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        """Open the row, or the analysis that explains it."""
        message.stop()
        if analysis := self.pane.more_in(message.source):
            self.post_message(self.AnalysisWanted(analysis))
        else:
            self.open_row(message.source, focus=True)

    def on_virtual_table_highlighted(self, message: VirtualTable.Highlighted) -> None:
        """Update an open detail pane once the cursor has stopped."""
        if isinstance(message, VirtualTable.Selected) or not self.detail_open or self.detail.has_focus:
            return
        if self._follow_timer is not None:
            self._follow_timer.stop()
        self._follow_timer = self.set_timer(FOLLOW_DELAY_S, partial(self.open_row, message.source, False))

    def on_detail_pane_jump(self, message: DetailPane.Jump) -> None:
        message.stop()
        self.open_event(message.row)
