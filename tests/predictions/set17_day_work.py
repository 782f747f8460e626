"""Steps on a GPU with a planted cost: the everyday waste of training code, in models that no earlier set has.

``ast-attention``, ``cogview-norms``, ``roberta-head``, ``controlnet-frozen`` and ``inception-item`` are meant to be
bound by the GPU, the others by the host. Two have more than one cost, of which the fix takes away the one that wins
most: ``roberta-head`` and ``shakespeare-heads``; the rest stays. ``esrgan-tiles`` is an inference loop, and the fix of
``inception-item`` is expected to win next to nothing. Every fix computes what its step computes: the same numbers, up
to the order of sums or, in ``roberta-head``, up to their precision.
"""

from __future__ import annotations

import copy
import itertools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import (
    BF16,
    DEVICE,
    ON_GPU,
    Step,
    adamw,
    case,
    channels_last,
    sent,
    sized,
    trained,
)

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    """A transformer layer with its norms first."""

    def __init__(self, width: int, heads: int, attend: Attend = F.scaled_dot_product_attention) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, **how: Any) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v, **how).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


# -- bound by the GPU ---------------------------------------------------------------------------------------


def timm_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as older vision transformers have it."""
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5  # cost: ast-attention
    share = scores.softmax(dim=-1)  # cost: ast-attention
    return share @ v  # cost: ast-attention


class AudioSpectrogram(nn.Module):
    """AST: which sounds are in ten seconds, from overlapping patches of their spectrogram."""

    def __init__(self, tokens: int, width: int, depth: int, kinds: int, attend: Attend) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 16, 10)
        self.places = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, max(2, width // 64), attend) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1))


@case(
    "ast-attention",
    "an audio spectrogram transformer has the attention of older code, product, softmax and product, over 1200 patches",
    "scaled_dot_product_attention",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, high, long, kinds = sized(8, 2), sized(12, 2), sized(100, 5), sized(527, 6)
    attend = timm_attention if bad else F.scaled_dot_product_attention
    model = AudioSpectrogram(high * long, sized(768, 16), sized(12, 2), kinds, attend).to(DEVICE)
    x = torch.randn(batch, 1, 10 * high + 6, 10 * long + 6, device=DEVICE)
    y = (torch.rand(batch, kinds, device=DEVICE) < 0.01).float()
    return trained(model, lambda: F.binary_cross_entropy_with_logits(model(x).float(), y))


class OwnLayerNorm(nn.Module):
    """A layer norm in float32, operator by operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()  # cost: cogview-norms
        mean = x.mean(-1, keepdim=True)  # cost: cogview-norms
        variance = (x - mean).pow(2).mean(-1, keepdim=True)  # cost: cogview-norms
        x = (x - mean) / torch.sqrt(variance + 1e-5)  # cost: cogview-norms
        return self.weight * x + self.bias  # cost: cogview-norms


class SandwichLayer(nn.Module):
    """A decoder layer of a CogView, with norms before and after each of its parts."""

    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(norm(width) for _ in range(4))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.norms[1](self.out(y.transpose(1, 2).flatten(2)))
        return x + self.norms[3](self.down(F.gelu(self.up(self.norms[2](x)))))


class CogView(nn.Module):
    """Writes the codes of an image after a text."""

    def __init__(self, words: int, length: int, width: int, depth: int, norm: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(SandwichLayer(width, max(2, width // 64), norm) for _ in range(depth)))
        self.norm, self.head = norm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(ids) + self.places)))


@case(
    "cogview-norms",
    "the four layer norms of each layer of a CogView are written out in float32",
    "nn.LayerNorm",
    "unfused-norm",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    batch, length, words = sized(8, 2), sized(1088, 12), sized(16_384, 40)
    norm = OwnLayerNorm if bad else nn.LayerNorm
    model = CogView(words, length, sized(1024, 32), sized(10, 2), norm).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()))


class Roberta(nn.Module):
    """RoBERTa: which words of a text are hidden."""

    def __init__(self, words: int, length: int, width: int, depth: int, careful: bool) -> None:
        super().__init__()
        self.careful = careful
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, max(2, width // 64)) for _ in range(depth)))
        self.dense, self.norm, self.head = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, words),
        )

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(F.gelu(self.dense(x))))  # cost: roberta-head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.words(ids) + self.places)
        if not self.careful:
            return self.scores(x).float()
        with torch.autocast(DEVICE, enabled=False):
            return self.scores(x.float())  # cost: roberta-head


