"""The report and the details of the item under its cursor, side by side."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.timer import Timer
from textual.worker import Worker, get_current_worker

from tuiprof.model.trace import Trace
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.answers.detail import DetailPane, Finding
from tuiprof.tui.answers.event_detail import EventDetail, describe, first_excerpt
from tuiprof.tui.answers.results import EVENTS
from tuiprof.tui.terminal.worker_errors import tell_worker_error
from tuiprof.tui.timeline.state import row_in
from tuiprof.tui.widgets.table import VirtualTable

#: Delay after which the detail pane follows the cursor.
_REST_S = 0.06


class Evidence(Horizontal):
    """Couples the tables with the detail pane; details are gathered in a worker."""

    class EventShown(Message):
        """The detail pane shows another event.

        Attributes:
            row: Its row in the event table.
        """

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class ElsewhereWanted(Message):
        """A row was opened that another analysis explains."""

        def __init__(self, title: str) -> None:
            super().__init__()
            self.title = title

    class Described(Message):
        """Details are gathered.

        Attributes:
            finding: The row of a table, whole.
            event: The event.
            focus: Whether the pane was opened by the user, rather than following the cursor.
        """

        def __init__(self, finding: Finding | None, event: EventDetail | None, focus: bool) -> None:
            super().__init__()
            self.finding = finding
            self.event = event
            self.focus = focus

    def __init__(self, trace: Trace, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._trace = trace
        self._rest: Timer | None = None

    def compose(self) -> ComposeResult:
        """Table left, detail right."""
        yield AnswerPane(id="answer")
        yield DetailPane(id="detail")

    @property
    def pane(self) -> AnswerPane:
        """The answer pane."""
        return self.query_one(AnswerPane)

    @property
    def detail(self) -> DetailPane:
        """The detail pane."""
        return self.query_one(DetailPane)

    @property
    def detail_open(self) -> bool:
        """Whether the detail pane shows."""
        return self.has_class("-detail")

    def take(self, trace: Trace) -> None:
        """Look at more of the same file from now on; details of an event stay open, those of a finding are closed."""
        shown = self.detail.event if self.detail_open else None
        row = row_in(self._trace, trace, shown.row) if shown is not None else None
        self._trace = trace
        self.detail.forget()
        if row is None:
            self.close_detail()
        else:
            self.open_event(row, focus=False)

    def open_row(self, source: int, focus: bool) -> None:
        """Show a row of the table in the detail pane."""
        finding = None if self.pane.tab == EVENTS else self.pane.finding(source)
        self._gather(finding, self.pane.event_row(source), focus)

    def open_event(self, row: int, focus: bool = True) -> None:
        """Show an event in the detail pane."""
        self._gather(None, row, focus)

    def close_detail(self) -> bool:
        """Close the detail pane; return whether it was open."""
        if not self.detail_open:
            return False
        if self._rest is not None:
            self._rest.stop()
        had_focus = self.detail.has_focus
        self.remove_class("-detail")
        self.pane.tables.leave_to_detail(False)
        if had_focus:
            self.pane.take_focus()
        return True

    def _gather(self, finding: Finding | None, row: int | None, focus: bool) -> None:
        self.run_worker(
            partial(self._describe, finding, row, focus), thread=True, exclusive=True, group="detail"
        )

    def _describe(self, finding: Finding | None, row: int | None, focus: bool) -> None:
        """In a thread: nesting, raw text and source may take a moment."""
        if finding is not None:
            excerpt = first_excerpt([text for _, text in finding.cells], near=self._trace.info.path)
            finding = Finding(finding.title, finding.cells, excerpt)
        event = describe(self._trace, row) if row is not None else None
        if not get_current_worker().is_cancelled:
            self.post_message(self.Described(finding, event, focus))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Tell what went wrong in a worker."""
        tell_worker_error(self, event)

    def on_evidence_described(self, message: Described) -> None:
        """Show what was gathered."""
        message.stop()
        self.add_class("-detail")
        self.pane.tables.leave_to_detail(message.finding is not None)
        self.detail.show(self._trace, message.finding, message.event)
        if message.event is not None:
            self.post_message(self.EventShown(message.event.row))
        if message.focus:
            self.detail.focus()

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        """Open the row, or the analysis that explains it."""
        message.stop()
        if elsewhere := self.pane.elsewhere(message.source):
            self.post_message(self.ElsewhereWanted(elsewhere))
        else:
            self.open_row(message.source, focus=True)

    def on_virtual_table_highlighted(self, message: VirtualTable.Highlighted) -> None:
        """Let an open detail pane follow the cursor, once it rests."""
        message.stop()
        if isinstance(message, VirtualTable.Selected) or not self.detail_open or self.detail.has_focus:
            return
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(_REST_S, partial(self.open_row, message.source, False))

    def on_detail_pane_jump(self, message: DetailPane.Jump) -> None:
        """Show the event that was jumped to."""
        message.stop()
        self.open_event(message.row)
