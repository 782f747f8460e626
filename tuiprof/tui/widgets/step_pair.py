"""Step times of two runs above one another, on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_count, format_ns
from tuiprof.tui import glyphs
from tuiprof.tui.widgets.lines import Lines, Row

Floats = npt.NDArray[np.float64]

_LABEL: Final = 9
_FIGURE: Final = 22
#: The scale follows the bulk of the steps; what lies beyond is drawn at the edge.
_BULK: Final = (2.0, 98.0)


@dataclass(frozen=True, slots=True)
class StepSeries:
    """The steps of one run.

    Attributes:
        label: What to call it; safe for a terminal.
        times: Their lengths in order, ns.
    """

    label: str
    times: Ints


class StepPair(Lines):
    """Two strips of bars: a column is as many steps in both, its height the median of them."""

    DEFAULT_CSS = "StepPair { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._series: tuple[StepSeries, ...] = ()
        self._source = ""

    def show(self, series: tuple[StepSeries, StepSeries], source: str) -> None:
        """Show the steps of two runs.

        Args:
            series: Before and after.
            source: Where they were measured; safe for a terminal.
        """
        self._series, self._source = series, source
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw both, as high as there is room for."""
        if not self._series:
            return []
        times = [one.times for one in self._series if len(one.times)]
        if not times:
            return [[(" step times: neither run marks steps", "dim")]]
        together = np.concatenate(times)
        low, high = (float(edge) for edge in np.percentile(together, _BULK))
        margin = max((high - low) * 0.1, high * 0.01, 1.0)
        low, high = max(low - margin, 0.0), high + margin
        columns = max(width - _LABEL - _FIGURE, 1)
        longest = max(len(one.times) for one in self._series)
        lines = max(min(height // 2, 4), 1)
        rows: list[Row] = []
        for index, one in enumerate(self._series):
            rows += self._bars(one, columns, longest, low, high, lines, index)
        if height >= 2 * lines + 1:
            span = f"{format_ns(low)} to {format_ns(high)}"
            rows.append(
                [
                    (" " * _LABEL, "text"),
                    (f"scale {span} · steps 1 to {format_count(longest)} · {self._source}", "faint"),
                ]
            )
        return rows

    def _bars(
        self, one: StepSeries, columns: int, longest: int, low: float, high: float, lines: int, index: int
    ) -> list[Row]:
        role = "history" if index == 0 else "line"
        label = f" {one.label}"[:_LABEL].ljust(_LABEL)
        if not len(one.times):
            return [[(label, "dim"), ("no step times", "faint")], *([[]] * (lines - 1))]
        said = f"  {format_ns(float(np.median(one.times)))} median"
        heights = column_heights(one.times, columns, longest, low, high, lines * 8)
        drawn: list[Row] = []
        for line in range(lines):
            floor = (lines - 1 - line) * 8
            # Few steps are drawn wide, with an edge between them.
            wide = max(min(columns // max(len(heights), 1), 6), 1)
            each = (glyphs.EIGHTHS_UP[max(0, min(8, h - floor))] for h in heights.tolist())
            bars = "".join((sign * (wide - (wide > 2))).ljust(wide) for sign in each).ljust(columns)
            here = line == lines - 1
            drawn.append(
                [
                    (label if here else " " * _LABEL, "dim"),
                    (bars, role),
                    (said.ljust(_FIGURE) if here else "", "strong"),
                ]
            )
        return drawn


def column_heights(times: Ints, columns: int, longest: int, low: float, high: float, levels: int) -> Ints:
    """Return the height of each column: the median of its steps between two times; 0 where it has none.

    Args:
        times: Steps in order, ns.
        columns: How many columns the longer run takes.
        longest: How many steps the longer run has.
        low: What the lowest level stands for, ns.
        high: What the highest stands for.
        levels: How many levels there are.
    """
    columns = min(columns, longest)
    edges = np.linspace(0, longest, columns + 1).round().astype(np.int64)
    out = np.zeros(columns, dtype=np.int64)
    for column, (begin, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        some = times[begin:end]
        if len(some):
            share = (float(np.median(some)) - low) / (high - low) if high > low else 1.0
            out[column] = 1 + round(max(0.0, min(1.0, share)) * (levels - 1))
    return out
