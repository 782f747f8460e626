"""Finds loops: the same few names, repeated in the same order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints

Mask = npt.NDArray[np.bool_]


def loops(
    words: npt.NDArray[np.int32], longest: int, least: int, *, alone: Mask | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, period and full iterations of each loop, shortest periods first; loops do not overlap."""
    # Entries that cannot be part of a loop (any more) get a unique value.
    own_word = -1 - np.arange(len(words), dtype=np.int32)
    words = np.where(words >= 0, words, own_word)
    for period in range(1, longest + 1):
        if len(words) < period * least:
            return
        same = words[:-period] == words[period:]
        if period == 1 and alone is not None:
            same &= alone[1:]
        for start, end in zip(*(part.tolist() for part in runs(same, period * (least - 1))), strict=True):
            times = (end + period - start) // period
            loop = slice(start, start + times * period)
            words[loop] = own_word[loop]
            yield start, period, times


def runs(mask: Mask, least: int) -> tuple[Ints, Ints]:
    """Return begin and end of the runs of True with at least the given length."""
    at = np.flatnonzero(mask)
    breaks = np.flatnonzero(at[1:] != at[:-1] + 1)
    starts, ends = at[np.append(0, breaks + 1)[: len(at)]], at[np.append(breaks, len(at) - 1)[: len(at)]] + 1
    keep = ends - starts >= least
    return starts[keep], ends[keep]
