"""The forward pass is recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import BACKWARD
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange, HostTime

#: Operators that only a forward pass calls, as their derivatives have their own operators.
_FORWARD: Final = (
    r"^aten::(linear|conv\dd|layer_norm|batch_norm|group_norm|rms_norm|scaled_dot_product_attention|embedding|dropout"
    r"|gelu|silu|relu|lstm|gru)$"
)
#: Minimum share of the device's time, or of a CPU's; below it, the saving is not worth the memory.
MIN_SHARE: Final = 0.03
#: Host time that checkpoints take beside it, as a share of recomputing: they save and restore the states of random
#: numbers and of autocast, and Python hooks hide and look up each tensor that is kept for the backward pass. Likely,
#: least and most; measured with PyTorch 2.11 on H100 and H200 and 2.13 on a CPU (docs/results/predictions.md).
_BESIDE: Final = (0.75, 0.3, 1.1)
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
    tracks = trace.track_codes[nodes].astype(np.int64)
    recomputed = Edit(calls, HostTime(tracks, starts, ends, np.zeros(len(nodes))), work, np.zeros(len(work)))
    until = _ends_of_backward(trace, np.flatnonzero(is_node & trace.on_host), tracks, starts, ends)
    beside = (
        Edit(host=HostTime(tracks, ends, until, _left(ends - starts, part, until - ends))) for part in _BESIDE
    )
    user = evidence.function_of(int(forward[0]))
    yield Finding(
        f"{format_rough_share(share)} of {of} recomputes the forward pass during "
        f"backward (activation checkpointing, {len(nodes) / evidence.step_count:.0f} times a step)",
        user,
        f"{evidence.write('no-checkpointing', _DROP)} if the activations fit in memory; otherwise checkpoint fewer "
        "layers",
        "high",
        "forward operators inside backward nodes",
        *EditRange(*(recomputed | more for more in beside)),
        event=int(forward[first[np.argmax(ends - starts)]]),
    )


def _ends_of_backward(trace: Trace, nodes: Ints, tracks: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return when the backward pass through what was recomputed ends: before the next stretch, or with a last node."""
    until = ends.copy()
    for track in np.unique(tracks):
        own = np.flatnonzero(tracks == track)
        own = own[np.argsort(starts[own])]
        mine = nodes[trace.track_codes[nodes] == track]
        mine = mine[np.argsort(trace.starts[mine])]
        stretch = np.searchsorted(starts[own], trace.starts[mine], side="right") - 1
        last_end = ends[own].copy()
        np.maximum.at(last_end, stretch[stretch >= 0], trace.ends[mine[stretch >= 0]])
        until[own] = np.minimum(last_end, np.append(starts[own][1:], last_end[-1:]))
    return until


def _left(took_ns: Ints, part: float, of_ns: Ints) -> Floats:
    """Return which share of some stretches is left without a part of what others took."""
    return np.maximum(1 - part * took_ns / np.maximum(of_ns, 1), 0.0)


RULE = AdviceRule("recomputed-forward", find)
