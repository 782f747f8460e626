"""The loss of ``giou_loss.py`` by Triton kernels, one program a sample: one for the loss and one for its gradient."""

from __future__ import annotations

import functools
from typing import Any

import torch
from common.boxes_triton import load_boxes, store_boxes
from common.interpreted import triton_language

from giou_loss.epsilon import EPSILON

triton, tl = triton_language()


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
def _loss_kernel(
    predicted,
    target,
    counts,
    sums,
    total,
    loss,
    ticket,
    batch,
    boxes,
    epsilon,
    BLOCK: tl.constexpr,  # noqa: N803 - what is compiled in is in capitals
    BATCH: tl.constexpr,  # noqa: N803
    FINISH: tl.constexpr,  # noqa: N803
):
    sample = tl.program_id(0)
    start, count = sample.to(tl.int64) * boxes * 4, tl.load(counts + sample)
    # Only the boxes that count are loaded. What is 0 for all four edges gives a loss of 1, and is masked below.
    x1, y1, x2, y2 = load_boxes(predicted + start, count, BLOCK)
    u1, v1, u2, v2 = load_boxes(target + start, count, BLOCK)
    own_x, shared_x, hull_x = _axis(x1, x2, u1, u2)
    own_y, shared_y, hull_y = _axis(y1, y2, v1, v2)
    shared = tl.maximum(shared_x, 0.0) * tl.maximum(shared_y, 0.0)
    hull = tl.maximum(hull_x, 0.0) * tl.maximum(hull_y, 0.0)
    own = tl.maximum(own_x, 0.0) * tl.maximum(own_y, 0.0)
    both = own + tl.maximum(u2 - u1, 0.0) * tl.maximum(v2 - v1, 0.0) - shared
    losses = 1.0 - shared / (both + epsilon) + (hull - both) / (hull + epsilon)
    tl.store(sums + sample, tl.sum(tl.where(tl.arange(0, BLOCK) < count, losses, 0.0)))

    if FINISH:
        # The program that arrives last adds the sums up, always in the same order, and sets the ticket back.
        tl.debug_barrier()
        if tl.atomic_add(ticket, 1, sem="acq_rel") == batch - 1:
            index = tl.arange(0, BATCH)
            all_sums = tl.load(sums + index, mask=index < batch, other=0.0, volatile=True)
            valid = tl.sum(tl.load(counts + index, mask=index < batch, other=0))
            divisor = tl.maximum(valid, 1).to(tl.float32)
            tl.store(total, divisor)
            tl.store(loss, tl.sum(all_sums) / divisor)
            tl.store(ticket, 0)


@triton.jit
def _gradient_kernel(
    predicted,
    target,
    counts,
    total,
    outer,
    gradients,
    boxes,
    epsilon,
    BLOCK: tl.constexpr,  # noqa: N803
):
    sample = tl.program_id(0)
    start, count = sample.to(tl.int64) * boxes * 4, tl.load(counts + sample)
    x1, y1, x2, y2 = load_boxes(predicted + start, count, BLOCK)
    u1, v1, u2, v2 = load_boxes(target + start, count, BLOCK)
    own_x, shared_x, hull_x = _axis(x1, x2, u1, u2)
    own_y, shared_y, hull_y = _axis(y1, y2, v1, v2)
    own_w, own_h = tl.maximum(own_x, 0.0), tl.maximum(own_y, 0.0)
    shared_w, shared_h = tl.maximum(shared_x, 0.0), tl.maximum(shared_y, 0.0)
    hull_w, hull_h = tl.maximum(hull_x, 0.0), tl.maximum(hull_y, 0.0)
    shared, hull = shared_w * shared_h, hull_w * hull_h
    both = own_w * own_h + tl.maximum(u2 - u1, 0.0) * tl.maximum(v2 - v1, 0.0) - shared
    per_both, per_hull = 1.0 / (both + epsilon), 1.0 / (hull + epsilon)
    scale = tl.where(tl.arange(0, BLOCK) < count, tl.load(outer) / tl.load(total), 0.0)
    d_both = (shared * per_both * per_both - per_hull) * scale
    d_shared = -per_both * scale - d_both
    d_hull = (both + epsilon) * per_hull * per_hull * scale
    dx1, dx2 = _edges(
        x1, x2, u1, u2, own_x, shared_x, hull_x, d_both * own_h, d_shared * shared_h, d_hull * hull_h
    )
    dy1, dy2 = _edges(
        y1, y2, v1, v2, own_y, shared_y, hull_y, d_both * own_w, d_shared * shared_w, d_hull * hull_w
    )
    store_boxes(gradients + start, boxes, dx1, dy1, dx2, dy2, BLOCK)


@functools.cache
def ticket(_stream: int, device: torch.device) -> torch.Tensor:
    """Return the counter by which programs know that they are the last; each launch leaves it at 0 for the next.

    Launches of one stream follow one another and share it; those of two streams may meet, and do not.
    """
    return torch.zeros(1, dtype=torch.int32, device=device)


class GIoULoss(torch.autograd.Function):
    """Computes the loss in one launch, and the gradient in another from what the loss was computed from.

    Reading the boxes again costs less than a gradient that is written, read, scaled and written again.
    """

    @staticmethod
    def forward(
        ctx: Any, predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        predicted, target, counts = predicted.contiguous(), target.contiguous(), counts.contiguous()
        batch, boxes, device = target.shape[0], target.shape[1], predicted.device
        sums = torch.empty(batch, dtype=torch.float32, device=device)
        total, loss = (torch.empty((), dtype=torch.float32, device=device) for _ in range(2))
        # torch.compile makes one kernel of the last sums; called from Python, they are four launches.
        finish = not torch.compiler.is_compiling()
        _loss_kernel[(batch,)](
            predicted,
            target,
            counts,
            sums,
            total,
            loss,
            ticket(_stream(device), device) if finish else counts,
            batch,
            boxes,
            EPSILON,
            BLOCK=triton.next_power_of_2(boxes),
            BATCH=triton.next_power_of_2(batch),
            FINISH=finish,
        )
        if not finish:
            total = counts.sum().clamp(min=1).float()
            loss = sums.sum() / total
        ctx.save_for_backward(predicted, target, counts, total)
        return loss

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        predicted, target, counts, total = ctx.saved_tensors
        gradient = torch.empty_like(predicted)
        batch, boxes = target.shape[0], target.shape[1]
        block = triton.next_power_of_2(boxes)
        _gradient_kernel[(batch,)](
            predicted, target, counts, total, outer, gradient, boxes, EPSILON, BLOCK=block
        )
        return gradient, None, None


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0


def loss(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss in float32 of predicted boxes of any type; see ``giou_loss.py`` for shapes."""
    if not predicted.numel():
        return predicted.float().sum()  # 0, and there is nothing to launch
    return GIoULoss.apply(predicted, target, counts)


def loss_after_cast(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, after the predicted boxes have been written to memory as float32."""
    return loss(predicted.float(), target, counts)
