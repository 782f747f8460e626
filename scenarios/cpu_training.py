# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5"]
#
# [tool.tuiprof]
# name = "cpu-training"
# title = "ResNet-50 on a CPU"
# story = """
# Nobody trains ResNet-50 on a CPU for speed, but a CPU that is idle anyway, or costs a third on the spot market, may
# win by samples per dollar: give the price with --price. Each variant adds one thing to the one it builds on. A
# smaller batch keeps activations in the caches; bf16 halves the bytes and, where the CPU has AMX or AVX-512 bf16, uses
# its matrix units; channels_last is the layout oneDNN's convolutions want. Together they were worth a factor of four.
# What else is on offer (compiling, another allocator, a process per NUMA node, XLA) won little or lost there; with
# PyTorch 2.11 compiling wins as much as channels_last.
# Do not take float16 for bf16: without AVX-512 FP16 or AMX-FP16 it is emulated, some 25 times slower than float32.
# Prices an hour then: c7i.2xlarge $0.357 (spot $0.1291), g5.2xlarge $1.212.
# """
# baseline = "baseline"
# check_and_run = ["--check"]
# reference = { hardware = "c7i.2xlarge (8 vCPU of an Intel Xeon)", software = "PyTorch 2.4" }
# needs = { device = "cpu" }
#
# [tool.tuiprof.presets.paper]
# note = "ResNet-50, 224², 10 classes, batch 128"
# depth = 50
# width = 64
# image = 224
# classes = 10
# steps = 20
# warmup = 5
#
# [tool.tuiprof.presets.small]
# note = "ResNet-50 of half the width, 64²; same batch sizes; the whole ladder in some minutes on two cores"
# depth = 50
# width = 32
# image = 64
# classes = 10
# steps = 14
# warmup = 3
#
# [tool.tuiprof.presets.smoke]
# note = "a ResNet of two bottlenecks, an eighth of the width, 32²; same batch sizes; runs anywhere in seconds"
# depth = 8
# width = 8
# image = 32
# classes = 10
# steps = 14
# warmup = 3
# [[tool.tuiprof.variants]]
# name = "baseline"
# note = "float32, batch 128, the data loader in the training process: PyTorch's defaults."
# set = { batch = 128, workers = 0 }
# published = [{ text = "9.12 samples/s", value = 9.12, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "batch-64"
# note = "Batch 64 instead of 128."
# builds_on = "baseline"
# set = { batch = 64, workers = 0 }
# published = [{ text = "figures only in a picture; smaller batches were better" }]
# [[tool.tuiprof.variants]]
# name = "batch-32"
# note = "Batch 32 instead of 128."
# builds_on = "baseline"
# set = { batch = 32, workers = 0 }
# published = [{ text = "figures only in a picture; smaller batches were better" }]
# [[tool.tuiprof.variants]]
# name = "batch-16"
# note = "Batch 16 instead of 128."
# builds_on = "baseline"
# set = { batch = 16, workers = 0 }
# published = [{ text = "figures only in a picture; smaller batches were better" }]
# [[tool.tuiprof.variants]]
# name = "batch-8"
# note = "Batch 8 instead of 128."
# builds_on = "baseline"
# set = { batch = 8, workers = 0 }
# published = [{ text = "figures only in a picture; smaller batches were better" }]
# [[tool.tuiprof.variants]]
# name = "workers-1"
# note = "One loader process: data and training overlap, but share the cores."
# builds_on = "batch-16"
# set = { batch = 16, workers = 1 }
# published = [{ text = "figures only in a picture" }]
# [[tool.tuiprof.variants]]
# name = "workers-2"
# note = "Two loader processes."
# builds_on = "batch-16"
# set = { batch = 16, workers = 2 }
# published = [{ text = "figures only in a picture" }]
# [[tool.tuiprof.variants]]
# name = "workers-4"
# note = "Four loader processes (no more than CPUs)."
# builds_on = "batch-16"
# set = { batch = 16, workers = 4 }
# published = [{ text = "figures only in a picture" }]
# [[tool.tuiprof.variants]]
# name = "bf16"
# note = "Autocast to bf16."
# builds_on = "workers-1"
# set = { batch = 16, workers = 1, amp = "bfloat16" }
# published = [{ text = "24.34 samples/s, +86 % over the step before", value = 24.34, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "fp16"
# note = "Autocast to float16, to see why not: emulated on most CPUs; with AVX2 alone 25 times slower than float32."
# builds_on = "workers-1"
# set = { batch = 16, workers = 1, amp = "float16" }
# [[tool.tuiprof.variants]]
# name = "channels-last"
# note = "Weights and images in channels_last, the layout of oneDNN's convolutions."
# builds_on = "bf16"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true }
# published = [{ text = "37.93 samples/s, +56 %", value = 37.93, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "compile"
# note = "torch.compile with inductor, without channels_last."
# builds_on = "bf16"
# set = { batch = 16, workers = 1, amp = "bfloat16", compile = "inductor" }
# needs = { compile = true }
# published = [{ text = "+27 %, only without channels_last", value = 27, unit = "%" }]
# [[tool.tuiprof.variants]]
# name = "compile-channels-last"
# note = "torch.compile with inductor on top of channels_last."
# builds_on = "channels-last"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true, compile = "inductor" }
# needs = { compile = true }
# published = [{ text = "slower than channels-last alone" }]
# [[tool.tuiprof.variants]]
# name = "run-cpu"
# note = "Started by torch.backends.xeon.run_cpu, which pins threads to cores and preloads TCMalloc and Intel OpenMP."
# builds_on = "channels-last"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true, launcher = "run_cpu" }
# needs = { libraries = ["tcmalloc", "iomp5"] }
# published = [{ text = "39.05 samples/s", value = 39.05, unit = "samples/s" }]
# [[tool.tuiprof.variants]]
# name = "compile-ipex"
# note = "torch.compile with the backend of Intel's extension, without channels_last."
# builds_on = "bf16"
# set = { batch = 16, workers = 1, amp = "bfloat16", compile = "ipex" }
# published = [{ text = "+27 %, only without channels_last", value = 27, unit = "%" }]
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.8,<2.9", "intel-extension-for-pytorch>=2.8,<2.9"]
# remedy = """discontinued after 2.8 (intel/intel-extension-for-pytorch#867); in an environment of its own:
# pip install 'torch==2.8.*' 'intel-extension-for-pytorch==2.8.*'"""
# [[tool.tuiprof.variants]]
# name = "compile-ipex-channels-last"
# note = "torch.compile with the backend of Intel's extension on top of channels_last."
# builds_on = "channels-last"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true, compile = "ipex" }
# published = [{ text = "slower than channels-last alone" }]
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.8,<2.9", "intel-extension-for-pytorch>=2.8,<2.9"]
# remedy = """discontinued after 2.8 (intel/intel-extension-for-pytorch#867); in an environment of its own:
# pip install 'torch==2.8.*' 'intel-extension-for-pytorch==2.8.*'"""
# [[tool.tuiprof.variants]]
# name = "ipex"
# note = "ipex.optimize of Intel's extension on model and optimizer, on top of run-cpu."
# builds_on = "run-cpu"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true, launcher = "run_cpu", ipex = true }
# published = [{ text = "40.73 samples/s, 4.46× in all", value = 40.73, unit = "samples/s" }]
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.8,<2.9", "intel-extension-for-pytorch>=2.8,<2.9"]
# remedy = """discontinued after 2.8 (intel/intel-extension-for-pytorch#867); in an environment of its own:
# pip install 'torch==2.8.*' 'intel-extension-for-pytorch==2.8.*'"""
# libraries = ["tcmalloc", "iomp5"]
# [[tool.tuiprof.variants]]
# name = "ddp-numa"
# note = "One process a NUMA node, each with its own cores and memory, gradients averaged by DDP over gloo."
# builds_on = "channels-last"
# set = { batch = 16, workers = 1, amp = "bfloat16", channels_last = true, launcher = "ddp" }
# needs = { numa_nodes = 2 }
# published = [{ text = "no gain (c6i.32xlarge, 2 nodes)" }]
# [[tool.tuiprof.variants]]
# name = "xla"
# note = "PyTorch/XLA on the CPU: the whole step is one compiled graph."
# builds_on = "workers-1"
# set = { batch = 16, workers = 1, xla = true }
# needs = { packages = ["torch>=2.5,<2.10", "torch_xla>=2.5,<2.10"], same_release = ["torch", "torch_xla"] }
# published = [{ text = "≈7× slower", value = 7, unit = "× slower" }]
# [[tool.tuiprof.variants]]
# name = "gpu"
# note = "The baseline on a GPU, unoptimised, for comparison."
# builds_on = "baseline"
# set = { batch = 128, workers = 0, device = "cuda" }
# needs = { device = "cuda" }
# published = [{ text = "340 samples/s (g5.2xlarge, NVIDIA A10G)", value = 340, unit = "samples/s" }]
# ///
"""ResNet-50 on a CPU: ``python scenarios/cpu_training.py --help`` tells the story."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )
from common.needs import numa_nodes

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop


def launcher(run: scenario.Run) -> list[str]:
    """Return what the variant is started by, as arguments to Python."""
    match run.set.get("launcher"):
        case "run_cpu":
            return ["-m", "torch.backends.xeon.run_cpu", "--enable-tcmalloc"]
        case "ddp":
            return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(numa_nodes())}"]
        case _:
            return []


def join_ranks() -> int:
    """Bind this process to the NUMA node of its rank, join the others and return how many there are.

    Memory is allocated on the node of the core that first touches it, so binding the threads binds the memory too.
    """
    import torch
    from common import ranks

    nodes = list(numa_nodes().values())
    cpus = nodes[int(os.environ["LOCAL_RANK"]) % len(nodes)]
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(len(cpus))
    return ranks.join(torch.device("cpu"))[2]


def train(run: scenario.Run, weights: list[torch.Tensor] | None = None) -> Loop:
    """Train the variant.

    Args:
        run: What was asked for.
        weights: If given, takes the weights of the last layer in the end.

    Returns:
        The timed loop.
    """
    import torch
    from common.resnet import resnet
    from common.training import Images, Loop, loader, normalise, phase

    size, settings = run.size, run.set
    device = torch.device(settings.get("device", "cpu"))
    if "xla" in settings:
        os.environ.setdefault("PJRT_DEVICE", "CPU")
        import torch_xla

        device = torch_xla.device()
    ranks, rank = (join_ranks(), int(os.environ["RANK"])) if settings.get("launcher") == "ddp" else (1, 0)
    layout = torch.channels_last if "channels_last" in settings else torch.contiguous_format

    torch.manual_seed(run.seed)
    model = resnet(size.depth, size.classes, size.width).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    autocast = nullcontext()
    if "amp" in settings:
        autocast = torch.autocast(device.type, dtype=getattr(torch, settings["amp"]))
    if "ipex" in settings:
        import intel_extension_for_pytorch as ipex

        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    if "compile" in settings:
        if settings["compile"] == "ipex":
            import intel_extension_for_pytorch  # noqa: F401 - registers the backend
        model = torch.compile(model, backend=settings["compile"])
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)

    batch = settings["batch"]
    images = Images(run.steps * batch, size.image, size.classes, run.seed + rank)
    loop = Loop(loader(images, batch, settings["workers"], device), batch * ranks, run.warmup, device)
    for pixels, labels in loop:
        with phase("h2d"):  # on a CPU nothing is copied; bytes become floats, in the layout of the model
            pixels = normalise(pixels.to(device, non_blocking=True)).to(memory_format=layout)
            labels = labels.to(device, non_blocking=True)
        with phase("forward"), autocast:
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        with phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        if "xla" in settings:
            with phase("execute"):  # until here XLA has only written down what is to be computed
                torch_xla.sync(wait=True)
        loop.note(loss)
    if weights is not None:
        weights.append(last_weights(model))
    return loop


def last_weights(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of the weights of the classifier, ``[classes, channels]``; its bias comes after it."""
    return list(model.state_dict().values())[-2].detach().float().cpu().clone()


