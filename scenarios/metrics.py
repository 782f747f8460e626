# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5", "torchmetrics>=1.7"]
#
# [tool.tuiprof]
# name = "metrics"
# title = "metric collection and the syncs it hides"
# story = """
# A ResNet-18 step with five metrics on the device. None of them is worth a millisecond, yet they slow training down:
# MeanMetric looks for NaN with `if isnan(x).any()`, and Python cannot take that branch before the device has computed
# everything that was queued up to there. The host waits, the queue runs empty, and the next step starts late. Each
# variant removes or adds one such wait (a sync event), and the sync view of a capture names its line.
# TorchMetrics 1.7 removed part of what the publication found (the default weight no longer is a Python number that is
# copied to the device); the NaN check is still there in 1.9.
# """
# baseline = "off"
# reference = { hardware = "NVIDIA A40", software = "PyTorch 2.5.1, TorchMetrics 1.6.1" }
#
# [tool.tuiprof.presets.paper]
# note = "ResNet-18, 224², 1000 classes, batch 128, 12 workers (no more than CPUs); metrics every 100 steps"
# depth = 18
# width = 64
# image = 224
# classes = 1000
# batch = 128
# workers = 12
# every = 100
# steps = 220
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "a ResNet of one block a stage, 32², 10 classes, batch 16; runs anywhere in seconds"
# depth = 10
# width = 16
# image = 32
# classes = 10
# batch = 16
# workers = 2
# every = 10
# steps = 30
# warmup = 5
#
# [[tool.tuiprof.variants]]
# name = "off"
# note = "No metrics: what the step costs without them."
# published = [{ text = "baseline" }]
#
# [[tool.tuiprof.variants]]
# name = "naive"
# note = "Metrics as the documentation shows them: avg_loss.update(loss), which checks for NaN on the host."
# builds_on = "off"
# published = [
#   { text = "≈10 % lower throughput, 8 extra sync events a step", value = -10, unit = "% throughput" },
# ]
#
# [[tool.tuiprof.variants]]
# name = "explicit-weight"
# note = "Gives the mean its weight as a device tensor; up to TorchMetrics 1.6 the default weight 1.0 was copied there."
# builds_on = "naive"
# published = [{ text = "removes the syncs of the default scalar weight" }]
#
# [[tool.tuiprof.variants]]
# name = "no-nan-check"
# note = "Turns the NaN check of the mean off, so that nothing in the step waits for the device."
# builds_on = "naive"
# published = [
#   { text = "= baseline, all added cudaStreamSynchronize gone", value = 0, unit = "% throughput" },
# ]
#
# [[tool.tuiprof.variants]]
# name = "step-time-on-cpu"
# note = """Adds the mean step time, kept on the CPU. Free on one device; under DDP over NCCL it fails ("No backend
# type associated with device type cpu") unless the metric has sync_on_compute=False, as here."""
# builds_on = "no-nan-check"
# published = [
#   { text = "no cost; fails under DDP with NCCL unless sync_on_compute=False", value = 0, unit = "% throughput" },
# ]
#
# [[tool.tuiprof.variants]]
# name = "step-time-on-device-float"
# note = "Adds the mean step time on the device, fed with a Python float: each one is a blocking copy from the host."
# builds_on = "no-nan-check"
# published = [{ text = "one new sync a step", value = 1, unit = "syncs/step" }]
#
# [[tool.tuiprof.variants]]
# name = "step-time-on-device-tensor"
# note = "The same, fed with a scalar CPU tensor: it travels as a kernel argument, and nothing waits."
# builds_on = "step-time-on-device-float"
# published = [{ text = "= baseline", value = 0, unit = "% throughput" }]
# ///
"""Metric collection and the syncs it hides: ``python scenarios/metrics.py --help`` tells the story."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from common import scenario

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop


class Metrics:
    """The five metrics of the step, collected as one of the variants does it.

    Args:
        variant: Name of the variant, not ``"off"``.
        classes: Number of classes.
        device: Where the metrics live.
    """

    def __init__(self, variant: str, classes: int, device: torch.device) -> None:
        from torchmetrics import Accuracy, F1Score, MeanMetric, Precision, Recall

        self.variant = variant
        if variant in ("naive", "explicit-weight"):
            self.loss = MeanMetric().to(device)
        else:
            # "disable" also takes every weight as 1: right here, but not for a weighted mean.
            self.loss = MeanMetric(nan_strategy="disable").to(device)
        # These classes average over samples ("micro") by default. Averaging over classes would need torch.bincount,
        # which has syncs of its own.
        kinds = {"accuracy": Accuracy, "precision": Precision, "recall": Recall, "f1": F1Score}
        self.scores = {
            name: kind(task="multiclass", num_classes=classes).to(device) for name, kind in kinds.items()
        }
        self.step_time = None
        if variant.startswith("step-time"):
            self.step_time = MeanMetric(nan_strategy="disable", sync_on_compute=variant != "step-time-on-cpu")
            if variant != "step-time-on-cpu":
                self.step_time.to(device)

    def update(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, seconds: float) -> None:
        """Take in one step: loss (a scalar), logits ``[batch, classes]``, labels ``[batch]``, step time in s."""
        import torch

        if self.variant == "explicit-weight":
            self.loss.update(loss, weight=torch.ones_like(loss))
        else:
            self.loss.update(loss)
        for score in self.scores.values():
            score.update(logits, labels)
        if self.variant == "step-time-on-device-tensor":
            self.step_time.update(torch.tensor(seconds))
        elif self.step_time is not None:
            self.step_time.update(seconds)

    def compute(self) -> dict[str, float]:
        """Return every metric as a number (this does wait for the device) and start over."""
        metrics = {"loss": self.loss, **self.scores}
        if self.step_time is not None:
            metrics["step_time_s"] = self.step_time
        values = {name: metric.compute().item() for name, metric in metrics.items()}
        for metric in metrics.values():
            metric.reset()
        return values


def train(run: scenario.Run, journal: list[tuple[str, Any]] | None = None) -> Loop:
    """Train the variant.

    Args:
        run: What was asked for.
        journal: If given, takes ``("step", (loss, logits, labels, seconds))`` and ``("metrics", values)``.

    Returns:
        The timed loop.
    """
    import torch
    from common import ranks
    from common.resnet import resnet
    from common.training import Images, Loop, accelerator, loader, normalise, phase

    size = run.size
    device, rank, count = ranks.join(accelerator())
    torch.manual_seed(run.seed)
    model = resnet(size.depth, size.classes, size.width).to(device)
    if count > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    variant = run.variant["name"]
    metrics = Metrics(variant, size.classes, device) if variant != "off" else None

    images = Images(run.steps * size.batch, size.image, size.classes, run.seed + rank)
    loop = Loop(
        loader(images, size.batch, size.workers // count, device), size.batch * count, run.warmup, device
    )
    step_start = time.perf_counter()
    for step, (pixels, labels) in enumerate(loop):
        with phase("h2d"):
            pixels = normalise(pixels.to(device, non_blocking=True))
            labels = labels.to(device, non_blocking=True)
        with phase("forward"):
            logits = model(pixels)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        with phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        seconds = time.perf_counter() - step_start
        step_start += seconds
        if metrics is not None:
            with phase("metrics"):
                metrics.update(loss.detach(), logits.detach(), labels, seconds)
        if journal is not None:
            journal.append(("step", (loss.detach(), logits.detach(), labels, seconds)))
        if (step + 1) % size.every == 0 or step + 1 == run.steps:
            values = metrics.compute() if metrics is not None else {"loss": loss.item()}
            print(f"step {step + 1}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
            if journal is not None:
                journal.append(("metrics", values))
    return loop


def check(run: scenario.Run) -> Check:
    """Hold four steps of the variant to the losses of ``off`` and its metrics to plain arithmetic."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise scenario.CannotRun("metrics of several processes are not compared", "check without torchrun")
    import torch
    from common.checking import LOSS_TOLERANCE, TOLERANCE, Check

    run = run.shortened(steps=4)
    journal: list[tuple[str, Any]] = []
    reference: list[tuple[str, Any]] = []
    train(run, journal)
    train(run.of("off"), reference)
    steps = [entry for kind, entry in journal if kind == "step"]
    wanted = [entry for kind, entry in reference if kind == "step"]

    tolerance, checked = TOLERANCE[torch.float32], Check("off")
    losses = torch.stack([loss for loss, *_ in wanted])
    checked.close("losses", torch.stack([loss for loss, *_ in steps]), losses, LOSS_TOLERANCE[torch.float32])
    if run.variant["name"] != "off":
        values = journal[-1][1]
        right = torch.cat([logits.argmax(1) == labels for _, logits, labels, _ in wanted])
        checked.close("mean loss", values["loss"], losses.mean(), tolerance)
        for name in ("accuracy", "precision", "recall", "f1"):  # over samples, the four are one number
            checked.close(name, values[name], right.double().mean(), tolerance)
        if "step_time_s" in values:
            seconds = [entry[3] for entry in steps]
            checked.close("mean step time", values["step_time_s"], sum(seconds) / len(seconds), tolerance)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
