"""GPT-2 of Hugging Face transformers, from a configuration: random weights, nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

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
        dropout: With the dropout of GPT2Config's defaults; without, variants compute the same.
    """

    def __init__(
        self,
        vocabulary: int,
        longest: int,
        heads: int,
        head_dim: int,
        depth: int,
        implementation: str,
        *,
        dropout: bool = True,
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
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            **({} if dropout else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
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
    from varlen.in_tree import in_tree_attention

    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return in_tree_attention(causal=True)(q, k, v, starts, longest)[None], None
