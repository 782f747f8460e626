"""Steps on a GPU with a planted cost: what engineers at work lose time with, in models that no earlier set has.

``qwen-eager``, ``weather-latitudes``, ``densenet-layout``, ``llava-projector``, ``sam-prompts`` and ``albert-pageable``
are meant to be bound by the GPU, the others by the host. Three have more than one cost, of which the fix takes away the
one that wins most: ``qwen-eager``, ``densenet-layout`` and ``byol-views``; the rest stays. ``regnet-labels`` is an
inference loop, and the fix of ``albert-pageable`` is expected to win next to nothing. Every fix computes what its step
computes: the same numbers, up to the order of sums or, in ``weather-latitudes``, up to their precision.
"""

from __future__ import annotations

import copy
import itertools
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
from tests.predictions.set15_repositories import Layer


class VisionTransformer(nn.Module):
    """A vision transformer that gives back a vector for each patch."""

    def __init__(self, channels: int, grid: tuple[int, int], patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.randn(grid[0] * grid[1], width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.patches(x).flatten(2).transpose(1, 2) + self.places))


# -- kernels ------------------------------------------------------------------------------------------------


class QwenNorm(nn.Module):
    """The RMS norm as the published model has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of features by their place in the text."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class QwenLayer(nn.Module):
    """A decoder layer whose heads share keys and values in groups."""

    def __init__(self, width: int, heads: int, groups: int, inner: int, eager: bool) -> None:
        super().__init__()
        self.size, self.shared, self.eager = width // heads, heads // groups, eager
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.norms = nn.ModuleList(QwenNorm(width) for _ in range(2))
        self.q_norm, self.k_norm = QwenNorm(self.size), QwenNorm(self.size)

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        if not self.eager:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(2, 3) * self.size**-0.5  # cost: qwen-eager
        scores = scores + mask  # cost: qwen-eager
        share = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)  # cost: qwen-eager
        return share @ v  # cost: qwen-eager

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        y = self.norms[0](x)
        q = self.q_norm(self.q(y).unflatten(-1, (-1, self.size))).transpose(1, 2)
        k = self.k_norm(self.k(y).unflatten(-1, (-1, self.size))).transpose(1, 2)
        v = self.v(y).unflatten(-1, (-1, self.size)).transpose(1, 2).repeat_interleave(self.shared, 1)
        k = turned(k, cos, sin).repeat_interleave(self.shared, 1)
        y = self.attention(turned(q, cos, sin), k, v, mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Qwen(nn.Module):
    """A small language model, whose head is its embedding."""

    def __init__(
        self, words: int, length: int, width: int, heads: int, groups: int, depth: int, eager: bool
    ) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(words, width), QwenNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(
            QwenLayer(width, heads, groups, 11 * width // 4, eager) for _ in range(depth)
        )
        size = width // heads
        rates = 1e-4 ** (torch.arange(0, size, 2) / size)
        angles = (torch.arange(length)[:, None] * rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("mask", mask.to(BF16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        cos, sin = self.cos.to(BF16), self.sin.to(BF16)
        for layer in self.layers:
            x = layer(x, cos, sin, self.mask)
        return F.linear(self.norm(x), self.embedding.weight)


@case(
    "qwen-eager",
    "the attention of a Qwen is the published eager one, product, mask, float32 softmax and product, over 1024 words; "
    "its RMS norms are written out",
    "scaled_dot_product_attention(is_causal=True); the norms stay",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, length, words = sized(8, 2), sized(1024, 12), sized(32_000, 50)
    heads, groups = sized(16, 4), sized(4, 2)
    model = Qwen(words, length, sized(1024, 32), heads, groups, sized(12, 2), eager=bad).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()))


class Weather(nn.Module):
    """How the fields of the atmosphere will differ six hours later."""

    def __init__(self, fields: int, grid: tuple[int, int], patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.grid, self.patch = grid, patch
        self.body = VisionTransformer(fields, grid, patch, width, depth)
        self.head = nn.Linear(width, fields * patch**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.body(x)).unflatten(1, self.grid).permute(0, 3, 1, 2)
        return F.pixel_shuffle(y, self.patch)


@case(
    "weather-latitudes",
    "the means and spreads of 69 fields of the atmosphere and the weights of the latitudes are NumPy's float64, and so "
    "are the normalized fields, the forecast and the loss",
    "these as float32",
    "float64",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    batch, fields, patch = sized(8, 2), sized(69, 3), sized(8, 4)
    grid = (sized(32, 3), sized(64, 4))
    model = Weather(fields, grid, patch, sized(512, 16), sized(6, 1)).to(DEVICE)
    draw, dtype = np.random.default_rng(0), np.float64 if bad else np.float32
    degrees = np.linspace(-89.0, 89.0, grid[0] * patch)
    weights = np.cos(np.deg2rad(degrees))
    means, spreads = draw.normal(250, 30, (fields, 1, 1)), draw.uniform(5, 25, (fields, 1, 1))
    weight, mean, spread = (
        torch.from_numpy(one.astype(dtype)).to(DEVICE)  # cost: weather-latitudes
        for one in (weights[:, None] / weights.mean(), means, spreads)
    )
    now, later = torch.randn(2, batch, fields, grid[0] * patch, grid[1] * patch, device=DEVICE) * 15 + 250

    def loss() -> torch.Tensor:
        x, y = (now - mean) / spread, (later - mean) / spread  # cost: weather-latitudes
        wrong = x + model(x.float()) - y  # cost: weather-latitudes
        steep = wrong.diff(dim=-1)  # cost: weather-latitudes
        return (wrong.square() * weight).mean() + 0.1 * (
            steep.square() * weight
        ).mean()  # cost: weather-latitudes

    return trained(model, loss)


class DenseLayer(nn.Module):
    """Adds a few channels to those there are."""

    def __init__(self, a: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(a), nn.ReLU(inplace=True), nn.Conv2d(a, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(growth: int, depths: tuple[int, ...], kinds: int) -> nn.Sequential:
    """DenseNet-121, if it is as deep as that."""
    a = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, a, 7, 2, 3, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for i, depth in enumerate(depths):
        if i:
            layers += [nn.BatchNorm2d(a), nn.ReLU(inplace=True), nn.Conv2d(a, a // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            a //= 2
        for _ in range(depth):
            layers.append(DenseLayer(a, growth))
            a += growth
    layers += [nn.BatchNorm2d(a), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(a, kinds))


@case(
    "densenet-layout",
    "a DenseNet-121 and its images are channels first, under bf16 autocast; loss and accuracy are read in each step",
    "channels_last; both are still read",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(64, 4), sized(224, 64), sized(1000, 5)
    model = densenet(sized(32, 4), (6, 12, 24, 16) if ON_GPU else (2, 2), kinds).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    if not bad:
        model, x = channels_last(model), channels_last(x)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        out = model(x).float()  # cost: densenet-layout
        loss = F.cross_entropy(out, y)
        log["right"] = (out.argmax(1) == y).float().mean().item()
        return loss

    def read(loss: torch.Tensor) -> None:
        log["loss"] = loss.item()

    return trained(model, loss, optimizer=optimizer, after=read)


class LanguageModel(nn.Module):
    """A causal language model on vectors that are already there."""

    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.order = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64), causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor, last: int) -> torch.Tensor:
        """Return what follows each of the last places."""
        return self.head(self.norm(self.layers(x + self.order))[:, -last:])


@case(
    "llava-projector",
    "only the projector between an image encoder and a language model is given to the optimizer, but the weights of "
    "the language model require gradients, which are computed and never used",
    "requires_grad_(False) for the language model",
    "unneeded-gradients",
)
def _(bad: bool) -> Step:
    batch, side, patch, words = sized(16, 2), sized(14, 2), sized(16, 4), sized(32_000, 50)
    length, narrow, wide = sized(188, 6), sized(768, 8), sized(1024, 16)
    eye = VisionTransformer(3, (side, side), patch, narrow, sized(12, 1)).to(DEVICE).requires_grad_(False)
    language = LanguageModel(words, side**2 + length, wide, sized(12, 2)).to(DEVICE)
    language.requires_grad_(bad)  # cost: llava-projector
    projector = nn.Sequential(nn.Linear(narrow, wide), nn.GELU(), nn.Linear(wide, wide)).to(DEVICE)
    images = torch.randn(batch, 3, side * patch, side * patch, device=DEVICE)
    ids = torch.randint(words, (batch, length + 1), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            seen = eye(images)
        x = torch.cat([projector(seen).float(), language.words(ids[:, :-1])], 1)
        return F.cross_entropy(language(x, length).float().flatten(0, 1), ids[:, 1:].flatten())

    return trained(projector, loss)


class Looks(nn.Module):
    """Lets tokens look at others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        pairs = ((self.q, x), (self.k, at), (self.v, at))
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part, y in pairs)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TwoWay(nn.Module):
    """Clicks look at each other and at the image, and then the image at the clicks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.image, self.back = (Looks(width, heads) for _ in range(3))
        self.net = nn.Sequential(nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, clicks: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        clicks = self.norms[0](clicks + self.own(clicks, clicks))
        clicks = self.norms[1](clicks + self.image(clicks, image))
        clicks = self.norms[2](clicks + self.net(clicks))
        return clicks, self.norms[3](image + self.back(image, clicks))


class MaskDecoder(nn.Module):
    """Makes the mask of a thing out of an image that was seen, clicks and the mask before."""

    def __init__(self, seen: int, width: int, heads: int) -> None:
        super().__init__()
        self.neck, self.before = nn.Linear(seen, width), nn.Conv2d(1, width, 4, 4)
        self.clicks, self.mask = nn.Linear(3, width), nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.layers = nn.ModuleList(TwoWay(width, heads) for _ in range(2))
        self.larger = nn.Sequential(
            *(nn.ConvTranspose2d(width, width // 4, 2, 2), nn.GELU()),
            *(nn.ConvTranspose2d(width // 4, width // 8, 2, 2), nn.GELU()),
        )
        self.last = nn.Linear(width, width // 8)

    def forward(self, seen: torch.Tensor, clicks: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        image = self.neck(seen) + self.before(before).flatten(2).transpose(1, 2)
        x = torch.cat([self.mask.expand(len(seen), -1, -1), self.clicks(clicks)], 1)
        for layer in self.layers:
            x, image = layer(x, image)
        side = before.shape[-1] // 4
        large = self.larger(image.transpose(1, 2).unflatten(2, (side, side)))
        return torch.einsum("bc,bchw->bhw", self.last(x[:, 0]), large)[:, None].float()


class SegmentAnything(nn.Module):
    """An image encoder that stays as it is, and a decoder that learns."""

    def __init__(self, side: int, patch: int, wide: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.encoder = VisionTransformer(3, (side, side), patch, wide, depth).requires_grad_(False)
        self.decoder = MaskDecoder(wide, width, heads)

    @torch.no_grad()
    def seen(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the encoder sees."""
        return self.encoder((images - 0.45) / 0.23)

    def forward(self, images: torch.Tensor, clicks: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.seen(images), clicks, before)  # cost: sam-prompts


