"""Steps on a GPU with a planted cost: one that a reviewer would want found, in models of ordinary repositories.

``whisper-softmax``, ``pointnet-xyz``, ``simclr-jitter``, ``dlrm-rows``, ``superglue-double``, ``pix2pix-again`` and
``captioner-report`` are meant to be bound by the GPU, the others by the host. Two have a second, smaller cost, which
the fix leaves: ``whisper-softmax`` and ``vae-hooks``. The Python of ``captioner-report`` runs while the GPU is busy
with the step before, so that its fix is expected to win next to nothing. ``reranker-adapters`` is an inference loop.
Every fix computes what its step computes: the same numbers, up to the order of sums or, in ``superglue-double``, up to
their precision.
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections import Counter
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
    pinned,
    sized,
    trained,
)


class Layer(nn.Module):
    """A transformer layer with its norms first."""

    def __init__(self, width: int, attend: Callable[..., torch.Tensor], causal: bool = False) -> None:
        super().__init__()
        self.heads, self.attend, self.how = max(2, width // 64), attend, {"is_causal": True} if causal else {}
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        y = self.before(x)
        seen = y if other is None else other
        parts = (self.query(y), self.key(seen), self.value(seen))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(self.attend(q, k, v, **self.how).transpose(1, 2).flatten(2))
        return x + self.net(self.between(x))


def stack(width: int, depth: int, attend: Any = F.scaled_dot_product_attention, causal: bool = False) -> Any:
    return nn.Sequential(*(Layer(width, attend, causal) for _ in range(depth)))


# -- bound by the GPU ---------------------------------------------------------------------------------------


def careful_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as Whisper has it: both factors are scaled, and the shares are of full precision."""
    scale = q.shape[-1] ** -0.25  # cost: whisper-softmax
    qk = (q * scale) @ (k * scale).transpose(-1, -2)  # cost: whisper-softmax
    qk = qk.float()  # cost: whisper-softmax
    share = F.softmax(qk, dim=-1).to(q.dtype)  # cost: whisper-softmax
    return share @ v  # cost: whisper-softmax


class AudioEncoder(nn.Module):
    """The encoder of a Whisper, with a letter for each frame."""

    def __init__(self, mels: int, frames: int, width: int, depth: int, letters: int, attend: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(mels, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        times = torch.arange(frames // 2)[:, None] * torch.logspace(0, -4, width // 2)
        self.register_buffer("places", torch.cat([times.sin(), times.cos()], 1))
        self.layers = stack(width, depth, attend)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.second(F.gelu(self.first(mels)))).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)))


@case(
    "whisper-softmax",
    "the attention of a Whisper encoder over 768 frames is written out, with its softmax in float32; its batch is "
    "copied from pageable memory",
    "scaled_dot_product_attention; the copy stays",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, mels, frames, letters = sized(16, 2), sized(80, 6), sized(1536, 16), sized(64, 5)
    attend = careful_attention if bad else F.scaled_dot_product_attention
    model = AudioEncoder(mels, frames, sized(1024, 16), sized(12, 2), letters, attend).to(DEVICE)
    turn = itertools.cycle([torch.randn(batch, mels, frames) for _ in range(3)])
    y = torch.randint(letters, (batch, frames // 2), device=DEVICE).flatten()
    return trained(model, lambda: F.cross_entropy(model(next(turn).to(DEVICE)).float().flatten(0, 1), y))


class SetAbstraction(nn.Module):
    """A stage of a PointNet++: what the neighbours of some of the points are like, and where they lie."""

    def __init__(self, a: int, b: int, more: int) -> None:
        super().__init__()
        self.more, first = more, nn.Linear(a + 3, b)
        if more:
            first.weight = nn.Parameter(F.pad(first.weight.detach(), (0, more)))
        self.net = nn.Sequential(
            *(first, nn.LayerNorm(b), nn.ReLU()),
            *(nn.Linear(b, b), nn.LayerNorm(b), nn.ReLU(), nn.Linear(b, b)),
        )

    def forward(
        self, x: torch.Tensor, places: torch.Tensor, near: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        centres = places[:, : near.shape[1]]
        rows = near + torch.arange(len(x), device=x.device)[:, None, None] * x.shape[1]
        parts = [
            all_.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, near.shape)
            for all_ in (x, places)
        ]
        parts[1] = (parts[1] - centres[:, :, None]).to(x.dtype)
        if self.more:
            parts.append(x.new_zeros(*near.shape, self.more))
        grouped = torch.cat(parts, -1)  # cost: pointnet-xyz
        return self.net(grouped).amax(2), centres  # cost: pointnet-xyz


class PointNet(nn.Module):
    """What a cloud of points is."""

    def __init__(self, widths: tuple[int, ...], kinds: int, more: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, widths[0])
        self.stages = nn.ModuleList(SetAbstraction(a, b, more) for a, b in itertools.pairwise(widths))
        self.head = nn.Linear(widths[-1], kinds)

    def forward(self, places: torch.Tensor, near: list[torch.Tensor]) -> torch.Tensor:
        x = F.relu(self.first(places))
        for stage, those in zip(self.stages, near, strict=True):
            x, places = stage(x, places, those)
        return self.head(x.mean(1))


@case(
    "pointnet-xyz",
    "the places of the neighbours are appended to their 128, 256 or 512 features in a PointNet++: 131, 259 and 515 "
    "columns, a width of which matrix products are slow",
    "five columns of zeros more",
    "unaligned-matmul",
)
def _(bad: bool) -> Step:
    batch, kinds = sized(16, 2), sized(40, 5)
    points, counts, k = sized(4096, 32), ((2048, 1024, 256) if ON_GPU else (16, 8)), sized(24, 4)
    widths = (128, 256, 512, 768) if ON_GPU else (8, 16, 16)
    model = PointNet(widths, kinds, 0 if bad else 5).to(DEVICE)
    places = torch.rand(batch, points, 3, device=DEVICE)
    near = [
        torch.randint(have, (batch, count, k), device=DEVICE)
        for have, count in zip((points, *counts), counts, strict=False)
    ]
    y = torch.randint(kinds, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(places, near).float(), y))


class BasicBlock(nn.Module):
    """The block of a shallow residual network."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        stride = 1 if a == b else 2
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)),
        )
        self.side: nn.Module = nn.Identity()
        if a != b:
            self.side = nn.Sequential(nn.Conv2d(a, b, 1, 2, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def resnet18(width: int, out: int) -> nn.Sequential:
    """ResNet-18 with a projection."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        *(nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
    ]
    for i in range(4):
        a, b = width * 2 ** max(0, i - 1), width * 2**i
        layers += [BasicBlock(a, b), BasicBlock(b, b)]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *flat, nn.Linear(b, b), nn.ReLU(), nn.Linear(b, out))


