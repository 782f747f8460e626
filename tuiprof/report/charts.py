"""Tables drawn as they declare: with characters of a terminal, and as SVG for HTML reports.

Shapes of an HTML report are inline SVG that stretch with the page, their labels text beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np

from tuiprof.model import Chart, Column, Series, Table
from tuiprof.model.report import Kind
from tuiprof.model.units import format_value
from tuiprof.report import Style
from tuiprof.report.sanitize import clip, sanitize, width

#: Fewer points than this are read faster in the table.
_MIN_POINTS: Final = 8
#: Title, canvas and axis are eight lines together; bars are a line each.
_CANVAS_LINES, _MAX_BARS = 6, 7
_MAX_CELLS, _MIN_CELLS = 100, 40
#: Cells of the name of a bar.
_NAME: Final = 28
#: A value beyond so many times the 90th percentile is cut off and said in words: the others keep their shape.
_BEYOND: Final = 3.0


def text_chart(table: Table, style: Style) -> list[str]:
    """Draw a table as its :class:`~tuiprof.model.Chart` says, from zero, in at most eight lines.

    There are none where the table declares no chart, or is too short to be worth one.
    """
    if table.chart is None or not table.chart.in_text or not style.charts:
        return []
    room = max(min(style.width or _MAX_CELLS, _MAX_CELLS), _MIN_CELLS)
    if table.chart.form == "bars":
        return _text_bars(table, table.chart, room)
    return _text_line(table, table.chart, room, style.plain)


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


def _text_line(table: Table, drawn: Chart, room: int, plain: bool) -> list[str]:
    """Draw a series; where there are more rows than columns of dots, the highest is drawn for its neighbours."""
    series = drawn.series[0]
    column = table.column(series.value)
    values = numbers(table, series.high or series.value)
    if len(values) < _MIN_POINTS or max(values) <= 0:
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


def _text_bars(table: Table, drawn: Chart, room: int) -> list[str]:
    """Draw a bar a row, from zero, with its interval where it has one."""
    series = drawn.series[0]
    column, about = table.column(series.value), table.column(drawn.at)
    share = next((one.key for one in table.columns if one.kind == "share" and not one.hidden), None)
    known = table.rows.drop_nulls(series.value)
    rows = known.head(_MAX_BARS)
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
        if value:
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


#: Up to so many points are drawn as separate columns, more of them as a line.
_COLUMNS = 64
#: Points of a line; where there are more rows, a point covers several of them.
_POINTS = 240
_HEIGHT = 100
#: A table with so many rows at most, whose shares make up a whole, is drawn as one bar cut into parts.
_PARTS = range(2, 13)
#: Shares that add up to something within these bounds make up a whole.
_WHOLE = (0.9, 1.005)


def svg_charts(table: Table) -> list[str]:
    """Return the charts of a table as HTML; none where it is neither drawn nor parts of a whole."""
    if table.chart is not None and table.chart.form == "heat":
        return [heat(table, table.chart)]
    if table.chart is not None and table.chart.form == "line":
        if len(table.chart.series) > 1:
            return pair(table, table.chart)
        return [_series(table, table.chart)] if len(table.rows) > 1 else []
    name = next((c for c in table.columns if c.kind == "text" and not c.hidden), None)
    if name is not None and len(table.rows) in _PARTS and (share := _whole(table)) is not None:
        return [_parts(table, name, share, numbers(table, share.key))]
    return [_bars(table, table.chart)] if table.chart is not None else []


def _whole(table: Table) -> Column | None:
    """Return the first column of shares that make up a whole."""
    for share in (column for column in table.columns if column.kind == "share" and not column.hidden):
        shares = numbers(table, share.key)
        if min(shares) >= 0 and _WHOLE[0] <= sum(shares) <= _WHOLE[1]:
            return share
    return None


def _series(table: Table, chart: Chart) -> str:
    """Draw a series from 0 to its highest value: columns, or a line with the band of its extremes."""
    drawn = chart.series[0]
    kind = table.column(drawn.value).kind
    values = numbers(table, drawn.value)
    highs = numbers(table, drawn.high) if drawn.high else values
    lows = numbers(table, drawn.low) if drawn.low else values
    highest = max(highs)
    if highest <= 0:
        return ""
    top = scale_top(highs)
    beyond = sum(high > top for high in highs)
    title = escape(sanitize(chart.title))
    cut = (
        f" <small>{beyond} beyond the scale ▲, highest {format_value(highest, kind)}</small>"
        if beyond
        else ""
    )
    count = min(len(values), _POINTS)
    bounds = list(pairwise(i * len(values) // count for i in range(count + 1)))
    points = [
        (min(lows[a:b]), sum(values[a:b]) / (b - a), max(highs[a:b]), _label(table, chart, a))
        for a, b in bounds
    ]
    shape = _columns(points, top) if count <= _COLUMNS else _svg_line(points, top)
    hits = "".join(
        f'<rect x="{i}" y="0" width="1" height="{_HEIGHT}" class="hit"><title>{_tip(p, kind, label)}</title></rect>'
        for i, (*p, label) in enumerate(points)
    )
    ticks = "".join(f"<span>{escape(format_value(top * part, kind))}</span>" for part in (1, 0.5, 0))
    first, last = _label(table, chart, 0), _label(table, chart, len(values) - 1)
    return (
        f'<figure class="series"><figcaption>{title}{cut}</figcaption>'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<svg viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}, highest {escape(format_value(highest, kind))}">'
        f'<path class="grid" d="M0 0H{count}M0 {_HEIGHT / 2:g}H{count}M0 {_HEIGHT}H{count}"/>'
        f"{shape}{_marks(points, top)}{hits}</svg>"
        f'<div class="ends" aria-hidden="true"><span>{escape(first)}</span><span>{escape(last)}</span></div></figure>'
    )


def _label(table: Table, chart: Chart, row: int) -> str:
    """Return the position of a row on the axis, for example ``step 12``."""
    if not chart.at or (value := table.rows[chart.at][row]) is None:
        return ""
    return sanitize(_axis_label(table.column(chart.at), value))


def _tip(point: Sequence[float], kind: Kind, label: str) -> str:
    low, mean, high = (format_value(value, kind) for value in point)
    figures = high if low == high else f"{mean} ({low} to {high})"
    return escape(f"{label}: {figures}" if label else figures)


def _marks(points: Sequence[tuple[float, float, float, str]], top: float) -> str:
    """Return a mark above each point that is cut off."""
    return "".join(
        f'<path class="beyond" d="M{i} 0L{i + 0.5:g} -7L{i + 1} 0Z"/>'
        for i, (_, _, high, _) in enumerate(points)
        if high > top
    )


def _y(value: float, top: float) -> str:
    value = min(value, top)
    return f"{_HEIGHT * (1 - value / top):.2f}".rstrip("0").rstrip(".")


def _columns(points: Sequence[tuple[float, float, float, str]], top: float) -> str:
    return "".join(
        f'<rect class="column" x="{i + 0.1:g}" width="0.8" y="{_y(high, top)}" '
        f'height="{_HEIGHT * min(high / top, 1):.2f}"/>'
        for i, (_, _, high, _) in enumerate(points)
    )


def _svg_line(points: Sequence[tuple[float, float, float, str]], top: float) -> str:
    up = [f"{i + 0.5:g} {_y(high, top)}" for i, (_, _, high, _) in enumerate(points)]
    down = [f"{i + 0.5:g} {_y(low, top)}" for i, (low, *_) in enumerate(points)]
    mean = [f"{i + 0.5:g} {_y(middle, top)}" for i, (_, middle, _, _) in enumerate(points)]
    return (
        f'<path class="area" d="M0.5 {_HEIGHT}L{"L".join(mean)}L{len(points) - 0.5:g} {_HEIGHT}Z"/>'
        f'<path class="band" d="M{"L".join(up)}L{"L".join(reversed(down))}Z"/>'
        f'<path class="line" d="M{"L".join(mean)}"/>'
    )


def _bars(table: Table, chart: Chart) -> str:
    """Draw a bar a row, from zero, with its interval where it has one."""
    drawn = chart.series[0]
    column, name = table.column(drawn.value), table.column(chart.at)
    rows = table.rows.drop_nulls(drawn.value)
    values = [float(value) for value in rows[drawn.value].to_list()]
    highs = [*values, *(rows[drawn.high].drop_nulls().to_list() if drawn.high else [])]
    top = max(highs, default=0.0)
    if top <= 0:
        return ""
    lines = []
    for row, value in zip(rows.iter_rows(named=True), values, strict=True):
        low, high = (row[key] if key else None for key in (drawn.low, drawn.high))
        between = (
            f'<u style="left:{low / top:.2%};width:{(high - low) / top:.2%}"></u>'
            if low is not None and high is not None and low < high
            else ""
        )
        label = escape(sanitize(name.text(row[chart.at])))
        lines.append(
            f'<span>{label}</span><span class="value">{escape(column.text(value))}</span>'
            f'<div class="track" aria-hidden="true"><i style="width:{value / top:.2%}"></i>{between}</div>'
        )
    title = escape(sanitize(chart.title))
    return f'<figure class="rows"><figcaption>{title}</figcaption>{"".join(lines)}</figure>'


def _parts(table: Table, name: Column, share: Column, shares: list[float]) -> str:
    """Draw parts of a whole as one bar; each part has a letter, which the list below it explains."""
    names: list[Any] = table.rows[name.key].to_list()
    order = [i for i in range(len(shares)) if shares[i] > 0]
    bar, legend, at = [], [], 0.0
    for rank, i in enumerate(order):
        letter, label = chr(ord("A") + rank), escape(sanitize(str(names[i])))
        colour, text = rank % 6 + 1, escape(format_value(shares[i], "share"))
        bar.append(
            f'<i class="c{colour}" style="left:{at * 100:.3f}%;width:{shares[i] * 100:.3f}%" '
            f'title="{label} {text}">{letter if shares[i] >= 0.03 else ""}</i>'
        )
        legend.append(f'<li><b class="c{colour}">{letter}</b> {label} <span>{text}</span></li>')
        at += shares[i]
    return (
        f'<figure class="parts"><figcaption>{escape(sanitize(f"{table.title}: {share.label}"))}</figcaption>'
        f'<div class="bar" aria-hidden="true">{"".join(bar)}</div><ul>{"".join(legend)}</ul></figure>'
    )


#: Rows and columns of cells at most; a cell of several shows the highest of them.
_MAX_HEAT_CELLS: Final = 250
#: Shades: neighbours of one shade are one shape.
_SHADES: Final = 8
#: Height of a row, px, and of all of them.
_ROW_PX, _MIN_PX, _MAX_PX = 10, 60, 520


def heat(table: Table, chart: Chart) -> str:
    """Draw rows by ``chart.at``, and the chart's series from left to right; values below 0 are blank."""
    rows = table.rows.sort(chart.at) if chart.at else table.rows
    series = [one.value for one in chart.series]
    values = rows.select(series).to_numpy().astype(float)
    if not values.size or np.isnan(values).all() or (top := float(np.nanmax(values))) <= 0:
        return ""
    first_row, first_column = _first(values.shape[0]), _first(values.shape[1])
    filled = np.nan_to_num(values, nan=-np.inf)
    cells = np.maximum.reduceat(np.maximum.reduceat(filled, first_row, axis=0), first_column, axis=1)
    shade = np.rint(np.clip(cells / top, 0, 1) * _SHADES).astype(int)
    paths = [""] * (_SHADES + 1)
    for y, line in enumerate(shade.tolist()):
        x = 0
        for level, run in groupby(line):
            length = sum(1 for _ in run)
            if level:
                paths[level] += f"M{x} {y}h{length}v1h-{length}z"
            x += length
    kind = table.column(series[0]).kind
    names = [table.column(key).label for key in series]
    label = table.column(chart.at).label if chart.at else "row"
    at = (
        [str(value) for value in rows[chart.at].to_list()] if chart.at else [str(i) for i in range(len(rows))]
    )
    height, width = shade.shape
    after = np.append(first_row[1:], len(values))
    hits = ""
    for y, (low, high) in enumerate(zip(first_row.tolist(), after.tolist(), strict=True)):
        row, column = np.unravel_index(int(np.argmax(filled[low:high])), filled[low:high].shape)
        highest = format_value(float(filled[low + row, column]), kind)
        said = f"{label} {at[low + int(row)]}: {highest}, {names[int(column)]}"
        hits += (
            f'<rect x="0" y="{y}" width="{width}" height="1" class="hit"><title>{_text(said)}</title></rect>'
        )
    title = _text(chart.title)
    shapes = "".join(
        f'<path class="heat" style="opacity:{level / _SHADES:g}" d="{path}"/>'
        for level, path in enumerate(paths)
        if path
    )
    size = max(_MIN_PX, min(_MAX_PX, _ROW_PX * height))
    return (
        f'<figure class="series heatmap"><figcaption>{title} <small>darkest: {escape(format_value(top, kind))}</small>'
        f'</figcaption><div class="ticks" aria-hidden="true"><span>{_text(f"{label} {at[0]}")}</span>'
        f"<span>{_text(f'{label} {at[-1]}')}</span></div>"
        f'<svg viewBox="0 0 {width} {height}" style="height:{size}px" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}, darkest {escape(format_value(top, kind))}">{shapes}{hits}</svg>'
        f'<div class="ends" aria-hidden="true"><span>{_text(names[0])}</span><span>{_text(names[-1])}</span></div>'
        "</figure>"
    )


