"""Greedy non-maximum suppression by one Triton program that holds all boxes in its registers."""

from __future__ import annotations

import torch
from common.interpreted import triton_language

triton, tl = triton_language()


@triton.jit
def _kernel(
    boxes,
    scores,
    kept,
    threshold,
    COUNT: tl.constexpr,  # noqa: N803 - what is compiled in is in capitals
    MOST: tl.constexpr,  # noqa: N803
):
    index = tl.arange(0, COUNT)
    x1 = tl.load(boxes + 4 * index).to(tl.float32)
    y1 = tl.load(boxes + 4 * index + 1).to(tl.float32)
    x2 = tl.load(boxes + 4 * index + 2).to(tl.float32)
    y2 = tl.load(boxes + 4 * index + 3).to(tl.float32)
    areas = (x2 - x1) * (y2 - y1)
    # One int32 for score and index: the largest is the best score, and of equal ones the lowest index.
    bits = tl.load(scores + index).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (ordered & ~(COUNT - 1)) | (COUNT - 1 - index)
    gone = -2147483648
    for turn in range(MOST):
        key = tl.max(keys, axis=0)
        tl.store(kept + turn, tl.where(key == gone, -1, COUNT - 1 - (key & (COUNT - 1))))
        # Four numbers that all threads need: from the cache that is a load each, from registers it were a reduction.
        best = boxes + 4 * (COUNT - 1 - (key & (COUNT - 1)))
        bx1, by1 = tl.load(best).to(tl.float32), tl.load(best + 1).to(tl.float32)
        bx2, by2 = tl.load(best + 2).to(tl.float32), tl.load(best + 3).to(tl.float32)
        width = tl.maximum(tl.minimum(x2, bx2) - tl.maximum(x1, bx1), 0.0)
        height = tl.maximum(tl.minimum(y2, by2) - tl.maximum(y1, by1), 0.0)
        overlap = width * height
        union = areas + (bx2 - bx1) * (by2 - by1) - overlap
        keys = tl.where((keys == key) | (overlap > threshold * union), gone, keys)


def suppress(
    boxes: torch.Tensor, scores: torch.Tensor, *, threshold: float, most: int, warps: int = 8
) -> torch.Tensor:
    """Return what is kept; the number of boxes is a power of two, and ``warps`` share them."""
    boxes, scores = boxes.contiguous(), scores.contiguous()
    kept = torch.empty(most, dtype=torch.int32, device=boxes.device)
    _kernel[(1,)](boxes, scores, kept, threshold, COUNT=len(scores), MOST=most, num_warps=warps)
    return kept
