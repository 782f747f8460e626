# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.1"]
#
# [tool.tuiprof]
# name = "neuron-training"
# title = "ViT training on AWS Inferentia2"
# story = """
# A vision transformer on the cheapest machine with AWS's accelerator, one process a NeuronCore. Step by step the same
# training gets 4.35 times as fast, and hardly a line of the model changes: smaller batches, bf16 by the compiler rather
# than by autocast (which here costs more than it saves), ten batches to an execution, and flags of the compiler, which
# cannot know by itself that this is a transformer. Later software took some of these options away: XLA_USE_BF16 went
# with PyTorch/XLA 2.8 (model-bf16 replaces it), and PyTorch/XLA itself went from training with Neuron 2.30. What came
# instead is TorchNeuron, where the device is called neuron and a step runs eagerly or through torch.compile; it wants
# Trainium2 or newer. Its batches_per_execution is gone with XLA's graphs.
# """
# baseline = "baseline"
# check_and_run = ["--check"]
# reference = { hardware = "AWS inf2.xlarge (2 NeuronCores)", software = "Neuron 2.20, PyTorch 2.1" }
# [tool.tuiprof.needs]
# device = "neuron"
# packages = ["torch-neuronx>=2.1,<2.10", "torch-xla>=2.1", "neuronx-cc>=2.0"]
# remedy = """pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx==2.9.*' neuronx-cc
# (what PyPI has under these names, 1.0, is empty)"""
#
# [tool.tuiprof.presets.paper]
# note = "timm's ViT-Base defaults: image 224, patch 16, class token, 12 heads × 64, depth 12, 1000 classes; 2 cores"
# image = 224
# patch = 16
# heads = 12
# head_dim = 64
# depth = 12
# classes = 1000
# ranks = 2
# steps = 60
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "image 32, patch 8: 17 tokens; 2 heads × 32, depth 1, 10 classes; one core"
# image = 32
# patch = 8
# heads = 2
# head_dim = 32
# depth = 1
# classes = 10
# ranks = 1
# steps = 14
# warmup = 3
# [[tool.tuiprof.variants]]
# name = "baseline"
# note = """float32 weights, batch 16 on each core, data loaded by the training process. Not float32 throughout: by
# default the compiler casts matrix products to bf16 (--auto-cast matmult)."""
# set = { batch = 16, workers = 0 }
# published = [{ text = "251.98 samples/s", value = 251.98, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "workers-1"
# note = "One process that loads data."
# builds_on = "baseline"
# set = { batch = 16, workers = 1 }
# published = [{ text = "253.56 samples/s", value = 253.56, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "batch-8"
# note = "Batch 8 on each core instead of 16."
# builds_on = "workers-1"
# set = { batch = 8, workers = 1 }
# published = [{ text = "265.68 samples/s", value = 265.68, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "amp-bf16"
# note = """PyTorch's autocast to bf16, with the compiler's own casts turned off so that autocast alone decides: slower,
# each cast is an operation of its own."""
# builds_on = "batch-8"
# set = { batch = 8, workers = 1, amp = true, cc_flags = "--auto-cast=none" }
# published = [{ text = "196.64 samples/s", value = 196.64, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "xla-use-bf16"
# note = "XLA_USE_BF16=1: PyTorch/XLA makes every float32 a bf16."
# builds_on = "batch-8"
# set = { batch = 8, workers = 1, env = { XLA_USE_BF16 = "1" } }
# published = [{ text = "394.51 samples/s", value = 394.51, unit = "samples/s" }]
# [tool.tuiprof.variants.needs]
# packages = ["torch-neuronx>=2.1,<2.8", "torch-xla>=2.1,<2.8", "neuronx-cc>=2.0"]
# remedy = """XLA_USE_BF16 is gone since PyTorch/XLA 2.8: use model-bf16, or
# pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx==2.7.*' neuronx-cc"""
# [[tool.tuiprof.variants]]
# name = "model-bf16"
# note = "The model and its input in bf16: what takes the place of XLA_USE_BF16, newer than the publication."
# builds_on = "batch-8"
# set = { batch = 8, workers = 1, bf16 = true }
# [[tool.tuiprof.variants]]
# name = "batches-per-execution"
# note = "The device loader hands over ten batches at a time: one graph, one execution."
# builds_on = "xla-use-bf16"
# set = { batch = 8, workers = 1, execution = 10, env = { XLA_USE_BF16 = "1" } }
# published = [{ text = "1027.39 samples/s", value = 1027.39, unit = "samples/s" }]
# [tool.tuiprof.variants.needs]
# packages = ["torch-neuronx>=2.1,<2.8", "torch-xla>=2.1,<2.8", "neuronx-cc>=2.0"]
# remedy = """XLA_USE_BF16 is gone since PyTorch/XLA 2.8: use model-bf16, or
# pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx==2.7.*' neuronx-cc"""
# [[tool.tuiprof.variants]]
# name = "auto-cast-bf16"
# note = "The compiler casts to bf16 instead of PyTorch/XLA."
# builds_on = "batches-per-execution"
# set = { batch = 8, workers = 1, execution = 10, cc_flags = "--auto-cast all --auto-cast-type bf16" }
# published = [{ text = "≈ the result of XLA_USE_BF16" }]
# [[tool.tuiprof.variants]]
# name = "auto-cast-fp8"
# note = "The compiler casts to fp8 with 4 bits of exponent: no faster here, and far less precise."
# builds_on = "auto-cast-bf16"
# set = { batch = 8, workers = 1, execution = 10, cc_flags = "--auto-cast all --auto-cast-type fp8_e4m3" }
# published = [{ text = "940.36 samples/s", value = 940.36, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "transformer-o3"
# note = "Tells the compiler that this is a transformer and for which chip, and lets it take its time."
# builds_on = "batches-per-execution"
# published = [{ text = "1093.25 samples/s, 4.35× in all", value = 1093.25, unit = "samples/s" }]
# [tool.tuiprof.variants.set]
# batch = 8
# workers = 1
# execution = 10
# env = { XLA_USE_BF16 = "1" }
# cc_flags = "--model-type transformer --optlevel 3 --target inf2"
# [tool.tuiprof.variants.needs]
# packages = ["torch-neuronx>=2.1,<2.8", "torch-xla>=2.1,<2.8", "neuronx-cc>=2.0"]
# remedy = """XLA_USE_BF16 is gone since PyTorch/XLA 2.8: use auto-cast-o3, or
# pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx==2.7.*' neuronx-cc"""
# [[tool.tuiprof.variants]]
# name = "auto-cast-o3"
# note = "The same flags with the compiler's casts instead of XLA_USE_BF16, for software of today; not published."
# builds_on = "auto-cast-bf16"
# [tool.tuiprof.variants.set]
# batch = 8
# workers = 1
# execution = 10
# cc_flags = "--auto-cast all --auto-cast-type bf16 --model-type transformer --optlevel 3 --target inf2"
# [[tool.tuiprof.variants]]
# name = "openxla"
# note = "torch.compile with the backend openxla, whose graphs take one batch at a time again."
# builds_on = "auto-cast-bf16"
# set = { batch = 8, workers = 1, compile = "openxla", cc_flags = "--auto-cast all --auto-cast-type bf16" }
# published = [{ text = "listed, not measured" }]
# [[tool.tuiprof.variants]]
# name = "native"
# note = "TorchNeuron instead of PyTorch/XLA: eager, autocast to bf16, gradients averaged by DDP."
# builds_on = "amp-bf16"
# set = { batch = 8, workers = 1, native = true, amp = true }
# [tool.tuiprof.variants.needs]
# packages = ["torch-neuronx>=2.13"]
# why = "TorchNeuron wants Trainium2 or newer"
# remedy = """pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx>=2.13'
# with the same version of torch (1.0 on PyPI is empty)"""
# [[tool.tuiprof.variants]]
# name = "native-compiled"
# note = "native through torch.compile with the backend neuron."
# builds_on = "native"
# set = { batch = 8, workers = 1, native = true, amp = true, compile = "neuron" }
# [tool.tuiprof.variants.needs]
# packages = ["torch-neuronx>=2.13"]
# why = "TorchNeuron wants Trainium2 or newer"
# remedy = """pip install --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx>=2.13'
# with the same version of torch (1.0 on PyPI is empty)"""
# ///
"""ViT training on AWS Inferentia2: ``python scenarios/neuron_training.py --help`` tells the story."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
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


def environment(run: scenario.Run) -> dict[str, str]:
    """Return what the variant wants in the environment, before Neuron's software is imported."""
    wanted = dict(run.set.get("env", {}))
    if "cc_flags" in run.set:
        wanted["NEURON_CC_FLAGS"] = f"{os.environ.get('NEURON_CC_FLAGS', '')} {run.set['cc_flags']}".strip()
    return wanted


