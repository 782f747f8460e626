"""Steps on a GPU with a planted cost: models of other trades, each with a mistake that no earlier set has in it.

``musicgen-math``, ``pixart-prompt``, ``vits-segments``, ``cyclegan-targets`` and ``jax-word-vectors`` are meant to be
bound by the GPU, the others more or less by the host. ``musicgen-math`` and ``electra-micro`` have a second, smaller
cost, which their fix leaves as it is. Next to nothing can be won in ``cyclegan-targets``. Every fix computes what its
step computes: the same numbers, up to rounding.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, adamw, case, channels_last, sized, trained
from tests.predictions.set3_devices import jax_case
from tests.predictions.set19_plain_steps import Text, layers, resnet18


def split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a tensor with its heads before its places."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


# -- bound by the GPU ---------------------------------------------------------------------------------------


class SongLayer(nn.Module):
    """A layer of a decoder of music."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # cost: musicgen-math
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Song(nn.Module):
    """A MusicGen without its text: each time has a code of each of several books."""

    def __init__(self, books: int, codes: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.codes = nn.ModuleList(nn.Embedding(codes, width) for _ in range(books))
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(SongLayer(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, codes, bias=False) for _ in range(books))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.stack([book(ids[:, i]) for i, book in enumerate(self.codes)]).sum(0) + self.places
        x = self.norm(self.layers(x))
        return torch.stack([head(x) for head in self.heads], 1).float()


@case(
    "musicgen-math",
    "a MusicGen is trained with the math backend of scaled_dot_product_attention, which was asked for to look for a "
    "NaN; AdamW is as it is by default",
    "whichever backend is fastest; AdamW stays as it is",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, length, books, codes = sized(16, 2), sized(384, 8), 4, sized(2048, 20)
    model = Song(books, codes, length, sized(1536, 32), sized(8, 2)).to(DEVICE)
    x = torch.randint(codes, (batch, books, length + 1), device=DEVICE)
    y = x[..., 1:].flatten()

    def loss() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH) if bad else contextlib.nullcontext():  # cost: musicgen-math
            return F.cross_entropy(model(x[..., :-1]).flatten(0, 2), y)

    return trained(model, loss, optimizer=adamw(model, fused=False, foreach=True))


class PaintLayer(nn.Module):
    """A layer of a PixArt: attention to the image, then to the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.table = nn.Parameter(torch.randn(6, width) * 0.02)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q, self.kv, self.join = (nn.Linear(width, n * width) for n in (1, 2, 1))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f = (self.table + time.unflatten(-1, (6, -1))).unsqueeze(2).unbind(1)
        q, k, v = (split(part, self.heads) for part in self.qkv(self.norms[0](x) * (1 + a) + b).chunk(3, -1))
        x = x + c * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        q, (k, v) = (
            split(self.q(x), self.heads),
            (split(part, self.heads) for part in self.kv(text).chunk(2, -1)),
        )
        x = x + self.join(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + f * self.down(F.gelu(self.up(self.norms[1](x) * (1 + d) + e)))


class Painter(nn.Module):
    """A PixArt with the encoder of its prompts."""

    def __init__(
        self, words: int, length: int, encoded: int, text: int, places: int, width: int, n: int
    ) -> None:
        super().__init__()
        self.encoder = Text(words, length, encoded, text, causal=False)
        self.caption, self.time = (
            nn.Linear(encoded, width),
            nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width)),
        )
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 16)
        self.places = nn.Parameter(torch.randn(places, width) * 0.02)
        self.layers = nn.ModuleList(PaintLayer(width) for _ in range(n))
        self.register_buffer("rates", torch.logspace(0, -4, width // 2))

    def forward(self, x: torch.Tensor, text: torch.Tensor, t: float) -> torch.Tensor:
        angles = t * self.rates
        time = self.time(torch.cat([angles.sin(), angles.cos()]))[None]
        x, text = self.first(x) + self.places, self.caption(text)
        for layer in self.layers:
            x = layer(x, text, time)
        return self.last(x)


@case(
    "pixart-prompt",
    "a PixArt draws four images in four steps, and each step encodes the same prompts by a large encoder",
    "the prompts are encoded once, before the steps",
    "repeated-forward",
    "repeated-in-layers",
    marked=True,
)
def _(bad: bool) -> Step:
    batch, length, words, places = sized(4, 2), sized(128, 6), sized(32_128, 50), sized(1024, 9)
    with torch.device(DEVICE):
        model = Painter(
            words, length, sized(2048, 32), sized(16, 2), places, sized(1152, 32), sized(12, 2)
        ).to(BF16)
        prompts = torch.randint(words, (2 * batch, length))  # half of them are empty ones, to guide by
        noise = torch.randn(batch, places, 16, dtype=BF16)
    times = [1.0, 0.75, 0.5, 0.25]

    @torch.inference_mode()
    def step() -> torch.Tensor:
        x, text = noise, None if bad else model.encoder(prompts)
        for t in times:
            known = model.encoder(prompts) if text is None else text  # cost: pixart-prompt
            guided, free = model(torch.cat([x, x]), known, 1000 * t).chunk(2)
            x = x - 0.25 * (free + 4.5 * (guided - free))
        return x

    return step


class Waves(nn.Module):
    """The gated convolutions of a VITS, over the frames of a spectrum."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 5, padding=2) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: Any = 0
        for gate, out in zip(self.gates, self.outs, strict=True):
            a, b = gate(x).chunk(2, 1)
            more, skip = out(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + more, total + skip
        return total


class Residual(nn.Module):
    """A block of the decoder of a VITS."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, size, dilation=d, padding=d * (size - 1) // 2) for d in (1, 1, 3, 1, 5, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in zip(self.convs[::2], self.convs[1::2], strict=True):
            x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Voice(nn.Module):
    """The posterior encoder of a VITS, and its decoder, a HiFi-GAN that's shown a segment of each utterance."""

    def __init__(
        self, bins: int, latent: int, depth: int, width: int, rates: tuple[int, ...], pieces: Any
    ) -> None:
        super().__init__()
        self.first, self.waves = nn.Conv1d(bins, latent, 1), Waves(latent, depth)
        self.last, self.begin = nn.Conv1d(latent, 2 * latent, 1), nn.Conv1d(latent, width, 7, padding=3)
        widths = [width >> i for i in range(len(rates) + 1)]
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(a, b, 2 * rate, rate, rate // 2)
            for (a, b), rate in zip(itertools.pairwise(widths), rates, strict=True)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(Residual(b, size) for size in (3, 7, 11)) for b in widths[1:]
        )
        self.end, self.pieces = nn.Conv1d(widths[-1], 1, 7, padding=3), pieces

    def forward(self, spectrum: torch.Tensor, starts: torch.Tensor, frames: int) -> Any:
        mean, spread = self.last(self.waves(self.first(spectrum))).chunk(2, 1)
        z = mean + torch.randn_like(mean) * spread.exp()
        x = self.begin(self.pieces(z, starts, frames))
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = torch.stack([block(x) for block in blocks]).mean(0)
        divergence = 0.5 * (mean.float().square() + (2 * spread.float()).exp() - 1 - 2 * spread.float())
        return self.end(F.leaky_relu(x)).tanh(), divergence.mean()


def cut(x: torch.Tensor, starts: torch.Tensor, size: int) -> torch.Tensor:
    """Return a segment of each row, as the published code does."""
    out = torch.zeros_like(x[:, :, :size])
    for i in range(len(x)):
        start = starts[i]
        end = start + size
        out[i] = x[i, :, start:end]  # cost: vits-segments
    return out


def gathered(x: torch.Tensor, starts: torch.Tensor, size: int) -> torch.Tensor:
    """Return a segment of each row by its indices."""
    index = starts[:, None, None] + torch.arange(size, device=x.device)
    return x.gather(2, index.expand(-1, x.shape[1], -1))


@case(
    "vits-segments",
    "the segments that the decoder of a VITS is trained on are sliced row by row, from starts that lie on the GPU: "
    "each slice reads its start and its end",
    "gather",
    "size-from-device",
    "item-each-step",
    "waits-in-turn",
    "operator-loop",
    "kernel-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, bins, frames, segment = sized(32, 3), sized(513, 9), sized(400, 24), sized(32, 4)
    rates, pieces = (8, 8, 2, 2) if ON_GPU else (2, 2), cut if bad else gathered
    model = Voice(bins, sized(192, 8), sized(16, 2), sized(512, 16), rates, pieces).to(DEVICE)
    hop = math.prod(rates)
    spectrum = torch.rand(batch, bins, frames, device=DEVICE)
    waves = torch.rand(batch, 1, frames * hop, device=DEVICE) * 2 - 1

    def loss() -> torch.Tensor:
        starts = torch.randint(frames - segment + 1, (batch,), device=DEVICE)
        out, divergence = model(spectrum, starts, segment)
        return F.l1_loss(out.float(), pieces(waves, starts * hop, segment * hop)) + divergence

    return trained(model, loss)


class Shift(nn.Module):
    """A residual block of a CycleGAN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(F.instance_norm(self.convs[0](x)))
        return x + F.instance_norm(self.convs[1](y))


def generator(width: int, depth: int) -> nn.Sequential:
    """Return a network that turns images of one kind into images of the other."""

    def normed(conv: nn.Module, b: int) -> list[nn.Module]:
        return [conv, nn.InstanceNorm2d(b), nn.ReLU()]

    w = width
    return nn.Sequential(
        *normed(nn.Conv2d(3, w, 7, padding=3), w),
        *normed(nn.Conv2d(w, 2 * w, 3, 2, 1), 2 * w),
        *normed(nn.Conv2d(2 * w, 4 * w, 3, 2, 1), 4 * w),
        *(Shift(4 * w) for _ in range(depth)),
        *normed(nn.ConvTranspose2d(4 * w, 2 * w, 3, 2, 1, 1), 2 * w),
        *normed(nn.ConvTranspose2d(2 * w, w, 3, 2, 1, 1), w),
        *(nn.Conv2d(w, 3, 7, padding=3), nn.Tanh()),
    )


def judge(w: int) -> nn.Sequential:
    """Return a network that tells which patches of an image are real."""
    return nn.Sequential(
        *(nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(w, 2 * w, 4, 2, 1), nn.InstanceNorm2d(2 * w), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.InstanceNorm2d(4 * w), nn.LeakyReLU(0.2)),
        nn.Conv2d(4 * w, 1, 4, padding=1),
    )


@case(
    "cyclegan-targets",
    "the ones and zeros that the judges of a CycleGAN are held to are made on the CPU and copied, six times a step: "
    "next to nothing",
    "ones and zeros that lie on the GPU",
    "small-copy",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
    "waits-in-turn",
    may_precede=("elementwise-chain", "unfused-norm", "channels-last", "launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, size, width = sized(4, 2), sized(256, 32), sized(64, 4)
    makers = nn.ModuleList(generator(width, sized(9, 1)) for _ in range(2)).to(DEVICE)
    judges = nn.ModuleList(judge(width) for _ in range(2)).to(DEVICE)
    making, judging = adamw(makers), adamw(judges)
    real = [torch.rand(batch, 3, size, size, device=DEVICE) * 2 - 1 for _ in range(2)]
    ready: dict[tuple[float, torch.Size], torch.Tensor] = {}

    def held(out: torch.Tensor, value: float) -> torch.Tensor:
        if bad:
            target = torch.full(out.shape, value).to(out.device)  # cost: cyclegan-targets
        elif (value, out.shape) not in ready:
            target = ready[value, out.shape] = torch.full(out.shape, value, device=out.device)
        else:
            target = ready[value, out.shape]
        return F.mse_loss(out.float(), target)

    def step() -> None:
        judges.requires_grad_(False)
        with torch.autocast(DEVICE, dtype=BF16):
            fakes = [makers[0](real[0]), makers[1](real[1])]
            loss = F.l1_loss(makers[1](fakes[0]), real[0]) + F.l1_loss(makers[0](fakes[1]), real[1])
            loss = 10 * loss + held(judges[0](fakes[0]), 1.0) + held(judges[1](fakes[1]), 1.0)
        loss.backward()
        making.step()
        making.zero_grad(set_to_none=True)
        judges.requires_grad_(True)
        with torch.autocast(DEVICE, dtype=BF16):
            for one, true, fake in zip(judges, reversed(real), fakes, strict=True):
                (held(one(true), 1.0) + held(one(fake.detach()), 0.0)).backward()
        judging.step()
        judging.zero_grad(set_to_none=True)

    return step


# -- bound by the host, more or less ------------------------------------------------------------------------


class Disentangled(nn.Module):
    """A layer of a DeBERTa: words look at words, words at places, and places at words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.norms = max(2, width // 64), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, far: torch.Tensor, index: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (split(one(x), self.heads) for one in (self.q, self.k, self.v))
        shape = (*q.shape[:3], q.shape[2])
        far_q, far_k = (split(one(far)[None], self.heads).transpose(2, 3) for one in (self.q, self.k))
        near = (q @ far_k).gather(-1, index.expand(shape))
        near = near + (k @ far_q).gather(-1, index.expand(shape)).transpose(2, 3)
        near = near / math.sqrt(3 * q.shape[-1]) + mask
        y = F.scaled_dot_product_attention(q, k, v, near, scale=1 / math.sqrt(3 * q.shape[-1]))
        x = self.norms[0](x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class DeBERTa(nn.Module):
    """A DeBERTa that classifies texts."""

    def __init__(self, again: bool, words: int, buckets: int, width: int, depth: int) -> None:
        super().__init__()
        self.again, self.buckets, self.most = again, buckets, 16 * buckets
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.far = nn.Parameter(torch.randn(2 * buckets, width) * 0.02)
        self.layers = nn.ModuleList(Disentangled(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def distances(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the bucket of the distance of each place to each other: the further apart, the wider."""
        at = torch.arange(ids.shape[1], device=ids.device)
        apart = at[:, None] - at  # cost: deberta-buckets
        middle, size = self.buckets // 2, apart.abs()
        far = torch.where(size < middle, torch.full_like(size, middle - 1), size)  # cost: deberta-buckets
        wide = torch.log(far / middle) / math.log((self.most - 1) / middle)  # cost: deberta-buckets
        wide = torch.ceil(wide * (middle - 1)) + middle  # cost: deberta-buckets
        bucket = torch.where(size <= middle, apart, wide * apart.sign()).long()  # cost: deberta-buckets
        return (bucket + self.buckets).clamp(0, 2 * self.buckets - 1)  # cost: deberta-buckets

    def mask(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what is added to the scores, so that no word looks at padding."""
        there = (ids != 0).float()  # cost: deberta-buckets
        both = there[:, None, None] * there[:, None, :, None]  # cost: deberta-buckets
        return (1 - both) * -1e4  # cost: deberta-buckets

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids))
        index, mask = self.distances(ids), self.mask(ids)
        for layer in self.layers:
            if self.again:
                index, mask = self.distances(ids), self.mask(ids)  # cost: deberta-buckets
            x = layer(x, self.far, index, mask)
        return self.head(x[:, 0]).float()


@case(
    "deberta-buckets",
    "each of the twelve layers of a DeBERTa computes the same buckets of distances and the same mask anew",
    "buckets and mask are computed once, before the layers",
    "repeated-in-layers",
    "repeated-forward",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(16, 2), sized(128, 10), sized(32_000, 50)
    model = DeBERTa(bad, words, sized(32, 4), sized(384, 16), sized(12, 2)).to(DEVICE)
    ids = torch.randint(1, words, (batch, length), device=DEVICE)
    ids[::2, length * 3 // 4 :] = 0
    y = torch.randint(3, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(ids), y))


@case(
    "instances-bank",
    "the memory bank of instance discrimination lies on the CPU: 32,768 of its features are picked there and copied "
    "to the GPU in each step, and those of the batch are written back",
    "the memory bank lies on the GPU",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
    "waits-in-turn",
    "array-read",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, width, rows = sized(128, 4), sized(160, 32), sized(128, 8), sized(400_000, 100)
    where, turns = "cpu" if bad else DEVICE, 16
    model = channels_last(resnet18(sized(64, 4), width).to(DEVICE))
    bank = F.normalize(torch.randn(rows, width)).to(where)
    x = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    mine = itertools.cycle([torch.randperm(rows)[:batch].to(where) for _ in range(turns)])
    others = itertools.cycle([torch.randint(rows, (sized(32_768, 16),)).to(where) for _ in range(turns)])
    y = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    index = seen = torch.empty(0)

    def loss() -> torch.Tensor:
        nonlocal index, seen
        index = next(mine)
        features = F.normalize(model(x).float())
        seen = features.detach()
        same = bank[index].to(DEVICE)  # cost: instances-bank
        negatives = bank[next(others)].to(DEVICE)  # cost: instances-bank
        near = (features * same).sum(1, keepdim=True)
        return F.cross_entropy(torch.cat([near, features @ negatives.T], 1).float() / 0.07, y)

    def kept() -> None:
        bank[index] = F.normalize(0.5 * bank[index] + 0.5 * seen.to(where))  # cost: instances-bank

    return trained(model, loss, last=kept)


class DeepFM(nn.Module):
    """A DeepFM: what a click depends on, one by one, in pairs and all together."""

    def __init__(self, in_turn: bool, fields: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.in_turn = in_turn
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.alone = nn.ModuleList(nn.Embedding(rows, 1) for _ in range(fields))
        sizes = [fields * width, hidden, hidden, hidden]
        deep = (
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in itertools.pairwise(sizes)
        )
        self.deep = nn.Sequential(*deep, nn.Linear(hidden, 1))

    def pairs(self, v: torch.Tensor) -> torch.Tensor:
        if not self.in_turn:
            return 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        total = torch.zeros(len(v), device=v.device)
        for i in range(v.shape[1] - 1):
            total = total + (v[:, i : i + 1] * v[:, i + 1 :]).sum((1, 2))  # cost: deepfm-pairs
        return total

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        v = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        alone = torch.cat([table(ids[:, i]) for i, table in enumerate(self.alone)], 1)
        return self.deep(v.flatten(1)).squeeze(1).float() + alone.sum(1) + self.pairs(v)


@case(
    "deepfm-pairs",
    "a DeepFM multiplies each of its 26 features with those after it, in a loop",
    "half of the square of the sum less the sum of the squares",
    "operator-loop",
    "kernel-loop",
    says="sum",
    may_precede=("launch-bound", "uncompiled-step", "dense-embedding-gradient"),
)
def _(bad: bool) -> Step:
    batch, fields, rows = sized(4096, 8), sized(26, 4), sized(10_000, 10)
    model = DeepFM(bad, fields, rows, sized(16, 4), sized(1024, 16)).to(DEVICE)
    ids = torch.randint(rows, (batch, fields), device=DEVICE)
    y = torch.rand(batch, device=DEVICE).round()
    return trained(model, lambda: F.binary_cross_entropy_with_logits(model(ids), y))


def scattered(x: torch.Tensor, index: torch.Tensor, how: str, size: int | None) -> torch.Tensor:
    """Reduce the rows of each index; how many there are is read from the indices, unless it's given."""
    if size is None:
        size = int(index.max()) + 1  # cost: pna-sizes
    out = x.new_zeros(size, x.shape[1])
    return out.scatter_reduce(0, index[:, None].expand_as(x), x, how, include_self=False)


class PNA(nn.Module):
    """Principal neighbourhood aggregation: means, deviations, least and most of what the neighbours say."""

    def __init__(self, width: int, depth: int, kinds: int, told: bool) -> None:
        super().__init__()
        self.told, self.kinds = told, nn.Embedding(kinds, width)
        self.says = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.joins = nn.ModuleList(nn.Linear(13 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(
        self, kinds: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, graphs: int
    ) -> torch.Tensor:
        x, (source, target) = self.kinds(kinds), edges
        size = len(kinds) if self.told else None
        for say, join, norm in zip(self.says, self.joins, self.norms, strict=True):
            told = say(torch.cat([x[source], x[target]], 1)).float()
            degree = scattered(torch.ones_like(told[:, :1]), target, "sum", size)
            mean = scattered(told, target, "mean", size)
            spread = (scattered(told.square(), target, "mean", size) - mean.square()).clamp(min=1e-5).sqrt()
            least, most = (scattered(told, target, how, size) for how in ("amin", "amax"))
            scale = (degree + 1).log()
            all_ = torch.cat([mean, spread, least, most], 1)
            x = x + F.relu(norm(join(torch.cat([x, all_, all_ * scale, all_ / scale], 1))))
        out = scattered(x.float(), graph, "mean", graphs if self.told else None)
        return self.head(out).squeeze(1).float()


@case(
    "pna-sizes",
    "each of the 31 times that a PNA gathers what neighbours say, the number of nodes is read from the largest index "
    "on the GPU, as torch_scatter does unless it's told",
    "the number of nodes, which the host knows, is given (dim_size)",
    "size-from-device",
    "item-each-step",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    graphs, atoms, kinds = sized(256, 3), sized(24, 5), sized(28, 4)
    nodes = graphs * atoms
    model = PNA(sized(96, 8), sized(6, 2), kinds, told=not bad).to(DEVICE)
    at = torch.arange(nodes).view(graphs, atoms)
    ring = torch.stack([at.flatten(), at.roll(1, 1).flatten()])
    edges = torch.cat([ring, ring.flip(0)], 1).to(DEVICE)
    graph = torch.arange(graphs, device=DEVICE).repeat_interleave(atoms)
    x = torch.randint(kinds, (nodes,), device=DEVICE)
    y = torch.randn(graphs, device=DEVICE)
    return trained(model, lambda: F.l1_loss(model(x, edges, graph, graphs), y))


class Electra(nn.Module):
    """An ELECTRA: a small network replaces words, and a larger one tells which."""

    def __init__(self, words: int, length: int, small: int, width: int, depth: int) -> None:
        super().__init__()
        self.writer = Text(words, length, small, depth // 2, causal=False)
        self.reader = Text(words, length, width, depth, causal=False)
        self.guess, self.tell = nn.Linear(small, words), nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        out = self.guess(self.writer(ids.masked_fill(hidden, 0))).float()
        written = torch.where(hidden, out.detach().argmax(-1), ids)
        found = self.tell(self.reader(written)).squeeze(-1).float()
        lost = F.cross_entropy(out.flatten(0, 1), ids.flatten(), reduction="none") * hidden.flatten()
        told = F.binary_cross_entropy_with_logits(found, (written != ids).float())
        # A fixed share of the words is hidden, so that parts of a batch count alike.
        return lost.mean() / 0.15 + 50 * told


@case(
    "electra-micro",
    "an ELECTRA adds up the gradients of four micro-batches, as on the small card it was written for, though all "
    "fit at once; loss and norm of the gradients are read in each step",
    "one batch of the same texts; loss and norm are still read",
    "operator-loop",
    "kernel-loop",
    "launch-bound",
    may_precede=("uncompiled-step", "item-each-step", "waits-in-turn"),
)
def _(bad: bool) -> Step:
    parts, batch, length, words = 4, sized(64, 8), sized(128, 8), sized(30_528, 50)
    model = Electra(words, length, sized(128, 8), sized(512, 16), sized(12, 2)).to(DEVICE)
    optimizer, parts = adamw(model), parts if bad else 1
    ids = torch.randint(1, words, (batch, length), device=DEVICE)
    hidden = torch.rand(batch, length, device=DEVICE) < 0.15
    log: dict[str, float] = {}

    def step() -> None:
        total = torch.zeros((), device=DEVICE)
        for some, gone in zip(ids.chunk(parts), hidden.chunk(parts), strict=True):
            with torch.autocast(DEVICE, dtype=BF16):
                loss = model(some, gone) / parts  # cost: electra-micro
            loss.backward()  # cost: electra-micro
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log.update(loss=total.item(), grad_norm=norm.item())

    return step


class Teller(nn.Module):
    """A small decoder that keeps keys and values."""

    def __init__(self, words: int, batch: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(words, width), layers(width, depth)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        heads = self.body[0].heads
        self.register_buffer("kept", torch.randn(depth, 2, batch, heads, length, width // heads) * 0.1)

    def forward(self, ids: torch.Tensor, at: int) -> torch.Tensor:
        x = self.words(ids)[:, None] + self.places[at]
        for layer, kept in zip(self.body, self.kept, strict=True):
            q, k, v = (split(part, layer.heads) for part in layer.qkv(layer.norm1(x)).chunk(3, -1))
            kept[0, :, :, at : at + 1], kept[1, :, :, at : at + 1] = k, v
            y = F.scaled_dot_product_attention(q, kept[0, :, :, : at + 1], kept[1, :, :, : at + 1])
            x = x + layer.out(y.transpose(1, 2).flatten(2))
            x = x + layer.down(F.gelu(layer.up(layer.norm2(x))))
        return self.head(self.norm(x[:, 0])).float()


@case(
    "stories-sampler",
    "a small decoder writes eight words; each is drawn on the CPU, from scores that are copied there",
    "drawn on the GPU; all eight are read at the end",
    "host-operators",
    "blocking-copy",
    "pageable-memory",
    "awaited-copies",
    "array-read",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, words, begin, count, top = sized(8, 2), sized(50_304, 60), sized(256, 5), sized(8, 3), sized(50, 5)
    model = Teller(words, batch, begin + count, sized(768, 32), sized(12, 2)).to(DEVICE).to(BF16).eval()
    first = torch.randint(words, (batch,), device=DEVICE)
    luck = -torch.log(-torch.log(torch.rand(count, batch, top).clamp(1e-6, 1 - 1e-6)))
    luck = luck if bad else luck.to(DEVICE)

    def drawn(scores: torch.Tensor, luck: torch.Tensor) -> torch.Tensor:
        """Draw among the likeliest words that make up nine tenths."""
        best, ids = (scores / 0.8).topk(top)  # cost: stories-sampler
        share = best.softmax(-1)  # cost: stories-sampler
        rest = share.cumsum(-1) - share > 0.9  # cost: stories-sampler
        won = (best.masked_fill(rest, -math.inf) + luck).argmax(-1, keepdim=True)  # cost: stories-sampler
        return ids.gather(-1, won).squeeze(-1)  # cost: stories-sampler

    @torch.inference_mode()
    def step() -> list[list[int]]:
        ids, story = first, []
        for i in range(count):
            scores = model(ids, begin + i)
            ids = drawn(scores.cpu() if bad else scores, luck[i])  # cost: stories-sampler
            story.append(ids)
            ids = ids.to(DEVICE)  # cost: stories-sampler
        return torch.stack(story, 1).tolist()

    return step


# -- JAX ----------------------------------------------------------------------------------------------------


@jax_case(
    "jax-gru-inputs",
    "the scan of a GRU multiplies the inputs of each of 128 times by their weights, though they're all known before",
    "one product of all inputs before the scan",
    "product-in-scan",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    times, batch, width, depth = sized(128, 5), sized(256, 3), sized(768, 8), 2
    keys = jax.random.split(jax.random.key(0), 2 * depth + 1)
    x = jax.random.normal(keys[0], (times, batch, width))
    each = [jax.random.normal(key, (width, 3 * width)) * width**-0.5 for key in keys[1:]]
    state = [list(zip(each[::2], each[1::2], strict=True))]

    def gru(weights: Any, x: Any) -> Any:
        given, kept = weights

        def cell(h: Any, now: Any) -> Any:
            now = now @ given if bad else now  # cost: jax-gru-inputs
            (a, b, c), (d, e, f) = jnp.split(now, 3, -1), jnp.split(h @ kept, 3, -1)
            keep = jax.nn.sigmoid(b + e)
            h = (1 - keep) * jnp.tanh(c + jax.nn.sigmoid(a + d) * f) + keep * h
            return h, h

        return jax.lax.scan(cell, jnp.zeros_like(x[0]), x if bad else x @ given)[1]  # cost: jax-gru-inputs

    @jax.jit
    def update(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = functools.reduce(lambda y, one: gru(one, y), weights, x)
            return jnp.mean(jnp.square(y[:-1] - x[1:]))

        wrong, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), wrong

    def step() -> Any:
        state[0], wrong = update(state[0], x)  # cost: jax-gru-inputs
        return wrong

    return step


@jax_case(
    "jax-word-vectors",
    "a T5 that was written for TPUs looks its words up by products with one-hot vectors of 32,128",
    "the rows of the table are taken by their index",
    "one-hot-product",
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    batch, length, words, width, depth = (
        sized(16, 2),
        sized(512, 6),
        sized(32_128, 30),
        sized(768, 16),
        sized(6, 2),
    )
    heads, fused = max(2, width // 64), "cudnn" if jax.default_backend() == "gpu" else None
    keys = jax.random.split(jax.random.key(0), 6)

    def drawn(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape, jnp.float32) * width**-0.5

    @jax.jit
    def begin() -> Any:
        weights = {
            "words": drawn(keys[0], words, width),
            "head": drawn(keys[1], width, words),
            "layers": {
                "qkv": drawn(keys[2], depth, width, 3 * width),
                "out": drawn(keys[3], depth, width, width),
                "up": drawn(keys[4], depth, width, 4 * width),
                "down": drawn(keys[5], depth, 4 * width, width) / 2,
            },
        }
        return weights, jax.tree.map(jnp.zeros_like, weights)

    state = [begin()]
    ids = jax.random.randint(jax.random.key(1), (batch, length + 1), 0, words)

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6)).astype(x.dtype)

    def layer(x: Any, one: Any) -> Any:
        one = jax.tree.map(lambda w: w.astype(x.dtype), one)
        q, k, v = jnp.split((norm(x) @ one["qkv"]).reshape(*x.shape[:2], heads, -1), 3, -1)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=fused)
        x = x + y.reshape(x.shape) @ one["out"]
        return x + jax.nn.gelu(norm(x) @ one["up"]) @ one["down"], None

    def loss(weights: Any, ids: Any) -> Any:
        table, now = weights["words"].astype(jnp.bfloat16), ids[:, :-1]
        hot = jax.nn.one_hot(now, words, dtype=table.dtype)
        x = hot @ table if bad else table[now]  # cost: jax-word-vectors
        x, _ = jax.lax.scan(layer, x, weights["layers"])
        scores = (norm(x) @ weights["head"].astype(x.dtype)).astype(jnp.float32)
        right = jnp.take_along_axis(scores, ids[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - right)

    @jax.jit
    def update(weights: Any, speed: Any, ids: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(weights, ids)
        speed = jax.tree.map(lambda s, g: 0.9 * s + g, speed, grads)
        return (jax.tree.map(lambda w, s: w - 0.01 * s, weights, speed), speed), wrong

    def step() -> Any:
        state[0], wrong = update(*state[0], ids)  # cost: jax-word-vectors
        return wrong

    return step
