"""Reports as text for a terminal: the answer first, then its evidence, then the definitions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tuiprof.model import Column, Fact, Report, Table, Unavailable
from tuiprof.model.units import bind_units, unbind_units
from tuiprof.report import Renderer, Style, in_full
from tuiprof.report.charts import is_line, text_chart
from tuiprof.report.sanitize import clip, for_log, sanitize, to_ascii, width

SIGNS = {"good": "✓", "info": "·", "warn": "!", "bad": "✗"}
COLOURS = {"good": "32", "info": "36", "warn": "33", "bad": "31"}
#: A text column is never squeezed below this many cells.
_MIN_CELLS = 8
#: Nor below this many while another one can still give way.
_COMFORT = 20
#: A source line (a column that is cut at its start) keeps this many, or half the width: a row is about its file and
#: line.
_SOURCE_LINE = 24
_GAP = 2
#: Texts that would like this many times the width are printed row by row instead of as a table.
_TOO_WIDE = 1.5


def paint(text: str, code: str, style: Style) -> str:
    """Return text in a colour of the terminal, where colours may be used."""
    return f"\x1b[{code}m{text}\x1b[0m" if style.colour else text


def wrap(text: str, style: Style, first: str = "", rest: str | None = None) -> list[str]:
    """Break a sentence into lines of the style's width."""
    text = " ".join(sanitize(text).split())
    if style.width is None:
        return [first + text]
    lines = textwrap.wrap(
        bind_units(text),
        style.width,
        initial_indent=first,
        subsequent_indent=" " * width(first) if rest is None else rest,
        break_on_hyphens=False,
    )
    return [unbind_units(line) for line in lines] or [first]


def _facts(facts: Sequence[Fact], style: Style) -> list[str]:
    """Put known figures side by side, as many a line as fit."""
    pieces = [f"{sanitize(fact.label)} {sanitize(fact.text)}" for fact in facts if fact.value is not None]
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]} · {piece}" if lines else ""
        if lines and (style.width is None or width(joined) <= style.width):
            lines[-1] = joined
        else:
            lines.append(f"  {piece}")
    return [part for line in lines for part in wrap(line, style, "  ", "    ")]


def _fit(columns: list[Column], widths: list[int], style: Style) -> list[int]:
    """Shrink text columns until the table fits."""
    if style.width is None:
        return widths
    room = style.width - 2 - _GAP * (len(columns) - 1)
    texts = [i for i, column in enumerate(columns) if column.kind == "text"]
    for floor in (_COMFORT, _MIN_CELLS):
        # The last column first: what matters more is further left.
        for i in reversed(texts):
            spare = min(sum(widths) - room, widths[i] - _least(columns[i], widths[i], floor, style.width))
            widths[i] -= max(spare, 0)
    return widths


