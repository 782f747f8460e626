"""Operators are recorded for a backward pass that never runs; those of a backward pass, for a second one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import BACKWARD, Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Mask
from tuiprof.model.units import format_count
from tuiprof.whatif import EditRange

#: Share of the host time of an operator that remains without a node for autograd, which has to be made and freed.
#: Measured with no_grad() and inference_mode() (docs/results/predictions.md); likely, least and most helpful.
_KEEP: Final = (0.72, 0.88, 0.58)
#: Minimum number of such operators in a step, since a few are those of metrics. The backward pass of a single step may
#: be missing because it was not captured.
MIN_OPERATORS, MIN_STEPS = 10, 2
#: The same for nodes of a backward pass with create_graph=True. Measured on a CPU, on nine networks of small layers:
#: 0.81 to 0.91.
_KEEP_BACKWARD: Final = (0.83, 0.92, 0.75)
#: Minimum share of the nodes with operators that a second backward pass could visit. Checkpoints compute their layers
#: again in some nodes, and what these record is not meant to be visited.
_MOST: Final = 0.9
#: Nodes that are one operator only without create_graph, as that one cannot be differentiated.
_WRITTEN_OUT: Final = f"^{BACKWARD}(Silu|Mish)Backward"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for operators that create nodes which no backward pass visits, in several steps."""
    yield from _twice_differentiable(evidence)
    calls = evidence.calls
    if len(trace.steps) < MIN_STEPS:
        return
    unused = _unused(calls)
    count = int(unused.sum()) / evidence.step_count
    if count < MIN_OPERATORS:
        return
    event = int(calls.rows[np.flatnonzero(unused)[0]])
    no_waits = np.empty(0, dtype=np.int64)
    yield Finding(
        f"{format_count(round(count))} operators a step are recorded for a backward pass that never runs",
        evidence.function_of(event),
        "with torch.no_grad(): around what is not differentiated"
        if calls.backward.any()
        else "with torch.inference_mode(): (or torch.no_grad()) around the loop",
        "high",
        "they create nodes, by their sequence numbers, and no backward pass visits these",
        *EditRange(*(replace(calls.edit(unused, part, 1.0), waits=no_waits) for part in _KEEP)),
        event=event,
    )


def _twice_differentiable(evidence: Evidence) -> Iterator[Finding]:
    """Look for backward passes whose operators create nodes that no second backward pass visits."""
    trace, calls = evidence.trace, evidence.calls
    operators = trace.operators("^aten::")
    inside = calls.inside(operators)
    in_backward = (inside >= 0) & calls.backward[inside]
    operators, inside = operators[in_backward], inside[in_backward]
    with_operators = calls.mask(inside)
    numbers = trace.ints("sequence", operators)
    inside, numbers = inside[numbers >= 0], numbers[numbers >= 0]
    if len(numbers) < MIN_OPERATORS * evidence.step_count:
        return
    visited = np.unique(trace.ints("sequence", calls.rows[calls.backward]))
    with_nodes = calls.mask(inside)
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for nodes in calls.backward_passes():
        mine = nodes[with_nodes[nodes]]
        created = numbers[np.isin(inside, mine)]
        if len(mine) >= _MOST * with_operators[nodes].sum() and not np.isin(created, visited).any():
            chosen[nodes] = True
    count = int(chosen[inside].sum()) / evidence.step_count
    if count < MIN_OPERATORS or len(np.unique(calls.steps[chosen])) < MIN_STEPS:
        return
    keep_host, keep_work = _single(calls, chosen & trace.named(_WRITTEN_OUT, calls.rows))
    no_waits = np.empty(0, dtype=np.int64)
    event = int(calls.rows[np.argmax(chosen)])
    yield Finding(
        f"backward passes record {format_count(round(count))} operators a step for a second one that never runs",
        evidence.function_of(event),
        "leave out create_graph=True where gradients are not differentiated again, as in validation",
        "high",
        "they create nodes, by their sequence numbers, and no backward pass visits these",
        *EditRange.over(
            lambda part: replace(calls.edit(chosen, part * keep_host, keep_work), waits=no_waits),
            _KEEP_BACKWARD,
        ),
        event=event,
    )


def _single(calls: Calls, written_out: Mask) -> tuple[Floats, Floats]:
    """Return which part of the host time of calls remains, and which device work, if each of some is one operator.

    A node takes about as long as an operator in it.
    """
    keep_host = np.where(written_out, 2 / (1 + np.maximum(calls.work_count, 1)), 1.0)
    keep_work = np.where(calls.launched_by(written_out), 0.0, 1.0)
    gone = np.flatnonzero(keep_work == 0)
    _, last = np.unique(calls.call_of_work[gone][::-1], return_index=True)
    keep_work[gone[len(gone) - 1 - last]] = 1.0
    return keep_host, keep_work


def _unused(calls: Calls) -> Mask:
    """Return the forward calls that create nodes of which none is visited.

    After the last backward pass of the capture, that is not known.
    """
    numbers = calls.trace.ints("sequence", calls.rows)
    visited = np.unique(numbers[calls.backward])
    known = visited.max(initial=-1) if len(visited) else np.iinfo(np.int64).max
    found = np.zeros(len(calls.rows), dtype=bool)
    for track in np.unique(calls.tracks).tolist():
        # An operator has the number of the next node: it creates those up to the number of the operator after it.
        mine = np.flatnonzero((calls.tracks == track) & ~calls.backward & (numbers >= 0))
        first, last = numbers[mine[:-1]], numbers[mine[1:]]
        until = np.searchsorted(visited, last)
        found[mine[:-1]] = (last > first) & (last <= known) & (np.searchsorted(visited, first) == until)
    return found


RULE = AdviceRule("unused-graph", find)
