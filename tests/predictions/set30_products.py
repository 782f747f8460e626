"""Steps on a CPU whose matrix products cost more than they have to: their order, their rows, one at a time.

They were written together with the rules for them. Every fix computes what its step computes, up to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import Step, case
from tests.predictions.set24_on_a_cpu import mlp, trained

# -- the order of products ----------------------------------------------------------------------------------


class LinearAttention(nn.Module):
    """Attention with a feature map instead of a softmax, by the scores of all pairs or by sums over the sequence."""

    def __init__(self, width: int, heads: int, pairs: bool) -> None:
        super().__init__()
        self.heads, self.pairs, self.norm = heads, pairs, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        keys = k.transpose(-2, -1)
        y = q @ keys @ v if self.pairs else q @ (keys @ v)  # cost: tiles-pairs
        y = y / (q @ k.sum(-2)[..., None])
        return x + self.out(y.transpose(1, 2).flatten(2))


@case(
    "tiles-pairs",
    "linear attention computes the scores of all pairs of 576 tiles, and multiplies them by the values",
    "keys times values first",
    "product-order",
    cpu=True,
)
def _(bad: bool) -> Step:
    layers = (
        nn.Sequential(LinearAttention(96, 3, bad), nn.LayerNorm(96), mlp(96, 192, 96)) for _ in range(3)
    )
    model = nn.Sequential(nn.Linear(48, 96), *layers)
    head, x, y = nn.Linear(96, 10), torch.randn(4, 576, 48), torch.randint(10, (4,))
    return trained(nn.ModuleList([model, head]), lambda: F.cross_entropy(head(model(x).mean(1)), y))


@case(
    "roads-power",
    "a graph network multiplies the matrix of a graph by itself before it multiplies the few features",
    "from right to left",
    "product-order",
    cpu=True,
)
def _(bad: bool) -> Step:
    nodes, width = 600, 24
    near = (torch.rand(nodes, nodes) < 0.02).float() + torch.eye(nodes)
    near = near / near.sum(1, keepdim=True)
    first, second = nn.Linear(12, width), mlp(width, 64, 4)
    x, y = torch.randn(nodes, 12), torch.randint(4, (nodes,))

    def loss() -> torch.Tensor:
        h = F.relu(first(x))
        h = near @ near @ h if bad else near @ (near @ h)  # cost: roads-power
        return F.cross_entropy(second(h), y)

    return trained(nn.ModuleList([first, second]), loss)


# -- rows that are not used ---------------------------------------------------------------------------------


class Reader(nn.Module):
    """A small language model."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


@case(
    "queries-last",
    "a server scores all words after each word of a query, and reads the scores after the last word",
    "the head on the last word",
    "unused-rows",
    cpu=True,
    marked=True,
)
def _(bad: bool) -> Step:
    model, ids = Reader(12_000, 128, 3).eval(), torch.randint(12_000, (8, 64))

    @torch.inference_mode()
    def step() -> torch.Tensor:
        h = model(ids)
        scores = model.head(h)[:, -1] if bad else model.head(h[:, -1])  # cost: queries-last
        return scores.softmax(-1).topk(5, -1).indices

    return step


@case(
    "blanks-masked",
    "a masked language model scores all words at each place, and picks the scores of the hidden 15 %",
    "the hidden places first",
    "unused-rows",
    cpu=True,
)
def _(bad: bool) -> Step:
    model, ids = Reader(6_000, 128, 2), torch.randint(6_000, (8, 64))
    hidden = torch.rand(8, 64) < 0.15

    def loss() -> torch.Tensor:
        h = model(ids)
        scores = model.head(h)[hidden] if bad else model.head(h[hidden])  # cost: blanks-masked
        return F.cross_entropy(scores, ids[hidden])

    return trained(model, loss)


