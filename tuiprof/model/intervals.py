"""Half-open intervals ``[start, end)`` as pairs of integer arrays: sets of them, which encloses which; sets of codes.

Functions take and return int64 arrays of shape ``(n,)``, in any one unit. A set that is *disjoint* is
sorted by start, and no interval touches the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Times have 64 bits; rows, steps and codes may be narrower.
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


RecordT = TypeVar("RecordT", bound="DataclassInstance")


def picked(record: RecordT, which: Mask | Ints) -> RecordT:
    """Return a dataclass of arrays with some of their entries; other fields are kept."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(
        record, **{key: value[which] for key, value in values.items() if isinstance(value, np.ndarray)}
    )


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
        del order  # sets of millions are merged, so no array is kept longer than it is needed
    reach = np.maximum.accumulate(ends)
    del ends
    first = np.empty(len(starts) + 1, dtype=bool)
    first[0] = first[-1] = True
    np.greater(starts[1:], reach[:-1], out=first[1:-1])
    return starts[first[:-1]], reach[first[1:]]


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
        #: Total length before each interval, and of all. The ends follow from it and are not kept: they are as large.
        self._before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ends - starts)))

    @property
    def ends(self) -> Ints:
        """End of each interval."""
        return self.starts + np.diff(self._before)

    def up_to(self, at: Ints | int) -> Ints:
        """Return the covered length in ``(-inf, at)`` for each instant."""
        at = np.asarray(at, dtype=np.int64)
        if not len(self.starts):
            return np.zeros_like(at)
        index = np.searchsorted(self.starts, at, side="right")
        last = np.maximum(index - 1, 0)
        before, until = self._before[last], self._before[last + 1]
        covered: Ints = np.where(index > 0, before + np.minimum(at - self.starts[last], until - before), 0)
        return covered

    def between(self, low: Ints | int, high: Ints | int) -> Ints:
        """Return the covered length in ``[low, high)``; 0 where high is not above low."""
        covered: Ints = np.maximum(self.up_to(high) - self.up_to(low), 0)
        return covered


@dataclass(frozen=True, slots=True)
class Window:
    """A time range of a trace; the default is all of it."""

    start_ns: int | None = None  # first instant, ns since the trace origin; None = from the beginning
    end_ns: int | None = None  # first instant after the window, ns since the trace origin; None = to the end
    label: str = ""  # what to call it on the screen, for example ``"step 2"``

    def __post_init__(self) -> None:
        """Refuse a window that ends before it starts."""
        if self.start_ns is not None and self.end_ns is not None and self.end_ns < self.start_ns:
            raise ValueError(f"window ends at {self.end_ns} ns, before its start at {self.start_ns} ns")

    @property
    def whole(self) -> bool:
        """Whether this is the whole trace."""
        return self.start_ns is None and self.end_ns is None


#: Events looked at together.
_BLOCK: Final = 1 << 15


@dataclass(frozen=True)
class Nesting:
    """The tree of each track."""

    #: Row of the innermost event that encloses this one on its track; -1 at the top. Shape ``(n,)``.
    parent: Ints
    before: Ints  # the row before each event on its track; -1 for the first. Shape ``(n,)``.
    ends: Ints  # end of each event, ns. Shape ``(n,)``.

    def directly_in(self, mask: npt.NDArray[np.bool_], rows: Ints) -> npt.NDArray[np.bool_]:
        """Return which rows have a parent that is in the mask."""
        parent = self.parent[rows]
        inside: npt.NDArray[np.bool_] = (parent >= 0) & mask[np.maximum(parent, 0)]
        return inside

    def nearest(self, rows: Ints, among: Mask) -> Ints:
        """Return the innermost of the given events around each event; -1 = none."""
        at = self.parent[rows]
        while (climb := (at >= 0) & ~among[np.maximum(at, 0)]).any():
            at = np.where(climb, self.parent[np.maximum(at, 0)], at)
        return at

    def outward(self, rows: Ints) -> Iterator[Ints]:
        """Yield the next enclosing row of each event, innermost first; -1 for those that have reached the top.

        Unlike following ``parent``, this also finds an event that encloses the start of the walk but not the event in
        between: the frame of ``main`` around a step that the profiler ended after ``main`` returned.
        """
        own_end = self.ends[rows]
        at = self.before[rows]
        while True:
            at = at.copy()
            todo = np.flatnonzero(at >= 0)
            todo = todo[self.ends[at[todo]] < own_end[todo]]
            while len(todo):
                # What ends too early is left for what encloses it, past all its siblings at once.
                up = self.parent[at[todo]]
                at[todo] = up
                todo = todo[up >= 0]
                todo = todo[self.ends[at[todo]] < own_end[todo]]
            if not (at >= 0).any():
                return
            yield at
            at = np.where(at >= 0, self.before[at], -1)


def nest(starts: Ints, ends: Ints, tracks: Ints) -> Nesting:
    """Find the innermost enclosing event of each event; they are in order of start, of equal starts the longer first.

    An event encloses another of its track when it starts no later and ends no earlier; of two equal ones the first row
    encloses the second. Events that overlap without enclosing (asynchronous ranges) do not become parents of each
    other.

    Because the rows are sorted, the parent is the closest earlier row of the track that ends no earlier. All rows of a
    block look for theirs at once: each starts at the row before it and, while that one ends too early, moves on to
    where that one is looking. Siblings thereby skip each other in doubling strides, and blocks keep what is looked at
    small enough to stay in the processor's cache.
    """
    n = len(starts)
    row = row_type(n)
    order: Ints = np.argsort(tracks, kind="stable").astype(row)  # a radix sort, where tracks are narrow
    end, track = ends[order], tracks[order]
    first = np.flatnonzero(np.append(True, track[1:] != track[:-1])[:n])
    found: Ints = np.arange(-1, n - 1, dtype=row)
    parent: Ints = np.full(n, -1, dtype=row)
    for begin, stop in zip(first.tolist(), [*first[1:].tolist(), n], strict=False):
        reach = end[begin] - 1
        for low in range(begin, stop, _BLOCK):
            block = slice(low, min(low + _BLOCK, stop))
            own_end, candidate = end[block], found[block]
            # What ends after everything before it on its track is enclosed by nothing.
            reaches = np.maximum.accumulate(np.append(reach, own_end))
            candidate[reaches[:-1] < own_end] = -1
            reach = reaches[-1]
            looking = np.flatnonzero((candidate >= 0) & (end[candidate] < own_end))
            wanted, at = own_end[looking], candidate[looking]
            while len(looking):  # each does have a parent, so that nobody moves on past the first of a track
                at = candidate[looking] = found[at]
                too_short = end[at] < wanted
                looking, wanted, at = looking[too_short], wanted[too_short], at[too_short]
            nested = np.flatnonzero(candidate >= 0)
            parent[order[low + nested]] = order[candidate[nested]]
    before = np.full_like(parent, -1)
    before[order[1:]] = order[:-1]
    before[order[first]] = -1
    return Nesting(parent, before, ends)
