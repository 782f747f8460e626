"""All pairs of rows are combined into one large tensor, only to be summed: distances and products by broadcasting."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_bytes
from tuiprof.whatif import EditRange

_COMBINES: Final = r"^aten::(sub|mul)$"
_SUMS: Final = r"^aten::(sum|mean|norm|linalg_vector_norm)$"
#: What may lie between, on elements.
_BETWEEN: Final = r"^aten::(pow|square|abs|mul)$"
_MOST_BETWEEN: Final = 2
#: Minimum ratio of the elements of all pairs to those of either side, and operators that are inspected, the longest.
_LARGER, _LOOKED_AT = 8, 200
#: Minimum share of the time of all operators.
MIN_SHARE: Final = 0.02
#: Share of the time of these operators that a product or `torch.cdist` takes: likely, least and most helpful. Measured
#: on one core of an EPYC (Zen 5), PyTorch 2.13, with the backward pass: of 64 × 64 × 32 to 128 × 512 × 128 elements a
#: product takes 0.01 to 0.45, distances 0.01 to 0.22, sums of absolute differences 0.07 to 0.56. What is left of a step
#: then has page faults that these had.
_KEEP: Final = (0.25, 0.8, 0.02)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for broadcasts over two dimensions whose result is summed right after, in traces with shapes."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    combines = np.flatnonzero(trace.named(_COMBINES, calls.rows))
    took_ns = calls.took_ns
    combines = combines[np.argsort(-took_ns[combines], kind="stable")[:_LOOKED_AT]]
    runs = {int(calls.rows[at]): run for at in np.sort(combines).tolist() if len(run := _summed(calls, at))}
    shapes = arguments(trace, np.array([*runs], dtype=np.int64))
    found = [(runs[row], shape) for row, given in shapes if (shape := _pairs(given.dims))]
    if not found:
        return
    forward = calls.mask(*(run for run, _ in found))
    which = calls.with_backward(forward)
    if took_ns[which].sum() < MIN_SHARE * took_ns.sum():
        return
    largest, shape = max(found, key=lambda each: prod(each[1]))
    names = [name.removeprefix("aten::") for name in calls.names_of(largest)]
    event = int(calls.rows[largest[0]])
    yield Finding(
        f"all pairs are written to a tensor of {' × '.join(map(str, shape))} ({format_bytes(4 * prod(shape))} in "
        f"float32), and summed: {' → '.join(names)}, {evidence.how_often(len(found))}",
        evidence.function_of(event) or evidence.place_by_share(forward),
        "x @ y.T, or torch.einsum"
        if names[0] == "mul"
        else "torch.cdist(x, y); for squares (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T, which is less "
        "exact where points are close",
        "high",
        "the shapes of the inputs: neither has all dimensions of the result, which is reduced at once",
        *EditRange(*(calls.edit(which, keep, keep) for keep in _KEEP)),
        event=event,
    )


def _pairs(dims: list[object]) -> list[int]:
    """Return the shape of the result, if both inputs are broadcast to it and far smaller; else an empty one."""
    shapes = [
        shape for shape in dims[:2] if isinstance(shape, list) and all(type(size) is int for size in shape)
    ]
    if len(shapes) < 2 or not all(shapes):
        return []
    length = max(map(len, shapes))
    first, second = ([1] * (length - len(shape)) + shape for shape in shapes)
    result = [max(sizes) for sizes in zip(first, second, strict=True)]
    return result if prod(result) >= _LARGER * max(prod(first), prod(second), 1) else []


def _summed(calls: Calls, at: int) -> Ints:
    """Return a call and those after it up to a sum, as indices; none if something else follows."""
    for last in range(at + 1, min(at + _MOST_BETWEEN + 2, len(calls.rows))):
        if calls.tracks[last] != calls.tracks[at]:
            break
        if calls.trace.named(_SUMS, calls.rows[last : last + 1])[0]:
            return np.arange(at, last + 1)
        if not calls.trace.named(_BETWEEN, calls.rows[last : last + 1])[0]:
            break
    return np.arange(0)


RULE = AdviceRule("broadcast-pairs", find)
