"""Steps on a GPU with a planted cost: code as papers publish it, in models that no earlier set has.

``fno-decode``, ``shufflenet-groups``, ``style-vgg``, ``cameras-lift`` and ``stereo-zeros`` are meant to be bound by the
GPU, the others by the host. Three have more than one cost, of which the fix takes away the one that wins most:
``scenes-iou``, ``nfnet-clipping`` and ``style-vgg``; the rest stays. ``tacotron-eager`` is an inference loop, and the
fix of ``stereo-zeros`` is expected to win next to nothing. Every fix computes what its step computes: the same numbers,
up to the order of sums or, in ``fno-decode``, up to their precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import DEVICE, ON_GPU, Step, adamw, case, sent, sized, trained
from tests.predictions.set12_everyday import graphed


def conv(a: int, b: int, size: int = 3, stride: int = 1, **how: Any) -> nn.Sequential:
    """Return a convolution, a batch norm and an activation."""
    padding = how.get("dilation", 1) * (size // 2)
    layers = [nn.Conv2d(a, b, size, stride, padding, bias=False, **how), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


# -- optimizers and gradients -------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """The sign of the momentum as the update, one parameter after the other or all at once."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float, one_by_one: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        self.one_by_one = one_by_one

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, params = group["lr"], group["params"]
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            if self.one_by_one:
                for p in params:
                    momentum = self.state[p]["momentum"]
                    p.mul_(1 - lr * 0.1)  # cost: electricity-lion
                    update = momentum.mul(0.9).add(p.grad, alpha=0.1).sign()  # cost: electricity-lion
                    p.add_(update, alpha=-lr)  # cost: electricity-lion
                    momentum.mul_(0.99).add_(p.grad, alpha=0.01)  # cost: electricity-lion
                continue
            grads, momenta = [p.grad for p in params], [self.state[p]["momentum"] for p in params]
            torch._foreach_mul_(params, 1 - lr * 0.1)
            updates = torch._foreach_mul(momenta, 0.9)
            torch._foreach_add_(updates, grads, alpha=0.1)
            torch._foreach_sign_(updates)
            torch._foreach_add_(params, updates, alpha=-lr)
            torch._foreach_mul_(momenta, 0.99)
            torch._foreach_add_(momenta, grads, alpha=0.01)


