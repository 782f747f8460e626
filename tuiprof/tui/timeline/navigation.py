"""Moving in the time of a trace: what the keys of a trace view do with its timeline."""

from __future__ import annotations

from functools import partial

import numpy as np
from textual.containers import Vertical
from textual.message import Message

from tuiprof.model.trace import Trace
from tuiprof.model.window import Window
from tuiprof.tui.dialogs.pick import PickScreen
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.marks import Search
from tuiprof.tui.timeline.readout import offset_text, read_out
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.widgets.prompt_line import PromptLine


class TraceTime(Vertical):
    """The part of a trace view that moves in time.

    Attributes:
        trace: The trace.
        window: The part that the analyses look at.
    """

    trace: Trace
    window: Window

    class Followed(Message):
        """The timeline went to the other side of a link.

        Attributes:
            row: Row of the event there.
        """

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class Searched(Message):
        """A search is done.

        Attributes:
            lanes: What was searched.
            search: What was found.
            go: Whether to go to the first hit.
        """

        def __init__(self, lanes: Lanes, search: Search, go: bool) -> None:
            super().__init__()
            self.lanes = lanes
            self.search = search
            self.go = go

    @property
    def timeline(self) -> Timeline:
        """The timeline."""
        return self.query_one(Timeline)

    def action_zoom(self, factor: float) -> None:
        """Zoom the timeline around its cursor."""
        self.timeline.zoom(factor)

    def action_fit(self) -> None:
        """Show the whole trace."""
        self.timeline.fit()

    def action_zoom_to(self) -> None:
        """Zoom to the selection, else the window, else the step under the cursor."""
        chosen = self.timeline.chosen_range or (None if self.window.whole else self.trace.bounds(self.window))
        if chosen is None and (index := self._step_at_cursor()) is not None:
            chosen = int(self.trace.steps.starts[index]), int(self.trace.steps.ends[index])
        if chosen is None:
            self.notify("select with shift+← →, or put the cursor into a step", timeout=3)
        else:
            self.timeline.fit(*chosen)

    def action_sync(self, forward: bool) -> None:
        """Go to the next or the previous hit of the search; without one, host wait."""
        lanes, search = self.timeline.lanes, self.timeline.search
        if lanes is None:
            return
        if search is not None:
            self._go_to_hit(search, forward)
            return
        if self.timeline.go_to_event(lanes.syncs, forward) is None:
            where = "after" if forward else "before"
            self.notify(
                f"no host wait {where} the cursor" if len(lanes.syncs) else "no host waits in this trace",
                timeout=3,
            )

    def action_step(self, forward: bool) -> None:
        """Go to the next or the previous step."""
        starts = self.trace.steps.starts
        cursor = self.timeline.cursor
        place = int(np.searchsorted(starts, cursor, side="right" if forward else "left")) - (not forward)
        if 0 <= place < len(starts):
            self.timeline.go_to(int(starts[place]))
        elif not len(starts):
            self.notify("this trace marks no steps", timeout=3)

    def _step_at_cursor(self) -> int | None:
        steps, cursor = self.trace.steps, self.timeline.cursor
        index = int(np.searchsorted(steps.starts, cursor, side="right")) - 1
        return index if index >= 0 and cursor < steps.ends[index] else None

    # -- events and their links ----------------------------------------------------------------------------

    def action_follow(self, place: int = 0) -> None:
        """Jump from work to its launch, from a launch to its work, from a sync to what it waited for or delayed.

        Args:
            place: Which of its links: 0 = the first, -1 = the last.
        """
        timeline = self.timeline
        if timeline.event is None:
            timeline.take_event(timeline.event_under_cursor())
        if timeline.event is None:
            self.notify("choose an event first: , and . go to one, a click does it too", timeout=3)
        elif not timeline.links:
            self.notify(
                "nothing in this trace launched this event, waited for it or was launched by it", timeout=3
            )
        else:
            timeline.show_event(timeline.links[place].row)
            self.post_message(self.Followed(timeline.event))

    # -- search --------------------------------------------------------------------------------------------

    def on_timeline_search_wanted(self) -> None:
        """Ask for a text."""
        line = self.query_one("#search", PromptLine)
        line.open(self.timeline.search.needle if self.timeline.search is not None else "")

    def on_prompt_line_done(self, message: PromptLine.Done) -> None:
        """Search, in a worker: of ten million events it takes a moment."""
        message.stop()
        self.timeline.focus()
        lanes = self.timeline.lanes
        if lanes is None or not message.text:
            self.end_search()
            return
        self.search_for(lanes, message.text, go=True)

    def search_for(self, lanes: Lanes, needle: str, *, go: bool) -> None:
        """Search the names of all events, in a worker.

        Args:
            lanes: What the timeline shows.
            needle: The text.
            go: Whether to go to the first hit then.
        """
        work = partial(self._search, lanes, needle, go)
        self.run_worker(work, thread=True, exclusive=True, group="search", exit_on_error=False)

    def _search(self, lanes: Lanes, needle: str, go: bool) -> None:
        """In a thread."""
        self.post_message(self.Searched(lanes, Search.of(lanes, needle), go))

    def on_trace_time_searched(self, message: Searched) -> None:
        """Show what was found, and go to the first from the cursor on, unless the hits were only looked up anew."""
        message.stop()
        lanes = self.timeline.lanes
        if lanes is None:
            return
        if message.lanes is not lanes:  # more of the file was read meanwhile
            self.search_for(lanes, message.search.needle, go=message.go)
            return
        if not message.go:
            self.timeline.search = message.search
            self.timeline.relay()
            self.refresh_bindings()
            return
        if not len(message.search.hits):
            self.notify(f"no event has {message.search.needle!r} in its name", timeout=4)
            return
        self.timeline.search = message.search
        self.timeline.event = None
        self._go_to_hit(message.search, True)
        self.refresh_bindings()

    def _go_to_hit(self, search: Search, forward: bool) -> None:
        place = search.step(self.timeline.cursor, self.timeline.event, forward)
        if place is not None:
            self.timeline.show_event(int(search.hits.rows[place]))

    def end_search(self) -> bool:
        """Forget the search; return whether there was one."""
        if self.timeline.search is None:
            return False
        self.timeline.search = None
        self.timeline.relay()
        self.refresh_bindings()
        return True

    # -- bookmarks and measuring ---------------------------------------------------------------------------

    def action_bookmark(self) -> None:
        """Set a bookmark at the cursor, or take away the one that stands there."""
        timeline = self.timeline
        column = timeline.view.column_of(timeline.cursor)
        here = [at for at in timeline.bookmarks if timeline.view.column_of(at) == column]
        kept = [at for at in timeline.bookmarks if at not in here]
        timeline.bookmarks = sorted(kept if here else [*kept, timeline.cursor])
        timeline.refresh()

    def action_next_bookmark(self) -> None:
        """Go to the next bookmark, around the end of the trace."""
        marks = self.timeline.bookmarks
        if not marks:
            self.notify("no bookmarks yet: b sets one at the cursor", timeout=3)
            return
        self.timeline.go_to(next((at for at in marks if at > self.timeline.cursor), marks[0]))

    def action_bookmarks(self) -> None:
        """Choose a bookmark out of a list."""
        timeline, lanes = self.timeline, self.timeline.lanes
        if not timeline.bookmarks or lanes is None:
            self.notify("no bookmarks yet: b sets one at the cursor", timeout=3)
            return
        marks = list(timeline.bookmarks)
        precision = timeline.view.span // timeline.view.columns
        names = [
            f"{offset_text(at - timeline.view.first, precision):>14}  {read_out(lanes, timeline.visible_lanes, at)}"
            for at in marks
        ]

        def go(chosen: int | None) -> None:
            if chosen is not None:
                timeline.go_to(marks[chosen])

        self.app.push_screen(PickScreen("bookmarks", names), go)

    def action_measure(self) -> None:
        """Measure from the cursor on, or stop measuring."""
        timeline = self.timeline
        timeline.mark = timeline.cursor if timeline.mark is None else None
        if timeline.mark is not None:
            self.notify("measuring from here: move the cursor, m ends it, w looks at it alone", timeout=4)
        timeline.refresh()
