"""Adapters that are added to frozen weights in each call."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tuiprof.model import Trace
from tuiprof.model.trace import DeviceInfo

AUTOGRAD = "autograd::engine::evaluate_function"
ACCUMULATE = f"{AUTOGRAD}: torch::autograd::AccumulateGrad"
GEMM, ELEMENTWISE = (
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNT",
    "void at::native::vectorized_elementwise_kernel<4>",
)


def adapted(
    *,
    trained: bool = False,
    gradients: int = 2,
    bias: bool = False,
    adds: str = "add",
    layer_us: float = 100,
    device: str = "NVIDIA H200",
) -> Trace:
    """Steps of 20 layers whose weight is made by a product, a factor and an addition, and their backward pass."""
    steps = Steps()
    for _ in steps.each():
        for first in range(0, 80, 4):
            steps.op("aten::matmul", ((GEMM, 5),), sequence=first)
            steps.op("aten::mul", ((ELEMENTWISE, 4),), sequence=first + 1)
            steps.op(f"aten::{adds}", ((ELEMENTWISE, 6),), sequence=first + 2)
            steps.op("aten::linear", ((GEMM, layer_us),), sequence=first + 3)
        for first in reversed(range(0, 80, 4)):
            both = ((GEMM, layer_us),) * gradients
            steps.op(f"{AUTOGRAD}: MmBackward0", both, sequence=first + 3, track=BACKWARD)
            if bias:
                steps.op(ACCUMULATE, inside="aten::detach", track=BACKWARD)
            steps.op(f"{AUTOGRAD}: TBackward0", sequence=first + 3, track=BACKWARD)
            steps.op(f"{AUTOGRAD}: AddBackward0", sequence=first + 2, track=BACKWARD)
            if trained:
                steps.op(ACCUMULATE, inside="aten::detach", track=BACKWARD)
            steps.op(f"{AUTOGRAD}: MulBackward0", ((ELEMENTWISE, 5),), sequence=first + 1, track=BACKWARD)
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 6), (GEMM, 6)), sequence=first, track=BACKWARD)
            for _ in range(2):
                steps.op(ACCUMULATE, inside="aten::detach", track=BACKWARD)
    return steps.made.trace(devices=(DeviceInfo(0, device),))


@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_is_applied_to_the_input(bias: bool) -> None:
    row = found(adapted(bias=bias), "merged-adapters")
    assert "20 times a step" in row["what"]
    assert "F.linear(F.linear(x, A), B)" in row["instead"]
    # Of the gradient of the weight and of what makes it, less the passes of two narrow products: the addition of 6 µs
    # moves three times 4.1 million values, and the layer multiplies them with 8 300 rows, of 2020 values each.
    weight = 6e-6 * 0.85 * 4.8e12 / 6
    rows = 100e-6 * 0.7 * 989.4e12 / (2 * weight)
    passes_us = 6 * 2 * rows * weight**0.5 * 2 / (0.85 * 4.8e12) * 1e6
    saved_us = 100 + 5 + 4 + 6 + 5 + 12 - passes_us
    assert 20 < saved_us < 50
    assert row["wins_ns"] == pytest.approx(20 * saved_us * 1000, rel=0.03)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(adapted(trained=True), id="the weight learns, too"),
        pytest.param(adapted(gradients=1), id="the weight has no gradient"),
        pytest.param(adapted(adds="where"), id="it is no addition"),
        pytest.param(adapted(device="unknown"), id="an unknown chip"),
    ],
)
def test_weights_that_may_have_to_be_made(trace: Trace) -> None:
    assert finding(trace, "merged-adapters") is None
