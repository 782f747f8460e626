"""The model runs a second time in a step, without a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: Operators that identify a forward pass.
_LAYERS: Final = r"^aten::(linear|conv\dd|matmul|bmm|mm|addmm|scaled_dot_product_attention|lstm|gru)$"
#: Minimum number of them in a row for a model.
_LEAST_LAYERS: Final = 4


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layers in the order of those with a backward pass, whose weights are already cast.

    A teacher or a target network has the same layers. But autocast caches weights that it has cast to bfloat16, so
    a second run with the same weights launches fewer kernels, and a run with other weights does not.
    """
    calls = evidence.calls
    layers = np.flatnonzero(trace.named(_LAYERS, calls.rows) & ~calls.backward)
    made = np.zeros(len(calls.rows), dtype=bool)
    made[calls.forward[calls.forward >= 0]] = True
    chosen = np.zeros(len(calls.rows), dtype=bool)
    first: list[int] = []
    for step in np.unique(calls.steps[layers]):
        mine = layers[calls.steps[layers] == step]
        for run in np.split(mine, np.flatnonzero(np.diff(made[mine])) + 1):
            if len(run) < _LEAST_LAYERS or made[run[0]]:
                continue
            if _same_weights(calls, run, mine[made[mine]]):
                between = np.arange(run[0], run[-1] + 1)
                chosen[
                    between[(calls.tracks[between] == calls.tracks[run[0]]) & ~calls.backward[between]]
                ] = True
                first.append(int(run[0]))
    if not first:
        return
    event = int(calls.rows[first[0]])
    yield Finding(
        f"the model runs again on what no gradient is computed from, {evidence.how_often(len(first))}",
        evidence.function_of(event),
        "use the outputs of the first forward pass (outputs.detach()) for accuracy and logging, or compute them every "
        "N steps",
        "medium",
        "the same layers in the same order, with the weights that autocast has cast for the first pass",
        calls.edit(chosen),
        event=event,
    )


def _same_weights(calls: Calls, run: Ints, trained: Ints) -> bool:
    """Return whether a sequence of layers is part of the trained ones and casts fewer weights."""
    codes = calls.trace.name_codes[calls.rows].astype(np.int32)
    wanted, known = codes[run].tobytes(), codes[trained].tobytes()
    at = known.find(wanted)
    while at % codes.itemsize and at >= 0:
        at = known.find(wanted, at + 1)
    if at < 0:
        return False
    before = trained[at // codes.itemsize :][: len(run)]
    again = calls.work_count[run] - calls.work_count[before]
    return bool((again <= 0).all() and (again < 0).mean() > 0.5)


RULE = AdviceRule("repeated-forward", find)