def launcher(run: scenario.Run) -> list[str]:
    """Set the variant's environment, and start one process a core, which inherits it."""
    os.environ.update(environment(run))
    if run.size.ranks == 1:
        return []
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={run.size.ranks}"]


def join_ranks(native: bool) -> tuple[torch.device, int, int]:
    """Load Neuron's software, join the other processes, and return this one's device, rank and how many there are."""
    import torch
    import torch_neuronx  # noqa: F401 - brings the device

    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    backend, device = ("neuron", torch.device("neuron")) if native else ("xla", None)
    if not native:
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.xla_backend  # noqa: F401 - brings the backend
    if ranks > 1 and not torch.distributed.is_initialized():  # a check trains before the run does
        torch.distributed.init_process_group(backend)
        atexit.register(torch.distributed.destroy_process_group)
    return device or xm.xla_device(), rank, ranks


class Executions:
    """Batches in groups: each group is one execution on the device, and one step to be timed.

    Args:
        batches: Yields batches.
        size: Batches a group.
    """

    def __init__(self, batches: Any, size: int) -> None:
        self.batches, self.size = batches, size

    def __len__(self) -> int:
        return len(self.batches) // self.size

    def __iter__(self) -> Iterator[Iterator[Any]]:
        """Yield iterators over the batches of a group: a batch is only fetched when the one before is used."""
        batches = iter(self.batches)
        for _ in range(len(self)):
            yield (next(batches) for _ in range(self.size))


