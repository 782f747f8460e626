"""The keys of a comparison: those of a trace that make sense on two, and its own."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.keys import KEYS as TRACE_KEYS

_SHARED: Final = (
    "filter", "next_sync", "previous_sync", "follow", "follow_last", "zoom_in", "zoom_out", "fit", "zoom_to",
    "next_step", "previous_step", "measure", "bookmark", "next_bookmark", "bookmarks", "next_tab", "previous_tab",
    "rules", "export", *(f"tab_{number}" for number in range(1, 10)),
)  # fmt: skip


def _key(keys: str, action: str, label: str, tooltip: str) -> Binding:
    return key(keys, action, label, tooltip, id=f"compare.{action}", group="Compare")


KEYS: Final[tuple[Binding, ...]] = (
    _key("t", "timelines", "timelines", "To the timelines and back to the table"),
    _key("x", "swap", "swap", "Let before and after change places"),
    *(binding for binding in TRACE_KEYS if (binding.id or "").removeprefix("trace.") in _SHARED),
    _key("escape", "escape", "back", "Clear filter and search, close the timelines, leave"),
)
