# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5", "numpy>=1.26"]
#
# [tool.tuiprof]
# name = "giou-loss"
# title = "a per-sample loss, fused and as a kernel of one's own"
# story = """
# A detector predicts up to 256 faces in each of 1024 images; the generalised IoU loss compares each with its target.
# Every image has another number of faces, so the obvious loop over images launches some dozens of kernels for each and
# leaves the device idle in between. Concatenating first calculates only once, but still cuts and copies image by
# image. Padding every image to the full 256 boxes computes far more and is far faster: one copy, one pass. What is
# left are three dozen small kernels that read and write the same memory; torch.compile, Triton or CUDA make one of
# them. The kernels written by hand have their own backward pass: one launch for the loss, one for its gradient. Most
# boxes are padding. Leaving them out (conditional execution) hardly pays as long as starting a kernel is most of what
# it takes; the variants with "work" do the arithmetic 64 and 1024 times (GIOU_WORK=k in the environment: k times) and
# show from where on it does. Beside the network the loss soon vanishes: the preset "loss" leaves the network out.
# """
# baseline = "per-sample"
# check_and_run = ["--check"]
# reference = { hardware = "NVIDIA L4", software = "PyTorch 2.4; calc loss, forward only" }
#
# [tool.tuiprof.presets.paper]
# note = "256² pixels, four convolutions, linear 65536 → 16384 → 1024, 256 boxes, batch 1024"
# image = 256
# hidden = 16384
# boxes = 256
# batch = 1024
# workers = 8
# steps = 20
# warmup = 8
#
# [tool.tuiprof.presets.loss]
# note = "the loss alone, without the network: 1024 images of 256 boxes in bfloat16; a step is one forward pass of it"
# image = 0
# as_published = true
# boxes = 256
# batch = 1024
# steps = 30
# warmup = 10
# calls = 200
#
# [tool.tuiprof.presets.smoke]
# note = "32² pixels, four convolutions, linear 1024 → 64 → 64, 16 boxes, batch 16; runs anywhere in seconds"
# image = 32
# hidden = 64
# boxes = 16
# batch = 16
# workers = 1
# steps = 14
# warmup = 3
# [[tool.tuiprof.variants]]
# name = "per-sample"
# note = "A Python loop over images: copies, computes and sums the boxes of each."
# published = [{ text = "938.07 ms (copy data 28.8 ms)", value = 938.07, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "concatenated"
# note = "Puts the valid boxes of all images into one tensor, then computes once."
# builds_on = "per-sample"
# published = [{ text = "25.41 ms, 37× (copy data 52.2 ms)", value = 25.41, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "padded"
# note = "Every image has 256 boxes; those that are not valid are masked."
# builds_on = "concatenated"
# published = [{ text = "1.844 ms, a further 14× (copy data 5.71 ms)", value = 1.844, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "padded-compiled"
# note = "The padded loss through torch.compile."
# builds_on = "padded"
# set = { compile = true }
# needs = { compile = true }
# published = [{ text = "0.828 ms (copy data 5.69 ms)", value = 0.828, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "padded-compiled-network"
# note = "The network goes through torch.compile too; the preset loss has none."
# builds_on = "padded-compiled"
# set = { compile = true, compile_network = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "cuda"
# note = "A CUDA kernel, one block an image, on predictions cast to float32: one launch for the loss."
# builds_on = "padded"
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# published = [{ text = "0.629 ms (copy data 5.69 ms)", value = 0.629, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "cuda-conditional"
# note = "The same, but threads of padding neither load nor compute."
# builds_on = "cuda"
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# published = [{ text = "0.623 ms (copy data 5.70 ms)", value = 0.623, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "cuda-native"
# note = "The same, reading the predictions in their own type: half the bytes, and no launch for a cast."
# builds_on = "cuda-conditional"
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# [[tool.tuiprof.variants]]
# name = "triton"
# note = "A Triton kernel, one program an image, on predictions cast to float32. On a CPU it is interpreted."
# builds_on = "padded"
# needs = { packages = ["triton>=3.0"] }
# published = [{ text = "0.891 ms (copy data 5.71 ms)", value = 0.891, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "triton-compiled"
# note = "The Triton loss through torch.compile, which takes over the cast and the sum over images."
# builds_on = "triton"
# set = { compile = true }
# needs = { device = "cuda", why = "Triton compiles for GPUs", packages = ["triton>=3.0"] }
# published = [{ text = "0.719 ms (copy data 5.70 ms)", value = 0.719, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "triton-native-compiled"
# note = "The kernel reads the predictions in their own type and casts in registers."
# builds_on = "triton-compiled"
# set = { compile = true }
# needs = { device = "cuda", why = "Triton compiles for GPUs", packages = ["triton>=3.0"] }
# published = [{ text = "0.622 ms (copy data 5.70 ms)", value = 0.622, unit = "ms calc loss" }]
# [[tool.tuiprof.variants]]
# name = "cuda-work-64"
# note = "The kernel of cuda, with the arithmetic done 64 times."
# builds_on = "cuda"
# preset = "loss"
# set = { work = 64 }
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# [[tool.tuiprof.variants]]
# name = "cuda-conditional-work-64"
# note = "The same, but threads of padding neither load nor compute."
# baseline = "cuda-work-64"
# builds_on = "cuda-work-64"
# preset = "loss"
# set = { work = 64 }
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# [[tool.tuiprof.variants]]
# name = "cuda-work-1024"
# note = "The kernel of cuda, with the arithmetic done 1024 times."
# builds_on = "cuda"
# preset = "loss"
# set = { work = 1024 }
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# [[tool.tuiprof.variants]]
# name = "cuda-conditional-work-1024"
# note = "The same, but threads of padding neither load nor compute."
# baseline = "cuda-work-1024"
# builds_on = "cuda-work-1024"
# preset = "loss"
# set = { work = 1024 }
# needs = { device = "cuda", why = "it is a CUDA kernel", nvcc = true }
# ///
"""A per-sample loss, fused and as kernels: ``python scenarios/giou_loss.py --help`` tells the story."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )

if TYPE_CHECKING:
    import torch
    from common.check import Check
    from common.kernels import Measured
    from common.training import Loop

OPERATIONS = 37  # for each box: those of its score (see giou_kernel/score.py), and 1 − score
IN_LISTS = ("per-sample", "concatenated")  # these take the targets as one tensor an image


# A box is x1, y1, x2, y2. Predicted and target boxes are [batch, boxes, 4]; the first counts[i] of sample i are valid.
# Widths and heights below 0 count as 0. The loss is the mean of 1 − GIoU over all valid boxes, 0 if there is none.


def box_losses(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return 1 − GIoU of each pair of boxes ``[…, 4]``, as ``[…]``, in the precision of the target."""
    import torch
    from giou_loss.epsilon import EPSILON

    predicted = predicted.to(target.dtype)

    def area(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return (high - low).clamp(min=0).prod(dim=-1)

    low, high, target_low, target_high = *predicted.split(2, -1), *target.split(2, -1)
    shared = area(torch.maximum(low, target_low), torch.minimum(high, target_high))
    both = area(low, high) + area(target_low, target_high) - shared
    hull = area(torch.minimum(low, target_low), torch.maximum(high, target_high))
    return 1 - shared / (both + EPSILON) + (hull - both) / (hull + EPSILON)


def per_sample(predicted: torch.Tensor, targets: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, sample by sample; ``targets`` has the valid boxes of each."""
    import torch

    losses = [
        box_losses(boxes[: len(target)], target).sum()
        for boxes, target in zip(predicted, targets, strict=True)
    ]
    return torch.stack(losses).sum() / counts.sum().clamp(min=1)


def concatenated(predicted: torch.Tensor, targets: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """Return the loss of the valid boxes of all samples, one after another in one tensor."""
    import torch

    chosen = torch.cat([boxes[: len(target)] for boxes, target in zip(predicted, targets, strict=True)])
    return box_losses(chosen, torch.cat(targets)).sum() / counts.sum().clamp(min=1)


def padded(predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss, computed for every box and masked."""
    import torch

    valid = torch.arange(target.shape[1], device=target.device) < counts[:, None]
    return torch.where(valid, box_losses(predicted, target), 0).sum() / counts.sum().clamp(min=1)


def loss_function(run: scenario.Run) -> Callable[..., torch.Tensor]:
    """Return the variant's loss of predicted boxes, targets and counts."""
    import torch

    match run.variant["name"]:
        case "per-sample":
            loss = per_sample
        case "concatenated":
            loss = concatenated
        case "padded" | "padded-compiled" | "padded-compiled-network":
            loss = padded
        case str(name) if name.startswith("cuda"):
            from giou_loss import loss_cuda

            work = int(os.environ.get("GIOU_WORK", run.set.get("work", 1)))
            if work < 1:
                raise ValueError(f"GIOU_WORK is {work}; the arithmetic must be done once at least")
            function = loss_cuda.loss if name == "cuda-native" else loss_cuda.loss_after_cast
            conditional = name == "cuda-native" or "conditional" in name
            loss = partial(function, conditional=conditional, work=work)
        case "triton" | "triton-compiled":
            from giou_loss import loss_triton

            loss = loss_triton.loss_after_cast
        case "triton-native-compiled":
            from giou_loss import loss_triton

            loss = loss_triton.loss
        case other:
            raise ValueError(f"no loss is called {other!r}")
    return torch.compile(loss) if run.set.get("compile") else loss


def cut(targets: torch.Tensor, counts: torch.Tensor) -> list[torch.Tensor]:
    """Return the valid boxes of each image; ``counts`` is on the host."""
    return [boxes[:count] for boxes, count in zip(targets, counts.tolist(), strict=True)]


def network(image: int, hidden: int, boxes: int) -> torch.nn.Module:
    """Return the detector: uint8-valued floats ``[batch, 1, image, image]`` to boxes ``[batch, boxes, 4]``."""
    from torch import nn

    layers: list[nn.Module] = []
    for level in range(4):
        convolution = nn.Conv2d(4**level, 4 ** (level + 1), 3, padding="same")
        layers += [convolution, nn.MaxPool2d(2), nn.ReLU(inplace=True)]
    pixels = 256 * (image // 16) ** 2
    linear = [nn.Linear(pixels, hidden), nn.Linear(hidden, 4 * boxes), nn.Unflatten(1, (boxes, 4))]
    return nn.Sequential(*layers, nn.Flatten(), *linear)


def faces(run: scenario.Run) -> Any:
    """Return a dataset of images and padded boxes with their count, for a loader."""
    import torch
    from common.training import random_bytes
    from torch.utils.data import Dataset

    size = run.size

    class Faces(Dataset):
        def __len__(self) -> int:
            return run.steps * size.batch

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            random = torch.Generator().manual_seed(run.seed * 1_000_003 + index)
            image = random_bytes((1, size.image, size.image), random)
            count = min(int(3 * torch.randn((), generator=random).abs()), size.boxes - 1)
            boxes = torch.zeros(size.boxes, 4)
            boxes[:count] = random_boxes((count,), random)
            return image, boxes, torch.tensor(count, dtype=torch.int32)

    return Faces()


def random_boxes(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Return boxes ``[*shape, 4]`` in the unit square."""
    import torch

    corner, opposite = torch.rand(2, *shape, 2, generator=random)
    return torch.cat([torch.minimum(corner, opposite), torch.maximum(corner, opposite)], dim=-1)


def loss_alone(run: scenario.Run) -> Measured:
    """Time the loss without a network, forward and with its gradient, on boxes near the targets."""
    import torch
    from common.clocks import torch_clock
    from common.kernels import Kernel, Work, measure

    size, clock = run.size, torch_clock(interpreted=run.variant["name"].startswith("triton"))
    random = torch.Generator().manual_seed(run.seed)
    counts = (3 * torch.randn(size.batch, generator=random).abs()).int().clamp(max=size.boxes - 1)
    targets = random_boxes((size.batch, size.boxes), random)
    predicted = targets + 0.2 * torch.randn(targets.shape, generator=random)
    predicted = predicted.to(clock.where, torch.bfloat16).requires_grad_()
    targets = targets.to(clock.where)
    on_device = cut(targets, counts) if run.variant["name"] in IN_LISTS else targets
    inputs, loss_of = (on_device, counts.to(clock.where)), loss_function(run)

    def with_gradient() -> torch.Tensor:
        return torch.autograd.grad(loss_of(predicted, *inputs), predicted)[0]

    valid = int(counts.sum())  # no more than these boxes must be read
    work = Work(valid * 4 * (2 + 4) + 4 * size.batch + 4, valid * OPERATIONS, "float32")
    kernel = Kernel(loss_of, (predicted.detach(), *inputs), clock, work)
    return measure(run, kernel, {"calc loss": kernel, "calc loss and gradient": with_gradient})


def train(run: scenario.Run) -> Loop | Measured:
    """Train the variant and return the timed loop, or time its loss alone if the preset has no images."""
    import torch
    from common.training import Loop, accelerator, loader, normalise

    size, device = run.size, accelerator()
    if not size.image:
        if run.set.get("compile_network"):
            raise scenario.CannotRun(f"the preset {run.preset} has no network to compile", "another --preset")
        return loss_alone(run)
    loss_of = loss_function(run)  # before torch.optim, which imports Triton: see common/interpreted.py
    torch.manual_seed(run.seed)
    with device:  # a billion weights are drawn faster where they are needed
        model = network(size.image, size.hidden, size.boxes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if run.set.get("compile_network"):
        model = torch.compile(model)
    in_lists = run.variant["name"] in IN_LISTS
    interpreted = run.variant["name"].startswith("triton") and device.type == "cpu"
    batches = loader(faces(run), size.batch, size.workers, device)
    loop = Loop(batches, size.batch, run.warmup, device, interpreted=interpreted)
    for pixels, targets, counts in loop:
        with loop.phase("copy data"):
            pixels = normalise(pixels.to(device, non_blocking=True))
            if in_lists:
                targets = [boxes.to(device, non_blocking=True) for boxes in cut(targets, counts)]
            else:
                targets = targets.to(device, non_blocking=True)
            counts = counts.to(device, non_blocking=True)
        with loop.phase("forward"), torch.autocast(device.type, dtype=torch.bfloat16):
            predicted = model(pixels)
        with loop.phase("calc loss"):
            loss = loss_of(predicted, targets, counts)
        with loop.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with loop.phase("optimizer"):
            optimizer.step()
        loop.note(loss)
    return loop


def check(run: scenario.Run) -> Check:
    """Hold loss and gradient to the padded loss in float64, and three training steps to the baseline's losses.

    Counts run from 0 to all boxes, and some predicted boxes are inside out. The CUDA kernels are also compared with
    finite differences in float64.
    """
    import torch
    from common.checking import TOLERANCE, Check, compare_losses
    from common.training import accelerator

    size, device, checked = run.size, accelerator(), Check("per-sample")
    random = torch.Generator().manual_seed(run.seed)
    counts = torch.randint(0, size.boxes, (32,), generator=random, dtype=torch.int32)
    counts[:3] = torch.tensor([0, size.boxes - 1, size.boxes])
    targets = random_boxes((32, size.boxes), random)
    predicted = targets + 0.2 * torch.randn(targets.shape, generator=random)
    loss_of, name = loss_function(run), run.variant["name"]

    for dtype in (torch.float32, torch.bfloat16):
        got, want = (predicted.to(device, dtype, copy=True).requires_grad_() for _ in range(2))
        on_device = cut(targets.to(device), counts) if name in IN_LISTS else targets.to(device)
        loss = loss_of(got, on_device, counts.to(device))
        exact = padded(want.double(), targets.to(device).double(), counts.to(device))
        loss.backward()
        exact.backward()
        checked.close(f"loss of {dtype}".replace("torch.", ""), loss, exact, TOLERANCE[torch.float32])
        checked.close(f"gradient of {dtype}".replace("torch.", ""), got.grad, want.grad, TOLERANCE[dtype])
    if name.startswith("cuda"):
        few = [tensor[:4, :8].double().to(device) for tensor in (predicted, targets)]
        counted = counts[:4].clamp(max=8).to(device)
        agrees = torch.autograd.gradcheck(
            lambda boxes: loss_of(boxes, few[1], counted), few[0].requires_grad_(), raise_exception=False
        )
        checked.close("finite differences agree", int(agrees), 1, 0)
    none = loss_of(
        predicted.to(device),
        cut(targets.to(device), 0 * counts) if name in IN_LISTS else targets.to(device),
        0 * counts.to(device),
    )
    checked.close("loss without any box", 1 + none, 1, 0)

    if size.image:
        compare_losses(checked, run, train, torch.bfloat16)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
