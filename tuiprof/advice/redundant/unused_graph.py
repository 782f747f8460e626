"""Operators are recorded for a backward pass that never runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask
from tuiprof.model.units import format_count
from tuiprof.whatif import EditRange

#: Share of the host time of an operator that remains without a node for autograd, which has to be made and freed.
#: Measured with no_grad() and inference_mode() (docs/predictions.md); likely, least and most helpful.
_KEEP: Final = (0.72, 0.88, 0.58)
#: Minimum number of such operators in a step, since a few are those of metrics. The backward pass of a single step may
#: be missing because it was not captured.
MIN_OPERATORS, MIN_STEPS = 10, 2


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for operators that create nodes which no backward pass visits, in several steps."""
    calls = evidence.calls
    unused = _unused(calls)
    count = int(unused.sum()) / evidence.step_count
    if count < MIN_OPERATORS or len(trace.steps) < MIN_STEPS:
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
