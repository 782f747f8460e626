"""A matrix as a picture: a row of cells for each row of a table, as dark as their values."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import Final

import numpy as np

from tuiprof.model import Chart, Table
from tuiprof.model.units import format_value
from tuiprof.report.sanitize import sanitize

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
