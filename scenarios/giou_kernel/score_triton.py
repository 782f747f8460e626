"""The score of ``giou_kernel.score`` in Triton: one program a block of pairs."""

from __future__ import annotations

import functools
from typing import Any

import torch
from common.boxes_triton import area, load_boxes
from common.interpreted import triton_language

from giou_kernel.score import EPSILON

triton, tl = triton_language()

PAIRS = 512  # a block; four warps take four pairs a thread


@triton.jit
def _kernel(first, second, scores, pairs, epsilon, BLOCK: tl.constexpr):  # noqa: N803 - it is compiled in
    start = tl.program_id(0).to(tl.int64) * BLOCK
    ax1, ay1, ax2, ay2 = load_boxes(first + 4 * start, pairs - start, BLOCK)
    bx1, by1, bx2, by2 = load_boxes(second + 4 * start, pairs - start, BLOCK)
    shared = area(tl.maximum(ax1, bx1), tl.maximum(ay1, by1), tl.minimum(ax2, bx2), tl.minimum(ay2, by2))
    hull = area(tl.minimum(ax1, bx1), tl.minimum(ay1, by1), tl.maximum(ax2, bx2), tl.maximum(ay2, by2))
    union = area(ax1, ay1, ax2, ay2) + area(bx1, by1, bx2, by2) - shared
    score = shared / (union + epsilon) - (hull - union) / (hull + epsilon)
    pair = start + tl.arange(0, BLOCK)
    tl.store(scores + pair, score, mask=pair < pairs)


def scores(first: torch.Tensor, second: torch.Tensor, *, block: int = PAIRS, warps: int = 4) -> torch.Tensor:
    """Return the scores ``[…]`` of boxes ``[…, 4]``; ``warps`` share a block of pairs."""
    first, second = first.contiguous(), second.contiguous()
    result = torch.empty(first.shape[:-1], device=first.device)
    pairs = result.numel()
    _kernel[(triton.cdiv(pairs, block),)](first, second, result, pairs, EPSILON, BLOCK=block, num_warps=warps)
    return result


def autotuned(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the same with block and warps chosen by Triton's autotuner, on the first call for a number of pairs."""
    first, second = first.contiguous(), second.contiguous()
    result = torch.empty(first.shape[:-1], device=first.device)
    pairs = result.numel()
    _tuned()[lambda chosen: (triton.cdiv(pairs, chosen["BLOCK"]),)](first, second, result, pairs, EPSILON)
    return result


@functools.cache
def _tuned() -> Any:
    configs = [
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (128, 256, 512, 1024, 2048)
        for warps in (1, 2, 4, 8)
    ]
    return triton.autotune(configs, key=["pairs"])(_kernel)
