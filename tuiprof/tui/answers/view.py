"""Shown below a table: its row in full, with its advice, and the first rows of the following tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import polars as pl

from tuiprof.model.report import Report, Table
from tuiprof.model.units import format_count
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.widgets.lines import Row, fit, row_width
from tuiprof.tui.widgets.rows import GAP, Rows, fit_text, lay_out
from tuiprof.tui.widgets.spans import wrap

_LABEL: Final = 13
#: From this width on, long values are shown beside the fields.
_TWO_COLUMNS: Final = 130
_BETWEEN: Final = 4
_ADVICE: Final = ("instead", "because", "proof")


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a row.

    Attributes:
        label: Its heading.
        lines: What it says, safe for a terminal; one line, unless it is a list.
        whole: Whether the table shows it whole.
        strong: Whether it is what to act upon.
        beside: Whether it is not of the row itself, or a list: it may stand beside the others.
    """

    label: str
    lines: tuple[str, ...]
    whole: bool = False
    strong: bool = False
    beside: bool = False


#: Column that names the analysis which explains a row; enter goes there.
MORE_IN: Final = "more_in"


def fields_of(table: Table, source: int, whole: set[str], advice: Report | None) -> list[Field]:
    """Return what a row says: figures that have no room, what to do instead, every text, why that is so.

    Columns that no table draws are listed where they have a definition; figures only where they are a size.
    """
    row = table.rows.row(source, named=True)
    figures: list[str] = []
    texts: list[Field] = []
    for column in table.columns:
        value = row.get(column.key)
        if value is None or value == "" or (column.hidden and not column.help):
            continue
        label = sanitize(column.label)
        text = value if isinstance(value, str) else column.text(value)
        lines = tuple(sanitize(line) for line in text.splitlines() if line)
        if column.key == MORE_IN:
            lines = tuple(f"{line}: enter goes there" for line in lines)
        if not column.right_aligned or (column.hidden and column.kind == "bytes"):
            strong, a_list = column.key == _ADVICE[0], len(lines) > 1
            texts += [Field(label, lines, column.key in whole, strong, a_list)] if lines else []
        elif column.key not in whole and not column.hidden:
            figures.append(f"{label} {' '.join(lines)}")
    found = [Field("also", (" · ".join(figures),))] if figures else []
    said = _advice_on(row, advice)
    return [*found, *said[:1], *texts, *said[1:]]


def _advice_on(row: dict[str, Any], advice: Report | None) -> list[Field]:
    """Return what the advice says to the same event, else to the same line."""
    event, where = row.get("event"), row.get("where")
    for table in advice.tables if advice is not None else ():
        keys = table.rows.columns
        if _ADVICE[0] not in keys or _ADVICE[0] in row:
            continue
        for key, same in (("event", pl.col("event").eq_missing(event)), ("where", _names_line(where))):
            if key in keys and row.get(key) is not None:
                found = table.rows.filter(same)
                if len(found):
                    said = found.row(0, named=True)
                    return [
                        Field(name, (sanitize(str(said[name])),), strong=name == _ADVICE[0], beside=True)
                        for name in _ADVICE
                        if said.get(name)
                    ]
    return []


def _names_line(where: object) -> pl.Expr:
    """Match texts that name a location, that is, a line of a file."""
    if not isinstance(where, str) or ".py:" not in where:
        return pl.lit(value=False)
    # A line number ends where its digits do: line 9 is not line 93.
    return (pl.col("where") + " ").str.contains(where + " ", literal=True)


def field_rows(fields: list[Field], width: int, height: int) -> list[Row]:
    """Return fields below one another, lists and advice beside them where there is room.

    Where there are too few lines, what the table shows whole is left out, and what to do comes first.
    """
    rows = _arranged(fields, width)
    if height and len(rows) > height:
        short = [field for field in fields if not field.whole]
        rows = _arranged(sorted(short, key=lambda field: not field.strong), width)
    if height and len(rows) > height:
        more: Row = [(" …  ", "dim"), ("enter", "key"), (" shows all", "dim")]
        last = rows[height - 1]
        rows = [*rows[: height - 1], [*fit(last, max(width - row_width(more), 0), ellipsis=""), *more]]
    return rows


def _arranged(fields: list[Field], width: int) -> list[Row]:
    beside = sorted((field for field in fields if field.beside), key=lambda field: len(field.lines) > 1)
    left = [field for field in fields if not field.beside]
    if width < _TWO_COLUMNS or not beside or not left:
        return [row for field in fields for row in _rows(field, width)]
    one = [row for field in left for row in _rows(field, width // 2 - _BETWEEN)]
    begin = max(map(row_width, one)) + _BETWEEN
    other = [row for field in beside for row in _rows(field, width - begin)]
    nothing: Row = []
    return [
        [*first, (" " * (begin - row_width(first)), "text"), *second] if second else first
        for first, second in zip_longest(one, other, fillvalue=nothing)
    ]


def _rows(field: Field, width: int) -> list[Row]:
    room = max(width - _LABEL - 2, 12)
    lines = [part for line in field.lines for part in wrap(line, room)]
    role = "strong" if field.strong else "text"
    return [
        [(" " + fit_text(field.label if not i else "", _LABEL) + " ", "dim"), (line, role)]
        for i, line in enumerate(lines)
    ]


#: Lines around the rows of a table: a gap, its title, its headings.
_AROUND: Final = 3
#: Minimum number of rows shown of a longer table.
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True)
class NextTable:
    """A table that comes after the one that shows.

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


def next_tables(tables: Sequence[NextTable], width: int, room: int) -> list[Row]:
    """Return as many tables as fit into the given lines, in order, each with as many rows as fit."""
    lines: list[int] = []
    for table in tables:
        if sum(lines) + table.least > room:
            break
        lines.append(table.least)
    spare = room - sum(lines)
    out: list[Row] = []
    for i, (table, least) in enumerate(zip(tables, lines, strict=False)):
        more = min(spare, table.needs - least)
        spare -= more
        out += [[], _title(table, first=not i), *_first_rows(table, width, least + more - _AROUND)]
    return out


def _title(table: NextTable, *, first: bool) -> Row:
    count = len(table.rows)
    row: Row = [(f" {table.title}", "title"), (f"  {format_count(count)} row{'s' * (count != 1)}", "dim")]
    return [*row, ("  t", "key"), (" goes there", "dim")] if first else row


def _first_rows(table: NextTable, width: int, most: int) -> list[Row]:
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
    out += [[(line([rows.text(i, index) for index, _ in columns]), "text")] for i in range(shown)]
    if shown < count:
        out.append([(f" … and {format_count(count - shown)} more", "dim")])
    return out
