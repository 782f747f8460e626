"""Greedy non-maximum suppression in torch, torchvision and Triton.

Boxes are bfloat16, scores float32; kept are the indices as int32 ``[most]``, best first, −1 where none is left. They
are those of ``suppress`` in ``nms.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from common.clocks import Clock, torch_clock
from common.scenario import CannotRun

if TYPE_CHECKING:
    import numpy as np


def prepared(
    name: str, boxes: np.ndarray, scores: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...], Clock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        name: ``"torch"``, ``"torchvision"``, ``"triton"``, ``"triton-4-warps"`` or ``"triton-1-warp"``.
        boxes: float32 ``[count, 4]``.
        scores: float32 ``[count]``.

    Raises:
        CannotRun: torchvision is installed and does not fit this torch.
    """
    function = suppress
    if name == "torchvision":
        function = by_torchvision()
    elif name.startswith("triton"):
        from nms import in_triton

        warps = {"triton-1-warp": 1, "triton-4-warps": 4}.get(name, 8)
        function = functools.partial(in_triton.suppress, warps=warps)
    clock = torch_clock(interpreted=name == "triton")
    inputs = torch.from_numpy(boxes).to(clock.where, torch.bfloat16), torch.from_numpy(scores).to(clock.where)
    return function, inputs, clock


@torch.inference_mode()
def suppress(boxes: torch.Tensor, scores: torch.Tensor, *, threshold: float, most: int) -> torch.Tensor:
    """Return what is kept. Nothing here waits for the device: an index stays a tensor, and no round ends early."""
    edges = boxes.float().T.contiguous()
    x1, y1, x2, y2 = edges
    areas = (x2 - x1) * (y2 - y1)
    left, kept = scores.clone(), []
    for _ in range(most):
        score, best = left.max(dim=0, keepdim=True)
        kept.append(torch.where(score == -torch.inf, -1, best))
        # edges[:, best] with an index of no dimensions would read it on the host.
        bx1, by1, bx2, by2 = edges.index_select(1, best)
        width = (torch.minimum(x2, bx2) - torch.maximum(x1, bx1)).clamp_(min=0)
        height = (torch.minimum(y2, by2) - torch.maximum(y1, by1)).clamp_(min=0)
        overlap = width * height
        union = areas + (bx2 - bx1) * (by2 - by1) - overlap
        left = left.masked_fill_(overlap > threshold * union, -torch.inf).index_fill_(0, best, -torch.inf)
    return torch.cat(kept).int()


def by_torchvision() -> Callable[..., torch.Tensor]:
    """Return the same by ``torchvision.ops.nms``, which knows no limit: what is beyond it is cut off."""
    try:
        from torchvision.ops import nms
    except (ImportError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0]
        raise CannotRun(
            f"torchvision does not fit this torch: {said}", "install the torchvision of this torch"
        ) from error

    def function(boxes: torch.Tensor, scores: torch.Tensor, *, threshold: float, most: int) -> torch.Tensor:
        kept = nms(boxes.float(), scores, threshold)[:most].int()
        return torch.nn.functional.pad(kept, (0, most - len(kept)), value=-1)

    return function
