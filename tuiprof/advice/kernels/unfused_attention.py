"""Attention is written out as two matrix products with a softmax between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import find_regions
from tuiprof.analyses.shared.calls import BACKWARD, Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask
from tuiprof.whatif import Edit, EditRange

#: Time of fused attention relative to the matrix products that it replaces: it does not read or write the scores,
#: and its backward recomputes them; a causal mask halves them, and a learned bias has a gradient as large as the
#: scores. Likely, least, most; measured in docs/results/predictions.md.
_OF_PRODUCTS: Final = (0.55, 0.85, 0.35)
_OF_CAUSAL_PRODUCTS: Final = (0.4, 0.75, 0.25)
_OF_BIASED_PRODUCTS: Final = (2.4, 3.4, 1.2)
#: Of products in float32, as PyTorch computes them if no fused kernel takes the arguments; least without a bias.
_OF_FALLBACK: Final = (0.5, 0.9, 0.1)
#: If the arguments have 16 bits, PyTorch casts them for these products, and the result back
#: (aten/src/ATen/native/transformers/attention.cpp). A fused kernel multiplies them as they are, at a tenth of the time
#: or less on a chip with tensor cores.
_OF_CAST_FALLBACK: Final = (0.1, 0.5, 0.03)
_CASTS_BACK: Final = "float16_copy_kernel"
#: The softmax takes at least this share of the time of the products around it. If it takes less, the scores are few and
#: the heads long, as in attention over channels, which no fused kernel takes.
_MIN_SOFTMAX: Final = 0.1
_CAUSAL: Final = ("aten::tril", "aten::triu")
_FUSED: Final = (
    "torch.nn.functional.scaled_dot_product_attention({}), which runs FlashAttention or cuDNN's kernel"
)
_BIASED: Final = (
    "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.contiguous()): with a bias that is only "
    "permuted, it falls back to separate products in float32"
)
_ARGUMENTS: Final = (
    "a mask of q's type whose last dimension is contiguous; on Ampere or newer, "
    "torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) around the call warns of what else does not fit"
)
#: The second derivative of a softmax: fused kernels have none.
_TWICE: Final = f"^{BACKWARD}SoftmaxBackwardDataBackward"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products and a softmax that scaled_dot_product_attention computes in one kernel."""
    if trace.named(_TWICE, evidence.calls.rows).any():
        return
    yield from _written_out(trace, evidence)
    yield from _fallen_back(trace, evidence)


def _written_out(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products and a softmax in the script."""
    calls = evidence.calls
    products, softmax = (
        calls.work_ns_of(calls.works_of(*kinds)) for kinds in (("gemm", "attention"), ("softmax or loss",))
    )
    found = [
        region
        for region in find_regions(trace).attention
        if softmax[region.busy].sum() >= _MIN_SOFTMAX * products[region.busy].sum()
    ]
    if not found:
        return
    whole = calls.with_backward(calls.mask(*(region.calls for region in found)))
    biased = _learned_biases(calls, whole) > len(found) / 2
    causal = any(calls.names[index] in _CAUSAL for index in found[0].busy)
    middle = next(index for index in found[0].busy if "softmax" in calls.names[index])
    yield _finding(
        evidence,
        whole,
        _OF_BIASED_PRODUCTS if biased else _OF_CAUSAL_PRODUCTS if causal else _OF_PRODUCTS,
        int(calls.rows[middle]),
        f"attention is written out as matmul, softmax and matmul, {evidence.how_often(len(found))}",
        _BIASED if biased else _FUSED.format("q, k, v, is_causal=True" if causal else "q, k, v"),
        "a softmax between two matmuls, with only scaling, masks and casts in between",
    )


def _fallen_back(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls of scaled_dot_product_attention that run no fused kernel."""
    calls = evidence.calls
    inside = calls.inside(np.flatnonzero(trace.named(r"^aten::_scaled_dot_product_attention_math$")))
    chosen = calls.mask(inside) & (calls.work_count > 0)
    if not chosen.any():
        return
    times = int(chosen.sum())
    casts = calls.work_ns_of(trace.named(_CASTS_BACK, trace.device_work))[chosen].any()
    yield _finding(
        evidence,
        calls.with_backward(chosen),
        _OF_CAST_FALLBACK if casts else _OF_FALLBACK,
        int(calls.rows[np.argmax(chosen)]),
        f"scaled_dot_product_attention runs no fused kernel, {evidence.how_often(times)}",
        _ARGUMENTS,
        "it runs separate matmuls and a softmax (_scaled_dot_product_attention_math), as for arguments that no fused "
        "kernel takes",
    )


def _finding(
    evidence: Evidence,
    whole: Mask,
    of_products: tuple[float, float, float],
    event: int,
    what: str,
    instead: str,
    because: str,
) -> Finding:
    """Return the finding about some calls, of whose products these shares remain: likely, least and most."""
    calls = evidence.calls
    products = calls.works_of("gemm", "attention")
    return Finding(
        what,
        evidence.function_of(event),
        instead,
        "high",
        because,
        *EditRange(*(_edit(calls, whole, products, part) for part in of_products)),
        proof="attention:native,sdpa-flash",
        event=event,
    )


def _edit(calls: Calls, whole: Mask, products: Mask, part: float) -> Edit:
    """Return the edit after which the calls take a share of the time of their products, and no more than they do."""
    mine = calls.launched_by(whole)
    lengths = calls.trace.lengths(calls.trace.device_work)
    of_products, of_all = (int(lengths[mine & which].sum()) for which in (products, mine))
    # Kernels may keep no more than their own time: what products do not leave room for, the others keep.
    rest = max(part - 1, 0) * of_products / max(of_all - of_products, 1)
    return calls.edit(whole, 0.3, np.where(products, min(part, 1.0), min(rest, 1.0)))


def _learned_biases(calls: Calls, attention: Mask) -> int:
    """Return how many additions to scores sum the gradient of a bias: over the batch, or over the layers that share it.

    A constant mask has no gradient, and may be of another type, so that the scores' gradient is cast.
    """
    added = calls.trace.named(r": AddBackward0\Z", calls.rows)
    sums = calls.works_of("reduction") | calls.trace.named("CUDAFunctor_add", calls.trace.device_work)
    return int((attention & added & (calls.work_ns_of(sums) > 0)).sum())


RULE = AdviceRule("unfused-attention", find)