def _first(count: int) -> np.ndarray:
    cells = min(count, _MAX_HEAT_CELLS)
    return np.arange(cells) * count // cells


def _text(words: str) -> str:
    return escape(sanitize(words))


#: The scale follows the bulk of both series, between these percentiles; what lies beyond is drawn at its edge.
_BULK: Final = (2.0, 98.0)
#: Room above and below the bulk, as a share of it and at least of the highest value: steady runs look steady.
_ROOM, _MIN_ROOM = 0.15, 0.03


def pair(table: Table, chart: Chart) -> list[str]:
    """Return a chart of two series as HTML; none where neither has two values."""
    drawn = chart.series
    known = [table.rows[one.value].drop_nulls().to_numpy() for one in drawn]
    count = len(table.rows)
    if count < 2 or not any(len(values) > 1 for values in known):
        return []
    low, high = (float(edge) for edge in np.percentile(np.concatenate(known), _BULK))
    room = max((high - low) * _ROOM, high * _MIN_ROOM, 1e-9)
    low, high = max(low - room, 0.0), high + room
    columns = [table.column(one.value) for one in drawn]
    shapes = "".join(
        f'<path class="band {side}" d="{_band(table, one, low, high)}"/>'
        for side, one in zip("ab", drawn, strict=True)
    ) + "".join(
        f'<path class="line {side}" d="{_pair_line(table, one, low, high)}"/>'
        for side, one in zip("ab", drawn, strict=True)
    )
    beyond = sum(int(((values < low) | (values > high)).sum()) for values in known)
    cut = f" <small>{beyond} beyond the scale, drawn at its edge</small>" if beyond else ""
    hits = "".join(
        f'<rect x="{row}" y="0" width="1" height="{_HEIGHT}" class="hit">'
        f"<title>{escape(_pair_tip(table, chart, row))}</title></rect>"
        for row in range(count)
    )
    ticks = "".join(
        f"<span>{escape(columns[0].text(low + (high - low) * part))}</span>" for part in (1, 0.5, 0)
    )
    legend = "".join(
        f'<li><svg viewBox="0 0 28 10" aria-hidden="true"><path class="line {side}" d="M0 5H28"/></svg>'
        f"{escape(sanitize(column.label))}</li>"
        for side, column, values in zip("ab", columns, known, strict=True)
        if len(values)
    )
    title = escape(sanitize(table.title))
    ends = [escape(_label(table, chart, row)) for row in (0, count - 1)]
    return [
        f'<figure class="series pair"><figcaption>{title}{cut}</figcaption><ul>{legend}</ul>'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<svg viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f'<path class="grid" d="M0 0H{count}M0 {_HEIGHT / 2:g}H{count}M0 {_HEIGHT}H{count}"/>{shapes}{hits}</svg>'
        f'<div class="ends" aria-hidden="true"><span>{ends[0]}</span><span>{ends[1]}</span></div></figure>'
    ]


