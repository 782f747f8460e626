"""Steps on a GPU with a planted cost: the seventh set, models that are bound by the GPU.

The steps that are bound by the host are in :mod:`tests.predictions.set7_host_bound`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Step, case, trained

# -- contrastive learning ---------------------------------------------------------------------------------


class Tower(nn.Module):
    """Projects the features of one modality to the space that both share."""

    def __init__(self, features: int, width: int = 768, depth: int = 4) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(features, width), nn.Linear(width, width)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for block in self.body:
            x = x + block(x)
        return F.normalize(self.end(x).float(), dim=-1)


class Pair(nn.Module):
    """Two towers and the scale of what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.of_images, self.of_texts = Tower(1024), Tower(512)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))


@case(
    "clip-logits",
    "similarities of 8192 images and texts in full float32, autocast switched off for them",
    "the product under bf16 autocast",
    "fp32-matmul",
    "mixed-precision",
)
def _(bad: bool) -> Step:
    count = 8192
    model = Pair().cuda()
    images, texts = torch.randn(count, 1024, device="cuda"), torch.randn(count, 512, device="cuda")
    which = torch.arange(count, device="cuda")

    def loss() -> torch.Tensor:
        a, b = model.of_images(images), model.of_texts(texts)
        with torch.autocast("cuda", dtype=BF16, enabled=not bad):
            logits = (a @ b.t()).float() * model.scale.exp()
        return (F.cross_entropy(logits, which) + F.cross_entropy(logits.t(), which)) / 2

    return trained(model, loss)


# -- diffusion --------------------------------------------------------------------------------------------


