"""Sharded weights are gathered more than once between two updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

#: What FSDP2 does to gather the weights of a group of parameters, whose name is in brackets.
_GATHERS: Final = r"^FSDP::all_gather(_copy_out)?( \(.*\))?$"

_KEEP_WHOLE: Final = "fully_shard(…, reshard_after_forward=False)"
_MICRO_BATCHES: Final = (
    "; with several micro-batches model.set_reshard_after_backward(False) for all but the last"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for groups of parameters that a step gathers several times."""
    if not evidence.stepped:
        return
    steps, names = trace.steps.step_of, trace.name_codes
    rows = trace.host_events(_GATHERS)
    rows = rows[steps[rows] >= 0]
    rows = rows[np.lexsort((trace.starts[rows], names[rows], steps[rows]))]
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (names[rows][1:] == names[rows][:-1]) & (steps[rows][1:] == steps[rows][:-1])
    if not again.any():
        return
    times = round(len(rows) / np.count_nonzero(~again))
    longest = trace.longest(rows[again])
    yield Finding(
        f"sharded weights are gathered {times} times a step, though they change once",
        evidence.function_of(longest) or trace.name(longest),
        f"if memory allows, {evidence.write('keep-gathered', _KEEP_WHOLE)}"
        + (_MICRO_BATCHES if times > 2 else ""),
        "medium",
        "FSDP frees them after each forward and backward pass to save memory",
        evidence.without_operators(rows[again]),
        event=longest,
    )


RULE = AdviceRule("repeated-gather", find)
