"""Two runs side by side: verdict, step times, both timelines on one scale, and what changed, ranked."""

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

#: Minimum width to show the largest changes beside the table.
_DIGEST: Final = 140
#: From this height on timelines and tables show together.
_BOTH: Final = 34
#: Keys of a trace that make sense on two.
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
    """The timelines of both traces above one another, and a line on the event that is chosen.

    Args:
        lanes: Lanes of both traces; None = there is nothing to show.
    """

    def __init__(self, lanes: tuple[Lanes, Lanes] | None, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._lanes = lanes
        self.shift = 0  # how much later an instant of the second trace is than the one above it, ns

    def compose(self) -> ComposeResult:
        """Before, after, and the line below."""
        yield Timeline(id="timeline-before")
        yield Timeline(id="timeline-after")
        yield Painted(id="compare-match")

    def on_mount(self) -> None:
        """Show both traces, the begins of their first steps below one another."""
        if self._lanes is not None:
            self.shift = shift_between(*(lanes.trace for lanes in self._lanes))
            for timeline, lanes, extent in zip(
                self.both, self._lanes, self._extents(self._lanes), strict=True
            ):
                timeline.state.show(lanes, extent)
        for timeline, caption in zip(self.both, ("before", "after"), strict=True):
            timeline.state.caption = caption
        self.both[0].state.legend, self.both[1].state.legend = "", "all"  # one is enough for both
        self._show_line(
            [(" enter on a row shows it in both timelines; , . or a click selects an event", "dim")]
        )

    @property
    def both(self) -> tuple[Timeline, Timeline]:
        """Before and after."""
        return self.query_one("#timeline-before", Timeline), self.query_one("#timeline-after", Timeline)

    @property
    def focused(self) -> Timeline:
        """The timeline that has the focus, else the first."""
        before, after = self.both
        return after if after.has_focus else before

    def set_height(self, lines: int) -> None:
        """Set the height of each timeline, as far as there are lanes."""
        most = max(timeline.state.lane_count for timeline in self.both) + 3
        for timeline in self.both:
            timeline.styles.height = max(3, min(lines, most))

    def _show_line(self, row: Row) -> None:
        self.query_one("#compare-match", Painted).paint(lambda width, _h: [fit(row, width)])

    # -- moving together -----------------------------------------------------------------------------------

    def _extents(self, both: tuple[Lanes, Lanes]) -> list[tuple[int, int]]:
        """Return between which instants each timeline moves: both show the same stretch, whichever is longer."""
        (low, high), (first, last) = (lanes.trace.span for lanes in both)
        begin, end = min(low, first - self.shift), max(high, last - self.shift)
        return [(begin + by, end + by) for by in (0, self.shift)]

    def _align(self, lanes: tuple[Lanes, Lanes], shift: int, leading: int) -> None:
        """Put other instants below one another; the leading timeline keeps its range."""
        self.shift = shift
        for timeline, extent in zip(self.both, self._extents(lanes), strict=True):
            timeline.state.stretch(*extent)
        self._follow(leading)

    def _follow(self, leading: int) -> None:
        """Show in one timeline the stretch that the other shows."""
        moved, other = self.both[leading].state, self.both[1 - leading].state
        by, view = self.shift if leading == 0 else -self.shift, other.view
        if moved.view.columns == view.columns:
            view = view.over_range(moved.view.low + by, moved.view.high + by)
        other.follow(view, moved.cursor + by)

    def on_timeline_moved(self, message: Timeline.Moved) -> None:
        """Move the other timeline along."""
        message.stop()
        if self._lanes is not None:
            self._follow(self.both.index(message.timeline))

    # -- events --------------------------------------------------------------------------------------------

    def on_timeline_chose(self, message: Timeline.Chose) -> None:
        """Mark the same work in the other timeline, and show how it changed."""
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
        """Enter on an event chooses it; there are no details here."""
        message.stop()

    def clear(self) -> bool:
        """Select, measure and choose nothing, and align the first steps; return whether there was something."""
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
    """Shows a comparison; both timelines are operated together."""

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Left(Message):
        """The user wants to leave."""

    class Swapped(Message):
        """Before and after are to change places."""

    pair = query_one(TimelinePair)
    pane = query_one(AnswerPane)

    def __init__(self, found: Comparison) -> None:
        super().__init__()
        self.found = found
        self.tabs = [tab.name for tab in tabs_of(found.report)]  # keys of the tables that are listed
        #: Key of the one that shows.
        self.current = next((key for key in self.tabs if len(found.report.table(key).rows)), self.tabs[0])
        self._lines_of_why = 1

    def compose(self) -> ComposeResult:
        """Head, verdict, steps, timelines, tabs, table."""
        yield Painted(id="compare-head")
        yield VerdictLine(id="compare-verdict")
        yield Painted(id="compare-why")
        yield StepPair(id="compare-steps")
        yield TimelinePair(self.found.lanes, id="compare-timelines")
        yield SearchLine(id="search")
        yield TabBar(id="tabs")
        with Horizontal(id="compare-below"):
            yield AnswerPane(id="answer")
            yield ChangeDigest(id="compare-digest")

    def on_mount(self) -> None:
        """Fill everything in."""
        found = self.found
        self.set_class(found.lanes is None, "-no-traces")
        names = found.before.name, found.after.name
        self.query_one("#compare-head", Painted).paint(lambda width, _h: [head_row(*names, width)])
        verdict = found.report.verdict
        self.query_one("#compare-verdict", VerdictLine).show(verdict.sentence, verdict.level)
        self.query_one("#compare-why", Painted).paint(
            lambda width, height: why_rows(found.report, width, height or self._lines_of_why)
        )
        before, after, source = both_step_times(found.before, found.after)
        self.query_one(StepPair).show(before, after, source)
        self._show_table()
        self.pane.take_focus()

    def on_resize(self, event: events.Resize) -> None:
        """Give each part the lines there are for it."""
        width, height = event.size
        self.set_class(height < _BOTH, "-one-of-both")
        self._lines_of_why = 1 if height < 28 else 2
        self.query_one(ChangeDigest).display = width >= _DIGEST
        self._size_timelines()

    def _size_timelines(self) -> None:
        width, height = self.size
        steps = 2 if height < 28 else 5 if height < 44 else 7
        self.query_one(StepPair).styles.height = steps
        above = 4 + steps + len(why_rows(self.found.report, width, self._lines_of_why))
        room = (height - above - 1) if height < _BOTH else (height - above) * 3 // 5
        self.pair.set_height(room // 2)

    # -- tables --------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        return self.found.report.table(self.current)

    def _show_table(self) -> None:
        report = self.found.report
        self.pane.show(self.current, replace(report, tables=(self._table,), facts=()), verdict=False)
        tabs = tabs_of(report)
        self.query_one(TabBar).show(tabs, self.current, "")
        digest = self.query_one(ChangeDigest)
        digest.show(report, [(tab.name, tab.title) for tab in tabs], self.current)
        digest.display = self.size.width >= _DIGEST
        self.refresh_bindings()

    def open_tab(self, name: str) -> None:
        """Open the table with a key."""
        if name in self.tabs and name != self.current:
            self.current = name
            self._show_table()
            self.pane.take_focus()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """Open the tab that was clicked."""
        self.open_tab(message.name)

    def action_open(self, tab: int) -> None:
        """Open a tab by its digit."""
        self.open_tab(self.tabs[tab - 1])

    def action_next_tab(self, by: int) -> None:
        """Open the next tab, or the one before, around the ends."""
        self.open_tab(self.tabs[(self.tabs.index(self.current) + by) % len(self.tabs)])

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.pane.open_filter()

    def action_rules(self) -> None:
        """Show rules, notes and what each column means."""
        self.app.push_screen(ReadingScreen("rules and figures", answer_paragraphs(self.found.report, "")))

    def action_export(self) -> None:
        """Write the comparison to a file."""
        trace = self.found.lanes[1].trace if self.found.lanes is not None else None
        self.app.push_screen(ExportScreen(trace, self.found.report, (), self.pane.as_shown()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return which keys work now; those of timelines only if there are any."""
        if action == "open":
            return parameters[0] in range(1, len(self.tabs) + 1)
        if action in ("timeline", "timelines"):
            return self.found.lanes is not None
        return True

    # -- timelines -----------------------------------------------------------------------------------------

    def action_timeline(self, name: str, *arguments: float) -> None:
        """Move the timeline that has the focus: call a method of its navigation; lanes open and close in both."""
        for timeline in self.pair.both if name == "nested" else [self.pair.focused]:
            getattr(timeline.navigation, name)(*arguments)
        self._size_timelines()

    def on_timeline_search_wanted(self, message: Timeline.SearchWanted) -> None:
        """Ask what to search for."""
        self.query_one(SearchLine).ask(message.timeline)

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        """Show a row of a table in both timelines: the longest event of each side."""
        message.stop()
        rows = self._table.rows
        if self.found.lanes is None or "before_event" not in rows.columns:
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
        """Show the timelines instead of the table, or the table again; with room for both, focus them."""
        if self.has_class("-one-of-both"):
            self.toggle_class("-timelines")
        before, after = self.pair.both
        if before.has_focus or after.has_focus:
            self.pane.take_focus()
        else:
            before.focus()

    def action_swap(self) -> None:
        """Swap before and after."""
        self.post_message(self.Swapped())

    def action_escape(self) -> None:
        """Close the innermost thing that is open; when nothing is, leave."""
        if self.pane.clear_filter() or self.pair.focused.navigation.end_search():
            return
        if self.has_class("-timelines") and self.has_class("-one-of-both"):
            self.action_timelines()
        elif not self.pair.clear():
            self.post_message(self.Left())
