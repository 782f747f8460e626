"""Steps on a GPU with a planted cost: what the training code of ordinary good engineers loses time with.

None of these models and programs is in an earlier set. ``segment-layout``, ``metaformer-norm``, ``vae-logistic``,
``vq-codes``, ``sentences-anchor`` and ``waves-outside`` are meant to be bound by the GPU, the others by the host. Three
have more than one cost, of which the fix takes away the one that wins most: ``vq-codes``, ``sentences-anchor`` and
``crossnet-auc``; the rest stays. ``points-farthest`` is an inference loop. Every fix computes what its step computes:
the same numbers, up to the order of sums or, in ``waves-outside``, up to their precision.
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, case, sized, trained

# -- bound by the GPU: images -------------------------------------------------------------------------------


def double(a: int, b: int) -> nn.Sequential:
    """Return two convolutions, each with a batch norm."""
    return nn.Sequential(
        *(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
        *(nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
    )


class Segmenter(nn.Module):
    """The U-Net of the paper, four times down and up again: a mask for each image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(5)]
        self.begin = double(3, width)
        self.down = nn.ModuleList(double(a, b) for a, b in itertools.pairwise(sizes))
        self.wider = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) for a, b in itertools.pairwise(reversed(sizes))
        )
        self.up = nn.ModuleList(double(a, b) for a, b in itertools.pairwise(reversed(sizes)))
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.begin(x)]
        for stage in self.down:
            kept.append(stage(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for wider, stage in zip(self.wider, self.up, strict=True):
            x = stage(torch.cat([kept.pop(), wider(x)], 1))
        return self.out(x)


@case(
    "segment-layout",
    "a U-Net for masks and its images have their channels first, as they are by default",
    "model and images in channels_last",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size = sized(12, 2), sized(256, 32)
    layout = torch.contiguous_format if bad else torch.channels_last
    model = Segmenter(sized(64, 4)).to(DEVICE, memory_format=layout)  # cost: segment-layout
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=layout)  # cost: segment-layout
    y = (torch.rand(batch, size, size, device=DEVICE) < 0.3).float()

    def loss() -> torch.Tensor:
        out = model(x).squeeze(1).float()
        share = out.sigmoid()
        overlap = (2 * (share * y).sum((1, 2)) + 1) / (share.sum((1, 2)) + y.sum((1, 2)) + 1)
        return F.binary_cross_entropy_with_logits(out, y) + 1 - overlap.mean()

    return trained(model, loss)


class ChannelNorm(nn.Module):
    """A layer norm over the channels of an image, written out or in one call."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.written_out = written_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.written_out:
            y = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, 1e-6)
            return y.permute(0, 3, 1, 2)
        mean = x.mean(1, keepdim=True)  # cost: metaformer-norm
        spread = (x - mean).pow(2).mean(1, keepdim=True)  # cost: metaformer-norm
        x = (x - mean) / torch.sqrt(spread + 1e-6)  # cost: metaformer-norm
        return self.weight[:, None, None] * x + self.bias[:, None, None]  # cost: metaformer-norm


class Pooled(nn.Module):
    """A layer in which each place sees the average of those around it."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.first, self.second = (ChannelNorm(width, written_out) for _ in range(2))
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((width, 1, 1), 0.1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
        x = x + self.scales[0] * y
        return x + self.scales[1] * self.down(F.gelu(self.up(self.second(x))))


class Metaformer(nn.Module):
    """PoolFormer-S12."""

    def __init__(self, width: int, depths: tuple[int, ...], written_out: bool) -> None:
        super().__init__()
        sizes = [width, 2 * width, 5 * width, 8 * width]
        layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 4, 2)]
        for i, (size, depth) in enumerate(zip(sizes, depths, strict=True)):
            layers += [Pooled(size, written_out) for _ in range(depth)]
            if i + 1 < len(sizes):
                layers.append(nn.Conv2d(size, sizes[i + 1], 3, 2, 1))
        self.body = nn.Sequential(*layers, ChannelNorm(sizes[-1], written_out))
        self.head = nn.Linear(sizes[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


@case(
    "metaformer-norm",
    "the layer norm over the channels of a PoolFormer is written out, as in its published code",
    "F.layer_norm of the image with its channels last, which is how it lies in memory",
    "unfused-norm",
    "elementwise-chain",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, size, depths = sized(96, 2), sized(224, 64), (2, 2, 6, 2) if ON_GPU else (1, 1, 1, 1)
    model = Metaformer(sized(64, 4), depths, bad).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y, label_smoothing=0.1))


class Residual(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(F.silu(norm(y)))
        return x + y


def coarser(seen: int, width: int, out: int) -> nn.Sequential:
    """Return a network to an image a quarter as wide."""
    layers = [nn.Conv2d(seen, width, 3, 1, 1), Residual(width), nn.Conv2d(width, width, 4, 2, 1)]
    layers += [Residual(width), nn.Conv2d(width, width, 4, 2, 1), Residual(width)]
    return nn.Sequential(*layers, nn.Conv2d(width, out, 1))


def finer(seen: int, width: int, out: int) -> nn.Sequential:
    """Return a network to an image four times as wide."""
    layers = [nn.Conv2d(seen, width, 3, 1, 1), Residual(width), nn.ConvTranspose2d(width, width, 4, 2, 1)]
    layers += [Residual(width), nn.ConvTranspose2d(width, width, 4, 2, 1), Residual(width)]
    return nn.Sequential(*layers, nn.Conv2d(width, out, 1))


def unlikely(out: torch.Tensor, x: torch.Tensor, parts: int) -> torch.Tensor:
    """Return how unlikely an image is, in nats a value: each of its 256 steps under a mixture of logistics."""
    b, _, h, w = out.shape
    shares, rest = out[:, :parts], out[:, parts:].reshape(b, 3, 3, parts, h, w)
    means, scales, tied = rest[:, 0], rest[:, 1].clamp(min=-7.0), rest[:, 2].tanh()
    x = x[:, :, None]
    green = means[:, 1] + tied[:, 0] * x[:, 0]
    blue = means[:, 2] + tied[:, 1] * x[:, 0] + tied[:, 2] * x[:, 1]
    away = x - torch.stack([means[:, 0], green, blue], 1)
    sharp = torch.exp(-scales)
    above, below, middle = sharp * (away + 1 / 255), sharp * (away - 1 / 255), sharp * away
    inside = above.sigmoid() - below.sigmoid()
    least, most = above - F.softplus(above), -F.softplus(below)
    dense = middle - scales - 2 * F.softplus(middle) - math.log(127.5)
    usual = torch.where(inside > 1e-5, inside.clamp(min=1e-12).log(), dense)
    each = torch.where(x < -0.999, least, torch.where(x > 0.999, most, usual))
    return -torch.logsumexp(each.sum(1) + F.log_softmax(shares, 1), 1).mean() / 3


@case(
    "vae-logistic",
    "a VAE's likelihood, a mixture of ten logistics for each color of each pixel, is some forty operators in float32",
    "torch.compile of that function",
    "elementwise-chain",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, size, width, latent, parts = sized(64, 2), sized(64, 16), sized(128, 8), sized(32, 4), sized(10, 2)
    encoder, decoder = coarser(3, width, 2 * latent), finer(latent, width, 10 * parts)
    model = nn.ModuleList([encoder, decoder]).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randint(256, (batch, 3, size, size), device=DEVICE).float().div(127.5).sub(1)
    near = x.to(memory_format=torch.channels_last)
    judge: Any = unlikely if bad else torch.compile(unlikely, dynamic=False)

    def loss() -> torch.Tensor:
        mean, spread = encoder(near).float().chunk(2, 1)
        spread = spread.clamp(-10, 10)
        out = decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread))
        far = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum((1, 2, 3)).mean() / x[0].numel()
        return judge(out.float(), x, parts) + far  # cost: vae-logistic

    return trained(model, loss)


class Codes(nn.Module):
    """The nearest of many codes for each place; the codes follow what they stand for."""

    def __init__(self, count: int, width: int, as_products: bool) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(count, width) * 0.1)
        self.register_buffer("counts", torch.ones(count))
        self.register_buffer("sums", self.codes.clone())
        self.as_products = as_products
        self.used: torch.Tensor = self.counts

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.permute(0, 2, 3, 1).float()
        flat, count = x.reshape(-1, x.shape[-1]), len(self.codes)
        with torch.no_grad():
            away = torch.addmm(self.codes.square().sum(1), flat, self.codes.t(), alpha=-2)
            nearest = away.argmin(1)
            if self.as_products:
                chosen = torch.zeros(len(flat), count, device=x.device)  # cost: vq-codes
                chosen.scatter_(1, nearest[:, None], 1)  # cost: vq-codes
                found = chosen @ self.codes  # cost: vq-codes
                here, sums = chosen.sum(0), chosen.t() @ flat  # cost: vq-codes
                share = chosen.mean(0)  # cost: vq-codes
            else:
                found = F.embedding(nearest, self.codes)
                here = flat.new_zeros(count).index_add_(0, nearest, flat.new_ones(len(flat)))
                sums = torch.zeros_like(self.codes).index_add_(0, nearest, flat)
                share = here / len(flat)
            self.counts.lerp_(here, 0.01)
            self.sums.lerp_(sums, 0.01)
            self.codes.copy_(self.sums / (self.counts + 1e-5)[:, None])
            self.used = torch.exp(-(share * (share + 1e-10).log()).sum())
        found = found.view_as(x)
        near = F.mse_loss(x, found)
        return (x + (found - x).detach()).permute(0, 3, 1, 2), near


@case(
    "vq-codes",
    "a VQ-VAE picks and averages its 4096 codes by products with a one-hot matrix; three figures are read each step",
    "the codes by an embedding and their sums by index_add_: the same numbers; the figures are still read",
    "one-hot-product",
    "one-hot-sum",
)
def _(bad: bool) -> Step:
    batch, size, width, count, latent = sized(64, 2), sized(128, 16), sized(64, 8), sized(4096, 16), 64
    encoder, decoder = coarser(3, width, latent), finer(latent, width, 3)
    codes = Codes(count, latent, as_products=bad)
    model = nn.ModuleList([encoder, codes, decoder]).to(DEVICE)
    for part in (encoder, decoder):
        part.to(memory_format=torch.channels_last)
    x = torch.rand(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    parts: list[torch.Tensor] = []
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        seen = encoder(x)
        with torch.autocast(DEVICE, enabled=False):
            found, apart = codes(seen)
        wrong = F.mse_loss(decoder(found).float(), x)
        parts[:] = [wrong.detach(), apart.detach(), codes.used]
        return wrong + 0.25 * apart

    def note() -> None:
        for name, part in zip(("wrong", "apart", "used"), parts, strict=True):
            log[name] = part.item()

    return trained(model, loss, last=note)


# -- bound by the GPU: words and sound ----------------------------------------------------------------------


class BothWays(nn.Module):
    """A layer of BERT; its norms come last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = self.first(x + self.out(seen))
        return self.second(x + self.down(F.gelu(self.up(x))))


class Sentences(nn.Module):
    """A point on a sphere for each sentence."""

    def __init__(self, words: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(BothWays(width) for _ in range(depth)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        return F.normalize(self.layers(x).float().mean(1), dim=-1)


@case(
    "sentences-anchor",
    "the distance of two sentences embeds both, so that the anchor of each triplet goes through BERT twice; AdamW is "
    "as it is by default, and loss and share of right triplets are read",
    "each of the three embedded once: the same distances; the rest stays",
    "repeated-forward",
)
def _(bad: bool) -> Step:
    words, length, batch = sized(30_522, 64), sized(64, 8), sized(96, 2)
    model = Sentences(words, sized(768, 16), sized(12, 1), length).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    anchor, same, other = torch.randint(words, (3, batch, length), device=DEVICE).unbind()
    log: dict[str, float] = {}

    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 1 - (model(a) * model(b)).sum(1)  # cost: sentences-anchor

    def loss() -> torch.Tensor:
        if bad:
            near, far = apart(anchor, same), apart(anchor, other)  # cost: sentences-anchor
        else:
            at = model(anchor)
            near, far = 1 - (at * model(same)).sum(1), 1 - (at * model(other)).sum(1)
        log["right"] = (near < far).float().mean().item()
        wrong = F.relu(near - far + 0.2).mean()
        log["loss"] = wrong.item()
        return wrong

    return trained(model, loss, optimizer=optimizer)


class Waves(nn.Module):
    """Frames out of waves, 50 a second: the convolutions of wav2vec."""

    def __init__(self, width: int) -> None:
        super().__init__()
        shapes = [(10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)]
        self.convs = nn.ModuleList(
            nn.Conv1d(width if i else 1, width, size, stride, bias=False)
            for i, (size, stride) in enumerate(shapes)
        )
        self.norm = nn.GroupNorm(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm(self.convs[0](x[:, None])))
        for conv in self.convs[1:]:
            x = F.gelu(conv(x))
        return x.transpose(1, 2)


class Speakers(nn.Module):
    """Says who speaks."""

    def __init__(self, width: int, inner: int, depth: int, speakers: int, whole: bool) -> None:
        super().__init__()
        self.waves, self.whole = Waves(width), whole
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, inner)
        self.layers = nn.Sequential(*(BothWays(inner) for _ in range(depth)))
        self.head = nn.Linear(inner, speakers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=BF16, enabled=self.whole):  # cost: waves-outside
            frames = self.waves(x)  # cost: waves-outside
        return self.head(self.layers(self.into(self.norm(frames))).mean(1))


@case(
    "waves-outside",
    "the convolutions over the waves of a speech model are left out of autocast, in which all that follows runs",
    "they run in it, too: the same up to the precision of bf16",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    batch, length, speakers = sized(20, 2), sized(64_000, 2_000), sized(256, 4)
    model = Speakers(sized(512, 8), sized(768, 16), sized(12, 1), speakers, whole=not bad).to(DEVICE)
    x = torch.randn(batch, length, device=DEVICE)
    y = torch.randint(speakers, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


# -- bound by the host: graphs, tags, games, clicks ---------------------------------------------------------


def normal(edges: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges with one from each node to itself, and how much each counts."""
    edges = edges[:, edges[0] != edges[1]]  # cost: proteins-normal
    own = torch.arange(nodes, device=edges.device).expand(2, -1)
    edges = torch.cat([edges, own], 1)
    degree = torch.zeros(nodes, device=edges.device).index_add_(
        0, edges[1], torch.ones(edges.shape[1], device=edges.device)
    )
    root = degree.rsqrt()
    root = root.masked_fill(root.isinf(), 0.0)
    return edges, root.index_select(0, edges[0]) * root.index_select(0, edges[1])


class Smoothed(nn.Module):
    """A graph convolution beside a way around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.net = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        sent = self.net(F.relu(self.norm(x))).index_select(0, edges[0]) * weight[:, None]
        return x + torch.zeros_like(x).index_add(0, edges[1], sent)


@case(
    "proteins-normal",
    "each of 24 graph convolutions drops the edges from a node to itself by a mask, adds them and counts degrees anew",
    "once for a graph that does not change, as cached=True does: the same edges and weights",
    "repeated-in-layers",
    "size-from-device",
    "kernel-loop",
    "operator-loop",
    "repeated-gather",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    nodes, links, seen, kinds = sized(8_000, 30), sized(60_000, 120), sized(64, 8), sized(24, 3)
    width = sized(64, 8)
    layers = nn.ModuleList(Smoothed(width) for _ in range(sized(24, 2)))
    model = nn.ModuleList([nn.Linear(seen, width), layers, nn.Linear(width, kinds)]).to(DEVICE)
    x = torch.randn(nodes, seen, device=DEVICE)
    y = (torch.rand(nodes, kinds, device=DEVICE) < 0.1).float()
    edges = torch.randint(nodes, (2, links), device=DEVICE)
    kept = normal(edges, nodes)

    def loss() -> torch.Tensor:
        h = model[0](x)
        for layer in layers:
            h = layer(h, *(normal(edges, nodes) if bad else kept))  # cost: proteins-normal
        return F.binary_cross_entropy_with_logits(model[2](F.relu(h)), y)

    return trained(model, loss, autocast=False)


class Chain(nn.Module):
    """A conditional random field: how likely a tag is after another."""

    def __init__(self, tags: int, one_by_one: bool) -> None:
        super().__init__()
        self.moves = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.first, self.last = (nn.Parameter(torch.randn(tags) * 0.1) for _ in range(2))
        self.one_by_one = one_by_one

    def said(self, seen: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, ends: torch.Tensor) -> Any:
        """Return the score of the right tags: time is the first dimension."""
        score = self.first[y[0]] + (seen.gather(2, y[..., None]).squeeze(2) * mask).sum(0)
        if self.one_by_one:
            for i in range(1, len(y)):
                score = score + self.moves[y[i - 1], y[i]] * mask[i]  # cost: crf-score
        else:
            moved = self.moves.flatten().index_select(0, (y[:-1] * len(self.moves) + y[1:]).flatten())
            score = score + (moved.view_as(y[1:]) * mask[1:]).sum(0)
        return score + self.last[y.gather(0, ends[None]).squeeze(0)]

    def all(self, seen: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the sum over all tags."""
        score = self.first + seen[0]
        for i in range(1, len(seen)):
            then = torch.logsumexp(score[:, :, None] + self.moves + seen[i][:, None], 1)
            score = torch.where(mask[i][:, None] > 0, then, score)
        return torch.logsumexp(score + self.last, 1)


@case(
    "crf-score",
    "the score of the right tags under a BiLSTM-CRF is taken word by word, as its tutorials do",
    "the moves of all words picked at once and summed: the same score; the loop over all tags stays",
    "kernel-loop",
    "operator-loop",
    says="index",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    words, width, tags = sized(10_000, 50), sized(256, 8), sized(19, 4)
    batch, length = sized(32, 3), sized(48, 6)
    memory = nn.LSTM(width, width, 2, bidirectional=True)
    parts = [nn.Embedding(words, width), memory, nn.Linear(2 * width, tags), Chain(tags, one_by_one=bad)]
    model = nn.ModuleList(parts).to(DEVICE)
    x = torch.randint(words, (length, batch), device=DEVICE)
    y = torch.randint(tags, (length, batch), device=DEVICE)
    lengths = torch.randint(length // 2, length + 1, (batch,), device=DEVICE)
    mask = (torch.arange(length, device=DEVICE)[:, None] < lengths).float()
    ends = lengths - 1

    def loss() -> torch.Tensor:
        words, memory, head, chain = model
        seen = head(memory(words(x))[0])
        return (chain.all(seen, mask) - chain.said(seen, y, mask, ends)).mean()

    return trained(model, loss, autocast=False)


class Sums:
    """A tree of sums, from whose leaves what surprised most is drawn most often."""

    def __init__(self, leaves: np.ndarray) -> None:
        self.count = len(leaves)
        self.tree = np.concatenate([np.zeros(self.count), leaves])
        for i in range(self.count - 1, 0, -1):
            self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]

    def one_by_one(self, wanted: np.ndarray) -> np.ndarray:
        """Return the leaf at each part of the sum, one after the other."""
        found = []
        for value in wanted:
            i = 1
            while i < self.count:  # cost: replay-tree
                i = 2 * i
                if value > self.tree[i]:  # cost: replay-tree
                    value -= self.tree[i]
                    i += 1
            found.append(i - self.count)
        return np.array(found)

    def together(self, wanted: np.ndarray) -> np.ndarray:
        """Return the leaf at each part of the sum, all of them level by level."""
        wanted, i = wanted.copy(), np.ones(len(wanted), dtype=np.int64)
        for _ in range(self.count.bit_length() - 1):
            i = 2 * i
            right = wanted > self.tree[i]
            wanted = wanted - np.where(right, self.tree[i], 0.0)
            i += right
        return i - self.count

    def change_one_by_one(self, where: np.ndarray, values: np.ndarray) -> None:
        """Change leaves, each with all sums above it."""
        for i, value in zip(where, values, strict=True):
            i = int(i) + self.count
            self.tree[i] = value
            while i > 1:  # cost: replay-tree
                i //= 2
                self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]  # cost: replay-tree

    def change_together(self, where: np.ndarray, values: np.ndarray) -> None:
        """Change leaves, and then the sums above them level by level."""
        i = where + self.count
        self.tree[i] = values
        for _ in range(self.count.bit_length() - 1):
            i = i // 2
            self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]


class Player(nn.Module):
    """What each move is worth, as seen in four frames: what the place is worth, and by how much a move differs."""

    def __init__(self, size: int, width: int, moves: int) -> None:
        super().__init__()
        self.eye = nn.Sequential(
            *(nn.Conv2d(4, width // 2, 8, 4), nn.ReLU(), nn.Conv2d(width // 2, width, 4, 2), nn.ReLU()),
            *(nn.Conv2d(width, width, 3), nn.ReLU(), nn.Flatten()),
        )
        side = ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width * side**2, 8 * width), nn.ReLU(), nn.Linear(8 * width, out))
            for out in (1, moves)
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        seen = self.eye(frames.float() / 255)
        place, move = (head(seen) for head in self.heads)
        return place + move - move.mean(1, keepdim=True)


@case(
    "replay-tree",
    "the memory of a player of Atari is a tree of sums that Python walks for each of the 512 moves of a batch",
    "NumPy walks it for all of them, level by level: the same moves and sums",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step", "array-read"),
)
def _(bad: bool) -> Step:
    kept, size, batch, moves = sized(2**16, 2**5), sized(84, 36), sized(512, 4), 6
    draw = np.random.default_rng(0)
    frames = draw.integers(0, 256, (kept + 5, size, size), dtype=np.uint8)
    facts = np.stack([draw.integers(0, moves, kept), draw.normal(size=kept), draw.random(kept) < 0.01], 1)
    sums = Sums(draw.random(kept) + 0.01)
    model = Player(size, sized(64, 4), moves).to(DEVICE)
    before = copy.deepcopy(model).requires_grad_(False)
    seen = torch.empty(batch, 5, size, size, dtype=torch.uint8, pin_memory=ON_GPU)
    told = torch.empty(batch, 4, pin_memory=ON_GPU)
    drawn: list[Any] = [None, None]

    def loss() -> torch.Tensor:
        wanted = (np.arange(batch) + draw.random(batch)) * (sums.tree[1] / batch)
        where = sums.one_by_one(wanted) if bad else sums.together(wanted)
        weight = (kept * sums.tree[where + kept] / sums.tree[1]) ** -0.4
        np.take(frames, where[:, None] + np.arange(5), axis=0, out=seen.numpy(), mode="clip")
        told.numpy()[:] = np.concatenate([facts[where], (weight / weight.max())[:, None]], 1)
        both = seen.to(DEVICE, non_blocking=True)
        move, reward, over, weights = told.to(DEVICE, non_blocking=True).unbind(1)
        with torch.no_grad():
            best = model(both[:, 1:]).argmax(1, keepdim=True)
            later = before(both[:, 1:]).gather(1, best).squeeze(1)
            target = reward + 0.99 * (1 - over) * later
        worth = model(both[:, :4]).gather(1, move.long()[:, None]).squeeze(1)
        drawn[:] = [where, (worth.detach() - target).abs()]
        return (F.smooth_l1_loss(worth, target, reduction="none") * weights).mean()

    def remember() -> None:
        where, surprise = drawn
        values = (surprise.cpu().numpy().astype(np.float64) + 1e-3) ** 0.6
        (sums.change_one_by_one if bad else sums.change_together)(where, values)

    return trained(model, loss, autocast=False, last=remember)


class CrossNet(nn.Module):
    """Crosses the features of an advertisement with themselves, beside a plain network."""

    def __init__(self, fields: int, rows: int, width: int, seen: int, depth: int) -> None:
        super().__init__()
        size = fields * width + seen
        self.table = nn.Embedding(fields * rows, width)
        self.register_buffer("begin", torch.arange(fields) * rows)
        self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.deep = nn.Sequential(
            *(nn.Linear(size, 2 * size), nn.BatchNorm1d(2 * size), nn.ReLU()),
            *(nn.Linear(2 * size, size), nn.BatchNorm1d(size), nn.ReLU()),
        )
        self.head = nn.Linear(2 * size, 1)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        first = torch.cat([self.table(ids + self.begin).flatten(1), seen], 1)
        x = first
        for layer in self.cross:
            x = torch.addcmul(x, first, layer(x))
        return self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)


