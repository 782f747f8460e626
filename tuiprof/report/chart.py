"""Small static charts for text reports."""

from __future__ import annotations

from tuiprof.model import Table

#: Tables worth a picture: the column drawn, and what it is divided by to be read in the unit.
_DRAWN = {
    "steps": ("step_ns", 1e6, "ms"),
    "queue_depth": ("mean", 1.0, "mean"),
    "timeline": ("total_allocated", float(1 << 20), "MiB"),
}
_LEAST_POINTS, _HEIGHT = 8, 9


def chart(table: Table, cells: int | None) -> list[str]:
    """Draw a table that is a series over time, without colour.

    Args:
        table: The table.
        cells: Cells a line may take; None = 100.

    Returns:
        Lines of the chart; none where the table is no series or too short to be worth one.
    """
    drawn = _DRAWN.get(table.key)
    if drawn is None or len(table.rows) < _LEAST_POINTS:
        return []
    import plotext

    key, unit, label = drawn
    values = [value / unit for value in table.rows[key].to_list() if value is not None]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(cells or 100, 100) - 2, _HEIGHT)
    plotext.plot(values, marker="braille")
    plotext.ylim(0, max(values) * 1.05 or 1)
    plotext.xticks([])
    plotext.title(f"{table.title}, {label}")
    text: str = plotext.uncolorize(plotext.build())
    plotext.clear_figure()
    return [f"  {line}".rstrip() for line in text.splitlines()]
