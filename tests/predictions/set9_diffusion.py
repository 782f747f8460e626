"""Steps on a GPU with a planted cost: what shops train of their own, from diffusion transformers to tables and robots.

None of these models and programs is in an earlier set; eight are meant to be bound by the GPU, six by the host. Next to
nothing can be won in ``edsr-kinds`` and ``conformer-log``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Decoder, Step, case, sized, trained
from tests.predictions.set3_devices import jax_case
from tests.predictions.set8_language import repeated

# -- diffusion, attacks and optimizers ----------------------------------------------------------------------


def modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Normalize tokens, then shift and scale them by what the time and the class say."""
    return F.layer_norm(x, (x.shape[-1],), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def let_in(x: torch.Tensor, new: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Add to tokens what a layer made of them, as far as the gate is open."""
    return x + gate[:, None] * new


class DiffusionBlock(nn.Module):
    """A layer of a diffusion transformer, whose norms depend on the time and the class."""

    def __init__(self, width: int, heads: int, modulate: Any, admit: Any) -> None:
        super().__init__()
        self.heads, self.modulate, self.admit = heads, modulate, admit
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.six = nn.Linear(width, 6 * width)

    def forward(self, x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        shift, scale, gate, shift2, scale2, gate2 = self.six(F.silu(known)).chunk(6, dim=1)
        q, k, v = (
            self.qkv(self.modulate(x, shift, scale)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = self.admit(x, self.out(y), gate)
        y = self.down(F.gelu(self.up(self.modulate(x, shift2, scale2)), approximate="tanh"))
        return self.admit(x, y, gate2)


class DiffusionTransformer(nn.Module):
    """Patches of a noisy latent image in, the noise in them out."""

    def __init__(self, depth: int, width: int, modulate: Any, admit: Any) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(4, width, 2, 2), nn.Linear(width, 16)
        self.kinds, self.times = nn.Embedding(1001, width), nn.Embedding(1000, width)
        self.places = nn.Parameter(torch.randn(1, sized(256, 16), width) * 0.02)
        self.blocks = nn.ModuleList(DiffusionBlock(width, width // 64, modulate, admit) for _ in range(depth))

    def forward(self, x: torch.Tensor, times: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        known = self.kinds(kinds) + self.times(times)
        x = self.into(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, known)
        return self.out(F.layer_norm(x, (x.shape[-1],)))


@case(
    "dit-modulate",
    "norms of a diffusion transformer are shifted, scaled and gated by the time, each operator a kernel",
    "torch.compile of both functions",
    "elementwise-chain",
    "unfused-norm",
)
def _(bad: bool) -> Step:
    how = (one if bad else torch.compile(one, dynamic=False) for one in (modulated, let_in))
    model = DiffusionTransformer(sized(12, 2), sized(1024, 64), *how).cuda()
    batch, size = sized(32, 2), sized(32, 8)
    x = torch.randn(batch, 4, size, size, device="cuda")
    kinds = torch.randint(1000, (batch,), device="cuda")
    signal = torch.cos(torch.linspace(0, 1.5, 1000, device="cuda"))

    def loss() -> torch.Tensor:
        times, noise = torch.randint(1000, (batch,), device="cuda"), torch.randn_like(x)
        left = signal[times].view(-1, 1, 1, 1)
        out = model(x * left + noise * (1 - left**2).sqrt(), times, kinds)
        return F.mse_loss(out.float(), F.pixel_unshuffle(noise, 2).flatten(2).transpose(1, 2))

    return trained(model, loss)


class WideBlock(nn.Module):
    """Two convolutions, each after its norm, beside a way around them."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(a), nn.BatchNorm2d(b)])
        self.one, self.two = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.side = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](x))
        y = self.two(F.relu(self.norms[1](self.one(y))))
        return y + self.side(x)


