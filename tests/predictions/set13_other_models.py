"""Steps on a GPU with a planted cost, in models of fields that no earlier set has.

``perceiver-softmax``, ``splines-basis``, ``barlow-correlation``, ``bloom-distances``, ``yolo-layout`` and
``whisper-meter`` are meant to be bound by the GPU, the others by the host. Three have more than one cost, of which the
fix takes away the one that wins most: ``barlow-correlation``, ``yolo-layout`` and ``dreamer-frames``; the rest stays.
``tracker-peak`` is an inference loop, ``satellite-prefetch`` copies on a stream of its own, ``bloom-distances``
computes the same in each layer, and the fix of ``whisper-meter`` is expected to win next to nothing. Every fix computes
what its step computes: the same numbers, up to the order of sums or, in ``barlow-correlation``, up to their precision.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, case, sized, trained
from tests.predictions.set11_copied_code import Basic

# -- bound by the GPU: attention ----------------------------------------------------------------------------


class Looks(nn.Module):
    """Attention to oneself or to something else."""

    def __init__(self, width: int, *, written_out: bool = False) -> None:
        super().__init__()
        self.heads, self.written_out = max(1, width // 64), written_out
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(
        self, x: torch.Tensor, at: torch.Tensor, bias: torch.Tensor | None = None, causal: bool = False
    ) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(at).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.written_out:
            alike = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5  # cost: perceiver-softmax
            share = alike.softmax(-1)  # cost: perceiver-softmax
            seen = torch.einsum("bhij,bhjd->bhid", share, v)  # cost: perceiver-softmax
        else:
            mask = None if bias is None else bias.to(q.dtype)
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a feed-forward part, with norms before them; perhaps another attention between the two."""

    def __init__(self, width: int, *, both: bool = False, written_out: bool = False) -> None:
        super().__init__()
        self.look = Looks(width, written_out=written_out)
        self.aside = Looks(width, written_out=written_out) if both else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if both else 2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None, **how: Any) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.look(y, y if at is None or self.aside else at, **how)
        if self.aside and at is not None:
            x = x + self.aside(self.norms[2](x), at)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Perceiver(nn.Module):
    """A few latent vectors that look at all pixels now and then, and at each other in between."""

    def __init__(
        self, seen: int, width: int, latents: int, depth: int, kinds: int, written_out: bool
    ) -> None:
        super().__init__()
        make = functools.partial(Layer, width, written_out=written_out)
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.into, self.norm = nn.Linear(seen, width), nn.LayerNorm(width)
        self.looks = nn.ModuleList(make() for _ in range(2))
        self.layers = nn.ModuleList(nn.ModuleList(make() for _ in range(depth)) for _ in range(2))
        self.head = nn.Linear(width, kinds)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        at = self.norm(self.into(pixels))
        x = self.latents.expand(len(pixels), -1, -1)
        for look, layers in zip(self.looks, self.layers, strict=True):
            x = look(x, at)
            for layer in layers:
                x = layer(x)
        return self.head(x.mean(1))


def waves(side: int, bands: int) -> torch.Tensor:
    """Return where each pixel of an image is, as sines and cosines."""
    place = torch.linspace(-1, 1, side)
    places = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).view(-1, 2, 1)
    angles = places * torch.linspace(1, side / 2, bands) * math.pi
    return torch.cat([angles.sin(), angles.cos(), places], -1).flatten(1)


