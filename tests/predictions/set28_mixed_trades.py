"""Steps on a GPU with a planted cost: a mixture of model families, each with one mistake that people make at work.

``sam-decomposed``, ``centernet-tf32``, ``semfpn-layout``, ``gemma-norms``, ``clip-foreach``, ``wavenet-gates``,
``mamba-float32`` and ``dlrm-figures`` are meant to be bound by the GPU, the others by the host or by its waits.
``perceiver-clipping`` has a second, smaller cost, which its fix leaves as it is. Next to nothing can be won in
``dlrm-figures``. ``dino-pageable`` is a loop of inference. Every fix computes what its step computes: the same numbers,
up to the order of sums or, in ``centernet-tf32`` and ``mamba-float32``, up to their precision; ``convnext-decode`` and
``t5-spans`` have the same data in both variants. The rules that are named are those that would be right.
"""

from __future__ import annotations

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
    Bottleneck,
    Step,
    adamw,
    case,
    channels_last,
    sized,
    trained,
)
from tests.predictions.set3_devices import jax_case
from tests.predictions.set19_plain_steps import Text, ViT, layers
from tests.predictions.set27_plain_models import conv


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return queries, keys or values as batch, head, place and width."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: torch.Tensor) -> torch.Tensor:
    """Return what heads have found, side by side."""
    return x.transpose(1, 2).flatten(2)


