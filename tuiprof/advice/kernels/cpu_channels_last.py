"""On a CPU, convolutions get channels-first tensors and convert them internally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import arguments
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

_CONVOLUTIONS: Final = r"^aten::(conv\dd|_?convolution)$|evaluate_function: ConvolutionBackward"
#: Minimum share of convolutions in the steps; below it, converting the model is not worthwhile.
MIN_SHARE: Final = 0.2
#: Share of their time that remains: likely, least and most helpful. Four convolutions with batch norms, forward and
#: backward in float32 on one core of an AMD EPYC (Zen 3), PyTorch 2.13: 56 ms instead of 74.
_KEEP: Final = (0.75, 1.0, 0.55)
#: Number of convolutions to inspect.
_LOOKED_AT: Final = 40


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for convolutions with channels-first input strides."""
    if trace.device_indices or evidence.is_jax:
        return
    rows = evidence.calls.rows
    found = rows[trace.named(_CONVOLUTIONS, rows)]
    share = evidence.share_of_time(found)
    if share < MIN_SHARE or not _channels_first(trace, found):
        return
    longest = trace.longest(found)
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in convolutions with channels-first inputs",
        f"longest in {operator_label(trace.name(longest))}",
        "model.to(memory_format=torch.channels_last), and the same for its inputs",
        "medium",
        "the strides recorded with the input shapes",
        *EditRange(*(Edit.of_host(trace, found, part) for part in _KEEP)),
        proof="cpu-training:bf16,channels-last",
        event=longest,
    )


def _channels_first(trace: Trace, rows: Ints) -> bool:
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
