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
        "zoom_in", "plus,equals_sign", "zoom, 2.0", "zoom", "Show less time; - more, 0 all", "Trace", "+ - 0"
    ),
    _key("filter", "slash", "filter", "filter", "Rows with a text, or by an expression", "Trace", "/"),
    _move("next_sync", "n", "sync, True", "next sync", "To the next host wait, or hit of a search", "Trace"),
    _move("previous_sync", "N", "sync, False", "sync before", "To the wait or hit before", _HIDDEN),
    _move(
        "follow", "f", "follow, 0", "launch ↔ work", "From launch to work, sync to what it awaited", "Trace"
    ),
    _move(
        "follow_last", "F", "follow, -1", "sync → delayed", "To the work a sync delayed; back to it", _HIDDEN
    ),
    _key("window", "w", "window", "window", "Analyse the selection or step; again: all", "Trace"),
    _key("export", "e", "export", "export", "Write reports to a file", "Trace"),
    _key("compare", "c", "compare", "compare", "Compare with another trace, session or rung", "Trace"),
    _key("table", "t", "table", "table", "Next table of this analysis", "Trace"),
    _key("columns", "v", "columns", "columns", "Choose which columns show", _HIDDEN),
    _key("rules", "r", "rules", "rules", "Definitions, rules and thresholds", "Trace"),
    _key("trust", "i", "trust", "trust", "What this trace cannot tell", _HIDDEN),
    _move("zoom_out", "minus", "zoom, 0.5", "zoom out", "Show more time", display="-"),
    _move("fit", "0", "fit", "all time", "Show the whole trace"),
    _move("nested", "d", "nested", "nested lanes", "Show operators and Python functions, or close them"),
    _move("zoom_to", "z", "zoom_to", "zoom to", "Zoom to the selection, window or step"),
    _move("next_step", "right_curly_bracket", "step, True", "next step", "To the next step", display="}"),
    _move(
        "previous_step",
        "left_curly_bracket",
        "step, False",
        "step before",
        "To the step before",
        display="{",
    ),
    _move("measure", "m", "measure", "measure", "Measure from the cursor on; again: keep it"),
    _move("bookmark", "b", "bookmark", "bookmark", "Set or clear a bookmark at the cursor"),
    _move(
        "next_bookmark", "apostrophe", "next_bookmark", "next bookmark", "To the next bookmark", display="'"
    ),
    _move("bookmarks", "B", "bookmarks", "bookmarks", "List the bookmarks"),
    *(_key(f"tab_{n}", str(n), f"open({n})", f"tab {n}", f"Open tab {n}", "Tabs") for n in range(1, 10)),
    _key("next_tab", "greater_than_sign", "next_tab(1)", "next tab", "To the next tab", "Tabs", ">"),
    _key("previous_tab", "less_than_sign", "next_tab(-1)", "tab before", "To the tab before", "Tabs", "<"),
    _key("more_tabs", "M", "more_tabs", "more", "Tabs that are not available here, and why", "Tabs"),
    _key("advice", "a", "open('advice')", "advice", "What to change, by what it saves", "Tabs"),
    _key(
        "next_finding",
        "right_square_bracket",
        "finding(1)",
        "next finding",
        "The next thing to change",
        "Trace",
        "]",
    ),
    _key(
        "previous_finding",
        "left_square_bracket",
        "finding(-1)",
        "finding before",
        "The one before",
        _HIDDEN,
        "[",
    ),
    _key(
        "replay",
        "p",
        "replay",
        "with fix",
        "The step with this finding's fix, below the one that is",
        "Trace",
    ),
    _key(
        "as_captured",
        "U",
        "as_captured",
        "as captured",
        "Figures as captured, or without the profiler",
        _HIDDEN,
    ),
    _key("show_finding", "o", "show_finding", "show", "To the finding's event on the timeline", _HIDDEN),
    _key("copy_fix", "C", "copy_fix", "copy fix", "Copy what to write instead", _HIDDEN),
    _key("prove", "P", "prove", "prove", "Copy the command that shows it before and after", _HIDDEN),
    _key("escape", "escape", "escape", "back", "Close details, filter, search, selection, window", _HIDDEN),
)
