"""On a CPU, convolutions get channels-first tensors and convert them internally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.cpu_convolutions import are_channels_first, has_depthwise, of_pytorch
from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Those over a sequence have no channels-last form, and those over a volume were not measured.
_CONVOLUTIONS: Final = r"^aten::(conv2d|_?convolution)$"
#: Minimum share of convolutions in the steps; below it, converting the model is not worthwhile.
MIN_SHARE: Final = 0.2
#: Share of their time that remains: likely, least and most helpful. Measured in 12 networks, each in training and in
#: inference, float32 on one core of an AMD EPYC (Zen 5), PyTorch 2.13: convolutions keep 0.55 to 0.93, in networks with
#: depthwise ones 0.36 to 0.74; on Zen 3, with batch norms, 0.76.
_KEEP: Final = (0.75, 1.0, 0.55)
_KEEP_DEPTHWISE: Final = (0.6, 0.9, 0.35)
#: PyTorch's own convolutions keep 0.75 to 0.96.
_KEEP_OWN: Final = (0.92, 1.0, 0.75)
#: Forward passes in the same networks: batch norm in training keeps 0.24 to 0.4, pooling and nearest neighbours 0.09 to
#: 0.19.
_NORMS: Final = r"^aten::batch_norm$"
_KEEP_NORMS: Final = (0.4, 0.9, 0.25)
_POOLS: Final = r"^aten::((max|avg)_pool2d|upsample_nearest2d)$"
_KEEP_POOLS: Final = (0.15, 0.5, 0.08)
#: Group norm takes 1.3 to 1.5 times as long, in training with its backward pass 1.9 to 2.8 times: the time added.
_GROUP_NORMS: Final = r"^aten::group_norm$"
_ADDED: Final = ((0.4, 0.5, 0.3), (1.3, 1.8, 0.8))
#: Number of convolutions to inspect.
_LOOKED_AT: Final = 40


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for convolutions that run in channels-first."""
    if trace.device_indices or evidence.is_jax:
        return
    calls = evidence.calls
    forward = trace.named(_CONVOLUTIONS, calls.rows)
    found = calls.with_backward(forward)
    share = evidence.share_of_time(calls.rows[found])
    if share < MIN_SHARE or not (because := _channels_first(calls, forward)):
        return
    longest = trace.longest(calls.rows[found])
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in channels-first convolutions",
        f"longest in {operator_label(trace.name(longest))}",
        "model.to(memory_format=torch.channels_last), and the same for its inputs",
        "medium",
        because,
        *_edits(calls, found),
        proof="cpu-training:bf16,channels-last",
        event=longest,
    )


def _edits(calls: Calls, convolutions: Mask) -> EditRange:
    """Return the edits in channels-last; what group norms lose there is subtracted from what convolutions win."""
    trace, rows = calls.trace, calls.rows
    norms = trace.named(_NORMS, rows) & calls.differentiated
    pools = trace.named(_POOLS, rows)
    grouped = calls.with_backward(trace.named(_GROUP_NORMS, rows))
    added = trace.lengths(rows[grouped]).sum() / max(trace.lengths(rows[convolutions]).sum(), 1)
    own = convolutions & of_pytorch(calls)
    which = convolutions | norms | pools
    parts = zip(
        _KEEP_OWN,
        _KEEP_DEPTHWISE if has_depthwise(trace) else _KEEP,
        _KEEP_NORMS,
        _KEEP_POOLS,
        _ADDED[bool(calls.backward[grouped].any())],
        strict=True,
    )
    return EditRange(
        *(
            Edit.of_host(
                trace,
                rows[which],
                np.select(
                    [norms, pools, own],
                    [normed, pooled, min(of_own + more * added, 1.0)],
                    min(keep + more * added, 1.0),
                )[which],
            )
            for of_own, keep, normed, pooled, more in parts
        )
    )


def _channels_first(calls: Calls, convolutions: Mask) -> str:
    """Return how it is known that most convolutions run in channels-first; empty = they do not, or it is unknown."""
    first = are_channels_first(calls, convolutions)
    if first is None:
        strided = _strided(calls.trace, calls.rows[convolutions])
        return "the strides recorded with the input shapes" if strided else ""
    return "results of oneDNN's convolutions are converted to channels-first" if first else ""


def _strided(trace: Trace, rows: Ints) -> bool:
    """Return whether most convolutions have channels-first inputs; False if strides were not recorded."""
    first = last = 0
    for _, given in arguments(trace, rows[:_LOOKED_AT]):
        if not given.strides:
            continue
        dims, strides = given.dims[0], given.strides[0]
        if not all(map(_numbers, (dims, strides))) or dims[1] < 2:  # one channel: no layout
            continue
        first += strides[1] > strides[-1]
        last += strides[1] <= strides[-1]
    return first > last


def _numbers(given: object) -> bool:
    return isinstance(given, list) and len(given) >= 4 and all(type(one) is int for one in given)


RULE = AdviceRule("cpu-channels-last", find)
