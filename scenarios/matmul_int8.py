# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=1.26", "jax>=0.5"]
#
# [tool.tuiprof]
# name = "matmul-int8"
# title = "a matrix product in int8, by hand and by the library"
# story = """
# A matrix unit multiplies int8 twice as fast as bfloat16, and int8 moves half the bytes. To get that, the product must
# be summed in int32 (8192 products of two int8 reach 2²⁷), so a kernel keeps an int32 tile where the arithmetic is
# and adds to it block by block; only after the last block the tile is written out.
# On a TPU the third axis of Pallas's grid walks along the sum: its steps run in order, the tile stays in scratch
# memory, and the next blocks are fetched while the present ones are multiplied. On a GPU the walk is a loop inside the
# kernel. The libraries (XLA, cuBLAS) do all that themselves: XLA only needs to be told preferred_element_type=int32.
# The figure to look at is the share of the chip's peak: what is missing from it is what is left to win. int8 results
# are compared number for number, not within a tolerance.
# """
# baseline = "xla-bf16"
# check_and_run = ["--check"]
# reference = { hardware = "TPU v5e", software = "JAX 0.4.32" }
#
# [tool.tuiprof.presets.paper]
# note = "8192 × 8192 × 8192; TPU blocks 512 × 1024 × 1024, GPU blocks 128 × 256"
# size = 8192
# tpu_block = [512, 1024, 1024]
# gpu_block = [128, 256]
# steps = 30
# warmup = 10
# calls = 60
#
# [tool.tuiprof.presets.smoke]
# note = "512 × 512 × 512 in blocks of 128 × 256 × 256; runs anywhere in seconds, interpreted kernels too"
# size = 512
# tpu_block = [128, 256, 256]
# gpu_block = [128, 256]
# steps = 14
# warmup = 4
# calls = 5
# [[tool.tuiprof.variants]]
# name = "xla-bf16"
# note = "XLA's own product of bfloat16 matrices, summed in float32."
# set = { type = "bfloat16" }
# [[tool.tuiprof.variants]]
# name = "xla-int8"
# note = "XLA's own product of int8 matrices: jnp.matmul(a, b, preferred_element_type=jnp.int32)."
# builds_on = "xla-bf16"
# set = { type = "int8" }
# published = [{ text = "faster than pallas-int8" }]
# [[tool.tuiprof.variants]]
# name = "pallas-bf16"
# note = "A Pallas kernel for TPUs: float32 tile in scratch memory, written on the last step. Interpreted on a CPU."
# builds_on = "xla-bf16"
# set = { type = "bfloat16" }
# needs = { packages = ["jax>=0.7"], without = ["jax"] }
# published = [{ text = "baseline of pallas-int8" }]
# [[tool.tuiprof.variants]]
# name = "pallas-int8"
# note = "The same kernel on int8, with an int32 tile."
# baseline = "pallas-bf16"
# builds_on = "pallas-bf16"
# set = { type = "int8" }
# needs = { packages = ["jax>=0.7"], without = ["jax"] }
# published = [{ text = "71 % faster than pallas-bf16", value = 1.71, unit = "× speed of pallas-bf16" }]
# [[tool.tuiprof.variants]]
# name = "pallas-triton-bf16"
# note = """A Pallas kernel for GPUs, through Triton: the loop along the sum is in it, and the second matrix is stored
# column by column. Interpreted on a CPU."""
# builds_on = "xla-bf16"
# set = { type = "bfloat16" }
# needs = { packages = ["jax>=0.7"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "pallas-triton-int8"
# note = "The same kernel on int8, with an int32 tile."
# baseline = "pallas-triton-bf16"
# builds_on = "pallas-triton-bf16"
# set = { type = "int8" }
# needs = { packages = ["jax>=0.7"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "torch-bf16"
# note = "torch.mm of bfloat16 matrices: cuBLAS on a GPU."
# builds_on = "xla-bf16"
# set = { type = "bfloat16" }
# needs = { packages = ["torch>=2.5"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "torch-int8"
# note = "torch._int_mm: cuBLASLt on a GPU, with the second matrix stored column by column as its int8 units need it."
# baseline = "torch-bf16"
# builds_on = "torch-bf16"
# set = { type = "int8" }
# needs = { packages = ["torch>=2.5"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "triton-bf16"
# note = "A Triton kernel; programs that share blocks run one after another, so that these are still in the cache."
# baseline = "torch-bf16"
# builds_on = "torch-bf16"
# set = { type = "bfloat16" }
# needs = { packages = ["torch>=2.5", "triton>=3.0"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "triton-int8"
# note = "The same kernel on int8, with an int32 tile."
# baseline = "triton-bf16"
# builds_on = "triton-bf16"
# set = { type = "int8" }
# needs = { packages = ["torch>=2.5", "triton>=3.0"], without = ["jax"] }
# [[tool.tuiprof.variants]]
# name = "pallas-mosaic-bf16"
# note = "A Pallas kernel for Hopper through Mosaic GPU, which JAX recommends: blocks in a pipeline, and wgmma on them."
# builds_on = "pallas-triton-bf16"
# set = { type = "bfloat16" }
# needs = { packages = ["jax>=0.10", "absl-py"], without = ["jax"], jax_device = true }
# [[tool.tuiprof.variants]]
# name = "pallas-mosaic-int8"
# note = "The same kernel on int8, with an int32 tile."
# baseline = "pallas-mosaic-bf16"
# builds_on = "pallas-mosaic-bf16"
# set = { type = "int8" }
# needs = { packages = ["jax>=0.10", "absl-py"], without = ["jax"], jax_device = true }
# [[tool.tuiprof.variants]]
# name = "triton-4-warps-bf16"
# note = "The Triton kernel with four warps, not eight: a thread has 256 sums and 255 registers, so that they spill."
# baseline = "triton-bf16"
# builds_on = "triton-bf16"
# set = { type = "bfloat16" }
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.5", "triton>=3.0"]
# without = ["jax"]
# device = "cuda"
# why = "Triton's interpreter has no warps"
# [[tool.tuiprof.variants]]
# name = "triton-autotuned-bf16"
# note = "The Triton kernel with tiles, warps and stages chosen by trying seven sets on the first call."
# baseline = "triton-bf16"
# builds_on = "triton-bf16"
# set = { type = "bfloat16" }
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.5", "triton>=3.0"]
# without = ["jax"]
# device = "cuda"
# why = "Triton's interpreter has no speed to choose by"
# [[tool.tuiprof.variants]]
# name = "triton-autotuned-int8"
# note = "The same choice for int8."
# baseline = "triton-int8"
# builds_on = "triton-int8"
# set = { type = "int8" }
# [tool.tuiprof.variants.needs]
# packages = ["torch>=2.5", "triton>=3.0"]
# without = ["jax"]
# device = "cuda"
# why = "Triton's interpreter has no speed to choose by"
# ///
"""A matrix product in int8: ``python scenarios/matmul_int8.py --help`` tells the story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

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

ROWS = 32  # of the product are compared with NumPy's, which would take hours for all
#: bfloat16 has 8 significant bits: rounding the sum once is at most 0.4 % off, on average half of that.
TOLERANCE = {"bfloat16": 4e-3, "int8": 0}


def random_matrices(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two int8 matrices ``[size, size]`` of every value that int8 has; bfloat16 holds them exactly too."""
    import numpy as np

    random = np.random.default_rng(seed)
    return random.integers(-128, 128, (size, size), np.int8), random.integers(
        -128, 128, (size, size), np.int8
    )


