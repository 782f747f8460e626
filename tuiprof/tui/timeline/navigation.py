"""The keys of a trace, and the moves of its timeline: to steps, waits, links, search hits and bookmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from textual.binding import Binding

from tuiprof.tui.dialogs.dialog import PickScreen
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.state import Search
from tuiprof.tui.timeline.view import instant_words, offset_text

if TYPE_CHECKING:
    from tuiprof.tui.timeline.timeline import Timeline

_NO_BOOKMARKS = "no bookmarks yet: b sets one at the cursor"


def _key(
    name: str,
    keys: str,
    action: str,
    label: str,
    tooltip: str,
    group: str = "Trace",
    display: str | None = None,
) -> Binding:
    """Return a binding, shown in the key bar if its group is ``Trace``; ``Trace-`` is the same group, not shown."""
    return key(
        keys,
        action,
        label,
        tooltip,
        id=f"trace.{name}",
        group=group.rstrip("-"),
        show=group == "Trace",
        display=display,
    )


def _move(
    name: str,
    keys: str,
    move: str,
    label: str,
    tooltip: str,
    group: str = "Timeline",
    display: str | None = None,
) -> Binding:
    """Return a binding that calls a method of :class:`Navigation`, for example ``zoom, 2.0``."""
    method, comma, arguments = move.partition(", ")
    return _key(name, keys, f"timeline({method!r}{comma}{arguments})", label, tooltip, group, display)


#: The keys of a trace. The key bar shows one entry for the three zoom keys.
KEYS: Final[tuple[Binding, ...]] = (
    _move("zoom_in", "plus,equals_sign", "zoom, 2.0", "zoom", "Zoom in, zoom out, show everything", "Trace", "+ - 0"),
    _key("filter", "slash", "filter", "filter", "Filter rows by text or expression", display="/"),
    _move("next_sync", "n", "sync, True", "next sync", "Go to the next host wait or search hit", "Trace"),
    _move("previous_sync", "N", "sync, False", "previous sync", "Go to the previous host wait or search hit", "Trace-"),
    _move("follow", "f", "follow, 0", "launch ↔ work",
          "Go from a launch to its work, or from a sync to the work it waited for", "Trace"),
    _move("follow_last", "F", "follow, -1", "sync → delayed",
          "Go from a sync to the work it delayed, and back", "Trace-"),
    _key("window", "w", "window", "window", "Analyse only the selection or step; press again for everything"),
    _key("export", "e", "export", "export", "Write a report to a file"),
    _key("compare", "c", "compare", "compare", "Compare with another trace, session or variant"),
    _key("table", "t", "table", "table", "Show the next table of this analysis"),
    _key("columns", "v", "columns", "columns", "Choose the columns to show", "Trace-"),
    _key("rules", "r", "rules", "rules", "Show definitions, rules and thresholds"),
    _key("trust", "i", "trust", "trust", "Show what is missing from this trace", "Trace-"),
    _move("zoom_out", "minus", "zoom, 0.5", "zoom out", "Zoom out", display="-"),
    _move("fit", "0", "fit", "all time", "Show the whole trace"),
    _move("nested", "d", "nested", "nested lanes", "Show or hide operators and Python functions"),
    _move("zoom_to", "z", "zoom_to", "zoom to", "Zoom to the selection, window or step"),
    _move("next_step", "right_curly_bracket", "step, True", "next step", "Go to the next step", display="}"),
    _move("previous_step", "left_curly_bracket", "step, False", "previous step", "Go to the previous step",
          display="{"),
    _move("measure", "m", "measure", "measure", "Measure from the cursor; press again to keep the measurement"),
    _move("bookmark", "b", "bookmark", "bookmark", "Set or clear a bookmark at the cursor"),
    _move("next_bookmark", "apostrophe", "next_bookmark", "next bookmark", "Go to the next bookmark", display="'"),
    _move("bookmarks", "B", "bookmarks", "bookmarks", "List the bookmarks"),
    *(_key(f"tab_{n}", str(n), f"open({n})", f"tab {n}", "Open the tab of this number", "Tabs") for n in range(1, 10)),
    _key("next_tab", "greater_than_sign", "next_tab(1)", "next tab", "Go to the next tab", "Tabs", ">"),
    _key("previous_tab", "less_than_sign", "next_tab(-1)", "previous tab", "Go to the previous tab", "Tabs", "<"),
    _key("more_tabs", "M", "more_tabs", "more", "Show unavailable tabs and why", "Tabs"),
    _key("advice", "a", "open('advice')", "advice", "Show what to change, largest saving first", "Tabs"),
    _key("next_finding", "right_square_bracket", "finding(1)", "next finding", "Show the next finding", display="]"),
    _key("previous_finding", "left_square_bracket", "finding(-1)", "previous finding", "Show the previous finding",
         "Trace-", "["),
    _key("replay", "p", "replay", "with fix", "Show the simulated step with this fix below the captured one"),
    _key("as_captured", "U", "as_captured", "as captured",
         "Switch between captured figures and figures without the profiler", "Trace-"),
    _key("show_finding", "o", "show_finding", "show", "Show the finding's event on the timeline", "Trace-"),
    _key("copy_fix", "C", "copy_fix", "copy fix", "Copy the fix", "Trace-"),
    _key("prove", "P", "prove", "prove", "Copy the command that measures the fix", "Trace-"),
    _key("escape", "escape", "escape", "back", "Close details, filter, search, selection or window", "Trace-"),
)  # fmt: skip


class Navigation:
    """Timeline actions of the trace and compare screens; keys call the public methods."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._state = timeline.state

    def zoom(self, factor: float) -> None:
        """Zoom in (factor above 1) or out, around the cursor."""
        self._state.zoom(factor)

    def fit(self) -> None:
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
        state = self._state
        if state.has_nested:
            state.show_nested(not state.nested)
        else:
            self._timeline.notify("this trace has no operators or Python functions", timeout=3)

    def step(self, forward: bool) -> None:
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
        """Return the index of the step under the cursor; None = the cursor is in no step."""
        if self._state.lanes is None:
            return None
        steps, cursor = self._state.lanes.steps, self._state.cursor
        index = int(np.searchsorted(steps.starts, cursor, side="right")) - 1
        return index if index >= 0 and cursor < steps.ends[index] else None

    # -- events and their links ----------------------------------------------------------------------------

    def sync(self, forward: bool) -> None:
        """Go to the next or the previous search hit; without a search, to a host wait."""
        lanes, search = self._state.lanes, self._state.search
        if lanes is None:
            return
        if search is not None:
            self._go_to_hit(search, self._state.event, forward)
        elif not self._timeline.show_next_event(lanes.syncs, forward):
            text = "no host waits in this trace"
            if len(lanes.syncs):
                text = f"no host wait {'after' if forward else 'before'} the cursor"
            self._timeline.notify(text, timeout=3)

    def follow(self, position: int = 0) -> None:
        """Go to a linked event: 0 = the launch, the launched work or the awaited work; -1 = the last link."""
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
        """Search the names of all events, in a worker because ten million events take a while."""
        if (lanes := self._state.lanes) is not None:

            def work() -> None:
                self._timeline.call_later(self._show_hits, lanes, Search.of(lanes, needle), go)

            self._timeline.run_worker(work, thread=True, exclusive=True, group="search", exit_on_error=False)

    def _show_hits(self, lanes: Lanes, search: Search, go: bool) -> None:
        if lanes is not self._state.lanes:  # more of the file was read in the meantime
            self.search(search.needle, go=go)
        elif go and not len(search.hits):
            self._timeline.notify(f"no event has {search.needle!r} in its name", timeout=4)
        else:
            self._set_search(search)
            if go:
                self._go_to_hit(search, None, True)

    def _go_to_hit(self, search: Search, event: int | None, forward: bool) -> None:
        position = search.step(self._state.cursor, event, forward)
        if position is not None:
            self._timeline.show_event(int(search.hits.rows[position]))

    def end_search(self) -> bool:
        """Clear the search; return whether there was one."""
        if self._state.search is None:
            return False
        self._set_search(None)
        return True

    def _set_search(self, search: Search | None) -> None:
        self._state.set_search(search)
        self._timeline.refresh_bindings()

    def key_label(self, name: str) -> str:
        """Return what a key does now, by its id, if that is not what its binding says; empty = it is."""
        return "next match" if name == "trace.next_sync" and self._state.search is not None else ""

    # -- bookmarks and measuring ---------------------------------------------------------------------------

    def bookmark(self) -> None:
        self._state.toggle_bookmark()

    def next_bookmark(self) -> None:
        """Go to the next bookmark, wrapping around."""
        marks = self._state.bookmarks
        if marks:
            self._state.go_to(next((at for at in marks if at > self._state.cursor), marks[0]))
        else:
            self._timeline.notify(_NO_BOOKMARKS, timeout=3)

    def bookmarks(self) -> None:
        """Show a list of the bookmarks to choose from."""
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
        """Start measuring at the cursor, or stop; the measured range stays marked."""
        self._state.toggle_mark()
        if self._state.mark is not None:
            self._timeline.notify(
                "measuring from here: move the cursor; m keeps it, w analyses only this range, escape cancels",
                timeout=4,
            )
