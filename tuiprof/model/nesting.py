"""Parent and depth of every event within its track."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints


@dataclass(frozen=True)
class Nesting:
    """The tree of each track.

    Attributes:
        parent: Row of the innermost event that encloses this one on its track; -1 at the top. Shape ``(n,)``.
        order: Rows track by track, within a track in order of start. Shape ``(n,)``.
        ends: End of each event, ns. Shape ``(n,)``.
        first: Whether an event is the first of its track. Shape ``(n,)``.
    """

    parent: Ints
    order: Ints
    ends: Ints
    first: npt.NDArray[np.bool_]

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

    @cached_property
    def before(self) -> Ints:
        """The row before each event on its track; -1 for the first. Shape ``(n,)``."""
        before = np.full(len(self.order), -1, dtype=np.int64)
        before[self.order[1:]] = self.order[:-1]
        before[self.first] = -1
        return before

    def outward(self, rows: Ints) -> Iterator[Ints]:
        """Walk from events to everything that encloses them, innermost first.

        Unlike following ``parent``, this also finds an event that encloses the start of the walk but not the
        event in between: the frame of ``main`` around a step that the profiler ended after ``main`` returned.

        Args:
            rows: Where to start, shape ``(k,)``.

        Yields:
            The next enclosing row of each, shape ``(k,)``; -1 for those that have reached the top. At least one
            is not -1.
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
    """Find the innermost enclosing event of each event.

    An event encloses another of its track when it starts no later and ends no earlier; of two equal ones the
    first row encloses the second. Events that overlap without enclosing (asynchronous ranges) do not become
    parents of each other.

    Because the rows are sorted, the parent is the closest earlier row of the track that ends no earlier. All
    rows look for theirs at once: each starts at the row before it and, while that one ends too early, moves on
    to where that one is looking. Siblings thereby skip each other in doubling strides.

    Args:
        starts: Starts in ns, ascending; of equal starts the longer event first.
        ends: Ends in ns.
        tracks: Track of each event.
    """
    n = len(starts)
    parent = np.full(n, -1, dtype=np.int64)
    first = np.zeros(n, dtype=bool)
    if not n:
        return Nesting(parent, parent, ends, first)
    # Tracks are few: a narrow key makes the stable sort a radix sort.
    key = tracks.astype(np.int16) if tracks.max() < 2**15 else tracks
    order = np.argsort(key, kind="stable")
    end, track = ends[order], tracks[order]
    found: npt.NDArray[np.int32 | np.int64] = np.arange(-1, n - 1, dtype=np.int32 if n < 2**31 else np.int64)
    first_of_track = np.append(True, track[1:] != track[:-1])
    first[order[first_of_track]] = True
    # What ends after everything before it on its track is enclosed by nothing.
    reach = np.empty_like(end)
    begins = np.flatnonzero(first_of_track).tolist()
    for low, high in zip(begins, [*begins[1:], n], strict=True):
        np.maximum.accumulate(end[low:high], out=reach[low:high])
    found[first_of_track] = -1
    found[1:][reach[:-1] < end[1:]] = -1
    looking = np.flatnonzero((found >= 0) & (end[np.maximum(found, 0)] < end))
    own_end, candidate = end[looking], found[looking]
    while len(looking):  # each does have a parent, so that nobody moves on past the first of a track
        candidate = found[candidate]
        found[looking] = candidate
        too_short = end[candidate] < own_end
        looking, own_end, candidate = looking[too_short], own_end[too_short], candidate[too_short]
    nested = found >= 0
    parent[order[nested]] = order[found[nested]]
    return Nesting(parent, order, ends, first)
