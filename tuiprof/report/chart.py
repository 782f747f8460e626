"""Small static charts for text reports, drawn with eighth blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from tuiprof.model import Table
from tuiprof.model.report import Kind
from tuiprof.model.units import format_value
from tuiprof.report.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class Drawn:
    """How a table is drawn as a series.

    Attributes:
        title: Heading of the chart.
        value: Column drawn.
        kind: What its values are.
        at: Column that says where a row stands; None = rows are only in order.
        low: Column of the lowest value within a row; None = as ``value``.
        high: Column of the highest; None = as ``value``.
    """

    title: str
    value: str
    kind: Kind
    at: str | None = None
    low: str | None = None
    high: str | None = None


#: Tables that are a series, by key.
DRAWN = {
    "steps": Drawn("Time of every step", "step_ns", "ns", "step"),
    "step_time": Drawn("Step time over the run", "mean_ns", "ns", "start_ns", "lowest_ns", "highest_ns"),
    "queue_depth": Drawn("Queue depth over time", "mean", "number", "start_ns", "lowest", "highest"),
    "latency": Drawn("Launches by latency", "launches", "count", "from_ns"),
    "timeline": Drawn("Memory allocated over time", "total_allocated", "bytes", "start_ns"),
}


@dataclass(frozen=True, slots=True)
class Bars:
    """How a table is drawn as a bar a row.

    Attributes:
        name: Column that names the rows.
        value: Column drawn.
        kind: What its values are.
    """

    name: str
    value: str
    kind: Kind


#: Tables whose rows are compared by a length, by key.
BARS = {"rungs": Bars("variant", "step_ns", "ns")}
#: Bars whose longest is so many times the shortest are drawn by their logarithm, or the short ones would vanish.
_LOGARITHMIC = 50.0
#: Tables that hold two series on one scale, by key: columns of the two, each with its lowest and highest.
PAIRS = {
    "step_pair": (
        Drawn("Step times of both", "before_ns", "ns", "first_step", "before_lowest_ns", "before_highest_ns"),
        Drawn("Step times of both", "after_ns", "ns", "first_step", "after_lowest_ns", "after_highest_ns"),
    ),
}
#: Those worth a chart of characters.
_IN_TEXT = ("steps", "step_time", "queue_depth", "timeline")
_LEAST_POINTS, _HEIGHT = 8, 4
_BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"


def chart(table: Table, cells: int | None) -> list[str]:
    """Draw a table that is a series over time, from 0 to its highest value, or whose rows have a length each.

    Where there are more rows than cells, a cell shows the highest of its rows: what sticks out stays visible.

    Args:
        table: The table.
        cells: Cells a line may take; None = 100.

    Returns:
        Lines of the chart; none where the table is neither, or too short to be worth one.
    """
    if table.key in BARS:
        return _bars(table, BARS[table.key], min(cells or 100, 100))
    drawn = DRAWN.get(table.key) if table.key in _IN_TEXT else None
    if drawn is None or len(table.rows) < _LEAST_POINTS:
        return []
    kind = drawn.kind
    values = [float(value or 0) for value in table.rows[drawn.value].to_list()]
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


def _bars(table: Table, bars: Bars, cells: int) -> list[str]:
    rows = [
        (sanitize(str(name)), float(value))
        for name, value in table.rows.select(bars.name, bars.value).iter_rows()
        if value
    ]
    if len(rows) < 2:
        return []
    least, most = min(value for _, value in rows), max(value for _, value in rows)
    labels = [format_value(value, bars.kind) for _, value in rows]
    margin = min(max(cell_len(name) for name, _ in rows), cells // 3)
    room = max(cells - margin - max(map(len, labels)) - 4, _LEAST_POINTS)
    logarithmic = most > _LOGARITHMIC * least

    def eighths(value: float) -> int:
        # By the logarithm the shortest bar is an eighth of the longest: a length of 0 would say that it takes no time.
        share = (
            (1 + 7 * math.log(value / least) / math.log(most / least)) / 8 if logarithmic else value / most
        )
        return max(round(share * room * 8), 1)

    lines = []
    for (name, value), label in zip(rows, labels, strict=True):
        whole, rest = divmod(eighths(value), 8)
        bar = "█" * whole + (_PARTS[rest] if rest else "")
        lines.append(f"  {set_cell_size(name, margin)} {bar} {label}")
    return [*lines, "  (lengths by the logarithm)"] if logarithmic else lines
