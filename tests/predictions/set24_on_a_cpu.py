"""Steps of training and inference on a CPU, each with a cost that scripts for a CPU really have.

``clicks-adam`` and ``answers-index`` have a second, smaller cost, which their fix leaves as it is. Next to nothing can
be won in ``solar-item``. ``thumbnails-graph`` and ``answers-index`` are servers. Every fix computes what its step
computes, up to rounding; only the lazy Adam of ``clicks-adam`` leaves rows alone that are not in the batch. The rules
that are named are those that would be right; where there is none for a cost, the most similar.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.predictions.cases import Step, case, trained
from tests.predictions.set3_devices import jax_case

trained = functools.partial(trained, autocast=False, device="cpu")


def mlp(*widths: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), between()]
    return nn.Sequential(*layers[:-1])


# -- tables -------------------------------------------------------------------------------------------------


class TableBlock(nn.Module):
    """A layer of a residual network for tables."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.body = nn.BatchNorm1d(width), mlp(width, 2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.body(self.norm(x)), 0.1, self.training)


@case(
    "credit-double",
    "rows of a data frame are float64, so the network for tables was made float64 to take them",
    "rows and network in float32",
    "float64",
    cpu=True,
)
def _(bad: bool) -> Step:
    frame = np.random.default_rng(0).standard_normal((20_000, 60))
    default = (np.random.default_rng(1).random(20_000) < 0.1).astype(np.float64)
    model = nn.Sequential(nn.Linear(60, 192), *(TableBlock(192) for _ in range(3)), nn.Linear(192, 1))
    model = model.double() if bad else model  # cost: credit-double
    drawn, weight = np.random.default_rng(2), torch.tensor(9.0)

    def loss() -> torch.Tensor:
        rows = drawn.integers(0, len(frame), 256)
        x, y = torch.from_numpy(frame[rows]), torch.from_numpy(default[rows])
        x, y = (x, y) if bad else (x.float(), y.float())
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), y, pos_weight=weight)

    return trained(model, loss)


def area_under_curve(scores: np.ndarray, clicked: np.ndarray) -> float:
    """Return the area under the ROC curve, by ranks."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = int(clicked.sum())
    return float(
        (ranks[clicked > 0].sum() - positive * (positive + 1) / 2)
        / max(positive * (len(scores) - positive), 1)
    )


@case(
    "clicks-adam",
    "Adam updates every row of a table of 400 000 ids, of which a batch has a few thousand; besides, the area under "
    "the curve of the last 60 batches is computed in every step",
    "the gradient of the table sparse, and a lazy Adam",
    "dense-embedding-gradient",
    cpu=True,
)
def _(bad: bool) -> Step:
    ids, fields, width, batch = 400_000, 20, 16, 256
    table = nn.Embedding(ids, width, sparse=not bad)  # cost: clicks-adam
    deep = mlp(fields * width + 13, 256, 128, 1)
    dense = torch.optim.Adam([*deep.parameters(), *(table.parameters() if bad else ())], lr=1e-3, fused=True)
    sparse = None if bad else torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    recent: collections.deque[tuple[np.ndarray, np.ndarray]] = collections.deque(maxlen=60)

    def step() -> float:
        x, numbers = torch.randint(ids, (batch, fields)), torch.randn(batch, 13)
        y = (torch.rand(batch) < 0.2).float()
        scores = deep(torch.cat([table(x).flatten(1), numbers], 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(scores, y)
        dense.zero_grad()
        if sparse:
            sparse.zero_grad()
        loss.backward()  # cost: clicks-adam
        dense.step()  # cost: clicks-adam
        if sparse:
            sparse.step()
        recent.append((scores.detach().numpy(), y.numpy()))
        return area_under_curve(*(np.concatenate(part) for part in zip(*recent, strict=True)))

    return step


@case(
    "solar-item",
    "loss.item() is called in every step, and the batch is sent with non_blocking=True, as for a GPU: next to nothing",
    "read every 100 steps",
    "item-each-step",
    cpu=True,
)
def _(bad: bool) -> Step:
    power = torch.sin(torch.arange(50_000) / 40.0) + 0.1 * torch.randn(50_000)
    model = nn.Sequential(
        *(nn.Conv1d(1, 48, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(48, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten()),
        *mlp(512, 128, 24),
    )
    windows, running, count = power.unfold(0, 168 + 24, 1), [0.0], [0]

    def loss() -> torch.Tensor:
        x = windows[torch.randint(len(windows), (64,))].to("cpu", non_blocking=True)
        return F.l1_loss(model(x[:, None, :168]), x[:, 168:])

    def note(value: torch.Tensor) -> None:
        count[0] += 1
        if bad or count[0] % 100 == 0:
            running[0] += value.item()  # cost: solar-item

    return trained(model, loss, after=note)


# -- sequences ----------------------------------------------------------------------------------------------


class Forecaster(nn.Module):
    """Reads a series, then writes what follows, time by time."""

    def __init__(self, width: int, ahead: int, growing: bool) -> None:
        super().__init__()
        self.ahead, self.growing = ahead, growing
        self.reader, self.writer = nn.GRU(8, width, batch_first=True), nn.GRUCell(1, width)
        self.next, self.head = nn.Linear(width, 1), mlp(width, width, 3)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        h = self.reader(past)[1][0]
        y = past[:, -1, :1]
        if self.growing:
            states = past.new_zeros(len(past), 0, h.shape[1])
            for _ in range(self.ahead):
                h = self.writer(y, h)
                y = self.next(h)
                states = torch.cat((states, h.unsqueeze(1)), dim=1)  # cost: demand-cat
        else:
            kept = []
            for _ in range(self.ahead):
                h = self.writer(y, h)
                y = self.next(h)
                kept.append(h)
            states = torch.stack(kept, 1)
        return self.head(states)


@case(
    "demand-cat",
    "the decoder of a forecast appends each state to a tensor with torch.cat, which copies all states before it",
    "a list, stacked once",
    "growing-cat",
    "operator-loop",
    "kernel-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Forecaster(64, 96, bad)
    past, coming = torch.randn(128, 48, 8), torch.randn(128, 96, 1)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def loss() -> torch.Tensor:
        wrong = coming - model(past)
        return torch.maximum(quantiles * wrong, (quantiles - 1) * wrong).mean()

    return trained(model, loss)


class Patches(nn.Module):
    """A PatchTST: a transformer for time series, deep and narrow."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.grow, self.places = nn.Linear(16, width), nn.Parameter(torch.zeros(24, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(24 * width, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.grow(x.unflatten(1, (24, 16))) + self.places).flatten(1))


