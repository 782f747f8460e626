"""Generalised IoU loss (Rezatofighi et al. 2019) of a batch with differing numbers of boxes, in plain torch.

A box is x1, y1, x2, y2. Predicted and target boxes are ``[batch, boxes, 4]``; the first ``counts[i]`` of sample i are
valid. Widths and heights below 0 count as 0. The loss is the mean of 1 − GIoU over all valid boxes, 0 if there is none.
"""

from __future__ import annotations

import torch

EPSILON = 1e-5


def box_losses(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return 1 − GIoU of each pair of boxes ``[…, 4]``, as ``[…]``, in the precision of the target."""
    predicted = predicted.to(target.dtype)

    def area(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return (high - low).clamp(min=0).prod(dim=-1)

    low, high, target_low, target_high = *predicted.split(2, -1), *target.split(2, -1)
    shared = area(torch.maximum(low, target_low), torch.minimum(high, target_high))
    both = area(low, high) + area(target_low, target_high) - shared
    hull = area(torch.minimum(low, target_low), torch.maximum(high, target_high))
    return 1 - shared / (both + EPSILON) + (hull - both) / (hull + EPSILON)


def per_sample(predicted: torch.Tensor, targets: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, sample by sample; ``targets`` has the valid boxes of each."""
    losses = [
        box_losses(boxes[: len(target)], target).sum()
        for boxes, target in zip(predicted, targets, strict=True)
    ]
    return torch.stack(losses).sum() / counts.sum().clamp(min=1)


def concatenated(predicted: torch.Tensor, targets: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """Return the loss of the valid boxes of all samples, one after another in one tensor."""
    chosen = torch.cat([boxes[: len(target)] for boxes, target in zip(predicted, targets, strict=True)])
    return box_losses(chosen, torch.cat(targets)).sum() / counts.sum().clamp(min=1)


def padded(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, computed for every box and masked."""
    valid = torch.arange(target.shape[1], device=target.device) < counts[:, None]
    return torch.where(valid, box_losses(predicted, target), 0).sum() / counts.sum().clamp(min=1)
