"""Several backward passes of a step go through the same graph, where one would do.

Either for losses whose gradients are added, or for the gradients of one output, asked for one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit

#: Minimum share of the time of all device work, or of a CPU's.
MIN_SHARE: Final = 0.02
#: What stores a gradient, and what adds it to another.
_STORES: Final = r"^(torch::autograd::AccumulateGrad$|aten::)"
_ADDS: Final = r"^aten::add_?$"
#: Fewer nodes are no graph worth a call less.
_MIN_NODES: Final = 4
#: What remains of passes for single gradients: some are for different outputs. An estimate.
_REMAINS: Final = 0.4
#: Calls that set gradients to zero.
_ZEROS: Final = r"^aten::(zero_|_foreach_zero_)$"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for autograd nodes that run again, for gradients that are added up, or that nothing stores."""
    calls = evidence.calls
    if not calls.backward.any():
        return
    passes = list(_again(evidence))
    if passes and (share := _share(evidence, again := calls.mask(*passes))) >= MIN_SHARE:
        first = int(calls.rows[passes[0][0]])
        yield Finding(
            f"{format_rough_share(share)} of {_of(trace)} goes through the same graph again for another loss, "
            f"{evidence.how_often(len(passes))}",
            evidence.function_of(first),
            "add up the losses and call backward() once, without retain_graph=True",
            "high",
            "the same autograd nodes run again, and their gradients are added to those of the pass before",
            calls.edit(again),
            event=first,
        )
    passes = list(_one_by_one(evidence))
    if passes and (share := _share(evidence, again := _with_created(calls, passes))) >= MIN_SHARE:
        first = int(calls.rows[passes[0][0]])
        yield Finding(
            f"{format_rough_share(share)} of {_of(trace)} goes through the same graph again for another gradient, "
            f"{evidence.how_often(len(passes))}",
            evidence.function_of(first),
            "ask for all gradients of an output at once, torch.autograd.grad(u, (x, t)), not one by one; for several "
            "outputs is_grads_batched=True, or torch.func",
            "medium",
            "autograd.grad begins at the same node, runs the same nodes and stores no gradient; passes for different "
            "outputs of one operator look the same, and remain",
            calls.edit(again, _REMAINS, _REMAINS),
            Edit(),
            calls.edit(again),
            event=first,
        )


def _of(trace: Trace) -> str:
    return "device time" if trace.device_indices else "the time"


def _share(evidence: Evidence, which: Mask) -> float:
    """Return the time of some calls as a share of all device work, or of a CPU's time."""
    trace, calls = evidence.trace, evidence.calls
    if trace.device_indices:
        return float(calls.work_ns[which].sum() / trace.lengths(trace.device_work).sum())
    return evidence.share_of_time(calls.rows[which])


def _one_by_one(evidence: Evidence) -> Iterator[Ints]:
    """Yield the nodes of each backward pass that stores nothing and evaluates what an earlier one has, as indices."""
    calls = evidence.calls
    stored = calls.mask(calls.inside(evidence.trace.operators(_STORES)))
    stored &= evidence.trace.named(ACCUMULATE, calls.rows)
    known: set[tuple[int, bytes]] = set()
    for nodes in calls.backward_passes():
        numbers = calls.nodes[nodes]
        key = int(calls.steps[nodes[0]]), np.sort(numbers).tobytes()
        if stored[nodes].any() or numbers[0] < 0 or len(nodes) < _MIN_NODES:
            continue
        if key in known:
            yield nodes
        known.add(key)


def _with_created(calls: Calls, passes: list[Ints]) -> Mask:
    """Return passes with the nodes of later passes that theirs have created, for gradients of gradients."""
    trace, which = calls.trace, calls.mask(*passes)
    rows = trace.operators()
    inside, numbers = calls.inside(rows), trace.ints("sequence", rows)
    made = which[inside] & (inside >= 0) & (numbers >= 0)
    made[made] = numbers[made] != trace.ints("sequence", calls.rows[inside[made]])
    own, steps = trace.ints("sequence", calls.rows), calls.steps.astype(np.int64) + 1
    place = calls.tracks.astype(np.int64) * (int(steps.max(initial=0)) + 1) + steps
    size = int(numbers.max(initial=0)) + 1
    created = np.unique(place[inside[made]] * size + numbers[made])
    return which | (calls.backward & (own >= 0) & np.isin(place * size + own, created))


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
