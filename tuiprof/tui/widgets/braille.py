"""Filling a canvas of braille dots from arrays, and the axis beside it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tuiprof.tui.glyphs import BRAILLE_BASE, BRAILLE_BITS

Floats = npt.NDArray[np.float64]
_WEIGHTS = np.array(BRAILLE_BITS, dtype=np.uint32)


def column_ranges(
    starts: Floats, ends: Floats, lows: Floats, highs: Floats, edges: Floats
) -> tuple[Floats, Floats]:
    """Return the least and greatest value in force within each column of a time axis.

    Every value holds from its start to its end, so a step that lasts longer than a column is seen in all the
    columns it covers, and of many short ones in a column none is lost.

    Args:
        starts: Start of each value, ascending, shape ``(n,)``.
        ends: Its end, ascending, same shape.
        lows: The values, or their lower ends where each stands for several.
        highs: The values, or their upper ends.
        edges: Edges of the columns, ascending, shape ``(columns + 1,)``.

    Returns:
        Two arrays of shape ``(columns,)``; NaN where no value is in force.
    """
    columns = len(edges) - 1
    least, greatest = np.full(columns, np.nan), np.full(columns, np.nan)
    first = np.searchsorted(ends, edges[:-1], side="right")
    last = np.searchsorted(starts, edges[1:], side="left")
    filled = np.flatnonzero(last > first)
    if len(filled):
        # reduceat reduces between consecutive bounds: every second result is the range asked for.
        bounds = np.column_stack((first[filled], last[filled])).ravel()
        least[filled] = np.fmin.reduceat(np.append(lows, np.inf), bounds)[::2]
        greatest[filled] = np.fmax.reduceat(np.append(highs, -np.inf), bounds)[::2]
    return least, greatest


def trace_line(least: Floats, greatest: Floats, low: float, high: float, height: int) -> list[str]:
    """Draw ranges of values as a line of dots that is joined from column to column.

    Args:
        least: Lower end of each dot column, shape ``(2 × width,)``; NaN = nothing there.
        greatest: Upper end, same shape.
        low: Value at the bottom edge.
        high: Value at the top edge.
        height: Lines of text; there are four dots to a line.

    Returns:
        ``height`` strings of ``width`` cells.
    """
    dots = height * 4
    columns = len(least)
    span = max(high - low, 1e-12)
    shown = ~np.isnan(least)
    top = np.where(shown, np.clip((high - np.nan_to_num(greatest)) / span * dots, 0, dots - 1), dots).astype(
        int
    )
    bottom = np.where(shown, np.clip((high - np.nan_to_num(least)) / span * dots, 0, dots - 1), -1).astype(
        int
    )
    joined = shown[1:] & shown[:-1]
    # Where a column lies wholly above or below the one before it, reach back to it.
    up = joined & (bottom[1:] < top[:-1] - 1)
    down = joined & (top[1:] > bottom[:-1] + 1)
    reach_bottom, reach_top = bottom.copy(), top.copy()
    reach_bottom[1:] = np.where(up, top[:-1] - 1, bottom[1:])
    reach_top[1:] = np.where(down, bottom[:-1] + 1, top[1:])
    rows = np.arange(dots)[:, None]
    on = (rows >= reach_top) & (rows <= reach_bottom) & shown
    cells = on.reshape(height, 4, columns // 2, 2).transpose(0, 2, 1, 3)
    bits = (cells * _WEIGHTS).sum(axis=(2, 3)).astype(np.uint32)
    codes = np.where(bits == 0, 0x20, bits + BRAILLE_BASE).astype("<u4")
    return [row.tobytes().decode("utf-32-le") for row in codes]


def nice_step(span: float, most: int) -> float:
    """Return a round step (1, 2 or 5 times a power of ten) that divides a span into at most ``most`` parts.

    Args:
        span: Length to divide, above 0.
        most: Parts at most, at least 1.
    """
    raw = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)
