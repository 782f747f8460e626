"""Two synchronized timelines; the selection in one is marked in the other."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from tuiprof.tui.compare.counterpart import counterpart, shift_between
from tuiprof.tui.compare.view import matched_row
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.widgets.lines import Painted, Row, fit


class TimelinePair(Vertical):
    """The timelines of both traces above one another, and a line on the event that is chosen.

    Args:
        lanes: Lanes of both traces; None = there is nothing to show.

    Attributes:
        shift: How much later an instant of the second trace is than the one above it, ns.
    """

    def __init__(self, lanes: tuple[Lanes, Lanes] | None, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._lanes = lanes
        self.shift = 0

    def compose(self) -> ComposeResult:
        """Before, after, and the line below."""
        yield Timeline(id="timeline-before")
        yield Timeline(id="timeline-after")
        yield Painted(id="compare-match")

    def on_mount(self) -> None:
        """Show both traces, the begins of their first steps below one another."""
        if self._lanes is not None:
            self.shift = self._shift_of_steps(self._lanes)
            for timeline, lanes, extent in zip(
                self.both, self._lanes, self._extents(self._lanes), strict=True
            ):
                timeline.state.show(lanes, extent)
        for timeline, caption in zip(self.both, ("before", "after"), strict=True):
            timeline.state.caption = caption
        self.both[0].state.legend, self.both[1].state.legend = "", "all"  # one is enough for both
        self._say([(" enter on a row shows it in both timelines; , . or a click selects an event", "dim")])

    @property
    def both(self) -> tuple[Timeline, Timeline]:
        """Before and after."""
        return self.query_one("#timeline-before", Timeline), self.query_one("#timeline-after", Timeline)

    @property
    def focused(self) -> Timeline:
        """The timeline that has the focus, else the first."""
        before, after = self.both
        return after if after.has_focus else before

    @property
    def most_lines(self) -> int:
        """Lines that show every lane of the trace that has more of them."""
        return max((timeline.state.lane_count for timeline in self.both), default=1) + 3

    def set_height(self, lines: int) -> None:
        """Set the height of each timeline."""
        for timeline in self.both:
            timeline.styles.height = lines

    def _say(self, row: Row) -> None:
        self.query_one("#compare-match", Painted).paint(lambda width, _h: [fit(row, width)])

    # -- moving together -----------------------------------------------------------------------------------

    def _shift_of_steps(self, lanes: tuple[Lanes, Lanes]) -> int:
        return shift_between(lanes[0].trace, lanes[1].trace)

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
        """Mark the same work in the other timeline, and say how it changed."""
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
        self._say(matched_row((self._lanes[0].trace, self._lanes[1].trace), pair))

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
            self._align(self._lanes, self._shift_of_steps(self._lanes), 0)
            self._say([(" the first steps are aligned", "dim")])
        return True
