"""Attention is written out as two matrix products with a softmax between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared import regions
from tuiprof.model import Trace

#: What a fused attention takes of the time of the matrix products it stands for: it leaves out reading and writing the
#: scores, and its backward computes them anew. Measured on an H100, bf16 (docs/predictions.md).
_OF_PRODUCTS, _LEAST, _MOST = 0.5, 1.0, 0.3


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products and a softmax that scaled_dot_product_attention would do in one kernel."""
    calls = evidence.calls
    found = regions.find(calls).attention
    if not found:
        return
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for region in found:
        chosen[region.calls] = True
    whole = calls.with_backward(chosen)
    products = np.isin(calls.work_kinds.astype(str), ("gemm", "attention"))
    likely, least, most = (
        calls.edit(whole, 0.3, np.where(products, part, 0.0)) for part in (_OF_PRODUCTS, _LEAST, _MOST)
    )
    softmax = next(index for index in found[0].busy if "softmax" in calls.names[index])
    yield Finding(
        f"attention is written out: product, softmax and product, {len(found) / evidence.step_count:.0f} times a step",
        "",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v), which runs FlashAttention or cuDNN's kernel",
        "high",
        "a softmax between two matrix products, with nothing but scaling, masks and casts around it",
        likely,
        least,
        most,
        proof="attention:native,sdpa-flash",
        event=int(calls.rows[softmax]),
    )


RULE = AdviceRule("unfused-attention", find)
