"""Content shown around the table of an answer: below it and in the detail pane beside it. No widgets.

Below: the row under the cursor in full, with its advice, and the first rows of the following tables. Beside: a row or
an event with all that is known about it; raw text and source may come from the disk, so a worker gathers it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from rich.cells import chop_cells

from tuiprof.model.report import Report, Table, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_bytes, format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.timeline.state import Link, links_of
from tuiprof.tui.timeline.view import link_words
from tuiprof.tui.widgets.lines import Row, fit, row_width
from tuiprof.tui.widgets.rows import GAP, Rows, fit_text, lay_out
from tuiprof.tui.widgets.spans import wrap

Answer = Report | Unavailable
#: Name of the tab that shows the table of all events, whose rows are the events themselves.
EVENTS: Final = "events"
#: Column that names the analysis which explains a row; enter goes there.
MORE_IN: Final = "more_in"

_LABEL: Final = 13
#: From this width on, long values are shown beside the fields.
_TWO_COLUMNS: Final = 130
_BETWEEN: Final = 4
#: In longer tables text columns are not checked for being empty: that would delay the key.
_MOST_ASKED = 100_000
#: Texts up to this many characters are words rather than sentences.
_WORD = 20
_ADVICE: Final = ("instead", "because", "proof")
#: Lines around the rows of a table: a gap, its title, its headings.
_AROUND: Final = 3
#: Minimum number of rows shown of a longer table.
_FEWEST: Final = 3
_RAW_LIMIT = 32_768
_SOURCE_LIMIT = 4_000_000
_SOURCE_AROUND = 4
_MOST_WORK = 8
_MOST_FRAMES = 40
_DETAIL_LABEL = 16
# Kineto writes "file.py(85): function", a probe's sync site "file.py:91 function".
_LOCATION = re.compile(r"(?P<file>[^\s()'\"]+\.py)(?:\((?P<in_frame>\d+)\)|:(?P<in_site>\d+))")


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a row."""

    label: str  # its heading
    lines: tuple[str, ...]  # its text, safe for a terminal; one line, unless it is a list
    whole: bool = False  # whether the table shows it whole
    strong: bool = False  # whether it is what to act upon
    beside: bool = False  # whether it is not of the row itself, or a list: it may be shown beside the others


def fields_of(table: Table, source: int, whole: set[str], advice: Report | None) -> list[Field]:
    """Return the content of a row: figures that have no room, what to do instead, every text, why that is so.

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
    """Return the advice on the same event, else on the same line."""
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


@dataclass(frozen=True, slots=True)
class NextTable:
    """A table that comes after the one that shows; ``title`` and ``empty``, for no rows, are safe for a terminal."""

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


def default_columns(table: Table) -> list[str]:
    """Return the keys of the columns that show unless the user chose others.

    A column without any value is left out. Of a table of sentences only the first is a column of its own; the others
    are shown in full below the table.
    """
    shown = [column for column in table.columns if not column.hidden]
    if len(table.rows):
        shown = [column for column in shown if column is shown[0] or _has_values(table.rows[column.key])]
    if not table.prose:
        return [column.key for column in shown]
    kept: list[str] = []
    sentences = 0
    for column in shown:
        longest = 0
        if not column.right_aligned and column.elide != "start":
            longest = int(table.rows[column.key].cast(str).str.len_chars().max() or 0)  # type: ignore[arg-type]
        sentences += longest > _WORD
        if longest <= _WORD or sentences == 1:
            kept.append(column.key)
    return kept


def _has_values(values: pl.Series) -> bool:
    if values.null_count() == len(values):
        return False
    return values.dtype != pl.String or len(values) > _MOST_ASKED or bool((values != "").any())


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Source text around a line of a file: number and text of each line."""

    path: Path
    line: int
    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RowDetail:
    """One row of a table, whole."""

    title: str  # title of the table
    cells: tuple[tuple[str, str], ...]  # heading and text of each column
    excerpt: Excerpt | None = None  # source text of the line it names, where that is on this machine


