"""On a CPU with bfloat16 instructions, products and convolutions run in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.cpu_convolutions import are_channels_first, has_depthwise
from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Matrix multiplications and their backward.
PRODUCTS: Final = (
    r"^aten::(conv\dd|_?convolution|linear|addmm|mm|bmm|baddbmm|matmul|einsum)$"
    r"|evaluate_function: (Convolution|Addmm|Mm|Bmm|Baddbmm|Linear|MkldnnLinear)Backward"
)
#: Minimum share of the steps; below it, another type is not worthwhile.
MIN_SHARE: Final = 0.2
#: Share of their time that remains of products and of convolutions, likely, least and most helpful, beside what the
#: casts take. avx512_bf16 was measured on a core of an AMD EPYC (Zen 5, PyTorch 2.13), forward and backward: a Linear
#: of 256 to 2048 keeps 0.25 to 0.35, a convolution of 64 to 256 channels 0.53 to 0.63, of 16 channels 0.7 to 0.85.
#: The others are derived from the instructions, not measured: compared with a float32 FMA, a bfmmla (Arm)
#: multiplies four times as many numbers and an AMX tile 16 times, which small products do not reach.
_KEEP: Final = {
    "amx_bf16": ((0.4, 0.9, 0.15), (0.4, 0.9, 0.15)),
    "avx512_bf16": ((0.28, 0.6, 0.22), (0.57, 1.0, 0.4)),
    "bf16": ((0.6, 1.0, 0.35), (0.6, 1.0, 0.35)),
}
#: What the casts around a call take, ns, forward and backward: of a product, of a convolution in channels-first, which
#: changes its layout as well, and in channels-last (measured on the same core). A Linear of 64 takes 1.1 to 2.5 times
#: as long in bfloat16, one of 128 0.55 to 1.5 times.
_CASTS_NS: Final = (25_000, 60_000)
_CASTS_FIRST_NS, _CASTS_LAST_NS = (60_000, 150_000), (12_000, 30_000)
_CONVOLUTIONS: Final = r"(?i)convolution|^aten::conv\dd$"
#: Depthwise convolutions, and small ones of one pixel, take longer in bfloat16: on the same core 0.5 to 1.9 times as
#: long, a MobileNet 1.3 to 1.7 times in training and 1.05 times in inference. Likely, least and most helpful.
_KEEP_DEPTHWISE: Final = (1.4, 2.0, 0.6)
#: In channels-last, a MobileNet keeps 0.63 to 0.83 of its time in inference.
_KEEP_DEPTHWISE_LAST: Final = (0.7, 1.1, 0.45)
#: The forward pass of a batch norm in training and channels-first keeps 0.21 to 0.26 of its time.
_NORMS: Final = r"^aten::batch_norm$"
_KEEP_NORMS: Final = (0.3, 1.0, 0.2)
#: The backward pass of a group norm in channels-last takes 6 to 10 times as long: the time added, as a multiple.
_GROUP_NORMS: Final = r"^aten::group_norm$"
_GROUP_NORMS_LONGER: Final = 5.5
#: The backward pass of attention takes longer in bfloat16, unless its sequences are long: so many times its own time,
#: and at most so much, more. Likely, least and most helpful; measured on the same core: 0.14 to 1.2 ms become 6 to 11
#: times as long (sequences of 24 to 64), 6 to 10 ms 1.6 to 3 times (128), and 16 to 61 ms 1.0 to 0.6 times (256 to
#: 1024).
_ATTENTION_BACKWARD: Final = r"ScaledDotProductFlashAttentionForCpuBackward"
_ATTENTION_LONGER: Final = ((6.0, 8e6), (10.0, 16e6), (2.0, 2e6))
_LONG_ATTENTION_NS: Final = 12_000_000
#: Number of products whose types are read.
_LOOKED_AT: Final = 40


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for float32 products on a CPU with bfloat16 instructions."""
    seen = trace.uncaptured
    parts = _KEEP.get((seen.bf16 or "") if seen is not None else "")
    if trace.device_indices or seen is None or parts is None or evidence.is_jax:
        return
    calls = evidence.calls
    which = trace.named(PRODUCTS, calls.rows)
    products = calls.rows[which]
    share = evidence.share_of_time(products)
    if share < MIN_SHARE:
        return
    # Under autocast most of them start with a cast. Backward passes of convolutions copy weights in float32, too.
    forward = which & ~calls.backward
    cast_in = calls.mask(calls.inside(np.flatnonzero(trace.named(r"^aten::_to_copy$"))))
    if (cast_in & forward).sum() >= max(forward.sum() / 2, 1):
        return
    known = _are_float32(trace, products)
    if known is False:
        return
    rows, (likely, least, most) = _kept(calls, which, parts)
    longest = trace.longest(products)
    yield Finding(
        f"{format_rough_share(share)} of the time is {'float32 ' if known else ''}matmuls and convolutions, on a CPU "
        f"with {seen.bf16} instructions",
        f"longest in {operator_label(trace.name(longest))}",
        evidence.write(
            "cpu-bfloat16", 'with torch.autocast("cpu", dtype=torch.bfloat16): around forward and loss'
        )
        + ("" if known else ", if they are float32"),
        "medium" if known else "low",
        "CPU flags from the session; no casts around the matmuls"
        + (", which are float32" if known else "; their types were not recorded"),
        *EditRange(*(Edit.of_host(trace, rows, part) for part in (likely, least if known else 1.0, most))),
        proof="cpu-training:baseline,bf16",
        event=longest,
    )


