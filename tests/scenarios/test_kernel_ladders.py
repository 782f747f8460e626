"""The ladders of kernels: what their references compute, how calls are timed, and that kernels compile for their chips.

Triton's and Pallas's kernels are interpreted on a CPU; that they can be compiled for a chip that is not here is proved
by lowering them for it.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import SCENARIOS, forget, load


@pytest.fixture(autouse=True)
def scenarios(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the scripts and what they share be imported, and forget them after the test."""
    monkeypatch.syspath_prepend(str(SCENARIOS))
    before = set(sys.modules)
    yield
    forget(before)


def area(box: list[Fraction]) -> Fraction:
    return max(box[2] - box[0], Fraction(0)) * max(box[3] - box[1], Fraction(0))


def test_numpys_suppression_is_the_definition_in_exact_arithmetic() -> None:
    nms = load("nms")
    boxes, scores = nms.random_boxes(128, 1024, seed=5)
    kept = nms.suppress(boxes, scores, 0.1, 20)

    exact = [[Fraction(float(edge)) for edge in box] for box in boxes]
    left = sorted(range(128), key=lambda index: (-scores[index], index))
    want = []
    while left:
        best, *left = left
        want.append(best)
        a = exact[best]
        for index in list(left):
            b = exact[index]
            shared = area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])
            if shared > Fraction(1, 10) * (area(a) + area(b) - shared):
                left.remove(index)
    assert kept.tolist() == (want + [-1] * 20)[:20]
    assert len(want) > 5


def test_boxes_are_exact_in_bfloat16_and_scores_leave_room_for_an_index() -> None:
    nms = load("nms")
    boxes, scores = nms.random_boxes(1024, 1024, seed=0)
    assert not (boxes.view(np.uint32) & 0xFFFF).any()
    assert not (scores.view(np.uint32) & 1023).any()
    assert (boxes == np.round(boxes)).all()
    kept = nms.suppress(boxes, scores, 0.1, 128)
    assert 20 < (kept >= 0).sum() <= 128
    assert len(set(scores)) < 1024, "no two scores are equal: that the lower index wins is not tested"


def test_scores_of_boxes_that_can_be_told_by_hand() -> None:
    from giou_kernel.score import in_numpy

    first = np.array([[0, 0, 2, 2], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 2, 2]], np.float64)
    second = np.array([[0, 0, 2, 2], [3, 0, 4, 1], [1, 0, 3, 2], [2, 2, 0, 0]], np.float64)
    # Equal; apart, with half of the hull empty; a third shared; inside out, so without any area.
    want = [1, -0.5, 1 / 3, 0]
    assert in_numpy(first, second) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("count", [1, 4, 20, 101])
def test_the_interval_of_a_timing_holds_its_median(count: int) -> None:
    from common.kernels import Timing

    draw = random.Random(count)
    held = 0
    for _ in range(400):
        timing = Timing.of([draw.expovariate(1.0) for _ in range(count)])
        assert timing.low_ms <= timing.median_ms <= timing.high_ms
        held += timing.low_ms <= 0.693147 <= timing.high_ms
    if count >= 20:  # fewer cannot hold it that often
        assert held >= 0.92 * 400


def test_a_kernel_is_called_once_a_step_and_fewer_times_the_longer_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from types import SimpleNamespace

    from common import kernels
    from common.clocks import Clock

    calls = []
    steps = []
    monkeypatch.setattr(kernels, "tuiprof", SimpleNamespace(step=lambda: steps.append(len(calls))))
    monkeypatch.setattr(kernels, "LONGEST_S", 0.0)
    kernel = kernels.Kernel(calls.append, (1,), Clock("toy"), kernels.Work(12, 34, "int8"))
    run: Any = SimpleNamespace(steps=3, warmup=1, size=SimpleNamespace(calls=1000))
    measured = kernels.measure(run, kernel, {"twice": lambda: calls.extend((1, 1))})
    assert steps == [1, 2, 3]
    result = measured.result()
    assert result["kernel"]["warm_ms"]["calls"] == 5  # the least
    assert set(result["kernel"]["not_measured"]) == {"cold", "replayed"}
    assert set(result["ranges_ms"]) == {"twice"}
    assert (result["kernel"]["moved_bytes"], result["device"]) == (12, "toy")


def test_a_difference_is_told_by_its_size_whatever_it_is_stored_in() -> None:
    from common.check import Check

    check = Check("NumPy")
    check.close("same", [1, 2], np.array([1, 2], np.int8), 0)
    check.close("near", np.float32([1.0, 1.0]), [1.0, 1.1], 0.1)
    assert check.ok
    check.close("number for number", np.array([127, 1]), np.array([127, 2]), 0)
    assert not check.ok
    assert "NOT the same" in str(check).splitlines()[-1]
    with pytest.raises(ValueError, match="shapes"):
        check.close("shape", [1], [1, 2], 0)


