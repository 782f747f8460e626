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
from tuiprof.whatif import Edit

#: Time of fused attention relative to the matrix products that it replaces: it does not read or write the scores,
#: and its backward recomputes them; a causal mask halves them. Likely, least, most.
_OF_PRODUCTS: Final = (0.8, 1.3, 0.4)
_OF_CAUSAL_PRODUCTS: Final = (0.5, 1.0, 0.3)
_CAUSAL: Final = ("aten::tril", "aten::triu")
#: The same if a bias of positions is learned. Fused kernels add up its gradient slowly: on an H100, a T5 (bf16, 512
#: tokens) takes 82 ms a step with scaled_dot_product_attention and 72 written out. Least: nothing is saved.
_OF_BIASED_PRODUCTS: Final = (1.3, 1.0, 0.4)
_FUSED: Final = (
    "torch.nn.functional.scaled_dot_product_attention({}), which runs FlashAttention or cuDNN's kernel"
)
_BIASED: Final = (
    "torch.compile(flex_attention) of torch.nn.attention.flex_attention, with the bias in its score_mod; "
    "scaled_dot_product_attention can be slower, as a mask that needs gradients keeps it from its fast kernels"
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
    products = calls.works_of("gemm", "attention")
    causal = any(calls.names[index] in _CAUSAL for index in found[0].busy)
    biased = _learned_biases(calls, whole) > len(found) / 2
    likely, least, most = (
        calls.edit(whole, 0.3, np.where(products, part, 0.0))
        for part in (_OF_BIASED_PRODUCTS if biased else _OF_CAUSAL_PRODUCTS if causal else _OF_PRODUCTS)
    )
    if biased:
        least = Edit()
    softmax = next(index for index in found[0].busy if "softmax" in calls.names[index])
    event = int(calls.rows[softmax])
    yield Finding(
        f"attention is written out as matmul, softmax and matmul, {evidence.how_often(len(found))}",
        evidence.function_of(event),
        _BIASED if biased else _FUSED.format("q, k, v, is_causal=True" if causal else "q, k, v"),
        "low" if biased else "high",
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
