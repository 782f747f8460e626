"""Steps on a GPU whose texts are padded to a fixed length that no text of a batch has.

They were written with the rule for it.
"""

from __future__ import annotations

import functools
import itertools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import DEVICE, Step, case, sized, trained


class Reader(nn.Module):
    """A classifier of texts with a mask, or a language model, of pre-norm layers."""

    def __init__(self, words: int, length: int, width: int, depth: int, outs: int, *, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.causal, self.heads = causal, max(width // 64, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.ask = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.join = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.grow = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.shrink = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, outs)

    def forward(self, ids: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        mask = None if self.causal else there[:, None, None, :].bool()
        for i in range(len(self.ask)):
            q, k, v = self.ask[i](self.norms[2 * i](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
            x = x + self.join[i](y.transpose(1, 2).flatten(2))
            x = x + self.shrink[i](F.gelu(self.grow[i](self.norms[2 * i + 1](x))))
        return self.head(self.norms[-1](x))


class Texts(torch.utils.data.Dataset[torch.Tensor]):
    """Texts of random words and lengths, the longest ``most``."""

    def __init__(self, words: int, most: int) -> None:
        self.words, self.most = words, most

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(index)
        length = int(torch.randint(self.most // 6, self.most, (), generator=drawn))
        return torch.randint(1, self.words, (length,), generator=drawn)


def batched(texts: list[torch.Tensor], *, width: int | None) -> dict[str, torch.Tensor]:
    """Join texts to a batch of some width, or of that of the longest, as a multiple of 8."""
    width = width or -(-max(map(len, texts)) // 8) * 8
    ids = torch.stack([F.pad(text, (0, width - len(text))) for text in texts])
    there = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": there, "labels": torch.where(there > 0, ids, -100)}


def loaded(
    batch: int, words: int, width: int, most: int, bad: bool
) -> itertools.chain[dict[str, torch.Tensor]]:
    """Return batches of a loader, on and on."""
    loader = torch.utils.data.DataLoader(
        Texts(words, most),
        batch_size=batch,
        num_workers=2 if DEVICE == "cuda" else 0,
        pin_memory=DEVICE == "cuda",
        collate_fn=functools.partial(batched, width=width if bad else None),
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


@case(
    "reviews-padding",
    "reviews that a BERT classifies are padded to 512 words, though none of them has more than some 230",
    "padded to the longest of each batch",
    "padded-batches",
)
def _(bad: bool) -> Step:
    batch, width, words = sized(48, 3), sized(512, 64), sized(30_522, 50)
    model = Reader(words, width, sized(768, 16), sized(12, 2), 2, causal=False).to(DEVICE)
    turn = loaded(batch, words, width, sized(230, 30), bad)
    y = torch.randint(2, (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        one = {key: value.to(DEVICE, non_blocking=True) for key, value in next(turn).items()}
        return F.cross_entropy(model(one["input_ids"], one["attention_mask"])[:, 0].float(), y)

    return trained(model, loss)


@case(
    "answers-padding",
    "a GPT is tuned on questions and answers that are padded to 1024 words; the longest of a batch has some 580",
    "padded to the longest of each batch",
    "padded-batches",
)
def _(bad: bool) -> Step:
    batch, width, words = sized(12, 3), sized(1024, 64), sized(32_000, 50)
    model = Reader(words, width, sized(768, 16), sized(8, 2), words, causal=True).to(DEVICE)
    turn = loaded(batch, words, width, sized(600, 30), bad)

    def loss() -> torch.Tensor:
        one = {key: value.to(DEVICE, non_blocking=True) for key, value in next(turn).items()}
        logits = model(one["input_ids"], one["attention_mask"])
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), one["labels"][:, 1:].flatten())

    return trained(model, loss)
