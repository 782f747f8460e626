# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5", "numpy>=1.26"]
#
# [tool.tuiprof]
# name = "nan-capture"
# title = "capture and replay of a NaN step"
# story = """
# After hours of training a loss turns NaN. Which batch did it, with which weights and random numbers? A capture keeps
# a copy of every batch and the states of the random generators, looks at all gradients before the optimizer uses them,
# and at the first NaN saves weights that are still sound, batch and generators, and stops. A second run from that
# checkpoint meets the NaN in its first step, where a debugger can wait for it. Here the loss divides by how often a
# class occurs in the batch, and the last batch lacks one class: 0 ÷ 0. To look at gradients from the host is a sync in
# every step; the deferred check shows how to do without. It lets the device skip the update, and the host learns of it
# a step or so later, from a flag that was copied meanwhile.
# The same as a callback for Lightning, to be pasted into one's own training, is nan_capture/lightning_callback.py.
# NAN_CHECKPOINT in the environment names the checkpoint to write, or for reproduce the one to start from.
# With several processes (torchrun --nproc-per-node=2) gradients are averaged, so one bad batch spoils all of them at
# once: all stop in the same step, each with its own batch in a checkpoint of its own, and only the one of the last
# process, whose batch lacks the class, reproduces the NaN by itself.
# """
# baseline = "off"
# check_and_run = ["--check"]
# reference = { hardware = "NVIDIA L40S", software = "PyTorch 2.5.1, Lightning" }
#
# [tool.tuiprof.presets.paper]
# note = "ResNet-50, 224², 20 classes, batch 128, Adam with learning rate 0.02; the last step of all is the NaN"
# depth = 50
# width = 64
# image = 224
# classes = 20
# batch = 128
# workers = 12
# steps = 121
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "a ResNet of one block a stage, 32², 5 classes, batch 16; runs anywhere in seconds"
# depth = 10
# width = 16
# image = 32
# classes = 5
# batch = 16
# workers = 1
# steps = 20
# warmup = 4
# [[tool.tuiprof.variants]]
# name = "off"
# note = "No capture: the NaN of the last step goes into the weights, and nothing is left to look at."
# published = [{ text = "baseline" }]
# [[tool.tuiprof.variants]]
# name = "capture"
# note = "Copies each batch, looks at the gradients from the host, and saves the step that has a NaN."
# builds_on = "off"
# set = { capture = true }
# published = [{ text = "1.5 % overhead", value = 1.5, unit = "% overhead" }]
# [[tool.tuiprof.variants]]
# name = "capture-rng"
# note = "Keeps the random generators of torch, CUDA, NumPy and Python as well: the step can be repeated bit by bit."
# builds_on = "capture"
# set = { capture = true, rng = true }
# [[tool.tuiprof.variants]]
# name = "deferred-check"
# note = "The device skips the update by itself; the host reads each flag when it has arrived, and never waits."
# builds_on = "capture-rng"
# set = { capture = true, rng = true, deferred = true }
# [[tool.tuiprof.variants]]
# name = "reproduce"
# note = "Starts from the checkpoint of a NaN step (makes one if none is given): its only step is that NaN again."
# builds_on = "capture-rng"
# set = { capture = true, rng = true, reproduce = true }
# published = [{ text = "the NaN comes back in the first step" }]
# ///
"""Capture and replay of a NaN step: ``python scenarios/nan_capture.py --help`` tells the story."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop

LEARNING_RATE = 0.02


def batches(run: scenario.Run, device: torch.device, rank: int, ranks: int) -> Any:
    """Return a loader of batches that hold every class, but for the very last one, which lacks the last class."""
    from common.training import Images, loader

    size = run.size

    class Classes(Images):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            image, label = super().__getitem__(index)
            present = size.classes - (index >= self.count - size.batch and rank == ranks - 1)
            return image, label.fill_(index % present)

    images = Classes(run.steps * size.batch, size.image, size.classes, run.seed + rank)
    return loader(images, size.batch, size.workers // ranks, device)


def augment(pixels: torch.Tensor) -> torch.Tensor:
    """Return the images as floats, changed at random; each of the four generators has a part in it.

    Args:
        pixels: uint8 ``[batch, 3, size, size]``.
    """
    import numpy
    import torch
    from common.training import normalise

    contrast, brightness = numpy.random.uniform(0.8, 1.2), 0.1 * torch.randn(()).item()  # both on the host
    images = normalise(pixels).roll(random.randrange(8), dims=3) * float(contrast) + brightness
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def balanced_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over classes of each class's mean loss: NaN if a class has no sample.

    Args:
        logits: ``[batch, classes]``.
        labels: int64 ``[batch]``.
    """
    import torch

    wanted = torch.nn.functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(dim=1)
    return ((losses @ wanted) / wanted.sum(dim=0)).mean()


