"""Charts of an HTML report: shapes as inline SVG that stretch with the page, their labels as text beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np

from tuiprof.model import Chart, Column, Series, Table
from tuiprof.model.report import Kind
from tuiprof.model.units import format_value
from tuiprof.report.chart import numbers, scale_top
from tuiprof.report.sanitize import sanitize

#: Up to so many points are drawn as separate columns, more of them as a line.
_COLUMNS = 64
#: Points of a line; where there are more rows, a point covers several of them.
_POINTS = 240
_HEIGHT = 100
#: A table with so many rows at most, whose shares make up a whole, is drawn as one bar cut into parts.
_PARTS = range(2, 13)
#: Shares that add up to something within these bounds make up a whole.
_WHOLE = (0.9, 1.005)


def charts(table: Table) -> list[str]:
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
    shape = _columns(points, top) if count <= _COLUMNS else _line(points, top)
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
    if not chart.at:
        return ""
    column = table.column(chart.at)
    value = table.rows[chart.at][row]
    if value is None:
        return ""
    text = sanitize(column.text(value))
    return f"{sanitize(column.label)} {text}" if column.kind in ("count", "text") else text


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


def _line(points: Sequence[tuple[float, float, float, str]], top: float) -> str:
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
_MOST: Final = 250
#: Shades: neighbours of one shade are one shape.
_SHADES: Final = 8
#: Height of a row, px, and of all of them.
_ROW_PX, _LEAST_PX, _MOST_PX = 10, 60, 520


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
    size = max(_LEAST_PX, min(_MOST_PX, _ROW_PX * height))
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
    """Return where each cell begins."""
    cells = min(count, _MOST)
    return np.arange(cells) * count // cells


def _text(words: str) -> str:
    return escape(sanitize(words))


#: The scale follows the bulk of both series, between these percentiles; what lies beyond is drawn at its edge.
_BULK: Final = (2.0, 98.0)
#: Room above and below the bulk, as a share of it and at least of the highest value: steady runs look steady.
_ROOM, _LEAST_ROOM = 0.15, 0.03


def pair(table: Table, chart: Chart) -> list[str]:
    """Return a chart of two series as HTML; none where neither has two values."""
    drawn = chart.series
    known = [table.rows[one.value].drop_nulls().to_numpy() for one in drawn]
    count = len(table.rows)
    if count < 2 or not any(len(values) > 1 for values in known):
        return []
    low, high = (float(edge) for edge in np.percentile(np.concatenate(known), _BULK))
    room = max((high - low) * _ROOM, high * _LEAST_ROOM, 1e-9)
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
    at = table.column(chart.at) if chart.at else None
    ends = [_axis_label(table, at, row) for row in (0, count - 1)]
    return [
        f'<figure class="series pair"><figcaption>{title}{cut}</figcaption><ul>{legend}</ul>'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<svg viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f'<path class="grid" d="M0 0H{count}M0 {_HEIGHT / 2:g}H{count}M0 {_HEIGHT}H{count}"/>{shapes}{hits}</svg>'
        f'<div class="ends" aria-hidden="true"><span>{ends[0]}</span><span>{ends[1]}</span></div></figure>'
    ]


def _axis_label(table: Table, at: Column | None, row: int) -> str:
    """Return the position of a row on the axis, for example ``step 12``."""
    return (
        escape(f"{sanitize(at.label)} {sanitize(at.text(table.rows[at.key][row]))}") if at is not None else ""
    )


def _pair_tip(table: Table, chart: Chart, row: int) -> str:
    """Return the values of both in a row."""
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
    at = chart.at
    where = f"{sanitize(table.column(at).label)} {table.rows[at][row]}: " if at else ""
    return where + ", ".join(said)


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