def _least(column: Column, natural: int, floor: int, room: int) -> int:
    """Return how many cells a column takes at least."""
    if column.kind != "text" or column.whole:
        return natural
    return min(natural, max(floor, min(_SOURCE_LINE, room // 2)) if column.elide == "start" else floor)


def _table(table: Table, style: Style) -> list[str]:
    columns = [column for column in table.columns if not column.hidden]
    lines = [paint(sanitize(table.title), "1", style)]
    if table.rows.is_empty():
        return [
            *lines,
            *wrap(table.empty, style, "  "),
            *(wrap(table.note, style, "  ") if table.note else []),
        ]
    rows = table.rows if style.rows is None or table.whole else table.rows.head(style.rows)
    cells = [
        [sanitize(" ⏎ ".join(c.text(v).split("\n"))) for v, c in zip(row, columns, strict=True)]
        for row in rows.select([column.key for column in columns]).iter_rows()
    ]
    heads = [sanitize(column.label) for column in columns]
    widths = [max(width(head), *(width(row[i]) for row in cells)) for i, head in enumerate(heads)]
    has_place = any(column.elide == "start" for column in columns)
    if style.width is not None and (
        (_texts(columns, widths) > _TOO_WIDE * style.width and not has_place)
        or (table.prose and 2 + sum(widths) + _GAP * (len(widths) - 1) > style.width)
    ):
        lines += _records(columns, heads, cells, style)
        if len(rows) < len(table.rows):
            lines += wrap(f"… {len(table.rows) - len(rows)} more; {in_full(len(table.rows))}", style, "  ")
        return lines + (wrap(table.note, style, "  ") if table.note else [])
    columns, widths, cells, heads, dropped = _drop(columns, widths, cells, heads, style)
    widths = _fit(columns, widths, style)
    lines.append(paint("  " + _line(heads, columns, widths), "2", style))
    faint = rows[table.faint].to_list() if table.faint else [False] * len(cells)
    drawn = (f"  {_line(row, columns, widths)}" for row in cells)
    lines += [paint(line, "2", style) if dim else line for line, dim in zip(drawn, faint, strict=True)]
    if len(rows) < len(table.rows):
        lines += wrap(f"… {len(table.rows) - len(rows)} more rows; {in_full(len(table.rows))}", style, "  ")
    if dropped:
        lines += wrap(f"columns left out for lack of width: {', '.join(dropped)}", style, "  ")
    if table.note:
        lines += wrap(table.note, style, "  ")
    return lines


def _texts(columns: Sequence[Column], widths: Sequence[int]) -> int:
    """Return how many cells the text columns would like to have; lines of code are rather cut than wrapped."""
    return sum(
        cells
        for column, cells in zip(columns, widths, strict=True)
        if column.kind == "text" and not column.code
    )


def _records(
    columns: Sequence[Column], heads: Sequence[str], cells: Sequence[Sequence[str]], style: Style
) -> list[str]:
    """Print rows of long texts one below the other: figures and first text, then the other texts by name."""
    lines: list[str] = []
    for row in cells:
        figures = [f"{h} {t}" for h, t, c in zip(heads, row, columns, strict=True) if c.kind != "text"]
        texts = [(h, t) for h, t, c in zip(heads, row, columns, strict=True) if c.kind == "text" and t]
        first = texts[0][1] if texts else ""
        lines += wrap(" · ".join([*figures, first]), style, "  ", "    ")
        for head, text in texts[1:]:
            lines += wrap(f"{head}: {text}", style, "    ", "      ")
    return lines


def _drop(
    columns: list[Column], widths: list[int], cells: list[list[str]], heads: list[str], style: Style
) -> tuple[list[Column], list[int], list[list[str]], list[str], list[str]]:
    """Leave out columns of a table that cannot fit even squeezed: the last first, but never the place.

    Where a row is about a place, the texts that follow it go before they are squeezed to stubs; else the last figures
    go before the name is.
    """
    dropped: list[str] = []
    if style.width is None:
        return columns, widths, cells, heads, dropped
    keep = list(range(len(columns)))
    place = next((i for i in keep if columns[i].elide == "start"), None)
    # What a row is about, else its name, is worth more than the last figures.
    about = place if place is not None else next((i for i in keep if columns[i].kind == "text"), 0)
    floors = [_COMFORT if i == about or (place is not None and i > place) else _MIN_CELLS for i in keep]
    room = style.width

    def least(indices: list[int]) -> int:
        sizes = (_least(columns[i], widths[i], floors[i], room) for i in indices)
        return 2 + sum(sizes) + _GAP * (len(indices) - 1)

    while len(keep) > 1 and least(keep) > room:
        last = max(i for i in keep if i != place)
        keep.remove(last)
        dropped.insert(0, heads[last])
    return (
        [columns[i] for i in keep],
        [widths[i] for i in keep],
        [[row[i] for i in keep] for row in cells],
        [heads[i] for i in keep],
        dropped,
    )


def _line(row: Sequence[str], columns: list[Column], widths: list[int]) -> str:
    parts = []
    for text, column, cells in zip(row, columns, widths, strict=True):
        text = clip(text, cells, column.elide or "middle")
        pad = " " * (cells - width(text))
        parts.append(pad + text if column.right_aligned else text + pad)
    return (" " * _GAP).join(parts).rstrip()


def report_lines(report: Report | Unavailable, style: Style) -> list[str]:
    """Return a report as lines for a terminal."""
    if isinstance(report, Unavailable):
        lines = wrap(f"{report.analysis}: unavailable: {report.reason}", style, "– ")
        return lines + (wrap(report.remedy, style, "  → ") if report.remedy else [])
    level = report.verdict.level
    title = f"{report.title}" + (f" · {report.window.label}" if report.window.label else "")
    lines = [paint(sanitize(title), "1", style)]
    lines += [
        paint(line, COLOURS[level], style)
        for line in wrap(report.verdict.sentence, style, f"{SIGNS[level]} ")
    ]
    lines += _facts(report.facts, style)
    for note in report.notes:
        lines += wrap(note, style, "  note: ", "        ")
    shown = [table for table in report.tables if style.details or not table.rows.is_empty()]
    left_out = [] if style.details else [table for table in shown[2:] if not table.whole]
    for table in (table for table in shown if table not in left_out):
        picture = text_chart(table, style)
        body = _table(table, style)
        # One heading for both: that of the chart says more.
        lines += ["", *([paint(picture[0], "1", style), *picture[1:], "", *body[1:]] if picture else body)]
    if left_out:
        more = ", ".join(f"{table.title} ({len(table.rows)})" for table in left_out)
        lines += ["", *wrap(f"also in --format md, html, csv and json: {more}", style, "  ")]
    if report.rules and style.rules:
        lines += ["", paint("rules", "2", style)]
        for rule in report.rules:
            lines += [
                paint(line, "2", style) for line in wrap(f"{rule.name}: {rule.text}", style, "  ", "    ")
            ]
    return lines


def pictures(tables: Sequence[Table], style: Style) -> list[str]:
    """Return tables as charts, each after a blank line; without a chart a series is left out, others are tables."""
    lines: list[str] = []
    for table in tables:
        picture = text_chart(table, style)
        if not picture and is_line(table):
            continue
        note = wrap(table.note, style, "  ") if picture and table.note else []
        drawn = [paint(picture[0], "1", style), *picture[1:]] if picture else _table(table, style)
        lines += ["", *drawn, *note]
    return lines


def _render(reports: Sequence[Report | Unavailable], trust: str, style: Style) -> str:
    blocks = [wrap(trust, style)] if trust else []
    blocks += [report_lines(report, style) for report in reports if isinstance(report, Report)]
    # Several captures of one run lack the same: said once.
    lacking = dict.fromkeys(report for report in reports if isinstance(report, Unavailable))
    gone = [line for report in lacking for line in report_lines(report, style)]
    if gone:
        blocks.append([paint("Not available here", "1", style), *gone] if len(reports) > 1 else gone)
    return document(blocks, style)


def document(blocks: Sequence[Sequence[str]], style: Style) -> str:
    """Return blocks of lines as one text, a blank line between them, in what the terminal can show."""
    text = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks) + "\n"
    return for_log("\n".join(map(to_ascii, text.split("\n"))) if style.plain else text)


RENDERER = Renderer("text", _render)