def build(run: scenario.Run, device: torch.device) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return model and optimizer as training begins with them, and seed the random generators."""
    import numpy
    import torch
    from common.resnet import resnet

    size = run.size
    torch.manual_seed(run.seed)
    numpy.random.seed(run.seed)
    random.seed(run.seed)
    model = resnet(size.depth, size.classes, size.width).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the random generators of torch, CUDA, NumPy and Python; nothing waits for the device.

    They are made of tensors and plain numbers only, so that ``torch.load(weights_only=True)`` reads them.
    """
    import numpy
    import torch

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
    import numpy
    import torch

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
    import torch

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
        import torch

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
        import torch

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
        import torch

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


def train(run: scenario.Run, journal: list[tuple[torch.Tensor, torch.Tensor]] | None = None) -> Loop:
    """Train the variant until the data ends or a NaN is found, or repeat the NaN of a checkpoint.

    Args:
        run: What was asked for.
        journal: If given, takes the loss of every step and the classifier's weights before it.

    Returns:
        The timed loop; a step that ends in a checkpoint is not among its steps.
    """
    given = os.environ.get("NAN_CHECKPOINT")
    if run.set.get("reproduce"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(given or f"{folder}/nan_step.pt")
            if not path.exists():
                print("there is no checkpoint yet: training as in capture-rng makes one")
                fit(run, path)
            return reproduce(run, path)
    if given or not run.set.get("capture"):
        return fit(run, Path(given or os.devnull), journal)
    return fit(run, Path(os.environ.get("TUIPROF_SESSION") or tempfile.mkdtemp(), "nan_step.pt"), journal)


def fit(
    run: scenario.Run, path: Path, journal: list[tuple[torch.Tensor, torch.Tensor]] | None = None
) -> Loop:
    """Train, and write the step with the first NaN to a checkpoint if the variant captures; see :func:`train`."""
    import torch
    from common import ranks
    from common.training import Loop, accelerator, phase

    size = run.size
    device, rank, count = ranks.join(accelerator())
    model, optimizer = build(run, device)
    capture = None
    if run.set.get("capture"):
        rng, deferred = run.set.get("rng", False), run.set.get("deferred", False)
        capture = Capture(model, optimizer, device, rng=rng, deferred=deferred, ranks=count)
        path = path.with_stem(f"{path.stem}.rank{rank}") if count > 1 else path
    forward = torch.nn.parallel.DistributedDataParallel(model) if count > 1 else model
    bad = None
    loop = Loop(batches(run, device, rank, count), size.batch * count, run.warmup, device)
    for step, (pixels, labels) in enumerate(loop):
        with phase("h2d"):
            pixels = pixels.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
        if capture is not None:
            with phase("capture"):
                capture.keep(step, pixels, labels)
        with phase("forward"):
            logits = forward(augment(pixels))
            loss = balanced_loss(logits, labels)
        with phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        if journal is not None:
            journal.append((loss.detach(), classifier(model)))
        if capture is not None:
            with phase("nan check"):
                bad = capture.check(logits)
            if bad is not None:
                break
        with phase("optimizer"):
            optimizer.step()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    if capture is not None:
        bad = bad or capture.rest()
        if bad is None:
            print("no gradient was NaN")
        else:
            capture.save(bad, path)
            print(f"step {bad.step + 1}: a gradient is NaN; weights before it, batch and more are in {path}")
    return loop


def reproduce(run: scenario.Run, path: Path, journal: list[torch.Tensor] | None = None) -> Loop:
    """Run the step of a checkpoint again.

    Args:
        run: What was asked for; its sizes must be those the checkpoint was made with.
        path: The checkpoint.
        journal: If given, takes the logits of the step, then and now.

    Returns:
        A loop of this one step, none of it warm-up.

    Raises:
        RuntimeError: No gradient is NaN this time.
    """
    import torch
    from common.training import Loop, accelerator, phase

    size, device = run.size, accelerator()
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model, optimizer = build(run, device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loop = Loop([(saved["pixels"], saved["labels"])], size.batch, 0, device)
    for pixels, labels in loop:
        with phase("h2d"):
            pixels, labels = pixels.to(device), labels.to(device)
        if saved["rng"] is not None:
            restore_rng(saved["rng"], device)
        with phase("forward"):
            logits = model(augment(pixels))
            loss = balanced_loss(logits, labels)
        with phase("backward"):
            loss.backward()
        with phase("nan check"):
            if not gradients_have_nan(model).item():
                raise RuntimeError(f"step {saved['step'] + 1} of {path} has no NaN this time")
    apart = (logits.detach().cpu() - saved["logits"]).abs().max().item()
    absent = sorted(set(range(size.classes)) - set(labels.tolist()))
    print(f"step {saved['step'] + 1} again: loss {loss.item()}, logits at most {apart:g} from those captured")
    print(f"classes that the batch lacks: {', '.join(map(str, absent)) or 'none'}")
    if journal is not None:
        journal += [saved["logits"], logits]
    return loop


def classifier(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of the weights of the last layer, ``[classes, channels]``."""
    return model[-1].weight.detach().clone()


def check(run: scenario.Run) -> Check:
    """Hold four steps, the last of them a NaN, to ``off``: losses, the checkpoint's weights, and the step repeated.

    Of several processes each checks its own; the batch of only the last one is to blame.

    Adam's first updates are little more than the signs of gradients, where rounding alone can make the difference, so
    the algorithms are held to be deterministic.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    from common.checking import TOLERANCE, Check

    tolerance, checked = TOLERANCE[torch.float32], Check("off")
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    blamed, suffix = rank == ranks - 1, f".rank{rank}" if ranks > 1 else ""
    run = run.shortened(steps=4)
    journal: list[tuple[torch.Tensor, torch.Tensor]] = []
    wanted: list[tuple[torch.Tensor, torch.Tensor]] = []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "nan_step.pt")
            fit(run, path, journal)
            fit(run.of("off"), path.with_name("none.pt"), wanted)
            losses = [torch.stack([loss for loss, _ in steps]) for steps in (journal, wanted)]
            checked.close("losses before the NaN", losses[0][:3], losses[1][:3], tolerance)
            checked.close("NaN at the end", losses[0].isnan(), [0, 0, 0, int(blamed)], 0)
            path = path.with_stem(path.stem + suffix)
            if run.set.get("capture"):
                checked.close("captures", int(path.exists()), 1, 0)
            if path.exists():
                saved = torch.load(path, weights_only=True)
                checked.close("captured step", saved["step"], 3, 0)
                checked.close(
                    "weights before the NaN", list(saved["model"].values())[-2], wanted[3][1], tolerance
                )
                if saved["rng"] is not None and blamed:
                    logits: list[torch.Tensor] = []
                    reproduce(run, path, logits)
                    checked.close("logits of the step repeated", logits[1], logits[0], tolerance)
    finally:
        torch.use_deterministic_algorithms(False)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
