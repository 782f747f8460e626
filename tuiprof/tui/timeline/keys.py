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


_HIDDEN: Final = "Trace "

KEYS: Final[tuple[Binding, ...]] = (
    _key("filter", "slash", "filter", "filter", "Rows with a text, or by an expression", "Trace", "/"),
    _key("next_sync", "n", "sync(True)", "next sync", "To the next host wait, or hit of a search", "Trace"),
    _key("previous_sync", "N", "sync(False)", "sync before", "To the wait or hit before", _HIDDEN),
    _key(
        "follow", "f", "follow(0)", "launch ↔ work", "From launch to work, sync to what it awaited", "Trace"
    ),
    _key(
        "follow_last", "F", "follow(-1)", "sync → delayed", "To the work a sync delayed; back to it", _HIDDEN
    ),
    _key("window", "w", "window", "window", "Analyse the selection or step; again: all", "Trace"),
    _key("export", "e", "export", "export", "Write reports to a file", "Trace"),
    _key("compare", "c", "compare", "compare", "Compare with another trace, session or rung", "Trace"),
    _key("table", "t", "table", "table", "Next table of this analysis", "Trace"),
    _key("columns", "v", "columns", "columns", "Choose which columns show", _HIDDEN),
    _key("rules", "r", "rules", "rules", "Definitions, rules and thresholds", "Trace"),
    _key("trust", "i", "trust", "trust", "What this trace cannot tell", _HIDDEN),
    _key("zoom_in", "plus,equals_sign", "zoom(2.0)", "zoom in", "Show less time", "Timeline", "+"),
    _key("zoom_out", "minus", "zoom(0.5)", "zoom out", "Show more time", "Timeline", "-"),
    _key("fit", "0", "fit", "all time", "Show the whole trace", "Timeline"),
    _key("zoom_to", "z", "zoom_to", "zoom to", "Zoom to the selection, window or step", "Timeline"),
    _key("next_step", "right_square_bracket", "step(True)", "next step", "To the next step", "Timeline", "]"),
    _key(
        "previous_step",
        "left_square_bracket",
        "step(False)",
        "step before",
        "To the step before",
        "Timeline",
        "[",
    ),
    _key("measure", "m", "measure", "measure", "Measure from the cursor on; again: end", "Timeline"),
    _key("bookmark", "b", "bookmark", "bookmark", "Set or clear a bookmark at the cursor", "Timeline"),
    _key(
        "next_bookmark",
        "apostrophe",
        "next_bookmark",
        "next bookmark",
        "To the next bookmark",
        "Timeline",
        "'",
    ),
    _key("bookmarks", "B", "bookmarks", "bookmarks", "List the bookmarks", "Timeline"),
    *(_key(f"tab_{n}", str(n), f"tab({n})", f"tab {n}", f"Open tab {n}", "Tabs") for n in range(1, 10)),
    _key("next_tab", "greater_than_sign", "next_tab(1)", "next tab", "To the next tab", "Tabs", ">"),
    _key("previous_tab", "less_than_sign", "next_tab(-1)", "tab before", "To the tab before", "Tabs", "<"),
    _key("advice", "a", "open('advice')", "advice", "What to change, by what it wins", "Tabs"),
    _key("escape", "escape", "escape", "back", "Close details, filter, search, selection, window", _HIDDEN),
)
