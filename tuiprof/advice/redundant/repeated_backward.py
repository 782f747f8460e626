"""Several backward passes of a step go through the same graph, where one pass for the sum of the losses would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share

#: Minimum share of the time of all device work, or of a CPU's.
MIN_SHARE: Final = 0.02
#: What stores a gradient, and what adds it to another.
_STORES: Final = r"^(torch::autograd::AccumulateGrad$|aten::)"
_ADDS: Final = r"^aten::add_?$"
#: Calls that set gradients to zero.
_ZEROS: Final = r"^aten::(zero_|_foreach_zero_)$"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for autograd nodes that run several times, each time for gradients that are added up."""
    calls = evidence.calls
    passes = list(_again(evidence))
    if not passes:
        return
    again = calls.mask(*passes)
    if trace.device_indices:
        of, share = "device time", calls.work_ns[again].sum() / trace.lengths(trace.device_work).sum()
    else:
        of, share = "the time", trace.lengths(calls.rows[again]).sum() / (trace.span[1] - trace.span[0])
    if share < MIN_SHARE:
        return
    first = int(calls.rows[passes[0][0]])
    yield Finding(
        f"{format_rough_share(float(share))} of {of} goes through the same graph again for another loss, "
        f"{evidence.how_often(len(passes))}",
        evidence.function_of(first),
        "add up the losses and call backward() once, without retain_graph=True",
        "high",
        "the same autograd nodes run again, and their gradients are added to those of the pass before",
        calls.edit(again),
        event=first,
    )


def _again(evidence: Evidence) -> Iterator[Ints]:
    """Yield what each backward pass calls for nodes that an earlier one has evaluated, as indices.

    Both passes store gradients, the later one by adding to those of the earlier: gradients that replace others have
    been cleared or read in between. No optimizer steps or clears gradients between them, and none are set to zero.
    """
    trace, calls = evidence.trace, evidence.calls
    starts = trace.starts[calls.rows]
    clears = trace.starts[trace.host_events(CLEARS)]
    zeros = starts[trace.named(_ZEROS, calls.rows) & ~calls.backward]
    changes = np.searchsorted(np.sort(np.concatenate((evidence.updates.starts, clears, zeros))), starts)
    stores = trace.named(ACCUMULATE, calls.rows)
    # autograd.grad passes such nodes, too, but calls nothing in them.
    stored = stores & calls.mask(calls.inside(trace.operators(_STORES)))
    added = stores & calls.mask(calls.inside(trace.operators(_ADDS)))
    nothing = np.zeros(0, dtype=np.int64)
    evaluated, learned, since = nothing, nothing, (-1, -1)
    for nodes in calls.backward_passes():
        if not stored[nodes].any():
            continue
        now = int(calls.steps[nodes[0]]), int(changes[nodes[0]])
        if now != since:
            evaluated, learned, since = nothing, nothing, now
        again = np.isin(calls.nodes[nodes], evaluated)
        evaluated = np.union1d(evaluated, calls.nodes[nodes][calls.nodes[nodes] >= 0])
        # The gradient of a weight is stored right after the node that computes it.
        known = np.maximum.accumulate(np.where(stores[nodes], 0, np.arange(len(nodes))))
        again, writers = again[known], calls.nodes[nodes[known]]
        adds = added[nodes] & np.isin(writers, learned)
        learned = np.union1d(learned, writers[stored[nodes] & (writers >= 0)])
        if (adds & again).any():
            # Between two nodes autograd adds up what several of them give to a third.
            joined = np.flatnonzero(again[:-1] & again[1:])
            sums = [calls.between(int(nodes[i]), int(nodes[i + 1])) for i in joined.tolist()]
            yield np.unique(np.concatenate((nodes[again], *sums)))


RULE = AdviceRule("repeated-backward", find)