def _are_float32(trace: Trace, products: Ints) -> bool | None:
    """Return whether most products are float32, by their own types or those of the parameters; None = unknown."""
    longest = products[np.argsort(-trace.lengths(products), kind="stable")[:_LOOKED_AT]]
    kinds = [given.types[0] for _, given in arguments(trace, longest) if given.types and given.types[0]]
    if kinds:
        return kinds.count("float") > len(kinds) / 2
    weights = trace.uncaptured.weights if trace.uncaptured is not None else None
    return None if weights is None else weights.share_of("float32") > 0.5


def _kept(
    calls: Calls, which: Mask, parts: tuple[tuple[float, float, float], ...]
) -> tuple[Ints, list[float]]:
    """Return what autocast changes, and the share of its time that remains: likely, least and most helpful; at most 1.

    What some calls lose is taken from what the others win, as autocast takes all of them.
    """
    trace, backward = calls.trace, calls.backward
    convolutions = which & trace.named(_CONVOLUTIONS, calls.rows)
    first = are_channels_first(calls, convolutions)
    norms = trace.named(_NORMS, calls.rows) & calls.differentiated & (first is True)
    casts = sum(
        (on & backward).sum() * of_backward + (on & ~backward).sum() * of_forward
        for on, (of_forward, of_backward) in (
            (which & ~convolutions, _CASTS_NS),
            (convolutions, _CASTS_LAST_NS if first is False else _CASTS_FIRST_NS),
        )
    )
    attention = trace.lengths(calls.rows[trace.named(_ATTENTION_BACKWARD, calls.rows)])
    attention = attention[attention < _LONG_ATTENTION_NS]
    longer = [float(np.minimum(times * attention, most).sum()) for times, most in _ATTENTION_LONGER]
    lost = float(casts)
    if first is False:
        grouped = calls.with_backward(trace.named(_GROUP_NORMS, calls.rows)) & backward
        lost += _GROUP_NORMS_LONGER * trace.lengths(calls.rows[grouped]).sum()
    of_products, of_convolutions = parts
    if has_depthwise(trace):
        learns = (convolutions & backward).any()
        of_convolutions = _KEEP_DEPTHWISE if learns or first is not False else _KEEP_DEPTHWISE_LAST
    took = [trace.lengths(calls.rows[on]).sum() for on in (which & ~convolutions, convolutions, norms)]
    kept = [
        min((float(np.dot(keep, took)) + lost + more) / max(sum(took), 1), 1.0)
        for *keep, more in zip(of_products, of_convolutions, _KEEP_NORMS, longer, strict=True)
    ]
    return calls.rows[which | norms], kept


RULE = AdviceRule("cpu-bfloat16", find)
