"""The ways of the ladder ``varlen`` to bring documents of different lengths through attention.

Each says how documents become a batch, what its attention function must know of a batch (worked out once a step, on
the device), and that function: it takes q, k and v as ``[documents, length, heads, head_dim]``, or as one row of all
tokens, ``[1, total length, heads, head_dim]``. What belongs to another package is imported when it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from common.attentions import no_xformers_operator
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from varlen.decoder import Batch, join, pad


@dataclass(frozen=True)
class Arrangement:
    """One way.

    Attributes:
        collate: Makes a batch of documents.
        attention: The attention function; takes q, k, v and what ``where`` returns. None: the model brings its own.
        where: Returns what the attention function must know of a batch.
        joined: The batch is one row.
        nested: The model is given nested tensors made of that row.
    """

    collate: Callable[[list[torch.Tensor]], Batch]
    attention: Callable[..., torch.Tensor] | None
    where: Callable[[Batch], tuple[Any, ...]]
    joined: bool = True
    nested: bool = False

    def arrange(self, batch: Batch, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return nested tensors of ``[1, total length, …]`` where the model takes them; else the rows as they are."""
        if not self.nested:
            return rows
        starts = batch.starts.long()  # the same offsets for all: only so do they count as of one shape
        extent = {"min_seqlen": min(batch.lengths), "max_seqlen": max(batch.lengths)}
        return tuple(torch.nested.nested_tensor_from_jagged(row[0], starts, **extent) for row in rows)


def padded(causal: bool, length: int | None = None, multiple: int = 1) -> Arrangement:
    """Rows of one length, and a mask that hides padding (and, if causal, the future) from every token.

    Args:
        causal: A token sees those before it only.
        length: Length of the rows; None = that of the longest document of the batch, rounded up.
        multiple: What it is rounded up to a multiple of.
    """

    def mask(batch: Batch) -> tuple[torch.Tensor]:
        lengths, index = batch.starts.diff(), torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        seen = (index < lengths[:, None])[:, None, None, :]
        if causal:
            seen = seen & (index <= index[:, None])
        return (seen,)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return Arrangement(lambda documents: pad(documents, length, multiple), attention, mask, joined=False)


def nested(causal: bool) -> Arrangement:
    """A nested (jagged) tensor: one row and its offsets, which PyTorch's own operators understand."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.device.type == "cpu":  # without a fused kernel they must not be slices of one tensor
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    return Arrangement(join, attention, lambda batch: (), nested=True)


def _starts_and_longest(batch: Batch) -> tuple[torch.Tensor, int]:
    return batch.starts, max(batch.lengths)


def flash_attention(causal: bool) -> Arrangement:
    """flash_attn_varlen_func of FlashAttention, which is told where each document starts."""
    from flash_attn import flash_attn_varlen_func

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        return flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, longest, longest, causal=causal)[None]

    return Arrangement(join, attention, _starts_and_longest)


def in_tree_attention(causal: bool) -> Callable[..., torch.Tensor]:
    """Return varlen_attn of PyTorch for q, k, v ``[total length, heads, head_dim]``, ``starts`` and ``longest``."""
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" in inspect.signature(varlen_attn).parameters:
        causality: dict[str, Any] = {"window_size": (-1, 0) if causal else (-1, -1)}
    else:  # PyTorch 2.10
        causality = {"is_causal": causal}

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        return varlen_attn(q, k, v, starts, starts, longest, longest, **causality)

    return attention


def in_tree(causal: bool) -> Arrangement:
    """torch.nn.attention.varlen: the same kernel as FlashAttention's, in PyTorch since 2.10."""
    of_row = in_tree_attention(causal)
    return Arrangement(
        join, lambda q, k, v, *where: of_row(q[0], k[0], v[0], *where)[None], _starts_and_longest
    )


def xformers(causal: bool) -> Arrangement:
    """memory_efficient_attention of xFormers with a block-diagonal mask, of which it computes the blocks only."""
    from xformers.ops import fmha, memory_efficient_attention

    bias = fmha.attn_bias.BlockDiagonalCausalMask if causal else fmha.attn_bias.BlockDiagonalMask

    def where(batch: Batch) -> tuple[Any]:
        return (bias.from_seqlens(batch.lengths, device=batch.tokens.device),)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return memory_efficient_attention(q, k, v, attn_bias=mask)

    try:
        probe = torch.zeros(1, 16, 1, 64, device="cuda", dtype=torch.bfloat16)
        attention(probe, probe, probe, bias.from_seqlens([8, 8], device=probe.device))
    except NotImplementedError as error:
        raise no_xformers_operator(error) from error
    return Arrangement(join, attention, where)


def flex(causal: bool) -> Arrangement:
    """flex_attention with a document mask: blocks in which no two tokens share a document are never computed."""
    blocks, compiled = (
        torch.compile(create_block_mask, dynamic=True),
        torch.compile(flex_attention, dynamic=True),
    )

    def where(batch: Batch) -> tuple[Any]:
        total = batch.tokens.shape[1]
        index = torch.arange(total, device=batch.tokens.device)
        document = torch.searchsorted(batch.starts, index, right=True, out_int32=True)

        def same(batch, head, query, key):  # traced: its arguments are symbols
            seen = document[query] == document[key]
            return seen & (query >= key) if causal else seen

        # Integers alone: without autocast, so that it need not be compiled again for where there is none.
        with torch.autocast(index.device.type, enabled=False):
            return (blocks(same, B=None, H=None, Q_LEN=total, KV_LEN=total, device=index.device),)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return Arrangement(join, attention, where)


#: The ways that take no length, by the name of their method.
WAYS = {
    "pad-longest": padded,
    "pad-longest-64": partial(padded, multiple=64),
    "nested": nested,
    "flash-varlen": flash_attention,
    "xformers": xformers,
    "in-tree": in_tree,
    "flex": flex,
}
