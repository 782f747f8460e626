"""The keys of a trace on the screen: id, keys, action, label, explanation."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

from tuiprof.tui.terminal.keys import key


def _key(
    name: str, keys: str, action: str, label: str, tooltip: str, group: str, display: str | None = None
) -> Binding:
    """A key that the line of keys shows only when its group is not about moving around."""
    shown = group == "Trace"
    return key(
        keys, action, label, tooltip, id=f"trace.{name}", group=group.strip(), show=shown, display=display
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
    """A key that calls a method of :class:`~tuiprof.tui.timeline.navigation.Navigation`, such as ``zoom, 2.0``."""
    method, comma, arguments = move.partition(", ")
    return _key(name, keys, f"timeline({method!r}{comma}{arguments})", label, tooltip, group, display)


_HIDDEN: Final = "Trace "

KEYS: Final[tuple[Binding, ...]] = (
    # Of the three keys that zoom the line of keys shows one entry, which zooms in.
    _move(
        "zoom_in",
        "plus,equals_sign",
        "zoom, 2.0",
        "zoom",
        "Zoom in, zoom out, show everything",
        "Trace",
        "+ - 0",
    ),
    _key("filter", "slash", "filter", "filter", "Filter rows by text or expression", "Trace", "/"),
    _move("next_sync", "n", "sync, True", "next sync", "Go to the next host wait or search hit", "Trace"),
    _move(
        "previous_sync",
        "N",
        "sync, False",
        "previous sync",
        "Go to the previous host wait or search hit",
        _HIDDEN,
    ),
    _move(
        "follow",
        "f",
        "follow, 0",
        "launch ↔ work",
        "Go from a launch to its work, or from a sync to the work it waited for",
        "Trace",
    ),
    _move(
        "follow_last",
        "F",
        "follow, -1",
        "sync → delayed",
        "Go from a sync to the work it delayed, and back",
        _HIDDEN,
    ),
    _key(
        "window",
        "w",
        "window",
        "window",
        "Analyse only the selection or step; press again for everything",
        "Trace",
    ),
    _key("export", "e", "export", "export", "Write a report to a file", "Trace"),
    _key("compare", "c", "compare", "compare", "Compare with another trace, session or rung", "Trace"),
    _key("table", "t", "table", "table", "Show the next table of this analysis", "Trace"),
    _key("columns", "v", "columns", "columns", "Choose the columns to show", _HIDDEN),
    _key("rules", "r", "rules", "rules", "Show definitions, rules and thresholds", "Trace"),
    _key("trust", "i", "trust", "trust", "Show what is missing from this trace", _HIDDEN),
    _move("zoom_out", "minus", "zoom, 0.5", "zoom out", "Zoom out", display="-"),
    _move("fit", "0", "fit", "all time", "Show the whole trace"),
    _move("nested", "d", "nested", "nested lanes", "Show or hide operators and Python functions"),
    _move("zoom_to", "z", "zoom_to", "zoom to", "Zoom to the selection, window or step"),
    _move("next_step", "right_curly_bracket", "step, True", "next step", "Go to the next step", display="}"),
    _move(
        "previous_step",
        "left_curly_bracket",
        "step, False",
        "previous step",
        "Go to the previous step",
        display="{",
    ),
    _move(
        "measure", "m", "measure", "measure", "Measure from the cursor; press again to keep the measurement"
    ),
    _move("bookmark", "b", "bookmark", "bookmark", "Set or clear a bookmark at the cursor"),
    _move(
        "next_bookmark",
        "apostrophe",
        "next_bookmark",
        "next bookmark",
        "Go to the next bookmark",
        display="'",
    ),
    _move("bookmarks", "B", "bookmarks", "bookmarks", "List the bookmarks"),
    *(_key(f"tab_{n}", str(n), f"open({n})", f"tab {n}", f"Open tab {n}", "Tabs") for n in range(1, 10)),
    _key("next_tab", "greater_than_sign", "next_tab(1)", "next tab", "Go to the next tab", "Tabs", ">"),
    _key(
        "previous_tab",
        "less_than_sign",
        "next_tab(-1)",
        "previous tab",
        "Go to the previous tab",
        "Tabs",
        "<",
    ),
    _key("more_tabs", "M", "more_tabs", "more", "Show unavailable tabs and why", "Tabs"),
    _key("advice", "a", "open('advice')", "advice", "Show what to change, largest saving first", "Tabs"),
    _key(
        "next_finding",
        "right_square_bracket",
        "finding(1)",
        "next finding",
        "Show the next finding",
        "Trace",
        "]",
    ),
    _key(
        "previous_finding",
        "left_square_bracket",
        "finding(-1)",
        "previous finding",
        "Show the previous finding",
        _HIDDEN,
        "[",
    ),
    _key(
        "replay",
        "p",
        "replay",
        "with fix",
        "Show the simulated step with this fix below the captured one",
        "Trace",
    ),
    _key(
        "as_captured",
        "U",
        "as_captured",
        "as captured",
        "Switch between captured figures and figures without the profiler",
        _HIDDEN,
    ),
    _key("show_finding", "o", "show_finding", "show", "Show the finding's event on the timeline", _HIDDEN),
    _key("copy_fix", "C", "copy_fix", "copy fix", "Copy the fix", _HIDDEN),
    _key("prove", "P", "prove", "prove", "Copy the command that measures the fix", _HIDDEN),
    _key("escape", "escape", "escape", "back", "Close details, filter, search, selection or window", _HIDDEN),
)