@dataclass(frozen=True, slots=True)
class EventDetail:
    """Content of the detail pane for an event; all texts are untrusted."""

    row: int  # row in the event table
    name: str  # its name, whole
    fields: tuple[tuple[str, str], ...]  # label and value of each known figure
    launch: int | None  # row of the host call that launched it; None = not device work, or not recorded
    #: What it is linked with: launch or work first, what a sync waited for and delayed.
    links: tuple[Link, ...]
    work: tuple[int, ...]  # rows of the device work it launched, first ones only
    work_count: int  # how many there are in all
    chain: tuple[int, ...]  # rows that enclose the call, innermost first, Python frames left out
    frames: tuple[int, ...]  # rows of the Python frames that enclose it, innermost first
    excerpt: Excerpt | None  # source text, where the file is on this machine
    raw: str  # the event as written in the file; empty when the format does not keep it
    raw_cut: int  # how many characters of it were left out


def describe(trace: Trace, row: int) -> EventDetail:
    """Gather everything about an event."""
    launch = int(trace.links.launch_of[row])
    work = _launched_by(trace, row)
    host = launch if launch >= 0 else row
    enclosing = trace.ancestors(host)
    python = trace.is_category("python_function")
    frames = tuple(r for r in enclosing if python[r])
    chain = tuple(r for r in enclosing if not python[r])
    raw = trace.raw_event(row)
    return EventDetail(
        row=row,
        name=trace.name(row),
        fields=tuple(_fields(trace, row, launch)),
        launch=launch if launch >= 0 else None,
        links=links_of(trace, row, slow=True),
        work=tuple(work[:_MOST_WORK].tolist()),
        work_count=len(work),
        chain=chain,
        frames=frames,
        excerpt=first_excerpt([trace.name(r) for r in frames], near=trace.info.path),
        raw=raw[:_RAW_LIMIT],
        raw_cut=max(0, len(raw) - _RAW_LIMIT),
    )