def wide_resnet(width: int, blocks: int = 2) -> nn.Sequential:
    """Return a wide residual network for images of 32 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    for a, b, stride in ((width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)):
        layers += [WideBlock(a if i == 0 else b, b, stride if i == 0 else 1) for i in range(blocks)]
    end = [nn.BatchNorm2d(4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *end, nn.Linear(4 * width, 10))


@case(
    "attack-weights",
    "three steps of an attack on the images call backward(), which computes the gradients of all weights as well",
    "torch.autograd.grad(loss, images)",
    "unneeded-gradients",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    model = wide_resnet(sized(160, 8)).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)
    batch = sized(128, 4)
    x = torch.rand(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device="cuda")

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=BF16):
            out = model(images)
        return F.cross_entropy(out.float(), y)

    def attacked() -> torch.Tensor:
        moved = (x + torch.empty_like(x).uniform_(-8 / 255, 8 / 255)).clamp(0, 1)
        for _ in range(3):
            moved.requires_grad_(True)
            loss = loss_of(moved)
            if bad:
                loss.backward()
                slope = moved.grad
            else:
                (slope,) = torch.autograd.grad(loss, moved)
            assert slope is not None
            moved = moved.detach() + 2 / 255 * slope.sign()
            moved = torch.min(torch.max(moved, x - 8 / 255), x + 8 / 255).clamp(0, 1)
        return moved

    def step() -> None:
        images = attacked()
        optimizer.zero_grad(set_to_none=True)
        loss_of(images).backward()
        optimizer.step()

    return step


class Orthogonal(torch.optim.Optimizer):
    """Updates matrices by their momentum with all singular values near one, and all else by its momentum."""

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter], dtype: torch.dtype) -> None:
        groups = [{"params": matrices, "matrix": True}, {"params": others, "matrix": False}]
        super().__init__(groups, {"lr": 0.01, "momentum": 0.95})
        self.dtype = dtype

    def orthogonal(self, x: torch.Tensor) -> torch.Tensor:
        """Return the nearest matrix of orthogonal rows, by five steps of Newton and Schulz."""
        tall = x.shape[0] > x.shape[1]
        y = (x.t() if tall else x).to(self.dtype)
        y = y / (y.norm() + 1e-7)
        for _ in range(5):
            square = y @ y.t()
            y = 3.4445 * y + torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315) @ y
        return (y.t() if tall else y).to(x.dtype)

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        """Return the momentum of a weight."""
        state = self.state[p]
        if "kept" not in state:
            state["kept"] = torch.zeros_like(p)
        return state["kept"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            kept = [self.kept(p) for p in params]
            torch._foreach_mul_(kept, group["momentum"])
            torch._foreach_add_(kept, grads)
            new = [self.orthogonal(one) for one in kept] if group["matrix"] else kept
            torch._foreach_add_(params, new, alpha=-group["lr"])


@case(
    "muon-float32",
    "an optimizer makes the update of each matrix orthogonal by products in full float32",
    "those products in bfloat16, as Muon has them",
    "fp32-matmul",
    "mixed-precision",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    words = sized(8192, 64)
    model = Decoder(sized(6, 1), sized(1024, 32), sized(16, 2), words=words).cuda()
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizer = Orthogonal(matrices, others, torch.float32 if bad else BF16)
    x = torch.randint(words, (sized(4, 2), sized(1024, 8) + 1), device="cuda")
    return trained(
        model,
        lambda: F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()),
        optimizer=optimizer,
    )


# -- sound, words and images --------------------------------------------------------------------------------


class Separator(nn.Module):
    """The bins of a spectrum in, a mask of them for each of four instruments out."""

    def __init__(self, bins: int, width: int, depth: int = 3) -> None:
        super().__init__()
        self.into = nn.Linear(bins, width, bias=False)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(depth)
        )
        self.masks = nn.ModuleList(nn.Linear(width, bins) for _ in range(4))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.into(x)
        for block in self.body:
            x = x + block(x)
        return [torch.sigmoid(mask(x)) for mask in self.masks]


@case(
    "separate-bins",
    "masks for the 1025 bins of a spectrum, as a window of 2048 has them",
    "spectra with zeros up to 1032 bins",
    "unaligned-matmul",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    real = sized(1025, 33)
    bins = real if bad else -(-real // 8) * 8
    model = Separator(bins, sized(1024, 32)).cuda()
    shape = (sized(16, 2), sized(1024, 8))
    parts = [F.pad(torch.rand(*shape, real, device="cuda"), (0, bins - real)) for _ in range(4)]
    mixed = torch.stack(parts).sum(0)

    def loss() -> torch.Tensor:
        total = torch.zeros((), device="cuda")
        for mask, part in zip(model(mixed), parts, strict=True):
            total = total + F.l1_loss(mask * mixed, part, reduction="sum")
        return total / (4 * real * shape[0] * shape[1])

    return trained(model, loss)


@case(
    "both-distil",
    "the teacher's forward pass is outside of autocast, and the student is held to it by softmax(x).log()",
    "the teacher under autocast, and log_softmax",
    "mixed-precision",
    "fp32-matmul",
    "log-of-softmax",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    words, warmth = sized(16_384, 64), 2.0
    teacher = Decoder(sized(6, 1), sized(1024, 64), sized(16, 2), words=words).cuda().eval()
    teacher.requires_grad_(False)
    student = Decoder(sized(4, 1), sized(512, 32), sized(8, 2), words=words).cuda()
    x = torch.randint(words, (sized(8, 2), sized(1024, 8)), device="cuda")

    def loss() -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", dtype=BF16, enabled=not bad):
            wanted = F.softmax(teacher(x).float().flatten(0, 1) / warmth, -1)
        said = student(x).float().flatten(0, 1) / warmth
        said = F.softmax(said, -1).log() if bad else F.log_softmax(said, -1)
        return F.kl_div(said, wanted, reduction="batchmean")

    return trained(student, loss)


class Sharpener(nn.Module):
    """Residual convolutions that make an image twice as large, by the kind of its camera."""

    def __init__(self, one_hot: bool, kinds: int, width: int, depth: int) -> None:
        super().__init__()
        self.one_hot, self.kinds = one_hot, kinds
        self.table = nn.Parameter(torch.randn(kinds, width) * 0.02)
        self.into = nn.Conv2d(3, width, 3, 1, 1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True), nn.Conv2d(width, width, 3, 1, 1))
            for _ in range(depth)
        )
        self.out = nn.Sequential(nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2))

    def known(self, kind: torch.Tensor) -> torch.Tensor:
        if self.one_hot:
            return F.one_hot(kind, self.kinds).float() @ self.table
        return F.embedding(kind, self.table)

    def forward(self, x: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        x = self.into(x) + self.known(kind)[:, :, None, None]
        for block in self.body:
            x = x + 0.1 * block(x)
        return self.out(x)


@case(
    "edsr-kinds",
    "the kind of the camera enters super-resolution as a one-hot vector times a table: next to nothing",
    "F.embedding",
    "one-hot-product",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    kinds, batch, size = 1000, sized(32, 2), sized(64, 8)
    model = Sharpener(bad, kinds, sized(128, 8), sized(16, 2))
    model = model.to("cuda", memory_format=torch.channels_last)
    x = torch.rand(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    sharp = torch.rand(batch, 3, 2 * size, 2 * size, device="cuda").to(memory_format=torch.channels_last)
    kind = torch.randint(kinds, (batch,), device="cuda")
    return trained(model, lambda: F.l1_loss(model(x, kind).float(), sharp))


class Conformer(nn.Module):
    """A layer for speech: half a feed-forward part, attention, a convolution, and the other half."""

    def __init__(self, width: int, heads: int, reach: int = 31) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.halves = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.near = nn.Conv1d(width, width, reach, padding=reach // 2, groups=width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        x = x + 0.5 * self.halves[0](self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        y = F.glu(self.before(self.norms[2](x)), -1).transpose(1, 2)
        x = x + self.after(F.silu(self.norm(self.near(y))).transpose(1, 2))
        return self.norms[4](x + 0.5 * self.halves[1](self.norms[3](x)))


@case(
    "conformer-log",
    "the loss of a large Conformer is read with .item() at the end of each step: next to nothing",
    "summed on the GPU, read once an epoch",
    "item-each-step",
    may_precede=("elementwise-chain", "channels-last"),
)
def _(bad: bool) -> Step:
    width, batch, frames = sized(512, 32), sized(32, 2), sized(512, 16)
    layers = (Conformer(width, width // sized(64, 16)) for _ in range(sized(10, 2)))
    model = nn.Sequential(nn.Linear(80, width), *layers, nn.Linear(width, 500)).cuda()
    sound, units = torch.randn(batch, frames, 80, device="cuda"), torch.randint(500, (batch, frames)).cuda()
    total, seen = torch.zeros((), device="cuda"), [torch.zeros((), device="cuda")]
    log: list[float] = []

    def loss() -> torch.Tensor:
        value = F.cross_entropy(model(sound).float().flatten(0, 1), units.flatten())
        seen[0] = value.detach()
        return value

    def note() -> None:
        if bad:
            log.append(seen[0].item())
        else:
            total.add_(seen[0])

    return trained(model, loss, last=note)


# -- tables, small networks and robots ----------------------------------------------------------------------


class Table(nn.Module):
    """A transformer over the columns of a table, each of which is a token."""

    def __init__(self, one_by_one: bool, numbers: int, kinds: int, width: int, most: int = 100) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        if one_by_one:
            self.lines = nn.ModuleList(nn.Linear(1, width) for _ in range(numbers))
            self.lists = nn.ModuleList(nn.Embedding(most, width) for _ in range(kinds))
        else:
            self.slope, self.start = (nn.Parameter(torch.randn(numbers, width)) for _ in range(2))
            self.list = nn.Embedding(kinds * most, width)
            self.register_buffer("begins", torch.arange(kinds) * most)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 8, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True, bias=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        if self.one_by_one:
            tokens = [line(numbers[:, i : i + 1]) for i, line in enumerate(self.lines)]
            tokens += [one(kinds[:, i]) for i, one in enumerate(self.lists)]
            x = torch.stack(tokens, 1)
        else:
            x = torch.cat([numbers[..., None] * self.slope + self.start, self.list(kinds + self.begins)], 1)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x.to(self.first.dtype)], 1)
        for block in self.body:
            x = block(x)
        return self.head(x[:, 0]).squeeze(-1)


@case(
    "table-columns",
    "each of the 96 columns of a table is made a token by a layer of its own, one after the other",
    "one product for all numbers, one embedding for all kinds",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step", "dense-embedding-gradient"),
)
def _(bad: bool) -> Step:
    columns, kinds, batch = sized(64, 3), sized(32, 2), sized(256, 4)
    model = Table(bad, columns, kinds, sized(128, 16)).cuda()
    x, y = torch.randn(batch, columns, device="cuda"), torch.rand(batch, device="cuda").round()
    ids = torch.randint(100, (batch, kinds), device="cuda")
    return trained(model, lambda: F.binary_cross_entropy_with_logits(model(x, ids).float(), y))


class Observer(nn.Module):
    """Rounds a tensor as eight bits would, within the range that was seen lately."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            low, high = x.detach().aminmax()
            self.low.lerp_(low.clamp(max=0.0), 0.01)
            self.high.lerp_(high.clamp(min=0.0), 0.01)
            scale = (self.high - self.low).clamp(min=1e-6) / 255
            zero = (-self.low / scale).round().clamp(0, 255).to(torch.int32)
        if self.reads:
            return torch.fake_quantize_per_tensor_affine(x, scale.item(), int(zero.item()), 0, 255)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class QuantizedConv(nn.Module):
    """A convolution whose weights and results are rounded as eight bits would."""

    def __init__(self, a: int, b: int, size: int, reads: bool, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(a, b, size, padding=size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(b)
        self.weights, self.results = Observer(reads), Observer(reads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weights(self.conv.weight)
        x = F.conv2d(x, weight, None, 1, self.conv.padding, 1, self.conv.groups)
        return self.results(F.relu(self.norm(x)))


@case(
    "quantized-scales",
    "scale and zero of each of 36 rounded tensors are read with .item() in the forward pass",
    "fake_quantize with the tensors themselves",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step", "elementwise-chain"),
)
def _(bad: bool) -> Step:
    width, depth = sized(64, 8), sized(8, 2)
    layers: list[nn.Module] = [nn.Conv2d(1, width, (10, 4), 2, (5, 1)), QuantizedConv(width, width, 1, bad)]
    for _ in range(depth):
        layers += [QuantizedConv(width, width, 3, bad, width), QuantizedConv(width, width, 1, bad)]
    layers += [QuantizedConv(width, width, 1, bad), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(width, 35)).cuda()
    batch = sized(64, 4)
    x, y = torch.randn(batch, 1, 49, 10, device="cuda"), torch.randint(35, (batch,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(x), y), autocast=False)


@case(
    "burgers-eager",
    "a network is held to Burgers' equation by its second derivatives, operator by operator",
    "a CUDA graph of the whole step",
    "launch-bound",
    "uncompiled-step",
    may_precede=("elementwise-chain", "kernel-loop", "operator-loop"),
)
def _(bad: bool) -> Step:
    width, points = sized(64, 8), sized(4096, 16)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([2, *[width] * 8]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()
    on_gpu = torch.cuda.is_available()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=on_gpu)
    x, t = torch.rand(points, 1, device="cuda") * 2 - 1, torch.rand(points, 1, device="cuda")
    x.requires_grad_(True)
    t.requires_grad_(True)
    start = torch.linspace(-1, 1, 256, device="cuda")[:, None]
    known, at_start = -torch.sin(torch.pi * start), torch.cat([start, torch.zeros_like(start)], 1)

    def slope(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        u = model(torch.cat([x, t], 1))
        u_t, u_x = slope(u, t), slope(u, x)
        wrong = u_t + u * u_x - 0.01 / torch.pi * slope(u_x, x)
        loss = wrong.square().mean() + F.mse_loss(model(at_start), known)
        loss.backward()
        optimizer.step()

    steps = [step] if bad or not on_gpu else [repeated(step), step]  # the graph works in the step's memory
    return lambda: steps[0]()


class Replay:
    """What a robot did: a list of moves, or an array of each part of them."""

    def __init__(self, count: int, seen: int, moved: int, as_list: bool) -> None:
        draw = np.random.default_rng(0)
        self.parts = [
            draw.normal(size=size).astype(np.float32)
            for size in ((count, seen), (count, moved), (count,), (count, seen), (count,))
        ]
        self.moves = list(zip(*self.parts, strict=True)) if as_list else []
        self.random = draw

    def drawn(self, batch: int) -> list[torch.Tensor]:
        """Return a batch of them on the GPU."""
        if self.moves:
            columns = zip(*random.sample(self.moves, batch), strict=True)
            return [torch.tensor(np.array(column)).to("cuda") for column in columns]
        chosen = self.random.integers(len(self.parts[0]), size=batch)
        together = np.concatenate([part[chosen].reshape(batch, -1) for part in self.parts], 1)
        whole = torch.from_numpy(together).to("cuda")
        sizes = [part.shape[1] if part.ndim == 2 else 1 for part in self.parts]
        split = whole.split(sizes, 1)
        return [x if part.ndim == 2 else x.squeeze(1) for x, part in zip(split, self.parts, strict=True)]


def critic(seen: int, moved: int, width: int) -> nn.Sequential:
    """Return a network that says how good a move is."""
    return nn.Sequential(
        *(nn.Linear(seen + moved, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()), nn.Linear(width, 1)
    )


@case(
    "both-critics",
    "moves are drawn from a Python list and stacked, and the targets of ten critics follow them weight by weight",
    "arrays indexed at once, and torch._foreach_lerp_",
    "python-time",
    "kernel-loop",
    "operator-loop",
    "small-copy",
    "pageable-memory",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    seen, moved, width, many = 39, 8, sized(256, 16), sized(10, 2)
    replay = Replay(sized(50_000, 64), seen, moved, bad)
    critics, targets = (
        nn.ModuleList(critic(seen, moved, width) for _ in range(many)).cuda() for _ in range(2)
    )
    targets.load_state_dict(critics.state_dict())
    targets.requires_grad_(False)
    policy = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, moved), nn.Tanh()).cuda()
    optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4, fused=True)

    def step() -> None:
        state, move, reward, then, ended = replay.drawn(sized(1024, 8))
        with torch.no_grad():
            after = torch.cat([then, policy(then)], 1)
            chosen = random.sample(range(many), 2)
            least = torch.min(targets[chosen[0]](after), targets[chosen[1]](after)).squeeze(1)
            wanted = reward + 0.99 * (ended < 1.0).float() * least
        pair = torch.cat([state, move], 1)
        said = torch.stack([one(pair).squeeze(1) for one in critics])
        F.mse_loss(said, wanted.expand_as(said)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            if bad:
                for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                    old.data.copy_(0.005 * new.data + 0.995 * old.data)
            else:
                torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)

    return step


class Waves(nn.Module):
    """Convolutions over the electrodes of a head and over time."""

    def __init__(self, electrodes: int = 64, width: int = 16, kinds: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, (1, 65), padding=(0, 32), bias=False), nn.BatchNorm2d(width)),
            nn.Conv2d(width, 2 * width, (electrodes, 1), groups=width, bias=False),
            *(nn.BatchNorm2d(2 * width), nn.ELU(), nn.AvgPool2d((1, 4)), nn.Dropout(0.25)),
            nn.Conv2d(2 * width, 2 * width, (1, 16), padding=(0, 8), groups=2 * width, bias=False),
            nn.Conv2d(2 * width, 2 * width, 1, bias=False),
            *(nn.BatchNorm2d(2 * width), nn.ELU(), nn.AdaptiveAvgPool2d((1, 8)), nn.Flatten()),
        )
        self.head = nn.Linear(16 * width, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x[:, None]))


