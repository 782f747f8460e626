"""Attention by its definition, and how an attention function is held to it.

Such a function takes q, k and v as ``[batch, tokens, heads, head_dim]`` ("bshd") and returns that shape.
"""

from __future__ import annotations

import torch

from common.scenario import CannotRun
from common.vit import Attention


def native(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
    """The definition: softmax(q kᵀ / √d) v, the scores s optionally capped to softcap · tanh(s / softcap)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    return (scores.softmax(dim=-1).to(v.dtype) @ v).transpose(1, 2)


def no_xformers_operator(error: NotImplementedError) -> CannotRun:
    """Say that a wheel of xFormers holds no operators for this PyTorch and GPU; it tells so only when it is called."""
    reason = str(error).strip().splitlines()[-1].strip()
    return CannotRun(f"xformers has no operator for this PyTorch and GPU ({reason})", "build it from source")


def output_and_gradients(
    attention: Attention,
    shape: tuple[int, int, int, int],
    device: torch.device,
    dtype: torch.dtype,
    compute: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Return output and gradients of an attention function for random q, k, v, always the same ones.

    Args:
        attention: The function.
        shape: Batch, tokens, heads, head_dim.
        device: Where to compute.
        dtype: What the numbers are rounded to: float32, with a standard deviation of 3, so that the scores reach a soft
            cap of 30; bf16 with 1, because its rounding errors grow with the scores.
        compute: What to compute in; None = ``dtype``.
    """
    deviation = 3 if dtype == torch.float32 else 1
    numbers = deviation * torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    *inputs, out_grad = numbers.to(dtype).to(device, compute or dtype)
    inputs = [x.requires_grad_() for x in inputs]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no TF32 while the algorithm is in question
    try:
        out = attention(*inputs)
        return [out, *torch.autograd.grad(out, inputs, out_grad)]
    finally:
        torch.set_float32_matmul_precision(precision)