# -- experts ------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture of experts, of which each row has two."""

    def __init__(self, width: int, count: int, every: bool) -> None:
        super().__init__()
        self.every, self.gate = every, nn.Linear(width, count)
        self.experts = nn.ModuleList(mlp(width, 4 * width, width, between=nn.GELU) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        if self.every:
            shares = torch.zeros(len(x), len(self.experts)).scatter(1, chosen, best)
            for i, expert in enumerate(self.experts):
                out = out + shares[:, i, None] * expert(x)  # cost: trips-experts
            return x + out
        for i, expert in enumerate(self.experts):
            rows, at = torch.where(chosen == i)
            out = out.index_add(0, rows, expert(x[rows]) * best[rows, at, None])
        return x + out


@case(
    "trips-experts",
    "each of eight experts is called on all rows, and its output multiplied by a share that is mostly zero",
    "each expert called on its rows",
    "all-experts",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = nn.Sequential(nn.Linear(24, 128), Experts(128, 8, bad), Experts(128, 8, bad), nn.Linear(128, 1))
    x, late = torch.randn(768, 24), torch.randn(768)
    return trained(model, lambda: F.smooth_l1_loss(model(x).squeeze(1), late))


# -- one at a time ------------------------------------------------------------------------------------------


@case(
    "meters-linears",
    "each of 96 channels has a linear layer of its own, which a loop calls",
    "one batched product of all of them",
    "product-loop",
    "operator-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    channels, past, ahead = 96, 96, 24
    layers = nn.ModuleList(nn.Linear(past, ahead) for _ in range(channels))
    weight = nn.Parameter(torch.stack([layer.weight.detach().t() for layer in layers]))
    bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers])[:, None])
    x, y = torch.randn(32, past, channels), torch.randn(32, ahead, channels)

    def loss() -> torch.Tensor:
        if bad:
            out = torch.zeros(32, ahead, channels)
            for i in range(channels):
                out[:, :, i] = layers[i](x[:, :, i])  # cost: meters-linears
        else:
            out = torch.baddbmm(bias, x.permute(2, 0, 1), weight).permute(1, 2, 0)
        return F.mse_loss(out, y)

    return trained(layers if bad else nn.ParameterList([weight, bias]), loss)


@case(
    "gaits-frames",
    "the frames of a film go through a convolution one by one",
    "all frames at once",
    "product-loop",
    "operator-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    see = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()
    )
    remember, head = nn.GRU(16 * 36, 48, batch_first=True), nn.Linear(48, 8)
    x, y = torch.rand(4, 40, 1, 24, 24), torch.randint(8, (4,))

    def loss() -> torch.Tensor:
        if bad:
            h = torch.stack([see(x[:, t]) for t in range(x.shape[1])], 1)  # cost: gaits-frames
        else:
            h = see(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return F.cross_entropy(head(remember(h)[0][:, -1]), y)

    return trained(nn.ModuleList([see, remember, head]), loss)


@case(
    "verbs-heads",
    "attention goes through its eight heads one by one",
    "all heads in one batched product",
    "operator-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    heads, width = 8, 128
    inside, outside, norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
    x, y = torch.randn(16, 24, width), torch.randint(5, (16,))
    last = nn.Linear(width, 5)

    def attend(h: torch.Tensor) -> torch.Tensor:
        q, k, v = inside(norm(h)).chunk(3, -1)
        if bad:
            outs = []
            for q_i, k_i, v_i in zip(*(one.chunk(heads, -1) for one in (q, k, v)), strict=True):
                share = (q_i @ k_i.transpose(1, 2) / 4).softmax(-1)  # cost: verbs-heads
                outs.append(share @ v_i)  # cost: verbs-heads
            return h + outside(torch.cat(outs, -1))
        q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
        share = (q @ k.transpose(2, 3) / 4).softmax(-1)
        return h + outside((share @ v).transpose(1, 2).flatten(2))

    def loss() -> torch.Tensor:
        h = x
        for _ in range(4):
            h = attend(h)
        return F.cross_entropy(last(h.mean(1)), y)

    return trained(nn.ModuleList([inside, outside, norm, last]), loss)


@case(
    "tides-stations",
    "each of 32 stations has two layers of its own, and the tensor of all of them is taken apart for these",
    "batched products of all of them",
    "product-loop",
    "operator-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    stations, past, width = 32, 48, 32
    layers = nn.ModuleList(mlp(past, width, past) for _ in range(stations))
    weights = [
        nn.Parameter(torch.stack([part(layer) for layer in layers]))
        for at in (0, 2)
        for part in (
            lambda layer, at=at: layer[at].weight.detach().t(),
            lambda layer, at=at: layer[at].bias.detach()[None],
        )
    ]
    x, y = torch.randn(24, stations, past), torch.randn(24, stations, past)

    def loss() -> torch.Tensor:
        if bad:
            each = zip(layers, x.unbind(1), strict=True)
            out = torch.stack([layer(part) for layer, part in each], 1)  # cost: tides-stations
        else:
            first, b, second, c = weights
            out = torch.baddbmm(c, F.relu(torch.baddbmm(b, x.transpose(0, 1), first)), second).transpose(0, 1)
        return F.mse_loss(out, y)

    return trained(layers if bad else nn.ParameterList(weights), loss)
