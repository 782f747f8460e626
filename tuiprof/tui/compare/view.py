"""Two runs side by side: verdict, step times, both timelines on one scale, and what changed, ranked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.worker import Worker

from tuiprof.analyses.compare.step_pair import KEY as STEP_PAIR
from tuiprof.comparison.sides import CHANGED, Side, both_step_times
from tuiprof.model.report import Report, Table
from tuiprof.model.trace import Trace
from tuiprof.model.window import Window
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.compare.change_digest import ChangeDigest
from tuiprof.tui.compare.counterpart import counterpart, shift_between
from tuiprof.tui.compare.keys import KEYS
from tuiprof.tui.compare.step_pair import StepPair, StepSeries
from tuiprof.tui.compare.words import head_row, matched_row
from tuiprof.tui.dialogs.export import ExportScreen
from tuiprof.tui.dialogs.paragraphs import answer_paragraphs
from tuiprof.tui.dialogs.reading import ReadingScreen
from tuiprof.tui.terminal.worker_errors import tell_worker_error
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.navigation import TraceTime
from tuiprof.tui.timeline.state import TimelineState
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.widgets.lines import Row, fit
from tuiprof.tui.widgets.painted import Painted
from tuiprof.tui.widgets.prompt_line import PromptLine
from tuiprof.tui.widgets.tab_bar import Tab, TabBar
from tuiprof.tui.widgets.table import VirtualTable
from tuiprof.tui.widgets.verdict import VerdictLine
from tuiprof.tui.widgets.wrap import wrap

#: From this width on what changed most stands beside the table.
_DIGEST = 140
#: From this height on timelines and tables show together.
_BOTH = 34
_TITLES = {
    "recorded": "Runs",
    "metrics": "Figures",
    "kernels": "Kernels",
    "operators": "Operators",
    "launches": "Launches",
    "syncs": "Syncs",
    "script": "Script",
    "setup": "Setup",
}


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Everything that the screen shows.

    Attributes:
        before: The baseline.
        after: What is judged.
        report: What changed.
        lanes: Lanes of both traces; None = not both have one.
    """

    before: Side
    after: Side
    report: Report
    lanes: tuple[Lanes, Lanes] | None