class Spatial(nn.Module):
    """Attention of every place of a feature map to every other."""

    def __init__(self, width: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = heads, written_out
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            part.view(b, h * w, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(places).chunk(3, dim=-1)
        )
        if self.written_out:
            likeness = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
            y = torch.einsum("bhij,bhjd->bhid", likeness.softmax(dim=-1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).reshape(b, h * w, c))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class Residual(nn.Module):
    """Two convolutions, told the time between them."""

    def __init__(self, a: int, b: int, times: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.time = nn.Linear(times, b)
        self.side = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.side(x) + self.conv2(F.silu(self.norm2(y)))


class Denoiser(nn.Module):
    """A U-Net with attention on its two lower levels."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        times = 4 * width
        self.width = width
        self.times = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times), nn.SiLU())
        self.begin = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width, times), Residual(width, 2 * width, times)])
        self.seen = nn.ModuleList(Spatial(2 * width, 8, written_out) for _ in range(4))
        self.middle = Residual(2 * width, 2 * width, times)
        self.up = nn.ModuleList([Residual(4 * width, 2 * width, times), Residual(3 * width, width, times)])
        self.end = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rate = torch.exp(torch.arange(self.width // 2, device=x.device) * (-9.2 / (self.width // 2)))
        angles = t[:, None].float() * rate
        times = self.times(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.down[0](self.begin(x), times)
        second = self.seen[0](self.down[1](F.avg_pool2d(first, 2), times))
        lowest = self.seen[2](self.middle(self.seen[1](F.avg_pool2d(second, 2)), times))
        y = torch.cat([F.interpolate(lowest, scale_factor=2), second], 1)
        y = self.seen[3](self.up[0](y, times))
        return self.end(self.up[1](torch.cat([F.interpolate(y, scale_factor=2), first], 1), times))


@case(
    "latent-attention",
    "attention of a latent diffusion model as einsum, softmax and einsum",
    "scaled_dot_product_attention",
    "unfused-attention",
    may_precede=("channels-last",),
)
def _(bad: bool) -> Step:
    model = Denoiser(128, bad).cuda()
    x = torch.randn(16, 4, 64, 64, device="cuda")
    signal = torch.cos(torch.linspace(0, 1.5, 1000, device="cuda"))

    def loss() -> torch.Tensor:
        t = torch.randint(1000, (len(x),), device="cuda")
        noise, kept = torch.randn_like(x), signal[t][:, None, None, None]
        return F.mse_loss(model(kept * x + (1 - kept * kept).sqrt() * noise, t).float(), noise)

    return trained(model, loss)


# -- molecules --------------------------------------------------------------------------------------------


class Molecules(nn.Module):
    """Message passing with a virtual node a molecule, which sums and tells all of its atoms."""

    def __init__(self, width: int = 256, depth: int = 4, *, one_hot: bool) -> None:
        super().__init__()
        self.one_hot = one_hot
        self.atoms, self.bonds = nn.Embedding(119, width), nn.Embedding(8, width)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.virtual = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(
        self, kind: torch.Tensor, ends: torch.Tensor, bond: torch.Tensor, of: torch.Tensor, count: int
    ) -> torch.Tensor:
        x, edges = self.atoms(kind), self.bonds(bond)
        belongs = F.one_hot(of, count).to(x.dtype) if self.one_hot else None
        for message, virtual in zip(self.messages, self.virtual, strict=True):
            around = torch.zeros_like(x).index_add_(0, ends[1], F.relu(x[ends[0]] + edges))
            x = x + message(x + around).float()
            told = virtual(self.summed(x, of, count, belongs)).float()
            x = x + (told[of] if belongs is None else (belongs @ told).float())
        return self.head(self.summed(x, of, count, belongs)).squeeze(-1)

    def summed(
        self, x: torch.Tensor, of: torch.Tensor, count: int, belongs: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the sum of the atoms of each molecule."""
        if belongs is not None:
            return (belongs.t() @ x).float() / 32
        return torch.zeros(count, x.shape[1], device=x.device).index_add_(0, of, x) / 32


@case(
    "molecule-pool",
    "atoms are summed for each molecule by a product with one-hot vectors",
    "index_add_, and an index to tell them",
    "one-hot-product",
)
def _(bad: bool) -> Step:
    count, atoms = 1024, 32
    model = Molecules(one_hot=bad).cuda()
    of = torch.arange(count, device="cuda").repeat_interleave(atoms)
    kind = torch.randint(119, (count * atoms,), device="cuda")
    first = torch.arange(count * atoms, device="cuda").repeat(2)
    other = of.repeat(2) * atoms + torch.randint(atoms, (2 * count * atoms,), device="cuda")
    ends, bond = torch.stack([first, other]), torch.randint(8, (2 * count * atoms,), device="cuda")
    y = torch.randn(count, device="cuda")
    return trained(model, lambda: F.l1_loss(model(kind, ends, bond, of, count).float(), y))


# -- detection --------------------------------------------------------------------------------------------


def focal(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Sigmoid focal loss, as libraries have it."""
    p = torch.sigmoid(logits)
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    right = p * wanted + (1 - p) * (1 - wanted)
    each = each * ((1 - right) ** 2.0)
    share = 0.25 * wanted + 0.75 * (1 - wanted)
    return (share * each).sum()


@case(
    "retina-focal",
    "the focal loss of 600 000 anchors and 80 classes, each operator a kernel",
    "torch.compile of that function",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    body: list[nn.Module] = []
    for _ in range(4):
        body += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(True)]
    model = nn.Sequential(*body, nn.Conv2d(256, 9 * 80, 3, padding=1))
    model = model.to("cuda", memory_format=torch.channels_last)
    sizes = (80, 40, 20)
    maps = [torch.randn(8, 256, n, n, device="cuda") for n in sizes]
    maps = [x.to(memory_format=torch.channels_last) for x in maps]
    wanted = (torch.rand(8, sum(n * n for n in sizes) * 9, 80, device="cuda") < 0.001).float()
    measured: Any = focal if bad else torch.compile(focal, dynamic=False)

    def loss() -> torch.Tensor:
        out = torch.cat([model(x).permute(0, 2, 3, 1).reshape(len(x), -1, 80) for x in maps], 1)
        return measured(out.float(), wanted) / 5000

    return trained(model, loss)


# -- sound ------------------------------------------------------------------------------------------------


def filters(count: int, bins: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return triangles over the bins of a spectrum, wider and wider."""
    centres = np.geomspace(4, bins - 1, count + 2)
    place = np.arange(bins)[None, :]
    left, middle, right = (centres[i : count + i, None] for i in range(3))
    return np.clip(np.minimum((place - left) / (middle - left), (right - place) / (right - middle)), 0, None)


@case(
    "sound-spectrum",
    "the waves were read as float64, and so are their spectrum, its bands and their logarithm",
    ".float() before the spectrum",
    "float64",
)
def _(bad: bool) -> Step:
    kind = torch.float64 if bad else torch.float32
    parts: list[nn.Module] = [nn.Conv2d(1, 32, 5, 2, 2)]
    for a in (32, 64, 128):
        parts += [nn.BatchNorm2d(a), nn.ReLU(True), nn.Conv2d(a, 2 * a, 3, 2, 1)]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 50))
    model = model.to("cuda", memory_format=torch.channels_last)
    waves = torch.from_numpy(np.random.default_rng(0).standard_normal((128, 80_000))).to("cuda", kind)
    bands = torch.from_numpy(filters(80, 513)).to("cuda", kind)
    window = torch.hann_window(1024, dtype=kind, device="cuda")
    y = torch.randint(50, (128,), device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            loud = waves * (0.5 + torch.rand(len(waves), 1, device="cuda", dtype=kind))
            sharp = loud[:, 1:] - 0.97 * loud[:, :-1]
            spectrum = torch.stft(sharp, 1024, 128, window=window, return_complex=True).abs().square()
            bright = torch.log(bands @ spectrum + 1e-6)
            bright = (bright - bright.mean(-1, keepdim=True)) / (bright.std(-1, keepdim=True) + 1e-5)
        return F.cross_entropy(model(bright.float()[:, None]).float(), y)

    return trained(model, loss)


# -- two causes -------------------------------------------------------------------------------------------


class PlaceNorm(nn.Module):
    """A norm over the channels of each place, written out or in one call."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.written_out = written_out
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.written_out:
            y = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, 1e-6)
            return y.permute(0, 3, 1, 2)
        x = x.float()
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (variance + 1e-6).sqrt()
        return self.weight[:, None, None] * y + self.bias[:, None, None]


class Restore(nn.Module):
    """A block that cleans images, without an activation but a gate."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = PlaceNorm(width, written_out), PlaceNorm(width, written_out)
        self.wide, self.back = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.deep = nn.Conv2d(width, width, 3, padding=1)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.wide(self.norm1(x)).chunk(2, 1)
        x = x + self.back(self.deep(a) * b)
        a, b = self.up(self.norm2(x)).chunk(2, 1)
        return x + self.down(a * b)


@case(
    "both-restore",
    "a norm over channels written out, and the PSNR read with .item() in every step",
    "F.layer_norm",
    "unfused-norm",
    "elementwise-chain",
    may_precede=("item-each-step",),
)
def _(bad: bool) -> Step:
    width = 64
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(Restore(width, bad) for _ in range(8)),
        nn.Conv2d(width, 3, 3, padding=1),
    ).to("cuda", memory_format=torch.channels_last)
    clean = torch.rand(8, 3, 192, 192, device="cuda").to(memory_format=torch.channels_last)
    quality: list[float] = []

    def loss() -> torch.Tensor:
        dirty = clean + 0.1 * torch.randn_like(clean)
        return (dirty + model(dirty).float() - clean).square().mean()

    def read(error: torch.Tensor) -> None:
        quality.append((-10 * torch.log10(error.detach())).item())

    return trained(model, loss, after=read)