def grey(x: torch.Tensor) -> torch.Tensor:
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]  # cost: simclr-jitter


def jitter(images: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
    """Change the colours of images of bytes, each as its row of six random numbers says, and normalize them."""
    light, contrast, colour, angle, greyed, flipped = how[:, :, None, None, None].unbind(1)
    x = images.float() / 255  # cost: simclr-jitter
    x = (x * (0.6 + 0.8 * light)).clamp(0, 1)  # cost: simclr-jitter
    mean = grey(x).mean((2, 3), keepdim=True)
    x = (mean + (x - mean) * (0.6 + 0.8 * contrast)).clamp(0, 1)  # cost: simclr-jitter
    one = grey(x)
    x = (one + (x - one) * (0.6 + 0.8 * colour)).clamp(0, 1)  # cost: simclr-jitter
    r, g, b = x.split(1, 1)
    y = 0.299 * r + 0.587 * g + 0.114 * b  # cost: simclr-jitter
    i = 0.596 * r - 0.274 * g - 0.322 * b  # cost: simclr-jitter
    q = 0.211 * r - 0.523 * g + 0.312 * b  # cost: simclr-jitter
    s, c = (0.6 * (angle - 0.5)).sin(), (0.6 * (angle - 0.5)).cos()
    i, q = i * c - q * s, i * s + q * c  # cost: simclr-jitter
    r = y + 0.956 * i + 0.621 * q  # cost: simclr-jitter
    g = y - 0.272 * i - 0.647 * q  # cost: simclr-jitter
    b = y - 1.106 * i + 1.703 * q  # cost: simclr-jitter
    x = torch.cat([r, g, b], 1).clamp(0, 1)  # cost: simclr-jitter
    x = torch.where(greyed < 0.2, grey(x), x)  # cost: simclr-jitter
    x = torch.where((flipped < 0.1) & (x > 0.5), 1 - x, x)  # cost: simclr-jitter
    return (x - 0.45) / 0.225  # cost: simclr-jitter


@case(
    "simclr-jitter",
    "the colours of the 512 views of a SimCLR are changed on the GPU in float32, operator by operator",
    "torch.compile of that function",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    batch, size, out = sized(256, 4), sized(224, 32), sized(128, 8)
    model = channels_last(resnet18(sized(64, 4), out).to(DEVICE))
    images = torch.randint(256, (batch, 3, size, size), device=DEVICE, dtype=torch.uint8)
    change = jitter if bad or not ON_GPU else torch.compile(jitter, dynamic=False)
    partner = torch.arange(2 * batch, device=DEVICE).roll(batch)
    itself = torch.eye(2 * batch, device=DEVICE, dtype=torch.bool)

    def loss() -> torch.Tensor:
        twice = torch.cat([images, images])
        views = change(twice, torch.rand(2 * batch, 6, device=DEVICE))
        z = F.normalize(model(channels_last(views)).float(), dim=1)
        near = (z @ z.T / 0.2).masked_fill(itself, -1e9)
        return F.cross_entropy(near, partner)

    return trained(model, loss)


class ClickModel(nn.Module):
    """A DLRM: how likely a click is, from large tables and how their rows agree."""

    def __init__(self, tables: int, rows: int, width: int, numbers: int, hidden: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse)  # cost: dlrm-rows
            for _ in range(tables)
        )
        self.bottom = nn.Sequential(
            *(nn.Linear(numbers, hidden // 4), nn.ReLU(), nn.Linear(hidden // 4, width), nn.ReLU())
        )
        self.pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        a = len(self.pairs[0]) + width
        self.top = nn.Sequential(
            *(nn.Linear(a, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1)),
        )

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        rows = [table(ids[i]) for i, table in enumerate(self.tables)]
        x = torch.stack([dense.float(), *rows], 1)
        agree = (x @ x.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, agree], 1)).squeeze(1)


@case(
    "dlrm-rows",
    "the gradients of the eight tables of a DLRM, each of three million rows, are dense, and SGD goes over all rows",
    "sparse=True: the same rows change by the same amount",
    "dense-embedding-gradient",
)
def _(bad: bool) -> Step:
    batch, tables, rows, numbers = sized(65_536, 8), sized(8, 3), sized(3_000_000, 40), 16
    with torch.device(DEVICE):
        model = ClickModel(tables, rows, sized(64, 8), numbers, sized(2048, 16), sparse=not bad)
        x = torch.randn(batch, numbers)
        ids = torch.randint(rows, (tables, batch, 4))
        y = torch.rand(batch).round()
    return trained(
        model,
        lambda: F.binary_cross_entropy_with_logits(model(x, ids).float(), y),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
    )


class Matcher(nn.Module):
    """A SuperGlue: which point of one image is which of another."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.places = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Layer(width, F.scaled_dot_product_attention) for _ in range(2 * depth))
        self.last, self.bin = nn.Linear(width, width), nn.Parameter(torch.ones(()))

    def forward(self, found: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = found + self.places(places)
        for i, layer in enumerate(self.layers):
            x = layer(x, x.unflatten(0, (2, -1)).flip(0).flatten(0, 1) if i % 2 else None)
        one, other = self.last(x).chunk(2)
        return one @ other.transpose(1, 2) * one.shape[-1] ** -0.5


def transported(scores: torch.Tensor, unmatched: torch.Tensor, turns: int) -> torch.Tensor:
    """Return the logarithms of the best assignment, with a bin for the points that have no partner."""
    count = scores.shape[-1]
    edge = unmatched.to(scores.dtype).expand(len(scores), count + 1, 1)
    scores = torch.cat(
        [torch.cat([scores, edge[:, 1:]], 2), edge.transpose(1, 2)], 1
    )  # cost: superglue-double
    mass = scores.new_zeros(len(scores), count + 1)
    mass[:, -1] = math.log(count)
    mass = mass - math.log(2 * count)
    u, v = torch.zeros_like(mass), torch.zeros_like(mass)
    for _ in range(turns):
        u = mass - torch.logsumexp(scores + v[:, None], 2)  # cost: superglue-double
        v = mass - torch.logsumexp(scores + u[:, :, None], 1)  # cost: superglue-double
    return scores + u[:, :, None] + v[:, None] + math.log(2 * count)  # cost: superglue-double


@case(
    "superglue-double",
    "a SuperGlue assigns its 1023 points in twenty turns of Sinkhorn's algorithm in float64, to be on the safe side",
    "float32",
    "float64",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    batch, points, width, turns = sized(16, 2), sized(1023, 7), sized(256, 16), sized(20, 3)
    model = Matcher(width, sized(9, 1)).to(DEVICE)
    found = torch.randn(2 * batch, points, width, device=DEVICE)
    places = torch.rand(2 * batch, points, 3, device=DEVICE)
    partner = torch.stack([torch.randperm(points, device=DEVICE) for _ in range(batch)])[:, :, None]

    def loss() -> torch.Tensor:
        scores = model(found, places)
        with torch.autocast(DEVICE, enabled=False):
            scores = scores.double() if bad else scores.float()  # cost: superglue-double
            return -transported(scores, model.bin, turns)[:, :-1].gather(2, partner).mean()

    return trained(model, loss)


def normed(conv: nn.Module, width: int) -> list[nn.Module]:
    """Return a convolution with a norm by what is in the batch, as pix2pix uses it in inference too."""
    return [conv, nn.BatchNorm2d(width, track_running_stats=False), nn.ReLU(inplace=True)]


class Residual(nn.Module):
    """A block in the middle of the generator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        convs = [nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(2)]
        self.body = nn.Sequential(*normed(convs[0], width), *normed(convs[1], width)[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def generator(width: int, depth: int) -> nn.Sequential:
    """Images of another kind from images."""
    b, c = 2 * width, 4 * width
    return nn.Sequential(
        *normed(nn.Conv2d(3, width, 7, 1, 3, bias=False), width),
        *normed(nn.Conv2d(width, b, 3, 2, 1, bias=False), b),
        *normed(nn.Conv2d(b, c, 3, 2, 1, bias=False), c),
        *(Residual(c) for _ in range(depth)),
        *normed(nn.ConvTranspose2d(c, b, 4, 2, 1, bias=False), b),
        *normed(nn.ConvTranspose2d(b, width, 4, 2, 1, bias=False), width),
        *(nn.Conv2d(width, 3, 7, 1, 3), nn.Tanh()),
    )


def discriminator(width: int) -> nn.Sequential:
    """Whether each patch of an image is real."""
    layers: list[nn.Module] = [nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for a, stride in ((width, 2), (2 * width, 2), (4 * width, 1)):
        layers += normed(nn.Conv2d(a, 2 * a, 4, stride, 1, bias=False), 2 * a)[:2]
        layers.append(nn.LeakyReLU(0.2))
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 1))


@case(
    "pix2pix-again",
    "a pix2pix generates the same images twice in a step, once to train the discriminator and once to train the "
    "generator",
    "the images generated first are used in both",
    "repeated-forward",
    "unused-graph",
)
def _(bad: bool) -> Step:
    batch, size, width = sized(10, 2), sized(256, 32), sized(64, 4)
    make = channels_last(generator(width, sized(9, 1)).to(DEVICE))
    judge = channels_last(discriminator(width).to(DEVICE))
    optimizers = [adamw(model, betas=(0.5, 0.999)) for model in (judge, make)]
    x, y = (channels_last(torch.rand(batch, 3, size, size, device=DEVICE)) for _ in range(2))

    def verdict(image: torch.Tensor, real: bool) -> torch.Tensor:
        out = judge(torch.cat([x, image], 1)).float()
        return F.mse_loss(out, torch.full_like(out, float(real)))

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            fake = make(x)  # cost: pix2pix-again
            loss = (verdict(y, True) + verdict(fake.detach(), False)) / 2
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad(set_to_none=True)
        judge.requires_grad_(False)
        with torch.autocast(DEVICE, dtype=BF16):
            if bad:
                fake = make(x)  # cost: pix2pix-again
            loss = verdict(fake, True) + 100 * F.l1_loss(fake.float(), y)
        loss.backward()
        judge.requires_grad_(True)
        optimizers[1].step()
        optimizers[1].zero_grad(set_to_none=True)

    return step


class Captioner(nn.Module):
    """A vision-language model: patches of an image in front of its caption."""

    def __init__(self, words: int, patches: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.patches, self.words = nn.Conv2d(3, width, 16, 16), nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(patches + length, width) * 0.02)
        self.layers = stack(width, depth, causal=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        seen = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([seen, self.words(ids).to(seen.dtype)], 1) + self.places
        return self.head(self.norm(self.layers(x)[:, seen.shape[1] :]))


def overlap(one: list[int], other: list[int]) -> int:
    """Return how many runs of one to four words two captions share."""
    shared = 0
    for n in range(1, 5):  # cost: captioner-report
        mine = Counter(tuple(one[i : i + n]) for i in range(len(one) - n + 1))  # cost: captioner-report
        theirs = Counter(tuple(other[i : i + n]) for i in range(len(other) - n + 1))  # cost: captioner-report
        shared += sum((mine & theirs).values())  # cost: captioner-report
    return shared


@case(
    "captioner-report",
    "how much the two captions of each image of the batch have in common is counted in Python in each step, while the "
    "GPU is still busy with the step before",
    "counted once, before training: next to nothing is won",
    "python-time",
)
def _(bad: bool) -> Step:
    batch, size, length, words = sized(64, 2), sized(224, 32), sized(60, 6), sized(16_384, 40)
    model = Captioner(words, (size // 16) ** 2, length, sized(1024, 32), sized(16, 2)).to(DEVICE)
    images = torch.randn(batch, 3, size, size, device=DEVICE)
    ids = torch.randint(words, (batch, length + 1))
    captions = ids[:, 1:].tolist()
    others = [one[length // 2 :] + one[: length // 2] for one in captions]
    known = None if bad else sum(map(overlap, captions, others))
    ids = ids.to(DEVICE)
    report: list[int] = []

    def loss() -> torch.Tensor:
        report.append(
            sum(map(overlap, captions, others)) if known is None else known
        )  # cost: captioner-report
        return F.cross_entropy(model(images, ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    return trained(model, loss)


# -- bound by the host --------------------------------------------------------------------------------------


def with_loops(edges: torch.Tensor, nodes: int) -> torch.Tensor:
    """Return edges with one from each node to itself, as PyTorch Geometric makes them in its layers."""
    edges = edges[:, edges[0] != edges[1]]  # cost: gat-loops
    loops = torch.arange(nodes, device=edges.device)  # cost: gat-loops
    return torch.cat([edges, loops.expand(2, -1)], 1)  # cost: gat-loops


class GraphAttention(nn.Module):
    """A layer of a GAT."""

    def __init__(self, width: int, heads: int, own_loops: bool) -> None:
        super().__init__()
        self.heads, self.own_loops = heads, own_loops
        self.project, self.norm = nn.Linear(width, width, bias=False), nn.LayerNorm(width)
        self.source, self.target = (nn.Parameter(torch.randn(heads, width // heads) * 0.1) for _ in range(2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        if self.own_loops:
            edges = with_loops(edges, len(x))  # cost: gat-loops
        source, target = edges
        h = self.project(x).float().unflatten(1, (self.heads, -1))
        score = (h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        where = target[:, None].expand_as(score)
        most = score.new_zeros(len(x), self.heads).scatter_reduce(0, where, score.detach(), "amax")
        share = (score - most[target]).exp()
        total = score.new_zeros(len(x), self.heads).index_add(0, target, share)
        share = share / total[target]
        out = torch.zeros_like(h).index_add(0, target, h[source] * share[..., None])
        return x + F.elu(self.norm(out.flatten(1)))


class Molecules(nn.Module):
    """A property of each of a batch of molecules."""

    def __init__(self, kinds: int, width: int, heads: int, depth: int, own_loops: bool) -> None:
        super().__init__()
        self.atoms = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(GraphAttention(width, heads, own_loops) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(
        self, atoms: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, count: int
    ) -> torch.Tensor:
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x.new_zeros(count, x.shape[1]).index_add(0, graph, x)).squeeze(1)


@case(
    "gat-loops",
    "each of the eight layers of a GAT removes the edges from a node to itself, by a boolean mask on the GPU, and adds "
    "one for each node",
    "done once to each batch, when it is made",
    "size-from-device",
    "repeated-in-layers",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    graphs, atoms, kinds = sized(128, 3), sized(24, 5), sized(28, 4)
    model = Molecules(kinds, sized(128, 8), sized(4, 2), sized(8, 2), bad).to(DEVICE)
    draw, batches = np.random.default_rng(0), []
    for _ in range(4):
        local = draw.integers(0, atoms, (graphs, 2, 2 * atoms)) + atoms * np.arange(graphs)[:, None, None]
        edges = torch.from_numpy(local.transpose(1, 0, 2).reshape(2, -1).copy()).to(DEVICE)
        edges = edges if bad else with_loops(edges, graphs * atoms)
        batches.append((torch.from_numpy(draw.integers(0, kinds, graphs * atoms)).to(DEVICE), edges))
    turn = itertools.cycle(batches)
    graph = torch.arange(graphs, device=DEVICE).repeat_interleave(atoms)
    y = torch.randn(graphs, device=DEVICE)
    return trained(model, lambda: F.l1_loss(model(*next(turn), graph, graphs), y), autocast=False)


class Translator(nn.Module):
    """Translates word by word, looking back at the source with additive attention."""

    def __init__(self, words: int, width: int, once: bool) -> None:
        super().__init__()
        self.once = once
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.ask, self.keys, self.score = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1, bias=False),
        )
        self.cell, self.head = nn.GRUCell(2 * width, width), nn.Linear(2 * width, words)

    def look(self, state: torch.Tensor, seen: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        if keys is None:
            keys = self.keys(seen)  # cost: seq2seq-keys
        share = self.score(torch.tanh(self.ask(state)[:, None] + keys)).softmax(1)
        return (share.transpose(1, 2).to(seen.dtype) @ seen).squeeze(1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen, last = self.encoder(self.source(x))
        keys = self.keys(seen) if self.once else None
        state = last.transpose(0, 1).flatten(1)
        outs = []
        for word in self.target(y).unbind(1):
            context = self.look(state, seen, keys)  # cost: seq2seq-keys
            state = self.cell(torch.cat([word, context.to(word.dtype)], 1), state)
            outs.append(torch.cat([state, context], 1))
        return self.head(torch.stack(outs, 1))


@case(
    "seq2seq-keys",
    "the additive attention of a GRU translator projects the encoded source again for each of the 32 words it writes",
    "projected once, before the loop",
    "repeated-in-layers",
    "repeated-forward",
    may_precede=("operator-loop", "kernel-loop", "launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(64, 2), sized(32, 5), sized(8192, 20)
    model = Translator(words, sized(256, 8), once=not bad).to(DEVICE)
    x = torch.randint(words, (batch, length + 8), device=DEVICE)
    y = torch.randint(words, (batch, length + 1), device=DEVICE)
    return trained(
        model, lambda: F.cross_entropy(model(x, y[:, :-1]).float().flatten(0, 1), y[:, 1:].flatten())
    )


class Pendulums:
    """Many worlds at once, on the CPU: a state that turns, and is pushed by actions."""

    def __init__(self, count: int, size: int, actions: int) -> None:
        draw = np.random.default_rng(0)
        self.state = draw.standard_normal((count, size)).astype(np.float32)
        self.turn = np.linalg.qr(draw.standard_normal((size, size)))[0].astype(np.float32)
        self.push = draw.standard_normal((actions, size)).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.state = np.tanh(self.state @ self.turn + 0.1 * self.push[action])
        return self.state, -np.abs(self.state).mean(1)


class ActorCritic(nn.Module):
    """What to do, and what is to be expected."""

    def __init__(self, size: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return self.actor(x).log_softmax(-1), self.critic(x).squeeze(-1)


@case(
    "a2c-reads",
    "in each of the 24 steps of a rollout the value, the log-probability and the probabilities of an A2C policy are "
    "copied to the host beside the action, one after the other",
    "only the action; the others are kept on the GPU and copied once after the rollout",
    "array-read",
    "waits-in-turn",
    "awaited-copies",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step", "operator-loop", "kernel-loop"),
)
def _(bad: bool) -> Step:
    count, size, actions, turns = sized(64, 3), sized(48, 5), sized(12, 3), sized(24, 3)
    model = ActorCritic(size, sized(256, 8), actions).to(DEVICE)
    optimizer, world = adamw(model), Pendulums(count, size, actions)
    log: dict[str, float] = {}

    @torch.no_grad()
    def rollout() -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], list[list[Any]]]:
        seen, acted, rewards = [], [], []
        kept: list[list[Any]] = [[], [], []]
        for _ in range(turns):
            state = world.state
            every, value = model(torch.from_numpy(state).to(DEVICE))
            action = (every - torch.empty_like(every).exponential_().log()).argmax(-1)
            chosen = every.gather(1, action[:, None]).squeeze(1)
            outs = (value, chosen, every.exp())
            if bad:
                outs = tuple(out.cpu().numpy() for out in outs)  # cost: a2c-reads
            for those, out in zip(kept, outs, strict=True):
                those.append(out)
            done = action.cpu().numpy()
            seen.append(state)
            acted.append(done)
            rewards.append(world.step(done)[1])
        return seen, acted, rewards, kept

    def step() -> None:
        seen, acted, rewards, kept = rollout()
        if bad:
            values, old, shares = (np.stack(those) for those in kept)
        else:
            flat = torch.cat([torch.stack(those).flatten() for those in kept]).cpu().numpy()
            values, old, shares = np.split(flat, np.cumsum([turns * count] * 2))
            values = values.reshape(turns, count)
        log["entropy"] = float(-(shares * np.log(shares + 1e-9)).sum() / (turns * count))
        log["chosen"] = float(old.mean())
        ahead, returns = np.zeros(count, np.float32), np.empty_like(values)
        for i in reversed(range(turns)):
            ahead = rewards[i] + 0.95 * ahead
            returns[i] = ahead
        batch = [np.concatenate(seen), np.concatenate(acted), returns.ravel(), (returns - values).ravel()]
        x, a, r, advantage = (torch.from_numpy(part).to(DEVICE) for part in batch)
        every, value = model(x)
        policy = -(every.gather(1, a[:, None]).squeeze(1) * advantage).mean()
        entropy = -(every.exp() * every).sum(-1).mean()
        (policy + 0.5 * F.mse_loss(value, r) - 0.01 * entropy).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class ResidualConv(nn.Module):
    """A narrow block of a deep VAE."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.GELU(), nn.Conv2d(width, width // 2, 1), nn.GELU()),
            *(nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.GELU(), nn.Conv2d(width // 2, width, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class DeepVAE(nn.Module):
    """Images by way of a few numbers each."""

    def __init__(self, width: int, depth: int, few: int) -> None:
        super().__init__()
        self.few = few
        down, up = ([ResidualConv(width) for _ in range(depth)] for _ in range(2))
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 4, 4), *down, nn.Conv2d(width, 2 * few, 1))
        self.decoder = nn.Sequential(nn.Conv2d(few, width, 1), *up, nn.ConvTranspose2d(width, 3, 4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(x).float().chunk(2, 1)
        spread = spread.clamp(-8, 8)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decoder(z), 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()


@case(
    "vae-hooks",
    "each parameter of a deep VAE has an AdamW of its own, which a hook steps as soon as its gradient is there, to "
    "save memory; three losses are read in each step",
    "one AdamW(fused=True) after backward; the losses are read as before",
    "single-tensor-optimizer",
    "unfused-optimizer",
    "operator-loop",
    "kernel-loop",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, size = sized(32, 2), sized(64, 16)
    model = DeepVAE(sized(128, 8), sized(16, 2), sized(16, 2)).to(DEVICE)
    x = torch.rand(batch, 3, size, size, device=DEVICE)
    bar: dict[str, float] = {}
    if bad:
        each = {p: torch.optim.AdamW([p], lr=1e-4) for p in model.parameters()}  # cost: vae-hooks

        def updated(p: torch.Tensor) -> None:
            each[p].step()  # cost: vae-hooks
            each[p].zero_grad()  # cost: vae-hooks

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(updated)
    optimizer = None if bad else adamw(model)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            out, divergence = model(x)
            rebuilt = F.mse_loss(out.float(), x)
            loss = rebuilt + 0.01 * divergence
        bar.update(loss=loss.item(), rebuilt=rebuilt.item(), divergence=divergence.item())
        loss.backward()  # cost: vae-hooks
        if optimizer:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


class NoiseBlock(nn.Module):
    """A residual block of a diffusion model."""

    def __init__(self, a: int, b: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
        self.time, self.side = nn.Linear(time, 2 * b), nn.Conv2d(a, b, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scale, shift = self.time(F.silu(t))[..., None, None].chunk(2, 1)
        y = self.second(self.convs[0](F.silu(self.first(x)))) * (1 + scale) + shift
        return self.side(x) + self.convs[1](F.silu(y))


class Denoiser(nn.Module):
    """The U-Net of a diffusion model for small images."""

    def __init__(self, width: int, levels: int, time: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        widths = [width * min(4, 2**i) for i in range(levels)]
        self.down, self.up, a = nn.ModuleList(), nn.ModuleList(), width
        for b in widths:
            self.down += [NoiseBlock(a, b, time), NoiseBlock(b, b, time)]
            a = b
        self.middle = NoiseBlock(a, a, time)
        for b in [*widths[-2::-1], width]:
            self.up += [NoiseBlock(2 * a, a, time), NoiseBlock(2 * a, b, time)]
            a = b

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x, t, kept = self.first(x), self.time(t), []
        for i, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if i and i % 2 == 0 else x, t)
            kept.append(x)
        x = self.middle(x, t)
        for i, block in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2) if i and i % 2 == 0 else x
            x = block(torch.cat([x, kept.pop()], 1), t)
        return self.last(x)


class Stopwatch:
    """Measures how long the forward pass of each block takes, by waiting for the GPU before it and after it."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.began, self.total = 0.0, dict.fromkeys(blocks, 0.0)
        for block in blocks:
            block.register_forward_pre_hook(self.before)
            block.register_forward_hook(self.after)

    def wait(self) -> None:
        if ON_GPU:
            torch.cuda.synchronize()  # cost: ddpm-breakdown

    def before(self, _block: nn.Module, _given: Any) -> None:
        self.wait()  # cost: ddpm-breakdown
        self.began = time.perf_counter()

    def after(self, block: nn.Module, _given: Any, _out: Any) -> None:
        self.wait()  # cost: ddpm-breakdown
        self.total[block] += time.perf_counter() - self.began


class EventStopwatch:
    """Measures the same by events in the stream, of one step in a hundred."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.turn, self.total = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0.0)
        self.marks: dict[nn.Module, list[torch.cuda.Event]] = {}
        for block in blocks:
            block.register_forward_pre_hook(self.before)
            block.register_forward_hook(self.after)

    def before(self, block: nn.Module, _given: Any) -> None:
        if ON_GPU and self.turn[block] % 100 == 0:
            if block in self.marks:
                self.total[block] += self.marks[block][0].elapsed_time(self.marks[block][1])
            self.marks[block] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.marks[block][0].record()

    def after(self, block: nn.Module, _given: Any, _out: Any) -> None:
        if ON_GPU and self.turn[block] % 100 == 0:
            self.marks[block][1].record()
        self.turn[block] += 1


@case(
    "ddpm-breakdown",
    "hooks wait for the GPU before and after each block of the U-Net of a diffusion model, to tell how long each takes",
    "events in the stream, in one step of a hundred",
    "explicit-wait",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, width, steps = sized(24, 2), sized(32, 16), sized(96, 8), 1000
    model = Denoiser(width, sized(4, 2), width).to(DEVICE)
    blocks = [block for block in model.modules() if isinstance(block, NoiseBlock)]
    (Stopwatch if bad else EventStopwatch)(blocks)
    kept = torch.linspace(0.9999, 0.98, steps, device=DEVICE).cumprod(0)
    rates = torch.logspace(0, -4, width // 2, device=DEVICE)
    images = torch.randn(batch, 3, size, size, device=DEVICE)

    def loss() -> torch.Tensor:
        t = torch.randint(steps, (batch,), device=DEVICE)
        noise, share = torch.randn_like(images), kept[t][:, None, None, None]
        angles = t[:, None] * rates
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        return F.mse_loss(model(noisy, torch.cat([angles.sin(), angles.cos()], 1)).float(), noise)

    return trained(model, loss)


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images with captions; the images are kept as a PNG has them, and unpacked when they are asked for."""

    def __init__(self, count: int, size: int, length: int, words: int) -> None:
        draw, self.size = np.random.default_rng(0), size
        self.crop = size * 7 // 8
        waves = np.linspace(0, 9, size)
        self.packed = []
        for _ in range(count):
            a, b, c = draw.uniform(0.2, 3, (3, 3))
            image = (
                120
                + 60 * np.sin(np.outer(waves, waves)[..., None] * a + b)
                + 30 * np.cos(waves[:, None, None] * c)
            )
            image = (image + draw.integers(0, 6, image.shape)).astype(np.uint8)
            filtered = np.diff(image, axis=1, prepend=np.uint8(0))
            self.packed.append(zlib.compress(filtered.tobytes(), 6))
        self.captions = torch.from_numpy(draw.integers(0, words, (count, length)))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        which = index % len(self.packed)
        filtered = np.frombuffer(zlib.decompress(self.packed[which]), np.uint8)
        image = filtered.reshape(self.size, self.size, 3).cumsum(1, dtype=np.uint8)
        x, y = index * 31 % (self.size - self.crop), index * 17 % (self.size - self.crop)
        image = image[y : y + self.crop, x : x + self.crop]
        image = image[:, ::-1] if index % 3 == 0 else image
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), self.captions[which]


class TwoTowers(nn.Module):
    """A CLIP."""

    def __init__(self, patches: int, words: int, length: int, width: int, depth: int, out: int) -> None:
        super().__init__()
        self.patches, self.words = nn.Conv2d(3, width, 16, 16), nn.Embedding(words, width)
        self.grid = nn.Parameter(torch.randn(patches, width) * 0.02)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.seeing, self.reading = stack(width, depth), stack(width, depth, causal=True)
        self.heads = nn.ModuleList(nn.Linear(width, out, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        seen = self.seeing(self.patches(images).flatten(2).transpose(1, 2) + self.grid).mean(1)
        read = self.reading(self.words(ids) + self.places)[:, -1]
        one, other = (F.normalize(h(x).float(), dim=1) for h, x in zip(self.heads, (seen, read), strict=True))
        return self.scale.exp() * one @ other.T


@case(
    "clip-decode",
    "the images of a CLIP are unpacked by a DataLoader with three workers, which aren't enough",
    "num_workers=14",
    "loader-workers",
)
def _(bad: bool) -> Step:
    batch, size, length, words = sized(64, 3), sized(256, 32), sized(32, 5), sized(8192, 20)
    data = Pairs(sized(256, 6), size, length, words)
    model = TwoTowers((data.crop // 16) ** 2, words, length, sized(384, 16), sized(8, 1), sized(256, 8)).to(
        DEVICE
    )
    workers = sized(3, 1) if bad else sized(14, 2)
    loader = torch.utils.data.DataLoader(
        data, batch, num_workers=workers, pin_memory=ON_GPU
    )  # cost: clip-decode
    batches = iter(loader)
    y = torch.arange(batch, device=DEVICE)

    def loss() -> torch.Tensor:
        pair = next(batches)  # cost: clip-decode
        images, ids = (part.to(DEVICE, non_blocking=True) for part in pair)
        near = model((images - 127.5) / 64, ids)
        return (F.cross_entropy(near, y) + F.cross_entropy(near.T, y)) / 2

    return trained(model, loss)


class Adapted(nn.Module):
    """A linear layer with a LoRA that isn't merged, as a server has it that changes them."""

    def __init__(self, a: int, b: int, rank: int) -> None:
        super().__init__()
        self.base, self.scale = nn.Linear(a, b), 2.0
        self.down, self.up = nn.Linear(a, rank, bias=False), nn.Linear(rank, b, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scale


class AdaptedLayer(nn.Module):
    """A layer of a BERT, with its norms after its parts."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.heads, self.norms = max(2, width // 64), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.ModuleList(Adapted(width, width, rank) for _ in range(3))
        self.out = Adapted(width, width, rank)
        self.up, self.down = Adapted(width, 4 * width, rank), Adapted(4 * width, width, rank)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norms[0](x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Reranker(nn.Module):
    """How well each of a few texts answers a question."""

    def __init__(self, words: int, length: int, width: int, depth: int, rank: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(AdaptedLayer(width, rank) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, mask = self.words(ids) + self.places, (ids != 0)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)  # cost: reranker-adapters
        return self.head(x[:, 0]).squeeze(1).float()


def replayed(model: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> Any:
    """Return a model whose kernels are launched at once, by a CUDA graph."""
    given, stream = like.clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(given)

    def run(ids: torch.Tensor) -> torch.Tensor:
        given.copy_(ids)
        graph.replay()
        return out

    return run


@case(
    "reranker-adapters",
    "a server ranks four texts a question with a BERT of 24 layers and unmerged LoRAs: a thousand small kernels, "
    "launched one by one",
    "a CUDA graph",
    "launch-bound",
    "uncompiled-step",
    marked=True,
)
def _(bad: bool) -> Step:
    texts, length, words = sized(4, 2), sized(128, 12), sized(30_528, 50)
    model = Reranker(words, length, sized(768, 16), sized(24, 2), sized(16, 2)).to(DEVICE).to(BF16).eval()
    draw, known = np.random.default_rng(0), {f"w{i}": i for i in range(1, words)}
    questions = [
        [" ".join(f"w{i}" for i in draw.integers(1, words, length * 3 // 4 + k)) for k in range(texts)]
        for _ in range(7)
    ]
    turn = itertools.cycle(questions)
    host = pinned(torch.zeros(texts, length, dtype=torch.int64))
    with torch.inference_mode():
        first = torch.zeros(texts, length, dtype=torch.int64, device=DEVICE)
        score = model if bad or not ON_GPU else replayed(model, first + 1)

    @torch.inference_mode()
    def step() -> list[int]:
        rows = [[known[word] for word in text.split()] for text in next(turn)]
        host.copy_(torch.tensor([row + [0] * (length - len(row)) for row in rows]))
        scores = score(host.to(DEVICE, non_blocking=True))  # cost: reranker-adapters
        return scores.argsort(descending=True).tolist()

    return step
