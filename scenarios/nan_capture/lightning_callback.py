"""A callback for Lightning that keeps the step in which a gradient turns NaN; nothing else of tuiprof is needed.

Copy this file beside your training script, and add the callback to the trainer:

    from lightning_callback import NaNCapture
    trainer = Trainer(callbacks=[NaNCapture("nan_step.pt")])
    trainer.fit(module, loader)                     # stops at the first NaN and writes nan_step.pt

    trainer = Trainer(callbacks=[NaNCapture(replay="nan_step.pt")])
    trainer.fit(module, loader)                     # its first step is that step again

To look at the gradients from the host makes the host wait for the device once a step; ``every`` looks less often, and
then finds a NaN late, with weights that may already be spoilt.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy
import torch
from lightning_utilities.core.apply_func import apply_to_collection


class NaNCapture(pl.Callback):
    """Writes weights from before the NaN, batch and random states to a file, and stops all ranks.

    Args:
        path: File to write; with several ranks, ``.rank0``, ``.rank1``, … go before its suffix.
        replay: File of an earlier run, whose step the first step of this run repeats; empty = none.
        every: Look at the gradients in every so many steps.

    Attributes:
        found: Index of the batch with the NaN; None = there was none.
    """

    def __init__(self, path: str = "nan_step.pt", replay: str = "", every: int = 1) -> None:
        self.path, self.every, self.found = Path(path), every, None
        self._saved = torch.load(replay, map_location="cpu", weights_only=True) if replay else None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._saved is not None:
            module.load_state_dict(self._saved["model"])
            for optimizer, state in zip(trainer.optimizers, self._saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._saved is not None:  # in place: the trainer goes on with the batch that it has
            for ours, kept in zip(_tensors(batch), self._saved["batch"], strict=True):
                ours.copy_(kept)
            _restore_rng(self._saved["rng"], module.device)
            self._saved = None
        self._batch = [tensor.clone() for tensor in _tensors(batch)]
        # A forward pass changes the statistics of batch normalisation.
        self._buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self._rng, self._index = _rng_state(module.device), batch_idx

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self._index % self.every:
            return
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        # A norm is NaN if any of its numbers is. bool() waits for the device.
        bad = bool(torch.stack(torch._foreach_norm(gradients)).isnan().any())
        if not trainer.strategy.reduce_boolean_decision(bad, all=False):
            return
        self.found = self._index
        path = self.path
        if trainer.world_size > 1:
            path = path.with_stem(f"{path.stem}.rank{trainer.global_rank}")
        kept = {
            "batch_idx": self._index,
            "model": {**module.state_dict(), **self._buffers},
            "optimizers": [each.state_dict() for each in trainer.optimizers],
            "batch": self._batch,
            "rng": self._rng,
        }
        torch.save(kept, path)
        print(f"batch {self._index}: a gradient is NaN; the step is in {path}")
        optimizer.zero_grad()  # without gradients the step that follows changes nothing
        trainer.should_stop = True


def _tensors(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    apply_to_collection(batch, torch.Tensor, found.append)
    return found


def _rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the random generators, as tensors and plain numbers that ``weights_only`` reads."""
    kind, keys, *rest = numpy.random.get_state()
    numbers = [kind, torch.from_numpy(keys.astype("int64")), *rest]
    state = {"torch": torch.get_rng_state(), "numpy": numbers, "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_rng(state: dict[str, Any], device: torch.device) -> None:
    kind, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