@case(
    "sam-prompts",
    "the decoder of a Segment Anything is trained on three rounds of clicks, and each calls the whole model, with its "
    "frozen encoder, on the same images",
    "the encoder once for the three rounds",
    "repeated-forward",
)
def _(bad: bool) -> Step:
    batch, side, patch, rounds = sized(8, 2), sized(32, 4), sized(16, 4), 3
    model = SegmentAnything(side, patch, sized(768, 16), sized(12, 1), sized(256, 16), sized(8, 2)).to(DEVICE)
    images = torch.rand(batch, 3, side * patch, side * patch, device=DEVICE)
    clicks = torch.rand(rounds, batch, 8, 3, device=DEVICE)
    wanted = (torch.rand(batch, 1, 4 * side, 4 * side, device=DEVICE) < 0.3).float()
    start = torch.zeros_like(wanted)
    optimizer = adamw(model.decoder)

    def loss() -> torch.Tensor:
        seen = None if bad else model.seen(images)
        before, total = start, torch.zeros((), device=DEVICE)
        for clicked in clicks:
            mask = model(images, clicked, before) if seen is None else model.decoder(seen, clicked, before)
            share = mask.sigmoid()
            overlap = (share * wanted).sum((1, 2, 3))
            dice = 1 - (2 * overlap + 1) / (share.sum((1, 2, 3)) + wanted.sum((1, 2, 3)) + 1)
            total = total + F.binary_cross_entropy_with_logits(mask, wanted) + dice.mean()
            before = mask.detach()
        return total

    return trained(model, loss, optimizer=optimizer)