@case(
    "roberta-head",
    "the head of a RoBERTa, 50 304 words wide, is kept out of autocast, in full float32; AdamW is as it is by default",
    "the head under bf16 autocast too; AdamW stays",
    "fp32-matmul",
    "mixed-precision",
)
def _(bad: bool) -> Step:
    batch, length, words = sized(16, 2), sized(256, 12), sized(50_304, 48)
    model = Roberta(words, length, sized(768, 32), sized(12, 2), bad).to(DEVICE)
    x = torch.randint(words, (batch, length), device=DEVICE)
    y = torch.where(torch.rand(batch, length, device=DEVICE) < 0.15, x, -100)
    return trained(
        model,
        lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()),
        optimizer=adamw(model, fused=False, foreach=True),
    )


class TimedBlock(nn.Module):
    """A residual block that knows how noisy the image is."""

    def __init__(self, a: int, b: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, a), nn.GroupNorm(8, b)])
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
        self.time = nn.Linear(time, b)
        self.side: nn.Module = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(t)[..., None, None]
        return self.side(x) + self.convs[1](F.silu(self.norms[1](y)))


class Contracting(nn.Module):
    """The way down of a U-Net; it returns what each block gives."""

    def __init__(self, widths: tuple[int, ...], time: int) -> None:
        super().__init__()
        self.first, a = nn.Conv2d(4, widths[0], 3, padding=1), widths[0]
        self.blocks = nn.ModuleList()
        for b in widths:
            self.blocks += [TimedBlock(a, b, time), TimedBlock(b, b, time)]
            a = b

    def forward(
        self, x: torch.Tensor, t: torch.Tensor, hint: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        x, out = self.first(x), []
        x = x if hint is None else x + hint
        for i, block in enumerate(self.blocks):
            x = block(F.avg_pool2d(x, 2) if i and i % 2 == 0 else x, t)
            out.append(x)
        return out


class Expanding(nn.Module):
    """The way up."""

    def __init__(self, widths: tuple[int, ...], time: int) -> None:
        super().__init__()
        a, self.blocks = widths[-1], nn.ModuleList()
        for b in widths[::-1]:
            self.blocks += [TimedBlock(a + b, b, time), TimedBlock(2 * b, b, time)]
            a = b
        self.last = nn.Conv2d(a, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        for i, (block, other) in enumerate(zip(self.blocks, kept[::-1], strict=True)):
            x = F.interpolate(x, scale_factor=2) if i and i % 2 == 0 else x
            x = block(torch.cat([x, other], 1), t)
        return self.last(x)


@case(
    "controlnet-frozen",
    "the U-Net that a ControlNet steers isn't trained, but its parameters still require gradients",
    "requires_grad_(False)",
    "unneeded-gradients",
    may_precede=("channels-last",),
)
def _(bad: bool) -> Step:
    batch, size, time = sized(16, 2), sized(64, 8), sized(512, 8)
    widths = (192, 384, 576) if ON_GPU else (8, 16)
    down, up = Contracting(widths, time).to(DEVICE), Expanding(widths, time).to(DEVICE)
    control = nn.ModuleDict(
        {
            "hint": nn.Conv2d(3, widths[0], 3, padding=1),
            "down": copy.deepcopy(down),
            "links": nn.ModuleList(nn.Conv2d(b, b, 1) for b in widths for _ in range(2)),
        }
    ).to(DEVICE)
    if not bad:
        down.requires_grad_(False)
        up.requires_grad_(False)
    x, noise = torch.randn(2, batch, 4, size, size, device=DEVICE)
    edges = torch.rand(batch, 3, size, size, device=DEVICE)
    t = torch.randn(batch, time, device=DEVICE)

    def loss() -> torch.Tensor:
        kept = down(x, t)  # cost: controlnet-frozen
        steered = control["down"](x, t, control["hint"](edges))
        links = zip(kept, control["links"], steered, strict=True)
        kept = [one + link(more) for one, link, more in links]
        return F.mse_loss(up(kept[-1], t, kept).float(), noise)  # cost: controlnet-frozen

    return trained(control, loss)


def unit(a: int, b: int, kernel: tuple[int, int] = (1, 1), stride: int = 1) -> nn.Sequential:
    """Return a convolution with its norm."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    conv = nn.Conv2d(a, b, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Branches(nn.Module):
    """Parallel ways through a block of an Inception, whose channels are joined."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def inception(width: int, depths: tuple[int, int, int], kinds: int) -> nn.Sequential:
    """Inception-v3 in outline: blocks with kernels of 3 and 5, then of 7 by 1, then of 3 by 1."""
    stem = [unit(3, width, (3, 3), 2), unit(width, 2 * width, (3, 3)), nn.MaxPool2d(3, 2, 1)]
    layers: list[nn.Module] = [*stem, unit(2 * width, 6 * width, (3, 3)), nn.MaxPool2d(3, 2, 1)]
    a = 6 * width
    for stage, (depth, n) in enumerate(zip(depths, (9, 24, 60), strict=True)):
        wide = n * width
        b = wide // 4
        for _ in range(depth):
            pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(a, b))
            if stage == 0:
                short = nn.Sequential(unit(a, b), unit(b, b, (5, 5)))
                long = nn.Sequential(unit(a, b), unit(b, b, (3, 3)), unit(b, b, (3, 3)))
            else:
                k = 7 if stage == 1 else 3
                short = nn.Sequential(unit(a, b), unit(b, b, (1, k)), unit(b, b, (k, 1)))
                long = nn.Sequential(unit(a, b), *(unit(b, b, s) for s in ((k, 1), (1, k)) * 2))
            layers.append(Branches(unit(a, b), short, long, pooled))
            a = 4 * b
        if stage < 2:
            narrow = nn.Sequential(unit(a, b), unit(b, b, (3, 3), 2))
            layers.append(Branches(nn.MaxPool2d(3, 2, 1), narrow))
            a += b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, kinds))


