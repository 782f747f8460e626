"""Fuses calls into one kernel: what remains is one memory pass over inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.regions import ROWWISE, Region
from tuiprof.model.intervals import Ints
from tuiprof.whatif.edit import Edit, Floats

#: What remains (likely, least and most helpful): the number of tensors that a fused kernel reads and writes in the
#: forward and in the backward, which also reads saved tensors; but at least this share of the device work, since a
#: kernel with much arithmetic is not purely memory-bound.
_FORWARD: Final = (3.0, 5.0, 2.0)
_BACKWARD: Final = (4.0, 7.0, 3.0)
_LEAST_PART: Final = (0.1, 0.3, 0.0)
#: Host time of a call and of its backward, ns: for one operator, and for a compiled function, which has guards.
OPERATOR_NS: Final = (20_000.0, 40_000.0, 10_000.0)
COMPILED_NS: Final = (60_000.0, 120_000.0, 20_000.0)
#: Tensors touched by an operator with two inputs, and with one.
_BINARY, _UNARY = 3, 2
#: Minimum length of a kernel, ns.
_SHORTEST_NS: Final = 1_500.0


def fused(
    calls: Calls, regions: Sequence[Region], host_ns: tuple[float, float, float], host_part: float
) -> tuple[Edit, Edit, Edit]:
    """Return the edits in which each region and its backward are one call each: likely, least and most helpful.

    Elementwise kernels are memory-bound, so the time of one pass over a tensor is the time of a kernel divided by
    the number of tensors that it reads and writes.
    """
    trace = calls.trace
    region_of = np.full(len(calls.rows), -1, dtype=np.int32)
    for number, region in enumerate(regions):
        region_of[region.calls] = number
    forward = region_of >= 0
    # A backward node that does more does not belong to an elementwise operator, whatever its sequence number.
    known = calls.call_of_work >= 0
    heavier = np.bincount(calls.call_of_work[known & ~calls.works_of(*ROWWISE)], minlength=len(calls.rows))
    backward = (calls.forward >= 0) & forward[calls.forward] & (heavier == 0)
    region_of[backward] = region_of[calls.forward[backward]]
    call = np.maximum(calls.call_of_work, 0)
    lengths = trace.lengths(trace.device_work).astype(np.float64)
    binary = trace.named(r"BinaryFunctor|CUDAFunctor_(add|sub)|(Mul|Div|Add)Functor<", trace.device_work)
    mine = np.flatnonzero(known & forward[call])
    passes = lengths[mine] / np.where(binary[mine], _BINARY, _UNARY)
    tensor_ns = _upper_quartiles(region_of[call[mine]], passes, len(regions))
    edits = []
    for forward_tensors, backward_tensors, least_part, call_ns in zip(
        _FORWARD, _BACKWARD, _LEAST_PART, host_ns, strict=True
    ):
        edit = Edit()
        for part, tensors in ((forward, forward_tensors), (backward, backward_tensors)):
            total = np.bincount(
                region_of[call[known & part[call]]],
                weights=lengths[known & part[call]],
                minlength=len(regions),
            )
            left = np.maximum(tensors * tensor_ns, _SHORTEST_NS)
            keep = np.clip(left / np.maximum(total, 1.0), least_part, 1.0)
            host = np.bincount(
                region_of[part], weights=trace.lengths(calls.rows[part]), minlength=len(regions)
            )
            keep_host = np.minimum(call_ns / np.maximum(host_part * host, 1.0), 1.0)
            edit = edit | calls.edit(
                part, keep_host[np.maximum(region_of, 0)], keep[np.maximum(region_of[call], 0)]
            )
        edits.append(edit)
    likely, least, most = edits
    return likely, least, most


def _upper_quartiles(groups: Ints, values: Floats, count: int) -> Floats:
    """Return the upper quartile of the values of each group, 0 if empty: large sizes dominate."""
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    last = np.cumsum(sizes) - 1
    at = last - (sizes - 1) // 4
    found = values[order][np.maximum(at, 0)] if len(values) else np.zeros(count)
    return np.where(sizes > 0, found, 0.0)


def in_a_row(chain: str, most: int = 10) -> str:
    """Return the first names of a long chain; consecutive repetitions are named once."""
    parts = chain.split(" → ")
    runs = [(name, len(list(run))) for name, run in groupby(parts)]
    texts = [f"{name} ×{count}" if count > 1 else name for name, count in runs]
    return " → ".join(texts[:most]) + (f" → … ({len(parts)} operators)" if len(texts) > most else "")