class Albert(nn.Module):
    """A language model that uses one layer many times."""

    def __init__(self, words: int, length: int, narrow: int, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.words, self.kinds = nn.Embedding(words, narrow), nn.Embedding(2, narrow)
        self.order = nn.Parameter(torch.randn(length, narrow) * 0.02)
        self.first, self.into = nn.LayerNorm(narrow), nn.Linear(narrow, width)
        self.layer = Layer(width, max(1, width // 64))
        self.back, self.norm = nn.Linear(width, narrow), nn.LayerNorm(narrow)
        self.head, self.follows = nn.Linear(narrow, words), nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.into(self.first(self.words(ids) + self.kinds(kinds) + self.order))
        for _ in range(self.depth):
            x = self.layer(x)
        return self.head(self.norm(F.gelu(self.back(x)))).float(), self.follows(x[:, 0]).float()


@case(
    "albert-pageable",
    "four small arrays for an ALBERT are copied from pageable memory, one .to() after the other: next to nothing",
    "pinned memory and non_blocking=True",
    "pageable-memory",
    "blocking-copy",
    "small-copy",
    may_precede=("elementwise-chain", "unfused-norm", "launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(16, 2), sized(256, 8), sized(30_000, 50)
    model = Albert(words, length, sized(128, 8), sized(1536, 16), sized(12, 2)).to(DEVICE)
    draw = np.random.default_rng(0)

    def loss() -> torch.Tensor:
        ids, wanted = draw.integers(0, words, (2, batch, length))
        wanted[draw.random(wanted.shape) > 0.15] = -100
        kinds = np.repeat(np.arange(2), length // 2)[None].repeat(batch, 0)
        arrays = (ids, kinds, wanted, draw.integers(0, 2, batch))
        if bad:
            x, which, y, order = (torch.from_numpy(one).to(DEVICE) for one in arrays)  # cost: albert-pageable
        else:
            x, which, y, order = (sent(one) for one in arrays)
        out, follows = model(x, which)
        return F.cross_entropy(out.flatten(0, 1), y.flatten()) + F.cross_entropy(follows, order)

    return trained(model, loss)


# -- the host -----------------------------------------------------------------------------------------------


class FeedForwardTransformer(nn.Module):
    """A layer of a FastSpeech: attention, and convolutions instead of a network for each place."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Conv1d(width, inner, 9, 1, 4), nn.Conv1d(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.norms[0](x + self.out(y.transpose(1, 2).flatten(2)))
        y = self.narrow(F.relu(self.wide(x.transpose(1, 2)))).transpose(1, 2)
        return self.norms[1](x + y)


class Variance(nn.Module):
    """Guesses a figure for each phoneme."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, 1, 1) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(F.relu(conv(x.transpose(1, 2))).transpose(1, 2))
        return self.head(x).squeeze(-1).float()


class FastSpeech(nn.Module):
    """Speech from phonemes, without one sound waiting for the one before."""

    def __init__(self, phonemes: int, width: int, heads: int, depth: int, mels: int, longest: int) -> None:
        super().__init__()
        self.phonemes = nn.Embedding(phonemes, width)
        self.order = nn.Parameter(torch.randn(longest, width) * 0.02)
        self.encoder, self.decoder = (
            nn.Sequential(*(FeedForwardTransformer(width, heads, 4 * width) for _ in range(depth)))
            for _ in range(2)
        )
        self.lengths, self.pitch, self.energy = (Variance(width) for _ in range(3))
        self.tone, self.loud = nn.Linear(1, width), nn.Linear(1, width)
        self.head = nn.Linear(width, mels)

    def forward(
        self, ids: torch.Tensor, pitch: torch.Tensor, energy: torch.Tensor, longer: Any
    ) -> tuple[torch.Tensor, ...]:
        """Return the sounds and the guesses; a function repeats each phoneme as often as it lasts."""
        x = self.encoder(self.phonemes(ids) + self.order[: ids.shape[1]])
        guesses = self.lengths(x), self.pitch(x), self.energy(x)
        x = x + self.tone(pitch[..., None]) + self.loud(energy[..., None])
        x = longer(x)
        return self.head(self.decoder(x + self.order[: x.shape[1]])).float(), *guesses


@case(
    "fastspeech-lengths",
    "the length regulator of a FastSpeech repeats the phonemes sentence by sentence, by lengths that lie on the GPU",
    "one gather by indices that the host makes of the lengths, which come from it",
    "kernel-loop",
    "operator-loop",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, count, most, mels = sized(32, 3), sized(80, 5), sized(10, 4), sized(80, 4)
    longest = count * most
    model = FastSpeech(sized(300, 20), sized(256, 16), sized(2, 2), sized(4, 1), mels, longest).to(DEVICE)
    ids = torch.randint(sized(300, 20), (batch, count), device=DEVICE)
    pitch, energy = torch.randn(2, batch, count, device=DEVICE)
    sounds, draw = torch.randn(batch, longest, mels, device=DEVICE), np.random.default_rng(0)

    def loss() -> torch.Tensor:
        lasts = draw.integers(1, most, (batch, count))
        ends = lasts.sum(1)
        length, there = int(ends.max()), sent(lasts)

        def one_by_one(x: torch.Tensor) -> torch.Tensor:
            out = []
            for sentence, often in zip(x, there, strict=True):
                y = torch.repeat_interleave(sentence, often, dim=0)  # cost: fastspeech-lengths
                out.append(F.pad(y, (0, 0, 0, length - len(y))))  # cost: fastspeech-lengths
            return torch.stack(out)  # cost: fastspeech-lengths

        def at_once(x: torch.Tensor) -> torch.Tensor:
            which = np.full((batch, length), count)
            for row, often in zip(which, lasts, strict=True):
                row[: often.sum()] = np.repeat(np.arange(count), often)
            index = sent(which)[..., None].expand(-1, -1, x.shape[-1])
            return F.pad(x, (0, 0, 0, 1)).gather(1, index)

        out, *guesses = model(ids, pitch, energy, one_by_one if bad else at_once)
        inside = torch.arange(length, device=DEVICE) < there.sum(1)[:, None]
        wrong = ((out - sounds[:, :length]).abs().mean(-1) * inside).sum() / inside.sum()
        wanted = (torch.log(there + 1.0), pitch, energy)
        return wrong + sum(F.mse_loss(a, b) for a, b in zip(guesses, wanted, strict=True))

    return trained(model, loss)


class PyramidLayer(nn.Module):
    """A layer of a pyramid: each place looks at the image made smaller."""

    def __init__(self, width: int, heads: int, ratio: int, shrunk: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.q, self.kv, self.out = (nn.Linear(width, n * width) for n in (1, 2, 1))
        self.smaller = nn.Conv2d(width, width, shrunk, shrunk) if shrunk > 1 else None
        self.small_norm = nn.LayerNorm(width) if shrunk > 1 else None
        self.up, self.down = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)

    def forward(self, x: torch.Tensor, side: int) -> torch.Tensor:
        y = at = self.norms[0](x)
        if self.smaller is not None and self.small_norm is not None:
            small = self.smaller(y.transpose(1, 2).unflatten(2, (side, side)))
            at = self.small_norm(small.flatten(2).transpose(1, 2))
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(at).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Pyramid(nn.Module):
    """PVT: a vision transformer whose images get smaller and deeper."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], size: int, kinds: int) -> None:
        super().__init__()
        self.cuts, self.norms, self.stages = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.places, a = nn.ParameterList(), 3
        for i, (b, depth) in enumerate(zip(widths, depths, strict=True)):
            step, ratio, shrunk = 2 if i else 4, 8 if i < 2 else 4, 2 ** (len(widths) - 1 - i)
            size //= step
            self.cuts.append(nn.Conv2d(a, b, step, step))
            self.norms.append(nn.LayerNorm(b))
            self.places.append(nn.Parameter(torch.randn(size**2, b) * 0.02))
            layers = (PyramidLayer(b, max(1, b // 64), ratio, shrunk) for _ in range(depth))
            self.stages.append(nn.ModuleList(layers))
            a = b
        self.head = nn.Linear(a, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cut, norm, places, layers in zip(self.cuts, self.norms, self.places, self.stages, strict=True):
            x = cut(x)
            side = x.shape[-1]
            y = norm(x.flatten(2).transpose(1, 2)) + places
            for layer in layers:  # type: ignore[attr-defined]
                y = layer(y, side)
            x = y.transpose(1, 2).unflatten(2, (side, side))
        return self.head(y.mean(1))


@case(
    "pyramid-clipping",
    "clip_grad_norm_ is called for each of the 298 parameters of a pyramid vision transformer on its own",
    "all norms and all products by torch._foreach functions: the same clipping",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(32, 2), sized(224, 32), sized(100, 5)
    widths, depths = ((64, 128, 320, 512), (3, 4, 6, 3)) if ON_GPU else ((8, 16), (1, 1))
    model = Pyramid(widths, depths, size, kinds).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    params = list(model.parameters())

    def clip(_loss: torch.Tensor) -> None:
        if bad:
            for p in params:
                torch.nn.utils.clip_grad_norm_(p, 0.1)  # cost: pyramid-clipping
            return
        grads = [p.grad for p in params if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(grads))
        torch._foreach_mul_(grads, list((0.1 / (norms + 1e-6)).clamp(max=1.0).unbind()))

    return trained(model, lambda: F.cross_entropy(model(x).float(), y, label_smoothing=0.1), after=clip)


class Lines(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Lines of printed text, each time bent, brightened and made noisy."""

    def __init__(self, count: int, high: int, wide: int, letters: int, length: int) -> None:
        draw = np.random.default_rng(0)
        self.pages = draw.integers(0, 256, (64, high, wide), dtype=np.uint8)
        self.texts = draw.integers(1, letters, (64, length))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = np.random.default_rng(index)
        line = self.pages[index % 64].astype(np.float32) / 255
        wave = 2 * np.sin(np.arange(line.shape[1]) / draw.uniform(20, 60) + draw.uniform(0, 6))
        rows = (np.arange(len(line))[:, None] + np.rint(wave).astype(np.int64)) % len(line)
        line = np.take_along_axis(line, rows, 0)
        line = (line - line.mean()) * draw.uniform(0.7, 1.3) + draw.uniform(0.3, 0.7)
        line = np.clip(line + draw.normal(0, 0.05, line.shape), 0, 1)
        return torch.from_numpy(line.astype(np.float32))[None], torch.from_numpy(self.texts[index % 64])


class ConvRecurrent(nn.Module):
    """CRNN: what is written in a line, from its image, by convolutions and then two LSTMs."""

    def __init__(self, width: int, hidden: int, high: int, letters: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        a, pools = 1, ((2, 2), (2, 2), None, (2, 1), None, (2, 1))
        for b, pool in zip((1, 2, 4, 4, 8, 8), pools, strict=True):
            layers += [nn.Conv2d(a, b * width, 3, 1, 1, bias=False), nn.BatchNorm2d(b * width)]
            layers += [nn.ReLU(inplace=True), *([nn.MaxPool2d(pool, pool)] if pool else [])]
            a = b * width
        self.eye = nn.Sequential(*layers, nn.AvgPool2d((high // 16, 1)))
        self.reader = nn.LSTM(a, hidden, 2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, letters)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        x = self.eye(lines).squeeze(2).permute(2, 0, 1)
        return self.head(self.reader(x)[0]).float().log_softmax(-1)


@case(
    "crnn-loader",
    "a DataLoader without workers bends, brightens and distorts 64 lines of text, a fifth of a millisecond each",
    "eight workers that stay: the same lines",
    "loader-workers",
)
def _(bad: bool) -> Step:
    batch, high, wide, letters, length = sized(64, 3), 32, sized(320, 32), sized(96, 10), sized(24, 3)
    model = ConvRecurrent(sized(64, 4), sized(256, 8), high, letters).to(DEVICE)
    how: dict[str, Any] = {} if bad else {"num_workers": sized(8, 2), "persistent_workers": True}
    loader = torch.utils.data.DataLoader(
        Lines(sized(64 * 400, 60), high, wide, letters, length),
        batch,
        shuffle=True,
        drop_last=True,
        pin_memory=ON_GPU,
        generator=torch.Generator().manual_seed(0),
        **how,
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def loss() -> torch.Tensor:
        x, y = next(batches)  # cost: crnn-loader
        out = model(x.to(DEVICE, non_blocking=True))
        y = y.to(DEVICE, non_blocking=True)
        return F.ctc_loss(out, y, (len(out),) * batch, (length,) * batch, zero_infinity=True)

    return trained(model, loss)


class Shopper(nn.Module):
    """BERT4Rec: which things are missing in what somebody watched."""

    def __init__(self, things: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.things, self.order = nn.Embedding(things, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, things)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.things(ids) + self.order))).float()


def masked(
    history: list[int], chances: list[float], others: list[int], mask: int
) -> tuple[list[int], list[int]]:
    """Hide some things of a history; return it, and what was hidden."""
    tokens, labels = [], []
    for thing, chance, other in zip(history, chances, others, strict=True):
        if chance < 0.15:  # cost: bert4rec-masking
            chance /= 0.15  # cost: bert4rec-masking
            if chance < 0.8:  # cost: bert4rec-masking
                tokens.append(mask)  # cost: bert4rec-masking
            elif chance < 0.9:  # cost: bert4rec-masking
                tokens.append(other)  # cost: bert4rec-masking
            else:
                tokens.append(thing)  # cost: bert4rec-masking
            labels.append(thing)  # cost: bert4rec-masking
        else:
            tokens.append(thing)  # cost: bert4rec-masking
            labels.append(0)  # cost: bert4rec-masking
    return tokens, labels


@case(
    "bert4rec-masking",
    "128 histories of 200 things each are masked for a BERT4Rec thing by thing, in Python, and made tensors from lists",
    "NumPy masks the whole batch: the same tokens and labels",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, things, people = sized(128, 3), sized(200, 12), sized(3708, 40), sized(6000, 20)
    model = Shopper(things, length, sized(256, 16), sized(6, 1)).to(DEVICE)
    draw, mask = np.random.default_rng(0), things - 1
    histories = draw.integers(1, mask, (people, length))
    lists = histories.tolist()

    def batch_of(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chances, others = draw.random((batch, length)), draw.integers(1, mask, (batch, length))
        if bad:
            each = zip(which.tolist(), chances.tolist(), others.tolist(), strict=True)
            rows = [masked(lists[i], chance, other, mask) for i, chance, other in each]
            tokens = torch.LongTensor([row[0] for row in rows])  # cost: bert4rec-masking
            labels = torch.LongTensor([row[1] for row in rows])  # cost: bert4rec-masking
            return tokens.numpy(), labels.numpy()
        there, part = histories[which], chances / 0.15
        hidden = np.where(part < 0.8, mask, np.where(part < 0.9, others, there))
        return np.where(chances < 0.15, hidden, there), np.where(chances < 0.15, there, 0)

    def loss() -> torch.Tensor:
        tokens, labels = (sent(one) for one in batch_of(draw.integers(0, people, batch)))
        return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=0)

    return trained(model, loss)


class Squeezed(nn.Module):
    """A block of a RegNet: a bottleneck of groups, whose channels are weighed."""

    def __init__(self, a: int, b: int, group: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        conv = nn.Conv2d(b, b, 3, stride, 1, groups=b // group, bias=False)
        self.two = nn.Sequential(conv, nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        inner = max(1, a // 4)
        self.weigh = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(b, inner, 1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, b, 1), nn.Sigmoid()),
        )
        self.three = nn.Sequential(nn.Conv2d(b, b, 1, bias=False), nn.BatchNorm2d(b))
        self.side: nn.Module = nn.Identity()
        if stride > 1 or a != b:
            self.side = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(self.one(x))
        return F.relu(self.three(y * self.weigh(y)) + self.side(x))


def regnet(widths: tuple[int, ...], depths: tuple[int, ...], group: int, kinds: int) -> nn.Sequential:
    """RegNetY, of the widths and depths given."""
    a = sized(32, 4)
    layers: list[nn.Module] = [nn.Conv2d(3, a, 3, 2, 1, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True)]
    for b, depth in zip(widths, depths, strict=True):
        for i in range(depth):
            layers.append(Squeezed(a, b, group, 1 if i else 2))
            a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, kinds))


@case(
    "regnet-labels",
    "images are labelled by a RegNet, and the five likeliest labels of each of 64 images are looked for and read image "
    "by image",
    "one topk for all images, read at once: the same labels",
    "item-each-step",
    "array-read",
    "waits-in-turn",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(64, 3), sized(224, 32), sized(1000, 8)
    widths, depths = ((72, 216, 576, 1512), (2, 5, 13, 1)) if ON_GPU else ((8, 16), (1, 1))
    model = channels_last(regnet(widths, depths, sized(24, 4), kinds).to(DEVICE)).eval()
    turn = itertools.cycle(
        [channels_last(torch.randn(batch, 3, size, size, device=DEVICE)) for _ in range(4)]
    )
    names = [f"kind {i}" for i in range(kinds)]

    @torch.inference_mode()
    def step() -> list[list[tuple[str, float]]]:
        with torch.autocast(DEVICE, dtype=BF16):
            out = model(next(turn))
        share = out.float().softmax(-1)
        if bad:
            found = []
            for one in share:
                values, places = one.topk(5)  # cost: regnet-labels
                found.append((values.tolist(), places.tolist()))  # cost: regnet-labels
        else:
            values, places = share.topk(5)
            found = list(zip(values.tolist(), places.tolist(), strict=True))
        return [[(names[i], p) for p, i in zip(*one, strict=True)] for one in found]

    return step


class Plain(nn.Module):
    """A block of a ResNet-18."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)),
        )
        self.side: nn.Module = nn.Identity()
        if stride > 1:
            self.side = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def projected(a: int, inner: int, b: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(
        nn.Linear(a, inner), nn.BatchNorm1d(inner), nn.ReLU(inplace=True), nn.Linear(inner, b)
    )


def online(width: int, inner: int, far: int) -> nn.Sequential:
    """Return a ResNet-18 with a projector behind it."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    a = width
    for i in range(4):
        b = width * 2**i
        layers += [Plain(a, b, 2 if i else 1), Plain(b, b, 1)]
        a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), projected(a, inner, far))


def viewed(images: torch.Tensor, x: Any, y: Any, how: Any) -> torch.Tensor:
    """Cut, mirror, brighten and contrast images; how is either figures for one image or tensors for all."""
    wide, high, right, down, bright, contrast = how
    grid = torch.stack([x * wide + right, y * high + down], -1)
    seen = F.grid_sample(images, grid, align_corners=False)
    mean = seen.mean((1, 2, 3), keepdim=True)
    return (seen - mean) * contrast + mean * bright


@case(
    "byol-views",
    "two views of each of 64 images are made for a BYOL image by image, and its target follows parameter by parameter",
    "views of all images at once: the same; the target stays as it is",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, far, inner = sized(64, 4), sized(160, 32), sized(256, 8), sized(1024, 16)
    student = online(sized(64, 4), inner, far)
    model = channels_last(nn.ModuleList([student, projected(far, inner, far)]).to(DEVICE))
    target = copy.deepcopy(student).requires_grad_(False)
    images, draw = torch.rand(batch, 3, size, size, device=DEVICE), np.random.default_rng(0)
    line = torch.linspace(-1, 1, size, device=DEVICE)
    y, x = (one[None] for one in torch.meshgrid(line, line, indexing="ij"))

    def views() -> torch.Tensor:
        zoom, mirror = draw.uniform(0.5, 1, batch), draw.choice([-1.0, 1.0], batch)
        shifts, lights = draw.uniform(-1, 1, (2, batch)) * (1 - zoom), draw.uniform(0.6, 1.4, (2, batch))
        how = np.stack([zoom * mirror, zoom, *shifts, *lights]).astype(np.float32)
        if bad:
            out = []
            for image, figures in zip(images, how.T.tolist(), strict=True):
                out.append(viewed(image[None], x, y, figures))  # cost: byol-views
            return channels_last(torch.cat(out))  # cost: byol-views
        flat, light = sent(how[:4])[..., None, None], sent(how[4:])[..., None, None, None]
        return channels_last(viewed(images, x, y, (*flat, *light)))

    def loss() -> torch.Tensor:
        a, b = views(), views()
        with torch.no_grad():
            wanted = target(b).float(), target(a).float()
        guessed = (model[1](model[0](one)).float() for one in (a, b))
        pairs = zip(guessed, wanted, strict=True)
        return sum(2 - 2 * F.cosine_similarity(p, z, dim=-1).mean() for p, z in pairs)  # type: ignore[return-value]

    @torch.no_grad()
    def follow() -> None:
        for old, new in zip(target.parameters(), student.parameters(), strict=True):
            old.mul_(0.996).add_(new, alpha=0.004)

    return trained(model, loss, last=follow)
