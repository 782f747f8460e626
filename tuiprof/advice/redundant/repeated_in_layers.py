"""Each layer computes the same positions, masks or weights from tensors that need no gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import in_a_row
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif import Edit

#: What is computed begins with tensors that do not depend on the batch.
_MAKES: Final = re.compile(
    r"^aten::(arange|linspace|logspace|zeros|ones|full|eye|tril_indices|triu_indices|\w+_window)$"
)
#: Operators without a gradient whose result differs from layer to layer: decisions (as of a router of experts), random
#: numbers, values that are read, statistics of activations.
_DIFFERS: Final = re.compile(
    r"^aten::(arg(max|min|sort)|topk|sort|multinomial|bernoulli_?|rand\w*|normal_?|uniform_?|dropout|item|round|"
    r"aminmax|amax|amin|max|min|norm|one_hot|detach_?|bucketize|searchsorted|scatter_?|scatter_add_?|cumsum|bincount|"
    r"histc)$"
)
#: Work between two layers.
_LAYERS: Final = ("gemm", "convolution", "attention")
#: Minimum number of layers, and of operators in each.
MIN_LAYERS, MIN_OPERATORS = 3, 3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for the same operators without gradients in several layers of one forward pass."""
    calls = evidence.calls
    for passes in _passes(trace):
        first = passes[0][0]
        operators = in_a_row(calls.names_of(first))
        event = int(calls.rows[first[0]])
        yield Finding(
            f"{len(passes[0])} layers each run the same {len(first)} operators on tensors that need no gradient",
            evidence.function_of(event) or operators,
            "compute it once before the layers and pass it to them, or keep it in a buffer (register_buffer, or "
            "functools.cache by size and device)",
            "medium",
            "these operators have no backward nodes, so they probably compute positions, masks or constants, which are "
            f"the same in all layers: {operators}",
            calls.edit(calls.mask(*_again(calls, passes))),
            Edit(),
            event=event,
        )


def computed_again(trace: Trace) -> Mask:
    """Return which calls would disappear if what each layer computes were computed once."""
    calls = calls_of(trace)
    return calls.mask(*(part for passes in _passes(trace) for part in _again(calls, passes)))


@cached_on_trace
def _passes(trace: Trace) -> list[list[list[Ints]]]:
    """Return, of each kind of stretch, those of each forward pass."""
    found: dict[tuple[int, ...], list[list[Ints]]] = {}
    for stretches in _forward_passes(calls_of(trace)):
        for names, repeated in stretches.items():
            found.setdefault(names, []).append(repeated)
    return list(found.values())


def _again(calls: Calls, passes: list[list[Ints]]) -> Iterator[Ints]:
    """Yield all stretches of each forward pass but the first, with the calls in them that launch nothing."""
    for repeated in passes:
        yield from (calls.between(int(part[0]), int(part[-1])) for part in repeated[1:])


def _forward_passes(calls: Calls) -> Iterator[dict[tuple[int, ...], list[Ints]]]:
    """Yield, of each forward pass, the repeated stretches without gradients by the names of their operators."""
    differentiated, names = calls.differentiated, calls.codes
    layers = calls.work_count_of(calls.works_of(*_LAYERS)) > 0
    busy = np.flatnonzero((calls.work_count > 0) & ~updates(calls.trace).hold(calls.rows))
    for track in np.unique(calls.tracks[busy]).tolist():
        mine = busy[calls.tracks[busy] == track]
        # A new pass begins with each step, and after each backward node that this thread runs or that another one ran.
        passes = np.cumsum(calls.backward)[mine] + calls.steps[mine].astype(np.int64) * (len(calls.rows) + 1)
        for forward in np.split(mine, np.flatnonzero(np.diff(passes)) + 1):
            found: dict[tuple[int, ...], list[Ints]] = {}
            since: dict[tuple[int, ...], int] = {}
            counted = np.cumsum(layers[forward] & differentiated[forward])
            edges = np.flatnonzero(np.diff(differentiated[forward])) + 1
            for stretch in np.split(np.arange(len(forward)), edges):
                indices = forward[stretch]
                key = tuple(names[indices].tolist())
                if differentiated[indices[0]] or len(key) < MIN_OPERATORS:
                    continue
                if counted[stretch[0]] > since.get(key, -1):  # a layer lies between
                    found.setdefault(key, []).append(indices)
                    since[key] = int(counted[stretch[0]])
            yield {
                key: stretches
                for key, stretches in found.items()
                if len(stretches) >= MIN_LAYERS and _is_constant(calls.names_of(stretches[0]))
            }


def _is_constant(names: Sequence[str]) -> bool:
    return any(_MAKES.match(name) for name in names) and not any(_DIFFERS.match(name) for name in names)


RULE = AdviceRule("repeated-in-layers", find)
