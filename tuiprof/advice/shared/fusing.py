"""What is left of calls that become one kernel: a pass over memory for what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.regions import Region
from tuiprof.whatif.edit import Edit

#: What is left, likely, where fusing helps least, and where it helps most: tensors that a fused kernel reads and
#: writes, of the forward, and of the backward, which also reads what was saved; but never less than this part of the
#: device work, since a kernel that computes a lot is not bound by memory alone; and host time, of one operator, or of a
#: compiled function that checks its guards, ns.
_FORWARD: Final = (3.0, 5.0, 2.0)
_BACKWARD: Final = (4.0, 7.0, 3.0)
_LEAST_PART: Final = (0.1, 0.3, 0.0)
_CALL_NS: Final = (30_000.0, 60_000.0, 15_000.0)
#: What an operator with two inputs touches, and one with one.
_BINARY, _UNARY = 3, 2
#: No kernel is shorter.
_SHORTEST_NS: Final = 1_500.0


def fused(calls: Calls, regions: Sequence[Region]) -> tuple[Edit, Edit, Edit]:
    """Return the change in which each region is one call, and so is its backward: likely, least and most helpful.

    Kernels of elementwise operators are bound by memory, so a tensor's pass is read off them: what a kernel takes over
    the tensors that it reads and writes.

    Args:
        calls: The framework calls.
        regions: Runs of them.
    """
    trace = calls.trace
    region_of = np.full(len(calls.rows), -1, dtype=np.int64)
    for number, region in enumerate(regions):
        region_of[region.calls] = number
    forward = region_of >= 0
    backward = (calls.forward >= 0) & (region_of[np.maximum(calls.forward, 0)] >= 0)
    region_of = np.where(backward, region_of[np.maximum(calls.forward, 0)], region_of)
    known = calls.call_of_work >= 0
    call = np.maximum(calls.call_of_work, 0)
    lengths = (trace.ends - trace.starts)[trace.device_work].astype(np.float64)
    binary = trace.named(r"BinaryFunctor|CUDAFunctor_(add|sub)|(Mul|Div|Add)Functor<", trace.device_work)
    tensor_ns = np.zeros(len(regions))
    for number in range(len(regions)):
        mine = known & forward[call] & (region_of[call] == number)
        passes = lengths[mine] / np.where(binary[mine], _BINARY, _UNARY)
        # Of tensors of several sizes the large ones take the time.
        tensor_ns[number] = np.percentile(passes, 75) if len(passes) else 0.0
    edits = []
    for forward_tensors, backward_tensors, least_part, call_ns in zip(
        _FORWARD, _BACKWARD, _LEAST_PART, _CALL_NS, strict=True
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
                region_of[part], weights=(trace.ends - trace.starts)[calls.rows[part]], minlength=len(regions)
            )
            keep_host = np.minimum(call_ns / np.maximum(host, 1.0), 1.0)
            edit = edit | calls.edit(
                part, keep_host[np.maximum(region_of, 0)], keep[np.maximum(region_of[call], 0)]
            )
        edits.append(edit)
    likely, least, most = edits
    return likely, least, most