def lowered(function: Any, platform: str, *shapes: Any) -> str:
    """Return the program that JAX makes of a function for another platform."""
    import jax

    calls = ("__gpu$xla.gpu.triton", "mosaic_gpu_v2")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(call) for call in calls]
    exported = jax.export.export(jax.jit(function), platforms=[platform], disabled_checks=allowed)
    return str(exported(*shapes).mlir_module())


CHIPS = {"tpu": "tpu_custom_call", "cuda": "__gpu$xla.gpu.triton"}


@pytest.mark.parametrize("platform", CHIPS)
def test_suppression_compiles_for(platform: str) -> None:
    jax = pytest.importorskip("jax")
    from nms import in_jax

    kernel = {"tpu": in_jax.tpu_kernel, "cuda": in_jax.gpu_kernel}[platform]
    function = functools.partial(kernel, threshold=0.1, most=128, interpret=False)
    shapes = jax.ShapeDtypeStruct((1024, 4), "bfloat16"), jax.ShapeDtypeStruct((1024,), "float32")
    assert CHIPS[platform] in lowered(function, platform, *shapes)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("platform", CHIPS)
def test_the_product_compiles_for(platform: str, kind: str) -> None:
    jax = pytest.importorskip("jax")
    from matmul_int8 import in_jax

    kernel, block = {
        "tpu": (in_jax.tpu_kernel, (512, 1024, 1024)),
        "cuda": (in_jax.gpu_kernel, (128, 256)),
    }[platform]
    function = functools.partial(kernel, block=block, interpret=False)
    program = lowered(function, platform, *[jax.ShapeDtypeStruct((8192, 8192), kind)] * 2)
    assert CHIPS[platform] in program
    assert ("8192x8192xi32" if kind == "int8" else "8192x8192xbf16") in program


@pytest.mark.parametrize("platform", CHIPS)
def test_the_score_compiles_for(platform: str) -> None:
    jax = pytest.importorskip("jax")
    from giou_kernel import score_jax

    method = {"tpu": "pallas", "cuda": "pallas-triton"}[platform]
    function = functools.partial(score_jax.in_blocks, method=method, interpret=False)
    program = lowered(function, platform, *[jax.ShapeDtypeStruct((1024, 256), "float32")] * 8)
    assert CHIPS[platform] in program


def test_kernels_compile_for_hopper_through_mosaic() -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("absl", reason="Mosaic GPU needs absl-py")
    from giou_kernel import score_mosaic
    from matmul_int8 import in_mosaic
    from nms import in_mosaic as nms_mosaic

    shape = jax.ShapeDtypeStruct
    programs = [lowered(score_mosaic.in_blocks, "cuda", *[shape((1024, 256), "float32")] * 8)]
    kinds, suppress = ("bfloat16", "int8"), functools.partial(nms_mosaic.suppress, threshold=0.1, most=128)
    programs += [lowered(in_mosaic.product, "cuda", *[shape((8192, 8192), kind)] * 2) for kind in kinds]
    programs += [
        lowered(suppress, "cuda", shape((count, 4), "bfloat16"), shape((count,), "float32"))
        for count in (256, 1024)
    ]
    assert all("@mosaic_gpu_v2" in program for program in programs)
    assert "8192x8192xi32" in programs[2]


def test_tpu_kernels_stay_within_their_buffers() -> None:
    """Pallas's interpreter for TPUs fails on reads beyond a buffer, and gives NaN for memory nobody has written."""
    pytest.importorskip("jax")
    import jax.numpy as jnp
    import matmul_int8.in_jax
    import nms.in_jax
    from jax.experimental.pallas import tpu as pltpu

    script = load("nms")
    strict = pltpu.InterpretParams(out_of_bounds_reads="raise", uninitialized_memory="nan")
    a, b = load("matmul_int8").random_matrices(128, seed=1)
    product = matmul_int8.in_jax.tpu_kernel(*map(jnp.asarray, (a, b)), block=(64, 128, 64), interpret=strict)
    assert (np.asarray(product) == a.astype(np.int64) @ b.astype(np.int64)).all()

    boxes, scores = script.random_boxes(256, 1024, seed=1)
    kept = nms.in_jax.tpu_kernel(
        jnp.asarray(boxes, "bfloat16"), jnp.asarray(scores), threshold=0.1, most=8, interpret=strict
    )
    assert (np.asarray(kept) == script.suppress(boxes, scores, 0.1, 8)).all()


