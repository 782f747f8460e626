"""Parent and depth of every event within its track."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints, row_type

#: Events looked at together.
_BLOCK: Final = 1 << 15


@dataclass(frozen=True)
class Nesting:
    """The tree of each track.

    Attributes:
        parent: Row of the innermost event that encloses this one on its track; -1 at the top. Shape ``(n,)``.
        before: The row before each event on its track; -1 for the first. Shape ``(n,)``.
        ends: End of each event, ns. Shape ``(n,)``.
    """

    parent: Ints
    before: Ints
    ends: Ints

    @cached_property
    def depth(self) -> Ints:
        """Number of events above each event in the tree; 0 at the top. Shape ``(n,)``."""
        depth = (self.parent >= 0).astype(np.int64)
        above = self.parent.copy()
        rows = np.flatnonzero(above >= 0)
        # Each round doubles how far up every event has counted, so 2**7 levels take seven rounds.
        while len(rows):
            up = above[rows]
            depth[rows], above[rows] = depth[rows] + depth[up], above[up]
            rows = rows[above[rows] >= 0]
        return depth

    def directly_in(self, mask: npt.NDArray[np.bool_], rows: Ints) -> npt.NDArray[np.bool_]:
        """Return which rows have a parent that is in the mask."""
        parent = self.parent[rows]
        inside: npt.NDArray[np.bool_] = (parent >= 0) & mask[np.maximum(parent, 0)]
        return inside

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
