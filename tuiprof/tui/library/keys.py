"""The keys of the library."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from tuiprof.tui.terminal.keys import key

_library = partial(key, group="Library")
_sessions = partial(key, group="Sessions")


def library_keys() -> list[BindingType]:
    """Return the bindings of the library, in the order of the line of keys."""
    return [
        _library("r", "run", "run", "Run the variant under the cursor", id="library.run"),
        _library(
            "l", "ladder", "ladder", "Measure the whole ladder or show its results", id="library.ladder"
        ),
        _library("s", "source", "source", "Show the script", id="library.source"),
        _sessions("R", "replay", "replay", "Replay the session from the start", id="library.replay"),
        _sessions("space", "mark", "mark", "Mark the session for comparison", id="library.mark"),
        _sessions("c", "compare", "compare", "Compare the two marked sessions", id="library.compare"),
        _sessions("t", "tags", "tags", "Edit the session's tags", id="library.tags", show=False),
        _sessions("m", "note", "note", "Write a note on the session", id="library.note", show=False),
        _library("o", "open_file", "open a file", "Open a trace or session by path", id="library.open_file"),
        _library("e", "example", "example", "Open the example trace", id="library.example"),
        _library("P", "python", "Python", "Choose the Python that scripts run in", id="library.python"),
        _library(
            "slash",
            "filter",
            "filter",
            "Filter the list by name, tag or note",
            id="library.filter",
            display="/",
            priority=True,  # before the keys typed after it: else a list takes them, and one of them starts a run
        ),
        _sessions(
            "delete",
            "delete",
            "delete",
            "Move it to the trash (asks first)",
            id="library.delete",
            display="del",
        ),
        _sessions("u", "undo", "undo delete", "Restore the last deleted session", id="library.undo"),
        _library(
            "right,tab",
            "into",
            "detail",
            "Go to the variants or the recent commands",
            id="library.into",
            show=False,
        ),
        _library("left,shift+tab", "back", "list", "Back to the list", id="library.back", show=False),
        _library("escape", "clear", "clear filter", "Clear the filter", id="library.clear", show=False),
        _library("q", "quit", "quit", "Quit tuiprof; runs continue", id="library.quit"),
    ]
