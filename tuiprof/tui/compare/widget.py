"""The comparison of two runs: verdict, step times, both timelines on one scale, tables of changes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.getters import query_one
from textual.message import Message

from tuiprof.comparison.sides import both_step_times
from tuiprof.model.report import Table
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.compare.charts import ChangeDigest, StepPair
from tuiprof.tui.compare.view import (
    Comparison,
    counterpart,
    head_row,
    matched_row,
    shift_between,
    tabs_of,
    why_rows,
)
from tuiprof.tui.dialogs.dialog import ReadingScreen, answer_paragraphs
from tuiprof.tui.dialogs.export import ExportScreen
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.navigation import KEYS as TRACE_KEYS
from tuiprof.tui.timeline.timeline import SearchLine, Timeline
from tuiprof.tui.widgets.bars import TabBar
from tuiprof.tui.widgets.lines import Painted, Row, VerdictLine, fit
from tuiprof.tui.widgets.table import VirtualTable

#: Minimum width for the digest of changes beside the table.
_DIGEST_WIDTH: Final = 140
#: Minimum height to show timelines and tables at the same time.
_BOTH_HEIGHT: Final = 34
#: Actions of the trace screen that work here too.
_SHARED: Final = (
    "filter", "next_sync", "previous_sync", "follow", "follow_last", "zoom_in", "zoom_out", "fit", "zoom_to",
    "next_step", "previous_step", "measure", "nested", "bookmark", "next_bookmark", "bookmarks", "next_tab",
    "previous_tab", "rules", "export", *(f"tab_{number}" for number in range(1, 10)),
)  # fmt: skip


def _key(keys: str, action: str, label: str, tooltip: str) -> Binding:
    return key(keys, action, label, tooltip, id=f"compare.{action}", group="Compare")


KEYS: Final[tuple[Binding, ...]] = (
    _key("t", "timelines", "timelines", "Go to the timelines, or back to the table"),
    _key("x", "swap", "swap", "Swap before and after"),
    *(binding for binding in TRACE_KEYS if (binding.id or "").removeprefix("trace.") in _SHARED),
    _key("escape", "escape", "back", "Clear filter and search, leave the timelines, close"),
)


class TimelinePair(Vertical):
    """The timelines of both traces (if there are two), one above the other, and a line about the selected event."""

    def __init__(self, lanes: tuple[Lanes, Lanes] | None, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._lanes = lanes
        self.shift = 0  # ns from a time in the first timeline to the aligned time in the second

    def compose(self) -> ComposeResult:
        yield Timeline(id="timeline-before")
        yield Timeline(id="timeline-after")
        yield Painted(id="compare-match")

    def on_mount(self) -> None:
        """Show both traces, aligned at the start of their first steps."""
        if self._lanes is not None:
            self.shift = shift_between(*(lanes.trace for lanes in self._lanes))
            for timeline, lanes, extent in zip(
                self.both, self._lanes, self._extents(self._lanes), strict=True
            ):
                timeline.state.show(lanes, extent)
        for timeline, caption in zip(self.both, ("before", "after"), strict=True):
            timeline.state.caption = caption
        self.both[0].state.legend, self.both[1].state.legend = "", "all"  # one legend for both
        self._show_line(
            [(" enter on a row shows it in both timelines; , . or a click selects an event", "dim")]
        )

    @property
    def both(self) -> tuple[Timeline, Timeline]:
        return self.query_one("#timeline-before", Timeline), self.query_one("#timeline-after", Timeline)

    @property
    def focused(self) -> Timeline:
        """The timeline that has the focus, else the first."""
        before, after = self.both
        return after if after.has_focus else before

    def set_height(self, lines: int) -> None:
        """Set the height of each timeline, but no higher than its lanes need."""
        most = max(timeline.state.lane_count for timeline in self.both) + 3
        for timeline in self.both:
            timeline.styles.height = max(3, min(lines, most))

    def _show_line(self, row: Row) -> None:
        self.query_one("#compare-match", Painted).paint(lambda width, _h: [fit(row, width)])

    # -- moving together -----------------------------------------------------------------------------------

    def _extents(self, both: tuple[Lanes, Lanes]) -> list[tuple[int, int]]:
        """Return the range of each timeline: aligned, and wide enough for both traces."""
        (low, high), (first, last) = (lanes.trace.span for lanes in both)
        start, end = min(low, first - self.shift), max(high, last - self.shift)
        return [(start + by, end + by) for by in (0, self.shift)]

    def _align(self, lanes: tuple[Lanes, Lanes], shift: int, leading: int) -> None:
        """Align the timelines with a new shift; the one with index ``leading`` keeps its view."""
        self.shift = shift
        for timeline, extent in zip(self.both, self._extents(lanes), strict=True):
            timeline.state.stretch(*extent)
        self._follow(leading)

    def _follow(self, leading: int) -> None:
        """Move the other timeline to the view of the one with index ``leading``."""
        moved, other = self.both[leading].state, self.both[1 - leading].state
        by, view = self.shift if leading == 0 else -self.shift, other.view
        if moved.view.columns == view.columns:
            view = view.over_range(moved.view.low + by, moved.view.high + by)
        other.follow(view, moved.cursor + by)

    def on_timeline_moved(self, message: Timeline.Moved) -> None:
        message.stop()
        if self._lanes is not None:
            self._follow(self.both.index(message.timeline))

    # -- events --------------------------------------------------------------------------------------------

    def on_timeline_chose(self, message: Timeline.Chose) -> None:
        """Mark the counterpart of the selected event, align both there, and show the change."""
        message.stop()
        if self._lanes is None or message.row is None:
            return
        here = self.both.index(message.timeline)
        mine, theirs = self._lanes[here].trace, self._lanes[1 - here].trace
        other = counterpart(mine, message.row, theirs)
        self.both[1 - here].state.mark_event(other)
        if other is not None:
            later = int(theirs.starts[other] - mine.starts[message.row])
            self._align(self._lanes, later if here == 0 else -later, here)
        pair = (message.row, other) if here == 0 else (other, message.row)
        self._show_line(matched_row((self._lanes[0].trace, self._lanes[1].trace), pair))

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        message.stop()

    def clear(self) -> bool:
        """Clear the selection and align the first steps again; return False if nothing was selected."""
        state = self.focused.state
        if state.chosen_range is None and state.event is None:
            return False
        for timeline in self.both:
            timeline.state.clear_range()
            timeline.state.mark_event(None)
        if self._lanes is not None:
            self._align(self._lanes, shift_between(*(lanes.trace for lanes in self._lanes)), 0)
            self._show_line([(" the first steps are aligned", "dim")])
        return True


class CompareView(Vertical):
    """Shows a comparison."""

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Left(Message):
        """The user closes the comparison."""

    class Swapped(Message):
        """The user swaps before and after."""

    pair = query_one(TimelinePair)
    pane = query_one(AnswerPane)

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison
        report = comparison.report
        self.tabs = [tab.name for tab in tabs_of(report)]  # keys of tables
        self.current = next((key for key in self.tabs if len(report.table(key).rows)), self.tabs[0])  # tab
        self._why_lines = 1

    def compose(self) -> ComposeResult:
        yield Painted(id="compare-head")
        yield VerdictLine(id="compare-verdict")
        yield Painted(id="compare-why")
        yield StepPair(id="compare-steps")
        yield TimelinePair(self.comparison.lanes, id="compare-timelines")
        yield SearchLine(id="search")
        yield TabBar(id="tabs")
        with Horizontal(id="compare-below"):
            yield AnswerPane(id="answer")
            yield ChangeDigest(id="compare-digest")

    def on_mount(self) -> None:
        before, after, report = self.comparison.before, self.comparison.after, self.comparison.report
        self.set_class(self.comparison.lanes is None, "-no-traces")
        self.query_one("#compare-head", Painted).paint(
            lambda width, _h: [head_row(before.name, after.name, width)]
        )
        self.query_one("#compare-verdict", VerdictLine).show(report.verdict.sentence, report.verdict.level)
        self.query_one("#compare-why", Painted).paint(
            lambda width, height: why_rows(report, width, height or self._why_lines)
        )
        self.query_one(StepPair).show(*both_step_times(before, after))
        self._show_table()
        self.pane.take_focus()

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(height < _BOTH_HEIGHT, "-one-of-both")
        self._why_lines = 1 if height < 28 else 2
        self.query_one(ChangeDigest).display = width >= _DIGEST_WIDTH
        self._size_timelines()

    def _size_timelines(self) -> None:
        width, height = self.size
        steps = 2 if height < 28 else 5 if height < 44 else 7
        self.query_one(StepPair).styles.height = steps
        above = 4 + steps + len(why_rows(self.comparison.report, width, self._why_lines))
        room = (height - above - 1) if height < _BOTH_HEIGHT else (height - above) * 3 // 5
        self.pair.set_height(room // 2)

    # -- tables --------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        return self.comparison.report.table(self.current)

    @property
    def _has_events(self) -> bool:
        """Whether the rows of the shown table have events in the timelines."""
        return self.comparison.lanes is not None and "before_event" in self._table.rows.columns

    def _show_table(self) -> None:
        report = self.comparison.report
        self.pane.show(self.current, replace(report, tables=(self._table,), facts=()), verdict=False)
        for table in self.pane.query(VirtualTable):
            table.opens = self._has_events
        tabs = tabs_of(report)
        self.query_one(TabBar).show(tabs, self.current, "")
        digest = self.query_one(ChangeDigest)
        digest.show(report, [(tab.name, tab.title) for tab in tabs], self.current)
        digest.display = self.size.width >= _DIGEST_WIDTH
        self.refresh_bindings()

    def open_tab(self, name: str) -> None:
        if name in self.tabs and name != self.current:
            self.current = name
            self._show_table()
            self.pane.take_focus()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        self.open_tab(message.name)

    def action_open(self, tab: int) -> None:
        self.open_tab(self.tabs[tab - 1])

    def action_next_tab(self, by: int) -> None:
        """Open the next (1) or previous (-1) tab, wrapping around."""
        self.open_tab(self.tabs[(self.tabs.index(self.current) + by) % len(self.tabs)])

    def action_filter(self) -> None:
        self.pane.open_filter()

    def action_rules(self) -> None:
        self.app.push_screen(
            ReadingScreen("rules and figures", answer_paragraphs(self.comparison.report, ""))
        )

    def action_export(self) -> None:
        trace = self.comparison.lanes[1].trace if self.comparison.lanes is not None else None
        self.app.push_screen(ExportScreen(trace, self.comparison.report, (), self.pane.as_shown()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open":
            return parameters[0] in range(1, len(self.tabs) + 1)
        if action in ("timeline", "timelines"):
            return self.comparison.lanes is not None
        return True

    def key_label(self, name: str) -> str:
        return self.pair.focused.navigation.key_label(name)

    # -- timelines -----------------------------------------------------------------------------------------

    def action_timeline(self, name: str, *arguments: float) -> None:
        """Call a method of the focused timeline's navigation; nested lanes are toggled in both timelines."""
        for timeline in self.pair.both if name == "nested" else [self.pair.focused]:
            getattr(timeline.navigation, name)(*arguments)
        self._size_timelines()

    def on_timeline_search_wanted(self, message: Timeline.SearchWanted) -> None:
        self.query_one(SearchLine).ask(message.timeline)

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        message.stop()
        rows = self._table.rows
        if not self._has_events:
            return
        before, after = (rows[name][message.source] for name in ("before_event", "after_event"))
        row = before if after is None else after
        if row is None:
            return
        timeline = self.pair.both[0 if after is None else 1]
        if self.has_class("-one-of-both"):
            self.add_class("-timelines")
            timeline.focus()
        timeline.show_event(int(row))

    def action_timelines(self) -> None:
        """Move the focus between timelines and table; without room for both, also switch which is shown."""
        if self.has_class("-one-of-both"):
            self.toggle_class("-timelines")
        before, after = self.pair.both
        if before.has_focus or after.has_focus:
            self.pane.take_focus()
        else:
            before.focus()

    def action_swap(self) -> None:
        self.post_message(self.Swapped())

    def action_escape(self) -> None:
        """Clear the filter, search or selection, or leave the timelines; if there is none, close the comparison."""
        if self.pane.clear_filter() or self.pair.focused.navigation.end_search():
            return
        if self.has_class("-timelines") and self.has_class("-one-of-both"):
            self.action_timelines()
        elif not self.pair.clear():
            self.post_message(self.Left())
