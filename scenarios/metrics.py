# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5", "torchmetrics>=1.6"]
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
# copied to the device); the NaN check is still there in 1.9. The publication's own version shows all of it:
# uv run --with torchmetrics==1.6.1 scenarios/metrics.py --variant naive
# """
# baseline = "off"
# check_and_run = ["--check"]
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
# [[tool.tuiprof.variants]]
# name = "off"
# note = "No metrics: what the step costs without them."
# published = [{ text = "baseline" }]
# [[tool.tuiprof.variants]]
# name = "naive"
# note = "Metrics as the documentation shows them: avg_loss.update(loss), which checks for NaN on the host."
# builds_on = "off"
# set = { metrics = true }
# published = [
#   { text = "≈10 % lower throughput, 8 extra sync events a step", value = -10, unit = "% throughput" },
# ]
# [[tool.tuiprof.variants]]
# name = "explicit-weight"
# note = "Gives the mean its weight as a device tensor; up to TorchMetrics 1.6 the default weight 1.0 was copied there."
# builds_on = "naive"
# set = { metrics = true, weight = true }
# published = [{ text = "removes the syncs of the default scalar weight" }]
# [[tool.tuiprof.variants]]
# name = "nan-check-overridden"
# note = "A subclass made on the spot replaces the NaN check of the mean by one that does not look; any TorchMetrics."
# builds_on = "explicit-weight"
# set = { metrics = true, weight = true, nan_check = "overridden" }
# published = [
#   { text = "= baseline, all added cudaStreamSynchronize gone", value = 0, unit = "% throughput" },
# ]
# [[tool.tuiprof.variants]]
# name = "no-nan-check"
# note = "The same by the option that TorchMetrics has had for it since 1.7: MeanMetric(nan_strategy=\"disable\")."
# builds_on = "naive"
# set = { metrics = true, nan_check = "disabled" }
# needs = { packages = ["torchmetrics>=1.7"] }
# [[tool.tuiprof.variants]]
# name = "step-time-on-cpu"
# note = """Adds the mean step time, kept on the CPU. Free in one process; what becomes of it in several is shown by
# ddp-sync-on-compute."""
# builds_on = "nan-check-overridden"
# set = { metrics = true, weight = true, nan_check = "overridden", step_time = "cpu" }
# published = [
#   { text = "no cost; fails under DDP with NCCL unless sync_on_compute=False", value = 0, unit = "% throughput" },
# ]
# [[tool.tuiprof.variants]]
# name = "step-time-on-device-float"
# note = "Adds the mean step time on the device, fed with a Python float: each one is a blocking copy from the host."
# builds_on = "nan-check-overridden"
# set = { metrics = true, weight = true, nan_check = "overridden", step_time = "float" }
# published = [{ text = "one new sync a step", value = 1, unit = "syncs/step" }]
# [[tool.tuiprof.variants]]
# name = "step-time-on-device-tensor"
# note = "The same, fed with a scalar CPU tensor: it travels as a kernel argument, and nothing waits."
# builds_on = "step-time-on-device-float"
# set = { metrics = true, weight = true, nan_check = "overridden", step_time = "tensor" }
# published = [{ text = "= baseline", value = 0, unit = "% throughput" }]
# [[tool.tuiprof.variants]]
# name = "ddp"
# note = """step-time-on-cpu in two processes that average their gradients: over NCCL on two GPUs, or at the size smoke
# over gloo on the CPU. The step time has sync_on_compute=False, so each process keeps its own."""
# baseline = "ddp"
# set = { metrics = true, weight = true, nan_check = "overridden", step_time = "cpu", ranks = 2 }
# [[tool.tuiprof.variants]]
# name = "ddp-sync-on-compute"
# note = """The same with TorchMetrics' default: compute() gathers the step times of all processes, which NCCL cannot do
# with numbers on a CPU. The failure is printed and training goes on without that metric. At the size smoke the
# processes meet in a gloo group that, like NCCL's, takes cuda only."""
# baseline = "ddp"
# builds_on = "ddp"
# [tool.tuiprof.variants.set]
# metrics = true
# weight = true
# nan_check = "overridden"
# step_time = "cpu"
# sync_on_compute = true
# ranks = 2
# [[tool.tuiprof.variants.published]]
# text = "fails: No backend type associated with device type cpu"
# ///
"""Metric collection and the syncs it hides: ``python scenarios/metrics.py --help`` tells the story."""

