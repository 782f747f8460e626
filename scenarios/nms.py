# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=1.26"]
#
# [tool.tuiprof]
# name = "nms"
# title = "a sequential algorithm on a parallel chip"
# story = """
# A detector gives many boxes for one object. Greedy non-maximum suppression keeps the best of them: take the box with
# the highest score, drop every box that overlaps it, and begin again with what is left. Each round needs the one
# before; a chip that is wide and wants to do everything at once spends its time on starting rounds instead.
# Called from Python, a round is two dozen launches. A loop that the compiler knows (jax.lax.while_loop) is one
# program, but each round is still several kernels that write to memory what the next one reads. A kernel of one's own
# holds all the scores where the arithmetic is, and finds the best box in one reduction instead of two: the index of a
# box is packed into the low bits of its score, ordered as an integer, so that the largest number names both.
# On a TPU the steps of a grid run one after another and share scratch memory: the grid is the loop. On a GPU they run
# at the same time and share nothing: the loop moves into the kernel. All variants keep the same boxes. Next to the
# chip's bandwidth and arithmetic the times are absurd: it is the chain of rounds that takes them.
# """
# baseline = "numpy"
# check_and_run = ["--check"]
# reference = { hardware = "TPU v5e and its host's CPU", software = "JAX" }
#
# [tool.tuiprof.presets.paper]
# note = "1024 boxes in 1024 × 1024 pixels, IoU above 0.1 is dropped, at most 128 are kept"
# boxes = 1024
# most = 128
# image = 1024
# threshold = 0.1
# steps = 30
# warmup = 10
# calls = 100
#
# [tool.tuiprof.presets.smoke]
# note = "256 boxes, at most 32 are kept; runs anywhere in seconds, interpreted kernels too"
# boxes = 256
# most = 32
# image = 1024
# threshold = 0.1
# steps = 14
# warmup = 4
# calls = 5
# [[tool.tuiprof.variants]]
# name = "numpy"
# note = "Rounds in Python, a round in NumPy, on the CPU."
# needs = { device = "cpu" }
# published = [{ text = "2.99 ms", value = 2.99, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "jax-cpu"
# note = "All rounds in one program: jax.lax.while_loop, on the CPU."
# builds_on = "numpy"
# needs = { device = "cpu", packages = ["jax>=0.5"] }
# published = [{ text = "1.231 ms", value = 1.231, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "jax"
# note = "The same program on the accelerator that JAX finds, a TPU or a GPU."
# builds_on = "jax-cpu"
# needs = { packages = ["jax>=0.5"], jax_device = true }
# published = [{ text = "0.416 ms", value = 0.416, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pallas"
# note = """A Pallas kernel for TPUs: the grid is the loop, the scores stay in scratch memory, the index is packed into
# them. On a CPU it is interpreted, which shows its numbers and not its speed."""
# builds_on = "jax"
# needs = { packages = ["jax>=0.7"] }
# published = [{ text = "0.139 ms", value = 0.139, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pallas-triton"
# note = """A Pallas kernel for GPUs, through Triton: one program holds all boxes in registers, and the loop is in it.
# On a CPU it is interpreted."""
# builds_on = "pallas"
# needs = { packages = ["jax>=0.7"] }
# [[tool.tuiprof.variants]]
# name = "torch"
# note = "Rounds in Python, a round in torch, without a single sync: two dozen launches for each round."
# builds_on = "numpy"
# needs = { packages = ["torch>=2.5"] }
# [[tool.tuiprof.variants]]
# name = "torchvision"
# note = "torchvision.ops.nms: finds all overlaps at once, on the device, then goes through them one by one."
# builds_on = "torch"
# needs = { packages = ["torch>=2.5", "torchvision>=0.20"] }
# [[tool.tuiprof.variants]]
# name = "triton"
# note = "A Triton kernel: one program, all rounds in it. On a CPU it is interpreted."
# builds_on = "torch"
# needs = { packages = ["torch>=2.5", "triton>=3.0"] }
# [[tool.tuiprof.variants]]
# name = "pallas-mosaic"
# note = "A Pallas kernel for Hopper through Mosaic GPU, JAX's recommendation: one warpgroup holds all boxes."
# builds_on = "pallas-triton"
# needs = { packages = ["jax>=0.10", "absl-py"], jax_device = true }
# [[tool.tuiprof.variants]]
# name = "triton-4-warps"
# note = "Four warps instead of eight: fewer of them meet at the two reductions of every round."
# builds_on = "triton"
# needs = { packages = ["torch>=2.5", "triton>=3.0"], device = "cuda", why = "Triton's interpreter has no warps" }
# [[tool.tuiprof.variants]]
# name = "triton-1-warp"
# note = "One warp: nobody to meet, and thirty-two boxes a thread."
# builds_on = "triton"
# needs = { packages = ["torch>=2.5", "triton>=3.0"], device = "cuda", why = "Triton's interpreter has no warps" }
# ///
"""Non-maximum suppression: ``python scenarios/nms.py --help`` tells the story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )
from common.kernels import Kernel, Measured, Work, measure

if TYPE_CHECKING:
    import numpy as np
    from common.check import Check

#: For each box and round: two minima, two maxima, two differences, two clamps, a product, the union (2), its share,
#: a comparison, and one for the best score.
OPERATIONS = 14


def random_boxes(count: int, image: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes and scores that every framework sees alike.

    Args:
        count: How many.
        image: Height and width in pixels.
        seed: Seed.

    Returns:
        Boxes x1, y1, x2, y2 as float32 ``[count, 4]``: whole pixels of eight significant bits, which bfloat16 holds
        exactly, so that areas of them are exact in float32. Scores in 0 … 1 as float32 ``[count]`` whose last ten bits
        are 0, so that an index fits there; some are equal, and then the lower index comes first.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    corners = random.integers(0, image, (2, count, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(axis=0), corners.max(axis=0)], axis=1)
    scores = random.random(count, dtype=np.float32)
    keep_bits = [(boxes, 16), (scores, 10)]
    return tuple((values.view(np.uint32) >> bits << bits).view(np.float32) for values, bits in keep_bits)


def suppress(boxes: np.ndarray, scores: np.ndarray, threshold: float, most: int) -> np.ndarray:
    """Return the indices of the boxes that are kept, best first, and −1 for those that lack: int32 ``[most]``.

    Args:
        boxes: float32 ``[count, 4]``.
        scores: float32 ``[count]``.
        threshold: A box that overlaps a better one by more than this share of their union is dropped.
        most: How many are kept at most.
    """
    import numpy as np

    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1) * (y2 - y1)
    left, kept = scores.copy(), np.full(most, -1, np.int32)
    for turn in range(most):
        best = left.argmax()
        if left[best] == -np.inf:
            break
        kept[turn] = best
        width = np.maximum(np.minimum(x2, x2[best]) - np.maximum(x1, x1[best]), 0)
        height = np.maximum(np.minimum(y2, y2[best]) - np.maximum(y1, y1[best]), 0)
        overlap = width * height
        # Not a division, which chips round differently: this comparison is the same on all of them.
        left[overlap > np.float32(threshold) * (areas + areas[best] - overlap)] = -np.inf
        left[best] = -np.inf
    return kept


def kernel(run: scenario.Run, boxes: np.ndarray, scores: np.ndarray) -> Kernel:
    """Return the variant's kernel with its inputs in place."""
    from functools import partial

    name, threshold, most = run.variant["name"], run.size.threshold, run.size.most
    match name:
        case "numpy":
            from common.clocks import Clock

            function, arguments, clock = suppress, (boxes, scores), Clock("cpu")
        case "jax-cpu" | "jax" | "pallas" | "pallas-triton" | "pallas-mosaic":
            from nms import in_jax

            function, arguments, clock = in_jax.prepared(name, boxes, scores)
        case "torch" | "torchvision" | "triton" | "triton-4-warps" | "triton-1-warp":
            from nms import in_torch

            function, arguments, clock = in_torch.prepared(name, boxes, scores)
        case other:
            raise ValueError(f"no variant is called {other!r}")
    rounds = int((suppress(boxes, scores, threshold, most) >= 0).sum())
    work = Work(len(boxes) * (4 * 2 + 4) + most * 4, rounds * len(boxes) * OPERATIONS, "float32")
    return Kernel(partial(function, threshold=threshold, most=most), arguments, clock, work)


