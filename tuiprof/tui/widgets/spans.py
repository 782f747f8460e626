"""Styled text before it is drawn: spans, the rows they make up, and the choices of a list. No Textual here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

#: Text and its role, which says what colour of the theme it takes.
Span = tuple[str, str]
Row = list[Span]
#: Draws a line for a width in cells.
LineOf = Callable[[int], Row]


def row_width(row: Row) -> int:
    """Return the number of cells a row takes."""
    return sum(cell_len(text) for text, _ in row)


def fit(row: Row, width: int, ellipsis: str = "…") -> Row:
    """Return the row cut to a width, with an ellipsis where something was cut."""
    if row_width(row) <= width:
        return row
    if width <= 0:
        return []
    out: Row = []
    left = width - cell_len(ellipsis)
    for text, role in row:
        size = cell_len(text)
        if size > left:
            out.append((set_cell_size(text, max(0, left)).rstrip() + ellipsis, role))
            break
        out.append((text, role))
        left -= size
    return out


def spread(left: Row, right: Row, width: int) -> Row:
    """Return a row with one part at each edge; where both do not fit, the right one is dropped."""
    gap = width - row_width(left) - row_width(right)
    if gap < 2:
        return fit(left, width)
    return [*left, (" " * gap, "text"), *right]


def join(parts: list[Row], separator: Span) -> Row:
    """Return rows one after the other with a separator between; empty ones are left out."""
    out: Row = []
    for part in parts:
        if part:
            out.extend([separator, *part] if out else part)
    return out


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a list to choose from.

    Attributes:
        key: Identifies the line; empty = a heading or a remark, which the cursor skips.
        line: What to draw, or a function of the width in cells that draws it.
        indent: Cells in front of it that hold the cursor mark.
    """

    key: str
    line: Row | LineOf
    indent: int = 2

    def draw(self, width: int) -> Row:
        """Return the line, at most ``width`` cells where it depends on the width."""
        return self.line(width) if callable(self.line) else self.line
