"""Steps on a GPU with a planted cost: habits of training scripts, in published models that no earlier set has.

``evoformer-triangle``, ``faces-cosine``, ``clips-variable``, ``codec-snake``, ``restormer-adam`` and
``neighbours-loop`` are meant to be bound by the GPU, the others by the host. Three have more than one cost, of which
the fix takes away the one that wins most: ``codec-snake``, ``flow-deltas`` and ``glow-started``; the rest stays.
``pose-graph`` is an inference loop, and the fix of ``restormer-adam`` is expected to win next to nothing. Every fix
computes what its step computes: the same numbers, up to the order of sums or, in ``faces-cosine``, up to their
precision.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, adamw, case, sent, sized, trained


class Layer(nn.Module):
    """A transformer layer with its norms first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


# -- kernels ------------------------------------------------------------------------------------------------


class TriangleProduct(nn.Module):
    """Updates each pair of residues by the pairs that both make with a third one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = self.norm(pairs)
        a, b = (self.parts(x) * torch.sigmoid(self.gates(x))).chunk(2, -1)
        y = torch.einsum("ikc,jkc->ijc", a, b)
        return torch.sigmoid(self.gate(x)) * self.out(self.after(y))


class TriangleAttention(nn.Module):
    """Attention along the rows of the pairs, with a bias made of the pairs themselves."""

    def __init__(self, width: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = heads, written_out
        self.norm, self.bias = nn.LayerNorm(width), nn.Linear(width, heads, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = self.norm(pairs)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias(x).permute(2, 0, 1).contiguous()[None]
        if self.written_out:
            q = q * q.shape[-1] ** -0.5
            scores = torch.einsum("ihqd,ihkd->ihqk", q, k) + bias  # cost: evoformer-triangle
            share = torch.softmax(scores, dim=-1)  # cost: evoformer-triangle
            y = torch.einsum("ihqk,ihkd->ihqd", share, v)  # cost: evoformer-triangle
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(torch.sigmoid(self.gate(x)) * y.transpose(1, 2).flatten(2))


class PairStack(nn.Module):
    """The part of an Evoformer that sees pairs of residues: how far apart are they?"""

    def __init__(self, width: int, heads: int, depth: int, kinds: int, written_out: bool) -> None:
        super().__init__()
        self.into = nn.Linear(64, width)
        self.products = nn.ModuleList(TriangleProduct(width) for _ in range(depth))
        self.rows, self.columns = (
            nn.ModuleList(TriangleAttention(width, heads, written_out) for _ in range(depth))
            for _ in range(2)
        )
        self.transitions = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        layers = zip(self.products, self.rows, self.columns, self.transitions, strict=True)
        for product, rows, columns, transition in layers:
            x = x + product(x)
            x = x + rows(x)
            x = x + columns(x.transpose(0, 1)).transpose(0, 1)
            x = x + transition(x)
        return self.head(x + x.transpose(0, 1))


@case(
    "evoformer-triangle",
    "the triangle attention of an Evoformer, 256 rows of 256 residues, is einsum, bias, softmax and einsum",
    "scaled_dot_product_attention with the bias as its mask",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    residues, kinds = sized(256, 12), sized(64, 5)
    model = PairStack(sized(128, 16), sized(4, 2), sized(8, 1), kinds, written_out=bad).to(DEVICE)
    x = torch.randn(residues, residues, 64, device=DEVICE)
    y = torch.randint(kinds, (residues, residues), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float().flatten(0, 1), y.flatten()))


class FaceBlock(nn.Module):
    """A block of the residual network for faces: its norm comes first, and its activation is learned."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.PReLU(b)),
            *(nn.Conv2d(b, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)),
        )
        self.side: nn.Module = nn.Identity()
        if stride > 1 or a != b:
            self.side = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.side(x)


class Faces(nn.Module):
    """A point on a sphere for each face, near the one of the person it shows."""

    def __init__(self, widths: tuple[int, ...], size: int, far: int, people: int) -> None:
        super().__init__()
        a = widths[0]
        layers: list[nn.Module] = [nn.Conv2d(3, a, 3, 1, 1, bias=False), nn.BatchNorm2d(a), nn.PReLU(a)]
        for b in widths:
            layers += [FaceBlock(a, b, 2), FaceBlock(b, b, 1)]
            a = b
        end = a * (size // 2 ** len(widths)) ** 2
        self.eye = nn.Sequential(*layers, nn.BatchNorm2d(a), nn.Flatten(), nn.Linear(end, far))
        self.norm, self.people = nn.BatchNorm1d(far), nn.Parameter(torch.randn(people, far) * 0.01)

    def forward(self, x: torch.Tensor, who: torch.Tensor) -> torch.Tensor:
        seen = self.norm(self.eye(x))
        with torch.autocast(DEVICE, enabled=False):
            near = F.linear(F.normalize(seen.float()), F.normalize(self.people))  # cost: faces-cosine
        margin = torch.full_like(near[:, :1], -0.4)
        return 64 * near.scatter_add(1, who[:, None], margin)


@case(
    "faces-cosine",
    "the cosines of 256 faces and 200 000 people are a product in full float32, outside of autocast",
    'set_float32_matmul_precision("high"), which nothing else here is subject to',
    "fp32-matmul",
    "mixed-precision",
)
def _(bad: bool) -> Step:
    batch, size, people = sized(256, 4), sized(112, 32), sized(200_000, 40)
    widths = (64, 128, 256, 512) if ON_GPU else (4, 8, 8, 8)
    how = torch.channels_last if ON_GPU else torch.contiguous_format  # on a CPU, the former crashes
    model = Faces(widths, size, sized(512, 16), people).to(DEVICE, memory_format=how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=how)
    who = torch.randint(people, (batch,), device=DEVICE)
    inner = trained(model, lambda: F.cross_entropy(model(x, who), who), optimizer=optimizer)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if bad else "high")
        inner()

    return step


