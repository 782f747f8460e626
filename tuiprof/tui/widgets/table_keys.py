"""The keys of a table: keys, action, label, explanation."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

from tuiprof.tui.terminal.keys import key


def _key(keys: str, action: str, label: str, tooltip: str, show: bool = False) -> Binding:
    return key(
        keys,
        action,
        label,
        tooltip.capitalize(),
        id=f"table.{label.replace(' ', '_')}",
        group="Table",
        show=show,
    )


KEYS: Final[tuple[Binding, ...]] = (
    _key("up,k", "move(-1)", "up", "one row up"),
    _key("down,j", "move(1)", "down", "one row down"),
    _key("pageup", "page(-1)", "page up", "one page up"),
    _key("pagedown", "page(1)", "page down", "one page down"),
    _key("home,g", "edge(False)", "first", "to the first row"),
    _key("end,G", "edge(True)", "last", "to the last row"),
    _key("left", "column(-1)", "column left", "one column left"),
    _key("right", "column(1)", "column right", "one column right"),
    _key("s", "sort", "sort", "sort by the column under the cursor", show=True),
    _key("enter", "select", "open", "open the row under the cursor", show=True),
    _key("y", "copy", "copy", "copy the row to the clipboard"),
    _key("Y", "copy_cell", "copy cell", "copy the cell to the clipboard"),
)
