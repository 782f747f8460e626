"""Small static charts for text reports, drawn with eighth blocks."""

from __future__ import annotations

from itertools import pairwise

from tuiprof.model import Table
from tuiprof.model.units import format_value

_LEAST_POINTS, _HEIGHT = 8, 4
_BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(table: Table, cells: int | None) -> list[str]:
    """Draw a table that is a series over time, from 0 to its highest value.

    Where there are more rows than cells, a cell shows the highest of its rows: what sticks out stays visible.

    Args:
        table: The table.
        cells: Cells a line may take; None = 100.

    Returns:
        Lines of the chart; none where the table is no series or too short to be worth one.
    """
    if table.chart is None or not table.chart.in_text or len(table.rows) < _LEAST_POINTS:
        return []
    drawn = table.chart.series[0].value
    kind = table.column(drawn).kind
    values = [float(value or 0) for value in table.rows[drawn].to_list()]
    top = max(values)
    labels = [format_value(top, kind), *[""] * (_HEIGHT - 2), format_value(0, kind)]
    margin = max(map(len, labels))
    room = max(min(cells or 100, 100) - margin - 5, _LEAST_POINTS)
    count = min(len(values), room)
    bounds = [i * len(values) // count for i in range(count + 1)]
    heights = [round(max(values[a:b]) / top * _HEIGHT * 8) if top > 0 else 0 for a, b in pairwise(bounds)]
    stretch = max(min(room // count, 4), 1)
    lines = []
    for row in range(_HEIGHT):
        base = (_HEIGHT - 1 - row) * 8
        bar = "".join(_BLOCKS[min(max(height - base, 0), 8)] * stretch for height in heights)
        lines.append(f"  {labels[row]:>{margin}} ┤{bar}".rstrip())
    return lines
