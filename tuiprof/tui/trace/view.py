"""A trace on the screen: head, verdict, timeline, and the analyses below."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.worker import Worker, get_current_worker

from tuiprof import analyses
from tuiprof.analyses.shared.step_times import step_period_ns
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.model.window import Window
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.answers.evidence import Evidence
from tuiprof.tui.dialogs.columns import ColumnsScreen
from tuiprof.tui.dialogs.export import ExportScreen
from tuiprof.tui.dialogs.paragraphs import answer_paragraphs, trust_paragraphs
from tuiprof.tui.dialogs.reading import ReadingScreen
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.terminal.worker_errors import tell_worker_error
from tuiprof.tui.timeline import lane_sketch
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.events_table import EVENTS
from tuiprof.tui.timeline.keys import KEYS
from tuiprof.tui.timeline.navigation import TraceTime
from tuiprof.tui.timeline.readout import offset_text
from tuiprof.tui.timeline.results import Results, later_by, moved
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.trace.part import Survey, TracePart
from tuiprof.tui.trace.trust import TraceHead
from tuiprof.tui.widgets.prompt_line import PromptLine
from tuiprof.tui.widgets.tab_bar import Tab, TabBar
from tuiprof.tui.widgets.verdict import MARKS, VerdictLine, most_important


class TraceView(TracePart):
    """Shows one trace; every analysis runs in a worker and its answer is kept for its window.

    While the file is still being read, it shows the part read so far: only the analysis that is looked at is
    worked out then, and everything on the screen is replaced together once more was read.

    Args:
        trace: The trace.
        part: How far in its file the trace reaches; None = it is whole.
        step: Number of the step to look at first; None = the whole trace.
        found: What the first picture shows; None = it is worked out once the screen stands.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Answered(Message):
        """An analysis is done; its answer is in the results."""

        def __init__(self, name: str, window: Window) -> None:
            super().__init__()
            self.name = name
            self.window = window

    class Left(Message):
        """The user wants to leave the trace."""

    class CompareWanted(Message):
        """The trace is to be compared with another."""

    def __init__(
        self,
        trace: Trace,
        part: Progress | None = None,
        step: int | None = None,
        found: Survey | None = None,
    ) -> None:
        super().__init__(trace, part, step)
        self._found = found
        self.results = found.results if found is not None else Results(trace, list(analyses.available()))
        self.tabs = self.results.names
        self.current = self.tabs[0]

    def compose(self) -> ComposeResult:
        """Head, verdict, timeline, tabs, answer and detail side by side."""
        yield TraceHead(id="trace-head")
        yield VerdictLine(id="trace-verdict")
        yield Timeline(id="timeline")
        yield PromptLine(placeholder="search the names of all events", compact=True, id="search")
        yield TabBar(id="tabs")
        yield Evidence(self.trace, id="evidence")

    def on_mount(self) -> None:
        """Show what there is, and start working everything else out."""
        if self._found is not None:
            self._trust = self._found.trust
            self.timeline.replace(self._found.lanes, 0)
        self._show_head()
        self._show_answer()
        self.pane.take_focus()
        self._start_work()
        self._look_at_step()

    @property
    def pane(self) -> AnswerPane:
        """The answer pane."""
        return self.query_one(AnswerPane)

    @property
    def evidence(self) -> Evidence:
        """Answer and detail."""
        return self.query_one(Evidence)

    # -- layout --------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Give the timeline the lanes there is room for: four at 24 lines, none where nothing else would fit."""
        height = event.size.height
        self.set_class(event.size.width < 120, "-narrow")
        self.set_class(height < 15, "-tiny")
        self.set_class(height >= 33, "-tall")
        self.set_class(height < 30, "-short")
        self._size_timeline(height)

    def _size_timeline(self, height: int) -> None:
        lanes = self.timeline.lanes
        most = len(lanes.lanes) if lanes is not None else 4
        room = 2 if height < 20 else 4 + max(0, height - 23) // 3
        # The map of the whole has a line of its own where there is one to spare.
        self.timeline.styles.height = max(1, min(room, most)) + 2 + (height >= 30)

    # -- work ----------------------------------------------------------------------------------------------

    def _start_work(self) -> None:
        self._run(partial(self._work, self.window), "analyses")

    def _work(self, window: Window) -> None:
        """In a thread: first what the screen needs, then the analyses, the one looked at first."""
        worker, results = get_current_worker(), self.results
        if self._trust is None:
            if len(results.trace) >= lane_sketch.WORTH_IT:
                self.post_message(self.Sketched(lane_sketch.sketch(results.trace)))
            trust = results.trace.trust
            step_period_ns(results.trace)  # remembered, for the head
            found = Survey(results, lane_builder.build(results.trace), trust)
            self.post_message(self.Surveyed(found, self.part))
        while not worker.is_cancelled:
            name = results.next_wanted(self.current, window)
            if name is None or (self.part is not None and name != self.current):
                return
            results.work_out(name, window)
            self.post_message(self.Answered(name, window))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Tell what went wrong in a worker."""
        tell_worker_error(self, event)

    def on_trace_part_sketched(self, message: TracePart.Sketched) -> None:
        """Show a first picture, unless the exact one is there."""
        if self.timeline.lanes is None:
            self.timeline.replace(message.lanes, 0)
            self._size_timeline(self.size.height)

    def on_trace_part_surveyed(self, message: TracePart.Surveyed) -> None:
        """Show the timeline and the trust line; of another trace, everything."""
        found = message.survey
        self._trust = found.trust
        if found.results is self.results:
            self.show_lanes(found.lanes)
            self._size_timeline(self.size.height)
            self._show_head()
            self._look_at_step()
            return
        by = later_by(self.trace, found.results.trace)
        with self.app.batch_update():
            self.results, self.trace, self.part = found.results, found.results.trace, message.part
            self.window = moved(self.window, by)
            self.evidence.take(self.trace)
            self.show_lanes(found.lanes, by, message.search)
            self.timeline.set_window(self.window)
            self._size_timeline(self.size.height)
            self._show_head()
            self._show_answer()
        self._start_work()
        self._look_at_step()

    def on_trace_view_answered(self, message: Answered) -> None:
        """Show an answer when it is the one looked at; the verdict on top may change with any."""
        if message.window == self.window:
            self._show_answer()

    def _show_answer(self) -> None:
        top = most_important(self.results.reports(self.window))
        so_far = "" if self.part is None else f"so far, {self.part.share:.0%} read: "
        verdict = self.query_one("#trace-verdict", VerdictLine)
        if top is not None:
            place = self.tabs.index(top.analysis) + 1 if top.analysis in self.tabs else 0
            pointer = f"{place}▸" if place and top.analysis != self.current else ""
            verdict.show(so_far + top.verdict.sentence, top.verdict.level, pointer)
        else:
            verdict.show(
                "working out what holds this trace back …"
                if self._pending()
                else "no analysis can answer on this trace"
            )
        question = analyses.available()[self.current].question if self.current != EVENTS else ""
        answer = self.results.get(self.current, self.window)
        same = top is not None and isinstance(answer, Report) and answer.verdict == top.verdict
        advice = self.results.get("advice", self.window)
        self.pane.show(self.current, answer, question=question, verdict=not same, advice=advice)
        self._show_tabs()
        self.refresh_bindings()

    def _pending(self) -> bool:
        return self.results.next_wanted("", self.window) is not None

    def _show_tabs(self) -> None:
        shown = []
        for name in self.tabs:
            title = "Events" if name == EVENTS else sanitize(analyses.available()[name].title)
            answer = self.results.get(name, self.window)
            mark, role = "", "dim"
            if isinstance(answer, Unavailable):
                mark = "–"
            elif isinstance(answer, Report):
                level = answer.verdict.level
                mark, role = ("", "dim") if level == "info" else (MARKS[level], level)
            else:
                mark = "…"
            shown.append(Tab(name, title, mark, role))
        remark = "" if self.window.whole else f"window: {self.window_label}"
        self.query_one(TabBar).show(shown, self.current, remark)

    @property
    def window_label(self) -> str:
        """What to call the window."""
        if self.window.label or self.window.whole:
            return sanitize(self.window.label) or "whole trace"
        low, high = self.trace.bounds(self.window)
        first, precision = self.trace.span[0], max((high - low) // 100, 1)
        return f"{offset_text(low - first, precision)} to {offset_text(high - first, precision)}"

    # -- tabs and tables -----------------------------------------------------------------------------------

    def open_tab(self, name: str) -> None:
        """Open a tab.

        Args:
            name: Name of an analysis, or of the table of events.
        """
        if name in self.tabs and name != self.current:
            self.current = name
            self.evidence.close_detail()
            self._show_answer()
            if not self.timeline.has_focus:
                self.pane.take_focus()
            if self.part is not None:
                self._start_work()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """Open the tab that was clicked."""
        self.open_tab(message.name)

    def action_tab(self, number: int) -> None:
        """Open a tab by its digit."""
        if number <= len(self.tabs):
            self.open_tab(self.tabs[number - 1])

    def action_next_tab(self, by: int) -> None:
        """Open the next tab, or the one before, around the ends."""
        self.open_tab(self.tabs[(self.tabs.index(self.current) + by) % len(self.tabs)])

    def action_open(self, name: str) -> None:
        """Open a tab by its name."""
        self.open_tab(name)

    def action_table(self) -> None:
        """Show the next table of this analysis."""
        self.pane.next_table()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.pane.open_filter()

    def action_columns(self) -> None:
        """Choose which columns show."""
        table = self.pane.current_table
        if table is None:
            return

        def take(keys: list[str] | None) -> None:
            if keys is None or table is not self.pane.current_table:
                return
            try:
                self.pane.show_columns(table, keys or None)
            except OSError as error:
                self.notify(f"the choice cannot be kept: {error.strerror or error}", severity="error")

        columns = [column for column in table.columns if column.key != "event"]
        self.app.push_screen(ColumnsScreen(columns, self.pane.shown_columns(table)), take)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work now; the others are not shown."""
        if not self.is_mounted:
            return True
        answer = self.pane.answer
        if action == "tab":
            return isinstance(parameters[0], int) and parameters[0] <= len(self.tabs)
        if action == "open":
            return parameters[0] in self.tabs
        if action == "table":
            return isinstance(answer, Report) and len(answer.tables) > 1
        if action == "compare":
            return self.part is None and self.trace.info.path is not None
        if action in ("filter", "columns"):
            return self.pane.current_table is not None
        return True

    def set_window(self, window: Window) -> None:
        """Look at a part of the trace in all analyses.

        Args:
            window: The part.
        """
        self.window = window
        self.timeline.set_window(window)
        self.evidence.close_detail()
        self._show_answer()
        self._start_work()

    # -- details, windows of text, leaving -----------------------------------------------------------------

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        """Show an event of the timeline in the detail pane."""
        lanes = self.timeline.lanes
        if lanes is not None and lanes.stride > 1:  # its rows are those of the sample
            self.notify("the exact picture is still being worked out", timeout=3)
        else:
            self.evidence.open_event(message.row)

    def on_evidence_event_shown(self, message: Evidence.EventShown) -> None:
        """Let the timeline show where that event is."""
        lanes = self.timeline.lanes
        if lanes is not None and lanes.stride == 1 and message.row != self.timeline.event:
            self.timeline.show_event(message.row)

    def on_trace_time_followed(self, message: TraceTime.Followed) -> None:
        """Let open details follow."""
        message.stop()
        if self.evidence.detail_open:
            self.evidence.open_event(message.row, focus=False)

    def action_rules(self) -> None:
        """Show definitions, rules and thresholds of this analysis."""
        answer = self.pane.answer
        question = "" if self.current == EVENTS else analyses.available()[self.current].question
        self.app.push_screen(ReadingScreen("rules and figures", answer_paragraphs(answer, question)))

    def action_trust(self) -> None:
        """Show all remarks."""
        if self._trust is not None:
            self.app.push_screen(ReadingScreen("what this trace cannot tell", trust_paragraphs(self._trust)))

    def on_trace_head_trust_wanted(self) -> None:
        """Show all remarks."""
        self.action_trust()

    def action_export(self) -> None:
        """Write reports to a file."""
        answers = self.results.answers(self.window)
        # Of the events only what shows can be written: whole they are the trace itself.
        current = self.results.get(self.current, self.window) if self.current != EVENTS else None
        if answers:
            self.app.push_screen(ExportScreen(self.trace, current, answers, self.pane.as_shown()))
        else:
            self.notify("nothing is worked out yet", timeout=3)

    def action_compare(self) -> None:
        """Choose what to compare this trace with."""
        self.post_message(self.CompareWanted())

    def action_escape(self) -> None:
        """Close the innermost thing that is open; when nothing is, go back to the screen before."""
        if self.evidence.close_detail() or self.pane.clear_filter():
            return
        if self.end_search():
            return
        if self.timeline.chosen_range is not None:
            self.timeline.mark = None
            self.timeline.select(None)
        elif not self.window.whole:
            self.set_window(Window())
        elif self.timeline.event is not None:
            self.timeline.take_event(None)
        elif len(self.app.screen_stack) > 1:
            self.post_message(self.Left())