@case(
    "inception-item",
    "the loss of an Inception with 128 large images is read in each step, while the GPU has work for the whole of it",
    "kept on the GPU: next to nothing is won",
    "item-each-step",
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(128, 3), sized(299, 64), sized(1000, 5)
    model = channels_last(inception(sized(32, 4), (3, 4, 2) if ON_GPU else (1, 1, 1), kinds).to(DEVICE))
    x = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    y = torch.randint(kinds, (batch,), device=DEVICE)
    total = torch.zeros((), device=DEVICE)
    log = {"loss": 0.0}

    def note(loss: torch.Tensor) -> None:
        if bad:
            log["loss"] += loss.item()  # cost: inception-item
        else:
            total.add_(loss.detach())

    return trained(model, lambda: F.cross_entropy(model(x).float(), y), after=note)


# -- bound by the host --------------------------------------------------------------------------------------


class Head(nn.Module):
    """One head of attention, as lectures have it."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, tril: torch.Tensor) -> torch.Tensor:
        k, q, v = self.key(x), self.query(x), self.value(x)  # cost: shakespeare-heads
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5  # cost: shakespeare-heads
        scores = scores.masked_fill(tril == 0, float("-inf"))  # cost: shakespeare-heads
        return scores.softmax(-1) @ v  # cost: shakespeare-heads


class Heads(nn.Module):
    """All heads, one after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))

    def forward(self, x: torch.Tensor, tril: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x, tril) for head in self.heads], -1)  # cost: shakespeare-heads