class SelfAttention(nn.Module):
    """A transformer layer with its norms first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 32)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class PatchForecast(nn.Module):
    """PatchTST: forecasts each series by itself, from overlapping patches of its past."""

    def __init__(self, past: int, future: int, width: int, depth: int) -> None:
        super().__init__()
        count = (past - 16) // 8 + 1
        self.into, self.places = nn.Linear(16, width), nn.Parameter(torch.randn(count, width) * 0.02)
        self.layers = nn.Sequential(*(SelfAttention(width) for _ in range(depth)))
        self.head = nn.Linear(count * width, future)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        patches = ((x - mean) / spread).unfold(-1, 16, 8).flatten(0, 1)
        out = self.head(self.layers(self.into(patches) + self.places).flatten(1))
        return out.unflatten(0, x.shape[:2]) * spread + mean


@case(
    "electricity-lion",
    "a hand-written Lion updates the 150 parameters of a PatchTST one after the other, by seven operators each",
    "the same operators as torch._foreach_* over all parameters",
    "kernel-loop",
    "operator-loop",
    "single-tensor-optimizer",
    "unfused-optimizer",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, series, past, future = sized(16, 2), sized(32, 3), sized(336, 48), sized(96, 8)
    model = PatchForecast(past, future, sized(128, 16), sized(12, 2)).to(DEVICE)
    x = torch.randn(batch, series, past, device=DEVICE)
    y = torch.randn(batch, series, future, device=DEVICE)
    optimizer = Lion(model.parameters(), 1e-4, one_by_one=bad)
    return trained(model, lambda: F.mse_loss(model(x).float(), y), optimizer=optimizer)


class StandardConv(nn.Conv2d):
    """A convolution whose weights are standardized for each output channel, times a learned gain."""

    def __init__(self, *shape: int, **how: Any) -> None:
        super().__init__(*shape, **how)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        scale = torch.rsqrt(torch.clamp(spread * self.weight[0].numel(), min=1e-4)) * self.gain
        return self._conv_forward(x, (self.weight - mean) * scale, self.bias)


class NormFree(nn.Module):
    """A bottleneck of an NFNet: no norm, but scaled activations and standardized weights."""

    def __init__(self, a: int, b: int, stride: int, beta: float) -> None:
        super().__init__()
        half = b // 2
        shapes = [(a, half, 1, 1, 0), (half, half, 3, stride, 1), (half, half, 3, 1, 1), (half, b, 1, 1, 0)]
        groups = (1, max(1, half // 128), max(1, half // 128), 1)
        self.convs = nn.ModuleList(StandardConv(*s, groups=g) for s, g in zip(shapes, groups, strict=True))
        self.side = StandardConv(a, b, 1) if stride > 1 or a != b else None
        self.stride, self.beta = stride, beta
        self.strength = nn.Parameter(torch.full((), 0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(x) * 1.7139588594436646 * self.beta
        if self.side is not None:
            x = self.side(F.avg_pool2d(y, self.stride) if self.stride > 1 else y)
        for i, conv in enumerate(self.convs):
            y = conv(F.relu(y) * 1.7139588594436646 if i else y)
        return x + self.strength * y


def clip_one_by_one(parameters: list[nn.Parameter], most: float) -> None:
    """Clip each gradient to a share of the norm of its parameter, as read from the GPU."""
    for p in parameters:
        limit = most * max(p.detach().norm().item(), 1e-3)  # cost: nfnet-clipping
        norm = p.grad.norm().item()  # cost: nfnet-clipping
        if norm > limit:
            p.grad.mul_(limit / norm)


def clip_together(parameters: list[nn.Parameter], most: float) -> None:
    """Clip each gradient to a share of the norm of its parameter, without reading a norm."""
    grads = [p.grad for p in parameters]
    limits = torch.stack(torch._foreach_norm([p.detach() for p in parameters])).clamp(min=1e-3) * most
    scales = (limits / torch.stack(torch._foreach_norm(grads))).clamp(max=1)
    torch._foreach_mul_(grads, scales.unbind())


@case(
    "nfnet-clipping",
    "adaptive clipping reads the norm of each parameter of an NFNet and of its gradient with .item(); standardized "
    "weights are written out, and the loss is read",
    "norms of all by torch._foreach_norm, and scales that stay on the GPU; the rest stays",
    "item-each-step",
    "waits-in-turn",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(96, 2), sized(160, 32), sized(1000, 4)
    widths = [sized(width, 8) for width in (128, 256, 512, 768)]
    layers: list[nn.Module] = [StandardConv(3, widths[0] // 2, 3, 2, 1), nn.ReLU()]
    layers.append(StandardConv(widths[0] // 2, widths[0], 3, 2, 1))
    a = widths[0]
    for i, (b, depth) in enumerate(zip(widths, (1, 2, 6, 3) if ON_GPU else (1, 1, 0, 0), strict=True)):
        for j in range(depth):
            layers.append(NormFree(a, b, 2 if i and not j else 1, (1 + 0.04 * j) ** -0.5))
            a = b
    layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, kinds)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    clipped = [*model[:-1].parameters()]
    clip = clip_one_by_one if bad else clip_together
    log: dict[str, float] = {}

    def after(wrong: torch.Tensor) -> None:
        log["loss"] = wrong.item()
        clip(clipped, 0.01)

    return trained(model, lambda: F.cross_entropy(model(x).float(), y), after=after)


def vgg(width: int) -> nn.ModuleList:
    """Return the first four stages of VGG16."""
    stages, a = nn.ModuleList(), 3
    for i, depth in enumerate((2, 2, 3, 3)):
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if i else []
        for _ in range(depth):
            layers += [nn.Conv2d(a, width * 2**i, 3, 1, 1), nn.ReLU()]
            a = width * 2**i
        stages.append(nn.Sequential(*layers))
    return stages


def stages_of(x: torch.Tensor, stages: nn.ModuleList) -> list[torch.Tensor]:
    """Return what each stage makes of an image."""
    out = []
    for stage in stages:
        x = stage(x)
        out.append(x)
    return out


def gram(x: torch.Tensor) -> torch.Tensor:
    """Return the products of all channels with each other."""
    x = x.flatten(2)
    return (x @ x.transpose(1, 2)).float() / x[0].numel()


class Around(nn.Module):
    """Two convolutions with norms of each image, beside a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.InstanceNorm2d(width, affine=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))