@case(
    "traffic-adamw",
    "AdamW as it is by default on a CPU, one parameter after the other, of a deep and narrow transformer",
    "fused=True",
    "unfused-optimizer",
    "single-tensor-optimizer",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Patches(10, 32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=None if bad else True)
    series = torch.randn(8, 384 + 24)

    def loss() -> torch.Tensor:
        x = series.roll(1, 0)
        return F.mse_loss(model(x[:, :384]), x[:, 384:])

    return trained(model, loss, optimizer=optimizer)  # cost: traffic-adamw


# -- sound --------------------------------------------------------------------------------------------------


def mel_filters(rate: int, size: int, bands: int) -> np.ndarray:
    """Return triangles that are evenly spaced on the mel scale, as librosa makes them."""
    hertz = np.linspace(0, rate / 2, 1 + size // 2)
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    apart, ramps = np.diff(edges), np.subtract.outer(edges, hertz)
    weights = np.zeros((bands, len(hertz)), np.float32)
    for i in range(bands):
        lower, upper = -ramps[i] / apart[i], ramps[i + 2] / apart[i + 1]
        weights[i] = np.maximum(0, np.minimum(lower, upper))
    return weights * (2.0 / (edges[2:] - edges[:-2]))[:, None].astype(np.float32)


class LogMel(nn.Module):
    """The logarithm of a mel spectrogram."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        self.known = self.made() if once else None

    def made(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.hann_window(512), torch.from_numpy(mel_filters(16_000, 512, 80))  # cost: keywords-mel

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        window, filters = self.known or self.made()  # cost: keywords-mel
        power = torch.stft(wave, 512, 160, window=window, return_complex=True).abs().square()
        return (filters @ power + 1e-6).log()


@case(
    "keywords-mel",
    "the triangles of the mel scale are made anew by NumPy in every step",
    "made once",
    "python-time",
    cpu=True,
)
def _(bad: bool) -> Step:
    net = nn.Sequential(
        *(nn.Conv1d(80, 48, 3, padding=1, bias=False), nn.BatchNorm1d(48), nn.ReLU()),
        *(nn.Conv1d(48, 64, 9, 2, 4, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Conv1d(64, 64, 9, 2, 4, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 12)),
    )
    features, wave, y = LogMel(not bad), torch.randn(8, 16_000), torch.randint(12, (8,))
    return trained(net, lambda: F.cross_entropy(net(features(wave)), y))


class Speech(nn.Module):
    """Convolutions and a recurrent layer in both directions, for CTC."""

    def __init__(self, width: int, letters: int) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(80, width, 5, 2, 2), nn.GELU())
        self.body = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, letters)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.front(sound).transpose(1, 2))[0]).log_softmax(-1)


def heard(best: torch.Tensor, numbers: bool) -> list[list[int]]:
    """Return the letters of each sound: repetitions once, blanks not at all."""
    texts = []
    for row in best if numbers else best.tolist():
        text, before = [], 0
        for one in row:
            if one != before and one != 0:  # cost: dictation-frames
                text.append(int(one))
            before = one
        texts.append(text)
    return texts


@case(
    "dictation-frames",
    "the letters that were heard are decoded in every step for the log, each frame compared as a tensor of its own",
    "the batch as one list",
    "item-each-step",
    "operator-loop",
    "python-time",
    "array-read",
    cpu=True,
)
def _(bad: bool) -> Step:
    batch, frames, letters = 12, 240, 29
    model = Speech(96, letters)
    sound, y = torch.randn(batch, 80, frames), torch.randint(1, letters, (batch, 20))
    long, short = torch.full((batch,), frames // 2), torch.full((batch,), 20)
    right = [0]

    def loss() -> torch.Tensor:
        out = model(sound)
        texts = heard(out.detach().argmax(-1), bad)  # cost: dictation-frames
        right[0] += sum(a == b for a, b in zip(texts, y.tolist(), strict=True))
        return F.ctc_loss(out.transpose(0, 1), y, long, short)

    return trained(model, loss)


# -- texts --------------------------------------------------------------------------------------------------

#: What the tokenizer "basic_english" of torchtext replaces.
PATTERNS = [
    (re.compile(pattern), new)
    for pattern, new in (
        *((r"\'", " '  "), (r"\"", ""), (r"\.", " . "), (r"<br \/>", " "), (r",", " , "), (r"\(", " ( ")),
        *((r"\)", " ) "), (r"\!", " ! "), (r"\?", " ? "), (r"\;", " "), (r"\:", " "), (r"\s+", " ")),
    )
]


def tokens(text: str) -> list[str]:
    text = text.lower()
    for pattern, new in PATTERNS:
        text = pattern.sub(new, text)
    return text.split()


class News(Dataset[tuple[int, Any]]):
    """Texts of random words with a label, as they are or as the numbers of their words."""

    def __init__(self, count: int, known: dict[str, int], ready: Callable[[str], list[int]] | None) -> None:
        drawn, words = np.random.default_rng(0), list(known)
        self.rows: list[tuple[int, Any]] = []
        for _ in range(count):
            chosen = [words[i].title() for i in drawn.integers(0, len(words), drawn.integers(30, 70))]
            text = ", ".join(" ".join(chosen[i : i + 8]) for i in range(0, len(chosen), 8)) + "."
            self.rows.append((int(drawn.integers(4)), ready(text) if ready else text))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return self.rows[index]


def endless(loader: Iterable[Any]) -> Any:
    while True:
        yield from loader


@case(
    "news-tokens",
    "the loader splits the same texts into words and looks up their numbers in every epoch again",
    "done once, before the first epoch",
    "loader-workers",
    "python-time",
    cpu=True,
)
def _(bad: bool) -> Step:
    known = {f"word{i}"[: 5 + i % 5] + "abcde"[i % 5]: i for i in range(1, 5000)}

    def numbers(text: str) -> list[int]:
        return [known.get(word, 0) for word in tokens(text)]  # cost: news-tokens

    def collate(rows: list[tuple[int, Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        texts = [numbers(text) if bad else text for _, text in rows]  # cost: news-tokens
        starts = np.cumsum([0, *map(len, texts[:-1])])
        flat = torch.tensor([one for text in texts for one in text])
        return flat, torch.from_numpy(starts), torch.tensor([label for label, _ in rows])

    data = News(1600, known, None if bad else numbers)
    batches = endless(DataLoader(data, 64, shuffle=True, collate_fn=collate))  # cost: news-tokens
    bag, net = nn.EmbeddingBag(5000, 128), mlp(128, 768, 768, 4)

    def loss() -> torch.Tensor:
        words, starts, y = next(batches)  # cost: news-tokens
        return F.cross_entropy(net(bag(words, starts)), y)

    return trained(nn.ModuleList((bag, net)), loss)


class Encoder(nn.Module):
    """Makes a vector of a question."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.body(self.words(ids)).mean(1), dim=-1)


@case(
    "answers-index",
    "a server keeps the vectors of its answers in float16 and converts all of them in every request; besides, it sorts "
    "all scores to take ten",
    "converted once",
    "copy-each-step",
    "repeated-forward",
    "repeated-in-layers",
    "host-operators",
    marked=True,
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Encoder(8000, 384, 6).eval()
    index = F.normalize(torch.randn(30_000, 384), dim=-1).half()
    index = index if bad else index.float()

    @torch.inference_mode()
    def step() -> list[tuple[int, float]]:
        question = model(torch.randint(8000, (1, 16)))
        scores = (question @ index.float().T)[0]  # cost: answers-index
        best = scores.argsort(descending=True)[:10]
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    return step


# -- images -------------------------------------------------------------------------------------------------


def separable(a: int, b: int, stride: int) -> nn.Sequential:
    """Return a block of MobileNet."""
    return nn.Sequential(
        *(nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU6(inplace=True)),
        *(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU6(inplace=True)),
    )


def mobile(classes: int) -> nn.Sequential:
    """Return a small MobileNet."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)),
        *(separable(16, 32, 1), separable(32, 64, 2), separable(64, 64, 1), separable(64, 128, 2)),
        *(separable(128, 128, 1), separable(128, 256, 2), separable(256, 256, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes)),
    )


@case(
    "leaves-layout",
    "a MobileNet is trained on a CPU in the layout that PyTorch has by default",
    "channels last",
    "cpu-channels-last",
    "channels-last",
    cpu=True,
)
def _(bad: bool) -> Step:
    model, x, y = mobile(40), torch.randn(8, 3, 96, 96), torch.randint(40, (8,))
    if not bad:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return trained(model, lambda: F.cross_entropy(model(x), y))  # cost: leaves-layout


@case(
    "thumbnails-graph",
    "a server calls its network with gradients on: each operator is noted for a backward pass that never comes",
    "torch.inference_mode()",
    "unused-graph",
    marked=True,
    cpu=True,
)
def _(bad: bool) -> Step:
    model = mobile(100).eval()
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    def answer(images: np.ndarray) -> list[list[tuple[int, float]]]:
        x = (torch.from_numpy(images).float() / 255 - mean) / deviation
        scores, kinds = model(x.permute(0, 3, 1, 2)).softmax(-1).topk(5)  # cost: thumbnails-graph
        return [list(zip(*row, strict=True)) for row in zip(kinds.tolist(), scores.tolist(), strict=True)]

    drawn = np.random.default_rng(0)

    def step() -> list[list[tuple[int, float]]]:
        images = drawn.integers(0, 256, (8, 96, 96, 3), np.uint8)
        if bad:
            return answer(images)
        with torch.inference_mode():
            return answer(images)

    return step


# -- graphs -------------------------------------------------------------------------------------------------


class GraphConvolution(nn.Module):
    """A layer of a GCN, which weighs the edges by the degrees of their ends."""

    def __init__(self, a: int, b: int, cached: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Linear(a, b, bias=False), nn.Parameter(torch.zeros(b))
        self.cached = cached
        self.known: tuple[torch.Tensor, torch.Tensor] | None = None

    def weighed(self, edges: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        itself = torch.arange(count).expand(2, count)
        edges = torch.cat([edges, itself], 1)  # cost: papers-degrees
        one = torch.ones(edges.shape[1])
        degree = torch.zeros(count).scatter_add_(0, edges[1], one)  # cost: papers-degrees
        root = degree.pow(-0.5)
        root = root.masked_fill(root == float("inf"), 0.0)
        return edges, root[edges[0]] * one * root[edges[1]]  # cost: papers-degrees

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        known = self.known or self.weighed(edges, len(x))
        if self.cached:
            self.known = known
        (source, target), share = known
        x = self.weight(x)
        sent = x.index_select(0, source) * share[:, None]
        return torch.zeros_like(x).index_add(0, target, sent) + self.bias


@case(
    "papers-degrees",
    "each layer of a GCN adds the loops to the graph and weighs its edges anew in every step, though the graph stays",
    "cached",
    "repeated-in-layers",
    "repeated-forward",
    cpu=True,
)
def _(bad: bool) -> Step:
    papers, width = 6000, 16
    first, second, third = (
        GraphConvolution(a, b, not bad) for a, b in ((100, width), (width, width), (width, 7))
    )
    x, edges, y = torch.rand(papers, 100), torch.randint(papers, (2, 60_000)), torch.randint(7, (papers,))
    labelled = torch.randperm(papers)[:600]

    def loss() -> torch.Tensor:
        h = F.relu(first(F.dropout(x, 0.5), edges))
        h = third(F.relu(second(h, edges)), edges)
        return F.cross_entropy(h.index_select(0, labelled), y[labelled])

    return trained(nn.ModuleList((first, second, third)), loss)


# -- reinforcement learning ---------------------------------------------------------------------------------


@case(
    "walker-list",
    "a minibatch of PPO is made by torch.tensor of a list of NumPy arrays, number by number",
    "stacked by NumPy first",
    "python-time",
    "host-operators",
    cpu=True,
)
def _(bad: bool) -> Step:
    actor, critic = mlp(48, 256, 256, 12), mlp(48, 256, 256, 1)
    deviation = nn.Parameter(torch.zeros(12))
    both = nn.ModuleList((actor, critic))
    optimizer = torch.optim.Adam([*both.parameters(), deviation], 3e-4, fused=True)
    drawn = np.random.default_rng(0)
    seen, done = ([drawn.standard_normal(n) for _ in range(2048)] for n in (48, 12))
    old, won = torch.randn(2048), torch.randn(2048)

    def taken(arrays: list[np.ndarray], rows: np.ndarray) -> torch.Tensor:
        chosen = [arrays[i] for i in rows]
        if bad:
            return torch.tensor(chosen, dtype=torch.float32)  # cost: walker-list
        return torch.from_numpy(np.stack(chosen)).float()

    def loss() -> torch.Tensor:
        rows = drawn.integers(0, 2048, 256)
        states, actions, at = taken(seen, rows), taken(done, rows), torch.from_numpy(rows)
        chosen = torch.distributions.Normal(actor(states), deviation.exp())
        log = chosen.log_prob(actions).sum(-1)
        ratio, gain = (log - old[at].clamp(-20, 20)).clamp(max=2).exp(), won[at]
        policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return policy + 0.5 * F.mse_loss(critic(states).squeeze(1), gain) - 0.01 * chosen.entropy().mean()

    return trained(both, loss, optimizer=optimizer)


# -- JAX ----------------------------------------------------------------------------------------------------


@jax_case(
    "digits-update",
    "value_and_grad is compiled, but Adam is written with jax.tree.map outside of jit: an operator at a time",
    "the update in the compiled function",
    "uncompiled-step",
    "operator-loop",
    "host-operators",
    "python-time",
    "launch-bound",
    cpu=True,
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    os.environ |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}  # one thread
    keys = iter(jax.random.split(jax.random.key(0), 16))
    widths = (784, 256, 256, 256, 256, 10)
    weights = [
        {"w": jax.random.normal(next(keys), (a, b)) * a**-0.5, "b": jnp.zeros(b)}
        for a, b in itertools.pairwise(widths)
    ]
    x, y = jax.random.normal(next(keys), (256, 784)), jax.random.randint(next(keys), (256,), 0, 10)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        for layer in weights[:-1]:
            x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        scores = jax.nn.log_softmax(x @ weights[-1]["w"] + weights[-1]["b"])
        return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))

    def better(weights: Any, means: Any, squares: Any, grads: Any) -> Any:
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)  # cost: digits-update
        squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, grads)  # cost: digits-update
        weights = jax.tree.map(  # cost: digits-update
            lambda w, m, s: w - 1e-3 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares
        )
        return weights, means, squares

    slope = jax.value_and_grad(loss)

    def whole(state: Any, x: Any, y: Any) -> Any:
        wrong, grads = slope(state[0], x, y)
        return better(*state, grads), wrong

    slope_alone, compiled = jax.jit(slope), jax.jit(whole)
    state = [(weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights))]

    def step() -> Any:
        if bad:
            _, grads = slope_alone(state[0][0], x, y)
            state[0] = better(*state[0], grads)  # cost: digits-update
        else:
            state[0], _ = compiled(state[0], x, y)
        return state[0][0][-1]["b"]

    return step
