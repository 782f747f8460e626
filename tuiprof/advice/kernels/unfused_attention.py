"""Attention is written out as two matrix products with a softmax between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import find_regions
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask

#: Time of fused attention relative to the matrix products that it replaces: it does not read or write the scores,
#: and its backward recomputes them; a causal mask halves them. Likely, least, most.
_OF_PRODUCTS: Final = (0.8, 1.3, 0.4)
_OF_CAUSAL_PRODUCTS: Final = (0.5, 1.0, 0.3)
_CAUSAL: Final = ("aten::tril", "aten::triu")
_FUSED: Final = (
    "torch.nn.functional.scaled_dot_product_attention({}), which runs FlashAttention or cuDNN's kernel"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products and a softmax that scaled_dot_product_attention computes in one kernel."""
    calls = evidence.calls
    found = find_regions(trace).attention
    if not found:
        return
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for region in found:
        chosen[region.calls] = True
    whole = calls.with_backward(chosen)
    # Fused kernels add up the gradient of a learned bias slowly (measured in docs/predictions.md).
    if _learned_biases(calls, whole) > len(found) / 2:
        return
    products = calls.works_of("gemm", "attention")
    causal = any(calls.names[index] in _CAUSAL for index in found[0].busy)
    likely, least, most = (
        calls.edit(whole, 0.3, np.where(products, part, 0.0))
        for part in (_OF_CAUSAL_PRODUCTS if causal else _OF_PRODUCTS)
    )
    softmax = next(index for index in found[0].busy if "softmax" in calls.names[index])
    event = int(calls.rows[softmax])
    yield Finding(
        f"attention is written out as matmul, softmax and matmul, {evidence.how_often(len(found))}",
        evidence.function_of(event),
        _FUSED.format("q, k, v, is_causal=True" if causal else "q, k, v"),
        "high",
        "a softmax between two matmuls, with only scaling, masks and casts in between",
        likely,
        least,
        most,
        proof="attention:native,sdpa-flash",
        event=event,
    )


def _learned_biases(calls: Calls, attention: Mask) -> int:
    """Return how many additions to scores have a gradient to compute; that of a constant mask has none."""
    added = np.array([name.endswith(": AddBackward0") for name in calls.names], dtype=bool)
    return int((attention & added & (calls.work_count > 0)).sum())


RULE = AdviceRule("unfused-attention", find)