class CompareView(TraceTime):
    """Shows a comparison; what is done in one timeline is done in the other as well.

    Args:
        found: What to show.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Left(Message):
        """The user wants to leave."""

    class Swapped(Message):
        """Before and after are to change places."""

    def __init__(self, found: Comparison) -> None:
        super().__init__()
        self.found = found
        self.window = Window()
        tables = [table for table in found.report.tables if table.key != STEP_PAIR]  # drawn, not listed
        self.tabs = [table.key for table in tables]
        self.current = next((t.key for t in tables if len(t.rows)), self.tabs[0])
        self._lines_of_why = 1

    def compose(self) -> ComposeResult:
        """Head, verdict, steps, timelines, tabs, table."""
        yield Painted(id="compare-head")
        yield VerdictLine(id="compare-verdict")
        yield Painted(id="compare-why")
        yield StepPair(id="compare-steps")
        with Vertical(id="compare-timelines"):
            yield Timeline(id="timeline-before")
            yield Timeline(id="timeline-after")
            yield Painted(id="compare-match")
        yield PromptLine(placeholder="search the names of all events", compact=True, id="search")
        yield TabBar(id="tabs")
        with Horizontal(id="compare-below"):
            yield AnswerPane(id="answer")
            yield ChangeDigest(id="compare-digest")

    @property
    def timelines(self) -> tuple[Timeline, Timeline]:
        """Before and after."""
        return self.query_one("#timeline-before", Timeline), self.query_one("#timeline-after", Timeline)

    @property
    def timeline(self) -> Timeline:
        """The timeline that has the focus, else the first."""
        before, after = self.timelines
        return after if after.has_focus else before

    @property
    def trace(self) -> Trace:  # type: ignore[override]
        """The trace of that timeline."""
        assert self.found.lanes is not None
        return self.found.lanes[self.timelines.index(self.timeline)].trace

    @property
    def pane(self) -> AnswerPane:
        """The table."""
        return self.query_one(AnswerPane)

    def on_mount(self) -> None:
        """Fill everything in."""
        found = self.found
        self.query_one("#compare-head", Painted).paint(self._head)
        verdict = found.report.verdict
        self.query_one("#compare-verdict", VerdictLine).show(verdict.sentence, verdict.level)
        self.query_one("#compare-why", Painted).paint(self._why)
        self._show_steps()
        self.set_class(found.lanes is None, "-no-traces")
        if found.lanes is not None:
            self._shift = shift_between(found.lanes[0].trace, found.lanes[1].trace)
            for timeline, lanes, extent in zip(self.timelines, found.lanes, self._extents(), strict=True):
                timeline.show(lanes, extent)
            for timeline, caption in zip(self.timelines, ("before", "after"), strict=True):
                timeline.caption = caption
        self._show_table()
        self._say([(" enter on a row shows it in both timelines; , . and a click choose an event", "dim")])
        self.pane.take_focus()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Tell what went wrong in a worker."""
        tell_worker_error(self, event)

    # -- layout --------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Give each part the lines there are for it."""
        width, height = event.size
        self.set_class(height < _BOTH, "-one-of-both")
        self._lines_of_why = 1 if height < 28 else 2
        self.query_one(ChangeDigest).display = width >= _DIGEST
        steps = 2 if height < 28 else 5 if height < 44 else 7
        self.query_one(StepPair).styles.height = steps
        most = max((len(lanes.lanes) for lanes in self.found.lanes or ()), default=1)
        above = 4 + steps + len(self._why(width, 0))
        room = (height - above - 1) if height < _BOTH else (height - above) * 3 // 5
        each = max(3, min(room // 2, most + 3))
        for timeline in self.timelines:
            timeline.styles.height = each

    def _head(self, width: int, height: int) -> list[Row]:
        return [head_row(self.found.before.name, self.found.after.name, width)]

    def _why(self, width: int, height: int) -> list[Row]:
        """What differs between the traces, in words."""
        said = next((fact.value for fact in self.found.report.facts if fact.key == CHANGED), None)
        if not said:
            return []
        lines = wrap(sanitize(str(said)), max(width - 16, 8), height or self._lines_of_why)
        return [
            [(" in the traces " if index == 0 else " " * 15, "dim"), (line, "text")]
            for index, line in enumerate(lines)
        ]

    def _show_steps(self) -> None:
        before, after, source = both_step_times(self.found.before, self.found.after)
        self.query_one(StepPair).show((StepSeries("before", before), StepSeries("after", after)), source)

    # -- tables --------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        return self.found.report.table(self.current)

    def _show_table(self) -> None:
        report = self.found.report
        shown = replace(report, tables=(self._table,), facts=())
        self.pane.show(self.current, shown, verdict=False)
        tabs = [
            Tab(table.key, _TITLES.get(table.key, sanitize(table.title)), "" if len(table.rows) else "–")
            for table in report.tables
            if table.key in self.tabs
        ]
        self.query_one(TabBar).show(tabs, self.current, "")
        digest = self.query_one(ChangeDigest)
        digest.show(report, [(tab.name, tab.title) for tab in tabs], self.current)
        digest.display = self.size.width >= _DIGEST
        self.refresh_bindings()

    def open_tab(self, name: str) -> None:
        """Open a table.

        Args:
            name: Its key.
        """
        if name in self.tabs and name != self.current:
            self.current = name
            self._show_table()
            self.pane.take_focus()

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

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.pane.open_filter()

    def action_rules(self) -> None:
        """Show rules, notes and what each column means."""
        report = self.found.report
        self.app.push_screen(ReadingScreen("rules and figures", answer_paragraphs(report, "")))

    def action_export(self) -> None:
        """Write the comparison to a file."""
        trace = self.found.lanes[1].trace if self.found.lanes is not None else None
        self.app.push_screen(ExportScreen(trace, self.found.report, (), self.pane.as_shown()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work now; those of timelines only where there are any."""
        if action == "tab":
            return isinstance(parameters[0], int) and parameters[0] <= len(self.tabs)
        if action in _OF_TIMELINES:
            return self.found.lanes is not None
        return True

    # -- both timelines ------------------------------------------------------------------------------------

    def _extents(self) -> list[tuple[int, int]]:
        """Return between which instants each timeline moves: both show the same stretch, whichever is longer."""
        assert self.found.lanes is not None
        (low, high), (first, last) = (lanes.trace.span for lanes in self.found.lanes)
        begin, end = min(low, first - self._shift), max(high, last - self._shift)
        return [(begin + by, end + by) for by in (0, self._shift)]

    def _align(self, shift: int, leading: int) -> None:
        """Let other instants stand below one another.

        Args:
            shift: By how many ns an instant of the second trace stands later than that of the first.
            leading: Which timeline keeps its range.
        """
        self._shift = shift
        for timeline, extent in zip(self.timelines, self._extents(), strict=True):
            timeline.stretch(*extent)
        self._follow(leading)

    def on_timeline_state_moved(self, message: TimelineState.Moved) -> None:
        """Move the other timeline along."""
        message.stop()
        if self.found.lanes is None or message.timeline not in self.timelines:
            return
        self._follow(self.timelines.index(message.timeline))

    def _follow(self, leading: int) -> None:
        """Show in one timeline the stretch that the other shows."""
        moved, other = self.timelines[leading], self.timelines[1 - leading]
        by = self._shift if leading == 0 else -self._shift
        if moved.view.columns == other.view.columns:
            other.view = other.view.over_range(moved.view.low + by, moved.view.high + by)
        other.cursor = moved.cursor + by
        other.refresh()

    def on_timeline_state_chose(self, message: TimelineState.Chose) -> None:
        """Mark the same work in the other timeline, and say how it changed."""
        message.stop()
        if self.found.lanes is None or message.row is None:
            return
        here = self.timelines.index(message.timeline)
        mine, theirs = self.found.lanes[here].trace, self.found.lanes[1 - here].trace
        other = counterpart(mine, message.row, theirs)
        self.timelines[1 - here].mark_event(other)
        if other is not None:
            later = int(theirs.starts[other] - mine.starts[message.row])
            self._align(later if here == 0 else -later, here)
        pair = (message.row, other) if here == 0 else (other, message.row)
        before, after = self.found.lanes
        self._say(matched_row((before.trace, after.trace), pair))

    def _say(self, row: Row) -> None:
        self.query_one("#compare-match", Painted).paint(lambda width, _h: [fit(row, width)])

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        """Enter on an event chooses it; there are no details here."""
        message.stop()

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        """Show a row of a table in both timelines: the longest event of each side."""
        message.stop()
        rows = self._table.rows
        if self.found.lanes is None or "before_event" not in rows.columns:
            return
        found = [rows[name][message.source] for name in ("before_event", "after_event")]
        sides = list(zip(self.timelines, found, strict=True))
        leading = 1 if found[1] is not None else 0
        timeline, row = sides[leading]
        if row is None:
            return
        if self.has_class("-one-of-both"):
            self.add_class("-timelines")
            timeline.focus()
        timeline.show_event(int(row))

    def action_timelines(self) -> None:
        """Show the timelines in the place of the table, or the table again; with room for both, go there."""
        if self.has_class("-one-of-both"):
            self.toggle_class("-timelines")
        before, after = self.timelines
        if before.has_focus or after.has_focus:
            self.pane.take_focus()
        else:
            before.focus()

    def action_swap(self) -> None:
        """Let before and after change places."""
        self.post_message(self.Swapped())

    def action_escape(self) -> None:
        """Close the innermost thing that is open; when nothing is, leave."""
        if self.pane.clear_filter() or self.end_search():
            return
        if self.has_class("-timelines") and self.has_class("-one-of-both"):
            self.action_timelines()
        elif self.timeline.chosen_range is not None or self.timeline.event is not None:
            for timeline in self.timelines:
                timeline.mark = None
                timeline.select(None)
                timeline.mark_event(None)
            if self.found.lanes is not None:
                self._align(shift_between(*(lanes.trace for lanes in self.found.lanes)), 0)
                self._say([(" the begins of the first steps stand below one another", "dim")])
        else:
            self.post_message(self.Left())


_OF_TIMELINES = frozenset(
    (
        "zoom", "fit", "zoom_to", "sync", "step", "follow", "measure", "bookmark", "bookmarks", "next_bookmark",
        "timelines",
    )
)  # fmt: skip