def _launched_by(trace: Trace, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the device work a call launched, in order of start."""
    launches = trace.links.launches
    index = int(np.searchsorted(launches, row))
    if index >= len(launches) or launches[index] != row:
        return np.empty(0, dtype=np.int64)
    work = trace.device_work
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = work[trace.links.launch_of[work] == row]
    return found


def _fields(trace: Trace, row: int, launch: int) -> list[tuple[str, str]]:
    start, end = int(trace.starts[row]), int(trace.ends[row])
    event = trace.events.row(row, named=True)
    fields = [
        ("category", str(event["category"])),
        ("start", format_ns(start - trace.span[0]) + " after the start of the trace"),
        ("duration", format_ns(end - start)),
        ("track", trace.tracks[event["track"]].name),
    ]
    step = int(trace.steps.step_of[row])
    if step >= 0:
        fields.append(("step", str(trace.steps.numbers[step])))
    if launch >= 0:
        latency = start - int(trace.ends[launch])
        fields.append(
            ("launch latency", f"{format_ns(latency)} from the end of the launching call to the start here")
        )
    for key, label in (("correlation", "correlation"), ("external_id", "external id")):
        if event[key] is not None and event[key] > 0:
            fields.append((label, str(event[key])))
    if event["bytes"] is not None:
        size = event["bytes"]
        rate = f", {format_bytes(size * 1e9 / (end - start))}/s" if end > start else ""
        fields.append(("moved", f"{format_bytes(size)} ({format_count(size)} bytes){rate}"))
    return fields


def first_excerpt(texts: Sequence[str], near: Path | None = None) -> Excerpt | None:
    """Return source text around the first line that is named and is on this machine.

    Args:
        texts: Names of frames, innermost first, or cells of a table; untrusted.
        near: A path relative to which names are resolved.
    """
    for match in (match for text in texts for match in _LOCATION.finditer(text[:4096])):
        digits = match["in_frame"] or match["in_site"]
        path = _find_source(match["file"], near) if len(digits) < 8 else None
        lines = _read_source(path) if path is not None else []
        if path is not None and (line := int(digits)) <= len(lines):
            # A frame names the first line of its function: the lines after it are more useful than those before.
            before = _SOURCE_AROUND if match["in_site"] else 0
            begin = max(0, line - 1 - before)
            around = lines[begin : line + 2 * _SOURCE_AROUND - before]
            return Excerpt(path, line, tuple(enumerate(around, begin + 1)))
    return None


def _find_source(name: str, near: Path | None) -> Path | None:
    """Return the regular file named in a trace, if it exists; relative names also relative to the trace."""
    tried = [Path(name)]
    if near is not None and not tried[0].is_absolute():
        tried.append(near.parent / name)
    for path in tried:
        try:
            if path.is_file() and path.stat().st_size <= _SOURCE_LIMIT:
                return path
        except (OSError, ValueError):  # no permission, a name too long or with a zero byte: not there for us
            continue
    return None


def _read_source(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # gone or unreadable since: the pane then shows no source
        return []


def _field(label: str, value: str, width: int, role: str = "text") -> list[Row]:
    lines = wrap(sanitize(value), max(width - _DETAIL_LABEL - 1, 12))
    heads = [fit_text(label, _DETAIL_LABEL), *[" " * _DETAIL_LABEL] * (len(lines) - 1)]
    return [[(head + " ", "dim"), (line, role)] for head, line in zip(heads, lines, strict=True)]


def _section(title: str) -> list[Row]:
    return [[], [(title, "title")]]


def row_detail_rows(detail: RowDetail, width: int) -> list[Row]:
    """Return the cells of a row below one another, each whole, and the source that they name."""
    rows: list[Row] = [[(line, "title")] for line in wrap(sanitize(detail.title), width)]
    for label, value in detail.cells:
        rows += _field(sanitize(label), value, width, "strong")
    if detail.excerpt is not None:
        rows += _excerpt_rows(detail.excerpt, width)
    return rows


def event_rows(trace: Trace, event: EventDetail, width: int) -> list[Row]:
    """Return all that is known about an event: figures, links, what encloses it, source, raw text."""
    rows: list[Row] = [[(line, "strong")] for line in wrap(sanitize(event.name), width)]
    for label, value in event.fields:
        rows += _field(label, value, width)
    if event.launch is not None:
        rows += _section("launched by  (l jumps there)")
        rows += _named(trace, event.launch, width)
    if event.work:
        count = (
            f"{format_count(event.work_count)} device events" if event.work_count > 1 else "one device event"
        )
        rows += _section(f"launched {count}  (l jumps to the first)")
        for row in event.work:
            rows += _named(trace, row, width)
        if event.work_count > len(event.work):
            rows.append([(f"  and {format_count(event.work_count - len(event.work))} more", "dim")])
    for link in event.links:
        if link.relation not in ("launches", "launched by"):
            key_name = "l" if link is event.links[0] else "L"
            rows += _section(f"{link.relation}  ({key_name} jumps there)")
            rows += _named(trace, link.row, width)
            said = link_words(trace, event.row, link).rpartition(", ")[2]
            rows.append([(" " * 11 + said, "dim")])
    if event.chain:
        rows += _section(
            "enclosed by, innermost first" + ("" if event.launch is None else " (of its launch)")
        )
        for row in event.chain[:_MOST_FRAMES]:
            rows += _named(trace, row, width)
    if event.frames:
        rows += _section("Python stack, innermost first (line = first line of the function)")
        for row in event.frames[:_MOST_FRAMES]:
            rows += [[("  " + line, "text")] for line in wrap(sanitize(trace.name(row)), max(width - 2, 8))]
    if event.excerpt is not None:
        rows += _excerpt_rows(event.excerpt, width)
    rows += _section("raw")
    if not event.raw:
        rows.append([("this format has no raw text", "dim")])
    for raw in event.raw.splitlines():
        rows += [[(line, "dim")] for line in chop_cells(sanitize(raw.expandtabs(4)), max(width, 8))]
    if event.raw_cut:
        rows.append([(f"… {format_count(event.raw_cut)} more characters", "warn")])
    return rows


def _named(trace: Trace, row: int, width: int) -> list[Row]:
    """One event in a line: duration, category, name."""
    duration = format_ns(int(trace.ends[row] - trace.starts[row]))
    head = f"{duration:>9}  "
    lines = wrap(sanitize(trace.name(row)), max(width - len(head), 12), most=2)
    rows: list[Row] = [[(head, "dim"), (lines[0], "text")]]
    return rows + [[(" " * len(head), "dim"), (line, "text")] for line in lines[1:]]


def _excerpt_rows(excerpt: Excerpt, width: int) -> list[Row]:
    rows = _section(f"source  {sanitize(str(excerpt.path))}:{excerpt.line}")
    for number, text in excerpt.lines:
        here = number == excerpt.line
        line = f"{'▸' if here else ' '}{number:>6}  {sanitize(text.expandtabs(4))}"
        rows.append([(fit_text(line, width), "strong" if here else "dim")])
    return rows
