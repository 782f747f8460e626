"""Content below a table and in the detail pane beside it, without widgets.

Below are the row under the cursor in full, with its advice, and the first rows of the following tables. The detail
pane shows everything about a row or an event; collecting that may read files, so it is done in a worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.cells import chop_cells

from tuiprof.analyses.shared.compiled.instructions import Place, place_of, source_of
from tuiprof.model.report import Report, Table, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_bytes, format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.timeline.state import Link, links_of
from tuiprof.tui.timeline.view import link_words
from tuiprof.tui.widgets.frame_rows import GAP, FrameRows, lay_out
from tuiprof.tui.widgets.lines import Row, fit, row_width
from tuiprof.tui.widgets.spans import fit_text, labelled, wrap

Answer = Report | Unavailable
#: Name of the tab with the table of all events.
EVENTS: Final = "events"
#: Key of the column with the title of the analysis that explains a row; enter opens it.
MORE_IN: Final = "more_in"

_LABEL_WIDTH: Final = 13
#: From this width on, lists and advice are shown beside the other fields.
_TWO_COLUMNS: Final = 130
_COLUMN_GAP: Final = 4
#: In tables with more rows, text columns are not checked for values, which would take too long.
_MAX_CHECKED_ROWS = 100_000
#: Longer text counts as a sentence.
_MAX_WORD = 20
#: Columns of advice, the fix first, and their labels.
_ADVICE: Final = {"instead": "fix", "because": "why", "proof": "proof"}
_FIX: Final = "instead"
#: Lines of a table besides its rows: a gap, its title, its headings.
_TABLE_LINES: Final = 3
#: Minimum number of rows to show of a longer table.
_MIN_ROWS: Final = 3
_MAX_RAW_CHARS = 32_768
_MAX_SOURCE_BYTES = 4_000_000
_SOURCE_LINES = 4  # around a location
_MAX_WORK = 8
_MAX_FRAMES = 40
_DETAIL_LABEL_WIDTH = 16
# Kineto writes "file.py(85): function", the probe "file.py:91 function".
_LOCATION = re.compile(r"(?P<file>[^\s()'\"]+\.py)(?:\((?P<in_frame>\d+)\)|:(?P<in_site>\d+))")


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a row."""

    label: str
    lines: tuple[str, ...]  # sanitized; one line, unless it is a list
    complete: bool = False  # whether it is completely visible in the table
    strong: bool = False  # whether it says what to do
    beside: bool = False  # whether it is a list or advice, which may be shown beside the other fields


def fields_of(table: Table, source: int, complete: set[str], advice: Report | None) -> list[Field]:
    """Return the fields of a row: numbers that the table does not show, the recommended fix, all text, its reasons.

    Hidden columns are included if they have a definition, and of hidden numbers only sizes.
    """
    row = table.rows.row(source, named=True)
    numbers: list[str] = []
    texts: list[Field] = []
    for column in table.columns:
        value = row.get(column.key)
        if value is None or value == "" or (column.hidden and not column.help):
            continue
        label = sanitize(column.label)
        text = value if isinstance(value, str) else column.text(value)
        lines = tuple(sanitize(line) for line in text.splitlines() if line)
        if column.key == MORE_IN:
            lines = tuple(f"{line}: enter opens it" for line in lines)
        if not column.right_aligned or (column.hidden and column.kind == "bytes"):
            strong, is_list = column.key == _FIX, len(lines) > 1
            texts += [Field(label, lines, column.key in complete, strong, is_list)] if lines else []
        elif column.key not in complete and not column.hidden:
            numbers.append(f"{label} {' '.join(lines)}")
    also = [Field("also", (" · ".join(numbers),))] if numbers else []
    found = _advice_on(row, advice)
    return [*also, *found[:1], *texts, *found[1:]]


def _advice_on(row: dict[str, Any], advice: Report | None) -> list[Field]:
    """Return the advice on the same event, else on the same line of code."""
    event, where = row.get("event"), row.get("where")
    for table in advice.tables if advice is not None else ():
        keys = table.rows.columns
        if _FIX not in keys or _FIX in row:
            continue
        for key, same in (("event", pl.col("event").eq_missing(event)), ("where", _names_line(where))):
            if key in keys and row.get(key) is not None:
                found = table.rows.filter(same)
                if len(found):
                    finding = found.row(0, named=True)
                    return [
                        Field(label, (sanitize(str(finding[name])),), strong=name == _FIX, beside=True)
                        for name, label in _ADVICE.items()
                        if finding.get(name)
                    ]
    return []


