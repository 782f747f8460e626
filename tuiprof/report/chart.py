"""Charts of text and Markdown reports, at most eight lines high, drawn by plotext.

Plotext draws the shapes only. Labels may hold names from a trace, whose cells it does not count, so they are put beside
its canvas here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tuiprof.model import Chart, Column, Table
from tuiprof.report import Style
from tuiprof.report.sanitize import clip, sanitize, width

#: Fewer points than this are read faster in the table.
_LEAST_POINTS: Final = 8
#: Title, canvas and axis are eight lines together; bars are a line each.
_CANVAS_LINES, _MOST_BARS = 6, 7
_MOST_CELLS, _LEAST_CELLS = 100, 40
#: Cells of the name of a bar.
_NAME: Final = 28
#: A value beyond so many times the 90th percentile is cut off and said in words: the others keep their shape.
_BEYOND: Final = 3.0


def chart(table: Table, style: Style) -> list[str]:
    """Draw a table as its :class:`~tuiprof.model.Chart` says, from zero, in at most eight lines.

    There are none where the table declares no chart, or is too short to be worth one.
    """
    if table.chart is None or not table.chart.in_text or not style.charts:
        return []
    room = max(min(style.width or _MOST_CELLS, _MOST_CELLS), _LEAST_CELLS)
    if table.chart.form == "bars":
        return _bars(table, table.chart, room)
    return _line(table, table.chart, room, style.plain)


def is_line(table: Table) -> bool:
    """Return whether a table is a series: many rows that matter only as a curve."""
    return table.chart is not None and table.chart.form == "line"


def scale_top(highs: Sequence[float]) -> float:
    """Return where the scale of a series ends: its highest value, unless a few are far beyond the others."""
    usual = sorted(highs)[int(0.9 * (len(highs) - 1))] * _BEYOND
    return min(max(highs), usual) if usual > 0 else max(highs)


def numbers(table: Table, key: str) -> list[float]:
    """Return a column as numbers; unknown ones are 0."""
    return [float(value or 0) for value in table.rows[key].to_list()]


def _line(table: Table, drawn: Chart, room: int, plain: bool) -> list[str]:
    """Draw a series; where there are more rows than columns of dots, the highest is drawn for its neighbours."""
    series = drawn.series[0]
    column = table.column(series.value)
    values = numbers(table, series.high or series.value)
    if len(values) < _LEAST_POINTS or max(values) <= 0:
        return []
    top = scale_top(values)
    labels = [column.text(top), column.text(0)]
    margin = max(map(len, labels))
    cells = room - margin - 4
    count = min(len(values), cells if plain else 2 * cells)
    bounds = list(pairwise(i * len(values) // count for i in range(count + 1)))
    heights = [min(max(values[low:high]), top) for low, high in bounds]
    plot = _canvas(cells, _CANVAS_LINES)
    plot.xlim(0, max(count - 1, 1))
    plot.ylim(0, top)
    marked = numbers(table, drawn.marked) if drawn.marked else [0.0]
    points = [i for i, (low, high) in enumerate(bounds) if any(marked[low:high])] if any(marked) else []
    # A stretch of marked points has a line at either end.
    for point in points:
        if point - 1 not in points or point + 1 not in points:
            plot.vline(point)
    plot.plot(list(range(count)), heights, marker="*" if plain else "braille")
    title = sanitize(drawn.title)
    if points:
        title += f" · │ {table.column(drawn.marked).label}"
    if beyond := sum(value > top for value in values):
        title += f" · {beyond} beyond the scale, highest {column.text(max(values))}"
    edges = [labels[0], *[""] * (_CANVAS_LINES - 2), labels[1]]
    lines = [f"  {edge:>{margin}} ┤{line}" for edge, line in zip(edges, _drawn(plot), strict=True)]
    return [clip(title, room, "end"), *lines, *_ends(table, drawn, margin + 4, room)]


def _ends(table: Table, drawn: Chart, indent: int, room: int) -> list[str]:
    """Return the line below a series: where it begins and ends."""
    if not drawn.at:
        return []
    column = table.column(drawn.at)
    first, last = (sanitize(_axis_label(column, table.rows[drawn.at][row])) for row in (0, -1))
    first = clip(first, (room - indent) // 2)
    last = clip(last, room - indent - width(first))
    return [" " * indent + first + " " * (room - indent - width(first) - width(last)) + last]


def _axis_label(column: Column, value: object) -> str:
    """Return where a row is on the axis, for example ``step 12``."""
    text = column.text(value)
    return f"{column.label} {text}" if column.kind in ("count", "text") else text


def _bars(table: Table, drawn: Chart, room: int) -> list[str]:
    """Draw a bar a row, from zero, with its interval where it has one."""
    series = drawn.series[0]
    column, about = table.column(series.value), table.column(drawn.at)
    share = next((one.key for one in table.columns if one.kind == "share" and not one.hidden), None)
    known = table.rows.drop_nulls(series.value)
    rows = known.head(_MOST_BARS)
    if rows.is_empty() or max(values := [float(value) for value in rows[series.value].to_list()]) <= 0:
        return []
    names = [clip(sanitize(about.text(value)), _NAME) for value in rows[drawn.at].to_list()]
    figures = [column.text(value) for value in values]
    shares = (
        [table.column(share).text(value) for value in rows[share].to_list()] if share else [""] * len(rows)
    )
    ends = [
        [
            float(high if high is not None else value)
            for high, value in zip(rows[key].to_list(), values, strict=True)
        ]
        if key
        else values
        for key in (series.low, series.high)
    ]
    name, figure, part = (max(map(width, texts)) for texts in (names, figures, shares))
    cells = room - 2 - name - figure - part - 2 * (3 if part else 2)
    plot = _canvas(cells, len(rows))
    # Half a cell is the finest a bar is drawn in; one below half a cell is still there.
    top = max(*ends[1], *values)
    plot.xlim(0, top)
    plot.ylim(0.5, len(rows) + 0.5)
    for row, (value, low, high) in zip(range(len(rows), 0, -1), zip(values, *ends, strict=True), strict=True):
        plot.plot([0, value], [row, row], marker="sd")
        if low < high:
            plot.plot([low, high], [row, row], marker="─")
            plot.plot([low, low], [row, row], marker="├")
            plot.plot([high, high], [row, row], marker="┤")
    title = sanitize(drawn.title)
    if len(known) > len(rows):
        title += f" · {len(rows)} of {len(known)}"
    lines = [
        f"  {label}{' ' * (name - width(label))}  {text:>{figure}}"
        + (f"  {of:>{part}}" if part else "")
        + f"  {bar}"
        for label, text, of, bar in zip(names, figures, shares, _drawn(plot), strict=True)
    ]
    return [clip(title, room, "end"), *lines]


def _canvas(cells: int, lines: int):  # type: ignore[no-untyped-def]
    """Return plotext with an empty canvas: no frame, ticks or colours, of this size whatever the terminal's."""
    import plotext

    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.theme("clear")
    plotext.frame(False)
    plotext.plot_size(cells, lines)
    plotext.xticks([])
    plotext.yticks([])
    return plotext


def _drawn(plot) -> list[str]:  # type: ignore[no-untyped-def]
    """Return the lines of a canvas without escape codes."""
    return [line.rstrip() for line in plot.uncolorize(plot.build()).rstrip("\n").split("\n")]
