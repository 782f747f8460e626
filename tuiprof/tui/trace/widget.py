"""A trace on the screen: head, verdict, timeline, and the analyses below."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.getters import query_one
from textual.message import Message
from textual.worker import Worker

from tuiprof.model.intervals import Window
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.answers.evidence import Evidence
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
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.timeline.lanes import Lanes, Lost
from tuiprof.tui.timeline.navigation import KEYS
from tuiprof.tui.timeline.state import Search, Viewport, later_by, moved
from tuiprof.tui.timeline.timeline import SearchLine, Timeline
from tuiprof.tui.trace.head import FindingHead, TraceHead
from tuiprof.tui.trace.view import (
    LEAST_SHARE,
    Finding,
    Headline,
    findings_of,
    headline,
    is_bad,
    question_of,
    step_times_of,
    tab_of_rule,
    tab_to_open,
    tabs_of,
    timeline_lines,
    title_of,
    together_share,
    window_text,
)
from tuiprof.tui.trace.work import Survey, TraceWork
from tuiprof.tui.widgets.bars import TabBar


class TraceView(Vertical):
    """Shows one trace; every analysis runs in a worker and its answer is kept for its window.

    While the file is still being read, it shows the part read so far: only the analysis that is open runs
    then, and everything on the screen is replaced together once more was read.

    Args:
        trace: The trace.
        part: How far in its file the trace reaches; None = it is whole.
        step: Number of the step to analyse first; None = the whole trace.
        found: Content of the first frame; None = computed once the view is mounted.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Left(Message):
        """The user wants to leave the trace."""

    class CompareWanted(Message):
        """The trace is to be compared with another."""

    head = query_one(TraceHead)
    timeline = query_one(Timeline)
    pane = query_one(AnswerPane)
    evidence = query_one(Evidence)

    def __init__(
        self,
        trace: Trace,
        part: Progress | None = None,
        step: int | None = None,
        found: Survey | None = None,
    ) -> None:
        super().__init__()
        self.work = TraceWork(self, trace, part, found)  # the results, and the workers that fill them
        self.window = Window()  # the part that is analysed
        self.tabs = self.work.results.names  # names of the analyses in tab order, and of the table of events
        self._found = found
        self._step = step
        self._finding = 0  # which of the findings the head shows
        # The finding for which the lost time is located, or being located.
        self._located: tuple[object, ...] = ()
        self._listed, self._apart = list(self.tabs), list[str]()  # in the line of tabs, and behind "more"
        # The lanes that were captured and what was seen of them, while a replayed step shows.
        self._captured_lanes: tuple[Lanes, Viewport] | None = None
        self._tab_chosen = False  # the user works in the open tab, or chose it: it stays open

    def compose(self) -> ComposeResult:
        """Head, verdict, timeline, tabs, answer and detail side by side."""
        yield TraceHead(id="trace-head")
        yield FindingHead(id="trace-verdict")
        yield Timeline(id="timeline")
        yield SearchLine(id="search")
        yield TabBar(id="tabs")
        yield Evidence(self.trace, id="evidence")

    def on_mount(self) -> None:
        """Show what there is, and start working everything else out."""
        if self._found is not None:
            self.timeline.state.show(self._found.lanes)
        self.head.show(self.trace, self.work.trust, self.work.part)
        self._leave_unavailable()
        self._show_answer()
        self.pane.take_focus()
        self.work.start(self.window)
        self._look_at_step()

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self.work.results.trace

    @property
    def current(self) -> str:
        """Name of the tab that is open."""
        return self.work.current

    def on_key(self) -> None:
        """Keep the tab in which the user works."""
        self._tab_chosen |= self.pane.has_focus_within

    on_mouse_down = on_key

    def on_resize(self, event: events.Resize) -> None:
        """Give the timeline the lanes that fit, and omit parts that are not worth their lines."""
        width, height = event.size
        self.set_class(width < 120, "-narrow")
        self.set_class(height < 15, "-tiny")
        self.set_class(height >= 33, "-tall")
        self.set_class(height < 30, "-short")
        self.query_one(FindingHead).allow(3 if height < 15 else 5 if height < 28 else 6)
        self._size_timeline(height)

    def _size_timeline(self, height: int) -> None:
        state = self.timeline.state
        self.timeline.styles.height = timeline_lines(
            height, state.lane_count if state.lanes is not None else 4
        )

    # -- what was read and worked out ----------------------------------------------------------------------

    def take(self, trace: Trace, part: Progress | None) -> None:
        """Show more of the file, or all of it, once the screen's content is computed for it."""
        search = self.timeline.state.search
        self.work.replace(trace, part, self.window, search.needle if search is not None else "")

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Report the error of a worker."""
        notify_worker_error(self, event)

    def on_trace_work_sketched(self, message: TraceWork.Sketched) -> None:
        """Show a first picture, unless the exact one exists."""
        if self.timeline.state.lanes is None:
            self.timeline.state.show(message.lanes)
            self._size_timeline(self.size.height)

    def on_trace_work_surveyed(self, message: TraceWork.Surveyed) -> None:
        """Show the timeline and the trust line; of more of the file, everything."""
        found = message.survey
        more = found.results is not self.work.results
        by = later_by(self.trace, found.results.trace) if more else 0
        with self.app.batch_update():
            self.work.take(found, message.part)
            self._captured_lanes = None
            if more:
                self.window = moved(self.window, by)
                self.evidence.take(self.trace)
            self._show_lanes(found.lanes, by, message.search)
            self.timeline.state.set_window(self.window)
            self.head.show(self.trace, self.work.trust, self.work.part)
            if more:
                self._show_answer()
        if more:
            self.work.start(self.window)
        self._look_at_step()

    def _show_lanes(self, lanes: Lanes, by: int, search: Search | None) -> None:
        """Show the timeline of more of the trace; what was searched for stays searched for."""
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
        """Complete the trust line."""
        self.work.trust = message.trust
        self.head.show(self.trace, self.work.trust, self.work.part)

    def on_trace_work_answered(self, message: TraceWork.Answered) -> None:
        """Show a report if its tab is open; the verdict on top may change with any report."""
        if message.window == self.window:
            self._open_evidence()
            self._leave_unavailable()
            self._show_answer()

    def _open_evidence(self) -> None:
        """Open the tab with the evidence of the head's finding, once, unless the user has opened one."""
        if self._tab_chosen or self.evidence.detail_open or self.work.part is not None:
            return
        if (tab := tab_to_open(self.work.results, self.window)) in self.tabs:
            self._tab_chosen = True
            self._open(tab)

    def _leave_unavailable(self) -> None:
        """Open the first tab that may have content, unless the user has opened one."""
        results, window = self.work.results, self.window
        if not self._tab_chosen and isinstance(results.get(self.current, window), Unavailable):
            self._open(
                next(name for name in self.tabs if not isinstance(results.get(name, window), Unavailable))
            )

    def _show_answer(self) -> None:
        results, window, current, part = self.work.results, self.window, self.current, self.work.part
        top = headline(results, window, current, None if part is None else part.share)
        shown = self._show_head(top)
        self.pane.show(
            current,
            results.get(current, window),
            question=question_of(current),
            verdict=not self._is_spelled_out(current) if shown else not top.of_current,
            advice=results.get("advice", window),
        )
        tabs, self._apart = tabs_of(results, window, current)
        self._listed = [tab.name for tab in tabs]
        more = ("M", len(self._apart)) if self._apart else None
        remarks = ["as captured"] if self.work.as_captured else []
        remarks += [text] if (text := window_text(self.trace, window)) else []
        self.query_one(TabBar).show(tabs, current, " · ".join(remarks), more)
        self.refresh_bindings()

    @property
    def findings(self) -> list[Finding]:
        """Findings of the advice in this window, as far as computed."""
        return findings_of(self.work.results.get("advice", self.window))

    @property
    def finding(self) -> Finding | None:
        """The finding that the head shows; None = it shows a verdict."""
        found = self.findings
        return found[min(self._finding, len(found) - 1)] if found else None

    def _show_head(self, top: Headline) -> bool:
        """Show the finding, else the verdict that matters most; return whether it is a finding."""
        head, found = self.query_one(FindingHead), self.findings
        step_ns, captured_ns = step_times_of(self.work.results.get("advice", self.window))
        self.head.show_steps(None if self.work.as_captured else step_ns, captured_ns)
        if not found or self.work.part is not None:
            head.show_headline(top)
            self._located = ()
            self._show_lost(None)
            return False
        self._finding = min(self._finding, len(found) - 1)
        head.show_finding(found[self._finding], self._finding + 1, len(found))
        self._locate()
        return True

    def _locate(self) -> None:
        """Request where the finding in the head loses time; the timeline draws it."""
        lanes, asked = self.timeline.state.lanes, (self.trace, self.window, self._finding)
        if lanes is not None and lanes.exact and self._located != asked:
            self._located = asked
            self.work.locate(self.window, self._finding)

    def on_trace_work_located(self, message: TraceWork.Located) -> None:
        """Draw where the finding loses time."""
        found = self.finding
        if found is not None and (message.window, message.finding) == (self.window, self._finding):
            self._show_lost(Lost(message.losses, is_bad(found)))
            self._size_timeline(self.size.height)

    def _show_lost(self, lost: Lost | None) -> None:
        """Draw the time lost to a finding below the lanes of the capture."""
        if self._captured_lanes is not None:
            lanes, view = self._captured_lanes
            self._captured_lanes = lanes.with_lost(lost), view
        else:
            self.timeline.state.show_lost(lost)

    # -- without the profiler, with the fix ----------------------------------------------------------------

    def action_as_captured(self) -> None:
        """Switch all figures between steps without the profiler and steps as captured."""
        self.evidence.close_detail()
        self.work.switch()
        self._located = ()
        self._show_answer()
        self.work.start(self.window)
        self._replay_again()
        captured = self.work.as_captured
        said = "as captured, with what the profiler added" if captured else "for steps without the profiler"
        self.notify(f"figures are {said}", timeout=4)

    def action_replay(self) -> None:
        """Show the step as it would be with the fix of the finding, below the one that is; again: the capture."""
        if not self._show_capture():
            self.work.replay(self.window, self._finding)

    def _replay_again(self) -> None:
        """Show the step with the fix of the finding that the head shows now, where a replayed step shows."""
        if self._captured_lanes is not None and self.finding is not None:
            self.work.replay(self.window, self._finding)

    def _show_capture(self) -> bool:
        """Show what was captured again; return whether something else was shown."""
        kept, self._captured_lanes = self._captured_lanes, None
        if kept is None:
            return False
        self.timeline.state.show(kept[0])
        self.timeline.state.set_view(kept[1].resized(self.timeline.state.view.columns))
        self._size_timeline(self.size.height)
        return True

    def on_trace_work_replayed(self, message: TraceWork.Replayed) -> None:
        """Draw the replayed step, or show why there is none."""
        if (message.window, message.finding) != (self.window, self._finding):
            return
        if isinstance(message.lanes, str):
            self._show_capture()
            self.notify(
                f"the step cannot be shown with this fix: {message.lanes}", severity="warning", timeout=8
            )
            return
        state = self.timeline.state
        if self._captured_lanes is None and state.lanes is not None:
            self._captured_lanes = state.lanes, state.view
        self.timeline.choose_event(None)
        state.show(message.lanes, message.lanes.replayed)
        self._size_timeline(self.size.height)

    def _is_spelled_out(self, tab: str) -> bool:
        """Return whether the head says already what a tab has found: it shows the finding that the tab is about.

        What several findings of the tab save together is said by the tab alone.
        """
        found, answer = self.finding, self.work.results.get(tab, self.window)
        if found is None or self.work.part is not None:
            return False
        if tab == "advice":  # its verdict is its first finding
            return True
        more = isinstance(answer, Report) and together_share(answer) > (found.share or 0.0) + LEAST_SHARE
        return tab == tab_of_rule(found.rule) and not more

    def _open_tab_of_finding(self) -> None:
        """Open the tab that has the evidence of the finding."""
        found = self.finding
        tab = tab_of_rule(found.rule) if found is not None else ""
        if tab in self.tabs:
            self._open(tab)

    def action_finding(self, by: int) -> None:
        """Show the next finding, or the one before, and the tab of its evidence."""
        count = len(self.findings)
        if count:
            self._finding = (self._finding + by) % count
            self._open_tab_of_finding()
            self._show_answer()
            self._replay_again()

    def action_show_finding(self) -> None:
        """Go to the finding's typical event on the timeline."""
        found = self.finding
        if found is not None and found.event is not None:
            self._show_capture()
            self.timeline.show_event(found.event)

    def action_copy_fix(self) -> None:
        """Copy what to write instead."""
        if (found := self.finding) is not None:
            self.app.copy_to_clipboard(found.fix)
            self.notify(f"copied: {found.fix}", timeout=5)

    def action_prove(self) -> None:
        """Copy the command that shows the finding before and after."""
        if (found := self.finding) is not None and found.prove:
            self.app.copy_to_clipboard(found.prove)
            self.notify(f"copied the command that measures it: {found.prove}", timeout=8)

    # -- window --------------------------------------------------------------------------------------------

    def set_window(self, window: Window) -> None:
        """Analyse a part of the trace."""
        self.window = window
        self.timeline.state.set_window(window)
        self.evidence.close_detail()
        self._show_answer()
        self.work.start(window)

    def action_window(self) -> None:
        """Make the selection the window of all analyses; without one the step at the cursor, or all again."""
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

    def _look_at_step(self) -> None:
        """Go to the requested step, once it is known."""
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
            return  # it may be in what is still to be read
        self._step = None

    # -- tabs and tables -----------------------------------------------------------------------------------

    def open_tab(self, name: str) -> None:
        """Open the tab of an analysis, or of the table of events."""
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
        """Open the tab that was clicked."""
        self.open_tab(message.name)

    def action_next_tab(self, by: int) -> None:
        """Open the next tab, or the one before, around the ends; those listed apart are left out."""
        self.open_tab(self._listed[(self._listed.index(self.current) + by) % len(self._listed)])

    def on_tab_bar_more_wanted(self) -> None:
        """List the tabs that are not available."""
        self.action_more_tabs()

    def action_more_tabs(self) -> None:
        """List the tabs that are not available here, with the reason of each."""
        names = list(self._apart)
        answers = [self.work.results.get(name, self.window) for name in names]
        texts = [
            f"{title_of(name)}: {answer.reason if isinstance(answer, Unavailable) else ''}"
            for name, answer in zip(names, answers, strict=True)
        ]

        def take(chosen: int | None) -> None:
            if chosen is not None:
                self.open_tab(names[chosen])

        self.app.push_screen(PickScreen("not available in this trace: enter says what to do", texts), take)

    def action_open(self, tab: str | int) -> None:
        """Open a tab by its name or its digit."""
        self.open_tab(tab if isinstance(tab, str) else self.tabs[tab - 1])

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
                self.notify(f"the choice cannot be saved: {error.strerror or error}", severity="error")

        columns = [column for column in table.columns if column.key != "event"]
        self.app.push_screen(ColumnsScreen(columns, self.pane.shown_columns(table)), take)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return which keys work now; the others are not shown."""
        if not self.is_mounted:
            return True
        if action == "open":
            return parameters[0] in (*self.tabs, *range(1, len(self.tabs) + 1))
        if action == "finding":
            return len(self.findings) > 1
        if action == "more_tabs":
            return bool(self._apart)
        if action == "as_captured":
            return self.work.part is None and bool(self.trace.device_indices)
        if action == "replay":
            return self.work.part is None and self.finding is not None
        if action in ("copy_fix", "prove", "show_finding"):
            found = self.finding
            return found is not None and (action != "prove" or bool(found.prove))
        if action == "table":
            answer = self.pane.answer
            return isinstance(answer, Report) and len(answer.tables) > 1
        if action == "compare":
            return self.work.part is None and self.trace.info.path is not None
        if action in ("filter", "columns"):
            return self.pane.current_table is not None
        return True

    # -- timeline and details ------------------------------------------------------------------------------

    def action_timeline(self, name: str, *arguments: float) -> None:
        """Move the timeline: call a method of its navigation."""
        getattr(self.timeline.navigation, name)(*arguments)
        self._size_timeline(self.size.height)  # it may have more lanes to show now, or fewer

    def on_timeline_search_wanted(self, message: Timeline.SearchWanted) -> None:
        """Ask what to search for."""
        self.query_one(SearchLine).ask(message.timeline)

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        """Show an event of the timeline in the detail pane."""
        lanes = self.timeline.state.lanes
        if lanes is not None and lanes.stride > 1:  # its rows are those of the sample
            self.notify("the exact timeline is not ready yet", timeout=3)
        else:
            self.evidence.open_event(message.row)

    def on_timeline_followed(self, message: Timeline.Followed) -> None:
        """Show the details of that event, if details are open."""
        if self.evidence.detail_open:
            self.evidence.open_event(message.row, focus=False)

    def on_evidence_elsewhere_wanted(self, message: Evidence.ElsewhereWanted) -> None:
        """Open the tab that explains a row of this one."""
        for name in self.tabs:
            if title_of(name) == message.title:
                self.open_tab(name)

    def on_evidence_event_shown(self, message: Evidence.EventShown) -> None:
        """Show that event on the timeline."""
        state = self.timeline.state
        if state.lanes is not None and state.lanes.exact and message.row != state.event:
            self.timeline.show_event(message.row)

    # -- texts, files, leaving -----------------------------------------------------------------------------

    def action_rules(self) -> None:
        """Show definitions, rules and thresholds of this analysis."""
        paragraphs = answer_paragraphs(self.pane.answer, question_of(self.current))
        self.app.push_screen(ReadingScreen("rules and figures", paragraphs))

    def action_trust(self) -> None:
        """Show all remarks."""
        if self.work.trust is not None:
            paragraphs = trust_paragraphs(self.work.trust)
            self.app.push_screen(ReadingScreen("what is missing from this trace", paragraphs))

    def on_trace_head_trust_wanted(self) -> None:
        """Show all remarks."""
        self.action_trust()

    def action_export(self) -> None:
        """Write reports to a file."""
        answers = self.work.results.answers(self.window)
        # Of the events only what shows can be written: whole they are the trace itself.
        current = self.work.results.get(self.current, self.window) if self.current != EVENTS else None
        if answers:
            self.app.push_screen(ExportScreen(self.trace, current, answers, self.pane.as_shown()))
        else:
            self.notify("no results yet", timeout=3)

    def action_compare(self) -> None:
        """Choose what to compare this trace with."""
        self.post_message(self.CompareWanted())

    def action_escape(self) -> None:
        """Close the innermost thing that is open; when nothing is, go back to the screen before."""
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
