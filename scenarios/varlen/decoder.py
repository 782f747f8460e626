"""A decoder for documents of different lengths: random documents, how they become a batch, and the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from common.vit import Block
from torch import nn
from torch.utils.data import Dataset

#: A target that the loss passes over, as torch's cross_entropy does by default.
PADDING = -100


class Documents(Dataset):
    """Random documents, the same for the same seed and index.

    Args:
        count: Number of documents.
        longest: A document has 1 … ``longest`` tokens to read, each as likely, and one more to predict.
        vocabulary: Tokens are 0 … vocabulary − 1.
        seed: Seed.
    """

    def __init__(self, count: int, longest: int, vocabulary: int, seed: int = 0) -> None:
        self.count, self.longest, self.vocabulary, self.seed = count, longest, vocabulary, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the tokens of a document (int64)."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        length = int(torch.randint(1, self.longest + 1, (), generator=random))
        return torch.randint(0, self.vocabulary, (length + 1,), generator=random)


class Batch(NamedTuple):
    """Documents, padded to one length or joined to one row.

    Attributes:
        tokens: int64 ``[documents, length]``, or ``[1, total length]`` if they are joined.
        positions: Position of each token in its document; same shape.
        targets: The token after each, ``PADDING`` where there is none; same shape.
        starts: Where each document starts in the joined row, and the end of the last: int32 ``[documents + 1]``.
        lengths: Length of each document, on the host: nothing has to wait to know them.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    starts: torch.Tensor
    lengths: list[int]

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device, without waiting for the copies."""
        return Batch(*(part.to(device, non_blocking=True) for part in self[:4]), self.lengths)


def pad(documents: list[torch.Tensor], length: int | None = None, multiple: int = 1) -> Batch:
    """Make a batch with a row for each document.

    Args:
        documents: Tokens of each.
        length: Length of the rows; None = that of the longest document, rounded up.
        multiple: What the length of the longest is rounded up to a multiple of.
    """
    lengths = [len(document) - 1 for document in documents]
    length = length or -(-max(lengths) // multiple) * multiple
    tokens = torch.zeros(len(documents), length, dtype=torch.int64)
    targets = torch.full_like(tokens, PADDING)
    for row, document in enumerate(documents):
        tokens[row, : lengths[row]] = document[:-1]
        targets[row, : lengths[row]] = document[1:]
    positions = torch.arange(length).expand_as(tokens).contiguous()
    return Batch(tokens, positions, targets, _starts(lengths), lengths)


def join(documents: list[torch.Tensor]) -> Batch:
    """Make a batch of one row, one document after the other; nothing in it is padding."""
    lengths = [len(document) - 1 for document in documents]
    tokens = torch.cat([document[:-1] for document in documents])[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    targets = torch.cat([document[1:] for document in documents])[None]
    return Batch(tokens, positions, targets, _starts(lengths), lengths)


def _starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@dataclass(frozen=True)
class Arrangement:
    """A way of bringing documents through attention.

    The attention function takes q, k and v as ``[documents, length, heads, head_dim]``, or of one row of all tokens as
    ``[1, total length, heads, head_dim]``, and then what ``where`` returns, which is computed once a step.

    Attributes:
        collate: Makes a batch of documents.
        attention: The attention function; None: the model brings its own.
        where: Returns what the attention function must know of a batch, on the device.
        nested: The batch is one row, and the model is given nested tensors made of it.
    """

    collate: Callable[[list[torch.Tensor]], Batch]
    attention: Callable[..., torch.Tensor] | None
    where: Callable[[Batch], tuple[Any, ...]]
    nested: bool = False

    def arrange(self, batch: Batch, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return nested tensors of ``[1, total length, …]`` where the model takes them; else the rows as they are."""
        if not self.nested:
            return rows
        starts = batch.starts.long()  # the same offsets for all: only so do they count as of one shape
        extent = {"min_seqlen": min(batch.lengths), "max_seqlen": max(batch.lengths)}
        return tuple(torch.nested.nested_tensor_from_jagged(row[0], starts, **extent) for row in rows)


class Decoder(nn.Module):
    """Embeddings of tokens and learned positions, blocks, and a linear layer to the vocabulary.

    Args:
        vocabulary: Number of tokens.
        longest: Number of positions.
        heads: Attention heads of each block.
        head_dim: Channels of a head.
        depth: Blocks.
        attention: The attention function of every block; takes q, k, v and whatever ``forward`` is given for it.
    """

    def __init__(
        self, vocabulary: int, longest: int, heads: int, head_dim: int, depth: int, attention: Callable
    ) -> None:
        super().__init__()
        dim = heads * head_dim
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, attention, norm_bias=False) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, *where: Any) -> torch.Tensor:
        """Return logits ``[documents, length, vocabulary]`` for tokens and positions ``[documents, length]``."""
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, *where)
        return self.head(self.norm(x))
