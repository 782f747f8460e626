"""Two series on one scale, as inline SVG: each a line with the band of its extremes, one dashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Final

import numpy as np

from tuiprof.model import Chart, Column, Series, Table
from tuiprof.report.sanitize import sanitize

_HEIGHT: Final = 100
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
        f'<path class="line {side}" d="{_line(table, one, low, high)}"/>'
        for side, one in zip("ab", drawn, strict=True)
    )
    beyond = sum(int(((values < low) | (values > high)).sum()) for values in known)
    cut = f" <small>{beyond} beyond the scale, drawn at its edge</small>" if beyond else ""
    hits = "".join(
        f'<rect x="{row}" y="0" width="1" height="{_HEIGHT}" class="hit">'
        f"<title>{escape(_tip(table, chart, row))}</title></rect>"
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
    ends = [_place(table, at, row) for row in (0, count - 1)]
    return [
        f'<figure class="series pair"><figcaption>{title}{cut}</figcaption><ul>{legend}</ul>'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<svg viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f'<path class="grid" d="M0 0H{count}M0 {_HEIGHT / 2:g}H{count}M0 {_HEIGHT}H{count}"/>{shapes}{hits}</svg>'
        f'<div class="ends" aria-hidden="true"><span>{ends[0]}</span><span>{ends[1]}</span></div></figure>'
    ]


def _place(table: Table, at: Column | None, row: int) -> str:
    """Return the position of a row on the axis, for example ``step 12``."""
    return (
        escape(f"{sanitize(at.label)} {sanitize(at.text(table.rows[at.key][row]))}") if at is not None else ""
    )


def _tip(table: Table, chart: Chart, row: int) -> str:
    """Say what both are in a row."""
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


def _line(table: Table, one: Series, low: float, high: float) -> str:
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
