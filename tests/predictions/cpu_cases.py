"""Training steps on a CPU with a planted cost, each beside the same step without it.

They were written with the advice that would be right, recorded and scored before the rules were mended.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.predictions.cases import Step, case


class Residual(nn.Module):
    """Layers with a residual path, computed again in the backward pass or not."""

    def __init__(self, layers: int, width: int, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x))
        return x


def train(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    *,
    after: Callable[[], Any] | None = None,
    before_update: Callable[[], Any] | None = None,
    **how: Any,
) -> Step:
    """Return a training step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, **({"fused": True} | how))

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        if before_update:
            before_update()
        optimizer.step()
        if after:
            after()

    return step


def residual(after: Callable[[nn.Module], Any] | None = None, layers: int = 12, width: int = 64) -> Step:
    model, x = Residual(layers, width), torch.randn(64, width)
    return train(model, lambda: model(x).square().mean(), after=(lambda: after(model)) if after else None)


@case("cpu-anomaly", "anomaly mode is left on", "off", "anomaly-mode", cpu=True)
def _(bad: bool) -> Step:
    inner = residual()

    def step() -> None:
        with torch.autograd.set_detect_anomaly(bad):
            inner()

    return step


@case("cpu-ema", "an average of the weights, parameter by parameter", "foreach", "operator-loop", cpu=True)
def _(bad: bool) -> Step:
    average = Residual(40, 32)

    @torch.no_grad()
    def update(model: nn.Module) -> None:
        if bad:
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.copy_(0.999 * old + 0.001 * new)
        else:
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)

    return residual(update, 40, 32)


@case("cpu-checkpoint", "a checkpoint in every step", "every 1000", "python-time", cpu=True)
def _(bad: bool) -> Step:
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    return residual((lambda model: torch.save(model.state_dict(), path)) if bad else None, 4, 256)


@case("cpu-deepcopy", "the model is copied in every step", "not copied", "python-time", cpu=True)
def _(bad: bool) -> Step:
    return residual(copy.deepcopy if bad else None)


@case("cpu-print", "tensors are formatted for a log", "not logged", "python-time", "operator-loop", cpu=True)
def _(bad: bool) -> Step:
    return residual(
        (lambda model: [str(p[:8, :8]) for p in model.parameters() if p.ndim > 1]) if bad else None
    )


@case("cpu-histograms", "a histogram of every weight in every step", "every 1000", "python-time", cpu=True)
def _(bad: bool) -> Step:
    def log(model: nn.Module) -> None:
        for p in model.parameters():
            np.histogram(p.detach().numpy(), bins=64)

    return residual(log if bad else None)


@case("cpu-rows", "the loss row by row", "at once", "operator-loop", cpu=True)
def _(bad: bool) -> Step:
    model, x, target = Residual(2, 64), torch.randn(32, 64), torch.rand(32, 64)

    def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        both, either = torch.minimum(a, b).clamp(min=0).sum(-1), torch.maximum(a, b).abs().sum(-1)
        return 1 - both / (either + 1e-6)

    def loss() -> torch.Tensor:
        out = model(x)
        if bad:
            return torch.stack([overlap(out[i], target[i]) for i in range(len(out))]).mean()
        return overlap(out, target).mean()

    return train(model, loss)


@case("cpu-cells", "an LSTM time step by time step", "nn.LSTM", "operator-loop", cpu=True)
def _(bad: bool) -> Step:
    lstm, x = nn.LSTM(48, 64, batch_first=True), torch.randn(8, 48, 48)

    def cells() -> torch.Tensor:
        h = c = x.new_zeros(len(x), 64)
        out = []
        for t in range(x.shape[1]):
            gates = F.linear(x[:, t], lstm.weight_ih_l0, lstm.bias_ih_l0) + F.linear(
                h, lstm.weight_hh_l0, lstm.bias_hh_l0
            )
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)

    return train(lstm, lambda: (cells() if bad else lstm(x)[0]).square().mean())


@case("cpu-one-hot", "one-hot vectors times a table", "an embedding", "one-hot-product", cpu=True)
def _(bad: bool) -> Step:
    table, model = nn.Embedding(4000, 64), Residual(4, 64)
    ids = torch.randint(4000, (16, 32))

    def loss() -> torch.Tensor:
        x = F.one_hot(ids, 4000).float() @ table.weight if bad else table(ids)
        return model(x).square().mean()

    return train(nn.ModuleList((table, model)), loss)


@case(
    "cpu-embedding", "a dense gradient of a large embedding", "sparse", "dense-embedding-gradient", cpu=True
)
def _(bad: bool) -> Step:
    table, model = nn.EmbeddingBag(100_000, 32, sparse=not bad), Residual(4, 32)
    both = nn.ModuleList((table, model))
    return train(both, lambda: model(table(torch.randint(100_000, (256, 12)))).square().mean(), fused=False)


@case("cpu-recompute", "activation checkpointing", "none", "recomputed-forward", cpu=True)
def _(bad: bool) -> Step:
    model, x = Residual(8, 128, bad), torch.randn(128, 128)
    return train(model, lambda: model(x).square().mean())


class Pictures(Dataset[torch.Tensor]):
    """Pictures that are blurred by NumPy, or are ready."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        picture = np.full((32, 32, 3), float(index))
        for shift in (-2, -1, 1, 2) if self.slow else ():
            picture = picture + np.roll(picture, shift, 0) + np.roll(picture, shift, 1)
        return torch.from_numpy(picture).float().mean((0, 1))


@case("cpu-loader", "batches are made in the step, slowly", "cheaper", "loader-workers", cpu=True)
def _(bad: bool) -> Step:
    batches: Iterator[torch.Tensor] = iter(DataLoader(Pictures(bad), batch_size=32))
    model = nn.Sequential(nn.Linear(3, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    return train(model, lambda: model(next(batches)).square().mean())