def conv3d(a: int, b: int, stride: int = 1) -> nn.Conv3d:
    """Return a convolution over space and time."""
    return nn.Conv3d(a, b, 3, stride, 1, bias=False)


class ClipBlock(nn.Module):
    """Two convolutions over space and time beside a way around them."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(conv3d(a, b, stride), nn.BatchNorm3d(b), nn.ReLU(inplace=True)),
            *(conv3d(b, b), nn.BatchNorm3d(b)),
        )
        self.side: nn.Module = nn.Identity()
        if stride > 1 or a != b:
            self.side = nn.Sequential(nn.Conv3d(a, b, 1, stride, bias=False), nn.BatchNorm3d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


@case(
    "clips-variable",
    "the clips for an R3D-18 require gradients, as Variables did in an old script, so that its first convolution "
    "computes a gradient of every pixel",
    "clips that require none",
    "unneeded-gradients",
)
def _(bad: bool) -> Step:
    batch, frames, size, kinds = sized(16, 2), sized(16, 4), sized(112, 16), sized(400, 5)
    a = sized(64, 4)
    layers: list[nn.Module] = [nn.Conv3d(3, a, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)]
    layers += [nn.BatchNorm3d(a), nn.ReLU(inplace=True)]
    for b, stride in zip((a, 2 * a, 4 * a, 8 * a), (1, 2, 2, 2), strict=True):
        layers += [ClipBlock(a, b, stride), ClipBlock(b, b, 1)]
        a = b
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(a, kinds))
    model.to(DEVICE, memory_format=torch.channels_last_3d)
    pixels = torch.randint(256, (batch, 3, frames, size, size), dtype=torch.uint8, device=DEVICE)
    pixels = pixels.to(memory_format=torch.channels_last_3d)
    y = torch.randint(kinds, (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        clips = ((pixels.float() / 255 - 0.43) / 0.22).requires_grad_(bad)  # cost: clips-variable
        return F.cross_entropy(model(clips).float(), y)

    return trained(model, loss)


def snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Activate waves by waves, whose lengths are learned."""
    return x + (alpha + 1e-9).reciprocal() * torch.sin(alpha * x).pow(2)  # cost: codec-snake


class Snake(nn.Module):
    """That activation for each channel."""

    def __init__(self, width: int, function: Any) -> None:
        super().__init__()
        self.alpha, self.function = nn.Parameter(torch.ones(1, width, 1)), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.alpha)


