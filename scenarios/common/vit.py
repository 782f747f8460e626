"""A vision transformer whose attention function is a parameter, and the block that other transformers share with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: Takes queries, keys and values of shape [batch, tokens, heads, head_dim] and returns the same shape.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Attention and an MLP, each after a layer normalisation and around a residual.

    Args:
        dim: Channels.
        heads: Attention heads; ``dim`` is divided among them.
        attention: The attention function.
        norm_bias: The layer normalisations have a bias.
        qkv_bias: Queries, keys and values have a bias.
    """

    def __init__(
        self, dim: int, heads: int, attention: Callable, *, norm_bias: bool = True, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=norm_bias), nn.LayerNorm(dim, bias=norm_bias)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.project = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor, *where: Any) -> torch.Tensor:
        """Take ``[batch, tokens, dim]``, and what else the attention function is to be given."""
        head_dim = x.shape[-1] // self.heads
        q, k, v = (
            part.unflatten(-1, (self.heads, head_dim)) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        x = x + self.project(self.attention(q, k, v, *where).flatten(-2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A classifier of square images.

    Args:
        image: Height and width in pixels.
        patch: Height and width of a patch.
        dim: Channels.
        heads: Attention heads.
        depth: Blocks.
        classes: Outputs.
        attention: The attention function of every block.
        class_token: One more token stands for the image, and queries, keys and values have a bias, as in the first
            publication (Dosovitskiy et al. 2021). Else the tokens are averaged.
    """

    def __init__(
        self,
        image: int,
        patch: int,
        dim: int,
        heads: int,
        depth: int,
        classes: int,
        attention: Attention,
        *,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02) if class_token else None
        tokens = (image // patch) ** 2 + class_token
        self.positions = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        self.blocks = nn.Sequential(
            *(Block(dim, heads, attention, qkv_bias=class_token) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        if self.class_token is None:
            return self.head(self.norm(self.blocks(tokens + self.positions)).mean(dim=1))
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])
