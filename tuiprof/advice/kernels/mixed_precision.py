"""Matrix products run in TF32, at half the rate of bfloat16 or float16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Minimum share of device work.
MIN_SHARE: Final = 0.1
#: Share of the products' time that remains: bfloat16 is twice as fast on every chip with TF32, and operands are
#: half as large. Likely, least and most helpful.
_KEEP: Final = (0.5, 0.65, 0.37)
#: Elementwise kernels read and write half the bytes, but casts are added. Likely, least, most.
_KEEP_OTHERS: Final = (1.0, 1.1, 0.75)
_OTHERS: Final = ("elementwise", "norm", "softmax or loss", "pooling", "reduction", "copy")


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for matrix products in TF32."""
    calls = evidence.calls
    work = trace.device_work
    products = calls.works_of("gemm", "convolution") & trace.named("tf32", work)
    share = evidence.share_of_device_time(work[products])
    if share < MIN_SHARE:
        return
    others = work[calls.works_of(*_OTHERS)]
    edits = EditRange(
        *(
            Edit.of_work(work[products], part) | Edit.of_work(others, other)
            for part, other in zip(_KEEP, _KEEP_OTHERS, strict=True)
        )
    )
    largest = trace.longest(work[products])
    yield Finding(
        f"{format_rough_share(share)} of device time is TF32 matmuls",
        evidence.place_of(largest),
        "bfloat16 parameters or activations: jmp, or dtype=jnp.bfloat16 in the layers"
        if evidence.is_jax
        else 'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss; no GradScaler is needed',
        "medium",
        "kernel names; tensor cores do twice as much in bfloat16, on half the bytes",
        *edits,
        event=largest,
    )


RULE = AdviceRule("mixed-precision", find)
