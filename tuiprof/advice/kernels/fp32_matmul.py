"""Matrix products run in full fp32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import passes_over_scores_ns
from tuiprof.advice.kernels.mixed_precision import FLOAT32_ATTENTION, KEEP_ATTENTION
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.kernel_names import is_fp32_gemm
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit
from tuiprof.whatif.chips import find_chip

#: Minimum share of device work.
MIN_SHARE: Final = 0.03
#: Share of their time that remains with TF32 on an unknown chip. CUDA cores get closer to their peak than tensor
#: cores, so the ratio of the peaks is multiplied by this factor.
_UNKNOWN_CHIP, _STRETCH = 0.3, 1.2
#: A type is advised if the chip's peak rate for it is so many times that of float32. TF32 changes the least, but on a
#: third of the chips (A10G, GeForce) it is no faster.
_FASTER: Final = 1.5
_FASTER_TYPES: Final = ("tfloat32", "bfloat16", "float16")
#: Advice for a chip without a fast TF32, in PyTorch and in JAX, and why.
_WITHOUT_TF32: Final = {
    "bfloat16": (
        'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss',
        "bfloat16 activations: jmp, or dtype=jnp.bfloat16 in the layers",
        "TF32 is no faster on this chip",
    ),
    "float16": (
        'with torch.autocast("cuda", dtype=torch.float16): and a GradScaler',
        "float16 activations with a scaled loss (jmp)",
        "this chip has no TF32",
    ),
}
_MATMUL: Final = 'torch.set_float32_matmul_precision("high")'
_JAX: Final = 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")'
_CUDNN: Final = "torch.backends.cudnn.allow_tf32 = True"
#: Least and most helpful, relative to the likely share. With TF32, the most is bfloat16: twice as fast, and
#: elementwise kernels move half the bytes.
_LEAST, _MOST, _BFLOAT16, _OTHERS_IN_BFLOAT16 = 2.0, 0.8, 0.4, 0.75
#: cuBLAS takes these kernels where a size is not a multiple of 4, apart from gradients of weights (``nt``): those of
#: aligned products have "aligna4" (four models on an H100 and an H200, PyTorch 2.11). With TF32 an unaligned product
#: takes so many times as long as an aligned one: of three on an H200 (512 rows of 512, 617 970 columns) 45 % were left.
#: Likely, and where it helps least and most, as other sizes were not measured.
_UNALIGNED: Final = r"simt_sgemm_\w+_[nt]n_align1\b"
_UNALIGNED_TIMES: Final = (2.5, 4.0, 1.0)
_VOLTA: Final = r"^(cudnn_\w+_)?volta_(fp16_)?scudnn_"
_ACTIVATIONS: Final = ("elementwise", "norm", "softmax or loss", "pooling", "reduction", "copy")


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for fp32 matrix products that do not use tensor cores."""
    calls = evidence.calls
    work = trace.device_work
    slow = np.array([is_fp32_gemm(name) for name in trace.names], dtype=bool)[trace.name_codes[work]]
    slow &= calls.works_of("gemm", "convolution")
    rows = work[slow]
    share = evidence.share_of_device_time(rows)
    if share < MIN_SHARE:
        return
    chip = find_chip(trace.info.device_name if trace.info.devices else _device_of(trace))
    rates = chip.operations_per_s if chip is not None else {}
    fast = [kind for kind in _FASTER_TYPES if rates.get(kind, 0) >= _FASTER * rates.get("float32", math.inf)]
    target = fast[0] if fast else "tfloat32"
    halved = bool(fast) and target == "tfloat32"
    unaligned = _unaligned(calls, slow)[slow] & (target == "tfloat32")
    keep = _STRETCH * rates["float32"] / rates[target] if fast else _UNKNOWN_CHIP
    passes = passes_over_scores_ns(trace)[slow] / np.maximum(trace.lengths(rows), 1)
    likely, least, most = (
        Edit.of_work(
            rows,
            np.minimum(np.maximum(keep * part * np.where(unaligned, times, 1.0), passes * of_passes), 1.0),
        )
        for times, (part, of_passes) in zip(
            _UNALIGNED_TIMES,
            ((1.0, 1.0), (_LEAST, 1.0), (_BFLOAT16, 0.5) if halved else (_MOST, 1.0)),
            strict=True,
        )
    )
    slow_ns, products_ns, convolutions_ns = (
        trace.lengths(work[which]).sum()
        for which in (slow, calls.works_of("gemm", "convolution"), slow & calls.works_of("convolution"))
    )
    if fast and target != "float16" and slow_ns > 0.5 * products_ns:
        most |= Edit.of_work(work[calls.works_of(*_ACTIVATIONS)], _OTHERS_IN_BFLOAT16)
        most |= Edit.of_work(work[trace.named(FLOAT32_ATTENTION, work)], KEEP_ATTENTION[2])
    largest = trace.longest(rows)
    # PyTorch has a separate switch for cuDNN convolutions.
    convolutions = convolutions_ns > 0.5 * slow_ns
    if target in _WITHOUT_TF32:
        torch, jax, why = _WITHOUT_TF32[target]
        instead = f"{jax if evidence.is_jax else evidence.write(target, torch)} ({why})"
    elif evidence.is_jax:
        instead = f"{_JAX} (NVIDIA Ampere and newer), or bfloat16"
    else:
        tf32 = evidence.write("tf32", _CUDNN if convolutions else _MATMUL)
        instead = (
            f"{tf32} for TF32 (NVIDIA Ampere and newer), or {evidence.write('bfloat16', 'bf16 autocast')}"
        ) + ("; sizes that are multiples of 8 make both faster" if unaligned.any() else "")
    what = "convolutions" if convolutions else "matmuls"
    yield Finding(
        f"{format_rough_share(share)} of device time is fp32 {what} without tensor cores",
        evidence.place_of(largest),
        instead,
        "high",
        "kernel names, and the chip's peak rates for both types",
        likely,
        least,
        most,
        event=largest,
        environment={"JAX_DEFAULT_MATMUL_PRECISION": "tensorfloat32"}
        if evidence.is_jax and target == "tfloat32"
        else {},
        switch="matmul_precision=high"
        if not (evidence.is_jax or convolutions) and target == "tfloat32"
        else "",
    )


def _unaligned(calls: Calls, slow: Mask) -> Mask:
    """Return which device work is products of calls that have one of sizes that are not a multiple of 4.

    The gradients of a product have its sizes.
    """
    named = slow & calls.trace.named(_UNALIGNED, calls.trace.device_work)
    chosen = calls.mask(calls.call_of_work[named])
    return slow & calls.launched_by(calls.with_backward(chosen | calls.mask(calls.forward[chosen])))


def _device_of(trace: Trace) -> str:
    """Return a device with the types of one whose name is not in the trace; empty = unknown.

    The libraries name convolutions by the chip that they are made for. Volta and Turing have neither TF32 nor bfloat16.
    """
    return "V100" if trace.named(_VOLTA, trace.device_work).any() else ""


RULE = AdviceRule("fp32-matmul", find)