class Together(nn.Module):
    """The same heads in one product."""

    def __init__(self, other: Heads) -> None:
        super().__init__()
        self.count = len(other.heads)
        parts = [getattr(head, name).weight for name in ("query", "key", "value") for head in other.heads]
        self.weight = nn.Parameter(torch.cat(parts).detach())

    def forward(self, x: torch.Tensor, tril: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(x, self.weight).unflatten(-1, (3, self.count, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(tril == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class LectureLayer(nn.Module):
    """A layer of the lecture's model."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads: nn.Module = Heads(width, heads)
        self.out, self.norms = nn.Linear(width, width), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, tril: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.heads(self.norms[0](x), tril))
        return x + self.net(self.norms[1](x))


class Lecture(nn.Module):
    """Writes like Shakespeare, letter by letter."""

    def __init__(self, letters: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(LectureLayer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer("tril", torch.ones(length, length).tril())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.letters(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x, self.tril)
        return self.head(self.norm(x))


@case(
    "shakespeare-heads",
    "each of the six heads of each layer of a small GPT has layers of its own and is a turn of a loop in Python; "
    "attention is written out",
    "the weights of all heads in one parameter, all heads at once; attention stays written out",
    "operator-loop",
    "kernel-loop",
    may_precede=("launch-bound", "uncompiled-step", "unfused-attention"),
)
def _(bad: bool) -> Step:
    batch, length, letters = sized(32, 2), sized(256, 12), sized(65, 20)
    model = Lecture(letters, length, sized(384, 24), sized(6, 3), sized(6, 2))
    if not bad:
        for layer in model.layers:
            layer.heads = Together(layer.heads)
    model = model.to(DEVICE)
    x = torch.randint(letters, (batch, length + 1), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()))


class Subwords(nn.Module):
    """What a text is about; a word is the mean of its pieces, as in fastText."""

    def __init__(self, buckets: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.pieces = nn.EmbeddingBag(buckets, width, mode="mean")
        self.layers = nn.Sequential(*(Layer(width, max(2, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, ids: torch.Tensor, starts: torch.Tensor, texts: int) -> torch.Tensor:
        x = self.pieces(ids, starts).unflatten(0, (texts, -1))
        return self.head(self.norm(self.layers(x)).mean(1))


def pieces(word: str, buckets: int) -> list[int]:
    """Return the buckets of a word and of its pieces of three to six letters."""
    marked = f"<{word}>"  # cost: fasttext-ngrams
    out = [zlib.crc32(marked.encode()) % buckets]  # cost: fasttext-ngrams
    for n in range(3, 7):  # cost: fasttext-ngrams
        grams = [marked[i : i + n] for i in range(len(marked) - n + 1)]  # cost: fasttext-ngrams
        out += [zlib.crc32(gram.encode()) % buckets for gram in grams]  # cost: fasttext-ngrams
    return out


@case(
    "fasttext-ngrams",
    "the 1536 words of a batch are cut into pieces, which are hashed, in Python in each step",
    "the pieces of each word looked up in a table made before training: the same pieces",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, buckets, kinds = sized(64, 3), sized(24, 4), sized(100_000, 50), sized(20, 4)
    model = Subwords(buckets, sized(256, 16), sized(6, 1), kinds).to(DEVICE)
    draw, count = np.random.default_rng(0), sized(8000, 30)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    known = ["".join(draw.choice(letters, draw.integers(3, 13))) for _ in range(count)]
    texts = [[known[i] for i in draw.integers(0, count, length)] for _ in range(sized(4000, 9))]
    y = torch.randint(kinds, (batch,), device=DEVICE)
    table = {} if bad else {word: np.array(pieces(word, buckets)) for word in known}

    def loss() -> torch.Tensor:
        chosen = [word for i in draw.integers(0, len(texts), batch).tolist() for word in texts[i]]
        if bad:
            ids: list[int] = []
            starts = []
            for word in chosen:
                starts.append(len(ids))  # cost: fasttext-ngrams
                ids.extend(pieces(word, buckets))  # cost: fasttext-ngrams
            flat, begins = np.array(ids), np.array(starts)  # cost: fasttext-ngrams
        else:
            found = [table[word] for word in chosen]
            flat, begins = np.concatenate(found), np.cumsum([0, *map(len, found[:-1])])
        return F.cross_entropy(model(sent(flat), sent(begins), batch).float(), y)

    return trained(model, loss)


class SmallBlock(nn.Module):
    """A block of a ResNet for small images, whose shortcut has no parameters."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.more, stride = b - a, 1 if a == b else 2
        self.convs = nn.ModuleList(
            [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.convs[0](x)))
        y = self.norms[1](self.convs[1](y))
        if self.more:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))
        return F.relu(y + x)


def small_resnet(width: int, depth: int, kinds: int) -> nn.Sequential:
    """ResNet-56, if there are nine blocks of each width."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    a = width
    for b in (width, 2 * width, 4 * width):
        for _ in range(depth):
            layers.append(SmallBlock(a, b))
            a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, kinds))


@case(
    "resnet56-penalty",
    "elastic weight consolidation: how far each parameter of a ResNet-56 has moved since the last task is added to the "
    "loss parameter by parameter",
    "the gradient of the penalty added to all gradients, and its value, by torch._foreach functions: the same",
    "operator-loop",
    "kernel-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, kinds, weight = sized(128, 4), sized(32, 8), sized(100, 5), 10.0
    model = small_resnet(sized(16, 4), sized(9, 1), kinds).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    params = list(model.parameters())
    before = [p.detach() + 0.01 * torch.randn_like(p) for p in params]
    fisher = [torch.rand_like(p) for p in params]
    roots = [one.sqrt() for one in fisher]
    log: dict[str, torch.Tensor] = {}

    def loss() -> torch.Tensor:
        total = F.cross_entropy(model(x).float(), y)
        if bad:
            penalty = torch.zeros((), device=DEVICE)
            for p, old, matters in zip(params, before, fisher, strict=True):
                penalty = penalty + (matters * (p - old) ** 2).sum()  # cost: resnet56-penalty
            total = total + weight / 2 * penalty
        return total

    @torch.no_grad()
    def penalize(total: torch.Tensor) -> None:
        log["loss"] = total.detach()
        if not bad:
            moved = torch._foreach_sub(params, before)
            norms = torch._foreach_norm(torch._foreach_mul(moved, roots))
            log["loss"] = log["loss"] + weight / 2 * torch.stack(norms).square().sum()
            torch._foreach_mul_(moved, fisher)
            torch._foreach_add_([p.grad for p in params], moved, alpha=weight)

    return trained(model, loss, after=penalize)


class DenseFive(nn.Module):
    """Five convolutions, each of which sees what all before it saw."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        outs = (growth, growth, growth, growth, width)
        self.convs = nn.ModuleList(nn.Conv2d(width + i * growth, b, 3, 1, 1) for i, b in enumerate(outs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = [x]
        for conv in self.convs[:-1]:
            seen.append(F.leaky_relu(conv(torch.cat(seen, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(seen, 1))


class Upscaler(nn.Module):
    """The generator of an ESRGAN: images four times as large."""

    def __init__(self, width: int, growth: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.body = nn.Sequential(*(DenseFive(width, growth) for _ in range(3 * depth)))
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + self.body(x)
        for conv in self.ups:
            x = F.leaky_relu(conv(F.interpolate(x, scale_factor=2)), 0.2)
        return self.last(x)


@case(
    "esrgan-tiles",
    "an image is enlarged by an ESRGAN in nine tiles; each is copied to the host as soon as it is asked for",
    "the tiles are put together on the GPU and copied once, into pinned memory: the same image",
    "array-read",
    "blocking-copy",
    "pageable-memory",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    size, rows = sized(192, 8), sized(3, 2)
    model = channels_last(Upscaler(sized(64, 8), sized(32, 4), sized(4, 1)).to(DEVICE).to(BF16)).eval()
    big = 4 * size
    images = [torch.rand(1, 3, rows * size, rows * size, device=DEVICE, dtype=BF16) for _ in range(3)]
    turn = itertools.cycle(images)
    canvas = torch.empty(3, rows * big, rows * big, device=DEVICE)
    result = torch.empty(canvas.shape, pin_memory=ON_GPU)

    @torch.inference_mode()
    def step() -> np.ndarray:
        image = next(turn)
        for i, j in itertools.product(range(rows), repeat=2):
            tile = image[..., i * size : (i + 1) * size, j * size : (j + 1) * size]
            out = model(channels_last(tile.contiguous()))[0].float().clamp(0, 1).contiguous()
            place = (slice(None), slice(i * big, (i + 1) * big), slice(j * big, (j + 1) * big))
            if bad:
                result[place] = out.cpu()  # cost: esrgan-tiles
            else:
                canvas[place] = out
        if not bad:
            result.copy_(canvas)
        return result.numpy()

    return step


class Permuted(nn.Module):
    """XLNet without its second stream: words are guessed in an order of their own for each text."""

    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, max(2, width // 64)) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x, attn_mask=mask)
        return self.head(self.norm(x))


@case(
    "xlnet-masks",
    "which word of an XLNet sees which is a float32 mask for each of eight texts of 1024 words, made on the CPU and "
    "copied in each step",
    "the orders are sent, and the masks are made of them on the GPU: the same masks",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
)
def _(bad: bool) -> Step:
    batch, length, words = sized(8, 2), sized(1024, 16), sized(16_384, 40)
    model = Permuted(words, length, sized(768, 32), sized(8, 2)).to(DEVICE)
    draw = np.random.default_rng(0)
    x = torch.randint(words, (batch, length), device=DEVICE)
    y = x.roll(-1, 1).flatten()

    def masks() -> torch.Tensor:
        orders = np.stack([draw.permutation(length) for _ in range(batch)])
        if bad:
            mask = torch.zeros(batch, 1, length, length)  # cost: xlnet-masks
            for i, order in enumerate(torch.from_numpy(orders)):
                later = order[:, None] < order[None]  # cost: xlnet-masks
                mask[i, 0].masked_fill_(later, -math.inf)  # cost: xlnet-masks
            return mask.to(DEVICE).to(BF16)  # cost: xlnet-masks
        order = sent(orders)
        mask = torch.zeros(batch, 1, length, length, device=DEVICE, dtype=BF16)
        return mask.masked_fill_((order[:, :, None] < order[:, None])[:, None], -math.inf)

    return trained(model, lambda: F.cross_entropy(model(x, masks()).float().flatten(0, 1), y))