def _pair_tip(table: Table, chart: Chart, row: int) -> str:
    said = []
    for one in chart.series:
        column = table.column(one.value)
        value = table.rows[one.value][row]
        if value is None:
            continue
        text = f"{sanitize(column.label)} {column.text(value)}"
        if one.low and one.high and table.rows[one.low][row] < table.rows[one.high][row]:
            text += f" ({column.text(table.rows[one.low][row])} to {column.text(table.rows[one.high][row])})"
        said.append(text)
    where = _label(table, chart, row)
    return (f"{where}: " if where else "") + ", ".join(said)


def _runs(table: Table, key: str) -> Iterator[list[int]]:
    """Return the stretches of rows that have a value."""
    values = table.rows[key].to_list()
    for known, rows in groupby(range(len(values)), key=lambda row: values[row] is not None):
        if known:
            yield list(rows)


def _pair_line(table: Table, one: Series, low: float, high: float) -> str:
    return "".join(
        f"M{'L'.join(_points(table, one.value, rows, low, high))}" for rows in _runs(table, one.value)
    )


def _band(table: Table, one: Series, low: float, high: float) -> str:
    up, down = one.high or one.value, one.low or one.value
    return "".join(
        f"M{'L'.join(_points(table, up, rows, low, high))}L{'L'.join(_points(table, down, rows[::-1], low, high))}Z"
        for rows in _runs(table, one.value)
    )


def _points(table: Table, key: str, rows: Sequence[int], low: float, high: float) -> list[str]:
    """Return where the values of rows stand in the picture."""
    values = table.rows[key].gather(list(rows)).to_list()
    shares = (min(max((value - low) / (high - low), 0.0), 1.0) for value in values)
    return [f"{row + 0.5:g} {_HEIGHT * (1 - share):.5g}" for row, share in zip(rows, shares, strict=True)]