def _names_line(where: object) -> pl.Expr:
    """Match text that contains a location (``file.py:line``); anything else matches nothing."""
    if not isinstance(where, str) or ".py:" not in where:
        return pl.lit(value=False)
    # The blank keeps line 9 from matching line 93.
    return (pl.col("where") + " ").str.contains(where + " ", literal=True)


def field_rows(fields: list[Field], width: int, height: int) -> list[Row]:
    """Return the fields as rows, lists and advice beside the others if there is room.

    If there are too few lines, fields that the table shows completely are left out, and the fix comes first.
    """
    rows = _arranged(fields, width)
    if height and len(rows) > height:
        short = [field for field in fields if not field.complete]
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
    left_rows = [row for field in left for row in _rows(field, width // 2 - _COLUMN_GAP)]
    start = max(map(row_width, left_rows)) + _COLUMN_GAP
    right_rows = [row for field in beside for row in _rows(field, width - start)]
    empty: Row = []
    return [
        [*first, (" " * (start - row_width(first)), "text"), *second] if second else first
        for first, second in zip_longest(left_rows, right_rows, fillvalue=empty)
    ]


def _rows(field: Field, width: int) -> list[Row]:
    room = max(width - _LABEL_WIDTH - 2, 12)
    lines = [part for line in field.lines for part in wrap(line, room)]
    return labelled(f" {fit_text(field.label, _LABEL_WIDTH)} ", lines, "strong" if field.strong else "text")


@dataclass(frozen=True, slots=True)
class NextTable:
    """A table that follows the current one."""

    title: str  # sanitized
    rows: FrameRows
    empty: str  # text for no rows; sanitized

    @property
    def max_lines(self) -> int:
        """Lines needed to show all rows."""
        return _TABLE_LINES + max(len(self.rows), 1)

    @property
    def min_lines(self) -> int:
        """Lines needed to show any of it."""
        return _TABLE_LINES + min(max(len(self.rows), 1), _MIN_ROWS)


def next_tables(tables: Sequence[NextTable], width: int, room: int) -> list[Row]:
    """Return as many tables as fit into ``room`` lines, in order, each with as many rows as fit."""
    lines: list[int] = []
    for table in tables:
        if sum(lines) + table.min_lines > room:
            break
        lines.append(table.min_lines)
    spare = room - sum(lines)
    out: list[Row] = []
    for i, (table, least) in enumerate(zip(tables, lines, strict=False)):
        more = min(spare, table.max_lines - least)
        spare -= more
        out += [[], _title(table, first=not i), *_first_rows(table, width, least + more - _TABLE_LINES)]
    return out


def _title(table: NextTable, *, first: bool) -> Row:
    count = len(table.rows)
    row: Row = [(f" {table.title}", "title"), (f"  {format_count(count)} row{'s' * (count != 1)}", "dim")]
    return [*row, ("  t", "key"), (" shows it", "dim")] if first else row


def _first_rows(table: NextTable, width: int, max_rows: int) -> list[Row]:
    rows, count = table.rows, len(table.rows)
    if not count:
        return [[(f" {table.empty or 'no rows'}", "dim")]]
    shown = max_rows if count <= max_rows else max_rows - 1
    layout = lay_out(rows.headings, rows.text, range(shown), max(width - 2, 0))
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
    """Return the keys of the columns to show by default.

    Secondary columns and columns without values are left out. In a table of prose, so are all columns of sentences but
    the first: they are shown in full below the table.
    """
    shown = [column for column in table.columns if not (column.hidden or column.secondary)]
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
        sentences += longest > _MAX_WORD
        if longest <= _MAX_WORD or sentences == 1:
            kept.append(column.key)
    return kept


def _has_values(values: pl.Series) -> bool:
    if values.null_count() == len(values):
        return False
    return values.dtype != pl.String or len(values) > _MAX_CHECKED_ROWS or bool((values != "").any())


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Source code around a location."""

    path: Path
    line: int
    lines: tuple[tuple[int, str], ...]  # number and text


@dataclass(frozen=True, slots=True)
class RowDetail:
    """Details of a table row; all text is untrusted."""

    title: str  # of the table
    cells: tuple[tuple[str, str], ...]  # heading and text
    excerpt: Excerpt | None = None  # of a file it names, if that is on this machine


@dataclass(frozen=True, slots=True)
class EventDetail:
    """Details of an event; other events are given as rows of the trace. All text is untrusted."""

    row: int
    name: str
    fields: tuple[tuple[str, str], ...]  # label and value
    launch: int | None  # the host call that launched it; None = not device work, or not recorded
    links: tuple[Link, ...]
    work: tuple[int, ...]  # the first device events it launched
    work_count: int  # number of device events it launched
    chain: tuple[int, ...]  # enclosing events of it or its launch, innermost first, without Python frames
    frames: tuple[int, ...]  # enclosing Python frames, innermost first
    excerpt: Excerpt | None  # of the innermost frame whose file is on this machine
    raw: str  # the event as in the file; empty = not available in this format
    raw_cut: int  # number of characters that were cut off


def describe(trace: Trace, row: int) -> EventDetail:
    """Collect the details of an event."""
    launch = int(trace.links.launch_of[row])
    work = trace.launched_by(row)
    enclosing = trace.ancestors(launch if launch >= 0 else row)
    python = trace.is_category("python_function")
    frames = tuple(r for r in enclosing if python[r])
    chain = tuple(r for r in enclosing if not python[r])
    raw = trace.raw_event(row)
    place = place_of(trace, row)
    compiled = place.instruction.frames if place is not None else ()
    return EventDetail(
        row=row,
        name=trace.name(row),
        fields=(*_fields(trace, row, launch), *(_compiled(place) if place is not None else ())),
        launch=launch if launch >= 0 else None,
        links=links_of(trace, row, slow=True),
        work=tuple(work[:_MAX_WORK].tolist()),
        work_count=len(work),
        chain=chain,
        frames=frames,
        excerpt=first_excerpt([*compiled, *map(trace.name, frames)], near=trace.info.path),
        raw=raw[:_MAX_RAW_CHARS],
        raw_cut=max(0, len(raw) - _MAX_RAW_CHARS),
    )


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
            ("launch latency", f"{format_ns(latency)} from the end of the launch to the start of this event")
        )
    for key, label in (("correlation", "correlation"), ("external_id", "external id")):
        if event[key] is not None and event[key] > 0:
            fields.append((label, str(event[key])))
    if event["bytes"] is not None:
        size = event["bytes"]
        rate = f", {format_bytes(size * 1e9 / (end - start))}/s" if end > start else ""
        fields.append(("moved", f"{format_bytes(size)} ({format_count(size)} bytes){rate}"))
    return fields


def _compiled(place: Place) -> Iterator[tuple[str, str]]:
    """Yield what the compiled program says of what an event carries out."""
    one = place.instruction
    if line := source_of(one):
        yield "line", line
    if one.op_name:
        yield "operation", one.op_name
    yield "instruction", f"{one.name} of {place.program.name}"


def first_excerpt(texts: Sequence[str], near: Path | None = None) -> Excerpt | None:
    """Return the source code around the first location in these untrusted texts whose file is on this machine.

    Relative names are also looked up beside the file of the trace.
    """
    for match in (match for text in texts for match in _LOCATION.finditer(text[:4096])):
        digits = match["in_frame"] or match["in_site"]
        path = _find_source(match["file"], near) if len(digits) < 8 else None
        lines = _read_source(path) if path is not None else []
        if path is not None and (line := int(digits)) <= len(lines):
            # A frame has the first line of its function: show the lines after it.
            before = _SOURCE_LINES if match["in_site"] else 0
            start = max(0, line - 1 - before)
            found = lines[start : line + 2 * _SOURCE_LINES - before]
            return Excerpt(path, line, tuple(enumerate(found, start + 1)))
    return None


def _find_source(name: str, near: Path | None) -> Path | None:
    """Return the regular file of this name, or of this name relative to the trace; None = there is none."""
    candidates = [Path(name)]
    if near is not None and not candidates[0].is_absolute():
        candidates.append(near.parent / name)
    for path in candidates:
        try:
            if path.is_file() and path.stat().st_size <= _MAX_SOURCE_BYTES:
                return path
        except (OSError, ValueError):  # no permission, or an invalid name
            continue
    return None


def _read_source(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _field(label: str, value: str, width: int, role: str = "text") -> list[Row]:
    lines = wrap(sanitize(value), max(width - _DETAIL_LABEL_WIDTH - 1, 12))
    return labelled(fit_text(label, _DETAIL_LABEL_WIDTH) + " ", lines, role)


def _section(title: str) -> list[Row]:
    return [[], [(title, "title")]]


def row_detail_rows(detail: RowDetail, width: int) -> list[Row]:
    """Return the detail pane's rows for a table row: its cells and the source code."""
    rows: list[Row] = [[(line, "title")] for line in wrap(sanitize(detail.title), width)]
    for label, value in detail.cells:
        rows += _field(sanitize(label), value, width, "strong")
    if detail.excerpt is not None:
        rows += _excerpt_rows(detail.excerpt, width)
    return rows


def event_rows(trace: Trace, event: EventDetail, width: int) -> list[Row]:
    """Return the detail pane's rows for an event: fields, links, enclosing events, source code, raw text."""
    rows: list[Row] = [[(line, "strong")] for line in wrap(sanitize(event.name), width)]
    for label, value in event.fields:
        rows += _field(label, value, width)
    if event.launch is not None:
        rows += _section("launched by  (f goes there)")
        rows += _named(trace, event.launch, width)
    if event.work:
        count = (
            f"{format_count(event.work_count)} device events" if event.work_count > 1 else "one device event"
        )
        rows += _section(f"launched {count}  (f goes to the first)")
        for row in event.work:
            rows += _named(trace, row, width)
        if event.work_count > len(event.work):
            rows.append([(f"  and {format_count(event.work_count - len(event.work))} more", "dim")])
    for link in event.links:
        if link.relation not in ("launches", "launched by"):
            key_name = "f" if link is event.links[0] else "F"
            rows += _section(f"{link.relation}  ({key_name} goes there)")
            rows += _named(trace, link.row, width)
            between = link_words(trace, event.row, link).rpartition(", ")[2]
            rows.append([(" " * 11 + between, "dim")])
    if event.chain:
        rows += _section(
            "enclosed by, innermost first" + ("" if event.launch is None else " (of its launch)")
        )
        for row in event.chain[:_MAX_FRAMES]:
            rows += _named(trace, row, width)
    if event.frames:
        rows += _section("Python stack, innermost first (line = first line of the function)")
        for row in event.frames[:_MAX_FRAMES]:
            rows += [[("  " + line, "text")] for line in wrap(sanitize(trace.name(row)), max(width - 2, 8))]
    if event.excerpt is not None:
        rows += _excerpt_rows(event.excerpt, width)
    rows += _section("raw")
    if not event.raw:
        rows.append([("not available in this format", "dim")])
    for raw in event.raw.splitlines():
        rows += [[(line, "dim")] for line in chop_cells(sanitize(raw.expandtabs(4)), max(width, 8))]
    if event.raw_cut:
        rows.append([(f"… {format_count(event.raw_cut)} more characters", "warn")])
    return rows


def _named(trace: Trace, row: int, width: int) -> list[Row]:
    """Return duration and name of an event in up to two lines."""
    head = f"{format_ns(trace.length(row)):>9}  "
    return labelled(head, wrap(sanitize(trace.name(row)), max(width - len(head), 12), max_lines=2))


def _excerpt_rows(excerpt: Excerpt, width: int) -> list[Row]:
    rows = _section(f"source  {sanitize(str(excerpt.path))}:{excerpt.line}")
    for number, text in excerpt.lines:
        here = number == excerpt.line
        line = f"{'▸' if here else ' '}{number:>6}  {sanitize(text.expandtabs(4))}"
        rows.append([(fit_text(line, width), "strong" if here else "dim")])
    return rows
