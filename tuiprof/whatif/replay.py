"""Replays a captured step: as it was captured, as it is without the profiler, and with a change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints
from tuiprof.whatif.edit import Edit
from tuiprof.whatif.graph import WAIT, WORK, Graph

Floats = npt.NDArray[np.float64]

#: Rounds are replayed until two take the same time within this share; minimum and maximum number of rounds.
SAME, LEAST_ROUNDS, MOST_ROUNDS = 0.001, 2, 12


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round of a replay."""

    reached: Floats  # when each node of the graph was reached, ns, shape ``(n,)``
    before: Floats  # the same in the previous round; 0 = started idle

    def took(self, nodes: Ints) -> Floats:
        """Return the time between the previous round and this one at the given nodes, ns."""
        return self.reached[nodes] - self.before[nodes]

    def predecessors(self, graph: Graph, nodes: Ints) -> Floats:
        """Return when the predecessors of the given nodes were reached, possibly in the previous round, ns."""
        before = graph.before[nodes]
        return np.where(before >= nodes, self.before[before], self.reached[before])


@dataclass(frozen=True, eq=False)
class Replay:
    """A graph without profiler overhead."""

    graph: Graph
    #: Factor on the subtracted recording costs; 0 = the step as captured.
    scale: float = 0.0
    host: float = 1.0  # factor on the remaining host time

    @cached_property
    def unchanged_ns(self) -> float:
        """Step time without a change, ns."""
        return self.step_ns()

    def once(self) -> Floats:
        """Replay one round from idle: when each of ``graph.last`` is reached, ns since the begin of the stretch."""
        return self.first_round().reached[self.graph.last]

    def first_round(self, edit: Edit | None = None) -> Round:
        """Replay one round from idle."""
        rest = [0.0] * len(self.graph)
        reached = rest.copy()
        _round(reached, *self._edges(edit or Edit()))
        return Round(np.array(reached), np.array(rest))

    def settled_round(self, edit: Edit | None = None) -> Round:
        """Replay rounds until two take the same time, and return the last; without marked steps the first."""
        if not self.graph.step_count:
            return self.first_round(edit)
        edges = self._edges(edit or Edit())
        reached = [0.0] * len(self.graph)
        last: list[int] = self.graph.last.tolist()
        took = 0.0
        for count in range(MOST_ROUNDS):
            before = reached.copy()
            _round(reached, *edges)
            # The slowest of host and streams limits the step: a host that runs ahead only fills the queue.
            newly = max(reached[node] - before[node] for node in last)
            if count >= LEAST_ROUNDS and abs(newly - took) <= SAME * took:
                break
            took = newly
        return Round(np.array(reached), np.array(before))

    def step_ns(self, edit: Edit | None = None) -> float:
        """Return the steady-state step time, ns; without marked steps, of the whole stretch."""
        took = self.settled_round(edit).took(self.graph.last)
        return float(took.max()) / max(self.graph.step_count, 1)

    def least_ns(self, edit: Edit) -> float:
        """Return the busy time per step of the busiest stream with a change, ns: the minimum step time."""
        graph = self.graph
        works = graph.kind == WORK
        if not works.any():
            return 0.0
        kept = (graph.work_ns * self.kept_work(edit))[works]
        return float(np.bincount(-1 - graph.thread[works], weights=kept).max()) / max(graph.step_count, 1)

    def _edges(self, edit: Edit) -> tuple[list[int], list[float], list[int], list[float]]:
        """Return the predecessors of all nodes and the delays after them."""
        graph = self.graph
        keep = self.kept_work(edit)
        waits = (graph.kind == WAIT) & np.isin(graph.row, edit.waits)
        gone = (keep == 0) & (graph.kind == WORK)
        work_ns = graph.work_ns * keep
        # The time of a wait with nothing to wait for is host time.
        before_ns = np.where(graph.kind == WAIT, self.host, 1.0) * graph.before_ns
        before_ns = np.where(waits | gone, 0.0, before_ns) + work_ns
        other_ns = graph.other_ns + work_ns
        for thread, clock in enumerate(graph.clocks):
            passed = self.passed(thread, edit)
            mine = np.flatnonzero(graph.thread == thread)
            start, end, resumed = graph.host_start[mine], graph.host_end[mine], graph.other_start[mine]
            reached = np.interp(end, clock.at, passed)
            before_ns[mine] += reached - np.interp(start, clock.at, passed)
            other_ns[mine] += np.where(resumed >= 0, reached - np.interp(resumed, clock.at, passed), 0.0)
        cut = waits | gone
        other = np.where(cut, -1, graph.other).tolist() if cut.any() else graph.others
        return graph.befores, before_ns.tolist(), other, other_ns.tolist()

    def passed(self, thread: int, edit: Edit) -> Floats:
        """Return the elapsed host time of a thread with a change at each instant of its clock, ns."""
        clock = self.graph.clocks[thread]
        return self.host * clock.passed(self.scale, _kept_host(edit, self.graph.tracks[thread], clock.at))

    def kept_work(self, edit: Edit) -> Floats:
        """Return the share of its device work that each node keeps with a change, shape ``(n,)``."""
        graph = self.graph
        keep = np.ones(len(graph))
        if len(edit.work):
            order = np.argsort(edit.work, kind="stable")
            rows, parts = edit.work[order], edit.keep[order]
            rows, first = np.unique(rows, return_index=True)
            parts = np.minimum.reduceat(parts, first)
            at = np.minimum(np.searchsorted(rows, graph.row), len(rows) - 1)
            hit = (graph.kind == WORK) & (rows[at] == graph.row)
            keep[hit] = parts[at[hit]]
        return keep


def _kept_host(edit: Edit, track: int, at: Ints) -> Floats | None:
    """Return the share of host time between the instants of a clock that remains; None = all of it."""
    host = edit.host
    mine = np.flatnonzero(host.tracks == track)
    if not len(mine):
        return None
    keep = np.ones(len(at) - 1)
    first = np.searchsorted(at, host.starts[mine], side="left")
    last = np.searchsorted(at, host.ends[mine], side="right") - 1
    parts = host.keep[mine]
    counts = np.maximum(last - first, 0)
    inside = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(
        counts.sum()
    )
    np.minimum.at(keep, inside, np.repeat(parts, counts))
    # A change that begins or ends between two events shrinks a part of the time between them.
    for index, begin, end, part in (
        (
            first - 1,
            host.starts[mine],
            np.minimum(host.ends[mine], at[np.minimum(first, len(at) - 1)]),
            parts,
        ),
        (last, np.maximum(at[last], host.starts[mine]), np.where(last >= first, host.ends[mine], 0), parts),
    ):
        partly = (index >= 0) & (index < len(keep)) & (end > begin)
        at_index = index[partly]
        covered = (end - begin)[partly] / np.maximum((at[at_index + 1] - at[at_index]), 1)
        np.multiply.at(keep, at_index, 1 - np.minimum(covered, 1.0) * (1 - part[partly]))
    return keep


def _round(
    reached: list[float], before: list[int], before_ns: list[float], other: list[int], other_ns: list[float]
) -> None:
    """Compute every node once; predecessors later in the order still hold the instants of the previous round."""
    for node, (a, a_ns, b, b_ns) in enumerate(zip(before, before_ns, other, other_ns, strict=True)):
        at = reached[a] + a_ns
        if b >= 0 and (late := reached[b] + b_ns) > at:
            at = late
        reached[node] = at