def ptx(kernel: Any, types: dict[str, str], fixed: dict[str, Any], warps: int, stages: int = 1) -> str:
    """Return what Triton makes of a kernel for a Hopper GPU; tensors begin at whole lines, as torch's do."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    aligned = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={(names.index(name),): aligned for name in types if name != "epsilon"},
    )
    options = {"num_warps": warps, "num_stages": stages}
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


@pytest.fixture
def compiled_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernels made to be compiled, as on a machine with a GPU."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where nothing is chosen
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


EDGE_CASES = """
import runpy
from giou_loss import loss_triton
from nms import in_triton
import torch

padded = runpy.run_path("giou_loss.py")["padded"]
random = torch.Generator().manual_seed(0)
for batch, boxes in ((5, 7), (1, 1), (4, 0), (0, 4)):
    target = torch.rand(batch, boxes, 4, generator=random)
    counts = torch.randint(0, boxes + 1, (batch, 2), generator=random)[:, 0]
    predicted = torch.rand(boxes, batch, 4, generator=random).transpose(0, 1)
    ours, plain = (predicted.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    loss, want = loss_triton.loss(ours, target, counts), padded(plain, target, counts)
    (3 * loss).backward()
    (3 * want).backward()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(ours.grad, plain.grad)

nms = runpy.run_path("nms.py")
boxes, scores = nms["random_boxes"](128, 1024, seed=3)
by_edge = torch.from_numpy(boxes).bfloat16().T.contiguous().T
kept = in_triton.suppress(by_edge, torch.from_numpy(scores), threshold=0.1, most=20)
assert kept.tolist() == nms["suppress"](boxes, scores, 0.1, 20).tolist()
"""


def test_triton_kernels_take_empty_and_strided_inputs() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("here they are not interpreted")
    # In a process of its own: Triton must not have been imported before it is told to interpret.
    environment = {**os.environ, "PYTHONPATH": str(SCENARIOS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EDGE_CASES]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=SCENARIOS
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("compiled_triton")
def test_a_gpu_loads_boxes_whole() -> None:
    from giou_kernel import score_triton
    from giou_loss import loss_triton

    types = {"first": "*fp32", "second": "*fp32", "scores": "*fp32", "pairs": "i32", "epsilon": "fp32"}
    program = ptx(score_triton._kernel, types, {"BLOCK": 512}, warps=4)
    assert program.count("ld.global.v4") == program.count("ld.global") == 8

    types = {"predicted": "*bf16", "target": "*fp32", "counts": "*i32", "total": "*fp32", "outer": "*fp32"}
    types |= {"gradients": "*bf16", "boxes": "i32", "epsilon": "fp32"}
    program = ptx(loss_triton._gradient_kernel, types, {"BLOCK": 256}, warps=4)
    assert program.count("ld.global.v4") == 2
    assert program.count("st.global.v4") == program.count("st.global") == 1

    names = ("sums", "total", "loss")
    types = {"predicted": "*bf16", "target": "*fp32", "counts": "*i32", "ticket": "*i32", "epsilon": "fp32"}
    types |= {**dict.fromkeys(names, "*fp32"), "batch": "i32", "boxes": "i32"}
    program = ptx(loss_triton._loss_kernel, types, {"BLOCK": 256, "BATCH": 1024, "FINISH": True}, warps=4)
    assert "atom.global" in program


@pytest.mark.usefixtures("compiled_triton")
@pytest.mark.parametrize(("kind", "output", "step"), [("bf16", "bf16", 64), ("i8", "i32", 128)])
def test_a_gpu_multiplies_in_its_matrix_units(kind: str, output: str, step: int) -> None:
    from matmul_int8 import in_triton

    types = {"a": f"*{kind}", "b": f"*{kind}", "product": f"*{output}"}
    fixed = {
        "M": 8192,
        "N": 8192,
        "K": 8192,
        "ROWS": 128,
        "COLUMNS": 256,
        "STEP": step,
        "TOGETHER": 8,
        "WIDEN": False,
    }
    program = ptx(in_triton._kernel, types, fixed, warps=8, stages=4)
    assert {"i8": "s32.s8.s8", "bf16": "f32.bf16.bf16"}[kind] in program
    assert "wgmma.mma_async" in program


@pytest.mark.slow
@pytest.mark.parametrize("source", ["giou_loss/giou.cu", "giou_kernel/giou.cu"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_cuda_sources_compile(tmp_path: Path, source: str, architecture: str) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    command = [
        nvcc,
        "-std=c++17",
        f"-arch={architecture}",
        "-Werror",
        "all-warnings",
        "-c",
        str(SCENARIOS / source),
    ]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out.o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_operator_compiles_against_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    from torch.utils.cpp_extension import include_paths

    source = SCENARIOS / "giou_kernel" / "operator.cpp"
    headers = [flag for path in include_paths() for flag in ("-isystem", path)]
    command = ["g++", "-std=c++20", "-O0", "-fPIC", "-Wall", "-Werror", *headers, "-c", str(source)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out.o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
