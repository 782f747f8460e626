"""Arithmetic on sets of half-open intervals ``[start, end)`` as pairs of integer arrays, and on sets of codes.

Functions take and return int64 arrays of shape ``(n,)``, in any one unit. A set that is *disjoint* is
sorted by start, and no interval touches the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Times have 64 bits; rows, steps and codes may be narrower.
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def row_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest type for indices into so many events, -1 among them."""
    return np.int32 if count < 2**31 else np.int64


def distinct(codes: Ints) -> Ints:
    """Return the distinct values of codes (of names, tracks) at or above 0, ascending; -1 is left out.

    A table lookup, which is faster than sorting millions of them; so are the next two.
    """
    flat = codes.reshape(-1)
    flat = flat[flat >= 0]
    return np.flatnonzero(np.bincount(flat)).astype(np.int64) if len(flat) else np.empty(0, dtype=np.int64)


def factorize(codes: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values of codes at or above -1, ascending, and the index of each code among them."""
    seen = np.bincount(codes + 1) > 0 if len(codes) else np.empty(0, dtype=bool)
    index = np.cumsum(seen) - 1
    return (np.flatnonzero(seen) - 1).astype(np.int64), index[codes + 1] if len(codes) else codes


def member(codes: Ints, wanted: Ints | Iterable[int]) -> Mask:
    """Return which codes are in the given set; -1 never is."""
    chosen = wanted if isinstance(wanted, np.ndarray) else np.fromiter(wanted, dtype=np.int64)
    size = max(int(codes.max(initial=-1)), int(chosen.max(initial=-1))) + 2
    table = np.zeros(size, dtype=bool)
    table[chosen[chosen >= 0]] = True
    mask: Mask = table[codes]  # -1 reads the last entry, which no code reaches
    return mask


def union(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Merge overlapping and touching intervals, in any order; one that does not end after its start is dropped."""
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return starts, ends
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.empty(len(starts), dtype=bool)
    first[0] = True
    np.greater(starts[1:], reach[:-1], out=first[1:])
    begin = np.flatnonzero(first)
    last = np.append(begin[1:], len(starts)) - 1
    return starts[begin], reach[last]


def complement(starts: Ints, ends: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """Return the gaps of a disjoint set within ``[low, high)``."""
    starts, ends = clip(starts, ends, low, high)
    gap_starts = np.concatenate((np.array([low], dtype=np.int64), ends))
    gap_ends = np.concatenate((starts, np.array([high], dtype=np.int64)))
    keep = gap_ends > gap_starts
    return gap_starts[keep], gap_ends[keep]


def clip(starts: Ints, ends: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """Cut intervals to ``[low, high)`` and drop what is left empty."""
    starts, ends = np.maximum(starts, low), np.minimum(ends, high)
    keep = ends > starts
    return starts[keep], ends[keep]


def intersection(a_starts: Ints, a_ends: Ints, b_starts: Ints, b_ends: Ints) -> tuple[Ints, Ints]:
    """Return the points that two disjoint sets share."""
    if not len(a_starts) or not len(b_starts):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    # For each interval of a: the range of intervals of b that overlap it.
    low = np.searchsorted(b_ends, a_starts, side="right")
    high = np.searchsorted(b_starts, a_ends, side="left")
    counts = np.maximum(high - low, 0)
    a_index = np.repeat(np.arange(len(a_starts)), counts)
    offset = np.arange(len(a_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    b_index = low[a_index] + offset
    starts = np.maximum(a_starts[a_index], b_starts[b_index])
    ends = np.minimum(a_ends[a_index], b_ends[b_index])
    return starts, ends


def total(starts: Ints, ends: Ints) -> int:
    """Return the summed length of intervals (overlaps counted twice unless the set is disjoint)."""
    return int((ends - starts).sum()) if len(starts) else 0


class Coverage:
    """Answers "how much of ``[low, high)`` does this disjoint set cover" in O(log n)."""

    def __init__(self, starts: Ints, ends: Ints) -> None:
        self.starts = starts
        self.ends = ends
        self._before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ends - starts)))

    def up_to(self, at: Ints | int) -> Ints:
        """Return the covered length in ``(-inf, at)`` for each instant."""
        at = np.asarray(at, dtype=np.int64)
        if not len(self.starts):
            return np.zeros_like(at)
        index = np.searchsorted(self.starts, at, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.where(index > 0, np.minimum(at, self.ends[last]) - self.starts[last], 0)
        covered: Ints = self._before[last] * (index > 0) + inside
        return covered

    def between(self, low: Ints | int, high: Ints | int) -> Ints:
        """Return the covered length in ``[low, high)``; 0 where high is not above low."""
        covered: Ints = np.maximum(self.up_to(high) - self.up_to(low), 0)
        return covered


@dataclass(frozen=True, slots=True)
class Window:
    """A time range of a trace; the default is all of it.

    Attributes:
        start_ns: First instant, ns since the trace origin; None = from the beginning.
        end_ns: First instant after the window, ns since the trace origin; None = to the end.
        label: What to call it on the screen, for example ``"step 2"``.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        """Refuse a window that ends before it starts."""
        if self.start_ns is not None and self.end_ns is not None and self.end_ns < self.start_ns:
            raise ValueError(f"window ends at {self.end_ns} ns, before its start at {self.start_ns} ns")

    @property
    def whole(self) -> bool:
        """Whether this is the whole trace."""
        return self.start_ns is None and self.end_ns is None
