"""Filters of images with large kernels that nothing trains, on tiny traces with shapes, and on a recorded loss."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from analyses.made import with_arguments
from hypothesis import given
from hypothesis import strategies as st
from installed import needs

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tests.advice.products.one_step import Call, step_of
from tuiprof.formats.open import open_file
from tuiprof.model import DeviceInfo, Trace


def blur(*kernel: int, channels: int = 3, each: int = 1, outputs: int = 0, bias: int = 0) -> Call:
    """Return a convolution of a batch of images."""
    image = [8, channels, *[64] * len(kernel)]
    dims = [image, [outputs or channels, each, *kernel], [bias] if bias else []]
    return f"conv{len(kernel)}d", dims, [], 1000


def test_a_dense_blur_is_two_of_one_dimension() -> None:
    row = found(step_of(blur(23, 23)), "separable-kernel")
    assert "images are filtered with a kernel of 23 × 23 that nothing trains, every step" in row["what"]
    assert "filter with 1 × 23 and then with 23 × 1" in row["instead"]
    assert row["wins_ns"] == pytest.approx(1e6 * (1 - 2 * (23 + 50) / (23 * 23 + 50)), rel=0.02)
    assert 0 < row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


@given(st.lists(st.integers(1, 35), min_size=2, max_size=3))
def test_the_saving_follows_from_the_operations(kernel: list[int]) -> None:
    row = finding(step_of(blur(*kernel)), "separable-kernel")
    stays = sum(size + 50 for size in kernel) / (prod(kernel) + 50)
    if min(kernel) < 7 or stays > 0.8:
        assert row is None
    else:
        assert row is not None
        assert row["wins_ns"] == pytest.approx(1e6 * (1 - stays), rel=0.02)


def test_several_are_one_finding() -> None:
    """As for the means and variances of a structural similarity."""
    windows = [blur(11, 11), blur(11, 11), blur(15, 15), blur(11, 11, channels=1)]
    row = found(step_of(*windows), "separable-kernel")
    assert "kernel of 15 × 15" in row["what"]
    assert "4 times a step" in row["what"]


def test_memory_is_read_and_written_at_least_twice() -> None:
    call: Call = ("conv2d", [[1024, 3, 256, 256], [3, 1, 31, 31]], [], 1000)
    steps = Steps()
    for _ in steps.each():
        steps.op(f"aten::{call[0]}", (("conv_depthwise2d_forward_kernel_generic", 1000),), dims=call[1])
    row = found(steps.trace(devices=(DeviceInfo(0, "NVIDIA H200"),)), "separable-kernel")
    passes_ns = 2 * 2 * 4 * prod(call[1][0]) / 4800
    assert row["wins_ns"] == pytest.approx(1e6 - passes_ns, rel=0.02)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(blur(7, 7), id="as fast"),
        pytest.param(blur(1, 23), id="of one dimension"),
        pytest.param(blur(23, 23, channels=96), id="a layer with a large kernel"),
        pytest.param(blur(23, 23, each=3), id="of all channels"),
        pytest.param(blur(23, 23, channels=1, outputs=8), id="a bank of filters"),
        pytest.param(blur(23, 23, bias=3), id="a layer with a bias"),
        pytest.param(("conv2d", [[8, 3, 64, 64]], [], 1000), id="damaged"),
        pytest.param(("conv1d", [[8, 3, 6400], [3, 1, 401]], [], 1000), id="a signal"),
    ],
)
def test_others_are_none(call: Call) -> None:
    assert finding(step_of(call), "separable-kernel") is None


def test_without_shapes_nothing_is_advised() -> None:
    assert finding(step_of(blur(23, 23), shapes=False), "separable-kernel") is None


def with_gradients(wanted: str, channels: int, *, beside: bool = False) -> Trace:
    """Steps with a filter, and a backward pass that computes these gradients; beside it one that has none."""
    steps = Steps()
    for number in steps.each():
        if beside:
            steps.op("aten::conv2d", (("conv", 1000),))
        steps.op("aten::conv2d", (("conv", 1000),), sequence=number)
        node = "autograd::engine::evaluate_function: ConvolutionBackward0"
        steps.op(node, (("dgrad", 1000),), inside="aten::convolution_backward", sequence=number)
    trace = steps.trace()
    name_of = dict(zip(trace.ints("ordinal").tolist(), map(trace.name, range(len(trace))), strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        image, kernel = [8, channels, 64, 64], [channels, 1, 23, 23]
        if name_of[ordinal] == "aten::conv2d":
            return {"Input Dims": [image, kernel, []]}
        if name_of[ordinal] == "aten::convolution_backward":
            return {"Input Dims": [image, image, kernel], "Concrete Inputs": ["", "", "", wanted]}
        return {}

    return with_arguments(trace, arguments)


@pytest.mark.parametrize(
    ("wanted", "channels", "advised"),
    [
        ("[True, False, False]", 3, True),
        ("[True, False, False]", 96, False),  # a frozen layer
        ("[True, True, False]", 3, False),
        ("[False, True, False]", 3, False),
        ("", 3, False),
    ],
)
def test_a_kernel_with_a_gradient_is_trained(wanted: str, channels: int, advised: bool) -> None:
    row = finding(with_gradients(wanted, channels), "separable-kernel")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(2e6 * (1 - 2 * (23 + 50) / (23 * 23 + 50)), rel=0.02)


@pytest.mark.parametrize(
    ("wanted", "advised"), [("[True, False, False]", True), ("[True, True, False]", False)]
)
def test_a_copy_of_a_trained_layer_is_a_layer(wanted: str, advised: bool) -> None:
    """A teacher, or the same model without gradients."""
    row = finding(with_gradients(wanted, 3, beside=True), "separable-kernel")
    assert (row is not None) == advised


SIMILARITY = """
import sys, torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
window = torch.rand(3, 1, 15, 15)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.Conv2d(3, 3, 13, groups=3, bias=False))
image, wanted = torch.rand(4, 3, 64, 64), torch.rand(4, 3, 50, 50)
def mean(x): return F.conv2d(x, window, groups=3)
def step():
    x = model(image)
    m, n = mean(x), mean(wanted)
    v, w, c = mean(x * x) - m * m, mean(wanted * wanted) - n * n, mean(x * wanted) - m * n
    ((m * n + 1) * (c + 1) / ((m * m + n * n + 1) * (v + w + 1))).mean().backward()
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, schedule=schedule(wait=1, warmup=1, active=2)
) as prof:
    for _ in range(4):
        step()
        prof.step()
prof.export_chrome_trace(sys.argv[1])
"""


def test_the_windows_of_a_recorded_similarity(tmp_path: Path) -> None:
    """Its two layers are trained, one of them with as large a kernel."""
    needs("torch")
    path = tmp_path / "similarity.pt.trace.json"
    subprocess.run([sys.executable, "-c", SIMILARITY, str(path)], check=True, capture_output=True)
    row = found(open_file(path), "separable-kernel")
    assert "kernel of 15 × 15 that nothing trains, 5 times a step" in row["what"]
