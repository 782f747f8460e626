"""Parent and depth of every event within its track."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.model.intervals import Ints


@dataclass(frozen=True, slots=True)
class Nesting:
    """The tree of each track.

    Attributes:
        parent: Row of the innermost event that encloses this one on its track; -1 at the top. Shape ``(n,)``.
        depth: Number of events that enclose it; 0 at the top. Shape ``(n,)``.
    """

    parent: Ints
    depth: Ints


def nest(starts: Ints, ends: Ints, tracks: Ints) -> Nesting:
    """Find the innermost enclosing event of each event.

    An event encloses another of its track when it starts no later and ends no earlier; of two equal ones the
    first row encloses the second. Events that overlap without enclosing (asynchronous ranges) do not become
    parents of each other.

    Args:
        starts: Starts in ns, ascending; of equal starts the longer event first.
        ends: Ends in ns.
        tracks: Track of each event.
    """
    n = len(starts)
    parent = np.full(n, -1, dtype=np.int64)
    depth = np.zeros(n, dtype=np.int64)
    order = np.argsort(tracks, kind="stable")
    bounds = np.flatnonzero(np.diff(tracks[order])) + 1
    for rows in np.split(order, bounds):
        if len(rows) > 1:
            _nest_track(rows, starts[rows], ends[rows], parent, depth)
    return Nesting(parent, depth)


def _nest_track(rows: Ints, starts: Ints, ends: Ints, parent: Ints, depth: Ints) -> None:
    """Fill in parent and depth for the events of one track."""
    stack: list[int] = []  # positions of open events, outermost first
    stack_ends: list[int] = []
    ends_list = ends.tolist()
    parents = [-1] * len(rows)
    depths = [0] * len(rows)
    for i, (start, end) in enumerate(zip(starts.tolist(), ends_list, strict=True)):
        # An event that ended before this one starts can enclose nothing any more; one that touches encloses
        # only an event without length at its very end.
        while stack and (stack_ends[-1] < start or (stack_ends[-1] == start and end > start)):
            stack.pop()
            stack_ends.pop()
        level = len(stack)
        while level and stack_ends[level - 1] < end:  # overlaps without enclosing: look further out
            level -= 1
        if level:
            parents[i] = stack[level - 1]
            depths[i] = level
        if level == len(stack):
            stack.append(i)
            stack_ends.append(end)
    parent_positions = np.asarray(parents, dtype=np.int64)
    has = parent_positions >= 0
    parent[rows[has]] = rows[parent_positions[has]]
    depth[rows] = depths
