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
#: Kernels of CUTLASS whose instructions are TF32's do not say so.
_TF32: Final = r"tf32|tfloat32|tensorop_s1688"
#: Share of its time that each kind of kernel keeps: likely, least and most helpful. Measured on an H100, PyTorch 2.11,
#: in TF32 and under autocast, 19 models: ten of convolutions over areas, two over time and volumes, seven transformers.
#: Products kept 36 to 63 % of their time. Copies, mostly casts of weights and inputs, took 0 to 28 % of it more (7 % in
#: the median), which counts as theirs here. Elementwise kernels kept 47 to 100 %, reductions 50 to 100 %, attention in
#: float32 9 to 13 %, and convolutions of single channels, which have no TF32, a tenth in one model. Norms and losses
#: stay in float32.
_KEEP: Final = (0.53, 0.7, 0.4)
KEEP_ATTENTION: Final = (0.15, 0.4, 0.09)
_KEEP_GROUPED: Final = (0.3, 1.0, 0.1)
_KEEP_OTHERS: Final = {"elementwise": (0.62, 1.0, 0.5), "reduction": (0.8, 1.0, 0.55)}
_FLOAT32_GROUPED: Final = r"_grouped_direct_kernel<.*\bfloat\b|^(void )?convolve_common_engine_float"
FLOAT32_ATTENTION: Final = r"^fmha_cutlass[FB]_f32_"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for matrix products in TF32."""
    calls = evidence.calls
    work = trace.device_work
    products = calls.works_of("gemm", "convolution") & trace.named(_TF32, work)
    share = evidence.share_of_device_time(work[products])
    if share < MIN_SHARE:
        return
    slow_ns = trace.lengths(work[products]).sum()
    # Next to products that are in 16 bits already, these kernels may be as well.
    part = slow_ns / trace.lengths(work[calls.works_of("gemm", "convolution")]).sum()
    changed = [
        (work[products], _KEEP),
        (work[trace.named(FLOAT32_ATTENTION, work)], KEEP_ATTENTION),
        (work[trace.named(_FLOAT32_GROUPED, work) & ~products], _KEEP_GROUPED),
        *(
            (work[calls.works_of(kind)], tuple(1 - part * (1 - kept) for kept in shares))
            for kind, shares in _KEEP_OTHERS.items()
        ),
    ]
    edits = EditRange(
        *(Edit.all_of(Edit.of_work(rows, shares[i]) for rows, shares in changed) for i in range(3))
    )
    convolutions_ns = trace.lengths(work[products & calls.works_of("convolution")]).sum()
    what = "convolutions" if convolutions_ns > 0.5 * slow_ns else "matmuls"
    largest = trace.longest(work[products])
    yield Finding(
        f"{format_rough_share(share)} of device time is TF32 {what}",
        evidence.place_of(largest),
        "bfloat16 parameters or activations: jmp, or dtype=jnp.bfloat16 in the layers"
        if evidence.is_jax
        else evidence.write(
            "bfloat16",
            'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss; no GradScaler is needed',
        ),
        "medium",
        "kernel names; tensor cores do twice as much in bfloat16, on half the bytes",
        *edits,
        event=largest,
    )


RULE = AdviceRule("mixed-precision", find)
