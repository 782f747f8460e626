"""The loss of ``common.giou`` by a Triton kernel: one program a sample."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from common.giou import EPSILON


@triton.jit
def _axis(low, high, target_low, target_high):
    """Return the three lengths of an axis, before they are held to be 0 at least."""
    own = high - low
    shared = tl.minimum(high, target_high) - tl.maximum(low, target_low)
    hull = tl.maximum(high, target_high) - tl.minimum(low, target_low)
    return own, shared, hull


@triton.jit
def _edges(low, high, target_low, target_high, own, shared, hull, d_own, d_shared, d_hull):
    """Return the gradients by the two edges of an axis from those by its three lengths."""
    d_own = tl.where(own >= 0, d_own, 0.0)
    d_shared = tl.where(shared >= 0, d_shared, 0.0)
    d_hull = tl.where(hull >= 0, d_hull, 0.0)
    return (
        -d_own - tl.where(low > target_low, d_shared, d_hull),
        d_own + tl.where(high < target_high, d_shared, d_hull),
    )


@triton.jit
def _kernel(
    predicted,
    target,
    counts,
    gradients,
    sums,
    boxes,
    epsilon,
    BLOCK: tl.constexpr,  # noqa: N803 - what is compiled in is in capitals
    WITH_GRADIENT: tl.constexpr,  # noqa: N803
):
    sample = tl.program_id(0)
    box = tl.arange(0, BLOCK)
    inside = box < boxes
    valid = box < tl.load(counts + sample)
    start = (sample.to(tl.int64) * boxes + box) * 4
    # Four strided loads of one line each: the line comes from memory once and from the first-level cache after that.
    x1 = tl.load(predicted + start, mask=valid, other=0.0).to(tl.float32)
    y1 = tl.load(predicted + start + 1, mask=valid, other=0.0).to(tl.float32)
    x2 = tl.load(predicted + start + 2, mask=valid, other=0.0).to(tl.float32)
    y2 = tl.load(predicted + start + 3, mask=valid, other=0.0).to(tl.float32)
    u1 = tl.load(target + start, mask=valid, other=0.0).to(tl.float32)
    v1 = tl.load(target + start + 1, mask=valid, other=0.0).to(tl.float32)
    u2 = tl.load(target + start + 2, mask=valid, other=0.0).to(tl.float32)
    v2 = tl.load(target + start + 3, mask=valid, other=0.0).to(tl.float32)

    own_x, shared_x, hull_x = _axis(x1, x2, u1, u2)
    own_y, shared_y, hull_y = _axis(y1, y2, v1, v2)
    own_w, own_h = tl.maximum(own_x, 0.0), tl.maximum(own_y, 0.0)
    shared_w, shared_h = tl.maximum(shared_x, 0.0), tl.maximum(shared_y, 0.0)
    hull_w, hull_h = tl.maximum(hull_x, 0.0), tl.maximum(hull_y, 0.0)
    shared, hull = shared_w * shared_h, hull_w * hull_h
    both = own_w * own_h + tl.maximum(u2 - u1, 0.0) * tl.maximum(v2 - v1, 0.0) - shared
    per_both, per_hull = 1.0 / (both + epsilon), 1.0 / (hull + epsilon)
    losses = 1.0 - shared * per_both + (hull - both) * per_hull
    tl.store(sums + sample, tl.sum(tl.where(valid, losses, 0.0)))

    if WITH_GRADIENT:
        d_both = shared * per_both * per_both - per_hull
        d_shared = -per_both - d_both
        d_hull = (both + epsilon) * per_hull * per_hull
        dx1, dx2 = _edges(
            x1, x2, u1, u2, own_x, shared_x, hull_x, d_both * own_h, d_shared * shared_h, d_hull * hull_h
        )
        dy1, dy2 = _edges(
            y1, y2, v1, v2, own_y, shared_y, hull_y, d_both * own_w, d_shared * shared_w, d_hull * hull_w
        )
        tl.store(gradients + start, tl.where(valid, dx1, 0.0), mask=inside)
        tl.store(gradients + start + 1, tl.where(valid, dy1, 0.0), mask=inside)
        tl.store(gradients + start + 2, tl.where(valid, dx2, 0.0), mask=inside)
        tl.store(gradients + start + 3, tl.where(valid, dy2, 0.0), mask=inside)


class GIoULoss(torch.autograd.Function):
    """Computes the loss and, in the same pass, its gradient; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any, predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, with_gradient: bool
    ) -> torch.Tensor:
        predicted, target = predicted.contiguous(), target.contiguous()
        batch, boxes = target.shape[0], target.shape[1]
        gradient = torch.empty_like(predicted)
        sums = torch.empty(batch, dtype=torch.float32, device=predicted.device)
        block = triton.next_power_of_2(boxes)
        _kernel[(batch,)](
            predicted,
            target,
            counts,
            gradient,
            sums,
            boxes,
            EPSILON,
            BLOCK=block,
            WITH_GRADIENT=with_gradient,
        )
        total = counts.sum().clamp(min=1)
        ctx.save_for_backward(gradient, total)
        return sums.sum() / total

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, total = ctx.saved_tensors
        return (gradient * (outer / total)).to(gradient.dtype), None, None, None


def loss(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss in float32 of predicted boxes of any type; see ``common.giou`` for shapes."""
    return GIoULoss.apply(predicted, target, counts, predicted.requires_grad and torch.is_grad_enabled())


def loss_after_cast(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, after the predicted boxes have been written to memory as float32."""
    return loss(predicted.float(), target, counts)