def kernel(run: scenario.Run, a: np.ndarray, b: np.ndarray) -> Kernel:
    """Return the variant's kernel with its inputs in place."""
    name, kind, size = run.variant["name"], run.set["type"], run.size
    method = name.removesuffix("-bf16").removesuffix("-int8")
    if method.startswith(("torch", "triton")):
        from matmul_int8 import in_torch

        function, arguments, clock = in_torch.prepared(method, kind, a, b, tuple(size.gpu_block))
    else:
        from matmul_int8 import in_jax

        block = tuple(size.tpu_block if method == "pallas" else size.gpu_block)
        function, arguments, clock = in_jax.prepared(method, kind, a, b, block)
    element, output = {"bfloat16": (2, 2), "int8": (1, 4)}[kind]
    work = Work(size.size**2 * (2 * element + output), 2 * size.size**3, kind)
    return Kernel(function, arguments, clock, work)


def train(run: scenario.Run) -> Measured:
    """Time the variant."""
    return measure(run, kernel(run, *random_matrices(run.size.size, run.seed)))


def check(run: scenario.Run) -> Check:
    """Hold rows of the product to NumPy's in float64, which is exact: int8 number for number, bfloat16 to rounding."""
    import numpy as np
    from common.check import Check

    kind, checked = run.set["type"], Check("NumPy in float64")
    a, b = random_matrices(run.size.size, run.seed)
    a[0], b[:, 0] = -128, -128  # the largest sum there is
    call = kernel(run, a, b)
    output = call()
    call.clock.wait(output)
    rows = np.linspace(0, run.size.size - 1, ROWS).astype(int)  # the first and the last are among them
    want = a[rows].astype(np.float64) @ b.astype(np.float64)
    checked.close("rows of the product", output[rows], want, TOLERANCE[kind])
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