def painter(width: int, depth: int) -> nn.Sequential:
    """Return the network of fast style transfer: down, residual blocks and up again."""
    layers: list[nn.Module] = []
    for a, b, size, stride in ((3, width, 9, 1), (width, 2 * width, 3, 2), (2 * width, 4 * width, 3, 2)):
        layers += [nn.Conv2d(a, b, size, stride, size // 2), nn.InstanceNorm2d(b, affine=True), nn.ReLU()]
    layers += [Around(4 * width) for _ in range(depth)]
    for a, b in ((4 * width, 2 * width), (2 * width, width)):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, 1, 1)]
        layers += [nn.InstanceNorm2d(b, affine=True), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 3, 9, 1, 4))


@case(
    "style-vgg",
    "the weights of the VGG that judges a style transfer require gradients, so that its forward pass over the photos "
    "is differentiated and gradients of its weights pile up; Adam is as it is by default, and two figures are read",
    "requires_grad_(False) for that VGG; the rest stays",
    "unneeded-gradients",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    batch, size, width = sized(12, 2), sized(256, 32), sized(32, 4)
    model, judge = painter(width, sized(5, 1)), vgg(2 * width).requires_grad_(bad)  # cost: style-vgg
    for part in (model, judge):
        part.to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.rand(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    with torch.no_grad():
        style = [gram(y) for y in stages_of(torch.rand(1, 3, size, size, device=DEVICE), judge)]
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        wanted = stages_of(x, judge)[2]  # cost: style-vgg
        seen = stages_of(model(x), judge)  # cost: style-vgg
        content = F.mse_loss(seen[2].float(), wanted.float())
        painted = torch.stack(
            [F.mse_loss(gram(y), g.expand(batch, -1, -1)) for y, g in zip(seen, style, strict=True)]
        ).sum()
        log["content"], log["style"] = content.item(), painted.item()
        return content + 1e3 * painted

    return trained(model, loss, optimizer=optimizer)


class Shift(nn.Module):
    """Finds how far things are moved between two images: a volume of correlations, and convolutions over it."""

    def __init__(self, width: int, far: int, groups: int, depth: int) -> None:
        super().__init__()
        self.far, self.groups = far, groups
        sizes = [(3, width, 2), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)]
        self.eye = nn.Sequential(*(conv(a, b, 3, stride) for a, b, stride in sizes))
        layers: list[nn.Module] = []
        a = groups
        for _ in range(depth):
            layers += [nn.Conv3d(a, width, 3, 1, 1, bias=False), nn.BatchNorm3d(width), nn.ReLU()]
            a = width
        self.over = nn.Sequential(*layers, nn.Conv3d(width, 1, 3, 1, 1))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self.eye(torch.cat([left, right])).unflatten(1, (self.groups, -1)).chunk(2)
        shifted = F.pad(b, (self.far - 1, 0)).unfold(-1, self.far, 1)
        alike = (a[..., None] * shifted).mean(2).movedim(-1, 2)
        share = self.over(alike.contiguous(memory_format=torch.channels_last_3d))[:, 0].float().softmax(1)
        return (share * torch.arange(self.far - 1, -1, -1, device=share.device)[:, None, None]).sum(1)


@case(
    "stereo-zeros",
    "gradients of a stereo network, a million weights, are set to zero and added to: next to nothing",
    "set_to_none=True",
    "zeroed-gradients",
    may_precede=("elementwise-chain", "channels-last", "mixed-precision"),
)
def _(bad: bool) -> Step:
    batch, high, wide, width = sized(4, 2), sized(256, 32), sized(512, 48), sized(32, 8)
    model = Shift(width, sized(24, 4), sized(16, 4), sized(8, 1))
    model.eye.to(memory_format=torch.channels_last)
    model.over.to(memory_format=torch.channels_last_3d)
    model.to(DEVICE)
    images = torch.rand(2, batch, 3, high, wide, device=DEVICE)
    y = torch.rand(batch, high // 4, wide // 4, device=DEVICE) * sized(20, 3)
    optimizer = adamw(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=not bad)  # cost: stereo-zeros
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.smooth_l1_loss(model(*images), y)
        loss.backward()
        optimizer.step()

    return step


# -- losses, metrics, precision and layouts -----------------------------------------------------------------


class Atrous(nn.Module):
    """DeepLab: a residual network whose last stage is dilated, and convolutions at several dilations over it."""

    def __init__(self, width: int, depths: tuple[int, ...], out: int, kinds: int) -> None:
        super().__init__()
        self.begin = nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages, a = nn.ModuleList(), width
        for i, depth in enumerate(depths):
            b, stage = width * 2**i, nn.ModuleList()
            for j in range(depth):
                stride, dilation = (2 if i in (1, 2) and not j else 1), (2 if i == 3 else 1)
                body = nn.Sequential(conv(a, b, 3, stride), conv(b, b, 3, dilation=dilation))
                side = conv(a, b, 1, stride) if stride > 1 or a != b else nn.Identity()
                stage.append(nn.ModuleList([body, side]))
                a = b
            self.stages.append(stage)
        self.rates = nn.ModuleList([conv(a, out, 1), *(conv(a, out, 3, dilation=d) for d in (6, 12, 18))])
        self.together, self.low = conv(4 * out, out, 1), conv(width, out // 4, 1)
        self.head = nn.Sequential(conv(out + out // 4, out), nn.Conv2d(out, kinds, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, low = self.begin(x), None
        for stage in self.stages:
            for body, side in stage:  # type: ignore[misc]
                x = body(x) + side(x)
            low = x if low is None else low
        x = self.together(torch.cat([rate(x) for rate in self.rates], 1))
        x = F.interpolate(x, low.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(torch.cat([x, self.low(low)], 1))


@case(
    "scenes-iou",
    "intersection and union of each of 60 classes of a DeepLab are read with .item() in each step; AdamW is as it is "
    "by default, and the loss is read",
    "pairs of classes counted on the GPU: the same counts; the rest stays",
    "item-each-step",
    "waits-in-turn",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(24, 2), sized(256, 64), sized(60, 4)
    model = Atrous(sized(64, 4), (3, 4, 6, 3) if ON_GPU else (1, 1, 1, 1), sized(256, 8), kinds)
    model.to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(kinds, (batch, size // 4, size // 4), device=DEVICE)
    shared, either = [0] * kinds, [0] * kinds
    pairs, one = torch.zeros(kinds * kinds, device=DEVICE), torch.ones(y.numel(), device=DEVICE)
    log: dict[str, Any] = {"shared": shared, "either": either, "pairs": pairs}

    def loss() -> torch.Tensor:
        out = model(x).float()
        found = out.detach().argmax(1)
        if bad:
            for kind in range(kinds):
                here, there = found == kind, y == kind  # cost: scenes-iou
                shared[kind] += (here & there).sum().item()  # cost: scenes-iou
                either[kind] += (here | there).sum().item()  # cost: scenes-iou
        else:
            pairs.index_add_(0, (y * kinds + found).flatten(), one)
        return F.cross_entropy(out, y)

    def note(wrong: torch.Tensor) -> None:
        log["loss"] = wrong.item()

    return trained(model, loss, optimizer=optimizer, after=note)


class Modes(nn.Module):
    """A layer of a Fourier neural operator: products of the low frequencies, beside a convolution of width one."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)
        self.near, self.modes = nn.Conv2d(width, width, 1), modes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m, (high, low) = self.modes, torch.view_as_complex(self.weights)
        spectrum = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], high)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], low)
        return torch.fft.irfft2(out, x.shape[-2:], norm="ortho") + self.near(x)


def sobolev(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the norm of each field and its first derivatives, from its spectrum."""
    power = torch.fft.rfft2(x, norm="ortho").abs().square()
    return (power * weights).sum((-2, -1)).sqrt()


@case(
    "fno-decode",
    "mean and spread of each pixel, by which a Fourier neural operator's forecast is decoded, and the weights of its "
    "Sobolev loss are NumPy's float64, and so are the decoded frames, their spectra and the loss",
    "the three as float32: the same loss up to its last digits",
    "float64",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    batch, side, past, future = sized(16, 2), sized(256, 16), sized(10, 3), sized(32, 4)
    width = sized(32, 4)
    layers: list[nn.Module] = [nn.Conv2d(past, width, 1)]
    for _ in range(sized(4, 1)):
        layers += [Modes(width, sized(16, 3)), nn.GELU()]
    model = nn.Sequential(*layers, nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, future, 1))
    model.to(DEVICE)
    draw = np.random.default_rng(0)
    flows = draw.standard_normal((32, future, side, side), dtype=np.float32).astype(np.float64)
    far = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    made = [flows.mean(0), flows.std(0) + 1e-5, 1 + far**2]  # cost: fno-decode
    mean, spread, weights = (torch.from_numpy(part).to(DEVICE) for part in made)  # cost: fno-decode
    if not bad:
        mean, spread, weights = mean.float(), spread.float(), weights.float()
    x = torch.randn(batch, past, side, side, device=DEVICE)
    y = torch.randn(batch, future, side, side, device=DEVICE)

    def loss() -> torch.Tensor:
        frames = model(x) * spread + mean  # cost: fno-decode
        return (sobolev(frames - y, weights) / sobolev(y, weights)).mean()  # cost: fno-decode

    return trained(model, loss, autocast=False)


class Shuffled(nn.Module):
    """A unit of a ShuffleNet: half of the channels go past it, or all are halved in size; then channels are mixed."""

    def __init__(self, a: int, b: int, stride: int, as_published: bool) -> None:
        super().__init__()
        half, self.stride, self.as_published = b // 2, stride, as_published
        a = a if stride > 1 else half
        self.through = nn.Sequential(
            conv(a, half, 1),
            *(nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), nn.BatchNorm2d(half)),
            conv(half, half, 1),
        )
        near = [nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a), conv(a, half, 1)]
        self.side = nn.Sequential(*near) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        past, x = (x, x) if self.stride > 1 else x.chunk(2, 1)
        x = torch.cat([self.side(past), self.through(x)], 1)
        if self.as_published:
            b, c, h, w = x.shape
            x = x.view(b, 2, c // 2, h, w)
            return x.transpose(1, 2).contiguous().view(b, c, h, w)  # cost: shufflenet-groups
        x = x.permute(0, 2, 3, 1).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        return x.permute(0, 3, 1, 2)


@case(
    "shufflenet-groups",
    "a ShuffleNet lies channels last, but the published shuffle of channels returns them first: each unit turns its "
    "images there and back",
    "the shuffle of the last dimension of images that stay channels last: the same images",
    "channels-last",
    "elementwise-chain",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(256, 2), sized(224, 64), sized(1000, 4)
    a, layers = sized(24, 4), [conv(3, sized(24, 4), 3, 2), nn.MaxPool2d(3, 2, 1)]
    for b, depth in zip((244, 488, 976) if ON_GPU else (8, 16, 16), (4, 8, 4), strict=True):
        for j in range(depth if ON_GPU else 2):
            layers.append(Shuffled(a, b, 1 if j else 2, as_published=bad))
            a = b
    end = sized(2048, 16)
    head = [conv(a, end, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(end, kinds)]
    model = nn.Sequential(*layers, *head).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


# -- data ---------------------------------------------------------------------------------------------------


class Lift(nn.Module):
    """Lifts the features of cameras by how far away each pixel may be, and adds them up on a map."""

    def __init__(self, width: int, far: int, seen: int, side: int) -> None:
        super().__init__()
        self.far, self.seen, self.side = far, seen, side
        sizes = [(width, 1), (width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)]
        layers, a = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)], width
        for b, stride in sizes:
            layers += [conv(a, b, 3, stride), conv(b, b)]
            a = b
        self.eye = nn.Sequential(*layers, nn.Conv2d(a, far + seen, 1))
        self.map = nn.Sequential(conv(seen, width), conv(width, width), conv(width, width))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        batch = images.shape[1]
        x = images.flatten(0, 1).to(memory_format=torch.channels_last)
        share, seen = self.eye(x.float() / 255).float().split([self.far, self.seen], 1)
        lifted = share.softmax(1)[..., None] * seen.permute(0, 2, 3, 1)[:, None]
        cells = (cells + (torch.arange(batch, device=x.device) * self.side**2)[:, None]).flatten()
        out = lifted.new_zeros(batch * self.side**2, self.seen).index_add(0, cells, lifted.flatten(0, 3))
        out = out.view(batch, self.side, self.side, self.seen).permute(0, 3, 1, 2)
        return self.head(self.map(out))[:, 0]


@case(
    "cameras-lift",
    "each of six cameras is cut by NumPy and copied from pinned memory, but the host waits for each copy, and then "
    "cuts the next one and draws the map while the GPU has nothing to do",
    "non_blocking=True",
    "blocking-copy",
    "awaited-copies",
)
def _(bad: bool) -> Step:
    kept, batch, cameras, high, wide = sized(48, 4), sized(4, 2), sized(6, 2), sized(256, 32), sized(704, 64)
    far, seen, side, edge = sized(41, 4), sized(64, 8), sized(200, 16), sized(32, 4)
    draw = np.random.default_rng(0)
    frames = draw.integers(0, 256, (cameras, kept, 3, high + edge, wide + edge), dtype=np.uint8)
    boxes = draw.integers(0, side - 4, (kept, sized(40, 3), 2))
    model = Lift(sized(96, 8), far, seen, side).to(DEVICE, memory_format=torch.channels_last)
    points = far * (high // 16) * (wide // 16)
    cells = torch.randint(side**2, (cameras, batch, points), device=DEVICE)
    waiting = {"non_blocking": not bad}

    def loss() -> torch.Tensor:
        which, (top, left) = draw.integers(0, kept, batch), draw.integers(0, edge, 2)
        parts = []
        for camera in frames:
            cut = np.stack([camera[i, :, top : top + high, left : left + wide] for i in which])
            parts.append(sent(cut, **waiting))  # cost: cameras-lift
        drawn = np.zeros((batch, side, side), dtype=np.float32)
        for there, corners in zip(drawn, boxes[which], strict=True):
            for y, x in corners:
                there[y : y + 4, x : x + 4] = 1
        wanted = sent(drawn, **waiting)  # cost: cameras-lift
        return F.binary_cross_entropy_with_logits(model(torch.stack(parts), cells).float(), wanted)

    return trained(model, loss)


LETTERS = "ACGT"


class Promoters(nn.Module):
    """Says what a stretch of DNA does, from its words of six letters."""

    def __init__(self, words: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(SelfAttention(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(ids))).mean(1))


@case(
    "dna-kmers",
    "each step cuts 64 stretches of DNA into overlapping words of six letters and looks these up in a dictionary, "
    "65 thousand of them",
    "NumPy numbers the words of the whole batch from the codes of their letters: the same ids",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, size, kinds = sized(64, 2), sized(1024, 12), sized(6, 2), sized(919, 5)
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice([*LETTERS], length + size - 1)) for _ in range(sized(512, 6))]
    labels = (draw.random((len(texts), kinds)) < 0.05).astype(np.float32)
    words = {"".join(word): i for i, word in enumerate(itertools.product(LETTERS, repeat=size))}
    codes = np.zeros(256, dtype=np.int64)
    codes[[ord(letter) for letter in LETTERS]] = range(len(LETTERS))
    model = Promoters(len(words), sized(192, 8), sized(4, 1), kinds).to(DEVICE)

    def numbered(chosen: list[str]) -> torch.Tensor:
        if bad:
            rows = [
                [words[text[i : i + size]] for i in range(length)]  # cost: dna-kmers
                for text in chosen
            ]
            return torch.tensor(rows)  # cost: dna-kmers
        letters = codes[np.frombuffer("".join(chosen).encode(), dtype=np.uint8)].reshape(len(chosen), -1)
        ids = np.zeros((len(chosen), length), dtype=np.int64)
        for i in range(size):
            ids = ids * len(LETTERS) + letters[:, i : i + length]
        return torch.from_numpy(ids)

    def loss() -> torch.Tensor:
        which = draw.integers(0, len(texts), batch)
        ids, y = sent(numbered([texts[i] for i in which])), sent(labels[which])
        return F.binary_cross_entropy_with_logits(model(ids).float(), y)

    return trained(model, loss)


# -- loops and shapes ---------------------------------------------------------------------------------------


class Pillars(nn.Module):
    """PointPillars: points of a laser in columns, the columns as an image, and convolutions over it."""

    def __init__(self, width: int, side: int, batch: int, image_by_image: bool) -> None:
        super().__init__()
        self.side, self.batch, self.image_by_image = side, batch, image_by_image
        self.point, self.norm = nn.Linear(9, width, bias=False), nn.BatchNorm1d(width)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), *(conv(b, b) for _ in range(3)))
            for a, b in ((width, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.flat = nn.ModuleList(conv(width * 2**i, 2 * width, 1) for i in range(3))
        self.head = nn.Conv2d(6 * width, 14, 1)

    def image(self, seen: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return an image of each batch of columns, zero where there are none."""
        side, width = self.side, seen.shape[1]
        if not self.image_by_image:
            flat = seen.new_zeros(self.batch * side**2, width)
            at = (places[:, 0] * side + places[:, 1]) * side + places[:, 2]
            return flat.index_copy(0, at, seen).view(self.batch, side, side, width).permute(0, 3, 1, 2)
        images = []
        for i in range(self.batch):
            image = seen.new_zeros(width, side**2)
            mask = places[:, 0] == i
            these = places[mask, :]  # cost: pillars-scatter
            image[:, these[:, 1] * side + these[:, 2]] = seen[mask, :].t()  # cost: pillars-scatter
            images.append(image)
        return torch.stack(images).view(self.batch, width, side, side)  # cost: pillars-scatter

    def forward(self, points: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        seen = self.norm(self.point(points).flatten(0, 1)).unflatten(0, points.shape[:2])
        x = self.image(F.relu(seen).amax(1), places).contiguous(memory_format=torch.channels_last)
        scales = []
        for stage, flat in zip(self.stages, self.flat, strict=True):
            x = stage(x)
            scales.append(flat(x))
        size = scales[0].shape[-2:]
        return self.head(torch.cat([F.interpolate(y, size) for y in scales], 1))


@case(
    "pillars-scatter",
    "the columns of each of 16 scans of a laser are picked by a boolean mask and put into an image of its own",
    "all columns put into all images by one index: the same images",
    "size-from-device",
    "item-each-step",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, side, columns, width = sized(16, 2), sized(256, 16), sized(3000, 20), sized(64, 8)
    model = Pillars(width, side, batch, image_by_image=bad)
    model.to(DEVICE, memory_format=torch.channels_last)
    points = torch.randn(batch * columns, sized(16, 3), 9, device=DEVICE)
    at = torch.stack([torch.randperm(side**2, device=DEVICE)[:columns].sort().values for _ in range(batch)])
    scan = torch.arange(batch, device=DEVICE).repeat_interleave(columns)
    places = torch.stack([scan, at.flatten() // side, at.flatten() % side], 1)
    y = (torch.rand(batch, 14, side // 2, side // 2, device=DEVICE) < 0.01).float()
    return trained(model, lambda: F.binary_cross_entropy_with_logits(model(points, places).float(), y))


class Additive(nn.Module):
    """A neural additive model: a curve of each feature, and their sum."""

    def __init__(self, features: int, width: int, batched: bool) -> None:
        super().__init__()
        sizes = [1, width, width, width // 2, 1]
        curves = [
            nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))) for _ in range(features)
        ]
        self.batched = batched
        if batched:
            layers = [*zip(*curves, strict=True)]
            self.weights = nn.ParameterList(
                torch.stack([one.weight.detach().t() for one in s]) for s in layers
            )
            self.biases = nn.ParameterList(
                torch.stack([one.bias.detach()[None] for one in s]) for s in layers
            )
        else:
            self.curves = nn.ModuleList(curves)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.batched:
            y = x.t()[..., None]
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                y = torch.baddbmm(bias, F.relu(y) if i else y, weight)
            parts = y.squeeze(-1).t()
        else:
            outs = []
            for i, curve in enumerate(self.curves):
                y = x[:, i : i + 1]
                for j, layer in enumerate(curve):  # type: ignore[arg-type]
                    y = layer(F.relu(y) if j else y)  # cost: additive-features
                outs.append(y)
            parts = torch.cat(outs, 1)
        return parts.sum(1), parts


@case(
    "additive-features",
    "a neural additive model calls a small network for each of its 80 features, one after the other",
    "the weights of all stacked, and one baddbmm a layer: the same curves",
    "kernel-loop",
    "operator-loop",
    "launch-bound",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    rows, features = sized(4096, 10), sized(80, 5)
    model = Additive(features, sized(64, 8), batched=not bad).to(DEVICE)
    x = torch.randn(rows, features, device=DEVICE)
    y = (torch.rand(rows, device=DEVICE) < 0.2).float()

    def loss() -> torch.Tensor:
        out, parts = model(x)
        return F.binary_cross_entropy_with_logits(out, y) + 1e-3 * parts.square().mean()

    return trained(model, loss, autocast=False)


class Tacotron(nn.Module):
    """Speaks letters: a decoder that looks at one place of the text after the other, frame by frame."""

    def __init__(self, letters: int, width: int, inner: int, bands: int, frames: int) -> None:
        super().__init__()
        half = width // 2
        self.frames, self.bands, self.inner = frames, bands, inner
        self.letters, self.text = nn.Embedding(letters, width), nn.LSTM(width, half, 2, bidirectional=True)
        self.before = nn.Sequential(nn.Linear(bands, half), nn.ReLU(), nn.Linear(half, half), nn.ReLU())
        self.look, self.speak = nn.LSTMCell(half + width, inner), nn.LSTMCell(inner + width, inner)
        self.asked, self.known = nn.Linear(inner, 128, bias=False), nn.Linear(width, 128, bias=False)
        self.where = nn.Conv1d(2, 32, 31, padding=15, bias=False)
        self.place, self.score = nn.Linear(32, 128, bias=False), nn.Linear(128, 1, bias=False)
        self.frame = nn.Linear(inner + width, bands + 1)
        self.after = nn.Sequential(
            nn.Conv1d(bands, width, 5, 1, 2), nn.Tanh(), nn.Conv1d(width, bands, 5, 1, 2)
        )

    def decode(self, text: torch.Tensor) -> torch.Tensor:
        """Return the frames of a text, and whether each was the last."""
        batch, known = len(text), self.known(text)
        a = b = (text.new_zeros(batch, self.inner),) * 2
        last, seen = text.new_zeros(batch, self.bands), text.new_zeros(batch, text.shape[2])
        share = total = text.new_zeros(batch, text.shape[1])
        out = []
        for _ in range(self.frames):
            a = self.look(torch.cat([self.before(last), seen], 1), a)  # cost: tacotron-eager
            near = self.place(self.where(torch.stack([share, total], 1)).transpose(1, 2))
            share = self.score(torch.tanh(self.asked(a[0])[:, None] + near + known)).squeeze(2).softmax(1)
            total = total + share
            seen = torch.bmm(share[:, None], text).squeeze(1)  # cost: tacotron-eager
            b = self.speak(torch.cat([a[0], seen], 1), b)  # cost: tacotron-eager
            out.append(self.frame(torch.cat([b[0], seen], 1)))  # cost: tacotron-eager
            last = out[-1][:, : self.bands]
        return torch.stack(out, 2)


@case(
    "tacotron-eager",
    "a Tacotron decodes 64 frames of sound, one after the other, by some thirty small kernels each",
    "the decoder's loop as a CUDA graph: the same frames",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    may_precede=("uncompiled-step",),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, length, letters, bands = sized(8, 2), sized(96, 7), sized(60, 9), sized(80, 5)
    width, inner, frames = sized(512, 16), sized(1024, 12), sized(64, 4)
    model = Tacotron(letters, width, inner, bands, frames).to(DEVICE).eval()
    texts = itertools.cycle(torch.randint(letters, (4, length, batch), device=DEVICE).unbind())
    with torch.inference_mode():
        like = torch.zeros(batch, length, width, device=DEVICE)
        decode = model.decode if bad or not ON_GPU else graphed(model.decode, like)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        text = model.text(model.letters(next(texts)))[0].transpose(0, 1)
        frames = decode(text)
        spoken = frames[:, :bands]
        return spoken + model.after(spoken)

    return step
