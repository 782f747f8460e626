"""Gradients that are accumulated over several backward passes are averaged over all ranks after each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

_COLLECTIVE: Final = r"^c10d::_?(allreduce|reduce_scatter)"
#: What an unaveraged pass does not do either: copy a gradient into its bucket (DDP), or all of a reduction (FSDP2).
_BUCKET: Final = r"^torch::distributed::reducer::|^FSDP::post_backward_reduce"
_NO_SYNC: Final = (
    "with model.no_sync(): around forward and backward of all micro-batches but the last (FSDP2: "
    "model.set_requires_gradient_sync(False))"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for steps with several backward passes that all average the same number of tensors."""
    calls = evidence.calls
    rows = np.flatnonzero(trace.named(f"{_COLLECTIVE}|{_BUCKET}") & trace.is_category("cpu_op", "annotation"))
    inside = calls.inside(rows)
    in_backward = (inside >= 0) & calls.backward[inside]
    rows, inside = rows[in_backward], inside[in_backward]
    is_collective = trace.named(_COLLECTIVE, rows)
    # First node of each pass, and what it runs for the average.
    passes = [(int(nodes[0]), np.isin(inside, nodes)) for nodes in calls.backward_passes()]
    passes = [(node, mine) for node, mine in passes if is_collective[mine].any()]
    early = [
        rows[mine]
        for (node, mine), (following, others) in pairwise(passes)
        if is_collective[mine].sum() == is_collective[others].sum()
        and _accumulates(evidence, node, following)
    ]
    if not early:
        return
    unneeded = np.concatenate(early)
    first = int(unneeded[trace.named(_COLLECTIVE, unneeded)][0])
    yield Finding(
        f"gradients are averaged over all ranks {evidence.how_often(len(early))} before the last backward pass",
        evidence.function_of(first),
        evidence.write("accumulation", _NO_SYNC),
        "high",
        "backward passes of one optimizer step that each start the same collectives",
        evidence.without_operators(unneeded),
        event=first,
    )


def _accumulates(evidence: Evidence, node: int, following: int) -> bool:
    """Whether two backward passes belong to one step, without an optimizer step between them."""
    starts, calls = evidence.trace.starts, evidence.calls
    updates = np.searchsorted(evidence.updates.starts, starts[calls.rows[[node, following]]])
    return bool(calls.steps[node] == calls.steps[following] and updates[0] == updates[1])


RULE = AdviceRule("gradient-sync-each-pass", find)
