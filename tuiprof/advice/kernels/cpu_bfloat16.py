"""On a CPU with bfloat16 instructions, products and convolutions run in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Matrix multiplications and their backward.
PRODUCTS: Final = (
    r"^aten::(conv\dd|_?convolution|linear|addmm|mm|bmm|baddbmm|matmul|einsum)$"
    r"|evaluate_function: (Convolution|Addmm|Mm|Bmm|Baddbmm|Linear|MkldnnLinear)Backward"
)
#: Minimum share of the steps; below it, another type is not worthwhile.
MIN_SHARE: Final = 0.2
#: Shorter calls, ns, take as long or longer in bfloat16 because of the casts around them. On a core of an AMD EPYC
#: with avx512_bf16 (PyTorch 2.13, forward and backward) a Linear of 64 took 2.0 times as long, of 128 0.94 times.
_SHORTEST_NS: Final = 100_000
#: Share of their time that remains: likely, least and most helpful. avx512_bf16 was measured on the same core: a
#: Linear of 256 to 2048 keeps 0.24 to 0.38, a convolution of 64 to 256 channels 0.53 to 0.65, of 16 channels 0.9.
#: The others are derived from the instructions, not measured: compared with a float32 FMA, a bfmmla (Arm)
#: multiplies four times as many numbers and an AMX tile 16 times, which small products do not reach.
_KEEP: Final = {"amx_bf16": (0.4, 0.9, 0.15), "avx512_bf16": (0.55, 0.95, 0.25), "bf16": (0.6, 1.0, 0.35)}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long float32 products on a CPU with bfloat16 instructions."""
    seen = trace.uncaptured
    parts = _KEEP.get((seen.bf16 or "") if seen is not None else "")
    if trace.device_indices or seen is None or parts is None or evidence.is_jax:
        return
    rows = evidence.calls.rows
    products = rows[trace.named(PRODUCTS, rows)]
    products = products[trace.lengths(products) >= _SHORTEST_NS]
    share = evidence.share_of_time(products)
    if share < MIN_SHARE:
        return
    # Under autocast most of them start with a cast.
    cast_in = np.unique(evidence.calls.inside(np.flatnonzero(trace.named(r"^aten::_to_copy$"))))
    if np.isin(rows[cast_in[cast_in >= 0]], products).sum() >= len(products) / 3:
        return
    longest = trace.longest(products)
    yield Finding(
        f"{format_rough_share(share)} of the time is float32 matmuls and convolutions, on a CPU with {seen.bf16} "
        "instructions",
        f"longest in {operator_label(trace.name(longest))}",
        'with torch.autocast("cpu", dtype=torch.bfloat16): around forward and loss',
        "medium",
        "CPU flags from the session; no casts around the matmuls",
        *EditRange(*(Edit.of_host(trace, products, part) for part in parts)),
        proof="cpu-training:baseline,bf16",
        event=longest,
    )


RULE = AdviceRule("cpu-bfloat16", find)
