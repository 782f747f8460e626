"""Keeping what a training step began with, so that a step whose gradients are NaN can be run again."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the random generators of torch, CUDA, NumPy and Python; nothing waits for the device.

    They are made of tensors and plain numbers only, so that ``torch.load(weights_only=True)`` reads them.
    """
    kind, keys, *rest = numpy.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(keys.astype("int64")), *rest],
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """Put all generators where :func:`rng_state` found them."""
    kind, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    random.setstate(state["python"])
    # A step of a GPU may be looked at on a CPU, with other random numbers.
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def gradients_have_nan(model: torch.nn.Module) -> torch.Tensor:
    """Return whether any gradient holds a NaN: a float32 0 or 1 on the device, which nothing waits for.

    A norm is NaN if any of its numbers is, so one small tensor stands for all gradients.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).isnan().any().float()


@dataclass
class Kept:
    """What one step began with, and what came out of it.

    Attributes:
        step: Its number.
        pixels: A copy of its images, as they came from the loader.
        labels: A copy of its labels.
        buffers: Copies of the model's buffers: a forward pass changes the statistics of batch normalisation.
        rng: The random generators; None = not kept.
        logits: What the forward pass gave.
        flag: On the host, 1 if a gradient was NaN; complete once ``arrived`` is.
        arrived: Event after the copy of ``flag``; None = it is complete.
    """

    step: int
    pixels: torch.Tensor
    labels: torch.Tensor
    buffers: list[torch.Tensor]
    rng: dict[str, Any] | None
    logits: torch.Tensor | None = None
    flag: torch.Tensor | None = None
    arrived: Any = None

    def is_bad(self, wait: bool) -> bool | None:
        """Return whether a gradient was NaN; None = not known yet.

        Args:
            wait: Wait until it is known.
        """
        if self.arrived is not None:
            if wait:
                self.arrived.synchronize()
            elif not self.arrived.query():
                return None
        return bool(self.flag)


class Capture:
    """Keeps steps, checks their gradients and saves the first step that has a NaN among them.

    Args:
        model: The model.
        optimizer: A fused Adam.
        device: Where the model is.
        rng: Keep the random generators too.
        deferred: Look at a step's flag when it has come to the host by itself. Until then the optimizer goes on, but
            on the device: it is given the flag as ``found_inf``, as torch's GradScaler does, and then leaves weights
            and moments alone. So they stay as they were before the first NaN, however late the host learns of it.
        ranks: Processes that average their gradients. Then all must stop in the same step, or the others would wait for
            ever, and so each looks at flags of one age: old enough to have arrived long ago.
    """

    #: Steps held while their flags travel. CUDA queues about a thousand kernels, so the host is rarely two steps ahead.
    DEPTH = 4

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        rng: bool,
        deferred: bool,
        ranks: int = 1,
    ) -> None:
        self.ranks = ranks
        self.model, self.optimizer, self.device = model, optimizer, device
        self.rng, self.deferred = rng, deferred
        self.held: deque[Kept] = deque()
        self.stopped = torch.zeros((), device=device)

    def keep(self, step: int, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        """Copy what a step begins with, before any random number is drawn in it."""
        if not self.deferred:
            self.held.clear()
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        rng = rng_state(self.device) if self.rng else None
        self.held.append(Kept(step, pixels.clone(), labels.clone(), buffers, rng))

    def check(self, logits: torch.Tensor) -> Kept | None:
        """Check the gradients of the kept step, before the optimizer uses them.

        Args:
            logits: What its forward pass gave.

        Returns:
            The step that had a NaN: this one, or an earlier one if checks are deferred; None = none is known.
        """
        kept, bad = self.held[-1], gradients_have_nan(self.model)
        kept.logits = logits.detach()
        if not self.deferred:
            return kept if bad.item() else None  # here the host waits for the whole backward pass
        torch.maximum(self.stopped, bad, out=self.stopped)
        self.optimizer.found_inf = self.stopped
        cuda = self.device.type == "cuda"
        kept.flag = torch.empty((), pin_memory=cuda).copy_(bad, non_blocking=True)
        if cuda:
            kept.arrived = torch.cuda.Event()
            kept.arrived.record()
        if self.ranks > 1:
            return self._first_bad(leave=self.DEPTH, full=0)
        return self._first_bad(leave=1, full=self.DEPTH)

    def rest(self) -> Kept | None:
        """Return the first step with a NaN among those whose flags have not been looked at, waiting for them."""
        return self._first_bad(leave=0, full=0) if self.deferred else None

    def _first_bad(self, leave: int, full: int) -> Kept | None:
        while len(self.held) > leave:
            answer = self.held[0].is_bad(wait=len(self.held) > full)
            if answer:
                return self.held[0]
            if answer is None:
                break
            self.held.popleft()
        return None

    def save(self, kept: Kept, path: Path) -> None:
        """Write a checkpoint from which the step can be run again.

        Args:
            kept: The step.
            path: File to write.
        """
        model = self.model.state_dict()
        for (name, _), buffer in zip(self.model.named_buffers(), kept.buffers, strict=True):
            model[name] = buffer
        whole = {
            "step": kept.step,
            "model": model,
            "optimizer": self.optimizer.state_dict(),
            "pixels": kept.pixels,
            "labels": kept.labels,
            "rng": kept.rng,
            "logits": kept.logits,
        }
        torch.save(whole, path)