@case(
    "brain-metrics",
    "four torchmetrics are called with each batch, which computes their values, and these are read for the log",
    "update(), and compute() at the end of an epoch",
    "metric-compute",
    "item-each-step",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step", "size-from-device"),
)
def _(bad: bool) -> Step:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassCohenKappa,
        MulticlassF1Score,
    )

    model, batch = Waves(sized(64, 8), sized(16, 4)).cuda(), sized(64, 8)
    x, y = torch.randn(batch, sized(64, 8), sized(256, 64), device="cuda"), torch.randint(4, (batch,)).cuda()
    metrics = MetricCollection(
        [
            MulticlassAccuracy(4),
            MulticlassF1Score(4),
            MulticlassCohenKappa(4),
            MulticlassAUROC(4, thresholds=50),
        ]
    ).cuda()
    seen: list[torch.Tensor] = []
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        out = model(x).float()
        seen[:] = [out.detach().softmax(-1)]
        return F.cross_entropy(out, y)

    def note() -> None:
        if bad:
            log.update({name: float(value) for name, value in metrics(seen[0], y).items()})
        else:
            metrics.update(seen[0], y)

    return trained(model, loss, last=note)


# -- JAX ----------------------------------------------------------------------------------------------------


@jax_case(
    "jax-forecast",
    "a forecast goes on for 128 times, each a call of a jitted function, and its fields are stacked",
    "lax.scan inside of jit",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    "python-time",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    size, width, times = sized(64, 8), sized(128, 8), sized(128, 4)
    keys = jax.random.split(jax.random.key(0), 5)
    field = jax.random.normal(keys[0], (4, size, width), jnp.float32)
    weights = [jax.random.normal(key, (width, width), jnp.float32) * width**-0.5 for key in keys[1:]]

    def onward(field: Any, weights: Any) -> Any:
        waves = jnp.fft.rfft(field, axis=1)
        waves = waves.at[:, size // 4 :].multiply(0.1)
        x = jnp.fft.irfft(waves, size, axis=1)
        for one in weights:
            x = jax.nn.gelu(x @ one)
        return field + 0.01 * x

    next_one = jax.jit(onward)

    @jax.jit
    def whole(field: Any, weights: Any) -> Any:
        def one(field: Any, _: Any) -> Any:
            new = onward(field, weights)
            return new, new

        return jax.lax.scan(one, field, None, times)[1]

    def step() -> Any:
        if not bad:
            return whole(field, weights)
        now, fields = field, []
        for _ in range(times):
            now = next_one(now, weights)
            fields.append(now)
        return jnp.stack(fields)

    return step


@jax_case(
    "jax-dispatch",
    "tokens go to their experts and come back by products with one-hot vectors of expert and place",
    "gathered by index",
    "one-hot-product",
    may_precede=("elementwise-chain", "mixed-precision"),
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    groups, tokens, width, experts, wide = sized(4, 2), sized(4096, 16), sized(1024, 8), sized(16, 4), 2
    room = tokens // experts * 5 // 4
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (groups, tokens, width), jnp.bfloat16)
    weights = {
        "router": jax.random.normal(keys[1], (width, experts), jnp.float32) * 0.02,
        "up": jax.random.normal(keys[2], (experts, width, wide * width), jnp.bfloat16) * 0.02,
        "down": jax.random.normal(keys[3], (experts, wide * width, width), jnp.bfloat16) * 0.02,
    }

    def apply(weights: Any, inside: Any) -> Any:
        y = jax.nn.gelu(jnp.einsum("gecd,edf->gecf", inside, weights["up"]))
        return jnp.einsum("gecf,efd->gecd", y, weights["down"])

    def routed(weights: Any, x: Any) -> Any:
        chances = jax.nn.softmax(x.astype(jnp.float32) @ weights["router"], -1)
        chosen, gate = jnp.argmax(chances, -1), jnp.max(chances, -1).astype(x.dtype)
        mine = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
        place = jnp.sum((jnp.cumsum(mine, 1) - 1) * mine, -1)
        if bad:
            sent = jax.nn.one_hot(chosen, experts, dtype=x.dtype)[..., None]
            sent = sent * jax.nn.one_hot(place, room, dtype=x.dtype)[:, :, None]
            y = apply(weights, jnp.einsum("gsec,gsd->gecd", sent, x))
            return jnp.einsum("gsec,gecd->gsd", sent * gate[..., None, None], y)
        group, line = jnp.arange(groups)[:, None], jnp.arange(tokens)[None]
        slots = experts * room
        slot = jnp.where(place < room, chosen * room + place, slots)
        source = jnp.full((groups, slots), tokens).at[group, slot].set(line, mode="drop")
        how = {"mode": "fill", "fill_value": 0, "unique_indices": True}
        inside = x.at[group, source].get(**how).reshape(groups, experts, room, width)
        y = apply(weights, inside).reshape(groups, slots, width)
        return y.at[group, slot].get(**how) * gate[..., None]

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean(jnp.square((x + routed(weights, x)).astype(jnp.float32)))

    @jax.jit
    def update(weights: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - (0.01 * g).astype(w.dtype), weights, grads), value

    state = [weights]

    def step() -> Any:
        state[0], value = update(state[0], x)
        return value

    return step
