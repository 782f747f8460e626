"""GPT-2 of Hugging Face transformers, from a configuration: random weights, nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from varlen.arrangements import Arrangement, in_tree_attention
from varlen.decoder import Batch, join, pad

IN_TREE = "in_tree_varlen"


class GPT2(nn.Module):
    """GPT-2 with the interface of :class:`varlen.decoder.Decoder`.

    Args:
        vocabulary: Number of tokens.
        longest: Number of positions.
        heads: Attention heads of each block.
        head_dim: Channels of a head.
        depth: Blocks.
        implementation: Its attention: ``"sdpa"``, ``"flash_attention_2"`` or :data:`IN_TREE`.
    """

    def __init__(
        self, vocabulary: int, longest: int, heads: int, head_dim: int, depth: int, implementation: str
    ) -> None:
        super().__init__()
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

        if implementation == IN_TREE:
            AttentionInterface.register(IN_TREE, _in_tree)
        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=longest,
            n_embd=heads * head_dim,
            n_layer=depth,
            n_head=heads,
            resid_pdrop=0.0,  # without dropout the variants compute the same
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        self.model = GPT2LMHeadModel._from_config(config, attn_implementation=implementation)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, where: dict[str, Any]) -> torch.Tensor:
        """Return logits for tokens and positions ``[documents, length]``; ``where``: more arguments, by name."""
        return self.model(input_ids=tokens, position_ids=positions, **where).logits


def _in_tree(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    starts: torch.Tensor,
    longest: int,
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    """torch.nn.attention.varlen as transformers calls an attention function: ``[1, heads, length, head_dim]``."""
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return in_tree_attention(causal=True)(q, k, v, starts, longest)[None], None


def _mask(batch: Batch) -> tuple[dict[str, Any]]:
    return ({"attention_mask": (batch.positions < batch.starts.diff()[:, None]).long()},)


def _positions_suffice(batch: Batch) -> tuple[dict[str, Any]]:
    return ({},)


def _starts_and_longest(batch: Batch) -> tuple[dict[str, Any]]:
    return ({"starts": batch.starts, "longest": max(batch.lengths)},)


#: Implementation of attention, and how documents are brought to it. transformers takes padding from a mask
#: ``[documents, length]``, or sees by the positions, which begin again at 0, where in a row a document starts.
WAYS = {
    "gpt2-sdpa": ("sdpa", Arrangement(pad, None, _mask, joined=False)),
    "gpt2-flash": ("flash_attention_2", Arrangement(pad, None, _mask, joined=False)),
    "gpt2-flash-flattened": ("flash_attention_2", Arrangement(join, None, _positions_suffice)),
    "gpt2-in-tree-flattened": (IN_TREE, Arrangement(join, None, _starts_and_longest)),
}
