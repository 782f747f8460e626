"""Several backward passes of a step go through the same graph, where one would do.

Either for losses whose gradients are added, or for the gradients of one output, asked for one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.gradients.given_gradients import given_to
from tuiprof.analyses.shared.calls import ACCUMULATE, BACKWARD, Calls
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
_DIFFER: Final = "; passes for different outputs of one operator look the same, and remain"
#: An output is differentiated with respect to so many inputs at most; more passes are for single rows or samples.
_INPUTS: Final = 4
#: What takes one value of each row, as a column of what a model computes, or one of all.
_TAKES_ONE: Final = f"^{BACKWARD}(Select|Squeeze|Sum|Mean)Backward"
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
    alike = _one_by_one(evidence)
    repeated = _again_for_another(calls, alike)
    if alike and (share := _share(evidence, again := calls.mask(*repeated))) >= MIN_SHARE:
        several = calls.mask(
            *(
                nodes
                for same, nodes in zip(alike, repeated, strict=True)
                if len(same) > _INPUTS * evidence.step_count or not _of_one_value(calls, same[0])
            )
        )
        remains = np.where(several, _REMAINS, 0.0)
        differ = _DIFFER if several.any() else ""
        first = int(calls.rows[alike[0][1][0]])
        yield Finding(
            f"{format_rough_share(share)} of {_of(trace)} goes through the same graph again for another gradient, "
            f"{evidence.how_often(sum(map(len, alike)) - len(alike))}",
            evidence.function_of(first),
            "ask for all gradients of an output at once, torch.autograd.grad(u, (x, t)), not one by one; for several "
            "outputs is_grads_batched=True, or torch.func",
            "medium",
            f"autograd.grad begins at the same node, runs the same nodes and stores no gradient{differ}",
            calls.edit(again, remains, np.append(remains, 1.0)[calls.call_of_work]),
            Edit() if several.any() else calls.edit(again, _REMAINS, _REMAINS),
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


def _one_by_one(evidence: Evidence) -> list[list[Ints]]:
    """Return backward passes that store nothing and evaluate the same nodes, two and more each, as indices."""
    calls = evidence.calls
    stored = calls.mask(calls.inside(evidence.trace.operators(_STORES)))
    stored &= evidence.trace.named(ACCUMULATE, calls.rows)
    alike: dict[tuple[int, bytes], list[Ints]] = {}
    for nodes in calls.backward_passes():
        numbers = calls.nodes[nodes]
        if not stored[nodes].any() and numbers[0] >= 0 and len(nodes) >= _MIN_NODES:
            alike.setdefault((int(calls.steps[nodes[0]]), np.sort(numbers).tobytes()), []).append(nodes)
    return [passes for passes in alike.values() if len(passes) > 1]


def _of_one_value(calls: Calls, nodes: Ints) -> bool:
    """Return whether a pass begins with one value of each row, which has only one gradient with respect to an input."""
    if calls.trace.named(_TAKES_ONE, calls.rows[nodes[:1]]).any():
        return True
    shapes = [shape for shape, _ in given_to(calls, nodes[:1]).values()]
    return any(len(shape) > 1 and shape[-1] == 1 for shape in shapes)


def _again_for_another(calls: Calls, passes: list[list[Ints]]) -> list[Ints]:
    """Return for each list of passes all but the first, and what later passes evaluate for them.

    With ``create_graph=True`` each pass creates nodes. Of a later pass that goes through those of several, one would
    go through those of one.
    """
    created = np.flatnonzero(calls.created_in >= 0)
    later = np.zeros(len(calls.rows), dtype=np.int64)
    for number, nodes in enumerate(calls.backward_passes() if passes and len(created) else ()):
        later[nodes] = number
    found = []
    for same in passes:
        made_by = np.full(len(calls.rows), len(same))
        for number, nodes in enumerate(same):
            made_by[nodes] = number
        makers = made_by[calls.created_in[created]]
        first = np.full(int(later.max(initial=0)) + 1, len(same))
        np.minimum.at(first, later[created], makers)
        of_others = created[(makers < len(same)) & (makers > first[later[created]])]
        found.append(np.concatenate((*same[1:], of_others)))
    return found


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