def area(scores: np.ndarray, clicked: np.ndarray) -> float:
    """Return how often what was clicked has the higher score (the area under the curve)."""
    ranks = np.empty(len(scores))
    ranks[scores.argsort(kind="stable")] = np.arange(1, len(scores) + 1)
    yes = float(clicked.sum())
    return float((ranks[clicked > 0].sum() - yes * (yes + 1) / 2) / max(1.0, yes * (len(scores) - yes)))


@case(
    "crossnet-auc",
    "the area under the curve of the last two batches is taken by NumPy in each step; the loss is read, ids come from "
    "pageable memory, and Adam is as it is by default",
    "the scores stay on the GPU, and the area is taken every hundredth step; the rest stays",
    "array-read",
    "metric-compute",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    shown, fields, rows = sized(200_000, 64), sized(26, 4), sized(10_000, 20)
    batch, seen = sized(16_384, 16), 16
    draw = np.random.default_rng(0)
    ids = draw.integers(0, rows, (shown, fields))
    facts = draw.random((shown, seen), dtype=np.float32)
    clicks = (draw.random(shown) < 0.2).astype(np.float32)
    model = CrossNet(fields, rows, sized(16, 4), seen, 3).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept: collections.deque[Any] = collections.deque(maxlen=2)
    numbers = itertools.count(1)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        which = draw.integers(0, shown, batch)
        of_ids, of_facts, clicked = (
            torch.from_numpy(part[which]).to(DEVICE) for part in (ids, facts, clicks)
        )
        out = model(of_ids, of_facts).float()
        kept.append((out.detach(), clicked))
        wrong = F.binary_cross_entropy_with_logits(out, clicked)
        log["loss"] = wrong.item()
        return wrong

    def judge() -> None:
        if bad or next(numbers) % 100 == 0:
            scores, clicked = (torch.cat(part) for part in zip(*kept, strict=True))
            log["area"] = area(scores.cpu().numpy(), clicked.cpu().numpy())  # cost: crossnet-auc

    return trained(model, loss, optimizer=optimizer, last=judge)


# -- bound by the host: clips and points --------------------------------------------------------------------


class Basic3d(nn.Module):
    """Two convolutions over space and time beside a way around them."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.Conv3d(b, b, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm3d(b) for _ in range(2))
        self.side = nn.Conv3d(a, b, 1, stride, bias=False) if stride > 1 or a != b else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + self.side(x))


def video_net(width: int, kinds: int) -> nn.Sequential:
    """Return a residual network over space and time of 18 layers."""
    layers: list[nn.Module] = [nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)]
    layers += [nn.BatchNorm3d(width), nn.ReLU()]
    a = width
    for b, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Basic3d(a, b, stride), Basic3d(b, b, 1)]
        a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(a, kinds))


@case(
    "video-bytes",
    "clips of bytes are made float and normalized on the CPU, and copied so: four times as large, from pageable memory",
    "the bytes are copied from pinned memory and normalized on the GPU: the same numbers",
    "pageable-memory",
    "blocking-copy",
    "host-operators",
)
def _(bad: bool) -> Step:
    batch, frames, size, kinds = sized(8, 2), sized(16, 4), sized(112, 16), sized(400, 5)
    model = video_net(sized(64, 4), kinds).to(DEVICE, memory_format=torch.channels_last_3d)
    clips = [torch.randint(256, (batch, frames, size, size, 3), dtype=torch.uint8) for _ in range(6)]
    if not bad and ON_GPU:
        clips = [clip.pin_memory() for clip in clips]
    turns = itertools.cycle(clips)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    where = "cpu" if bad else DEVICE
    mean = torch.tensor([0.43216, 0.394666, 0.37645], device=where)
    spread = torch.tensor([0.22803, 0.22145, 0.216989], device=where)

    def prepared(clip: torch.Tensor) -> torch.Tensor:
        return ((clip.float() / 255 - mean) / spread).permute(0, 4, 1, 2, 3)

    def loss() -> torch.Tensor:
        clip = next(turns)
        if not bad:
            clip = clip.to(DEVICE, non_blocking=True)
        x = prepared(clip).to(DEVICE)  # cost: video-bytes
        return F.cross_entropy(model(x).float(), y)

    # On a CPU, gradients of 3-D convolutions over clips as tiny as these are not reliable in bf16.
    return trained(model, loss, autocast=ON_GPU)


def farthest(points: torch.Tensor, count: int) -> torch.Tensor:
    """Return points of clouds, each as far as can be from those before it."""
    batch, all_, _ = points.shape
    chosen = torch.zeros(batch, count, 3, device=points.device)
    near = torch.full((batch, all_), 1e10, device=points.device)
    last = torch.zeros(batch, dtype=torch.long, device=points.device)
    for i in range(count):
        at = points.gather(1, last[:, None, None].expand(-1, 1, 3))  # cost: points-farthest
        chosen[:, i] = at[:, 0]  # cost: points-farthest
        near = torch.minimum(near, (points - at).square().sum(-1))  # cost: points-farthest
        last = near.argmax(1)  # cost: points-farthest
    return chosen


def graphed(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    """Return a function of one tensor, recorded as a CUDA graph."""
    into, side = x.clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function(into)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(into)

    def replayed(x: torch.Tensor) -> torch.Tensor:
        into.copy_(x)
        graph.replay()
        return out

    return replayed


class Shapes(nn.Module):
    """Says what a cloud of points is: a network around each of some points, and one over these."""

    def __init__(self, width: int, near: int, kinds: int) -> None:
        super().__init__()
        self.near = near
        self.around = nn.Sequential(
            *(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, 2 * width),
        )
        self.over = nn.Sequential(
            *(nn.Linear(2 * width + 3, 4 * width), nn.ReLU(), nn.Linear(4 * width, 8 * width), nn.ReLU()),
        )
        self.head = nn.Linear(8 * width, kinds)

    def forward(self, points: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        index = torch.cdist(chosen, points).topk(self.near, largest=False, sorted=False).indices
        around = points.gather(1, index.flatten(1)[..., None].expand(-1, -1, 3)).unflatten(1, index.shape[1:])
        seen = self.around(around - chosen[:, :, None]).amax(2)
        return self.head(self.over(torch.cat([seen, chosen], -1)).amax(1))


@case(
    "points-farthest",
    "256 points are chosen of each cloud to be classified, one after the other, by seven small kernels each",
    "the loop as a CUDA graph: the same points",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    may_precede=("uncompiled-step",),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, all_, count, kinds = sized(8, 2), sized(4096, 40), sized(256, 6), sized(40, 4)
    model = Shapes(sized(64, 8), sized(32, 4), kinds).to(DEVICE).eval()
    clouds = torch.randn(4, batch, all_, 3, device=DEVICE)
    turns = itertools.cycle(clouds.unbind())

    def choose(points: torch.Tensor) -> torch.Tensor:
        return farthest(points, count)

    chooser = choose if bad or not ON_GPU else graphed(choose, clouds[0])

    @torch.inference_mode()
    def step() -> torch.Tensor:
        points = next(turns)
        with torch.autocast(DEVICE, dtype=BF16):
            return model(points, chooser(points))

    return step
