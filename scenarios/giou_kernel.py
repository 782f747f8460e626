# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=1.26", "torch>=2.5"]
#
# [tool.tuiprof]
# name = "giou-kernel"
# title = "one operator in every kernel language"
# story = """
# The generalised IoU of two batches of boxes, 262 144 pairs: nine floats go through memory for every pair and 36
# operations are done with them, so that on every chip here memory sets the limit, and the art is to touch it once.
# Called operation by operation (PyTorch eager, JAX without jit) each of two dozen steps writes its result to memory and
# the next one reads it. A compiler (torch.compile, jax.jit) makes one kernel of them; Triton, Pallas, CUDA and NKI let
# one write it, each with another idea of what a chip is: programs on blocks, blocks in a pipeline, threads, or tiles of
# 128 partitions whose columns are read four apart.
# How boxes lie in memory decides much: four numbers of a box beside each other are one 16-byte load on a GPU, and the
# wrong way round for a vector unit that wants all x1 together; Pallas gets eight separate arrays for that reason.
# The reference of all is NumPy in float64.
# """
# baseline = "eager"
# check_and_run = ["--check"]
# reference = { hardware = "AWS Inferentia2 (inf2.xlarge) and TPU v5e", software = "Neuron 2.20.1" }
#
# [tool.tuiprof.presets.paper]
# note = "two batches of 1024 × 256 boxes in float32, in an image of 256 × 256 pixels"
# batch = 1024
# boxes = 256
# image = 256
# steps = 50
# warmup = 10
# calls = 200
#
# [tool.tuiprof.presets.smoke]
# note = "two batches of 128 × 128 boxes; runs anywhere in seconds, interpreted kernels too"
# batch = 128
# boxes = 128
# image = 256
# steps = 14
# warmup = 4
# calls = 5
# [[tool.tuiprof.variants]]
# name = "numpy"
# note = "NumPy on the CPU, operation by operation."
# builds_on = "eager"
# needs = { device = "cpu", without = ["torch"] }
# [[tool.tuiprof.variants]]
# name = "eager"
# note = "PyTorch, operation by operation."
# [[tool.tuiprof.variants]]
# name = "compiled"
# note = "The same through torch.compile: one kernel."
# builds_on = "eager"
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "triton"
# note = "A Triton kernel: programs on blocks of boxes, which are loaded whole and split in registers."
# builds_on = "compiled"
# needs = { packages = ["triton>=3.0"] }
# [[tool.tuiprof.variants]]
# name = "cuda"
# note = "A CUDA kernel, built by torch.utils.cpp_extension: a thread a pair, a 16-byte load a box."
# builds_on = "compiled"
# needs = { device = "cuda", why = "it is a CUDA kernel", packages = ["ninja"], nvcc = true }
# [[tool.tuiprof.variants]]
# name = "jax"
# note = "JAX, operation by operation."
# builds_on = "eager"
# needs = { packages = ["jax>=0.5"], without = ["torch"] }
# [[tool.tuiprof.variants]]
# name = "jax-jit"
# note = "The same through jax.jit: one program; on a GPU a kernel and two copies."
# baseline = "jax"
# builds_on = "jax"
# needs = { packages = ["jax>=0.5"], without = ["torch"] }
# published = [{ text = "slightly ahead of pallas on a TPU v5e" }]
# [[tool.tuiprof.variants]]
# name = "pallas"
# note = """A Pallas kernel for TPUs: blocks of 128 × 128, the coordinates split into eight arrays beforehand.
# Interpreted on a CPU."""
# baseline = "jax-jit"
# builds_on = "jax-jit"
# needs = { packages = ["jax>=0.7"], without = ["torch"] }
# published = [{ text = "slightly behind jax-jit on a TPU v5e" }]
# [[tool.tuiprof.variants]]
# name = "pallas-triton"
# note = "The same kernel on a GPU, through Triton, in blocks of 8 × 128. Interpreted on a CPU."
# baseline = "jax-jit"
# builds_on = "pallas"
# needs = { packages = ["jax>=0.7"], without = ["torch"] }
# [[tool.tuiprof.variants]]
# name = "neuron-eager"
# note = "PyTorch on a NeuronCore: operation by operation, which PyTorch/XLA makes one program of."
# builds_on = "eager"
# needs = { device = "neuron", packages = ["torch-neuronx>=2.1"], remedy = """pip install --extra-index-url
# https://pip.repos.neuron.amazonaws.com torch-neuronx (what PyPI has under this name, 1.0, is empty)""" }
# published = [{ text = "0.293 ms", value = 0.293, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "nki"
# note = "An NKI kernel: tiles of 128 partitions × 512 numbers, of which every fourth is read at a time."
# baseline = "neuron-eager"
# builds_on = "neuron-eager"
# needs = { device = "neuron", packages = ["torch-neuronx>=2.1", "nki>=0.7"], remedy = """pip install --extra-index-url
# https://pip.repos.neuron.amazonaws.com torch-neuronx nki (what PyPI has under these names, 1.0 and 0.0.1, is
# empty)""" }
# published = [{ text = "0.211 ms", value = 0.211, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "neuron-cpp"
# note = "C++ on the eight GpSimd cores of a NeuronCore-v2, each with its own tightly coupled memory."
# baseline = "neuron-eager"
# builds_on = "neuron-eager"
# needs = { device = "neuron", packages = ["torch-neuronx>=2.1,<2.10", "ninja"], remedy = """pip install ninja
# --extra-index-url https://pip.repos.neuron.amazonaws.com 'torch-neuronx==2.9.*' (what PyPI has under this name, 1.0,
# is empty)""" }
# published = [{ text = "0.061 ms", value = 0.061, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pallas-mosaic"
# note = "The same kernel for Hopper through Mosaic GPU, which JAX recommends: a warpgroup a block of 8 × 128."
# baseline = "jax-jit"
# builds_on = "pallas-triton"
# needs = { packages = ["jax>=0.10", "absl-py"], without = ["torch"], jax_device = true }
# [[tool.tuiprof.variants]]
# name = "triton-8-warps"
# note = "The Triton kernel with eight warps for a block of 512 pairs instead of four: two pairs a thread."
# builds_on = "triton"
# needs = { packages = ["triton>=3.0"], device = "cuda", why = "Triton's interpreter has no warps" }
# [[tool.tuiprof.variants]]
# name = "triton-autotuned"
# note = "The Triton kernel with block and warps chosen by Triton's autotuner among twenty pairs of them."
# builds_on = "triton"
# needs = { packages = ["triton>=3.0"], device = "cuda", why = "Triton's interpreter has no speed to choose by" }
# [[tool.tuiprof.variants]]
# name = "nki-numpy"
# note = """The NKI kernel's source on NumPy arrays that have the device's limits: 128 partitions, on-chip memory,
# nothing read that nobody has written. Proves its arithmetic and its tiles without the SDK, not its speed."""
# builds_on = "nki"
# needs = { without = ["torch"] }
# [[tool.tuiprof.variants]]
# name = "nki-simulated"
# note = "The NKI kernel in the simulator of AWS's SDK, on the CPU."
# builds_on = "nki"
# needs = { without = ["torch"], packages = ["nki>=0.7"], remedy = """pip install --extra-index-url
# https://pip.repos.neuron.amazonaws.com nki (what PyPI has under this name, 0.0.1, is empty)""" }
# [[tool.tuiprof.variants]]
# name = "neuron-cpp-host"
# note = """The source of neuron-cpp compiled for this CPU: its eight cores one after another, each with 16 KiB of
# memory of its own. Proves which pairs each takes and what it computes."""
# builds_on = "neuron-cpp"
# needs = { without = ["torch"] }
# ///
"""One operator in every kernel language: ``python scenarios/giou_kernel.py --help`` tells the story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )

if TYPE_CHECKING:
    import numpy as np
    from common.check import Check
    from common.kernels import Kernel, Measured

#: float32 keeps 24 bits; the differences of areas lose some of them where boxes nearly fill their hull.
TOLERANCE = 1e-5


def kernel(run: scenario.Run, first: np.ndarray, second: np.ndarray) -> Kernel:
    """Return the variant's kernel with its inputs, float32 ``[batch, boxes, 4]``, in place."""
    from common.kernels import Kernel, Work
    from giou_kernel.score import OPERATIONS, in_numpy

    match name := run.variant["name"]:
        case "numpy":
            from common.clocks import Clock

            function, arguments, clock = in_numpy, (first, second), Clock("cpu")
        case "eager" | "compiled" | "cuda" | "triton" | "triton-8-warps" | "triton-autotuned":
            from giou_kernel import score_torch

            function, arguments, clock = score_torch.prepared(name, first, second)
        case "jax" | "jax-jit" | "pallas" | "pallas-triton" | "pallas-mosaic":
            from giou_kernel import score_jax

            function, arguments, clock = score_jax.prepared(name, first, second)
        case "neuron-eager" | "nki" | "neuron-cpp":
            from giou_kernel import score_neuron

            function, arguments, clock = score_neuron.prepared(name, first, second)
        case "nki-numpy" | "nki-simulated" | "neuron-cpp-host":
            from giou_kernel import score_proofs

            function, arguments, clock = score_proofs.prepared(name, first, second)
        case other:
            raise ValueError(f"no variant is called {other!r}")
    pairs = first.shape[0] * first.shape[1]
    return Kernel(function, arguments, clock, Work(pairs * (4 + 4 + 1) * 4, pairs * OPERATIONS, "float32"))


def train(run: scenario.Run) -> Measured:
    """Time the variant."""
    from common.kernels import measure
    from giou_kernel.score import random_pairs

    return measure(run, kernel(run, *random_pairs(run.size.batch, run.size.boxes, run.size.image, run.seed)))


def check(run: scenario.Run) -> Check:
    """Hold the scores to NumPy's in float64: of random boxes, some inside out, of equal ones, and of empty ones."""
    import numpy as np
    from common.check import Check
    from giou_kernel.score import in_numpy, random_pairs

    size, checked = run.size, Check("NumPy in float64")
    first, second = random_pairs(size.batch, size.boxes, size.image, run.seed)
    second[0] = first[0]
    first[1, :, 2:] = first[1, :, :2]  # no width, no height
    second[2, :, :2], second[2, :, 2:] = 0, 0
    call = kernel(run, first, second)
    output = call()
    call.clock.wait(output)
    want = in_numpy(first.astype(np.float64), second.astype(np.float64))
    checked.close("scores", output, want, TOLERANCE)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
