"""The view of a trace: facts and main finding at the top, then the timeline, then a tab for each analysis."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.getters import app, query_one
from textual.message import Message
from textual.timer import Timer

from tuiprof.errors import SessionError
from tuiprof.model.intervals import Window
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.tui.answers.answer_pane import AnswerPane, AnswerTables
from tuiprof.tui.answers.evidence import FOLLOW_DELAY_S, Evidence
from tuiprof.tui.answers.view import EVENTS
from tuiprof.tui.dialogs.dialog import (
    ColumnsScreen,
    PickScreen,
    ReadingScreen,
    answer_paragraphs,
    trust_paragraphs,
)
from tuiprof.tui.dialogs.export import ExportScreen
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.terminal.terminal_app import TerminalApp, notify_worker_error
from tuiprof.tui.timeline.lanes import Lanes, Lost
from tuiprof.tui.timeline.navigation import KEYS
from tuiprof.tui.timeline.state import Search, Viewport, later_by, moved
from tuiprof.tui.timeline.timeline import SearchLine, Timeline
from tuiprof.tui.trace import view as trace_view
from tuiprof.tui.trace.head import FindingHead, TraceHead
from tuiprof.tui.trace.work import Survey, TraceWork
from tuiprof.tui.widgets.bars import TabBar
from tuiprof.tui.widgets.table import VirtualTable


class TraceView(Vertical):
    """Shows one trace. Analyses run in a worker, and their results are cached for each window.

    While the file is being read, the view shows the part read so far. Only the analysis in the open tab runs then, and
    the whole view is updated at once when more was read. The first analysed step is ``step``, None = the whole trace;
    the content of the first frame is ``found``, None = computed after mounting.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Left(Message):
        """The user closes the trace."""

    class CompareWanted(Message):
        """The user wants to compare the trace with another one."""

    app = app(TerminalApp)
    head = query_one(TraceHead)
    timeline = query_one(Timeline)
    pane = query_one(AnswerPane)
    evidence = query_one(Evidence)

    def __init__(
        self, trace: Trace, part: Progress | None = None, step: int | None = None, found: Survey | None = None
    ) -> None:
        super().__init__()
        self.work = TraceWork(self, trace, part, found)
        self.window = Window()  # the analysed range
        self.tabs = self.work.results.names  # the analyses in tab order, then the table of events
        self._found = found
        self._step = step  # to go to once it is known
        self._finding = 0  # index of the finding in the head
        self._follow_timer: Timer | None = None
        # Trace, window and finding for which the lost time was requested.
        self._located: tuple[object, ...] = ()
        self._listed, self._unavailable = list(self.tabs), list[str]()  # tabs in the bar; tabs behind "more"
        # Captured lanes and their view, while a simulated step is shown.
        self._captured_lanes: tuple[Lanes, Viewport] | None = None
        self._tab_chosen = False  # whether the user opened or used the current tab: it then stays open

    def compose(self) -> ComposeResult:
        yield TraceHead(id="trace-head")
        yield FindingHead(id="trace-verdict")
        yield Timeline(id="timeline")
        yield SearchLine(id="search")
        yield TabBar(id="tabs")
        yield Evidence(self.trace, id="evidence")

    def on_mount(self) -> None:
        if not self.is_whole:
            return
        if self._found is not None:
            self.timeline.state.show(self._found.lanes)
        self.head.show(self.trace, self.work.trust, self.work.part)
        self._open_available()
        self._show_answer()
        self.pane.take_focus()
        self.work.start(self.window)
        self._go_to_requested_step()

    @property
    def is_whole(self) -> bool:
        """Whether all parts are there: if the application exits meanwhile, what is mounted gets no children."""
        return bool(self.query(AnswerTables))

    @property
    def trace(self) -> Trace:
        return self.work.results.trace

    @property
    def current(self) -> str:
        return self.work.current

    def on_key(self) -> None:
        """Keep the current tab open once the user works in it."""
        self._tab_chosen |= self.pane.has_focus_within

    on_mouse_down = on_key

    def on_resize(self, event: events.Resize) -> None:
        """Size the timeline, and hide less important parts on a small screen."""
        width, height = event.size
        # At once, as each change styles all that is inside anew.
        self.update_classes(
            {"-narrow": width < 120, "-tiny": height < 15, "-tall": height >= 33, "-short": height < 30}
        )
        self.query_one(FindingHead).allow(3 if height < 15 else 5 if height < 22 else 6)
        self._size_timeline(height)

    def _size_timeline(self, height: int) -> None:
        state = self.timeline.state
        self.timeline.styles.height = trace_view.timeline_lines(
            height, state.lane_count if state.lanes is not None else 4
        )

    # -- results -------------------------------------------------------------------------------------------

    def replace_trace(self, trace: Trace, part: Progress | None) -> None:
        """Switch to a larger part of the file once its content is computed."""
        search = self.timeline.state.search
        self.work.replace(trace, part, self.window, search.needle if search is not None else "")

    on_worker_state_changed = notify_worker_error

    def on_trace_work_sketched(self, message: TraceWork.Sketched) -> None:
        """Show the sketch, unless the exact timeline is ready."""
        if self.timeline.state.lanes is None:
            self.timeline.state.show(message.lanes)
            self._size_timeline(self.size.height)

    def on_trace_work_surveyed(self, message: TraceWork.Surveyed) -> None:
        """Show timeline and trust line or, for a larger part of the file, everything."""
        found = message.survey
        more = found.results is not self.work.results
        by = later_by(self.trace, found.results.trace) if more else 0
        with self.app.batch_update():
            self.work.use(found, message.part)
            self._captured_lanes = None
            if more:
                self.window = moved(self.window, by)
                self.evidence.replace_trace(self.trace)
            self._show_lanes(found.lanes, by, message.search)
            self.timeline.state.set_window(self.window)
            self.head.show(self.trace, self.work.trust, self.work.part)
            if more:
                self._show_answer()
        if more:
            self.work.start(self.window)
        self._go_to_requested_step()

    def _show_lanes(self, lanes: Lanes, by: int, search: Search | None) -> None:
        """Show the lanes, which are later by ``by`` than the previous ones, and search again."""
        timeline = self.timeline
        before = timeline.state.search
        timeline.state.replace(lanes, by)
        if before is not None:
            if search is not None and search.needle == before.needle:
                timeline.state.set_search(search)
            else:
                timeline.navigation.search(before.needle, go=False)
        self._size_timeline(self.size.height)

    def on_trace_work_trusted(self, message: TraceWork.Trusted) -> None:
        self.work.trust = message.trust
        self.head.show(self.trace, self.work.trust, self.work.part)

    def on_trace_work_answered(self, message: TraceWork.Answered) -> None:
        if message.window == self.window:
            self._open_evidence()
            self._open_available()
            self._show_answer()

    def _open_evidence(self) -> None:
        """Open the tab with the evidence of the main finding, once, unless the user has chosen a tab."""
        if self._tab_chosen or self.evidence.detail_open or self.work.part is not None:
            return
        if (tab := trace_view.tab_to_open(self.work.results, self.window)) in self.tabs:
            self._tab_chosen = True
            self._open(tab)

    def _open_available(self) -> None:
        """Open the first available tab if the current one is not, unless the user has chosen it."""
        results, window = self.work.results, self.window
        if not self._tab_chosen and isinstance(results.get(self.current, window), Unavailable):
            self._open(
                next(name for name in self.tabs if not isinstance(results.get(name, window), Unavailable))
            )

    def _show_answer(self) -> None:
        results, window, current, part = self.work.results, self.window, self.current, self.work.part
        top = trace_view.headline(results, window, current, None if part is None else part.share)
        shown = self._show_head(top)
        answer = results.get(current, window)
        other = (current, answer) != (self.pane.tab, self.pane.answer)
        self.pane.show(
            current,
            answer,
            question=trace_view.question_of(current),
            verdict=not self._is_in_head(current) if shown else not top.of_current,
            advice=results.get("advice", window),
        )
        if other and self._lists_findings:
            self.pane.table.go_to(self._finding)
        tabs, self._unavailable = trace_view.tabs_of(results, window, current)
        self._listed = [tab.name for tab in tabs]
        more = ("M", len(self._unavailable)) if self._unavailable else None
        remarks = ["as captured"] if self.work.as_captured else []
        remarks += [text] if (text := trace_view.window_text(self.trace, window)) else []
        self.query_one(TabBar).show(tabs, current, " · ".join(remarks), more)
        self.refresh_bindings()

    @property
    def findings(self) -> list[trace_view.Finding]:
        """Findings of the advice in this window; empty until they are computed."""
        return trace_view.findings_of(self.work.results.get("advice", self.window))

    @property
    def finding(self) -> trace_view.Finding | None:
        """The finding in the head; None = there are no findings."""
        found = self.findings
        return found[min(self._finding, len(found) - 1)] if found else None

    @property
    def _lists_findings(self) -> bool:
        """Whether the table in the open tab is the list of findings."""
        table = self.pane.current_table
        return self.pane.tab == "advice" and table is not None and table.key == "findings"

    def on_virtual_table_highlighted(self, message: VirtualTable.Highlighted) -> None:
        """Follow the cursor in the list of findings once it has stopped."""
        message.stop()
        if self._follow_timer is not None:
            self._follow_timer.stop()
        self._follow_timer = self.set_timer(FOLLOW_DELAY_S, self._follow)

    def _follow(self) -> None:
        """Show the finding under the cursor in the head."""
        index = self.pane.table.current
        if self._lists_findings and index is not None and index != self._finding:
            self._finding = index
            self._show_answer()
            self._replay_again()

    def _show_head(self, top: trace_view.Headline) -> bool:
        """Show the current finding, else the most urgent verdict; return whether it is a finding."""
        head, found = self.query_one(FindingHead), self.findings
        step_ns, captured_ns = trace_view.step_times_of(self.work.results.get("advice", self.window))
        self.head.show_steps(None if self.work.as_captured else step_ns, captured_ns)
        if not found or self.work.part is not None:
            head.show_headline(top)
            self._located = ()
            self._show_lost(None)
            return False
        self._finding = min(self._finding, len(found) - 1)
        head.show_finding(found[self._finding], self._finding + 1, len(found))
        lanes, located = self.timeline.state.lanes, (self.trace, self.window, self._finding)
        if lanes is not None and lanes.exact and self._located != located:
            self._located = located
            self.work.locate(self.window, self._finding)
        return True

    def on_trace_work_located(self, message: TraceWork.Located) -> None:
        found = self.finding
        if found is not None and (message.window, message.finding) == (self.window, self._finding):
            self._show_lost(Lost(message.losses, trace_view.is_bad(found)))
            self._size_timeline(self.size.height)

    def _show_lost(self, lost: Lost | None) -> None:
        """Show the lane of lost time among the captured lanes; None = hide it."""
        if self._captured_lanes is not None:
            lanes, view = self._captured_lanes
            self._captured_lanes = lanes.with_lost(lost), view
        else:
            self.timeline.state.show_lost(lost)

    # -- without the profiler, with the fix ----------------------------------------------------------------

    def action_as_captured(self) -> None:
        """Switch all results between steps without the profiler and steps as captured."""
        self.evidence.close_detail()
        self.work.switch()
        self._located = ()
        self._show_answer()
        self.work.start(self.window)
        self._replay_again()
        captured = self.work.as_captured
        steps = "as captured, including the profiler's overhead" if captured else "without the profiler"
        self.notify(f"results are for steps {steps}", timeout=4)

    def action_replay(self) -> None:
        """Show the simulated step without and with the finding's fix, or the capture again."""
        if not self._show_capture():
            self.work.replay(self.window, self._finding)

    def _replay_again(self) -> None:
        """Update a simulated step to the current finding."""
        if self._captured_lanes is not None and self.finding is not None:
            self.work.replay(self.window, self._finding)

    def _show_capture(self) -> bool:
        """Show the captured lanes instead of a simulated step; return whether one was shown."""
        captured, self._captured_lanes = self._captured_lanes, None
        if captured is None:
            return False
        self.timeline.state.show(captured[0])
        self.timeline.state.set_view(captured[1].resized(self.timeline.state.view.columns))
        self._size_timeline(self.size.height)
        return True

    def on_trace_work_replayed(self, message: TraceWork.Replayed) -> None:
        if (message.window, message.finding) != (self.window, self._finding):
            return
        if isinstance(message.lanes, str):
            self._show_capture()
            self.notify(
                f"the step cannot be simulated with this fix: {message.lanes}", severity="warning", timeout=8
            )
            return
        state = self.timeline.state
        if self._captured_lanes is None and state.lanes is not None:
            self._captured_lanes = state.lanes, state.view
        self.timeline.choose_event(None)
        state.show(message.lanes, message.lanes.replayed)
        self._size_timeline(self.size.height)

    def _is_in_head(self, tab: str) -> bool:
        """Return whether the head shows the same as the verdict of a tab.

        It does not if several findings of the tab save more together than the one in the head.
        """
        found, answer = self.finding, self.work.results.get(tab, self.window)
        if found is None or self.work.part is not None:
            return False
        if tab == "advice":  # its verdict is the first finding
            return True
        more = (
            isinstance(answer, Report)
            and trace_view.together_share(answer) > (found.share or 0.0) + trace_view.MIN_SHARE
        )
        return tab == trace_view.tab_of_rule(found.rule) and not more

    def action_finding(self, by: int) -> None:
        """Show the next (1) or previous (-1) finding, and the tab with its evidence."""
        if found := self.findings:
            self._finding = (self._finding + by) % len(found)
            tab = trace_view.tab_of_rule(found[self._finding].rule)
            if tab in self.tabs:
                self._open(tab)
            self._show_answer()
            self._replay_again()

    def action_show_finding(self) -> None:
        found = self.finding
        if found is not None and found.event is not None:
            self._show_capture()
            self.timeline.show_event(found.event)

    def action_copy_fix(self) -> None:
        if (found := self.finding) is not None:
            self.app.copy_to_clipboard(found.fix)
            self.notify(f"copied: {found.fix}", timeout=5)

    def action_prove(self) -> None:
        if (found := self.finding) is not None and found.prove:
            self.app.copy_to_clipboard(found.prove)
            self.notify(f"copied the command that measures it: {found.prove}", timeout=8)

    # -- window --------------------------------------------------------------------------------------------

    def set_window(self, window: Window) -> None:
        self.window = window
        self.timeline.state.set_window(window)
        self.evidence.close_detail()
        self._show_answer()
        self.work.start(window)

    def action_window(self) -> None:
        """Analyse only the selection; without one, the whole trace or, if that is analysed, the step at the cursor."""
        state = self.timeline.state
        if (chosen := state.chosen_range) is not None:
            state.clear_range()
            self.set_window(Window(*chosen))
        elif not self.window.whole:
            self.set_window(Window())
        elif (index := self.timeline.navigation.step_at_cursor()) is not None:
            self.set_window(self.trace.steps.window(index))
        else:
            self.notify(
                "select a range with shift+← → or by dragging on the axis, or put the cursor in a step",
                timeout=4,
            )

    def _go_to_requested_step(self) -> None:
        """Analyse and show the step requested at the start, once it is known."""
        if self._step is None or self.timeline.state.lanes is None:
            return
        numbers = self.trace.steps.numbers.tolist()
        if self._step in numbers:
            window = self.trace.steps.window(numbers.index(self._step))
            self.set_window(window)
            low, high = self.trace.bounds(window)
            self.timeline.state.go_to(low)
            self.timeline.state.fit(low, high)
        elif self.work.part is None:
            self.notify(f"this trace has no step {self._step}", severity="warning", timeout=6)
        else:
            return  # it may be in the rest of the file
        self._step = None

    # -- tabs and tables -----------------------------------------------------------------------------------

    def open_tab(self, name: str) -> None:
        """Open a tab, on the user's request."""
        if name in self.tabs:
            self._tab_chosen = True
            self._open(name)

    def _open(self, name: str) -> None:
        if name != self.current:
            self.work.current = name
            self.evidence.close_detail()
            self._show_answer()
            if not self.timeline.has_focus:
                self.pane.take_focus()
            if self.work.part is not None:
                self.work.start(self.window)

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        self.open_tab(message.name)

    def action_next_tab(self, by: int) -> None:
        """Open the next (1) or previous (-1) available tab, wrapping around."""
        self.open_tab(self._listed[(self._listed.index(self.current) + by) % len(self._listed)])

    def action_more_tabs(self) -> None:
        names = list(self._unavailable)
        answers = [self.work.results.get(name, self.window) for name in names]
        texts = [
            f"{trace_view.title_of(name)}: {answer.reason if isinstance(answer, Unavailable) else ''}"
            for name, answer in zip(names, answers, strict=True)
        ]

        dialog = PickScreen("not available in this trace; enter shows the remedy", texts)
        self.app.ask(dialog, lambda index: self.open_tab(names[index]))

    on_tab_bar_more_wanted = action_more_tabs

    def action_open(self, tab: str | int) -> None:
        self.open_tab(tab if isinstance(tab, str) else self.tabs[tab - 1])

    def action_table(self) -> None:
        self.pane.next_table()

    def action_filter(self) -> None:
        self.pane.open_filter()

    def action_columns(self) -> None:
        table = self.pane.current_table
        if table is None:
            return

        def chosen(keys: list[str]) -> None:
            if table is not self.pane.current_table:
                return
            try:
                self.pane.show_columns(table, keys or None)
            except SessionError as error:
                self.notify(f"the choice is not kept: {error.message}", severity="error")

        columns = [column for column in table.columns if column.key != "event"]
        self.app.ask(ColumnsScreen(columns, self.pane.shown_columns(table)), chosen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self.is_mounted:
            return True
        if action == "open":
            return parameters[0] in (*self.tabs, *range(1, len(self.tabs) + 1))
        if action == "finding":
            return len(self.findings) > 1
        if action == "more_tabs":
            return bool(self._unavailable)
        if action == "as_captured":
            return self.work.part is None and bool(self.trace.device_indices)
        if action == "replay":
            return self.work.part is None and self.finding is not None
        if action in ("copy_fix", "prove", "show_finding"):
            found = self.finding
            return found is not None and (action != "prove" or bool(found.prove))
        if action == "timeline" and parameters[0] in ("sync", "follow"):
            state = self.timeline.state
            waits = state.search is not None or state.lanes is None or bool(len(state.lanes.syncs))
            return waits or (parameters[0] == "follow" and bool(self.trace.device_indices))
        if action == "table":
            answer = self.pane.answer
            return isinstance(answer, Report) and len(answer.tables) > 1
        if action == "compare":
            return self.work.part is None and self.trace.info.path is not None
        if action in ("filter", "columns"):
            return self.pane.current_table is not None
        return True

    def key_label(self, name: str) -> str:
        return self.timeline.navigation.key_label(name)

    # -- timeline and details ------------------------------------------------------------------------------

    def action_timeline(self, name: str, *arguments: float) -> None:
        getattr(self.timeline.navigation, name)(*arguments)
        self._size_timeline(self.size.height)  # the number of lanes may have changed

    def on_timeline_search_wanted(self, message: Timeline.SearchWanted) -> None:
        self.query_one(SearchLine).ask(message.timeline)

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        lanes = self.timeline.state.lanes
        if lanes is not None and lanes.stride > 1:  # the row is one of the sample
            self.notify("the exact timeline is not ready yet", timeout=3)
        else:
            self.evidence.open_event(message.row)

    def on_timeline_followed(self, message: Timeline.Followed) -> None:
        if self.evidence.detail_open:
            self.evidence.open_event(message.row, focus=False)

    def on_evidence_analysis_wanted(self, message: Evidence.AnalysisWanted) -> None:
        for name in self.tabs:
            if trace_view.title_of(name) == message.title:
                self.open_tab(name)

    def on_evidence_event_shown(self, message: Evidence.EventShown) -> None:
        state = self.timeline.state
        if state.lanes is not None and state.lanes.exact and message.row != state.event:
            self.timeline.show_event(message.row)

    # -- rules, export, closing ----------------------------------------------------------------------------

    def action_rules(self) -> None:
        paragraphs = answer_paragraphs(self.pane.answer, trace_view.question_of(self.current))
        self.app.push_screen(ReadingScreen("rules and figures", paragraphs))

    def action_trust(self) -> None:
        if self.work.trust is not None:
            paragraphs = trust_paragraphs(self.work.trust)
            self.app.push_screen(ReadingScreen("limitations of this trace", paragraphs))

    on_trace_head_trust_wanted = action_trust

    def action_export(self) -> None:
        answers = self.work.results.answers(self.window)
        # The table of events is exported only as shown: all events are the trace itself.
        current = self.work.results.get(self.current, self.window) if self.current != EVENTS else None
        if answers:
            self.app.push_screen(ExportScreen(self.trace, current, answers, self.pane.as_shown()))
        else:
            self.notify("no results yet", timeout=3)

    def action_compare(self) -> None:
        self.post_message(self.CompareWanted())

    def action_escape(self) -> None:
        """Leave the simulation, details, filter, search, selection or window; without any, close the trace."""
        timeline = self.timeline
        if (
            self._show_capture()
            or self.evidence.close_detail()
            or self.pane.clear_filter()
            or timeline.navigation.end_search()
        ):
            return
        if timeline.state.chosen_range is not None:
            timeline.state.clear_range()
        elif not self.window.whole:
            self.set_window(Window())
        elif timeline.state.event is not None:
            timeline.choose_event(None)
        elif len(self.app.screen_stack) > 1:
            self.post_message(self.Left())
