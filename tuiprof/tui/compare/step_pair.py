"""Step times of two runs above one another, on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_count, format_ns
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row

Floats = npt.NDArray[np.float64]

_LABEL: Final = 9
_FIGURE: Final = 22
#: Width of the widest bar, including its edge.
_WIDEST: Final = 6
#: From this width on, the two charts are side by side, and higher.
_BESIDE: Final = 180
#: The scale ends at this percentile of all steps; larger values are drawn at the edge.
_BULK: Final = 98.0


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
    """Two strips of bars, one above the other or, where there is room, side by side.

    A column is as many steps in both, its height the median of them.
    """

    DEFAULT_CSS = "StepPair { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._series: tuple[StepSeries, ...] = ()
        self._source = ""

    def show(self, series: tuple[StepSeries, StepSeries], source: str) -> None:
        """Show the steps of two runs."""
        self._series, self._source = series, source
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw both, as high as there is room for."""
        if not self._series:
            return []
        times = [one.times for one in self._series if len(one.times)]
        if not times:
            return [[(" step times: neither run marks steps", "dim")]]
        high = max(float(np.percentile(np.concatenate(times), _BULK)), 1.0)
        beside = width >= _BESIDE
        columns = max((width // 2 if beside else width) - _LABEL - _FIGURE, 1)
        longest = max(len(one.times) for one in self._series)
        lines = max(min(height - 1 if beside else height // 2, 6 if beside else 4), 1)
        drawn = [
            self._bars(one, columns, longest, high, lines, index) for index, one in enumerate(self._series)
        ]
        said = f"scale 0 to {format_ns(high)} · steps 1 to {format_count(longest)} · {self._source}"
        scale: Row = [(" " * _LABEL, "text"), (said, "dim")]
        if beside:
            rows = [[*left, *right] for left, right in zip(*drawn, strict=True)]
            return [*rows, scale] if height > len(rows) else rows
        # Between the two, so that the bars of one do not stand on those of the other.
        first, second = drawn
        return [*first, scale, *second] if height > 2 * lines else [*first, *second]

    def _bars(
        self, one: StepSeries, columns: int, longest: int, high: float, lines: int, index: int
    ) -> list[Row]:
        role = "history" if index == 0 else "line"
        label = f" {one.label}"[:_LABEL].ljust(_LABEL)
        if not len(one.times):
            blank = " " * (columns + _FIGURE - len("no step times"))
            empty: Row = [(" " * (_LABEL + columns + _FIGURE), "text")]
            return [*([empty] * (lines - 1)), [(label, "dim"), ("no step times" + blank, "dim")]]
        said = f"  {format_ns(float(np.median(one.times)))} median"
        heights = column_heights(one.times, columns, longest, high, lines * 8)
        cells = _cells(len(heights), columns)
        drawn: list[Row] = []
        for line in range(lines):
            floor = (lines - 1 - line) * 8
            signs = [glyphs.EIGHTHS_UP[max(0, min(8, h - floor))] for h in heights.tolist()]
            bars = "".join(" " if at is None else signs[at] for at in cells).ljust(columns)
            here = line == lines - 1
            drawn.append(
                [
                    (label if here else " " * _LABEL, "dim"),
                    (bars, role),
                    ((said if here else "").ljust(_FIGURE), "strong"),
                ]
            )
        return drawn


def _cells(bars: int, columns: int) -> list[int | None]:
    """Return which bar each cell shows; None = the edge between two. Few bars are drawn wide, with an edge."""
    room = min(columns, bars * _WIDEST)
    at = [cell * bars // room for cell in range(room)]
    if room < 3 * bars:
        return list(at)
    return [bar if cell + 1 < room and at[cell + 1] == bar else None for cell, bar in enumerate(at)]


def column_heights(times: Ints, columns: int, longest: int, high: float, levels: int) -> Ints:
    """Return the height of each column: the median of its steps, from zero; 0 where it has none."""
    columns = min(columns, longest)
    edges = np.linspace(0, longest, columns + 1).round().astype(np.int64)
    out = np.zeros(columns, dtype=np.int64)
    for column, (begin, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        some = times[begin:end]
        if len(some):
            out[column] = max(round(min(float(np.median(some)) / high, 1.0) * levels), 1)
    return out