class Dilated(nn.Module):
    """A dilated convolution of a wave beside a way around it."""

    def __init__(self, width: int, dilation: int, function: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(Snake(width, function), nn.Conv1d(width, width, 7, 1, 3 * dilation, dilation)),
            *(Snake(width, function), nn.Conv1d(width, width, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def codec(width: int, strides: tuple[int, ...], function: Any) -> tuple[nn.Sequential, nn.Sequential]:
    """Return what makes codes out of waves, and what makes waves out of codes."""
    down: list[nn.Module] = [nn.Conv1d(1, width, 7, 1, 3)]
    up: list[nn.Module] = []
    for i, stride in enumerate(strides):
        a, b = width * 2**i, width * 2 ** (i + 1)
        down += [Dilated(a, d, function) for d in (1, 3, 9)]
        down += [Snake(a, function), nn.Conv1d(a, b, 2 * stride, stride, stride // 2)]
        up = [
            *(Snake(b, function), nn.ConvTranspose1d(b, a, 2 * stride, stride, stride // 2)),
            *(Dilated(a, d, function) for d in (1, 3, 9)),
            *up,
        ]
    end = width * 2 ** len(strides)
    down += [Snake(end, function), nn.Conv1d(end, 8, 3, 1, 1)]
    up = [nn.Conv1d(8, end, 7, 1, 3), *up, Snake(width, function), nn.Conv1d(width, 1, 7, 1, 3)]
    return nn.Sequential(*down), nn.Sequential(*up)


@case(
    "codec-snake",
    "the activation of a codec for sound is five operators on tensors that become float32 by them; AdamW is as it is "
    "by default, and two figures are read in each step",
    "torch.compile of that function; the rest stays",
    "elementwise-chain",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, length, width = sized(12, 2), sized(16_384, 256), sized(64, 4)
    function: Any = snake if bad else torch.compile(snake, dynamic=True)
    into, back = codec(width, (2, 4, 8, 8) if ON_GPU else (2, 4), function)
    model = nn.ModuleList([into, back]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    waves = torch.randn(batch, 1, length, device=DEVICE)
    sizes = (2048, 512, 128) if ON_GPU else (64, 16)
    windows = [torch.hann_window(size, device=DEVICE) for size in sizes]
    log: dict[str, float] = {}

    def spectra(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.float().squeeze(1)
        seen = [torch.stft(x, len(w), len(w) // 4, window=w, return_complex=True) for w in windows]
        return [torch.log(one.abs() + 1e-5) for one in seen]

    wanted = spectra(waves)

    def loss() -> torch.Tensor:
        codes = 4 * torch.tanh(into(waves))
        out = back(codes + (codes.round() - codes).detach())
        wrong = F.l1_loss(out.float(), waves)
        heard = torch.stack([F.l1_loss(a, b) for a, b in zip(spectra(out), wanted, strict=True)]).sum()
        log["wave"], log["spectra"] = wrong.item(), heard.item()
        return wrong + heard

    return trained(model, loss, optimizer=optimizer)


class PixelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])


class Restored(nn.Module):
    """A block of a Restormer: channels look at each other, and then gate each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        inner = int(2.66 * width)
        self.heads, self.norms = heads, nn.ModuleList(PixelNorm(width) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.near = nn.Conv2d(3 * width, 3 * width, 3, 1, 1, groups=3 * width, bias=False)
        self.out = nn.Conv2d(width, width, 1, bias=False)
        self.up = nn.Conv2d(width, 2 * inner, 1, bias=False)
        self.around = nn.Conv2d(2 * inner, 2 * inner, 3, 1, 1, groups=2 * inner, bias=False)
        self.down = nn.Conv2d(inner, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.near(self.qkv(self.norms[0](x))).flatten(2).unflatten(1, (3, self.heads, -1)).unbind(1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        share = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        x = x + self.out((share @ v).flatten(1, 2).unflatten(2, x.shape[2:]))
        a, b = self.around(self.up(self.norms[1](x))).chunk(2, 1)
        return x + self.down(F.gelu(a) * b)


class Restormer(nn.Module):
    """Takes rain or blur out of images, at three scales."""

    def __init__(self, width: int, depths: tuple[int, int, int]) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]

        def blocks(i: int, wide: int = 1) -> nn.Sequential:
            return nn.Sequential(*(Restored(widths[i] * wide, 2**i) for _ in range(depths[i])))

        self.begin, self.end = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(2 * width, 3, 3, 1, 1)
        self.down = nn.ModuleList(blocks(i) for i in range(3))
        self.smaller = nn.ModuleList(
            nn.Sequential(nn.Conv2d(w, w // 2, 3, 1, 1, bias=False), nn.PixelUnshuffle(2)) for w in widths[:2]
        )
        self.larger = nn.ModuleList(
            nn.Sequential(nn.Conv2d(w, 2 * w, 3, 1, 1, bias=False), nn.PixelShuffle(2)) for w in widths[1:]
        )
        self.narrow, self.up = nn.Conv2d(widths[2], widths[1], 1, bias=False), blocks(1)
        self.last = blocks(0, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        one = self.down[0](self.begin(image))
        two = self.down[1](self.smaller[0](one))
        three = self.down[2](self.smaller[1](two))
        x = self.up(self.narrow(torch.cat([self.larger[1](three), two], 1)))
        x = self.last(torch.cat([self.larger[0](x), one], 1))
        return image + self.end(x)


@case(
    "restormer-adam",
    "AdamW as it is by default, foreach, updates the 5 million weights of a Restormer: next to nothing",
    "fused=True",
    "unfused-optimizer",
    may_precede=("elementwise-chain", "channels-last", "unfused-norm", "launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size = sized(8, 2), sized(128, 16)
    model = Restormer(sized(48, 8), (4, 4, 6) if ON_GPU else (1, 1, 1)).to(DEVICE)
    optimizer = adamw(model, fused=not bad, foreach=bad)  # cost: restormer-adam
    x, y = (torch.rand(batch, 3, size, size, device=DEVICE) for _ in range(2))
    return trained(model, lambda: F.l1_loss(model(x).float(), y), optimizer=optimizer)


# -- loops --------------------------------------------------------------------------------------------------


def distances(x: torch.Tensor) -> torch.Tensor:
    """Return the negative squared distances of all points of each cloud."""
    square = x.square().sum(-1, keepdim=True)
    return 2 * x @ x.mT - square - square.mT


class EdgeConv(nn.Module):
    """Looks at each point and how those nearest to it differ from it."""

    def __init__(self, a: int, b: int, near: int, one_by_one: bool) -> None:
        super().__init__()
        self.near, self.one_by_one = near, one_by_one
        self.net = nn.Sequential(nn.Linear(2 * a, b, bias=False), nn.BatchNorm1d(b), nn.LeakyReLU(0.2))

    @torch.no_grad()
    def neighbours(self, x: torch.Tensor) -> torch.Tensor:
        """Return which points are nearest to each point, itself among them."""
        with torch.autocast(DEVICE, enabled=False):
            if not self.one_by_one:
                return distances(x.float()).topk(self.near, -1).indices
            found = [
                distances(cloud).topk(self.near, -1).indices  # cost: neighbours-loop
                for cloud in x.float()
            ]
            return torch.stack(found)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, count = x.shape[:2]
        which = self.neighbours(x) + torch.arange(batch, device=x.device)[:, None, None] * count
        others = x.flatten(0, 1).index_select(0, which.flatten()).view(batch, count, self.near, -1)
        middle = x[:, :, None].expand_as(others)
        edges = torch.cat([others - middle, middle], -1)
        return self.net(edges.flatten(0, 2)).unflatten(0, (batch, count, self.near)).amax(2)


class DynamicGraph(nn.Module):
    """DGCNN: what a cloud of points is, by a graph that is found anew from the features of each layer."""

    def __init__(self, widths: tuple[int, ...], end: int, near: int, kinds: int, one_by_one: bool) -> None:
        super().__init__()
        pairs = itertools.pairwise((3, *widths))
        self.layers = nn.ModuleList(EdgeConv(a, b, near, one_by_one) for a, b in pairs)
        self.all = nn.Sequential(nn.Linear(sum(widths), end), nn.BatchNorm1d(end), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(nn.Linear(2 * end, end // 2), nn.LeakyReLU(0.2), nn.Linear(end // 2, kinds))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x)
        y = torch.cat(seen, -1)
        y = self.all(y.flatten(0, 1)).unflatten(0, y.shape[:2])
        return self.head(torch.cat([y.amax(1), y.mean(1)], -1))


@case(
    "neighbours-loop",
    "a DGCNN looks for the nearest points cloud by cloud: 64 of them in each of four layers",
    "distances of all clouds by one product, and one topk: the same neighbours",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, count, near, kinds = sized(64, 3), sized(512, 12), sized(20, 4), sized(40, 5)
    widths = (64, 64, 128, 256) if ON_GPU else (8, 8)
    model = DynamicGraph(widths, sized(1024, 16), near, kinds, one_by_one=bad).to(DEVICE)
    x = torch.randn(batch, count, 3, device=DEVICE)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


class DecisionTransformer(nn.Module):
    """Says what to do next from what was seen and done, and from what is still to be won."""

    def __init__(self, seen: int, moves: int, width: int, depth: int, times: int, piecewise: bool) -> None:
        super().__init__()
        self.piecewise = piecewise
        self.time = nn.Embedding(times, width)
        self.wins, self.states, self.moves = (nn.Linear(a, width) for a in (1, seen, moves))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, moves)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64), causal=True) for _ in range(depth)))

    def tokens(self, *kinds: torch.Tensor) -> torch.Tensor:
        """Return the tokens in the order of time, those of one time next to each other."""
        if not self.piecewise:
            return torch.stack(kinds, 2).flatten(1, 2)
        tokens = kinds[0][:, :0]
        for t in range(kinds[0].shape[1]):
            now = [kind[:, t : t + 1] for kind in kinds]  # cost: decision-tokens
            tokens = torch.cat([tokens, *now], 1)  # cost: decision-tokens
        return tokens

    def forward(self, wins: torch.Tensor, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
        time = self.time.weight[: wins.shape[1]]
        x = self.tokens(self.wins(wins) + time, self.states(states) + time, self.moves(moves) + time)
        return torch.tanh(self.head(self.layers(self.norm(x))[:, 1::3]))


@case(
    "decision-tokens",
    "a Decision Transformer appends what was won, seen and done to its tokens by torch.cat, one time after the other",
    "one torch.stack: the same tokens",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, times, seen, moves = sized(64, 2), sized(48, 5), sized(17, 4), sized(6, 3)
    model = DecisionTransformer(seen, moves, sized(512, 16), sized(8, 1), times, piecewise=bad).to(DEVICE)
    wins, states, done = (torch.randn(batch, times, size, device=DEVICE) for size in (1, seen, moves))
    return trained(model, lambda: F.mse_loss(model(wins, states, done).float(), done.tanh()))


# -- waits --------------------------------------------------------------------------------------------------


class ActNorm(nn.Module):
    """Shift and scale of each channel, which the first batch decides."""

    def __init__(self, width: int, flag_on_gpu: bool) -> None:
        super().__init__()
        self.shift, self.scale = (nn.Parameter(torch.zeros(1, width, 1, 1)) for _ in range(2))
        self.flag_on_gpu, self.was_started = flag_on_gpu, False
        self.register_buffer("started", torch.tensor(0, dtype=torch.uint8))

    def is_new(self) -> bool:
        """Return whether no batch was seen yet."""
        if self.flag_on_gpu:
            return self.started.item() == 0  # cost: glow-started
        return not self.was_started

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.is_new():
            with torch.no_grad():
                spread, mean = torch.var_mean(x, (0, 2, 3), keepdim=True)
                self.shift.copy_(-mean)
                self.scale.copy_(-0.5 * torch.log(spread + 1e-6))
                self.started.fill_(1)
                self.was_started = True
        return (x + self.shift) * self.scale.exp(), self.scale.sum() * x[0, 0].numel()


class MixedChannels(nn.Module):
    """A convolution of width one that can be undone, as a product of triangular matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        order, low, high = torch.linalg.lu(torch.linalg.qr(torch.randn(width, width))[0])
        self.low, self.high = nn.Parameter(low), nn.Parameter(high.triu(1))
        self.size = nn.Parameter(high.diagonal().abs().log())
        self.register_buffer("order", order)
        self.register_buffer("sign", high.diagonal().sign())
        self.register_buffer("below", torch.ones(width, width).tril(-1))
        self.register_buffer("one", torch.eye(width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = self.high * self.below.t() + torch.diag(self.sign * self.size.exp())
        weight = self.order @ (self.low * self.below + self.one) @ high
        return F.conv2d(x, weight[:, :, None, None]), self.size.sum() * x[0, 0].numel()


class FlowStep(nn.Module):
    """A step of a Glow: each half of the channels is moved and scaled by what the other half says."""

    def __init__(self, width: int, inner: int, flag_on_gpu: bool) -> None:
        super().__init__()
        self.norm, self.mix = ActNorm(width, flag_on_gpu), MixedChannels(width)
        self.net = nn.Sequential(
            *(nn.Conv2d(width // 2, inner, 3, 1, 1), nn.ReLU(), nn.Conv2d(inner, inner, 1), nn.ReLU()),
            nn.Conv2d(inner, width, 3, 1, 1),
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, of_norm = self.norm(x)
        x, of_mix = self.mix(x)
        a, b = x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        return torch.cat([a, (b + shift) * scale], 1), of_norm + of_mix + scale.log().flatten(1).sum(1)


class Glow(nn.Module):
    """Says how likely images are, by steps that can be undone, at several scales."""

    def __init__(self, scales: int, depth: int, inner: int, flag_on_gpu: bool) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.ModuleList(FlowStep(12 * 2**i, inner, flag_on_gpu) for _ in range(depth))
            for i in range(scales)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of how likely each image is."""
        total = x.new_zeros(len(x))
        for i, steps in enumerate(self.scales):
            x = F.pixel_unshuffle(x, 2)
            for step in steps:  # type: ignore[union-attr]
                x, more = step(x)
                total = total + more
            x, done = x.chunk(2, 1) if i < len(self.scales) - 1 else (x, x)
            total = total - 0.5 * (done.square() + 1.8378770664093453).flatten(1).sum(1)
        return total


@case(
    "glow-started",
    "each of the 36 norms of a Glow asks a flag on the GPU whether it has seen a batch yet; Adam is as it is by "
    "default, and the likelihood is read",
    "a flag of Python's; the rest stays",
    "item-each-step",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size = sized(32, 2), sized(64, 16)
    model = Glow(sized(3, 2), sized(12, 2), sized(512, 8), flag_on_gpu=bad).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    pixels = torch.randint(256, (batch, 3, size, size), device=DEVICE)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        x = (pixels + torch.rand(pixels.shape, device=DEVICE)) / 256 - 0.5
        return -model(x).mean() / x[0].numel()

    def note(wrong: torch.Tensor) -> None:
        log["bits"] = wrong.item() / 0.6931471805599453

    return trained(model, loss, optimizer=optimizer, autocast=False, after=note)


class FlowBlock(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, a: int, b: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 3, stride, 1), norm(b), nn.ReLU()),
            *(nn.Conv2d(b, b, 3, 1, 1), norm(b), nn.ReLU()),
        )
        self.side = nn.Conv2d(a, b, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.side(x) + self.body(x))


def flow_eye(width: int, out: int, norm: type[nn.Module]) -> nn.Sequential:
    """Return the encoder of a RAFT, eight times coarser than its images."""
    sizes = [(width, width, 1), (width, 3 * width // 2, 2), (3 * width // 2, 2 * width, 2)]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3), norm(width), nn.ReLU()]
    for a, b, stride in sizes:
        layers += [FlowBlock(a, b, stride, norm), FlowBlock(b, b, 1, norm)]
    return nn.Sequential(*layers, nn.Conv2d(2 * width, out, 1))


class ConvGRU(nn.Module):
    """A gated unit over an image, first along its rows and then along its columns."""

    def __init__(self, width: int, into: int) -> None:
        super().__init__()
        self.gates, self.news = (
            nn.ModuleList(
                nn.Conv2d(width + into, b, size, padding=tuple(s // 2 for s in size))
                for size in ((1, 5), (5, 1))
            )
            for b in (2 * width, width)
        )

    def forward(self, known: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for gates, news in zip(self.gates, self.news, strict=True):
            keep, reset = torch.sigmoid(gates(torch.cat([known, x], 1))).chunk(2, 1)
            new = torch.tanh(news(torch.cat([reset * known, x], 1)))
            known = (1 - keep) * known + keep * new
        return known


class Raft(nn.Module):
    """Finds where each pixel moves to, by looking again and again at how alike the places around it are."""

    def __init__(self, width: int, turns: int, levels: int, far: int, deltas_on_cpu: bool) -> None:
        super().__init__()
        self.turns, self.levels, self.far, self.deltas_on_cpu = turns, levels, far, deltas_on_cpu
        self.eye, self.context = (flow_eye(width, 4 * width, n) for n in (nn.InstanceNorm2d, nn.BatchNorm2d))
        known, count = 2 * width, levels * (2 * far + 1) ** 2
        self.alike = nn.Sequential(
            nn.Conv2d(count, 4 * width, 1), nn.ReLU(), nn.Conv2d(4 * width, 3 * width, 3, 1, 1), nn.ReLU()
        )
        self.moved = nn.Sequential(
            nn.Conv2d(2, known, 7, 1, 3), nn.ReLU(), nn.Conv2d(known, width, 3, 1, 1), nn.ReLU()
        )
        self.both = nn.Sequential(nn.Conv2d(4 * width, known - 2, 3, 1, 1), nn.ReLU())
        self.gru = ConvGRU(known, 2 * known)
        self.flow = nn.Sequential(
            nn.Conv2d(known, 2 * known, 3, 1, 1), nn.ReLU(), nn.Conv2d(2 * known, 2, 3, 1, 1)
        )
        self.register_buffer("deltas", self.around())

    def around(self) -> torch.Tensor:
        """Return the places around a place, on the CPU."""
        line = torch.linspace(-self.far, self.far, 2 * self.far + 1)  # cost: flow-deltas
        return torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)  # cost: flow-deltas

    def looked_up(self, pyramid: list[torch.Tensor], places: torch.Tensor) -> torch.Tensor:
        """Return how alike the places around each place are, at each scale."""
        batch, _, high, wide = places.shape
        middle = places.permute(0, 2, 3, 1).reshape(batch * high * wide, 1, 1, 2)
        out = []
        for i, level in enumerate(pyramid):
            deltas = (
                self.around().to(places.device) if self.deltas_on_cpu else self.deltas
            )  # cost: flow-deltas
            at = middle / 2**i + deltas
            x, y = at.unbind(-1)
            grid = torch.stack([2 * x / (level.shape[-1] - 1) - 1, 2 * y / (level.shape[-2] - 1) - 1], -1)
            out.append(F.grid_sample(level, grid, align_corners=True).view(batch, high, wide, -1))
        return torch.cat(out, -1).permute(0, 3, 1, 2)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return what is thought of the moves, one time after the other."""
        a, b = self.eye(images.flatten(0, 1)).float().unflatten(0, images.shape[:2]).unbind()
        batch, width, high, wide = a.shape
        known, seen = self.context(images[0]).chunk(2, 1)
        known, seen = torch.tanh(known), F.relu(seen)
        with torch.autocast(DEVICE, dtype=BF16):
            level = (a.flatten(2).transpose(1, 2) @ b.flatten(2)).float() / width**0.5
        pyramid = [level.reshape(-1, 1, high, wide)]
        for _ in range(self.levels - 1):
            pyramid.append(F.avg_pool2d(pyramid[-1], 2))
        y, x = torch.meshgrid(*(torch.arange(n, device=a.device) for n in (high, wide)), indexing="ij")
        start = torch.stack([x, y]).float().expand(batch, -1, -1, -1)
        places, out = start, []
        for _ in range(self.turns):
            places = places.detach()
            near = self.alike(self.looked_up(pyramid, places))
            flow = places - start
            both = self.both(torch.cat([near, self.moved(flow)], 1))
            known = self.gru(known, torch.cat([seen, both, flow.to(both.dtype)], 1))
            places = places + self.flow(known).float()
            out.append(F.interpolate(8 * (places - start), scale_factor=8.0, mode="bilinear"))
        return out


@case(
    "flow-deltas",
    "a RAFT makes the places around a place on the CPU and copies them, for each of four scales and twelve updates; "
    "AdamW is as it is by default, and four figures are read in each step",
    "made once and kept on the GPU; the rest stays",
    "small-copy",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, high, wide = sized(2, 1), sized(352, 64), sized(480, 64)
    model = Raft(sized(64, 4), sized(12, 2), sized(4, 2), sized(4, 1), deltas_on_cpu=bad).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.rand(2, batch, 3, high, wide, device=DEVICE) * 2 - 1
    y = torch.randn(batch, 2, high, wide, device=DEVICE) * 5
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        flows = model(images)
        weights = [0.8 ** (len(flows) - 1 - i) for i in range(len(flows))]
        total = sum(w * (flow - y).abs().mean() for w, flow in zip(weights, flows, strict=True))
        wrong = (flows[-1].detach() - y).norm(dim=1)
        log["mean"] = wrong.mean().item()
        for most in (1, 3, 5):
            log[f"under {most}"] = (wrong < most).float().mean().item()
        return total

    return trained(model, loss, optimizer=optimizer)


class VideoMAE(nn.Module):
    """Guesses the hidden parts of a video from the few that are shown."""

    def __init__(self, shape: tuple[int, ...], wide: tuple[int, int], deep: tuple[int, int]) -> None:
        super().__init__()
        batch, frames, size, patch = shape
        a, b = wide
        count = frames // 2 * (size // patch) ** 2
        self.patches = nn.Conv3d(3, a, (2, patch, patch), (2, patch, patch))
        self.encoder = nn.Sequential(*(Layer(a, max(1, a // 64)) for _ in range(deep[0])), nn.LayerNorm(a))
        self.narrow, self.hidden = nn.Linear(a, b, bias=False), nn.Parameter(torch.zeros(1, 1, b))
        self.decoder = nn.Sequential(*(Layer(b, max(1, b // 64)) for _ in range(deep[1])), nn.LayerNorm(b))
        self.head = nn.Linear(b, 6 * patch**2)
        for name, width in (("places", a), ("narrow_places", b)):
            self.register_buffer(name, torch.randn(1, count, width).expand(batch, -1, -1) * 0.02)

    def forward(self, video: torch.Tensor, shown: Any, hidden: Any) -> torch.Tensor:
        """Return the hidden patches; two functions pick those that are shown and those that are not."""
        x = self.patches(video).flatten(2).transpose(1, 2) + self.places
        x = self.narrow(self.encoder(shown(x)))
        guessed = self.hidden + hidden(self.narrow_places)
        x = torch.cat([x + shown(self.narrow_places), guessed], 1)
        return self.head(self.decoder(x)[:, -guessed.shape[1] :])


def cut(video: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the pixels of each patch of two frames, normalized."""
    b, c, t, h, w = video.shape
    x = video.view(b, c, t // 2, 2, h // patch, patch, w // patch, patch)
    x = x.permute(0, 2, 4, 6, 3, 5, 7, 1).reshape(b, -1, 2 * patch**2, c)
    return ((x - x.mean(2, keepdim=True)) / (x.var(2, keepdim=True).sqrt() + 1e-6)).flatten(2)


@case(
    "videomae-masks",
    "the shown and the hidden patches of a VideoMAE are picked by boolean masks, four times in each step",
    "torch.gather by indices that the host makes of the masks: the same patches",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    shape = (sized(12, 2), sized(16, 4), sized(224, 16), sized(16, 4))
    batch, frames, size, patch = shape
    wide, deep = (sized(768, 16), sized(384, 8)), (sized(12, 1), sized(4, 1))
    model = VideoMAE(shape, wide, deep).to(DEVICE)
    video = torch.rand(batch, 3, frames, size, size, device=DEVICE)
    draw, places = np.random.default_rng(0), (size // patch) ** 2

    def loss() -> torch.Tensor:
        order = draw.random((batch, places)).argsort(1)
        mask = np.tile(order >= max(1, places // 10), (1, frames // 2))
        if bad:
            there = sent(mask)

            def shown(x: torch.Tensor) -> torch.Tensor:
                return x[~there].reshape(batch, -1, x.shape[-1])  # cost: videomae-masks

            def hidden(x: torch.Tensor) -> torch.Tensor:
                return x[there].reshape(batch, -1, x.shape[-1])  # cost: videomae-masks
        else:
            seen, unseen = (sent(np.nonzero(one)[1].reshape(batch, -1)) for one in (~mask, mask))

            def shown(x: torch.Tensor) -> torch.Tensor:
                return x.gather(1, seen[..., None].expand(-1, -1, x.shape[-1]))

            def hidden(x: torch.Tensor) -> torch.Tensor:
                return x.gather(1, unseen[..., None].expand(-1, -1, x.shape[-1]))

        wanted = hidden(cut(video, patch))
        return F.mse_loss(model(video, shown, hidden).float(), wanted)

    return trained(model, loss)


# -- the host -----------------------------------------------------------------------------------------------


def normed(a: int, b: int, size: int = 3, stride: int = 1, act: bool = True) -> nn.Sequential:
    """Return a convolution, a batch norm and perhaps an activation."""
    layers = [nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b)]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if act else []))


class PoseBlock(nn.Module):
    """Convolutions beside a way around them."""

    def __init__(self, a: int, *body: nn.Module, out: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.side = normed(a, out, 1, act=False) if out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def same_width(a: int) -> PoseBlock:
    """Return two convolutions that keep the number of channels."""
    return PoseBlock(a, normed(a, a), normed(a, a, act=False))


class Exchange(nn.Module):
    """Four blocks at each scale, and then each scale is told of all others."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(nn.Sequential(*(same_width(a) for _ in range(4))) for a in widths)
        self.ways = nn.ModuleList(
            nn.ModuleList(self.way(widths, j, i) for j in range(len(widths))) for i in range(len(widths))
        )

    @staticmethod
    def way(widths: list[int], source: int, target: int) -> nn.Module:
        """Return what makes one scale out of another."""
        a, b = widths[source], widths[target]
        if source == target:
            return nn.Identity()
        if source > target:
            return nn.Sequential(normed(a, b, 1, act=False), nn.Upsample(scale_factor=2 ** (source - target)))
        steps = target - source
        return nn.Sequential(*(normed(a, a, 3, 2) for _ in range(steps - 1)), normed(a, b, 3, 2, act=False))

    def forward(self, scales: list[torch.Tensor]) -> list[torch.Tensor]:
        scales = [blocks(x) for blocks, x in zip(self.scales, scales, strict=True)]
        out = []
        for ways in self.ways:
            total = ways[0](scales[0])  # type: ignore[index]
            for way, x in zip(ways[1:], scales[1:], strict=True):  # type: ignore[index]
                total = total + way(x)
            out.append(F.relu(total))
        return out


class HighResolution(nn.Module):
    """HRNet: where the joints of people are, from four scales that are all kept."""

    def __init__(self, width: int, modules: tuple[int, ...], joints: int) -> None:
        super().__init__()
        a = 2 * width
        bottlenecks, into = [], a
        for _ in range(4):
            body = (normed(into, a, 1), normed(a, a), normed(a, 4 * a, 1, act=False))
            bottlenecks.append(PoseBlock(into, *body, out=0 if into == 4 * a else 4 * a))
            into = 4 * a
        self.begin = nn.Sequential(normed(3, a, 3, 2), normed(a, a, 3, 2), *bottlenecks)
        self.first = normed(into, width)
        self.smaller, self.stages = nn.ModuleList(), nn.ModuleList()
        for i, count in enumerate(modules, 1):
            widths = [width * 2**j for j in range(i + 1)]
            self.smaller.append(normed(widths[i - 1] if i > 1 else into, widths[i], 3, 2))
            self.stages.append(nn.ModuleList(Exchange(widths) for _ in range(count)))
        self.head = nn.Conv2d(width, joints, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        scales = [self.first(x)]
        for smaller, stage in zip(self.smaller, self.stages, strict=True):
            scales.append(smaller(scales[-1] if len(scales) > 1 else x))
            for module in stage:  # type: ignore[union-attr]
                scales = module(scales)
        return self.head(scales[0])


@case(
    "pose-graph",
    "joints are looked for by an HRNet in eval mode, but not under no_grad, so that each operator notes what its "
    "gradient would need",
    "torch.no_grad()",
    "unused-graph",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, high, wide, joints = sized(8, 1), sized(256, 64), sized(192, 64), sized(17, 3)
    model = HighResolution(sized(32, 4), (1, 4, 3) if ON_GPU else (1, 1, 1), joints)
    model.to(DEVICE, memory_format=torch.channels_last).eval()
    images = torch.randn(4, batch, 3, high, wide, device=DEVICE)
    turn = itertools.cycle([one.to(memory_format=torch.channels_last) for one in images])
    kept = itertools.cycle([torch.empty(batch, joints, dtype=torch.long, pin_memory=ON_GPU) for _ in "ab"])

    def step() -> torch.Tensor:
        with contextlib.nullcontext() if bad else torch.no_grad(), torch.autocast(DEVICE, dtype=BF16):
            heat = model(next(turn))  # cost: pose-graph
        return next(kept).copy_(heat.flatten(2).argmax(-1), non_blocking=True)

    return step


class Layout(nn.Module):
    """LayoutLM: what the words of a page are for, from the words and where they stand."""

    def __init__(self, words: int, length: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.words, self.order = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.x, self.y, self.wide, self.high = (nn.Embedding(1001, width) for _ in range(4))
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, ids: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        left, top, right, bottom = boxes.unbind(-1)
        x = self.words(ids) + self.order + self.x(left) + self.x(right) + self.y(top) + self.y(bottom)
        x = x + self.wide(right - left) + self.high(bottom - top)
        return self.head(self.layers(self.norm(x)))


def scaled(box: list[float], wide: float, high: float) -> list[int]:
    """Return a box in thousandths of its page."""
    return [
        int(1000 * (box[0] / wide)),  # cost: layout-boxes
        int(1000 * (box[1] / high)),  # cost: layout-boxes
        int(1000 * (box[2] / wide)),  # cost: layout-boxes
        int(1000 * (box[3] / high)),  # cost: layout-boxes
    ]


@case(
    "layout-boxes",
    "the boxes of 512 words of each of 32 pages are scaled to thousandths of their page one by one, in Python, and "
    "made a tensor from a list of lists",
    "NumPy scales the boxes of the whole batch: the same boxes",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, pages, words = sized(32, 2), sized(512, 6), sized(128, 4), sized(30_522, 50)
    kinds, draw = sized(7, 3), np.random.default_rng(0)
    sizes = draw.integers(600, 2400, (pages, 2)).astype(np.float64)
    corners = np.sort(draw.random((pages, length, 2, 2)), axis=2) * sizes[:, None, None]
    boxes = corners.reshape(pages, length, 4)
    lists, size_lists = boxes.tolist(), sizes.tolist()
    ids, labels = (draw.integers(0, n, (pages, length)) for n in (words, kinds))
    model = Layout(words, length, sized(768, 16), sized(8, 1), kinds).to(DEVICE)

    def found(which: np.ndarray) -> np.ndarray:
        if bad:
            rows = [[scaled(box, *size_lists[i]) for box in lists[i]] for i in which]  # cost: layout-boxes
            return torch.tensor(rows).numpy()  # cost: layout-boxes
        return (1000 * (boxes[which] / np.tile(sizes[which], 2)[:, None])).astype(np.int64)

    def loss() -> torch.Tensor:
        which = draw.integers(0, pages, batch)
        x, y = sent(ids[which]), sent(labels[which])
        return F.cross_entropy(model(x, sent(found(which))).float().flatten(0, 1), y.flatten())

    return trained(model, loss)
