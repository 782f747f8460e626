"""The attention functions of the ladder ``attention``: softmax(q kᵀ / √d) v by whoever computes it fastest.

Every function takes q, k and v as ``[batch, tokens, heads, head_dim]`` ("bshd") and returns that shape. PyTorch's own
want the heads before the tokens; the transposes are views and copy nothing. A function that belongs to another package
imports it when it is made.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from common.scenario import CannotRun
from common.vit import Attention


def native(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
    """The definition: softmax(q kᵀ / √d) v, the scores s optionally capped to softcap · tanh(s / softcap)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    return (scores.softmax(dim=-1).to(v.dtype) @ v).transpose(1, 2)


#: The kernels of scaled_dot_product_attention that a variant may be held to, by the name of its attention.
KERNELS = {
    "sdpa-math": SDPBackend.MATH,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}


def sdpa(kernel: SDPBackend | None = None, mask: torch.Tensor | None = None) -> Attention:
    """PyTorch's scaled_dot_product_attention, held to a kernel.

    The context stands within the function, not around the training, so that torch.compile sees it. Its cache tells
    graphs apart by what is traced: with the context outside, it hands one process the kernel that another had chosen.

    Args:
        kernel: The only one it may take; None = whichever PyTorch chooses.
        mask: ``[tokens, tokens]``, true = seen.
    """

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        with sdpa_kernel(kernel) if kernel is not None else nullcontext():
            return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return attention


def flash_attention_3() -> Attention:
    from flash_attn_interface import flash_attn_func

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flash_attn_func(q, k, v)
        return out[0] if isinstance(out, tuple) else out  # before 2026 with the log-sum-exp

    return attention


def transformer_engine(heads: int, head_dim: int) -> Attention:
    from transformer_engine.pytorch import DotProductAttention

    fused = DotProductAttention(heads, head_dim, qkv_format="bshd", attn_mask_type="no_mask")
    return lambda q, k, v: fused(q, k, v).view_as(q)  # it merges heads and head_dim


def xformers() -> Attention:
    from xformers.ops import memory_efficient_attention

    try:
        memory_efficient_attention(*(torch.zeros(1, 8, 1, 64, device="cuda", dtype=torch.bfloat16),) * 3)
    except NotImplementedError as error:
        raise no_xformers_operator(error) from error
    return lambda q, k, v: memory_efficient_attention(q, k, v)


def no_xformers_operator(error: NotImplementedError) -> CannotRun:
    """Say that a wheel of xFormers holds no operators for this PyTorch and GPU; it tells so only when it is called."""
    reason = str(error).strip().splitlines()[-1].strip()
    return CannotRun(f"xformers has no operator for this PyTorch and GPU ({reason})", "build it from source")


def softcap_flex(softcap: float) -> Attention:
    """The cap as a score_mod: compiled into the kernel, where the scores are."""

    def cap(score, batch, head, query, key):  # traced: its arguments are symbols
        return softcap * torch.tanh(score / softcap)

    compiled = torch.compile(flex_attention)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, score_mod=cap).transpose(1, 2)

    return attention


def window_mask(side: int, reach: int, device: torch.device) -> torch.Tensor:
    """Return the mask ``[side², side²]`` (bool, true = seen) of patches at most ``reach`` apart on a square grid."""
    index = torch.arange(side * side, device=device)
    rows, columns = index // side, index % side
    near = (rows[:, None] - rows).abs() <= reach
    return near & ((columns[:, None] - columns).abs() <= reach)


def window_flex(side: int, reach: int, device: torch.device) -> Attention:
    """The same window as a block mask: FlexAttention skips each block of the matrix that it empties."""

    def near(batch, head, query, key):  # traced: its arguments are symbols
        rows_near = (query // side - key // side).abs() <= reach
        return rows_near & ((query % side - key % side).abs() <= reach)

    mask = create_block_mask(near, B=None, H=None, Q_LEN=side**2, KV_LEN=side**2, device=device)
    compiled = torch.compile(flex_attention)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return attention


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
