"""Each step works on all that the steps before have collected, as metrics over an epoch do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.units import format_count
from tuiprof.whatif import EditRange

#: Minimum number of captured steps, of operators in each, and of steps whose data was collected. Sizes that grow by one
#: are those of texts that are written word by word.
MIN_STEPS, MIN_OPERATORS, MIN_COLLECTED, MIN_GROWTH = 3, 4, 4, 2
#: What joins what was collected.
_JOINS: Final = r"^aten::(cat|concat|concatenate|stack|vstack|hstack)$"
#: Operators of a step whose shapes are read, the longest.
_LOOKED_AT: Final = 300
#: Share of their time that remains: likely, least and most helpful. What is collected is still used now and then.
_KEEP: Final = (0.05, 0.5, 0.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for operators on sizes that grow by the same amount from step to step, in traces with shapes."""
    calls = evidence.calls
    if evidence.is_jax or evidence.step_count < MIN_STEPS:
        return
    joins = calls.steps[trace.named(_JOINS, calls.rows) & ~calls.differentiated]
    if len(np.unique(joins[joins >= 0])) < len(trace.steps):
        return
    sizes = _sizes(trace, calls)
    if sizes is None:
        return
    if (progression := _progression(sizes)) is not None:
        first, growth = progression
        which = np.concatenate([of.get(first + at * growth, []) for at, of in enumerate(sizes)]).astype(
            np.int64
        )
        longest = which[np.argmax(trace.lengths(calls.rows[which]))]
        event = int(calls.rows[longest])
        chosen = calls.mask(which)
        yield Finding(
            f"each step works on all that was collected in the steps before: {format_count(first)} rows, "
            f"{format_count(growth)} more in each step; longest in {calls.names[longest].removeprefix('aten::')}",
            evidence.function_of(event) or evidence.place_by_share(chosen),
            "work on it every N steps or once at the end (of torchmetrics: update() in the step, compute() at the end "
            "of the epoch); the time grows with the number of steps",
            "medium",
            f"{len(which) // len(sizes)} operators a step have inputs that grow by {format_count(growth)} from step to "
            "step",
            *EditRange(*(calls.edit(chosen, keep, keep) for keep in _KEEP)),
            event=event,
        )


def _sizes(trace: Trace, calls: Calls) -> list[dict[int, list[int]]] | None:
    """Return the forward calls of each step by the length of their input, as indices; None = no shapes."""
    found = list[dict[int, list[int]]]()
    for step in range(len(trace.steps)):
        mine = np.flatnonzero((calls.steps == step) & ~calls.backward & ~calls.differentiated)
        mine = mine[np.argsort(-trace.lengths(calls.rows[mine]), kind="stable")[:_LOOKED_AT]]
        at_row = dict(zip(calls.rows[mine].tolist(), mine.tolist(), strict=True))
        of: dict[int, list[int]] = defaultdict(list)
        for row, given in arguments(trace, calls.rows[mine]):
            shape = given.dims[0]
            if isinstance(shape, list) and shape and type(shape[0]) is int:
                of[shape[0]].append(at_row[row])
        if not of:
            return None
        found.append(of)
    return found


def _progression(sizes: list[dict[int, list[int]]]) -> tuple[int, int] | None:
    """Return first size and growth of what grows by the same amount in each step, with most calls; None = nothing."""
    found = list[tuple[int, int, int]]()
    for first in sizes[0]:
        for second in sizes[1]:
            growth = second - first
            if growth < MIN_GROWTH or first < MIN_COLLECTED * growth:
                continue
            least = min(len(of.get(first + at * growth, [])) for at, of in enumerate(sizes))
            if least >= MIN_OPERATORS:
                found.append((least, first, growth))
    return max(found)[1:] if found else None


RULE = AdviceRule("growing-history", find)
