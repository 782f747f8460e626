"""A forest plot of ratios, a row each: the point and its interval on one logarithmic scale, 1 marked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import Row

#: What lies beyond 1 on either side at least, so that ratios close to 1 do not look far from it.
_LEAST: Final = 1.02
#: Share of the scale left free at both ends.
_MARGIN: Final = 0.03

#: A ratio with the ends of its interval.
Ratio = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic scale.

    Attributes:
        low: The smallest ratio on it.
        high: The largest.
    """

    low: float
    high: float

    def column(self, ratio: float, width: int) -> int:
        """Return the column of a ratio."""
        low, high = math.log(self.low), math.log(self.high)
        share = (math.log(max(ratio, 1e-12)) - low) / (high - low)
        share = _MARGIN + share * (1 - 2 * _MARGIN)
        return max(0, min(width - 1, round(share * (width - 1))))


def scale_of(ratios: Iterable[Ratio]) -> Scale | None:
    """Return a scale that holds all intervals and 1; None = there is nothing to show.

    Args:
        ratios: Value, lower and upper end of each.
    """
    ends = [end for _, low, high in ratios for end in (low, high) if end > 0]
    if not ends:
        return None
    return Scale(min(*ends, 1 / _LEAST), max(*ends, _LEAST))


def axis_row(scale: Scale, low: str, one: str, high: str, width: int) -> Row:
    """Name both ends and 1, as far as there is room."""
    chars = [" "] * width
    at = min(max(scale.column(1.0, width) - len(one) // 2, 0), max(width - len(one), 0))
    for text, begin in ((one, at), (low, 0), (high, width - len(high))):
        around = chars[max(begin - 1, 0) : begin + len(text) + 1]
        if begin >= 0 and not "".join(around).strip():
            chars[begin : begin + len(text)] = text
    return [("".join(chars), "dim")]


def forest_row(scale: Scale, ratio: Ratio | None, role: str, width: int) -> Row:
    """Draw a ratio and its interval."""
    one = scale.column(1.0, width)
    cells = [(" ", "text")] * width
    cells[one] = (glyphs.AXIS, "rule")
    if ratio is not None:
        value, low, high = (scale.column(end, width) for end in ratio)
        for column in range(low, high + 1):
            cells[column] = (glyphs.RULE, role)
        cells[value] = (glyphs.OUTLIER, role)
    row: Row = []
    for text, kind in cells:
        if row and row[-1][1] == kind:
            row[-1] = (row[-1][0] + text, kind)
        else:
            row.append((text, kind))
    return row