def train(run: scenario.Run) -> Measured:
    """Time the variant."""
    return measure(run, kernel(run, *random_boxes(run.size.boxes, run.size.image, run.seed)))


def check(run: scenario.Run) -> Check:
    """Hold the kept boxes to NumPy's: random ones, more than may be kept, equal ones, and equal scores."""
    import numpy as np
    from common.check import Check

    size, checked = run.size, Check("numpy")
    boxes, scores = random_boxes(size.boxes, size.image, run.seed)
    others = random_boxes(size.boxes, size.image, run.seed + 1)
    row = np.arange(size.boxes, dtype=np.float32)
    column, line = row % 32, row // 32
    apart = np.stack([4 * column, 4 * line, 4 * column + 2, 4 * line + 2], axis=1)
    cases: dict[str, tuple[Any, Any]] = {
        "random boxes": (boxes, scores),
        "other boxes": others,
        "boxes apart": (apart, scores),
        "one box many times": (np.tile(boxes[:1], (size.boxes, 1)), scores),
        "equal scores": (boxes, np.full_like(scores, 0.5)),
    }
    for what, inputs in cases.items():
        call = kernel(run, *inputs)
        output = call()
        call.clock.wait(output)
        checked.close(what, output, suppress(*inputs, size.threshold, size.most), 0)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