@case(
    "perceiver-softmax",
    "a Perceiver's attention of 512 latents to 4096 pixels, and to each other, is einsum, softmax and einsum",
    "scaled_dot_product_attention",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, side, bands = sized(24, 2), sized(64, 6), sized(32, 3)
    where = waves(side, bands).to(DEVICE)
    model = Perceiver(
        where.shape[1] + 3, sized(512, 16), sized(512, 5), sized(3, 1), sized(1000, 4), written_out=bad
    ).to(DEVICE)
    images = torch.rand(batch, side * side, 3, device=DEVICE)
    y = torch.randint(sized(1000, 4), (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        pixels = torch.cat([images, where.expand(batch, -1, -1)], -1)
        return F.cross_entropy(model(pixels).float(), y)

    return trained(model, loss)


def farther(heads: int, length: int, device: torch.device) -> torch.Tensor:
    """Return what is added to the scores of each head: less for what is farther away, nothing for what is later."""
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    place = torch.arange(length, device=device)
    away = place[None, :] - place[:, None]
    bias = slopes[:, None, None] * away  # cost: bloom-distances
    return bias.masked_fill(away > 0, float("-inf"))  # cost: bloom-distances


class Bloom(nn.Module):
    """A language model that knows places by their distance alone (ALiBi)."""

    def __init__(self, words: int, width: int, depth: int, each_layer: bool) -> None:
        super().__init__()
        self.each_layer = each_layer
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids))
        heads, bias = self.layers[0].look.heads, None
        for layer in self.layers:
            if bias is None or self.each_layer:
                bias = farther(heads, ids.shape[1], ids.device)  # cost: bloom-distances
                bias = bias[None].to(BF16)  # cost: bloom-distances
            x = layer(x, bias=bias)
        return F.linear(x, self.words.weight)


@case(
    "bloom-distances",
    "each of 12 layers computes the same bias of ALiBi for 16 heads and 2048 places, with the causal mask in it",
    "the first layer computes it, and all use it",
    "repeated-in-layers",
    "elementwise-chain",
    "kernel-loop",
    "operator-loop",
)
def _(bad: bool) -> Step:
    words, length, batch = sized(8192, 64), sized(2048, 8), sized(2, 2)
    model = Bloom(words, sized(1024, 16), sized(12, 2), each_layer=bad).to(DEVICE)
    ids = torch.randint(words, (batch, length + 1), device=DEVICE)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    return trained(model, loss)


class Whisper(nn.Module):
    """Writes down what is said: an encoder of sound, and a decoder that looks at it."""

    def __init__(self, bands: int, width: int, depth: int, words: int, lengths: tuple[int, int]) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(bands, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.heard, self.said = (nn.Parameter(torch.randn(length, width) * 0.02) for length in lengths)
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Layer(width) for _ in range(depth))
        self.decoder = nn.ModuleList(Layer(width, both=True) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.two(F.gelu(self.one(sound)))).transpose(1, 2) + self.heard
        for layer in self.encoder:
            x = layer(x)
        x, y = self.norms[0](x), self.words(ids) + self.said
        for layer in self.decoder:
            y = layer(y, x, causal=True)
        return F.linear(self.norms[1](y), self.words.weight)


@case(
    "whisper-meter",
    "the loss of a Whisper is read in each step, for the progress bar",
    "it stays on the GPU",
    "item-each-step",
    may_precede=("elementwise-chain", "unfused-optimizer", "mixed-precision"),
)
def _(bad: bool) -> Step:
    bands, heard, said, batch = sized(80, 4), sized(1500, 12), sized(224, 6), sized(12, 2)
    words = sized(16_384, 64)
    model = Whisper(bands, sized(768, 16), sized(8, 1), words, (heard, said)).to(DEVICE)
    sound = torch.randn(batch, bands, 2 * heard, device=DEVICE)
    ids = torch.randint(words, (batch, said + 1), device=DEVICE)
    log: dict[str, Any] = {}

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(sound, ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    def note(wrong: torch.Tensor) -> None:
        log["loss"] = wrong.item() if bad else wrong.detach()  # cost: whisper-meter

    return trained(model, loss, after=note)


# -- bound by the GPU: tables and images --------------------------------------------------------------------


def basis(x: torch.Tensor, knots: torch.Tensor, order: int) -> torch.Tensor:
    """Return the B-splines over some knots, at each value, by the recursion of Cox and de Boor."""
    x = x[..., None]
    out = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)  # cost: splines-basis
    for k in range(1, order + 1):
        up = (x - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])  # cost: splines-basis
        down = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k])  # cost: splines-basis
        out = up * out[..., :-1] + down * out[..., 1:]  # cost: splines-basis
    return out


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: a function of its own for each pair of an input and an output."""

    def __init__(self, a: int, b: int, grid: int, order: int, basis_of: Any) -> None:
        super().__init__()
        self.order, self.basis_of = order, basis_of
        self.register_buffer("knots", (torch.arange(-order, grid + order + 1) * 2.0 / grid) - 1)
        self.plain, self.curved = nn.Linear(a, b, bias=False), nn.Linear(a * (grid + order), b, bias=False)
        self.norm = nn.LayerNorm(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        curves = self.basis_of(x.float(), self.knots, self.order)
        return self.norm(self.plain(F.silu(x)) + self.curved(curves.flatten(1)))


@case(
    "splines-basis",
    "the B-splines of a Kolmogorov-Arnold network are some thirty operators a layer, each over a basis in float32",
    "torch.compile of the function that computes them",
    "elementwise-chain",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    rows, seen, width, kinds = sized(12_288, 8), sized(100, 4), sized(256, 6), sized(20, 3)
    basis_of: Any = basis if bad else torch.compile(basis, dynamic=False)
    layers = [Splines(width, width, sized(5, 3), 3, basis_of) for _ in range(sized(3, 1))]
    begin = [nn.Linear(seen, width), nn.LayerNorm(width)]
    model = nn.Sequential(*begin, *layers, nn.Linear(width, kinds)).to(DEVICE)
    x = torch.randn(rows, seen, device=DEVICE)
    y = torch.randint(kinds, (rows,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


def resnet18(width: int) -> nn.Sequential:
    """Return a residual network of 18 layers for small images, without its head."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    a = width
    for b, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Basic(a, b, stride), Basic(b, b, 1)]
        a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Lars(torch.optim.Optimizer):
    """Momentum, with a rate for each tensor that follows the norms of it and its gradient."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                change = p.grad
                if p.ndim > 1:
                    change = change.add(p, alpha=1e-6)
                    long, steep = p.norm(), change.norm()
                    share = torch.where((long > 0) & (steep > 0), 0.001 * long / steep, 1.0)
                    change = change.mul(share)
                state = self.state[p]
                if not state:
                    state["speed"] = torch.zeros_like(p)
                state["speed"].mul_(0.9).add_(change)
                p.sub_(state["speed"], alpha=group["lr"])


@case(
    "barlow-correlation",
    "the correlation of 8192 features of two views is a product in full float32, outside of autocast; LARS updates "
    "parameter by parameter, and the two parts of the loss are read",
    "TF32 for that product: the same up to its precision; the rest stays",
    "fp32-matmul",
    "mixed-precision",
)
def _(bad: bool) -> Step:
    batch, size, width, out = sized(1024, 4), sized(96, 32), sized(64, 4), sized(8192, 16)
    inner = sized(2048, 16)
    layers: list[nn.Module] = [resnet18(width)]
    for a, b in ((8 * width, inner), (inner, inner)):
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(inner, out, bias=False), nn.BatchNorm1d(out, affine=False))
    model.to(DEVICE, memory_format=torch.channels_last)
    views = torch.randn(2, batch, 3, size, size, device=DEVICE)
    one, two = (view.to(memory_format=torch.channels_last) for view in views)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        torch.set_float32_matmul_precision("highest" if bad else "high")
        a, b = model(one).float(), model(two).float()
        with torch.autocast(DEVICE, enabled=False):
            alike = (a.T @ b) / batch  # cost: barlow-correlation
        on = alike.diagonal()
        off = alike.square().sum() - on.square().sum()
        same = (on - 1).square().sum()
        log["same"], log["off"] = same.item(), off.item()
        return same + 0.005 * off

    return trained(model, loss, optimizer=Lars(model.parameters(), lr=0.2))


def conv(a: int, b: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution, a batch norm and an activation."""
    layers = [
        nn.Conv2d(a, b, size, stride, (size - 1) // 2, bias=False),
        nn.BatchNorm2d(b),
        nn.SiLU(inplace=True),
    ]
    return nn.Sequential(*layers)


class Split(nn.Module):
    """Half of the channels go through some layers, the other half past them."""

    def __init__(self, a: int, b: int, depth: int, around: bool = True) -> None:
        super().__init__()
        half, self.around = b // 2, around
        self.through, self.past, self.out = conv(a, half), conv(a, half), conv(b, b)
        self.layers = nn.ModuleList(
            nn.Sequential(conv(half, half), conv(half, half, 3)) for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.through(x)
        for layer in self.layers:
            y = y + layer(y) if self.around else layer(y)
        return self.out(torch.cat([y, self.past(x)], 1))


class Yolo(nn.Module):
    """Finds things at three scales, each of which is told of by those below and above it."""

    def __init__(self, width: int, kinds: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(5)]
        self.begin = nn.Sequential(
            conv(3, sizes[0], 6, 2), conv(sizes[0], sizes[1], 3, 2), Split(sizes[1], sizes[1], 2)
        )
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), Split(b, b, depth))
            for (a, b), depth in zip(itertools.pairwise(sizes[1:]), (4, 6, 2), strict=True)
        )
        self.small, self.large = (
            nn.ModuleList(Split(a, b, 2, around=False) for a, b in shapes)
            for shapes in (
                [(sizes[3] + sizes[4], sizes[3]), (sizes[2] + sizes[3], sizes[2])],
                [(sizes[2] + sizes[3], sizes[3]), (sizes[3] + sizes[4], sizes[4])],
            )
        )
        self.strides = nn.ModuleList(conv(size, size, 3, 2) for size in sizes[2:4])
        self.heads = nn.ModuleList(nn.Conv2d(size, 5 + kinds, 1) for size in sizes[2:])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x, kept = self.begin(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        seen = [kept.pop()]
        for stage in self.small:
            seen.append(stage(torch.cat([F.interpolate(seen[-1], scale_factor=2), kept.pop()], 1)))
        out = [seen.pop()]
        for stride, stage in zip(self.strides, self.large, strict=True):
            out.append(stage(torch.cat([stride(out[-1]), seen.pop()], 1)))
        return [head(y) for head, y in zip(self.heads, out, strict=True)]


@case(
    "yolo-layout",
    "a YOLO and its images have their channels first; AdamW is as it is by default, and three figures are read",
    "model and images in channels_last; the rest stays",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(32, 2), sized(416, 64), sized(80, 4)
    layout = torch.contiguous_format if bad else torch.channels_last
    model = Yolo(sized(48, 4), kinds).to(DEVICE, memory_format=layout)  # cost: yolo-layout
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.rand(batch, 3, size, size, device=DEVICE).to(memory_format=layout)  # cost: yolo-layout
    scales = [size // 2**i for i in (3, 4, 5)]
    there = [(torch.rand(batch, side, side, device=DEVICE) < 0.02).float() for side in scales]
    boxes = [torch.rand(batch, 4, side, side, device=DEVICE) for side in scales]
    names = [torch.randint(kinds, (batch, side, side), device=DEVICE) for side in scales]
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        parts = torch.zeros(3, device=DEVICE)
        for out, here, box, name in zip(model(x), there, boxes, names, strict=True):
            out, count = out.float(), here.sum() + 1
            far = ((out[:, :4].sigmoid() - box).abs().sum(1) * here).sum() / count
            sure = F.binary_cross_entropy_with_logits(out[:, 4], here)
            named = (F.cross_entropy(out[:, 5:], name, reduction="none") * here).sum() / count
            parts = parts + torch.stack([far, sure, named])
        for what, part in zip(("box", "there", "name"), parts, strict=True):
            log[what] = part.item()
        return parts.sum()

    return trained(model, loss, optimizer=optimizer)


# -- bound by the host: data --------------------------------------------------------------------------------


class Tower(nn.Module):
    """The network of a chess program: what to move, and who wins."""

    def __init__(self, planes: int, width: int, depth: int, moves: int) -> None:
        super().__init__()
        self.begin = nn.Sequential(
            nn.Conv2d(planes, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.Sequential(*(Basic(width, width, 1) for _ in range(depth)))
        self.move = nn.Sequential(nn.Conv2d(width, 32, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, moves))
        self.wins = nn.Sequential(nn.Conv2d(width, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(self.begin(x))
        return self.move(x), self.wins(x)


@case(
    "chess-postfix",
    "the loss of a chess network is read in each step, before NumPy unpacks the boards of the next batch",
    "it is added up on the GPU, so that the boards are unpacked while the GPU works",
    "item-each-step",
)
def _(bad: bool) -> Step:
    kept, batch, planes, moves = sized(50_000, 40), sized(2048, 4), sized(112, 6), sized(1858, 20)
    draw = np.random.default_rng(0)
    boards = draw.integers(0, 256, (kept, planes, 8), dtype=np.uint8)
    tried = draw.integers(0, moves, (kept, 32))
    often = draw.random((kept, 32), dtype=np.float32)
    won = draw.integers(0, 3, kept)
    model = Tower(planes, sized(256, 8), sized(12, 1), moves).to(DEVICE, memory_format=torch.channels_last)
    total = torch.zeros((), device=DEVICE)
    log = {"loss": 0.0}

    def sent(values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if ON_GPU else tensor).to(DEVICE, non_blocking=True)

    def loss() -> torch.Tensor:
        which = draw.integers(0, kept, batch)
        bits = np.unpackbits(boards[which], axis=-1).reshape(batch, planes, 8, 8)
        wanted = np.zeros((batch, moves), dtype=np.float32)
        np.add.at(wanted, (np.arange(batch)[:, None], tried[which]), often[which])
        wanted /= wanted.sum(1, keepdims=True)
        x = sent(bits).float().to(memory_format=torch.channels_last)
        move, wins = model(x)
        return F.cross_entropy(move.float(), sent(wanted)) + F.cross_entropy(wins.float(), sent(won[which]))

    def note(wrong: torch.Tensor) -> None:
        if bad:
            log["loss"] += wrong.item()  # cost: chess-postfix
        else:
            total.add_(wrong.detach())

    return trained(model, loss, after=note)


class Moves(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """People that move, as joints in space; each clip is turned, shifted in time and distorted."""

    def __init__(self, people: int, frames: int, joints: int, kinds: int) -> None:
        self.seen = np.random.default_rng(0).standard_normal(
            (people, 2 * frames, joints, 3), dtype=np.float32
        )
        self.frames, self.kinds = frames, kinds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draw = np.random.default_rng(index)
        clip = self.seen[index % len(self.seen)]
        begin, end = np.sort(draw.uniform(0, len(clip) - 1, 2))
        times, at = np.arange(len(clip)), np.linspace(begin, end, self.frames)
        flat = clip.reshape(len(clip), -1)
        clip = np.stack([np.interp(at, times, column) for column in flat.T], 1)  # cost: skeleton-loader
        angle = draw.uniform(-0.5, 0.5)
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        clip = clip.reshape(self.frames, -1, 3) @ turn
        clip = clip + draw.normal(0, 0.01, clip.shape)
        return torch.from_numpy(clip.astype(np.float32)).permute(2, 0, 1), index % self.kinds


class Bones(nn.Module):
    """Joints see those next to them, in three ways, and then themselves over time."""

    def __init__(self, a: int, b: int, joints: int, stride: int) -> None:
        super().__init__()
        self.near = nn.Parameter(torch.rand(3, joints, joints) / joints)
        self.space, self.time = nn.Conv2d(a, 3 * b, 1), nn.Conv2d(b, b, (9, 1), (stride, 1), (4, 0))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _ in range(2))
        self.side = nn.Conv2d(a, b, 1, (stride, 1)) if stride > 1 or a != b else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("nkctv,kvw->nctw", self.space(x).unflatten(1, (3, -1)), self.near)
        y = self.norms[1](self.time(F.relu(self.norms[0](y))))
        return F.relu(y + self.side(x))


@case(
    "skeleton-loader",
    "a DataLoader without workers resamples, turns and distorts 96 clips of skeletons, a third of a millisecond each",
    "eight workers that stay: the same clips",
    "loader-workers",
)
def _(bad: bool) -> Step:
    batch, frames, joints, kinds = sized(96, 4), sized(128, 8), sized(25, 4), sized(60, 3)
    width = sized(64, 4)
    layers: list[nn.Module] = []
    a = 3
    for b, stride in ((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1)):
        layers.append(Bones(a, b * width, joints, stride))
        a = b * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, kinds)]
    model = nn.Sequential(*layers, *head).to(DEVICE)
    how: dict[str, Any] = {} if bad else {"num_workers": sized(8, 2), "persistent_workers": True}
    loader = torch.utils.data.DataLoader(
        Moves(sized(400, 10), frames, joints, kinds),
        batch,
        shuffle=True,
        drop_last=True,
        pin_memory=ON_GPU,
        generator=torch.Generator().manual_seed(0),
        **how,
    )
    batches = iter(loader)

    def loss() -> torch.Tensor:
        x, y = next(batches)  # cost: skeleton-loader
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        return F.cross_entropy(model(x).float(), y)

    return trained(model, loss)


class Fewer(nn.Module):
    """A layer of a SegFormer: each pixel looks at an image that is a few times smaller."""

    def __init__(self, width: int, heads: int, smaller: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.shrink = nn.Conv2d(width, width, smaller, smaller) if smaller > 1 else nn.Identity()
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.around = nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        y = self.norms[0](x)
        at = self.shrink(y.transpose(1, 2).unflatten(2, size)).flatten(2).transpose(1, 2)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(at).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.up(self.norms[1](x)).transpose(1, 2).unflatten(2, size)
        x = x + self.down(F.gelu(self.around(y)).flatten(2).transpose(1, 2))
        return x.transpose(1, 2).unflatten(2, size)


class Segformer(nn.Module):
    """Says of each place of an image what it is, from four scales of it."""

    def __init__(self, bands: int, widths: list[int], out: int, kinds: int) -> None:
        super().__init__()
        self.stages, self.flat = nn.ModuleList(), nn.ModuleList()
        for i, (a, b) in enumerate(itertools.pairwise([bands, *widths])):
            size, stride = (7, 4) if i == 0 else (3, 2)
            begin = nn.Conv2d(a, b, size, stride, size // 2)
            layers = (Fewer(b, max(1, b // 32), 8 // 2**i) for _ in range(2))
            self.stages.append(nn.Sequential(begin, nn.BatchNorm2d(b), *layers))
            self.flat.append(nn.Conv2d(b, out, 1))
        self.out = nn.Sequential(conv(4 * out, out), nn.Conv2d(out, kinds, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for stage, flat in zip(self.stages, self.flat, strict=True):
            x = stage(x)
            seen.append(flat(x))
        size = seen[0].shape[-2:]
        wide = [F.interpolate(y, size, mode="bilinear", align_corners=False) for y in seen]
        return self.out(torch.cat(wide, 1))


class Ahead:
    """Copies the next batch on a stream of its own."""

    def __init__(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.batches = batches
        self.stream = torch.cuda.Stream() if ON_GPU else None
        self.load()

    def load(self) -> None:
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.next = [
                part.to(DEVICE, non_blocking=True) for part in next(self.batches)
            ]  # cost: satellite-prefetch

    def __next__(self) -> list[torch.Tensor]:
        now = self.next
        if self.stream:
            here = torch.cuda.current_stream()
            here.wait_stream(self.stream)
            for part in now:
                part.record_stream(here)
        self.load()
        return now


@case(
    "satellite-prefetch",
    "images of a satellite, 13 bands in float32, are copied ahead on a stream of their own, but from pageable memory",
    "the same from pinned memory, so that the host goes on while they are copied",
    "pageable-memory",
    "blocking-copy",
)
def _(bad: bool) -> Step:
    batch, size, bands, kinds = sized(16, 2), sized(384, 32), sized(13, 4), sized(10, 3)
    images = [torch.randn(batch, bands, size, size) for _ in range(4)]
    labels = [torch.randint(kinds, (batch, size // 4, size // 4)) for _ in range(4)]
    if not bad and ON_GPU:
        images, labels = ([part.pin_memory() for part in parts] for parts in (images, labels))
    ahead = Ahead(itertools.cycle(zip(images, labels, strict=True)))
    model = Segformer(bands, [sized(width, 8) for width in (32, 64, 160, 256)], sized(128, 8), kinds).to(
        DEVICE
    )

    def loss() -> torch.Tensor:
        x, y = next(ahead)
        return F.cross_entropy(model(x).float(), y)

    return trained(model, loss)


# -- bound by the host: loops -------------------------------------------------------------------------------

# The method of Dormand and Prince: when each stage is, and what it is made of.
WHEN = (0.2, 0.3, 0.8, 8 / 9, 1.0)
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)
WHOLE = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)


class Field(nn.Module):
    """Where an image moves to, at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width + 1, width, 3, 1, 1) for _ in range(2))

    def forward(self, time: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = F.softplus(norm(x))
            x = conv(torch.cat([x, time.expand(len(x), 1, *x.shape[2:])], 1))
        return x


@case(
    "ode-tableau",
    "each stage of a neural ODE makes tensors on the GPU of its time and of its weights, which are numbers",
    "these tensors are made once",
    "small-copy",
    "pageable-memory",
    "blocking-copy",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, width, kinds, steps = sized(32, 2), sized(16, 8), sized(64, 8), sized(10, 3), sized(6, 2)
    begin = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU())
    head = nn.Sequential(nn.GroupNorm(4, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.ModuleList([begin, Field(width), head, nn.Linear(width, kinds)]).to(DEVICE)
    x = torch.randn(batch, 3, 2 * size, 2 * size, device=DEVICE)
    y = torch.randint(kinds, (batch,), device=DEVICE)

    def made(*values: float) -> torch.Tensor:
        return torch.tensor(values, device=DEVICE)  # cost: ode-tableau

    number = made if bad else functools.cache(made)

    def along(field: nn.Module, h: torch.Tensor) -> torch.Tensor:
        for i in range(steps):
            moves = [field(number(i / steps), h)]
            for when, stage in zip(WHEN, STAGES, strict=True):
                weights = number(*(share / steps for share in stage))
                moves.append(field(number((i + when) / steps), h + torch.stack(moves, -1) @ weights))
            h = h + torch.stack(moves, -1) @ number(*(share / steps for share in WHOLE))
        return h

    def loss() -> torch.Tensor:
        begin, field, pool, out = model
        return F.cross_entropy(out(pool(along(field, begin(x)))), y)

    return trained(model, loss, autocast=False)


class Dreamer(nn.Module):
    """A model of the world: what is known after each frame, and what it says of the frame and the reward."""

    def __init__(self, width: int, known: int, chance: int, moves: int) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width, 8 * width]
        eye = [(nn.Conv2d(a, b, 4, 2, 1), nn.SiLU()) for a, b in itertools.pairwise(sizes)]
        back = [
            (nn.SiLU(), nn.ConvTranspose2d(b, a, 4, 2, 1)) for a, b in reversed([*itertools.pairwise(sizes)])
        ]
        self.known, self.chance, seen = known, chance, 8 * width * 16
        self.eye = nn.Sequential(*itertools.chain.from_iterable(eye), nn.Flatten())
        self.back = nn.Sequential(
            nn.Linear(known + chance, seen),
            nn.Unflatten(1, (8 * width, 4, 4)),
            *itertools.chain.from_iterable(back),
        )
        self.into, self.cell = nn.Linear(chance + moves, known), nn.GRUCell(known, known)
        self.before = nn.Sequential(nn.Linear(known, known), nn.SiLU(), nn.Linear(known, 2 * chance))
        self.after = nn.Sequential(nn.Linear(known + seen, known), nn.SiLU(), nn.Linear(known, 2 * chance))
        self.reward = nn.Sequential(nn.Linear(known + chance, known), nn.SiLU(), nn.Linear(known, 1))


@case(
    "dreamer-frames",
    "the world model of a Dreamer encodes and decodes its 24 frames one by one, in the loop of its memory; Adam is as "
    "it is by default, and three figures are read",
    "all frames encoded before the loop and decoded after it; the loop of the memory and the rest stay",
    "kernel-loop",
    "operator-loop",
    "launch-bound",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, length, size, known, chance, moves = sized(32, 2), sized(24, 3), 64, sized(256, 8), sized(32, 4), 6
    model = Dreamer(sized(32, 2), known, chance, moves).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    frames = torch.rand(length, batch, 3, size, size, device=DEVICE)
    moved = F.one_hot(torch.randint(moves, (length, batch), device=DEVICE), moves).float()
    rewards = torch.randn(length, batch, device=DEVICE)
    noise = torch.randn(length, batch, chance, device=DEVICE)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        memory, drawn = torch.zeros(batch, known, device=DEVICE), torch.zeros(batch, chance, device=DEVICE)
        seen = None if bad else model.eye(frames.flatten(0, 1)).unflatten(0, (length, batch))
        states, guesses, found, wrong = [], [], [], torch.zeros((), device=DEVICE)
        for i in range(length):
            memory = model.cell(F.silu(model.into(torch.cat([drawn, moved[i]], 1))), memory)
            guesses.append(model.before(memory))
            now = model.eye(frames[i]) if seen is None else seen[i]  # cost: dreamer-frames
            found.append(model.after(torch.cat([memory, now], 1)))
            mean, spread = found[-1].chunk(2, 1)
            drawn = mean + (F.softplus(spread) + 0.1) * noise[i]
            states.append(torch.cat([memory, drawn], 1))
            if bad:
                wrong = wrong + F.mse_loss(model.back(states[-1]), frames[i]) / length  # cost: dreamer-frames
        known_then = torch.cat(states)
        if not bad:
            wrong = F.mse_loss(model.back(known_then), frames.flatten(0, 1))
        (a, b), (c, d) = (torch.cat(parts).chunk(2, 1) for parts in (found, guesses))
        b, d = F.softplus(b) + 0.1, F.softplus(d) + 0.1
        apart = (d.log() - b.log() + (b**2 + (a - c) ** 2) / (2 * d**2) - 0.5).sum(1).mean()
        missed = F.mse_loss(model.reward(known_then).view(length, batch), rewards)
        log["frames"], log["apart"], log["rewards"] = wrong.item(), apart.item(), missed.item()
        return wrong + 0.1 * apart + missed

    return trained(model, loss, optimizer=optimizer, autocast=False)


def siamese(width: int) -> nn.Sequential:
    """Return five convolutions like those of AlexNet, without padding."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 11, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(width, 3 * width, 5), nn.BatchNorm2d(3 * width), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(3 * width, 4 * width, 3), nn.BatchNorm2d(4 * width), nn.ReLU()),
        *(nn.Conv2d(4 * width, 4 * width, 3), nn.BatchNorm2d(4 * width), nn.ReLU()),
        nn.Conv2d(4 * width, 3 * width, 3),
    )


@case(
    "tracker-peak",
    "a Siamese tracker reads where each of 16 things is in each frame, to cut what it looks at in the next one",
    "the places stay on the GPU, which picks rows and columns by them: the same cuts",
    "item-each-step",
    "size-from-device",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    things, length, high, wide, part = (
        sized(16, 2),
        sized(12, 3),
        sized(360, 160),
        sized(640, 170),
        sized(255, 127),
    )
    model = siamese(sized(64, 4)).to(DEVICE, memory_format=torch.channels_last).eval()
    clips = torch.randint(256, (things, length, 3, high, wide), dtype=torch.uint8, device=DEVICE)
    known = torch.rand(things, 3, sized(127, 87), sized(127, 87), device=DEVICE)
    one, span = torch.arange(things, device=DEVICE), torch.arange(part, device=DEVICE)
    limits = high - part, wide - part

    def moved(begin: Any, peak: Any, most: int) -> Any:
        """Return where a cut begins: as far from the last one as the peak is from the middle."""
        begin = begin + peak
        return min(max(begin, 0), most) if bad else begin.clamp(0, most)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        found = []
        with torch.autocast(DEVICE, dtype=BF16):
            kernels = model(known)
            if bad:
                rows, columns = [limits[0] // 2] * things, [limits[1] // 2] * things
            else:
                rows, columns = (torch.full((things,), most // 2, device=DEVICE) for most in limits)
            for i in range(length):
                if bad:
                    cuts = [
                        clips[j, i, :, y : y + part, x : x + part]
                        for j, (y, x) in enumerate(zip(rows, columns, strict=True))
                    ]
                    cut = torch.stack(cuts)  # cost: tracker-peak
                else:
                    at_rows, at_columns = (
                        (rows[:, None] + span)[..., None],
                        (columns[:, None] + span)[:, None],
                    )
                    cut = clips[:, i].movedim(1, -1)[one[:, None, None], at_rows, at_columns].movedim(-1, 1)
                seen = model(cut.float() / 255)
                alike = F.conv2d(seen.flatten(0, 1)[None], kernels, groups=things)[0]
                side = alike.shape[-1]
                peaks = alike.flatten(1).argmax(1)
                found.append(peaks)
                if bad:
                    for j in range(things):
                        y, x = divmod(peaks[j].item(), side)  # cost: tracker-peak
                        rows[j] = moved(rows[j], 4 * (y - side // 2), limits[0])
                        columns[j] = moved(columns[j], 4 * (x - side // 2), limits[1])
                else:
                    rows = moved(rows, 4 * (peaks // side - side // 2), limits[0])
                    columns = moved(columns, 4 * (peaks % side - side // 2), limits[1])
        return torch.stack(found)

    return step