# -- bound by the GPU ---------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """A layer of the image encoder of a Segment Anything, whose scores depend on rows and columns apart."""

    apart: torch.Tensor

    def __init__(self, width: int, side: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.side, self.written_out = max(2, width // 64), side, written_out
        each = width // self.heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.rows = nn.Parameter(torch.randn(2 * side - 1, each) * 0.02)
        self.columns = nn.Parameter(torch.randn(2 * side - 1, each) * 0.02)
        at = torch.arange(side)
        self.register_buffer("apart", at[:, None] - at + side - 1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        side = (self.side, self.side)
        grid = q.unflatten(2, side)
        by_row = torch.einsum("bhyxd,yzd->bhyxz", grid, self.rows[self.apart])
        by_column = torch.einsum("bhyxd,xzd->bhyxz", grid, self.columns[self.apart])
        if self.written_out:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # cost: sam-decomposed
            scores = scores.unflatten(2, side).unflatten(-1, side)
            scores = scores + by_row[..., None] + by_column[..., None, :]  # cost: sam-decomposed
            share = torch.softmax(scores.flatten(4).flatten(2, 3), -1)  # cost: sam-decomposed
            return share.to(v.dtype) @ v  # cost: sam-decomposed
        bias = (by_row[..., None] + by_column[..., None, :]).flatten(4).flatten(2, 3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(joined(self.attend(q, k, v)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@case(
    "sam-decomposed",
    "the attention of a Segment Anything's image encoder is written out: product, bias of rows and columns, softmax, "
    "product",
    "scaled_dot_product_attention with the bias as attn_mask",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, side, patch, width = sized(8, 2), sized(32, 4), sized(16, 2), sized(768, 16)
    body = nn.Sequential(*(EncoderLayer(width, side, written_out=bad) for _ in range(sized(12, 2))))
    model = nn.ModuleDict(
        {"patches": nn.Conv2d(3, width, patch, patch), "body": body, "neck": nn.Linear(width, sized(256, 8))}
    ).to(DEVICE)
    images = torch.randn(batch, 3, side * patch, side * patch, device=DEVICE)
    of_teacher = torch.randn(batch, side * side, sized(256, 8), device=DEVICE)

    def loss() -> torch.Tensor:
        x = model["patches"](images).flatten(2).transpose(1, 2)
        return F.mse_loss(model["neck"](model["body"](x)).float(), of_teacher)

    return trained(model, loss)


class Backbone(nn.Module):
    """The stem and the stages of a ResNet of bottlenecks."""

    def __init__(self, width: int, counts: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages, self.widths = nn.ModuleList(), []
        a = width
        for stage, count in enumerate(counts):
            b = width << stage
            blocks = []
            for i in range(count):
                blocks.append(Bottleneck(a, b, 2 if stage and i == 0 else 1))
                a = 4 * b
            self.stages.append(nn.Sequential(*blocks))
            self.widths.append(a)


class CenterNet(nn.Module):
    """A detector that says where the middles of things are, and how large these."""

    def __init__(self, width: int, counts: tuple[int, ...], deep: int, classes: int) -> None:
        super().__init__()
        self.body = Backbone(width, counts)
        ups: list[nn.Module] = []
        for a in (self.body.widths[-1], *[deep] * (len(counts) - 2)):
            ups += [nn.ConvTranspose2d(a, deep, 4, 2, 1, bias=False), nn.BatchNorm2d(deep), nn.ReLU()]
        self.ups = nn.Sequential(*ups)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(deep, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, count, 1))
            for count in (classes, 2, 2)
        )

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.body.stem(images)  # cost: centernet-tf32
        for stage in self.body.stages:
            x = stage(x)  # cost: centernet-tf32
        x = self.ups(x)  # cost: centernet-tf32
        return [head(x).float() for head in self.heads]  # cost: centernet-tf32


@case(
    "centernet-tf32",
    "a CenterNet is trained in float32, with TF32 in its convolutions",
    "torch.autocast with bfloat16",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(12, 2), sized(512, 64), sized(80, 3)
    counts = (3, 4, 6, 3) if ON_GPU else (1, 1, 1, 1)
    model = channels_last(CenterNet(sized(64, 4), counts, sized(256, 8), classes).to(DEVICE))
    images = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    side = size // 4
    middles = (torch.rand(batch, classes, side, side, device=DEVICE) < 1e-3).float()
    there = middles.amax(1, keepdim=True)
    sizes, shifts = torch.rand(2, batch, 2, side, side, device=DEVICE)

    def loss() -> torch.Tensor:
        scores, size, shift = model(images)
        wrong = F.binary_cross_entropy_with_logits(scores, middles, reduction="sum")
        wrong = wrong + ((size - sizes).abs() * there).sum() + ((shift - shifts).abs() * there).sum()
        return wrong / (there.sum() + 1)

    return trained(model, loss, autocast=not bad)


class SemanticFPN(nn.Module):
    """A pyramid of features, each level of which says what a pixel is."""

    def __init__(self, width: int, counts: tuple[int, ...], deep: int, classes: int) -> None:
        super().__init__()
        self.body = Backbone(width, counts)
        self.sides = nn.ModuleList(nn.Conv2d(a, deep, 1) for a in self.body.widths)
        self.smooth = nn.ModuleList(conv(deep, deep // 2) for _ in self.body.widths)
        self.head = nn.Conv2d(deep // 2, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, seen = self.body.stem(images), []  # cost: semfpn-layout
        for stage in self.body.stages:
            x = stage(x)  # cost: semfpn-layout
            seen.append(x)
        x, total = None, None
        for level in range(len(seen) - 1, -1, -1):
            side = self.sides[level](seen[level])  # cost: semfpn-layout
            x = side if x is None else side + F.interpolate(x, scale_factor=2)
            y = self.smooth[level](x)  # cost: semfpn-layout
            total = y if total is None else y + F.interpolate(total, scale_factor=2)
        return self.head(total).float()


@case(
    "semfpn-layout",
    "a pyramid network that segments streets and its images are channels first, under bf16 autocast",
    "model and images in torch.channels_last",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(12, 2), sized(512, 64), sized(19, 3)
    counts = (3, 4, 6, 3) if ON_GPU else (1, 1, 1, 1)
    model = SemanticFPN(sized(64, 4), counts, sized(256, 8), classes).to(DEVICE)
    images = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(classes, (batch, size // 4, size // 4), device=DEVICE)
    if not bad:
        model, images = channels_last(model), channels_last(images)
    return trained(model, lambda: F.cross_entropy(model(images), y))  # cost: semfpn-layout


class GemmaNorm(nn.Module):
    """A root-mean-square norm whose weights are added to one, by its formula or in one call."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.weight, self.written_out = nn.Parameter(torch.zeros(width)), written_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.written_out:
            wide = x.float()  # cost: gemma-norms
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)  # cost: gemma-norms
            return (wide * (1.0 + self.weight.float())).type_as(x)  # cost: gemma-norms
        return F.rms_norm(x.float(), x.shape[-1:], 1.0 + self.weight, 1e-6).type_as(x)


class GemmaLayer(nn.Module):
    """A layer of a Gemma 2: a norm before and after attention and perceptron."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.heads = max(2, width // 128)
        self.norms = nn.ModuleList(GemmaNorm(width, written_out) for _ in range(4))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 6 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + self.norms[1](self.out(y))
        a, b = self.up(self.norms[2](x)).chunk(2, -1)
        return x + self.norms[3](self.down(F.gelu(a, approximate="tanh") * b))


@case(
    "gemma-norms",
    "the four root-mean-square norms of each layer of a Gemma, 2048 wide, are written out in float32",
    "F.rms_norm",
    "unfused-norm",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, length, width, words = sized(4, 2), sized(1024, 12), sized(2048, 16), sized(16_384, 40)
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(GemmaLayer(width, written_out=bad) for _ in range(sized(8, 2))),
        GemmaNorm(width, written_out=bad),
        nn.Linear(width, words, bias=False),
    ).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = x[:, 1:].flatten()
    return trained(model, lambda: F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), y))


class CLIP(nn.Module):
    """Images and their texts, each made a vector."""

    def __init__(self, size: int, patch: int, wide: int, deep: int, words: int, length: int) -> None:
        super().__init__()
        width, depth = max(16, wide * 3 // 4), max(2, deep // 2)
        self.images = ViT(size, patch, wide, deep, width)
        self.texts, self.last = Text(words, length, width, depth, causal=True), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        a = F.normalize(self.images(images).float(), dim=-1)
        b = F.normalize(self.last(self.texts(texts)[:, -1]).float(), dim=-1)
        return (self.scale.exp() * a @ b.t()).float()


@case(
    "clip-foreach",
    "a CLIP of 420 million weights is trained by AdamW as it is by default, foreach",
    "fused=True",
    "unfused-optimizer",
)
def _(bad: bool) -> Step:
    batch, size, length, words = sized(16, 2), sized(224, 8), sized(80, 6), sized(32_768, 40)
    model = CLIP(size, sized(14, 4), sized(1024, 16), sized(24, 2), words, length).to(DEVICE)
    images = torch.randn(batch, 3, size, size, device=DEVICE)
    texts = torch.randint(words, (batch, length), device=DEVICE)
    right = torch.arange(batch, device=DEVICE)
    how: dict[str, Any] = {"fused": False, "foreach": True} if bad else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.2, **how)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            scores = model(images, texts)
        loss = (F.cross_entropy(scores, right) + F.cross_entropy(scores.t(), right)) / 2
        loss.backward()
        optimizer.step()  # cost: clip-foreach
        optimizer.zero_grad(set_to_none=True)

    return step


def gated(now: torch.Tensor, before: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    """Activation of a WaveNet's layer."""
    a, b = (now + before + told).chunk(2, -1)  # cost: wavenet-gates
    return torch.tanh(a) * torch.sigmoid(b)  # cost: wavenet-gates


def onward(
    x: torch.Tensor, total: torch.Tensor, found: torch.Tensor, seen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes to the next layer, and the sum of what goes to the end."""
    return (x + found) * 0.5**0.5, total + seen  # cost: wavenet-gates


class WaveLayer(nn.Module):
    """A layer of a WaveNet: a sample, the one some samples ago, and the sound's spectrum."""

    def __init__(self, width: int, told: int, back: int) -> None:
        super().__init__()
        self.back = back
        self.now, self.before = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width, bias=False)
        self.told = nn.Linear(told, 2 * width, bias=False)
        self.found, self.seen = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, total: torch.Tensor, spectrum: torch.Tensor, gate: Any, on: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before = F.pad(x, (0, 0, self.back, 0))[:, : -self.back]
        y = gate(self.now(x), self.before(before), self.told(spectrum))
        return on(x, total, self.found(y), self.seen(y))


@case(
    "wavenet-gates",
    "the gates, residuals and sums of a WaveNet, of 65 536 samples and 256 channels, are each an operator",
    "torch.compile of these two functions",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, length, width, told, levels = sized(8, 2), sized(8192, 32), sized(256, 8), 80, sized(256, 8)
    gate, on = gated, onward
    if not bad and ON_GPU:
        gate, on = torch.compile(gated, dynamic=False), torch.compile(onward, dynamic=False)
    stack = nn.ModuleList(WaveLayer(width, told, 1 << i % sized(10, 3)) for i in range(sized(20, 3)))
    first, last = nn.Linear(1, width), nn.Sequential(nn.ReLU(), nn.Linear(width, levels))
    model = nn.ModuleList([first, stack, last]).to(DEVICE)
    waves = torch.rand(batch, length + 1, device=DEVICE) * 2 - 1
    y = ((waves[:, 1:] + 1) / 2 * (levels - 1)).long().flatten()
    spectrum = torch.randn(batch, length, told, device=DEVICE)

    def loss() -> torch.Tensor:
        x = first(waves[:, :-1, None])
        total = torch.zeros_like(x)
        for layer in stack:
            x, total = layer(x, total, spectrum, gate, on)
        return F.cross_entropy(last(total).float().flatten(0, 1), y)

    return trained(model, loss)


def decays(steps: torch.Tensor) -> torch.Tensor:
    """Return how much is left at each place (row) of what came at another (column), from the logarithms of steps."""
    total = steps.cumsum(-1)
    apart = total[..., :, None] - total[..., None, :]
    later = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    return torch.exp(apart.masked_fill(later, float("-inf")))


class MambaLayer(nn.Module):
    """A layer of a Mamba 2: a state that decays, computed chunk by chunk with products."""

    def __init__(self, width: int, each: int, state: int, chunk: int) -> None:
        super().__init__()
        self.inner, self.state, self.chunk, self.heads = 2 * width, state, chunk, 2 * width // each
        self.norm, self.gate_norm = nn.RMSNorm(width), nn.RMSNorm(self.inner)
        self.first = nn.Linear(width, 2 * self.inner + 2 * state + self.heads, bias=False)
        self.last = nn.Linear(self.inner, width, bias=False)
        self.rate, self.shift = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.zeros(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.inner, self.inner, self.state, self.state, self.heads]
        z, v, b, c, step = self.first(self.norm(x)).split(parts, -1)  # cost: mamba-float32
        step = F.softplus(step + self.shift)
        v = v.unflatten(-1, (self.heads, -1))
        given = (v * step[..., None]).unflatten(1, (-1, self.chunk)).transpose(2, 3)  # b, chunk, head, t, p
        steps = (-step * self.rate.exp()).unflatten(1, (-1, self.chunk)).transpose(2, 3)  # b, chunk, head, t
        b, c = (one.unflatten(1, (-1, self.chunk))[:, :, None] for one in (b, c))  # b, chunk, 1, t, n
        y = ((c @ b.transpose(-2, -1)) * decays(steps)) @ given  # cost: mamba-float32
        total = steps.cumsum(-1)
        left = torch.exp(total[..., -1:] - total)[..., None]
        states = (given * left).transpose(-2, -1) @ b.expand(-1, -1, self.heads, -1, -1)
        ends = F.pad(total[..., -1].transpose(1, 2), (1, 0))  # b, head, 1 + chunk
        carried = decays(ends)[:, :, :-1, 1:] @ states.transpose(1, 2).flatten(3)
        carried = carried.view_as(states.transpose(1, 2)).transpose(1, 2)
        y = y + torch.exp(total)[..., None] * (c @ carried.transpose(-2, -1))
        y = y.transpose(2, 3).flatten(1, 2) + v * self.skip[:, None]
        return x + self.last(self.gate_norm(y.flatten(2) * F.silu(z)))  # cost: mamba-float32


@case(
    "mamba-float32",
    "the products of a Mamba 2 are in full float32, as they are by default",
    'torch.set_float32_matmul_precision("high")',
    "fp32-matmul",
    may_precede=("mixed-precision",),
)
def _(bad: bool) -> Step:
    batch, length, width, words = sized(4, 2), sized(1024, 12), sized(1024, 16), sized(16_384, 40)
    each, state, chunk = sized(64, 4), sized(64, 4), sized(64, 4)
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(MambaLayer(width, each, state, chunk) for _ in range(sized(10, 2))),
        nn.RMSNorm(width),
        nn.Linear(width, words, bias=False),
    ).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = x[:, 1:].flatten()
    inner = trained(model, lambda: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), y), autocast=False)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if bad else "high")
        inner()
        torch.set_float32_matmul_precision("highest")

    return step


class DLRM(nn.Module):
    """What is known of a visitor and an advertisement, in pairs, and whether it is clicked on."""

    starts: torch.Tensor
    pairs: torch.Tensor

    def __init__(self, numbers: int, fields: int, rows: int, width: int, wide: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(numbers, wide // 2), nn.ReLU(), nn.Linear(wide // 2, width), nn.ReLU()
        )
        self.table = nn.Embedding(fields * rows, width)
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(
            *(nn.Linear(pairs + width, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()),
            *(nn.Linear(wide, wide // 2), nn.ReLU(), nn.Linear(wide // 2, 1)),
        )
        self.register_buffer("starts", torch.arange(fields) * rows)
        first, second = torch.triu_indices(fields + 1, fields + 1, 1)
        self.register_buffer("pairs", first * (fields + 1) + second)

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        both = torch.cat([x[:, None], self.table(kinds + self.starts).to(x.dtype)], 1)
        products = (both @ both.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([x, products], 1)).squeeze(1).float()


@case(
    "dlrm-figures",
    "loss and accuracy of a DLRM are read with .item() at the end of each step of 65 536 rows: next to nothing",
    "both kept on the GPU, and read now and then",
    "item-each-step",
    "metric-compute",
    may_precede=("dense-embedding", "elementwise-chain", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, numbers, fields, rows = sized(65_536, 16), 13, sized(26, 4), sized(20_000, 10)
    model = DLRM(numbers, fields, rows, sized(64, 8), sized(1024, 16)).to(DEVICE)
    optimizer = adamw(model)
    x = torch.randn(batch, numbers, device=DEVICE)
    kinds = torch.randint(rows, (batch, fields), device=DEVICE)
    clicked = torch.rand(batch, device=DEVICE).round()
    sums, written = torch.zeros(2, device=DEVICE), [0.0, 0.0]

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            out = model(x, kinds)
        loss = F.binary_cross_entropy_with_logits(out, clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        right = ((out.detach() > 0) == (clicked > 0.5)).float().mean()
        if bad:
            written[0] += loss.item()  # cost: dlrm-figures
            written[1] += right.item()  # cost: dlrm-figures
        else:
            sums.add_(torch.stack([loss.detach(), right]))

    return step


# -- bound by the host --------------------------------------------------------------------------------------


@case(
    "dino-pageable",
    "32 images of 768 by 768 in float32 are copied from pageable memory in each turn of a loop that embeds images",
    "pinned memory and non_blocking=True",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
    marked=True,
)
def _(bad: bool) -> Step:
    batch, size, width = sized(32, 2), sized(768, 16), sized(768, 16)
    model = ViT(size, sized(32, 4), width, sized(12, 2), width).to(DEVICE, BF16).eval()
    turns = [torch.rand(batch, 3, size, size) for _ in range(3)]
    if not bad and ON_GPU:
        turns = [images.pin_memory() for images in turns]
    turn = itertools.cycle(turns)
    mean, spread = (torch.tensor([value] * 3, device=DEVICE)[:, None, None] for value in (0.45, 0.22))

    @torch.inference_mode()
    def step() -> torch.Tensor:
        images = next(turn)
        images = images.to(DEVICE) if bad else images.to(DEVICE, non_blocking=True)  # cost: dino-pageable
        return F.normalize(model(((images - mean) / spread).to(BF16)).float(), dim=-1)

    return step


class PointNet(nn.Module):
    """A vector for each point of a cloud, of what is there and of the whole cloud."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.near = self.perceptron([3, width, width, 2 * width])
        self.far = self.perceptron([2 * width, 4 * width, 16 * width])
        self.join = self.perceptron([18 * width, 8 * width, out])

    @staticmethod
    def perceptron(widths: list[int]) -> nn.Sequential:
        each = [(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
        return nn.Sequential(*itertools.chain.from_iterable(each))

    def forward(self, clouds: torch.Tensor) -> torch.Tensor:
        batch, points, _ = clouds.shape
        near = self.near(clouds.flatten(0, 1))
        whole = self.far(near).view(batch, points, -1).amax(1)
        whole = whole[:, None].expand(-1, points, -1).flatten(0, 1)
        return self.join(torch.cat([near, whole], -1)).view(batch, points, -1)


@case(
    "pointnet-parts",
    "the clouds of each of 16 kinds of things are picked by a boolean mask on the GPU for the head of this kind",
    "sorted by their kinds, which are known on the CPU, and split",
    "size-from-device",
    may_precede=("launch-bound", "uncompiled-step", "kernel-loop", "operator-loop"),
)
def _(bad: bool) -> Step:
    batch, points, kinds, width, out = sized(64, 8), sized(512, 16), sized(16, 3), sized(64, 4), sized(256, 8)
    model = PointNet(width, out)
    parts = [2 + kind % 5 for kind in range(kinds)]
    heads = nn.ModuleList(nn.Linear(out, count) for count in parts)
    whole = nn.ModuleList([model, heads]).to(DEVICE)
    clouds = torch.randn(batch, points, 3, device=DEVICE)
    kind = (torch.arange(batch) % kinds)[torch.randperm(batch)]
    on_gpu = kind.to(DEVICE)
    y = torch.randint(2, (batch, points), device=DEVICE)

    def loss() -> torch.Tensor:
        x = model(clouds)
        wrong: Any = 0.0
        if bad:
            for i, head in enumerate(heads):
                mine = on_gpu == i
                scores = head(x[mine]).float().flatten(0, 1)  # cost: pointnet-parts
                right = y[mine].flatten()  # cost: pointnet-parts
                wrong = wrong + F.cross_entropy(scores, right)
            return wrong / kinds
        order, sizes = kind.argsort(stable=True), kind.bincount(minlength=kinds).tolist()
        order = order.pin_memory().to(DEVICE, non_blocking=True) if ON_GPU else order
        each = zip(heads, x[order].split(sizes), y[order].split(sizes), strict=True)
        for head, mine, right in each:
            wrong = wrong + F.cross_entropy(head(mine).float().flatten(0, 1), right.flatten())
        return wrong / kinds

    return trained(whole, loss)


class SoftMoE(nn.Module):
    """A soft mixture of experts: each slot of an expert gets a mean of all tokens."""

    def __init__(self, width: int, experts: int, slots: int, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.experts, self.note, hidden = experts, note, 2 * width
        self.slots = nn.Parameter(torch.randn(width, experts * slots) * width**-0.5)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ self.slots
        there, back = torch.softmax(scores, 1).to(x.dtype), torch.softmax(scores, 2)
        with torch.no_grad():
            load = back.unflatten(-1, (self.experts, -1)).sum(-1).mean((0, 1))
            self.note(-(load * load.log()).sum())
        given = (there.transpose(1, 2) @ x).unflatten(1, (self.experts, -1)).transpose(0, 1)
        y = torch.bmm(given.flatten(1, 2), self.up)
        y = torch.bmm(F.gelu(y), self.down).unflatten(1, (len(x), -1)).transpose(0, 1).flatten(1, 2)
        return back.to(y.dtype) @ y


class MoELayer(nn.Module):
    """A transformer layer with experts for its perceptron."""

    def __init__(self, width: int, experts: SoftMoE) -> None:
        super().__init__()
        self.heads, self.experts = max(2, width // 64), experts
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.experts(self.norm2(x).to(x.dtype))


@case(
    "softmoe-entropy",
    "how evenly each of eight layers uses its experts is read with .item() in its forward pass, for a log",
    "kept on the GPU, and read now and then",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step", "elementwise-chain"),
)
def _(bad: bool) -> Step:
    batch, side, patch, width = sized(64, 2), sized(14, 3), sized(16, 4), sized(384, 16)
    experts, slots, classes = sized(16, 3), sized(8, 2), sized(1000, 5)
    log: list[float] = []
    evenness = torch.zeros((), device=DEVICE)

    def note(entropy: torch.Tensor) -> None:
        if bad:
            log.append(entropy.item())  # cost: softmoe-entropy
            del log[:-100]
        else:
            evenness.add_(entropy)

    mixed = (MoELayer(width, SoftMoE(width, experts, slots, note)) for _ in range(sized(8, 2)))
    body = nn.Sequential(*layers(width, sized(4, 1)), *mixed, nn.LayerNorm(width))
    patches, head = nn.Conv2d(3, width, patch, patch), nn.Linear(width, classes)
    model = nn.ModuleList([patches, body, head]).to(DEVICE)
    images = torch.randn(batch, 3, side * patch, side * patch, device=DEVICE)
    y = torch.randint(classes, (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        x = body(patches(images).flatten(2).transpose(1, 2))
        return F.cross_entropy(head(x.mean(1)).float(), y)

    return trained(model, loss)


class Photos(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Photos that lie compressed in memory, and are unpacked, cut, resized and made noisy by NumPy."""

    def __init__(self, side: int, size: int, classes: int) -> None:
        self.side, self.size, self.classes = side, size, classes
        random = np.random.default_rng(0)
        smooth = random.integers(256, size=(8, side // 4, side // 4, 3), dtype=np.uint8)
        self.packed = [zlib.compress(x.repeat(4, 0).repeat(4, 1).tobytes()) for x in smooth]

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        side, size = self.side, self.size
        random = np.random.default_rng(index)
        whole = np.frombuffer(zlib.decompress(self.packed[index % 8]), np.uint8).reshape(side, side, 3)
        cut = random.integers(side // 2, side)
        top, left = random.integers(side - cut + 1, size=2)
        x = whole[top : top + cut, left : left + cut].astype(np.float32) / 255
        at = np.linspace(0, cut - 1.001, size, dtype=np.float32)
        low, part = at.astype(np.int64), (at % 1)[:, None]
        rows = x[low] * (1 - part[..., None]) + x[low + 1] * part[..., None]
        x = rows[:, low] * (1 - part) + rows[:, low + 1] * part
        x = (x - x.mean()) * random.uniform(0.6, 1.4) + x.mean() * random.uniform(0.6, 1.4)
        x = x + random.normal(0, 0.02, x.shape)
        x = np.clip(x, 0, 1)[:, :: -1 if index % 2 else 1]
        return torch.from_numpy(x.transpose(2, 0, 1).astype(np.float32)), index % self.classes


class ConvNeXtBlock(nn.Module):
    """A block of a ConvNeXt: a wide convolution for each channel, and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near, self.norm = nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.near(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext(width: int, counts: tuple[int, ...], classes: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 4)]
    for stage, count in enumerate(counts):
        b = width << stage
        parts += [nn.Conv2d(b // 2, b, 2, 2)] if stage else []
        parts += [ConvNeXtBlock(b) for _ in range(count)]
    deep = width << len(counts) - 1
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(deep, classes))


@case(
    "convnext-decode",
    "the loader of a ConvNeXt has two workers, and each photo is unpacked, cut, resized and made noisy in 7 to 10 ms",
    "num_workers=12",
    "loader-workers",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(16, 2), sized(224, 32), sized(1000, 5)
    counts = (3, 3, 9, 3) if ON_GPU else (1, 1)
    model = channels_last(convnext(sized(96, 8), counts, classes).to(DEVICE))
    data = Photos(sized(512, 48), size, classes)
    workers = (2 if bad else 12) if ON_GPU else 0
    loader = torch.utils.data.DataLoader(data, batch, num_workers=workers, pin_memory=ON_GPU)
    batches = iter(loader)

    def loss() -> torch.Tensor:
        images, y = next(batches)  # cost: convnext-decode
        images = channels_last(images.to(DEVICE, non_blocking=True))
        return F.cross_entropy(model(images).float(), y.to(DEVICE, non_blocking=True))

    return trained(model, loss)


class T5Layer(nn.Module):
    """A layer of a T5: attention with a bias of positions, perhaps to the encoder as well, and a perceptron."""

    def __init__(self, width: int, across: bool) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if across else 2))
        if across:
            self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
            self.back = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype).expand(len(x), -1, -1, -1))
        x = x + self.out(joined(y))
        if seen is not None:
            q = heads_of(self.q(self.norms[2](x)), self.heads)
            k, v = (heads_of(part, self.heads) for part in self.kv(seen).chunk(2, -1))
            x = x + self.back(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(F.relu(self.up(self.norms[1](x))))


class T5(nn.Module):
    """An encoder and a decoder; how far places are apart, up to 64, adds to the scores of each head."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        heads = max(2, width // 64)
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(T5Layer(width, across=False) for _ in range(depth))
        self.decoder = nn.ModuleList(T5Layer(width, across=True) for _ in range(depth))
        self.apart = nn.ModuleList(nn.Embedding(129, heads) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def bias(self, which: int, length: int) -> torch.Tensor:
        at = torch.arange(length, device=DEVICE)
        apart = (at[:, None] - at).clamp(-64, 64) + 64
        bias = self.apart[which](apart).permute(2, 0, 1)[None]
        return bias.masked_fill(apart < 64, -1e9) if which else bias

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x, bias = self.words(given), self.bias(0, given.shape[1])
        for layer in self.encoder:
            x = layer(x, bias)
        seen = self.norms[0](x)
        y, bias = self.words(F.pad(wanted[:, :-1], (1, 0))), self.bias(1, wanted.shape[1])
        for layer in self.decoder:
            y = layer(y, bias, seen)
        return self.head(self.norms[1](y)).float()


def pieces_of(text: list[str], known: dict[str, int], length: int) -> list[int]:
    """Return the numbers of the longest known pieces of each word, until there are enough."""
    out: list[int] = []
    for word in text:
        start = 0
        while start < len(word):
            end = len(word)
            while word[start:end] not in known:  # cost: t5-spans
                end -= 1  # cost: t5-spans
            out.append(known[word[start:end]])  # cost: t5-spans
            start = end
        if len(out) >= length:
            break
    return out[:length]


def spans_by_hand(ids: list[int], hidden: list[bool], last: int) -> tuple[list[int], list[int]]:
    """Return what is shown of a text, and what is to be said of its hidden spans."""
    given: list[int] = []
    wanted: list[int] = []
    before, mark = False, last
    for word, now in zip(ids, hidden, strict=True):  # cost: t5-spans
        if now and not before:  # cost: t5-spans
            given.append(mark)  # cost: t5-spans
            wanted.append(mark)  # cost: t5-spans
            mark -= 1
        (wanted if now else given).append(word)  # cost: t5-spans
        before = now
    return given, wanted


def spans(ids: np.ndarray, hidden: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for all texts at once; as many words and as many spans are hidden in each."""
    first = hidden & ~np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
    marks = last + 1 - first.cumsum(1)
    given = np.where(first, marks, ids)[~hidden | first].reshape(len(ids), -1)
    both = np.stack([marks, ids], -1)[np.stack([first, hidden], -1)]
    return given, both.reshape(len(ids), -1)


@case(
    "t5-spans",
    "texts are cut into pieces of words, and spans of them hidden, in Python in each step of a T5",
    "cut once before the training, and the spans hidden by NumPy",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, hide, count = sized(24, 2), sized(512, 24), sized(96, 6), sized(32, 2)
    words, texts, width = sized(8192, 700), sized(256, 6), sized(512, 16)
    random = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    syllables = [a + b for a in letters for b in "aeiou"]
    pairs = ["".join(random.choice(syllables, 2)) for _ in range(sized(4000, 400))]
    known = {piece: i for i, piece in enumerate([*letters, *dict.fromkeys([*syllables, *pairs])])}
    corpus = [
        ["".join(random.choice(syllables, size)) for size in random.integers(2, 6, length)]
        for _ in range(texts)
    ]
    table = np.array([pieces_of(text, known, length) for text in corpus])
    masks = np.zeros((texts, length), bool)
    for mask in masks:  # as many spans in each, none of which touch
        sizes, gaps = (
            np.diff([0, *np.sort(random.choice(total - 1, count - 1, replace=False)) + 1, total])
            for total in (hide, length - hide)
        )
        mask[:] = np.repeat(np.tile([False, True], count), np.stack([gaps, sizes], 1).ravel())
    model = T5(words, width, sized(6, 2)).to(DEVICE)

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        chosen, shown = random.integers(texts, size=(2, batch))
        if bad:
            both = [
                spans_by_hand(pieces_of(corpus[i], known, length), masks[j].tolist(), words - 1)
                for i, j in zip(chosen, shown, strict=True)
            ]
            given, wanted = (torch.tensor(rows) for rows in zip(*both, strict=True))  # cost: t5-spans
        else:
            given, wanted = map(torch.from_numpy, spans(table[chosen], masks[shown], words - 1))
        return given, wanted

    def loss() -> torch.Tensor:
        given, wanted = (x.pin_memory() if ON_GPU else x for x in made())
        given, wanted = given.to(DEVICE, non_blocking=True), wanted.to(DEVICE, non_blocking=True)
        return F.cross_entropy(model(given, wanted).flatten(0, 1), wanted.flatten())

    return trained(model, loss)


class VAE(nn.Module):
    """A variational autoencoder of convolutions."""

    def __init__(self, width: int, levels: int, latent: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        downs = [conv(a, b, 3, 2) for a, b in itertools.pairwise([3, *widths])]
        self.encoder = nn.Sequential(*downs, nn.Conv2d(widths[-1], 2 * latent, 1))
        back = [latent, *widths[::-1]]
        ups = [
            nn.Sequential(conv(a, b), nn.Upsample(scale_factor=2), conv(b, b))
            for a, b in itertools.pairwise(back)
        ]
        self.decoder = nn.Sequential(*ups, nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(images).float().chunk(2, 1)
        out = self.decoder(mean + torch.exp(0.5 * spread) * noise)
        return out.float(), (mean.square() + spread.exp() - 1 - spread).mean() / 2


@case(
    "vae-empty",
    "torch.cuda.empty_cache() at the end of each step of a VAE",
    "never emptied",
    "allocator-in-steps",
)
def _(bad: bool) -> Step:
    batch, size, levels, latent = sized(64, 2), sized(128, 16), sized(4, 2), sized(16, 4)
    model = channels_last(VAE(sized(64, 4), levels, latent).to(DEVICE))
    images = channels_last(torch.rand(batch, 3, size, size, device=DEVICE))
    noise = torch.randn(batch, latent, size >> levels, size >> levels, device=DEVICE)

    def loss() -> torch.Tensor:
        out, apart = model(images, noise)
        return F.mse_loss(out, images) + 1e-3 * apart

    def emptied() -> None:
        if bad:
            torch.cuda.empty_cache()  # cost: vae-empty

    return trained(model, loss, last=emptied)


class Perceiver(nn.Module):
    """Latents that look at many bytes, and then at each other."""

    def __init__(self, latents: int, width: int, depth: int, given: int, classes: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.words, self.places = nn.Embedding(256, width), nn.Parameter(torch.randn(given, width) * 0.02)
        self.q, self.kv, self.out = (nn.Linear(width, n * width) for n in (1, 2, 1))
        self.body = layers(width, depth)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        given = self.words(text) + self.places
        q = heads_of(self.q(self.latents).expand(len(text), -1, -1), self.heads)
        k, v = (heads_of(part, self.heads) for part in self.kv(given).chunk(2, -1))
        x = self.latents + self.out(joined(F.scaled_dot_product_attention(q, k, v)))
        return self.head(self.norm(self.body(x)).mean(1)).float()


@case(
    "perceiver-clipping",
    "the norm of the gradient of each parameter of a Perceiver is read with .item(), and each gradient is scaled by "
    "itself; AdamW is as it is by default",
    "clip_grad_norm_",
    "item-each-step",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, given, latents, width = sized(8, 2), sized(2048, 16), sized(256, 6), sized(512, 16)
    model = Perceiver(latents, width, sized(16, 2), given, sized(100, 5)).to(DEVICE)
    text = torch.randint(256, (batch, given), device=DEVICE)
    y = torch.randint(sized(100, 5), (batch,), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def clip(_loss: torch.Tensor) -> None:
        if not bad:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return
        total = 0.0
        for p in model.parameters():
            if p.grad is not None:
                total += p.grad.norm(2).item() ** 2  # cost: perceiver-clipping
        scale = min(1.0, 1.0 / (total**0.5 + 1e-6))
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(scale)  # cost: perceiver-clipping

    return trained(model, lambda: F.cross_entropy(model(text), y), optimizer=optimizer, after=clip)


@jax_case(
    "jax-griffin-scan",
    "the gated recurrence of each of four layers of a Griffin goes through 256 times by lax.scan, a few small kernels "
    "each",
    "lax.associative_scan",
    "sequential-scan",
    "kernel-loop",
    "operator-loop",
    "launch-bound",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    batch, length, width, depth, words = (
        sized(16, 2),
        sized(256, 8),
        sized(512, 8),
        sized(4, 2),
        sized(4096, 20),
    )
    keys = jax.random.split(jax.random.key(0), 6)

    def weights_of(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5

    weights = {
        "words": weights_of(keys[0], words, width),
        "gates": weights_of(keys[1], depth, width, 3 * width),
        "up": weights_of(keys[2], depth, width, 2 * width),
        "down": weights_of(keys[3], depth, 2 * width, width),
        "head": weights_of(keys[4], width, words),
    }
    text = jax.random.randint(keys[5], (batch, length + 1), 0, words)

    def turn(state: Any, both: Any) -> Any:
        state = both[0] * state + both[1]  # cost: jax-griffin-scan
        return state, state  # cost: jax-griffin-scan

    def two(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    def recurrence(kept: Any, new: Any) -> Any:
        if bad:
            along = (kept.swapaxes(0, 1), new.swapaxes(0, 1))
            _, states = jax.lax.scan(turn, jnp.zeros_like(new[:, 0]), along)  # cost: jax-griffin-scan
            return states.swapaxes(0, 1)
        return jax.lax.associative_scan(two, (kept, new), axis=1)[1]

    def norm(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    def loss(weights: Any, text: Any) -> Any:
        x = weights["words"][text[:, :-1]]
        for i in range(depth):
            a, v, gate = jnp.split(norm(x) @ weights["gates"][i], 3, -1)
            kept = jnp.exp(-jax.nn.softplus(-a))
            x = x + jax.nn.gelu(gate) * recurrence(kept, jnp.sqrt(1 - kept * kept + 1e-6) * v)
            x = x + jax.nn.gelu(norm(x) @ weights["up"][i]) @ weights["down"][i]
        scores = norm(x) @ weights["head"]
        right = jnp.take_along_axis(scores, text[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - right)

    @jax.jit
    def update(weights: Any, text: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(weights, text)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, grads), wrong

    state = [weights]

    def step() -> Any:
        state[0], wrong = update(state[0], text)
        return wrong

    return step
