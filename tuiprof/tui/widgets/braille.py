"""Draws arrays on a canvas of braille dots, with an axis."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tuiprof.tui.terminal.glyphs import BRAILLE_BASE, BRAILLE_BITS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]
_WEIGHTS = np.array(BRAILLE_BITS, dtype=np.uint32)


def column_ranges(
    starts: Floats, ends: Floats, lows: Floats, highs: Floats, edges: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the least, mean and greatest value in force within each column of a time axis.

    Every value holds from its start to its end, so a step that lasts longer than a column is seen in all the
    columns it covers, and of many short ones in a column none is lost.

    Args:
        starts: Start of each value, ascending, shape ``(n,)``.
        ends: Its end, ascending, same shape.
        lows: The values, or their lower ends where each represents several.
        highs: The values, or their upper ends.
        edges: Edges of the columns, ascending, shape ``(columns + 1,)``.

    Returns:
        Three arrays of shape ``(columns,)``; NaN where no value is in force.
    """
    least, mean, greatest = (np.full(len(edges) - 1, np.nan) for _ in range(3))
    first = np.searchsorted(ends, edges[:-1], side="right")
    last = np.searchsorted(starts, edges[1:], side="left")
    filled = np.flatnonzero(last > first)
    if len(filled):
        # reduceat reduces between consecutive bounds: every second result is the range asked for.
        bounds = np.column_stack((first[filled], last[filled])).ravel()
        least[filled] = np.fmin.reduceat(np.append(lows, np.inf), bounds)[::2]
        greatest[filled] = np.fmax.reduceat(np.append(highs, -np.inf), bounds)[::2]
        sums = np.concatenate(([0.0], np.cumsum((lows + highs) / 2)))
        mean[filled] = (sums[last[filled]] - sums[first[filled]]) / (last - first)[filled]
    return least, mean, greatest


def dot_rows(values: Floats, low: float, high: float, dots: int) -> Ints:
    """Return the row of dots each value lies in, 0 at the top; values beyond an edge lie on it, NaN gives -1."""
    shown = ~np.isnan(values)
    at = np.clip((high - np.where(shown, values, low)) / max(high - low, 1e-12) * dots, 0, dots - 1)
    return np.where(shown, at.astype(np.int64), -1)


def joined(rows: Ints) -> tuple[Ints, Ints]:
    """Return the dots from top to bottom that a line needs in each column to be joined to the one before.

    Args:
        rows: Row of the line in each column; -1 = no line there.

    Returns:
        Top and bottom row of each column, both included; top above bottom (empty) where there is no line.
    """
    top, bottom = rows.copy(), rows.copy()
    both = (rows[1:] >= 0) & (rows[:-1] >= 0)
    top[1:] = np.where(both & (rows[:-1] < rows[1:]), rows[:-1] + 1, rows[1:])
    bottom[1:] = np.where(both & (rows[:-1] > rows[1:]), rows[:-1] - 1, rows[1:])
    return np.where(rows < 0, 1, top), np.where(rows < 0, 0, bottom)


def cells(top: Ints, bottom: Ints, height: int) -> Codes:
    """Return the braille bits of columns of dots.

    Args:
        top: Topmost dot of each dot column, shape ``(2 × width,)``.
        bottom: Lowest one; a column whose top lies below its bottom is empty.
        height: Lines of text; there are four dots to a line.

    Returns:
        Bits of each cell, 0 = blank, shape ``(height, width)``.
    """
    rows = np.arange(height * 4)[:, None]
    on = (rows >= top) & (rows <= bottom)
    dots = on.reshape(height, 4, len(top) // 2, 2).transpose(0, 2, 1, 3)
    bits: Codes = (dots * _WEIGHTS).sum(axis=(2, 3), dtype=np.uint32)
    return bits


def text_of(bits: Codes) -> str:
    """Return one line of cells as text, blanks as blanks.

    Args:
        bits: Bits of each cell, shape ``(width,)``.
    """
    return np.where(bits == 0, 0x20, bits + BRAILLE_BASE).astype("<u4").tobytes().decode("utf-32-le")


def nice_step(span: float, most: int) -> float:
    """Return a round step (1, 2 or 5 times a power of ten) that divides a span into at most ``most`` parts.

    Args:
        span: Length to divide, above 0.
        most: Parts at most, at least 1.
    """
    raw = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)
