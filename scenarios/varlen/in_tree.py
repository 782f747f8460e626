"""Varlen attention of PyTorch itself, for the decoder and as an attention function of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn


def in_tree_attention(causal: bool) -> Callable[..., torch.Tensor]:
    """Return varlen_attn for q, k, v ``[total length, heads, head_dim]``, ``starts`` and ``longest``."""
    if "window_size" in inspect.signature(varlen_attn).parameters:
        causality: dict[str, Any] = {"window_size": (-1, 0) if causal else (-1, -1)}
    else:  # PyTorch 2.10
        causality = {"is_causal": causal}

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        return varlen_attn(q, k, v, starts, starts, longest, longest, **causality)

    return attention
