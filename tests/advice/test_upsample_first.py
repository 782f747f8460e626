"""Images that are enlarged before a pointwise convolution."""

from __future__ import annotations

from typing import Any

import pytest
from advice.host_ahead import Steps
from analyses.made import with_arguments
from findings import finding, found

from tuiprof.model import Trace

BACKWARD = 1
NODE = "autograd::engine::evaluate_function: "
IMAGE = (
    "void at::native::(anonymous namespace)::upsample_bilinear2d_{}nhwc_out_frame<float, float>(float, int)"
)
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(float)>(int)"
BIAS = "void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
RELU = "void at::native::vectorized_elementwise_kernel<8, at::native::clamp_scalar>(int)"
PRODUCT = "nvjet_sm90_tst_16x384_64x4_1x2_h_bz_TNN"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
#: Elements of the large image: 8 of 256 channels, 256 × 256 pixels, enlarged 16 times.
LARGE = 8 * 256 * 256 * 256


def enlarged(
    kernel: str = PRODUCT,
    between: str = "",
    after: str = "aten::to",
    gradients: float = 0.0,
    out: int = 16,
    cast: int = LARGE,
    enlarges: int = 16,
) -> Trace:
    """Steps that interpolate 256 channels and convolve them into ``out``."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", (("gemm", 1000.0),))
        steps.op("aten::upsample_bilinear2d", ((IMAGE.format(""), 1000.0),), sequence=1)
        if between:
            steps.op(between, ((RELU, 100.0),))
        steps.op("aten::conv2d", ((CAST, 200.0), (kernel, 160.0), (BIAS, 40.0)), sequence=2)
        steps.op(after, (("other", 10.0),))
        steps.op(
            NODE + "ConvolutionBackward0", ((kernel, 400.0), (ADD, gradients)), sequence=2, track=BACKWARD
        )
        work = ((FILL, 10.0), (IMAGE.format("backward_"), 990.0))
        steps.op(NODE + "UpsampleBilinear2DBackward0", work, sequence=1, track=BACKWARD)
    trace = steps.trace()
    names = dict(
        zip(trace.ints("ordinal", range(len(trace))), map(trace.name, range(len(trace))), strict=True)
    )
    blocks = {
        FILL: LARGE // enlarges // 1024,
        CAST: cast // 1024,
        BIAS: LARGE * out // 256 // 512,
        IMAGE.format(""): LARGE // 1024,
        IMAGE.format("backward_"): LARGE // 1024,
    }

    def arguments(ordinal: int) -> dict[str, Any]:
        name = names[ordinal]
        return {"grid": [blocks.get(name, 0), 1, 1], "block": [1024 if "upsample" in name else 128, 1, 1]}

    return with_arguments(trace, arguments)


def test_few_channels_are_interpolated_after_the_convolution() -> None:
    row = found(enlarged(), "upsample-first")
    assert row["what"].startswith(
        "an image is enlarged 16 times before a pointwise convolution that leaves 1 of 16 channels"
    )
    assert row["sure"] == "medium"
    # Both shares are a sixteenth; twice as much is assumed to stay of 2.8 ms, once to six times at the limits.
    assert row["wins_ns"] == pytest.approx((1 - 2 / 16) * 2_800_000, rel=0.01)
    assert row["wins_low_ns"] <= (1 - 6 / 16) * 2_800_000
    assert row["wins_high_ns"] >= (1 - 1 / 16) * 2_800_000


@pytest.mark.parametrize(
    "trace",
    [
        enlarged(CONVOLUTION),
        enlarged(between="aten::relu"),
        enlarged(after="aten::cat"),
        enlarged(gradients=300.0),
        enlarged(out=200),
        enlarged(cast=LARGE // 4),
        enlarged(enlarges=1),
    ],
    ids=["wide", "activation", "joined", "used twice", "many channels", "another image", "not enlarged"],
)
def test_what_does_not_commute_or_is_no_cheaper_stays(trace: Trace) -> None:
    assert finding(trace, "upsample-first") is None


def shaped(weight: list[int], image: list[int], kernel: str = CONVOLUTION) -> Trace:
    """The same with shapes, forward only."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", (("gemm", 1000.0),), dims=[])
        dims: list[Any] = [[8, 256, 64, 64], [], [], [], []]
        steps.op("aten::upsample_bilinear2d", ((IMAGE.format(""), 1000.0),), dims=dims)
        steps.op("aten::conv2d", ((kernel, 600.0),), dims=[image, weight, [weight[0]]])
    return steps.trace()


def test_recorded_shapes_tell_whatever_the_kernel() -> None:
    row = found(shaped([32, 256, 1, 1], [8, 256, 256, 256]), "upsample-first")
    assert "enlarged 16 times" in row["what"]
    assert "1 of 8 channels" in row["what"]
    assert row["sure"] == "high"
    assert row["wins_ns"] == pytest.approx((1 - 2 / 8) * 1_000_000 + (1 - 2 / 16) * 600_000, rel=0.01)


@pytest.mark.parametrize(
    ("weight", "image"),
    [
        ([32, 256, 3, 3], [8, 256, 256, 256]),
        ([256, 256, 1, 1], [8, 256, 256, 256]),
        ([32, 64, 1, 1], [8, 64, 256, 256]),
        ([32, 128, 1, 1], [8, 256, 256, 256]),
        ([32, 256, 1, 1], [8, 256, 64, 64]),
    ],
    ids=["3 × 3", "as many channels", "another image", "groups", "not enlarged"],
)
def test_recorded_shapes_of_other_convolutions(weight: list[int], image: list[int]) -> None:
    assert finding(shaped(weight, image, PRODUCT), "upsample-first") is None