def train(run: scenario.Run, journal: list[torch.Tensor] | None = None) -> Loop:
    """Train the variant.

    Args:
        run: What was asked for.
        journal: If given, takes loss and the classifier's gradient of the first batch.

    Returns:
        The timed loop; its steps are executions.
    """
    import torch
    from common.training import Images, Loop, loader, normalise, phase

    size, settings = run.size, run.set
    native, execution, batch = settings.get("native", False), settings.get("execution", 1), settings["batch"]
    device, rank, ranks = join_ranks(native)
    number = torch.bfloat16 if settings.get("bf16") else torch.float32
    whole = model = build(run).to(device, number)
    optimizer = torch.optim.Adam(model.parameters())
    autocast = torch.autocast(device.type, torch.bfloat16) if settings.get("amp") else nullcontext()
    if "compile" in settings:
        model = torch.compile(model, backend=settings["compile"])
    if native and ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)

    images = Images(run.steps * execution * batch, size.image, size.classes, run.seed + rank)
    batches = loader(images, batch, settings["workers"], device)
    if not native:
        import torch_xla.core.xla_model as xm
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        # Copies ahead, and after so many batches has XLA execute what was written down.
        batches = MpDeviceLoader(batches, device, batches_per_execution=execution)
    loop = Loop(Executions(batches, execution), batch * execution * ranks, run.warmup, device)
    for group in loop:
        for pixels, labels in group:
            with phase("h2d"):
                pixels, labels = normalise(pixels.to(device)).to(number), labels.to(device)
            with phase("forward"), autocast:
                loss = torch.nn.functional.cross_entropy(model(pixels).float(), labels)
            with phase("backward"):
                optimizer.zero_grad()
                loss.backward()
            if journal is not None and not journal:
                journal += [loss.detach().clone(), whole.head.weight.grad.detach().clone()]
            with phase("optimizer"):
                if native:
                    optimizer.step()
                else:
                    xm.optimizer_step(optimizer)  # averages the gradients over the cores first
    print(f"step {run.steps}: loss {loss.item():.4f}")  # earlier, it would be a graph of its own to compile
    return loop


def build(run: scenario.Run) -> torch.nn.Module:
    """Return timm's default vision transformer with its first weights, on the CPU."""
    import torch
    from common.vit import ViT

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    size = run.size
    torch.manual_seed(run.seed)
    shape = (size.image, size.patch, size.heads * size.head_dim, size.heads, size.depth, size.classes)
    return ViT(*shape, attention, class_token=True)


def check(run: scenario.Run) -> Check:
    """Hold loss and gradient of the first batch to those of plain float32 arithmetic on the CPU.

    Only the first: Adam's first updates are little more than the signs of gradients, which rounding can turn.
    """
    import torch
    from common.checking import LOSS_TOLERANCE, UPDATE_TOLERANCE, Check
    from common.training import Images, normalise

    journal: list[torch.Tensor] = []
    train(run.shortened(steps=1), journal)
    size, batch, rank = run.size, run.set["batch"], int(os.environ.get("RANK", 0))
    images = Images(batch, size.image, size.classes, run.seed + rank)
    pixels, labels = (torch.stack(part) for part in zip(*(images[i] for i in range(batch)), strict=True))
    model = build(run)
    loss = torch.nn.functional.cross_entropy(model(normalise(pixels)), labels)
    loss.backward()

    # The compiler multiplies matrices in bf16 even where nobody asks for it. fp8 has 4 bits fewer.
    looser = 16 if "fp8" in run.set.get("cc_flags", "") else 1
    checked = Check("plain float32 on the CPU")
    checked.close("loss", journal[0].float(), loss, looser * LOSS_TOLERANCE[torch.bfloat16])
    gradient = model.head.weight.grad
    averaged = run.set.get("native") and int(os.environ.get("WORLD_SIZE", 1)) > 1  # by DDP, as backward ran
    if not averaged:
        checked.close("gradient", journal[1].float(), gradient, looser * UPDATE_TOLERANCE[torch.bfloat16])
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check, launcher))
