"""Each layer computes the same positions, masks, weights or neighbours from tensors that need no gradient."""

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
#: A search for neighbours: distances, and what chooses by them. Other operators without a gradient may use what it
#: found.
_DISTANCE: Final = re.compile(r"^aten::(cdist|norm|linalg_vector_norm|sum)$")
_CHOOSES: Final = re.compile(r"^aten::(topk|sort|argsort|argmin|min|kthvalue|lt|le)$")
#: Kernels of numbers with a fraction: differences of integers are those of indices.
_OF_FLOATS: Final = r"\b(float|double|Half|BFloat16)\b"
#: Maximum share by which the device time of two stretches differs, if their tensors have the same sizes.
_MAX_DIFFERENCE: Final = 0.25
#: Work between two layers.
_LAYERS: Final = ("gemm", "convolution", "attention")
#: Minimum number of layers, and of operators in each.
MIN_LAYERS, MIN_OPERATORS = 3, 3
#: Minimum number of operators of a search: distances and a choice.
_MIN_OF_SEARCH: Final = 2


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for the same operators without gradients in several layers of one forward pass."""
    calls = evidence.calls
    for passes in _passes(trace):
        first = passes[0][0]
        operators = in_a_row(calls.names_of(first))
        event = int(calls.rows[first[0]])
        repeated = f"{len(passes[0])} layers each run the same {len(first)} operators"
        if _search(calls.names_of(first)):
            what = f"{repeated} to find neighbours of tensors that need no gradient"
            instead = "if the points are the same in all layers, search once before these and pass the indices to them"
            because = (
                "no gradient goes through distances and choices on tensors of the same sizes, which are probably "
                f"coordinates, not what layers have computed: {operators}"
            )
        else:
            what = f"{repeated} on tensors that need no gradient"
            instead = (
                "compute it once before the layers and pass it to them, or keep it in a buffer (register_buffer, or "
                "functools.cache by size and device)"
            )
            because = (
                "these operators have no backward nodes, so they probably compute positions, masks or constants, which "
                f"are the same in all layers: {operators}"
            )
        yield Finding(
            what,
            evidence.function_of(event) or operators,
            instead,
            "medium",
            because,
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
                if differentiated[indices[0]] or len(key) < _MIN_OF_SEARCH:
                    continue
                if counted[stretch[0]] > since.get(key, -1):  # a layer lies between
                    found.setdefault(key, []).append(indices)
                    since[key] = int(counted[stretch[0]])
            yield {
                key: stretches
                for key, stretches in found.items()
                if len(stretches) >= MIN_LAYERS
                and (_is_constant(calls.names_of(stretches[0])) or _of_same_points(calls, stretches, forward))
            }


def _is_constant(names: Sequence[str]) -> bool:
    return (
        len(names) >= MIN_OPERATORS
        and any(_MAKES.match(name) for name in names)
        and not any(_DIFFERS.match(name) for name in names)
    )


def _search(names: Sequence[str]) -> int:
    """Return how many operators it takes to choose by distances; 0 = the operators are no such search."""
    near = next((at for at, name in enumerate(names) if _DISTANCE.match(name)), len(names))
    chosen = next((at for at in range(near + 1, len(names)) if _CHOOSES.match(names[at])), 0)
    others = (name for at, name in enumerate(names) if at not in (near, chosen))
    return chosen + 1 if chosen and not any(_DIFFERS.match(name) for name in others) else 0


def _of_same_points(calls: Calls, stretches: list[Ints], forward: Ints) -> bool:
    """Return whether layers probably search for the neighbours of the same points.

    Gradient mode may be off for a search, also among what layers have computed. So either it is on and the search
    creates no node, or each layer computes differences, as of coordinates, from other tensors that need no gradient.
    """
    steps = _search(calls.names_of(stretches[0]))
    between = calls.between(int(stretches[0][0]), int(stretches[-1][-1]))
    if not steps or "aten::detach" in calls.names_of(between) or not _same_sizes(calls, stretches):
        return False
    trace = calls.trace
    given = _without_nodes(trace)
    if all(given[stretch[:steps]].all() for stretch in stretches):
        return True
    floats = calls.work_count_of(trace.named(_OF_FLOATS, trace.device_work)) > 0
    differences = forward[(given & floats & trace.named("^aten::sub$", calls.rows))[forward]]
    layer = np.searchsorted([stretch[0] for stretch in stretches], differences, side="right")
    return set(range(1, len(stretches) + 1)) <= set(layer.tolist())


def _same_sizes(calls: Calls, stretches: list[Ints]) -> bool:
    """Return whether stretches launch the same kernels, which take about as long."""
    codes = calls.trace.name_codes[calls.trace.device_work]
    kernels = {tuple(codes[calls.launched_by(calls.mask(stretch))].tolist()) for stretch in stretches}
    took = [int(calls.work_ns[stretch].sum()) for stretch in stretches]
    return len(kernels) == 1 and min(took) >= (1 - _MAX_DIFFERENCE) * max(took)


@cached_on_trace
def _without_nodes(trace: Trace) -> Mask:
    """Return which calls created no node although gradient mode was on: the next one still has their number."""
    calls = calls_of(trace)
    numbers = trace.ints("sequence", calls.rows)
    found = np.zeros(len(numbers), dtype=bool)
    for track in np.unique(calls.tracks).tolist():
        mine = np.flatnonzero((calls.tracks == track) & ~calls.backward & (numbers >= 0))
        found[mine[:-1]] = np.diff(numbers[mine]) == 0
    return found


RULE = AdviceRule("repeated-in-layers", find)
