"""The first rows of tables that wait for their turn, drawn below the one that a person is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tuiprof.model.units import format_count
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.rows import GAP, Rows, fit_text, lay_out

#: Lines around the rows of a table: a gap, its title, its headings.
_AROUND: Final = 3
#: Fewer rows than this of a table that has more tell nothing.
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that is not chosen.

    Attributes:
        title: Its title, safe for a terminal.
        rows: Its rows.
        empty: What to say where it has none, safe for a terminal.
    """

    title: str
    rows: Rows
    empty: str

    @property
    def needs(self) -> int:
        """Lines that show it whole."""
        return _AROUND + max(len(self.rows), 1)

    @property
    def least(self) -> int:
        """Lines that show enough of it."""
        return _AROUND + min(max(len(self.rows), 1), _FEWEST)


def glimpses(tables: Sequence[Waiting], width: int, room: int) -> list[Row]:
    """Return as many tables as fit, in order, each with as many rows as there is room for.

    Args:
        tables: The tables, the next first.
        width: Cells.
        room: Lines.
    """
    lines: list[int] = []
    for table in tables:
        if sum(lines) + table.least > room:
            break
        lines.append(table.least)
    spare = room - sum(lines)
    out: list[Row] = []
    for place, (table, least) in enumerate(zip(tables, lines, strict=False)):
        more = min(spare, table.needs - least)
        spare -= more
        out += [[], _title(table, first=not place), *_rows(table, width, least + more - _AROUND)]
    return out


def _title(table: Waiting, *, first: bool) -> Row:
    count = len(table.rows)
    row: Row = [(f" {table.title}", "title"), (f"  {format_count(count)} row{'s' * (count != 1)}", "dim")]
    return [*row, ("  t", "key"), (" goes there", "dim")] if first else row


def _rows(table: Waiting, width: int, most: int) -> list[Row]:
    rows, count = table.rows, len(table.rows)
    if not count:
        return [[(f" {table.empty or 'no rows'}", "dim")]]
    shown = most if count <= most else most - 1
    layout = lay_out(rows, range(shown), max(width - 2, 0))
    columns = list(zip(layout.order, layout.widths, strict=True))
    gap = " " * GAP

    def line(texts: Sequence[str]) -> str:
        headings = rows.headings
        cells = (
            fit_text(text, cells, headings[index].right, headings[index].elide)
            for text, (index, cells) in zip(texts, columns, strict=True)
        )
        return " " + gap.join(cells)

    out: list[Row] = [[(line([rows.headings[index].label for index, _ in columns]), "dim")]]
    out += [[(line([rows.text(place, index) for index, _ in columns]), "text")] for place in range(shown)]
    if shown < count:
        out.append([(f" … and {format_count(count - shown)} more", "dim")])
    return out
