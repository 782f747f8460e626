"""On a CPU with instructions for bfloat16: products and convolutions run in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.whatif.edit import Edit

#: Calls that multiply matrices, and their backward.
PRODUCTS: Final = (
    r"^aten::(conv\dd|_?convolution|linear|addmm|mm|bmm|baddbmm|matmul|einsum)$"
    r"|evaluate_function: (Convolution|Addmm|Mm|Bmm|Baddbmm|Linear|MkldnnLinear)Backward"
)
#: Less of the steps than this in them is not worth another type.
LEAST_SHARE: Final = 0.2
#: The part of their time that stays: likely, least and most helpful. A vdpbf16ps multiplies twice as many numbers as
#: an FMA of float32 (Intel), a bfmmla four times as many (Arm), an AMX tile 16 times, which small products miss by far.
_KEEP: Final = {
    "amx_bf16": (0.4, 0.9, 0.15),
    "avx512_bf16": (0.65, 1.0, 0.5),
    "bf16": (0.6, 1.0, 0.35),
}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long products of float32 on a CPU that has better instructions."""
    seen = trace.uncaptured
    parts = _KEEP.get((seen.bf16 or "") if seen is not None else "")
    if trace.device_indices or seen is None or parts is None or evidence.is_jax:
        return
    rows = evidence.calls.rows
    products = rows[trace.named(PRODUCTS, rows)]
    lengths = (trace.ends - trace.starts)[products]
    low, high = trace.span
    if lengths.sum() < LEAST_SHARE * (high - low):
        return
    # Under autocast most of them begin with a cast.
    cast_in = np.unique(evidence.calls.inside(np.flatnonzero(trace.named(r"^aten::_to_copy$"))))
    if np.isin(rows[cast_in[cast_in >= 0]], products).sum() >= len(products) / 3:
        return
    likely, least, most = (Edit(host=evidence.host_time(products, part)) for part in parts)
    longest = int(products[np.argmax(lengths)])
    yield Finding(
        f"{lengths.sum() / (high - low):.0%} of the time are products and convolutions in float32, on a CPU that has "
        f"{seen.bf16} instructions",
        f"longest in {trace.name(longest)}",
        'with torch.autocast("cpu", dtype=torch.bfloat16): around forward and loss',
        "medium",
        "the processor's own flags, as the session recorded them; no casts around the products",
        likely,
        least,
        most,
        proof="cpu-training:baseline,bf16",
        event=longest,
    )


RULE = AdviceRule("cpu-bfloat16", find)
