"""The forward pass is recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import BACKWARD
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, HostTime

#: Operators that only a forward pass calls, as their derivatives have their own operators.
_FORWARD: Final = (
    r"^aten::(linear|conv\dd|layer_norm|batch_norm|group_norm|rms_norm|scaled_dot_product_attention|embedding|dropout"
    r"|gelu|silu|relu|lstm|gru)$"
)
#: Minimum share of the device's time, or of a CPU's; below it, the saving is not worth the memory.
MIN_SHARE: Final = 0.03
_DROP: Final = "drop torch.utils.checkpoint (gradient_checkpointing_disable())"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for forward operators inside backward nodes."""
    forward = trace.operators(_FORWARD)
    is_node = trace.named("^" + BACKWARD)
    inside = evidence.calls.inside(forward)
    forward = forward[(inside >= 0) & evidence.calls.backward[inside]]
    # With checkpoint(use_reentrant=True) a node contains a forward pass and its whole backward pass.
    around = np.full(len(forward), -1, dtype=np.int64)
    for level in trace.nesting.outward(forward):
        around = np.where((around < 0) & (level >= 0) & is_node[np.maximum(level, 0)], level, around)
    forward, around = forward[around >= 0], around[around >= 0]
    if not len(forward):
        return
    # The stretch from the beginning of each node, which needs their results first, to the last of them.
    order = np.lexsort((trace.starts[forward], around))
    forward, around = forward[order], around[order]
    nodes, first = np.unique(around, return_index=True)

    starts = trace.starts[nodes]
    ends = np.maximum.reduceat(trace.ends[forward], first)
    operators = np.flatnonzero(trace.is_category("cpu_op") & ~is_node)
    at = np.searchsorted(starts[np.argsort(starts)], trace.starts[operators], side="right") - 1
    by_start = np.argsort(starts)
    mine = operators[
        (at >= 0)
        & (trace.ends[operators] <= ends[by_start][np.maximum(at, 0)])
        & (trace.track_codes[operators] == trace.track_codes[nodes[by_start][np.maximum(at, 0)]])
    ]
    host_ns = float((ends - starts).sum())
    work, calls = evidence.work_in(mine)
    if trace.device_indices:
        of, share = "device time", float(trace.lengths(work).sum() / trace.lengths(trace.device_work).sum())
    else:
        of, share = "the time", host_ns / (trace.span[1] - trace.span[0])
    if share < MIN_SHARE:
        return
    host = HostTime(trace.track_codes[nodes].astype(np.int64), starts, ends, np.zeros(len(nodes)))
    user = evidence.function_of(int(forward[0]))
    yield Finding(
        f"{format_rough_share(share)} of {of} recomputes the forward pass during "
        f"backward (activation checkpointing, {len(nodes) / evidence.step_count:.0f} times a step)",
        user,
        f"{evidence.write('no-checkpointing', _DROP)} if the activations fit in memory; otherwise checkpoint fewer "
        "layers",
        "high",
        "forward operators inside backward nodes",
        Edit(calls, host, work, np.zeros(len(work))),
        event=int(forward[first[np.argmax(ends - starts)]]),
    )


RULE = AdviceRule("recomputed-forward", find)