from __future__ import annotations

import os
import sys
import time
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


def launcher(run: scenario.Run) -> list[str]:
    """Start as many processes as the variant wants, unless somebody has."""
    ranks = run.set.get("ranks", 1)
    if ranks == 1 or "WORLD_SIZE" in os.environ:
        return []
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def unchecked(kind: type) -> type:
    """Return an aggregator of TorchMetrics that takes numbers as they are, whatever version it is of."""
    import torch

    class Unchecked(kind):
        def _cast_and_nan_check_input(
            self, x: torch.Tensor | float, weight: torch.Tensor | float | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if not isinstance(x, torch.Tensor):
                x = torch.as_tensor(x, dtype=self.dtype, device=self.device)
            if weight is None:
                weight = torch.ones_like(x)
            elif not isinstance(weight, torch.Tensor):
                weight = torch.as_tensor(weight, dtype=self.dtype, device=self.device)
            return x.to(self.dtype), weight.to(self.dtype)

    return Unchecked


class Metrics:
    """The five metrics of the step, and the step time if it is wanted, collected as a variant does it.

    Args:
        wanted: What the variant sets.
        classes: Number of classes.
        device: Where the metrics live.
        group: The process group that can gather what is there; None = the default one.
    """

    def __init__(self, wanted: dict[str, Any], classes: int, device: torch.device, group: Any = None) -> None:
        from torchmetrics import Accuracy, F1Score, MeanMetric, Precision, Recall

        self.wanted, self.mean = wanted, MeanMetric
        checked = {"process_group": group}
        if wanted.get("nan_check") == "disabled":
            checked["nan_strategy"] = "disable"  # this also takes every weight as 1: not for a weighted mean
        elif wanted.get("nan_check") == "overridden":
            self.mean = unchecked(MeanMetric)
        self.loss = self.mean(**checked).to(device)
        # These classes average over samples ("micro") by default. Averaging over classes would need torch.bincount,
        # which has syncs of its own.
        kinds = {"accuracy": Accuracy, "precision": Precision, "recall": Recall, "f1": F1Score}
        self.scores = {
            name: kind(task="multiclass", num_classes=classes, process_group=group).to(device)
            for name, kind in kinds.items()
        }
        self.step_time = None
        if "step_time" in wanted:
            on_cpu = wanted["step_time"] == "cpu"
            self.step_time = self.mean(sync_on_compute=wanted.get("sync_on_compute", not on_cpu))
            if not on_cpu:
                self.step_time.to(device)

    def update(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, seconds: float) -> None:
        """Take in one step: loss (a scalar), logits ``[batch, classes]``, labels ``[batch]``, step time in s."""
        import torch

        if self.wanted.get("weight"):
            self.loss.update(loss, weight=torch.ones_like(loss))
        else:
            self.loss.update(loss)
        for score in self.scores.values():
            score.update(logits, labels)
        if self.wanted.get("step_time") == "tensor":
            on_host = torch.tensor(seconds)
            self.step_time.update(on_host, weight=torch.ones_like(on_host))
        elif self.step_time is not None:
            self.step_time.update(seconds)

    def compute(self) -> dict[str, float]:
        """Return every metric as a number (this does wait for the device) and start over.

        Where a failure is what the variant shows, its error is printed and the metric left out.
        """
        metrics = {"loss": self.loss, **self.scores}
        if self.step_time is not None:
            metrics["step_time_s"] = self.step_time
        values = {}
        for name, metric in metrics.items():
            try:
                values[name] = metric.compute().item()
            except RuntimeError as error:
                if not self.wanted.get("sync_on_compute"):
                    raise
                print(f"compute() of {name} fails: {str(error).strip().splitlines()[0]}")
            metric.reset()
        return values


def join(run: scenario.Run) -> tuple[torch.device, int, int, Any]:
    """Join the other processes, if there are.

    Returns:
        Device, rank, number of processes, and the group that averages gradients and gathers metrics (None = the default
        group). On the CPU the variants of two processes get a default group that takes tensors on cuda only, as NCCL's
        does, and this one beside it.

    Raises:
        CannotRun: There are not enough GPUs.
    """
    import torch
    from common import ranks
    from common.training import accelerator

    wanted, device = run.set.get("ranks", 1), accelerator()
    if wanted > 1 and run.preset == "smoke":
        device = torch.device("cpu")
    if wanted > 1 and device.type == "cuda" and torch.cuda.device_count() < wanted:
        have = torch.cuda.device_count()
        raise scenario.CannotRun(f"needs {wanted} GPUs at this size, there are {have}", "--preset smoke")
    apart = wanted > 1 and device.type == "cpu"
    device, rank, count = ranks.join(device, backend="cuda:gloo" if apart else "")
    return device, rank, count, torch.distributed.new_group(backend="gloo") if apart else None


def train(run: scenario.Run, journal: list[tuple[str, Any]] | None = None) -> Loop:
    """Train the variant.

    Args:
        run: What was asked for.
        journal: If given, takes ``("step", (loss, logits, labels, seconds))`` and ``("metrics", values)``.

    Returns:
        The timed loop.
    """
    import torch
    from common.resnet import resnet
    from common.training import Images, Loop, loader, normalise, phase

    size, wanted = run.size, run.set
    device, rank, count, group = join(run)
    torch.manual_seed(run.seed)
    model = resnet(size.depth, size.classes, size.width).to(device)
    if count > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = Metrics(wanted, size.classes, device, group) if wanted.get("metrics") else None

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
    """Hold four steps of the variant to the losses of ``off`` and its metrics to plain arithmetic.

    Several processes are held to the arithmetic over the steps of all of them, and to failing where they are to fail.
    """
    import torch
    from common.checking import LOSS_TOLERANCE, TOLERANCE, Check

    run, tolerance, several = run.shortened(steps=4), TOLERANCE[torch.float32], run.set.get("ranks", 1) > 1
    checked = Check("plain arithmetic" if several else "off")
    if not several and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise scenario.CannotRun("metrics of several processes are not compared", "check without torchrun")
    journal: list[tuple[str, Any]] = []
    train(run, journal)
    steps = own = [entry for kind, entry in journal if kind == "step"]
    if several:
        steps = of_all_ranks(own)
    else:
        reference: list[tuple[str, Any]] = []
        train(run.of("off"), reference)
        steps = [entry for kind, entry in reference if kind == "step"]
        got, want = (torch.stack([loss for loss, *_ in each]) for each in (own, steps))
        checked.close("losses", got, want, LOSS_TOLERANCE[torch.float32])
    if not run.set.get("metrics"):
        return checked
    values = journal[-1][1]
    right = torch.cat([logits.argmax(1) == labels for _, logits, labels, _ in steps])
    checked.close("mean loss", values["loss"], torch.stack([loss for loss, *_ in steps]).mean(), tolerance)
    for name in ("accuracy", "precision", "recall", "f1"):  # over samples, the four are one number
        checked.close(name, values[name], right.double().mean(), tolerance)
    fails = run.set.get("sync_on_compute", False)
    checked.close(
        "step time fails", int("step_time" in run.set and "step_time_s" not in values), int(fails), 0
    )
    if "step_time_s" in values:
        seconds = [entry[3] for entry in own]
        checked.close("mean step time", values["step_time_s"], sum(seconds) / len(seconds), tolerance)
    return checked


def of_all_ranks(own: list[Any]) -> list[Any]:
    """Return what the journals of all processes say of their steps, on the CPU."""
    import torch

    count = torch.distributed.get_world_size()
    plain = [(loss.cpu(), logits.cpu(), labels.cpu(), seconds) for loss, logits, labels, seconds in own]
    journals: list[Any] = [None] * count
    torch.distributed.all_gather_object(journals, plain, group=torch.distributed.new_group(backend="gloo"))
    return [step for journal in journals for step in journal]


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check, launcher))