def check(run: scenario.Run) -> Check:
    """Hold three steps of the variant to the same steps written out plainly.

    Plainly is float32, contiguous, uncompiled, in one process, which takes the batches of all ranks one after another.
    """
    import torch
    from common.checking import LOSS_TOLERANCE, UPDATE_TOLERANCE, Check
    from common.resnet import resnet
    from common.training import Images, normalise
    from torch.utils.data import DataLoader

    run = run.shortened(steps=3)
    trained: list[torch.Tensor] = []
    losses = train(run, trained).losses

    size, batch = run.size, run.set["batch"]
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    torch.manual_seed(run.seed)
    model = resnet(size.depth, size.classes, size.width)
    initial = last_weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shards = [Images(run.steps * batch, size.image, size.classes, run.seed + shard) for shard in range(ranks)]
    wanted = []
    for batches in zip(*(DataLoader(images, batch) for images in shards), strict=True):
        optimizer.zero_grad()
        shard_losses = [
            torch.nn.functional.cross_entropy(model(normalise(pixels)), labels) for pixels, labels in batches
        ]
        (sum(shard_losses) / ranks).backward()
        optimizer.step()
        wanted.append(shard_losses[rank].detach())

    precision = getattr(torch, run.set.get("amp", "float32"))
    checked = Check("plain float32 training" if run.variant["name"] == "baseline" else "baseline")
    checked.close("losses", torch.stack(losses), torch.stack(wanted), LOSS_TOLERANCE[precision])
    change, wanted_change = trained[0] - initial, last_weights(model) - initial
    checked.close("change of the last layer", change, wanted_change, UPDATE_TOLERANCE[precision])
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check, launcher))
