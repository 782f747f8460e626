"""Moves a timeline to steps, host waits, links, search matches, and bookmarks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tuiprof.tui.dialogs.dialog import PickScreen
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.readout import instant_words, offset_text
from tuiprof.tui.timeline.search import Search

if TYPE_CHECKING:
    from tuiprof.tui.timeline.timeline import Timeline

_NO_BOOKMARKS = "no bookmarks yet: b sets one at the cursor"


class Navigation:
    """Timeline actions of the trace and comparison screens; each method without ``_`` belongs to a key."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._state = timeline.state

    def zoom(self, factor: float) -> None:
        """Zoom around the cursor; above 1 shows less time."""
        self._state.zoom(factor)

    def fit(self) -> None:
        """Show the whole trace."""
        self._state.fit()

    def zoom_to(self) -> None:
        """Zoom to the selection, else the window, else the step under the cursor."""
        state = self._state
        if state.lanes is None:
            return
        chosen, trace, steps = state.chosen_range, state.lanes.source, state.lanes.steps
        if chosen is None and not state.window.whole:
            chosen = trace.bounds(state.window)
        if chosen is None and (index := self.step_at_cursor()) is not None:
            chosen = int(steps.starts[index]), int(steps.ends[index])
        if chosen is None:
            self._timeline.notify("select a range with shift+← →, or put the cursor in a step", timeout=3)
        else:
            state.fit(*chosen)

    def nested(self) -> None:
        """Draw the lanes of operators and Python functions, or leave them out."""
        state = self._state
        if state.has_nested:
            state.show_nested(not state.nested)
        else:
            self._timeline.notify("this trace has no operators or Python functions", timeout=3)

    def step(self, forward: bool) -> None:
        """Go to the next or the previous step."""
        if self._state.lanes is None:
            return
        starts = self._state.lanes.steps.starts
        cursor = self._state.cursor
        position = int(np.searchsorted(starts, cursor, side="right" if forward else "left")) - (not forward)
        if 0 <= position < len(starts):
            self._state.go_to(int(starts[position]))
        elif not len(starts):
            self._timeline.notify("this trace marks no steps", timeout=3)

    def step_at_cursor(self) -> int | None:
        """Return which step of the trace the cursor is in; None = none."""
        if self._state.lanes is None:
            return None
        steps, cursor = self._state.lanes.steps, self._state.cursor
        index = int(np.searchsorted(steps.starts, cursor, side="right")) - 1
        return index if index >= 0 and cursor < steps.ends[index] else None

    # -- events and their links ----------------------------------------------------------------------------

    def sync(self, forward: bool) -> None:
        """Go to the next or the previous hit of the search; without one, host wait."""
        lanes, search = self._state.lanes, self._state.search
        if lanes is None:
            return
        if search is not None:
            self._go_to_hit(search, self._state.event, forward)
        elif not self._timeline.show_next_event(lanes.syncs, forward):
            where = "after" if forward else "before"
            none = f"no host wait {where} the cursor" if len(lanes.syncs) else "no host waits in this trace"
            self._timeline.notify(none, timeout=3)

    def follow(self, position: int = 0) -> None:
        """Jump from work to its launch, from a launch to its work, from a sync to what it waited for or delayed.

        Args:
            position: Which of the links: 0 = the first, -1 = the last.
        """
        timeline, state = self._timeline, self._state
        if state.event is None:
            timeline.choose_event(state.event_under_cursor())
        if state.event is None:
            timeline.notify("select an event first, with , and . or a click", timeout=3)
        elif not state.links:
            timeline.notify("this event is not linked to any other", timeout=3)
        else:
            row = state.links[position].row
            timeline.show_event(row)
            timeline.post_message(timeline.Followed(row))

    # -- search --------------------------------------------------------------------------------------------

    def search(self, needle: str, *, go: bool = True) -> None:
        """Search the names of all events, in a worker: of ten million events it takes a moment."""
        if self._state.lanes is not None:
            work = partial(self._look_up, self._state.lanes, needle, go)
            self._timeline.run_worker(work, thread=True, exclusive=True, group="search", exit_on_error=False)

    def _look_up(self, lanes: Lanes, needle: str, go: bool) -> None:
        """In a thread."""
        self._timeline.call_later(self._found, lanes, Search.of(lanes, needle), go)

    def _found(self, lanes: Lanes, search: Search, go: bool) -> None:
        if lanes is not self._state.lanes:  # more of the file was read in the meantime
            self.search(search.needle, go=go)
        elif go and not len(search.hits):
            self._timeline.notify(f"no event has {search.needle!r} in its name", timeout=4)
        else:
            self._state.set_search(search)
            if go:
                self._go_to_hit(search, None, True)

    def _go_to_hit(self, search: Search, event: int | None, forward: bool) -> None:
        position = search.step(self._state.cursor, event, forward)
        if position is not None:
            self._timeline.show_event(int(search.hits.rows[position]))

    def end_search(self) -> bool:
        """Forget the search; return whether there was one."""
        if self._state.search is None:
            return False
        self._state.set_search(None)
        return True

    # -- bookmarks and measuring ---------------------------------------------------------------------------

    def bookmark(self) -> None:
        """Set a bookmark at the cursor, or remove the one that is there."""
        self._state.toggle_bookmark()

    def next_bookmark(self) -> None:
        """Go to the next bookmark, around the end of the trace."""
        marks = self._state.bookmarks
        if marks:
            self._state.go_to(next((at for at in marks if at > self._state.cursor), marks[0]))
        else:
            self._timeline.notify(_NO_BOOKMARKS, timeout=3)

    def bookmarks(self) -> None:
        """Choose a bookmark out of a list."""
        state, lanes = self._state, self._state.lanes
        if not state.bookmarks or lanes is None:
            self._timeline.notify(_NO_BOOKMARKS, timeout=3)
            return
        marks, view = list(state.bookmarks), state.view
        names = [
            f"{offset_text(at - view.first, view.span // view.columns):>14}"
            f"  {instant_words(lanes, state.visible_lanes, at)}"
            for at in marks
        ]

        def go(chosen: int | None) -> None:
            if chosen is not None:
                state.go_to(marks[chosen])

        self._timeline.app.push_screen(PickScreen("bookmarks", names), go)

    def measure(self) -> None:
        """Measure from the cursor on, or stop measuring; what was measured stays marked."""
        self._state.toggle_mark()
        if self._state.mark is not None:
            self._timeline.notify(
                "measuring from here: move the cursor; m keeps it, w analyses only this range, escape cancels",
                timeout=4,
            )
