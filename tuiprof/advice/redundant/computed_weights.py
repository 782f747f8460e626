"""A network that is not trained computes its weights in each call: weight norm, pruning masks, parametrizations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.whatif import EditRange

#: The operator of both versions of PyTorch's weight norm. What else makes a weight is known by its shape.
_WEIGHT_NORM: Final = r"^aten::_weight_norm$"
_PRODUCTS: Final = r"^aten::(linear|conv\dd|conv_transpose\dd)$"
#: Calls that make a weight: the last one, and how many before the product belong to it at most.
_MAKES: Final = r"^aten::(mul|div|add|sub|where|masked_fill|matmul|mm)$"
_MOST_CALLS: Final = 12
#: Products that are inspected, the longest.
_LOOKED_AT: Final = 400
#: Share of the time of these calls that remains, likely, least and most helpful. On a CPU the product then reads the
#: weight from memory itself: masks of a pruned network with 2.4 million weights a layer took 5.8 ms, without them its
#: step took 2.0 to 2.8 ms less (one core of an EPYC, Zen 5).
_KEEP: Final = (0.0, 0.3, 0.0)
_KEEP_ON_CPU: Final = (0.55, 0.8, 0.1)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls that make the weight of the next product, in steps without a backward pass."""
    calls = evidence.calls
    if evidence.is_jax or calls.backward.any() or calls.differentiated.any():
        return
    normed = trace.named(_WEIGHT_NORM, calls.rows)
    runs = [*np.flatnonzero(normed)[:, None], *_before_products(trace, calls, ~normed)]
    if not runs or len(runs) < evidence.step_count:
        return
    chosen = calls.mask(*runs)
    kept = _KEEP if trace.device_indices else _KEEP_ON_CPU
    first = int(calls.rows[runs[0][-1]])
    names = sorted(
        {name.removeprefix("aten::") for run in runs[:_LOOKED_AT] for name in calls.names_of(run[-1:])}
    )
    yield Finding(
        f"weights are computed in each call of a network that is not trained, {evidence.how_often(len(runs))} "
        f"({', '.join(names[:3])})",
        evidence.function_of(first) or evidence.place_by_share(chosen),
        "compute them once, before the loop: remove_weight_norm(), prune.remove(), or "
        "parametrize.remove_parametrizations() of torch.nn.utils; W = W0 + B @ A merged into one weight",
        "high" if normed.any() else "medium",
        "weight norm runs in steps without a backward pass"
        if normed.any()
        else "the result has the shape of the weight of the product that follows; no backward pass runs",
        *EditRange(*(calls.edit(chosen, keep, keep) for keep in kept)),
        event=first,
    )


def _before_products(trace: Trace, calls: Calls, free: Mask) -> Iterator[Ints]:
    """Yield the calls that make a weight, for products whose shapes were recorded, as indices in order."""
    products = np.flatnonzero(trace.named(_PRODUCTS, calls.rows))
    makers = trace.named(_MAKES, calls.rows) & free
    products = products[makers[np.maximum(products - 1, 0)]]  # nothing comes between the two
    products = products[np.argsort(-trace.lengths(calls.rows[products]), kind="stable")[:_LOOKED_AT]]
    if not len(products):
        return
    near = np.unique(
        np.concatenate([np.arange(max(at - _MOST_CALLS, 0), at + 1) for at in np.sort(products)])
    )
    given = {row: one.dims for row, one in arguments(trace, calls.rows[near])}
    ends = trace.named(_PRODUCTS, calls.rows)
    for at in np.sort(products).tolist():
        if run := _makers(calls, given, at, ends):
            yield np.array(run)


def _makers(calls: Calls, given: dict[int, list[object]], at: int, ends: Mask) -> list[int]:
    """Return the calls that make the weight of the product ``at``."""
    dims = given.get(int(calls.rows[at]), [])
    sizes = [_size(shape) for shape in dims[:2]]
    if len(sizes) < 2 or not all(sizes):
        return []
    size, before, first = sizes[1], at - 1, at
    if _result(given.get(int(calls.rows[before]), [])) != dims[1]:
        return []
    while before >= max(at - _MOST_CALLS, 0) and not ends[before]:
        shapes = given.get(int(calls.rows[before]), [])
        if calls.tracks[before] != calls.tracks[at] or _size(next(iter(shapes), None)) == sizes[0]:
            break
        if size in map(_size, shapes) or _result(shapes) == dims[1]:
            first = before
        before -= 1
    return list(range(first, at))


def _size(shape: object) -> int:
    """Return the number of elements of a shape; 0 = it is none."""
    numbers = isinstance(shape, list) and shape and all(type(one) is int for one in shape)
    return prod(shape) if numbers and isinstance(shape, list) else 0


def _result(shapes: list[object]) -> object:
    """Return the shape of what an operator on these computes: a product of matrices, or as its largest."""
    tensors = [shape for shape in shapes if isinstance(shape, list) and _size(shape)]
    if len(tensors) == 2 and len(tensors[0]) == len(tensors[1]) == 2 and tensors[0][1] == tensors[1][0]:
        return [tensors[0][0], tensors[1][1]]
    return max(tensors, key=_size, default=None)


RULE = AdviceRule("computed-weights", find)
