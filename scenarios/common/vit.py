"""A vision transformer whose attention function is a parameter."""

from __future__ import annotations

from collections.abc import Callable

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
    """

    def __init__(self, dim: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.project = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, dim // self.heads)
        attended = self.attention(*qkv.unbind(2))
        x = x + self.project(attended.reshape(batch, tokens, dim))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A classifier of square images: no class token, the tokens are averaged.

    Args:
        image: Height and width in pixels.
        patch: Height and width of a patch.
        dim: Channels.
        heads: Attention heads.
        depth: Blocks.
        classes: Outputs.
        attention: The attention function of every block.
    """

    def __init__(
        self, image: int, patch: int, dim: int, heads: int, depth: int, classes: int, attention: Attention
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads, attention) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))
