"""Rules one by one, each on a tiny trace that has its cause, and on one that nearly has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from analyses.made import BACKWARD, MAIN, OTHER_STREAM, Made, in_session, report, with_arguments
from findings import finding, found
from host_ahead import Op, Steps, gpu_bound, with_shapes

from tuiprof.advice import advise
from tuiprof.advice.finding import Evidence
from tuiprof.advice.gradients import unused_graph
from tuiprof.advice.kernels import elementwise_chain
from tuiprof.advice.waits import pageable_memory
from tuiprof.analyses import run
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.formatting import formatted
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.formats import open_trace
from tuiprof.model import DeviceInfo, Report, Trace
from tuiprof.model.steps import Collections, PageFaults, SampledLine, Uncaptured, Weights

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<Mul>>"
UNARY = "void at::native::vectorized_elementwise_kernel<4, tanh_kernel_cuda>"
REDUCE = "void at::native::reduce_kernel<512, 1, MeanOps>"
TO_BFLOAT16 = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda>"
SOFTMAX = "void cunn_SoftMaxForward<8>"
MULTI_TENSOR = "void at::native::multi_tensor_apply_kernel<{}>"

AUTOGRAD = "autograd::engine::evaluate_function"


def attention(*between: Op) -> Sequence[Op]:
    return (
        ("aten::linear", GEMM, 300),
        ("aten::matmul", GEMM, 100),
        ("aten::div", ELEMENTWISE, 200),
        *between,
        ("aten::softmax", SOFTMAX, 200),
        ("aten::matmul", GEMM, 100),
        ("aten::linear", GEMM, 300),
    )


def test_attention_written_out_leaves_half_of_its_products_and_nothing_else() -> None:
    row = found(gpu_bound(*attention()), "unfused-attention")
    # Of 600 µs, 55 % of the 200 of the products stay.
    assert row["wins_ns"] == pytest.approx(490_000, rel=0.01)
    assert row["wins_low_ns"] < 490_000 < row["wins_high_ns"]
    assert "is_causal" not in row["instead"]


def test_fused_attention_needs_no_scaled_queries_and_no_copy_of_the_heads() -> None:
    before, *inner, after = attention()
    scaled: Op = ("aten::mul", ELEMENTWISE, 30)
    ops = (before, scaled, *inner, ("aten::reshape", UNARY, 40), after)
    row = found(gpu_bound(*ops), "unfused-attention")
    assert row["wins_ns"] == pytest.approx(490_000 + 70_000, rel=0.01)


def test_a_causal_mask_leaves_less_of_the_products() -> None:
    mask: Op = ("aten::masked_fill", ELEMENTWISE, 200)
    row = found(gpu_bound(*attention(("aten::tril", UNARY, 1), mask)), "unfused-attention")
    assert row["wins_ns"] == pytest.approx(200_000 + 1_000 + 400_000 + 120_000, rel=0.01)
    assert "is_causal=True" in row["instead"]


@pytest.mark.parametrize("learned", [True, False])
def test_the_gradient_of_a_learned_bias_is_as_large_as_the_scores(learned: bool) -> None:
    steps, ops = Steps(), attention(("aten::add", ELEMENTWISE, 100))
    for _ in steps.each():
        for index, (operator, kernel, works) in enumerate(ops):
            steps.op(operator, ((kernel, works),), sequence=index)
        # The gradients of a bias are added up; a constant mask has none, but may be of another type.
        gradient = (REDUCE if learned else UNARY, 50.0)
        steps.op(f"{AUTOGRAD}: AddBackward0", (gradient,), sequence=3, track=BACKWARD)
    row = found(steps.trace(), "unfused-attention")
    # Products of 200 µs, of which the fused kernel takes 240 or 55 %; the rest disappears.
    saved = 200 + 200 + 100 + 200 + 50 - (480 if learned else 110)
    assert row["wins_ns"] == pytest.approx(saved * 1000, rel=0.01)
    assert ("bias.contiguous()" in row["instead"]) == learned


@pytest.mark.parametrize(
    ("kernels", "twice", "saved_us"),
    [
        (((GEMM, 200), (SOFTMAX, 300), (GEMM, 200)), False, 300 + 0.5 * 400),
        (((GEMM, 200), (SOFTMAX, 300), (GEMM, 200), (TO_BFLOAT16, 50)), False, 350 + 0.9 * 400),
        (((GEMM, 200), (SOFTMAX, 300), (GEMM, 200)), True, None),
    ],
)
def test_attention_that_no_fused_kernel_takes(
    kernels: tuple[tuple[str, float], ...], twice: bool, saved_us: float | None
) -> None:
    steps = Steps()
    for _ in steps.each():
        inside = "aten::_scaled_dot_product_attention_math"
        steps.op("aten::scaled_dot_product_attention", kernels, inside)
        if twice:
            steps.op(f"{AUTOGRAD}: SoftmaxBackwardDataBackward0", track=BACKWARD)
    if twice:
        assert finding(steps.trace(), "unfused-attention") is None, "fused kernels have no second derivative"
        return
    row = found(steps.trace(), "unfused-attention")
    assert "runs no fused kernel" in row["what"]
    assert saved_us is not None
    assert row["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.01)


def test_attention_over_few_channels_of_many_pixels_is_left_alone() -> None:
    products: list[Op] = [
        ("aten::matmul", GEMM, 300),
        ("aten::softmax", SOFTMAX, 10),
        ("aten::matmul", GEMM, 300),
    ]
    assert finding(gpu_bound(*products), "unfused-attention") is None


def test_a_softmax_with_another_layer_before_it_is_no_attention() -> None:
    layer: Op = ("aten::layer_norm", "void vectorized_layer_norm_kernel", 50)
    assert finding(gpu_bound(*attention(layer)), "unfused-attention") is None


NORM: Sequence[Op] = (
    ("aten::linear", GEMM, 300),
    ("aten::pow", UNARY, 100),
    ("aten::mean", REDUCE, 60),
    ("aten::add", UNARY, 5),
    ("aten::rsqrt", UNARY, 5),
    ("aten::mul", ELEMENTWISE, 150),
    ("aten::mul", ELEMENTWISE, 150),
)


def test_a_norm_written_out_is_one_pass() -> None:
    row = found(gpu_bound(*NORM), "unfused-norm")
    # A tensor takes 50 µs to pass (a third of a product's three); of 470 µs three passes stay.
    assert row["wins_ns"] == pytest.approx(470_000 - 150_000, rel=0.02)
    assert "pow → mean → add → rsqrt → mul → mul" in row["what"]
    assert finding(gpu_bound(*NORM), "elementwise-chain") is None, "it is told once"


def norm_of_rows(length: int, block: tuple[int, int] = (32, 16)) -> Trace:
    """Norms of 2 ** 24 values in rows of this length, as their kernels are launched."""
    broadcast = ("aten::mul", "void at::native::elementwise_kernel<128, 2, MulFunctor<float> >", 150.0)
    trace = gpu_bound(*NORM[:-2], broadcast, broadcast)
    names = dict(zip(trace.ints("ordinal").tolist(), map(trace.name, range(len(trace))), strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        if names[ordinal] == REDUCE:
            return {"grid": [2**24 // length // block[1], 1, 1], "block": [*block, 1]}
        return {"grid": [2**24 // 256, 1, 1], "block": [128, 1, 1]}

    return with_arguments(trace, arguments)


@pytest.mark.parametrize(
    ("length", "times"), [(4096, 1), (256, 1), (128, 140 / 128), (64, 70 / 64), (32, 70 / 32)]
)
def test_kernels_of_norms_take_longer_for_short_rows(length: int, times: float) -> None:
    row = found(norm_of_rows(length), "unfused-norm")
    assert row["wins_ns"] == pytest.approx(470_000 - times * 150_000, rel=0.02)
    compiled = length <= 64
    assert row["instead"].startswith("torch.compile" if compiled else "torch.nn.LayerNorm")
    assert (f"for rows of {length} values" in row["instead"]) == compiled


def test_rows_are_unknown_if_a_wide_block_shares_them() -> None:
    row = found(norm_of_rows(64, (512, 1)), "unfused-norm")
    assert row["wins_ns"] == pytest.approx(470_000 - 150_000, rel=0.02)


@pytest.mark.parametrize("square", ["aten::pow", "aten::mul"])
def test_a_norm_right_after_another_one_is_one_too(square: str) -> None:
    activation: Op = ("aten::silu", UNARY, 90)
    norm: Sequence[Op] = ((square, *NORM[1][1:]), *NORM[2:])
    row = found(gpu_bound(NORM[0], *norm, activation, *norm), "unfused-norm")
    assert "2 times a step" in row["what"]
    assert row["wins_ns"] == pytest.approx(2 * (470_000 - 150_000), rel=0.02)


def test_a_norm_with_a_mean_of_squared_differences_is_one() -> None:
    centered: Sequence[Op] = (
        ("aten::linear", GEMM, 300),
        ("aten::mean", REDUCE, 60),
        ("aten::sub", ELEMENTWISE, 150),
        *NORM[1:-1],
    )
    row = found(gpu_bound(*centered, *centered[1:]), "unfused-norm")
    assert "mean → sub → pow → mean → add → rsqrt → mul" in row["what"]
    assert "2 times a step" in row["what"]


def test_vectors_of_unit_length_have_no_layer_of_their_own() -> None:
    unit = [
        ("aten::linalg_vector_norm", REDUCE, 90.0),
        ("aten::clamp_min", ELEMENTWISE, 5.0),
        ("aten::div", ELEMENTWISE, 90.0),
    ]
    row = found(gpu_bound(NORM[0], *unit, *unit), "unfused-norm")
    assert "divided by their norm in 6 operators" in row["what"]
    assert row["instead"].startswith("torch.compile")


def test_a_mean_that_nothing_is_divided_by_is_no_norm() -> None:
    assert finding(gpu_bound(*NORM[:3], *NORM[3:4]), "unfused-norm") is None


@pytest.mark.parametrize(
    "names",
    [
        ("square", "sum", "add", "sqrt", "mul", "sin", "div"),
        ("linalg_vector_norm", "sub", "pow", "mul", "exp", "mul"),
        ("sum", "add", "sub", "pow", "mul"),
    ],
    ids=["waves of a distance", "Gaussians of a distance", "the square of a difference"],
)
def test_functions_of_a_distance_are_no_norm(names: tuple[str, ...]) -> None:
    reduces = ("sum", "linalg_vector_norm")
    ops = [(f"aten::{name}", REDUCE if name in reduces else ELEMENTWISE, 90.0) for name in names]
    assert finding(gpu_bound(NORM[0], *ops), "unfused-norm") is None


def test_a_norm_by_the_standard_deviation_may_be_followed_by_a_curve() -> None:
    names = ("mean", "sub", "std", "add", "div", "sin", "mul")
    ops = [(f"aten::{name}", REDUCE if name in ("mean", "std") else ELEMENTWISE, 90.0) for name in names]
    row = found(gpu_bound(NORM[0], *ops), "unfused-norm")
    assert "mean → sub → std → add → div" in row["what"]
    assert "sin" not in row["what"]


def test_a_chain_of_elementwise_operators_is_one_kernel() -> None:
    chain = [("aten::mul", ELEMENTWISE, 90.0)] * 6
    row = found(gpu_bound(("aten::linear", GEMM, 300), *chain), "elementwise-chain")
    assert row["wins_ns"] == pytest.approx(540_000 - 90_000, rel=0.02)
    broken = [op for op in chain[:2] for _ in (0,)] + [("aten::linear", GEMM, 300.0)] + chain[:2]
    assert finding(gpu_bound(("aten::linear", GEMM, 300), *broken), "elementwise-chain") is None


def test_copies_of_far_larger_tensors_in_a_chain_stay() -> None:
    """As where keys and values are repeated for each head after a word's own were rotated."""
    chain = [("aten::mul", ELEMENTWISE, 9.0)] * 8 + [("aten::reshape", "direct_copy_kernel_cuda", 900.0)] * 2
    row = found(gpu_bound(("aten::linear", GEMM, 300), *chain), "elementwise-chain")
    assert row["wins_ns"] == pytest.approx(
        8 * 9_000 - 9_000, rel=0.02
    )  # one product of two tensors takes 9 µs


@pytest.mark.parametrize(
    "operators",
    [
        ["aten::zero_"],
        ["torch.distributed.ddp.reducer::copy_bucket_to_grad"],
        [
            f"aten::{name}"
            for name in ["rsub", "mul", "exp", "mul", "add", "sub", "mul", "tanh", "add", "copy_"]
        ],
    ],
)
def test_what_is_done_to_one_tensor_after_the_other_is_no_chain(operators: list[str]) -> None:
    loop = [(operator, ELEMENTWISE, 30.0) for operator in operators * 20]
    assert finding(gpu_bound(("aten::linear", GEMM, 300), *loop), "elementwise-chain") is None


def test_what_else_the_host_does_between_two_calls_of_a_chain_stays() -> None:
    made, correlation = Made(), 0
    for _, at in made.steps(10_000):
        for index in range(4):
            begin, correlation = at + 5 + 2_000 * index, correlation + 1
            made.op("aten::mul", begin, begin + 8, sequence=correlation)
            made.launch(ELEMENTWISE, (begin + 2, begin + 5), (begin + 6, begin + 16))
    found_calls = calls(made.trace())
    host = found_calls.edit(np.ones(len(found_calls.rows), dtype=bool)).host
    assert set((host.ends - host.starts).tolist()) == {8_000}


def test_a_chain_does_not_reach_from_before_the_first_step_to_behind_the_last() -> None:
    """Both are outside of steps, and all steps lie between them."""
    made, free, correlation = Made(), 20.0, 0

    def call(operator: str, kernel: str, at: float, works: float) -> None:
        nonlocal free, correlation
        correlation += 1
        made.op(operator, at, at + 8, sequence=correlation)
        made.launch(kernel, (at + 2, at + 5), (free, free + works))
        free += works

    for index in range(2):
        call("aten::mul", ELEMENTWISE, 5 + 10 * index, 5)
    for number in range(4):
        at = 30 + 50 * number
        made.step(number, at, at + 50)
        for index in range(4):
            call("aten::linear", GEMM, at + 5 + 10 * index, 300)
    for index in range(2):
        call("aten::mul", ELEMENTWISE, 235 + 10 * index, 5)
    assert finding(made.trace(), "elementwise-chain") is None


def multiplied(steps: Steps, number: int) -> None:
    """Add a chain of four products to a step."""
    for index in range(4):
        steps.op("aten::mul", ((ELEMENTWISE, 90),), sequence=100 * number + index)


def test_a_chain_goes_with_the_backward_that_it_made() -> None:
    steps = Steps()
    for number in steps.each():
        multiplied(steps, number)
        for index in reversed(range(4)):
            sequence = 100 * number + index
            steps.op(f"{AUTOGRAD}: MulBackward0", ((ELEMENTWISE, 180),), sequence=sequence, track=BACKWARD)
    row = found(steps.trace(), "elementwise-chain")
    # Three passes of 30 µs stay of the forward, four of the backward.
    assert row["wins_ns"] == pytest.approx(360_000 - 90_000 + 720_000 - 120_000, rel=0.02)


def test_what_a_chain_did_not_make_is_not_fused_with_its_backward() -> None:
    """Nodes are told by numbers, which a node that exchanges gradients may share with an elementwise operator."""

    def gain(node: str, kernel: str) -> float:
        steps = Steps()
        for number in steps.each():
            multiplied(steps, number)
            sequence = 100 * number + 3
            steps.op(f"{AUTOGRAD}: {node}", ((kernel, 1_000),), sequence=sequence, track=BACKWARD)
        return float(found(steps.trace(), "elementwise-chain")["wins_ns"])

    forward_alone = 360_000 - 90_000
    assert gain("All2AllBackward", "ncclDevKernel_SendRecv") == pytest.approx(forward_alone, rel=0.02)
    assert gain("MulBackward0", ELEMENTWISE) > 2 * forward_alone


def test_a_chain_ends_where_an_optimizer_or_a_backward_pass_begins() -> None:
    def steps(between: str, around: str) -> Trace:
        made, products = Steps(), ["aten::mul"] * 2
        for number in made.each():
            for first, names in ((0, products), (2, [between] * 4), (6, products)):
                kernel = "ncclDevKernel_AllGather" if first == 2 else ELEMENTWISE
                ops = [(name, ((kernel, 90),)) for name in names]
                made.within(around if first == 2 else "", *ops, first=8 * number + first)
        return made.trace()

    for between, around in (("c10d::_allgather_base_", "Optimizer.step#SGD.step"), (f"{AUTOGRAD}: X", "")):
        assert finding(steps(between, around), "elementwise-chain") is None


def test_nothing_is_said_of_a_backward_pass_where_there_is_none() -> None:
    row = found(gpu_bound(*[("aten::mul", ELEMENTWISE, 90.0)] * 6), "elementwise-chain")
    assert row["what"] == "a chain of elementwise operators could be a single kernel"


def test_with_stacks_the_place_of_kernels_is_the_function_that_launches_them() -> None:
    """The backward pass runs on a thread without frames: its place is where the forward pass is called."""
    tf32 = "sm80_xmma_gemm_tf32f32_tf32f32_f32_nn_n"

    def steps(frame: str, forward_us: float, backward_us: float) -> Trace:
        steps = Steps()
        for number in steps.each():
            begin = steps.now
            steps.op("aten::linear", ((tf32, forward_us),), sequence=number)
            if frame:
                steps.made.add("python_function", frame, begin, steps.now)
            node = f"{AUTOGRAD}: AddmmBackward0"
            steps.op(node, ((tf32, backward_us),), sequence=number, track=BACKWARD)
        return steps.trace()

    for forward_us, backward_us in ((300, 200), (200, 300)):
        named = found(steps("model.py(12): forward", forward_us, backward_us), "mixed-precision")
        assert named["where"] == "model.py forward() from line 12"
    assert found(steps("", 300, 200), "mixed-precision")["where"].startswith("linear, sm80_xmma_gemm")
    assert found(steps("", 200, 300), "mixed-precision")["where"].startswith("AddmmBackward0, sm80_xmma_gemm")
    made = Made().add("python_function", "model.py(12): forward", 0, 100).op("aten::linear", 5, 90)
    made.launch(tf32, (10, 15), (20, 30)).kernel(tf32, 30, 40, 2).op("aten::add", 92, 95)
    trace = made.trace()
    places = Evidence(trace, {}).functions_of(trace.device_work)
    assert places == ["model.py forward() from line 12", ""], "of the second, the launch is not known"


TURN = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16>"
CONVOLUTIONS: Sequence[Op] = (
    ("aten::conv2d", TURN, 100),
    ("aten::conv2d", "sm90_xmma_fprop_implicit_gemm_bf16", 300),
    ("aten::batch_norm", "void at::native::batch_norm_collect_statistics_kernel<float>", 100),
)


def test_layouts_are_not_turned_round_any_more() -> None:
    row = found(gpu_bound(*CONVOLUTIONS), "channels-last")
    assert row["wins_ns"] == pytest.approx(100_000 + 60_000, rel=0.01)
    assert row["sure"] == "high"
    assert finding(gpu_bound(*CONVOLUTIONS[1:]), "channels-last") is None
    for first, last in ((3, 0), (0, 3), (0, 0)):
        trace = with_weights(gpu_bound(*CONVOLUTIONS), {"float32": 30}, 3, 0, first, last)
        assert (finding(trace, "channels-last") is None) == (last > 0), "the model is converted already"


@pytest.mark.parametrize(("turned", "saved_us"), [(3, 4_400), (6, 9_000)])
def test_the_input_of_a_first_convolution_is_padded_in_channels_last_too(
    turned: int, saved_us: float
) -> None:
    """A first convolution makes no gradient of its input, so its backward pass converts half as many tensors."""
    backward = "autograd::engine::evaluate_function: ConvolutionBackward0"
    steps = Steps()
    for number in steps.each():
        steps.op("aten::conv2d", ((TURN, 1_000),) * 3, sequence=number)
        steps.op(backward, ((TURN, 1_000),) * turned, sequence=number, track=1)
    row = found(steps.trace(), "channels-last")
    assert row["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.01)


def test_depthwise_convolutions_want_channels_last() -> None:
    deep = (
        "aten::_conv_depthwise2d",
        "void at::native::conv_depthwise2d_forward_kernel_generic<c10::BFloat16>",
        400,
    )
    row = found(gpu_bound(deep, ("aten::mm", "sm90_xmma_gemm_bf16", 100)), "channels-last")
    assert "depthwise" in row["what"]
    assert row["wins_ns"] == pytest.approx(300_000, rel=0.01)


@pytest.mark.parametrize(
    ("operator", "instead", "sure"),
    [
        ("conv1d", "unsqueeze(2)", "low"),
        ("conv2d", "torch.channels_last)", "high"),
        ("conv3d", "channels_last_3d", "high"),
    ],
)
def test_the_layout_is_that_of_the_convolutions(operator: str, instead: str, sure: str) -> None:
    ops = [
        (name.replace("aten::conv2d", f"aten::{operator}"), kernel, took)
        for name, kernel, took in CONVOLUTIONS
    ]
    row = found(gpu_bound(*ops), "channels-last")
    assert instead in row["instead"]
    assert row["sure"] == sure


@pytest.mark.parametrize("other", ["group_norm", "chunk", "split", "relu"])
def test_over_a_sequence_the_layout_is_advised_only_where_it_helps(other: str) -> None:
    ops = [(name.replace("conv2d", "conv1d"), kernel, took) for name, kernel, took in CONVOLUTIONS[:2]]
    row = finding(gpu_bound(*ops, (f"aten::{other}", ELEMENTWISE, 100)), "channels-last")
    assert (row is not None) == (other == "relu")


@pytest.mark.parametrize(
    ("after", "kernel", "took_us", "left_us"),
    [
        ("relu", UNARY, 10, 9.4 * 5),
        ("mul", ELEMENTWISE, 15, 9.4 * 5),
        ("relu", UNARY, 40, 100),  # no slower than it would be
        ("mm", GEMM, 10, 0.4 * 100),  # nothing shows the size of the tensor
    ],
)
def test_batch_norms_take_some_passes_over_their_tensor(
    after: str, kernel: str, took_us: float, left_us: float
) -> None:
    row = found(gpu_bound(*CONVOLUTIONS, (f"aten::{after}", kernel, took_us)), "channels-last")
    assert row["wins_ns"] == pytest.approx((100 + 100 - left_us) * 1000, rel=0.01)


@pytest.mark.parametrize(
    ("between", "track", "kernels", "left_us"),
    [
        ((), MAIN, ((UNARY, 10.0),), 9.4 * 5),  # a view
        (((UNARY, 1.0),), BACKWARD, ((UNARY, 10.0),), 9.4 * 5),  # of another thread
        ((), MAIN, ((UNARY, 5.0), (UNARY, 5.0)), 0.4 * 100),  # maybe of other tensors
    ],
)
def test_the_next_operator_of_the_thread_with_one_pass_shows_the_size_of_a_normed_tensor(
    between: tuple[tuple[str, float], ...], track: int, kernels: tuple[tuple[str, float], ...], left_us: float
) -> None:
    steps = Steps()
    for _ in steps.each():
        for operator, kernel, takes_us in CONVOLUTIONS:
            steps.op(operator, ((kernel, takes_us),))
        steps.op("aten::other", between, track=track)
        steps.op("aten::gelu", kernels)
        steps.op("aten::linear", ((GEMM, 100),))
    row = found(steps.trace(), "channels-last")
    assert row["wins_ns"] == pytest.approx((100 + 100 - left_us) * 1000, rel=0.01)


@pytest.mark.parametrize("known", [True, False])
def test_the_backward_pass_of_a_batch_norm_takes_passes_over_the_same_tensor(known: bool) -> None:
    """A norm in channels-first is the last operator; of a node of an unknown operator it says nothing."""
    steps = Steps()
    backward = ("void at::native::batch_norm_backward_kernel<float>", 100.0)
    for _ in steps.each():
        for number, (operator, kernel, takes_us) in enumerate(CONVOLUTIONS):
            steps.op(operator, ((kernel, takes_us),), sequence=number)
        steps.op("aten::relu", ((UNARY, 10),), sequence=3)
        sequence = 2 if known else None
        node = f"{AUTOGRAD}: NativeBatchNormBackward0"
        steps.op(node, (backward,), sequence=sequence, track=BACKWARD)
        steps.op(f"{AUTOGRAD}: ConvolutionBackward0", ((GEMM, 300),), sequence=1, track=BACKWARD)
        steps.op("aten::group_norm", (("RowwiseMomentsCUDAKernel<float>", 100),))
        # Launched by a library of its own, in no operator.
        begin, correlation = steps.now - 0.8, 10_000 + int(steps.now)
        steps.made.call("cudaLaunchKernel", begin, begin + 0.6, correlation=correlation)
        steps.made.kernel(UNARY, begin + 1, begin + 2, correlation, track=OTHER_STREAM, stream=8)
        steps.op("aten::group_norm", (("RowwiseMomentsCUDAKernel<float>", 100),))
    row = found(steps.trace(), "channels-last")
    # As many passes as are known of such nodes, or as much as of the norm that is known.
    left_us = 8.2 * 5 if known else 9.4 * 5
    assert row["wins_ns"] == pytest.approx((20 + 100 - 9.4 * 5 + 100 - left_us) * 1000, rel=0.01)


def test_batch_norms_of_cudnn_take_fewer_passes() -> None:
    norm = ("aten::batch_norm", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>", 100.0)
    row = found(gpu_bound(*CONVOLUTIONS[:2], norm, ("aten::relu", UNARY, 10)), "channels-last")
    assert row["wins_ns"] == pytest.approx((100 + 100 - 3.5 * 5) * 1000, rel=0.01)


def test_batch_norms_that_nothing_shows_the_size_of_keep_what_others_do() -> None:
    norms = (CONVOLUTIONS[2], ("aten::relu", UNARY, 4.0), CONVOLUTIONS[2], ("aten::mm", GEMM, 10.0))
    row = found(gpu_bound(*CONVOLUTIONS[:2], *norms), "channels-last")
    assert row["wins_ns"] == pytest.approx((100 + 200 - 2 * 9.4 * 2) * 1000, rel=0.01)


def test_layouts_are_turned_round_in_a_trace_without_operators_too() -> None:
    trace = gpu_bound(*CONVOLUTIONS)
    only = trace.events.filter(pl.col("category") != "cpu_op")
    row = found(Trace(only, trace.tracks, trace.info), "channels-last")
    assert row["wins_ns"] == pytest.approx(100_000 + 60_000, rel=0.01)


def test_batch_norms_of_few_channels_take_longer(tmp_path: Path) -> None:
    def saved_us(
        grid: Any, norm: str = "batch_norm_collect_statistics_kernel<float>", back: Any = None
    ) -> float:
        events: list[dict[str, Any]] = []
        free, key = 20, 0
        for number in range(4):
            at = number * 60
            events.append(
                {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 60}
            )
            work = [("aten::conv2d", TURN, 100), ("aten::batch_norm", norm, 400), ("aten::relu", UNARY, 20)]
            if back is not None:
                node = f"{AUTOGRAD}: NativeBatchNormBackward0"
                work.append((node, "batch_norm_backward_kernel<float>", 400))
            for index, (operator, name, took) in enumerate(work):
                key, begin = key + 1, at + 10 + 12 * index
                ids = {"correlation": key, "External id": key}
                numbered = {"Sequence number": 1 if index == 3 else index}
                blocks = back if index == 3 else grid
                events += [
                    {"cat": "cpu_op", "name": operator, "ts": begin - 5, "dur": 9, "args": numbered},
                    {
                        "cat": "cuda_runtime",
                        "name": "cudaLaunchKernel",
                        "ts": begin - 3,
                        "dur": 3,
                        "args": ids,
                    },
                    {"cat": "kernel", "name": name, "ts": free, "dur": took, "tid": 7}
                    | {"args": {**ids, "device": 0, "stream": 7, "grid": blocks}},
                ]
                free += took
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt.trace.json"
        path.write_text(
            json.dumps({"traceEvents": [{"ph": "X", "pid": 1, "tid": 1} | event for event in events]})
        )
        return float(found(open_trace(path), "channels-last")["wins_ns"]) / 1e3

    many = saved_us([33, 1, 1])
    assert many == pytest.approx(100 + 400 - 9.4 * 10, rel=0.02)
    for unknown in ([0, 1, 1], [], ["many"], "unknown", [2**60]):
        assert saved_us(unknown) == pytest.approx(many)
    assert saved_us([32, 1, 1]) == pytest.approx(many - 0.8 * 94, rel=0.02)
    of_cudnn = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>"
    assert saved_us([32, 1, 1], of_cudnn) == pytest.approx(100 + 400 - 3.5 * 10, rel=0.01)
    both = 100 + 2 * 400 - (9.4 + 8.2) * 10
    assert saved_us([33, 1, 1], back=[33, 1, 1]) == pytest.approx(both, rel=0.01)
    assert saved_us("unknown", back=[32, 1, 1]) == pytest.approx(both - 0.8 * (94 + 82), rel=0.01)


@pytest.mark.parametrize(("norms", "saved_us"), [(0, 40), (1, 40 - 10)])
def test_layouts_that_are_not_turned_round_need_no_launch(norms: int, saved_us: float) -> None:
    """The host limits these steps; a batch norm launches one kernel more in its backward pass."""
    made = Made()
    for _, at in made.steps(200):
        made.op("aten::conv2d", at + 5, at + 190)
        kernels = [(TURN, 10)] * 4 + [("void batch_norm_backward_kernel<float>", 10)] * norms
        for index, (kernel, takes) in enumerate(kernels):
            begin = at + 10 + 20 * index
            made.launch(kernel, (begin, begin + takes), (begin + takes, begin + takes + 2))
    row = found(made.trace(), "channels-last")
    assert row["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.02)


def test_only_the_backward_pass_of_max_pooling_is_faster_in_channels_last() -> None:
    pools = [
        (
            f"aten::{name}",
            f"void at::native::(anonymous namespace)::{name}_nchw<c10::BFloat16, float, int>",
            100.0,
        )
        for name in ("max_pool_forward", "max_pool_backward")
    ]
    row = found(gpu_bound(*CONVOLUTIONS[:2], *pools), "channels-last")
    assert row["wins_ns"] == pytest.approx((100 + 35) * 1000, rel=0.01)


def test_a_convolution_whose_name_has_a_permutation_turns_no_layout() -> None:
    kernel = (
        "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINSO_9NoPermuteE19TileTensorOp"
    )
    assert finding(gpu_bound(("aten::conv2d", kernel, 300), ("aten::mm", GEMM, 100)), "channels-last") is None


def test_group_norms_want_channels_first() -> None:
    grouped = (*CONVOLUTIONS[:2], ("aten::group_norm", "RowwiseMomentsCUDAKernel<float>", 100))
    row = found(gpu_bound(*grouped), "channels-last")
    assert row["wins_ns"] == pytest.approx(20_000, rel=0.05)
    assert row["sure"] == "low"


def test_an_instance_norm_which_is_a_batch_norm_wants_channels_first_too() -> None:
    norm = ("aten::instance_norm", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>", 100.0)
    row = found(gpu_bound(*CONVOLUTIONS[:2], norm, ("aten::relu", UNARY, 10)), "channels-last")
    assert row["sure"] == "low"
    assert row["wins_ns"] == pytest.approx(0.2 * 100_000, rel=0.01)


@pytest.mark.parametrize(
    ("device", "word", "keep"),
    [
        ("NVIDIA H100 80GB HBM3", "TF32", 1.2 * 66.9 / 494.7),
        ("Tesla V100-SXM2-32GB", "torch.float16", 1.2 * 15.7 / 125),
        ("NVIDIA L4", "TF32", 1.2 * 30.3 / 60),
        ("NVIDIA A10G", "torch.bfloat16", 1.2 * 31.5 / 70),
        ("AMD Instinct MI250X", "torch.bfloat16", 1.2 * 23.9 / 191.5),
        ("Some Chip", "TF32", 0.3),
    ],
)
def test_fp32_products_at_the_rate_that_the_chip_has(device: str, word: str, keep: float) -> None:
    ops = ("aten::mm", "sm80_xmma_gemm_f32f32_f32f32_f32_nn", 500), ("aten::add", ELEMENTWISE, 100)
    row = found(gpu_bound(*ops, devices=(DeviceInfo(0, device),)), "fp32-matmul")
    assert word in row["instead"]
    assert row["wins_ns"] == pytest.approx(500_000 * (1 - keep), rel=0.01)


SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_{}_align1>"


@pytest.mark.parametrize(
    ("device", "of_input", "times"),
    [
        ("NVIDIA H100 80GB HBM3", SIMT.format("nn"), 2.5),
        ("NVIDIA H100 80GB HBM3", "sm80_xmma_gemm_f32f32_f32f32_f32_nn_aligna4_alignc4", 1),
        ("NVIDIA A10G", SIMT.format("nn"), 1),  # bfloat16
    ],
)
def test_unaligned_products_gain_less_from_tf32(device: str, of_input: str, times: float) -> None:
    aligned, node = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_aligna4_alignc4", f"{AUTOGRAD}: MmBackward0"
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((aligned, 400),), sequence=1)
        steps.op("aten::linear", ((aligned, 600),), sequence=2)
        of_weight = SIMT.format("nt")  # cuBLAS takes it for any size
        steps.op(node, ((of_weight, 600), (aligned, 600)), sequence=2, track=BACKWARD)
        steps.op(node, ((of_weight, 400), (of_input, 400)), sequence=1, track=BACKWARD)
    trace = steps.trace(devices=(DeviceInfo(0, device),))
    keep = 1.2 * (31.5 / 70 if "A10G" in device else 66.9 / 494.7)
    row = found(trace, "fp32-matmul")
    assert row["wins_ns"] == pytest.approx(1800e3 * (1 - keep) + 1200e3 * (1 - times * keep), rel=0.01)
    assert ("multiples of 8" in row["instead"]) == (times > 1)


def test_products_of_attention_in_tf32_still_read_and_write_the_scores() -> None:
    product = "sm80_xmma_gemm_f32f32_f32f32_f32_nn"
    ops = ("aten::matmul", product, 300), ("aten::softmax", SOFTMAX, 500), ("aten::matmul", product, 260)
    trace = gpu_bound(*ops, devices=(DeviceInfo(0, "NVIDIA H100 80GB HBM3"),))
    row = found(trace, "fp32-matmul")
    # A pass over the scores takes half of the softmax; in bfloat16 they are half as large.
    assert row["wins_ns"] == pytest.approx((300 + 260 - 2 * 250) * 1000, rel=0.01)
    assert row["wins_high_ns"] >= (300 + 260 - 2 * 125) * 1000


@pytest.mark.parametrize(
    ("kernel", "switch", "what"),
    [
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwc", "cudnn.allow_tf32", "convolutions"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "torch.float16", "convolutions"),
        (
            "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7>(float const*)",
            "cudnn.allow_tf32",
            "convolutions",
        ),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn", "set_float32_matmul_precision", "matmuls"),
    ],
)
def test_convolutions_in_fp32_have_a_switch_of_their_own(kernel: str, switch: str, what: str) -> None:
    row = found(gpu_bound(("aten::linear", kernel, 500), ("aten::add", ELEMENTWISE, 100)), "fp32-matmul")
    assert switch in row["instead"]
    assert f"fp32 {what} without tensor cores" in row["what"]


@pytest.mark.parametrize(
    "kernel",
    [
        "volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1",
        "void cudnn::cnn::wgrad_alg0_engine<__half, 128>(__half)",
    ],
)
def test_convolutions_of_other_types_are_not_in_fp32(kernel: str) -> None:
    assert finding(gpu_bound(("aten::conv2d", kernel, 500)), "fp32-matmul") is None


OPTIMIZER = "Optimizer.step#AdamW.step"
PASSES: Sequence[Op] = tuple(
    ("aten::_foreach_op", MULTI_TENSOR.format(name), 115) for name in ("lerp", "addcmul", "sqrt", "addcdiv")
)


def test_an_optimizer_of_several_passes() -> None:
    row = found(gpu_bound(*PASSES, around=OPTIMIZER), "unfused-optimizer")
    assert row["wins_ns"] == pytest.approx(460_000 * (1 - 7 / 23), rel=0.01)
    fused = ("aten::_fused_adamw_", MULTI_TENSOR.format("FusedOptimizer"), 115.0)
    assert finding(gpu_bound(*PASSES[:3], fused, around=OPTIMIZER), "unfused-optimizer") is None
    assert finding(gpu_bound(*PASSES), "unfused-optimizer") is None, "nobody says that it is an optimizer"


def test_the_forward_and_backward_pass_in_an_optimizers_closure_are_no_part_of_its_update() -> None:
    forward = [("aten::linear", GEMM, 300.0), *(("aten::mul", ELEMENTWISE, 90.0) for _ in range(8))]
    step = gpu_bound(*forward, (f"{AUTOGRAD}: MulBackward0", ELEMENTWISE, 90), *PASSES, around=OPTIMIZER)
    alone = found(gpu_bound(*PASSES, around=OPTIMIZER), "unfused-optimizer")
    assert found(step, "unfused-optimizer")["wins_ns"] == pytest.approx(alone["wins_ns"], rel=0.05)
    assert found(step, "elementwise-chain")["wins_ns"] > 400_000


def host_bound(*, python_us: float = 0.0, steps: int = 4, name: str = "") -> Made:
    """Steps of 3 ms whose device works 50 µs; Python runs for a while in the middle of each."""
    made = Made()
    for _, at in made.steps(3_000, steps):
        for index in range(10):
            begin = at + 10 + index * 40
            made.op("aten::mm", begin, begin + 30)
            made.launch(GEMM, (begin + 5, begin + 9), (begin + 12, begin + 17))
        begin = at + 410
        if name:
            made.add("cpu_op" if name == "gc" else "python_function", name, begin, begin + python_us)
        rest = 2_990 - 410 - python_us
        count = max(int(rest // 50), 0)
        for index in range(count):
            made.op("aten::add", begin + python_us + index * 50, begin + python_us + index * 50 + 49)
    return made


@pytest.mark.parametrize(
    ("waits", "near", "frame", "where"),
    [
        (4, True, "", "after counted, train.py:7, before add"),
        (4, False, "", "before add"),
        (1, True, "", "before add"),  # one of four stretches
        (4, True, "train.py(5): counted", "train.py counted() from line 5"),
    ],
)
def test_python_after_a_wait_is_named_by_the_line_of_that(
    waits: int, near: bool, frame: str, where: str
) -> None:
    made = host_bound(python_us=1_500, name=frame)
    for number in range(waits):
        at = number * 3_000 + (410 if near else 10)
        made.call("cudaStreamSynchronize", at - 8, at - 2)
        made.site(at - 3, "train.py:7 counted")
    row = found(made.trace(), "python-time")
    assert row["where"] == where
    assert row["instead"].endswith("record with --stack to name it") == (not frame)


def test_python_that_runs_for_long_is_named_by_its_function() -> None:
    row = found(host_bound(python_us=1_500, name="train.py(12): count").trace(), "python-time")
    assert row["where"] == "train.py count() from line 12"
    assert row["wins_ns"] == pytest.approx(1_500_000, rel=0.02)
    unnamed = found(host_bound(python_us=1_500).trace(), "python-time")
    assert (unnamed["where"], unnamed["sure"]) == ("before add", "medium")
    assert unnamed["because"].startswith("1 stretch a step")
    assert finding(host_bound(python_us=300).trace(), "python-time") is None, "what frameworks take"
    in_jax = found(host_bound(python_us=1_500).trace(framework="JAX 0.10.2"), "python-time")
    assert "jitted" in in_jax["instead"]
    assert "tensor" not in in_jax["instead"]


@pytest.mark.parametrize(("waits_us", "advised"), [(1_400, False), (100, True)])
def test_a_wait_of_the_thread_that_hands_over_is_no_python(waits_us: float, advised: bool) -> None:
    made = host_bound(python_us=1_500)
    for number in range(4):
        at = number * 3_000 + 450
        made.add("python_function", "api.py(3105): block_until_ready", at, at + waits_us, track=BACKWARD)
    assert (finding(made.trace(framework="JAX 0.10.2"), "python-time") is not None) == advised


@pytest.mark.parametrize(("name", "advised"), [(f"{AUTOGRAD}: MmBackward0", False), ("aten::other", True)])
def test_a_backward_pass_with_pauses_is_no_python_of_the_main_thread(name: str, advised: bool) -> None:
    made = host_bound(python_us=1_500)
    for number in range(4):
        for at in (450, 1_100, 1_750):
            begin = number * 3_000 + at
            made.op(name, begin, begin + 30, track=BACKWARD)
    assert (finding(made.trace(), "python-time") is not None) == advised


def test_launching_is_not_what_a_thread_does_in_silence() -> None:
    """Of two steps as long the one spends its time in operators, the other in Python alone."""
    busy, silent = (run("kernel_launches", host_bound(python_us=us).trace()) for us in (0, 2_500))
    assert isinstance(busy, Report)
    assert isinstance(silent, Report)
    assert (busy.fact("launch_bound"), silent.fact("launch_bound")) == ("yes", "no")


def test_launching_is_not_what_a_thread_does_before_its_first_call() -> None:
    made = Made()
    for number, at in made.steps(400_000, 3):
        name = f"{AUTOGRAD}: AddmmBackward0"
        made.op(name, at + 331_000, at + 331_145, sequence=number, track=BACKWARD)
        made.launch(GEMM, (at + 331_040, at + 331_050), (at + 331_060, at + 331_105), thread=BACKWARD)
    report = run("kernel_launches", made.trace())
    assert isinstance(report, Report)
    assert report.fact("launch_bound") == "no"


def test_the_thread_that_steps_is_not_autograds_though_that_launches_more() -> None:
    made = Made()
    for number in range(3):
        at = number * 1000
        for index in range(10):
            backward = index >= 4
            begin = at + 5 + 90 * index
            name = f"{AUTOGRAD}: MmBackward0" if backward else "aten::mm"
            track = BACKWARD if backward else MAIN
            made.op(name, begin, begin + 80, track=track)
            made.launch(GEMM, (begin + 2, begin + 5), (begin + 7, begin + 40), thread=track)
    assert main_thread(made.trace()) == MAIN


def test_what_the_collector_takes() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::mm", at + 10, at + 40)
        made.launch(GEMM, (at + 12, at + 15), (at + 20, at + 60))
        made.add("annotation", "Python GC", at + 100, at + 900)
    row = found(made.trace(), "garbage-collector")
    assert row["wins_ns"] == pytest.approx(800_000, rel=0.01)
    assert "4 times in 4 steps" in row["what"]


def timed(made: Made, collections: Collections) -> Trace:
    """Steps of a session that timed collections: half are 3.00 ms, half 3.02 ms."""
    trace = made.trace()
    times = tuple(3_000_000 + 20_000 * (n % 2) for n in range(40))
    trace.uncaptured = Uncaptured(
        40, 3_010_000, 3_000_000, 3_020_000, collections=collections, times_ns=times
    )
    return trace


def test_collections_outside_of_the_capture_are_priced_by_the_session() -> None:
    """40 ms in every 50th step, none of which is captured."""
    made = host_bound()
    trace = timed(made, Collections(1_000, 20, 20 * 40e6, 20 * 40e6**2, shown=1.0))
    row = found(trace, "garbage-collector")
    assert (
        row["what"]
        == "Python's garbage collector takes 800 µs a step on average: about 40.0 ms every 50 steps"
    )
    assert row["wins_ns"] == pytest.approx(800_000)
    assert row["wins_low_ns"] == pytest.approx(800_000 * (1 - 20**-0.5))
    noise_ns = 0.1 * 3_010_000  # of usual steps
    assert 0 <= row["wins_high_ns"] - 800_000 * (1 + 20**-0.5) <= noise_ns
    assert row["share"] == pytest.approx(800 / (3_010 + 800))
    assert row["event"] is None


def test_a_captured_collection_is_not_counted_twice() -> None:
    """Each step collects for 0.1 ms; one of the captured ones does so for 0.5 ms, as every tenth step."""
    made = host_bound()
    for number in range(4):
        length = 500 if number == 2 else 100
        made.add("annotation", "Python GC", number * 3_000 + 600, number * 3_000 + 600 + length)
    saved = {}
    for long in (0, 100):
        steps = 1_000
        ns, squares = steps * 0.1e6 + long * 0.4e6, (steps - long) * 0.1e6**2 + long * 0.5e6**2
        trace = timed(made, Collections(steps, steps, ns, squares, usual_ns=0.1e6, shown=1.0))
        saved[long] = found(trace, "garbage-collector")["wins_ns"]
    assert saved[100] - saved[0] == pytest.approx(40_000)
    assert saved[0] == pytest.approx(100_000, rel=0.05)


def test_collections_that_cost_nothing_are_not_advised() -> None:
    for seen in (Collections(1_000, 0, 0.0, 0.0), Collections(1_000, 20, 20 * 40e6, 20 * 40e6**2, shown=0.0)):
        assert finding(timed(host_bound(), seen), "garbage-collector") is None


def test_what_code_makes_is_not_collected_without_it() -> None:
    every, once = host_bound(python_us=1_500), host_bound(python_us=1_500)
    for number in range(4):
        for made in (every, once)[: 1 if number else 2]:
            made.add("annotation", "Python GC", number * 3_000 + 600, number * 3_000 + 1_200)
    assert found(every.trace(), "python-time")["wins_ns"] == pytest.approx(1_500_000, rel=0.02)
    assert finding(every.trace(), "garbage-collector") is None
    assert found(once.trace(), "python-time")["wins_ns"] == pytest.approx(1_500_000 - 600_000 / 4, rel=0.02)
    assert finding(once.trace(), "garbage-collector") is not None, "other code makes what is collected"
    full = host_bound(python_us=2_400)
    for number in range(4):
        full.add("annotation", "Python GC", number * 3_000 + 500, number * 3_000 + 2_200)
    assert found(full.trace(), "garbage-collector")["wins_ns"] == pytest.approx(1_700_000, rel=0.02)
    assert found(full.trace(), "python-time")["wins_ns"] == pytest.approx(700_000, rel=0.02)


TF32 = "sm80_xmma_gemm_f32f32_tf32f32"
ATTENTION_IN_FLOAT32 = "fmha_cutlassF_f32_aligned_64x64_rf_sm80"


@pytest.mark.parametrize(
    ("ops", "saved_us"),
    [
        ([("aten::linear", TF32, 400.0)], 0.47 * 400),
        ([("aten::linear", "cutlass_80_tensorop_s1688gemm_128x128_32x5_nt_align4", 400.0)], 0.47 * 400),
        ([("aten::linear", TF32, 400.0), ("aten::mul", ELEMENTWISE, 100.0)], 0.47 * 400 + 0.38 * 100),
        # Half of the products are in bfloat16 already, and so may half of the rest be.
        (
            [("aten::linear", TF32, 400.0), ("aten::linear", GEMM, 400.0), ("aten::mul", ELEMENTWISE, 100.0)],
            0.47 * 400 + 0.19 * 100,
        ),
        (
            [("aten::linear", TF32, 400.0), ("aten::_efficient_attention", ATTENTION_IN_FLOAT32, 300.0)],
            0.47 * 400 + 0.85 * 300,
        ),
    ],
    ids=["products", "of CUTLASS", "elementwise", "half", "attention"],
)
def test_what_bfloat16_saves_beside_products(ops: Sequence[Op], saved_us: float) -> None:
    assert found(gpu_bound(*ops), "mixed-precision")["wins_ns"] == pytest.approx(1000 * saved_us, rel=0.02)


def compiled_again(long: int, sampled: float, *, captured: bool = False, early: bool = False) -> Trace:
    """Three captured steps of 1 ms, of 100 of the session; so many of these took 800 ms, maybe the first ones."""
    made = Made()
    for _, at in made.steps(1_000, 3):
        made.op("aten::mm", at + 10, at + 990)
        made.launch(GEMM, (at + 12, at + 15), (at + 20, at + 900))
        if captured:
            made.add("annotation", "PjitFunction compile", at + 20, at + 900)
            made.add("compile", "backend_compile", at + 20, at + 900)
    trace = made.trace()
    every = 100 // max(long, 1)
    times = [
        800_000_000 if (n < long and early) or (n % every == every - 1 and not early) else 1_000_000
        for n in range(100)
    ]
    lines = (SampledLine("train.py:70", sampled, "compiles"),)
    before, later = tuple(times[:30]), tuple(times[30:])
    trace.uncaptured = Uncaptured(30, 1e6, 1e6, 1e6, times_ns=before, later_ns=later, lines=lines)
    return trace


def test_code_that_is_compiled_again_in_steps_that_were_not_captured() -> None:
    row = found(compiled_again(10, 0.9), "rare-recompiles")
    assert (
        row["what"] == "10.0 % of the steps take 800 ms, as code is compiled again; the others take 1.00 ms"
    )
    assert row["where"] == "train.py:70"
    assert row["wins_ns"] == pytest.approx(79_900_000)
    assert row["wins_low_ns"] < 79_900_000 < row["wins_high_ns"]


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (compiled_again(1, 0.9), "it may be something else"),
        (compiled_again(10, 0.9, early=True), "what is compiled for the first time"),
        (compiled_again(10, 0.3), "something else takes most of that time"),
    ],
)
def test_long_steps_are_not_all_compilations(trace: Trace, why: str) -> None:
    assert finding(trace, "rare-recompiles") is None, why


def test_a_captured_compilation_does_not_count_twice() -> None:
    row = finding(compiled_again(10, 0.9, captured=True), "rare-recompiles")
    assert row is None or row["wins_ns"] <= 1_000_000


@pytest.mark.parametrize("own", [True, False])
def test_a_full_collection_counts_as_often_as_steps_of_the_session_are_long(own: bool) -> None:
    """One captured step of four has one of 20 ms; of 25 steps of the session, one is that much longer."""
    made, at = Made(), 0.0
    for number in range(4):
        full = 20_000 if number == 1 else 0
        made.step(number, at, at + 3_000 + full).op("aten::mm", at + 10, at + 40)
        made.launch(GEMM, (at + 12, at + 15), (at + 20, at + 60))
        if own or full:  # of code that makes garbage, some is collected in each step
            made.add("annotation", "Python GC", at + 1_000, at + 1_100 + full)
        made.op("aten::add", at + 2_500 + full, at + 2_990 + full)
        at += 3_000 + full
        made.add("annotation", "Python GC", at - 9, at - 2)
    trace = made.trace()
    rule = "python-time" if own else "garbage-collector"
    usual = 2_460_000 if own else 0
    for longer_ms, rare_ns in ((20, 800_000), (25, 1_000_000), (2, 0), (50, 0)):
        times = (*[3_000_000] * 24, 3_000_000 + longer_ms * 1_000_000)
        trace = made.trace()
        trace.uncaptured = Uncaptured(25, 3e6, 2.9e6, 3.1e6, times_ns=times)
        row = finding(trace, rule)
        assert (row["wins_ns"] if row else 0) == pytest.approx(usual + rare_ns, rel=0.02, abs=20_000)
        if row and rare_ns:
            assert row["wins_high_ns"] >= usual + 2 * rare_ns, "a single one may come twice as often"
    trace = made.trace()
    trace.uncaptured = Uncaptured(25, 3e6, -4e6, 3.1e6, times_ns=(*[3_000_000] * 24, 23_000_000))
    row = finding(trace, rule)
    assert (row["wins_ns"] if row else 0) == pytest.approx(usual, rel=0.02, abs=20_000), (
        "steps vary too much to tell"
    )


def test_the_thread_that_steps_is_not_the_one_that_calls_most() -> None:
    """A JAX run on a CPU, whose marks have names of its own, beside a thread that waits in small pieces."""
    made, markers = Made(), []
    for number in range(4):
        at = 1 + number * 1000
        made.add("annotation", "train", at, at + 999)
        made.add("annotation", "Python GC", at + 100, at + 900)
        markers.append({"step": number, "start": at * 1000, "end": (at + 999) * 1000})
        for piece in range(20):
            begin = at + 40 * piece
            made.add("python_function", "threading.py(295): wait", begin + 7, begin + 40, track=BACKWARD)
    bare = made.trace()
    trace = Trace(bare.events, bare.tracks, bare.info, step_markers=pl.DataFrame(markers))
    assert found(trace, "garbage-collector")["wins_ns"] == pytest.approx(800_000, rel=0.01)


def test_a_loop_of_short_kernels() -> None:
    ops: list[Op] = [("aten::linear", GEMM, 200), *([("aten::norm", REDUCE, 4.0)] * 30)]
    row = found(gpu_bound(*ops), "kernel-loop")
    assert "norm 30 times in a row" in row["what"]
    few: list[Op] = [("aten::linear", GEMM, 200), *([("aten::norm", REDUCE, 4.0)] * 8)]
    assert finding(gpu_bound(*few), "kernel-loop") is None
    long: list[Op] = [("aten::linear", GEMM, 200), *([("aten::norm", REDUCE, 40.0)] * 30)]
    assert finding(gpu_bound(*long), "kernel-loop") is None, "they compute more than their launches cost"


@pytest.mark.parametrize(
    ("names", "instead"),
    [
        (("linalg_vector_norm", "item"), "clip_grad_norm_(foreach=True)"),
        (("mul_", "add_"), "torch._foreach_*"),
        (("cat",), "collect the parts in a list"),
        (("select", "embedding"), "one table for all of them"),
        (("sub", "abs"), "torch._foreach_* over parameters, one call on a padded batch"),
    ],
)
def test_a_loop_says_what_to_call_instead_of_what_it_calls(names: tuple[str, ...], instead: str) -> None:
    body: list[Op] = [(f"aten::{name}", UNARY, 4.0) for name in names]
    row = found(gpu_bound(("aten::linear", GEMM, 200), *body * 30), "kernel-loop")
    assert instead in row["instead"]
    assert row["instead"].endswith("capture it in a CUDA graph")


@pytest.mark.parametrize(
    ("views", "instead"),
    [(("select", "slice"), "masked_fill_ with one mask"), ((), "update all tensors at once")],
)
def test_a_loop_that_fills_parts_of_a_tensor_is_one_mask(views: tuple[str, ...], instead: str) -> None:
    made = Steps()
    for _ in made.each():
        made.op("aten::linear", ((GEMM, 2_000.0),))
        for _ in range(30):
            for view in views:
                made.op(f"aten::{view}")
            made.op("aten::fill_", ((UNARY, 4.0),))
    row = found(made.trace(), "kernel-loop")
    assert "fill_ 30 times" in row["what"]
    assert instead in row["instead"]


def test_a_long_iteration_may_copy_from_the_host() -> None:
    copy: list[Op] = [("aten::index_put_", "Memcpy HtoD (Pageable -> Device)", 2.0)]
    body: list[Op] = [(f"aten::special_{number}", UNARY, 4.0) for number in range(55)]
    row = found(gpu_bound(("aten::linear", GEMM, 200), *(body + copy) * 16), "kernel-loop")
    assert "(56 operators) 16 times in a row" in row["what"]
    mostly_copies = body[:2] + copy * 2
    assert finding(gpu_bound(*mostly_copies * 16), "kernel-loop") is None


def test_reading_many_values_is_no_loop_of_short_kernels() -> None:
    copy = "Memcpy DtoH (Device -> Pageable)"
    assert finding(gpu_bound(*([("aten::item", copy, 2.0)] * 30)), "kernel-loop") is None
    body: list[Op] = [("aten::item", copy, 2.0), ("aten::clamp", UNARY, 4.0)]
    assert "item → clamp 30 times" in found(gpu_bound(*body * 30), "kernel-loop")["what"]


def test_filling_gradients_with_zeros_is_no_loop() -> None:
    ops: list[Op] = [("aten::zero_", UNARY, 4.0)] * 30
    assert finding(gpu_bound(*ops, around="weights"), "kernel-loop") is not None
    clearing = gpu_bound(*ops, around="Optimizer.zero_grad#SGD.zero_grad")
    assert finding(clearing, "kernel-loop") is None, "zeroed-gradients says what to change"


def test_an_activation_that_has_a_kernel_of_its_own_is_a_chain() -> None:
    swish: list[Op] = [
        ("aten::conv2d", GEMM, 200),
        ("aten::sigmoid", UNARY, 60),
        ("aten::mul", ELEMENTWISE, 90),
    ]
    row = found(gpu_bound(*swish * 4), "elementwise-chain")
    assert "silu" in row["instead"]
    gated: list[Op] = [("aten::conv2d", GEMM, 200), ("aten::relu", UNARY, 60), ("aten::mul", ELEMENTWISE, 90)]
    assert finding(gpu_bound(*gated * 4), "elementwise-chain") is None


def written_out(names: str) -> list[Op]:
    """Return operators after a product, those with two inputs by name; each passes a tensor in 30 µs."""
    two = ("mul", "add")
    return [
        ("aten::linear", GEMM, 500),
        *((f"aten::{name}", *((ELEMENTWISE, 90) if name in two else (UNARY, 60))) for name in names.split()),
    ]


@pytest.mark.parametrize(
    ("names", "function"),
    [
        ("softplus tanh mul", "mish"),
        ("add relu6 mul div", "hardswish"),
        ("mul div erf add mul", "gelu"),
        ("div erf add mul mul", "gelu"),
        ("mul pow mul add mul tanh add mul", 'gelu(approximate="tanh")'),
    ],
)
def test_a_written_out_activation_is_one_kernel_over_two_tensors(names: str, function: str) -> None:
    ops = written_out(names)
    row = found(gpu_bound(*ops * 3), "elementwise-chain")
    assert row["what"].startswith(f"an activation is written out as {len(ops) - 1} operators, 3 times a step")
    assert row["instead"] == f"torch.nn.functional.{function}, a single kernel"
    assert row["wins_ns"] == pytest.approx(3_000 * (sum(op[2] for op in ops[1:]) - 60), rel=0.02)


def converted(converts: bool) -> float:
    """Return what is left of an activation, µs, whose first operator may convert its input."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 500),))
        steps.op("aten::softplus", ((TO_BFLOAT16, 60), (UNARY, 60)) if converts else ((UNARY, 60),))
        steps.op("aten::tanh", ((UNARY, 60),)).op("aten::mul", ((ELEMENTWISE, 90),))
        steps.op("aten::linear", ((GEMM, 500),))
    took = 270 if converts else 210
    return took - float(found(steps.trace(), "elementwise-chain")["wins_ns"]) / 1000


def test_an_activation_stays_in_16_bits_where_autocast_makes_its_operators_float32() -> None:
    assert converted(False) == pytest.approx(60, rel=0.02)
    assert converted(True) == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize(
    ("names", "saved_us"),
    [
        ("to contiguous clone", 120),
        ("to contiguous contiguous", 60),
        ("contiguous contiguous contiguous", None),
    ],
)
def test_copies_of_one_tensor_are_one_kernel(names: str, saved_us: float | None) -> None:
    """Those that one operator makes are of several tensors."""
    ops: list[Op] = [
        ("aten::linear", GEMM, 500),
        *((f"aten::{name}", TO_BFLOAT16, 60) for name in names.split()),
    ]
    row = finding(gpu_bound(*ops * 3), "elementwise-chain")
    assert (row is not None) == (saved_us is not None)
    if row is not None and saved_us is not None:
        assert row["wins_ns"] == pytest.approx(3_000 * saved_us, rel=0.02)


def test_what_follows_an_activation_is_a_chain_of_its_own() -> None:
    alone, followed = (
        found(gpu_bound(*written_out(f"softplus tanh mul {then}") * 3), "elementwise-chain")["wins_ns"]
        for then in ("", "neg abs exp")
    )
    assert followed == pytest.approx(alone, rel=0.01)
    rows = advise(gpu_bound(*written_out("softplus tanh mul neg abs exp") * 3)).table("findings").rows
    assert len(rows.filter(rule="elementwise-chain")) == 2


@pytest.mark.parametrize("names", ["softplus mul tanh", "mul sigmoid mul", "tanh add mul", "erf add mul mul"])
def test_other_operators_are_no_activation(names: str) -> None:
    row = found(gpu_bound(*written_out(names) * 3), "elementwise-chain")
    assert row["what"].endswith("could be a single kernel")


def test_an_activation_of_its_own_spares_the_host_more_than_a_compiled_one() -> None:
    """A compiled function has guards that take as long as a few operators."""

    def left_ns(names: str) -> float:
        made, correlation = Made(), 0
        for _, at in made.steps(2_000):
            for index, name in enumerate(f"linear {names}".split()):
                begin, correlation = at + 5 + 30 * index, correlation + 1
                made.op(f"aten::{name}", begin, begin + 28, sequence=correlation)
                made.launch(GEMM if not index else UNARY, (begin + 2, begin + 5), (begin + 6, begin + 10))
        trace = made.trace()
        host = next(iter(elementwise_chain.RULE.find(trace, Evidence(trace, {})))).edits.likely.host
        return float(((host.ends - host.starts) * host.keep).sum())

    assert left_ns("softplus tanh mul") < 0.5 * left_ns("softplus tanh sub")


def test_a_loop_of_products_alone() -> None:
    columns: list[Op] = [("aten::linear", GEMM, 4.0)] * 30
    row = found(gpu_bound(*columns), "kernel-loop")
    assert "linear 30 times in a row" in row["what"]
    assert "torch.bmm" in row["instead"]
    layers: list[Op] = [("aten::linear", GEMM, 4.0), ("aten::relu", UNARY, 4.0)] * 30
    assert finding(gpu_bound(*layers), "kernel-loop") is None, "they build on each other"


@pytest.mark.parametrize(("tokens", "advised"), [(8, True), (4, False)])
def test_a_loop_inside_another_is_short_each_time(tokens: int, advised: bool) -> None:
    rows: list[Op] = [("aten::where", ELEMENTWISE, 4.0), ("aten::index_put_", UNARY, 4.0)] * 8
    row = finding(gpu_bound(*(("aten::linear", GEMM, 20.0), *rows) * tokens), "kernel-loop")
    assert (row is not None) == advised
    if row is not None:
        assert "8 times in a row, one of 8 loops a step" in row["what"]


@pytest.mark.parametrize(("memory", "rule"), [("Pinned", "blocking-copy"), ("Pageable", "pageable-memory")])
def test_a_batch_that_is_waited_for(memory: str, rule: str) -> None:
    made = Made()
    for _, at in made.steps(400):
        made.op("aten::copy_", at + 5, at + 120)
        made.copy(f"HtoD ({memory} -> Device)", (at + 10, at + 20), (at + 15, at + 110), 1 << 20)
        made.call("cudaStreamSynchronize", at + 21, at + 115)
        made.launch(GEMM, (at + 130, at + 135), (at + 140, at + 390))
    trace = made.trace()
    assert found(trace, rule)["wins_ns"] > 0
    other = {"blocking-copy", "pageable-memory"} - {rule}
    assert finding(trace, other.pop()) is None


@pytest.mark.parametrize(
    ("memory", "batch", "labels", "rule", "said"),
    [
        (
            "Pageable",
            1 << 20,
            512,
            "pageable-memory",
            "up to 1.00 MiB are copied to the device 2 times a step",
        ),
        ("Pageable", 1 << 20, 1 << 20, "pageable-memory", "1.00 MiB are copied to the device 2 times a step"),
        ("Pinned", 1 << 20, 512, "blocking-copy", "up to 1.00 MiB are copied to the device 2 times a step"),
        ("Pageable", 8, 4, "small-copy", "up to 8 bytes are copied to the device 2 times a step"),
    ],
)
def test_no_tensor_has_the_mean_size_of_a_batch_and_its_labels(
    memory: str, batch: int, labels: int, rule: str, said: str
) -> None:
    made = Made()
    for _, at in made.steps(600):
        for index, size in enumerate((batch, labels)):
            begin = at + 5 + 150 * index
            made.op("aten::copy_", begin, begin + 115)
            made.copy(f"HtoD ({memory} -> Device)", (begin + 5, begin + 15), (begin + 10, begin + 105), size)
            made.call("cudaStreamSynchronize", begin + 16, begin + 110)
        made.launch(GEMM, (at + 310, at + 315), (at + 320, at + 590))
    assert found(made.trace(), rule)["what"].startswith(said)


@pytest.mark.parametrize("operator", ["aten::ctc_loss", "aten::index", "aten::to"])
def test_what_an_operator_copies_itself_cannot_be_pinned(operator: str) -> None:
    made = Made()
    for _, at in made.steps(600):
        made.op(operator, at + 4, at + 300)
        for index, (name, size) in enumerate(
            (("HtoD (Pageable -> Device)", 512), ("DtoH (Device -> Pageable)", 4096))
        ):
            begin = at + 10 + 100 * index
            made.op("aten::copy_", begin, begin + 90)
            made.copy(name, (begin + 5, begin + 85), (begin + 20, begin + 80), size)
        made.launch(GEMM, (at + 310, at + 315), (at + 320, at + 590))
    rows = [
        row
        for row in advise(made.trace()).table("findings").rows.to_dicts()
        if row["rule"] == "pageable-memory"
    ]
    if operator == "aten::to":
        assert len(rows) == 2
        assert any("pin_memory" in row["instead"] for row in rows)
        return
    [row] = rows
    name = operator.removeprefix("aten::")
    assert row["what"].startswith(
        f"{name} copies arguments between the device and pageable memory itself, 2 times"
    )
    assert "pin" not in row["instead"]
    assert row["wins_ns"] > 0


@pytest.mark.parametrize(("begun", "size", "slow"), [(15, 1 << 20, True), (108, 4096, False)])
def test_the_speed_of_a_copy_is_named_where_it_matters(begun: float, size: int, slow: bool) -> None:
    made = Made()
    for _, at in made.steps(400):
        made.op("aten::copy_", at + 5, at + 120)
        made.copy("DtoH (Device -> Pageable)", (at + 10, at + 112), (at + begun, at + 110), size)
        made.launch(GEMM, (at + 130, at + 135), (at + 140, at + 390 + begun))
    row = found(made.trace(), "pageable-memory")
    assert ("link speed" in row["because"]) == slow


@pytest.mark.parametrize(
    ("operator", "at_ns", "then", "made_there"),
    [
        ("arange", 5, (), True),
        ("zeros", 5, (), True),
        ("stack", 5, (), False),
        ("arange", 300, (), False),
        ("arange", 3, ("index",), False),
        ("zeros", 3, ("index_put_",), False),
    ],
)
def test_what_is_made_on_the_cpu_for_a_copy_is_better_made_on_the_device(
    operator: str, at_ns: int, then: tuple[str, ...], made_there: bool
) -> None:
    made = Made()
    for _, at in made.steps(400):
        made.op(f"aten::{operator}", at + at_ns, at + at_ns + 3)
        for name in then:
            made.op(f"aten::{name}", at + 7, at + 9)
        made.op("aten::copy_", at + 9, at + 120)
        made.copy("HtoD (Pageable -> Device)", (at + 10, at + 115), (at + 15, at + 110), 1 << 20)
        made.launch(GEMM, (at + 130, at + 135), (at + 140, at + 290))
        made.launch(GEMM, (at + 310, at + 315), (at + 320, at + 390))
    row = found(made.trace(), "pageable-memory")
    assert ("device=..." in row["instead"]) == made_there
    assert ("DataLoader" in row["instead"]) != made_there, "a batch is picked"


def test_a_copy_that_starts_the_device_is_not_what_pinned_memory_saves() -> None:
    made, at = Made(), 0
    for number in range(6):
        begun = at + (1_000_000 if number == 0 else 100)
        made.op("aten::copy_", at + 5, begun + 120)
        made.copy("HtoD (Pageable -> Device)", (at + 10, begun + 110), (begun, begun + 100), 1 << 20)
        made.launch(GEMM, (begun + 130, begun + 135), (begun + 140, begun + 390))
        at = begun + 400
    trace = made.trace()
    reports = {"sync_events": run("sync_events", trace)}
    [advised] = pageable_memory.find(trace, Evidence(trace, reports))
    assert advised.edit.host.keep[0] > 0.99
    assert advised.edit.host.keep[1:].max() == 0


@pytest.mark.parametrize(
    ("operator", "inside", "track", "advised"),
    [
        ("aten::hann_window", (), MAIN, True),
        ("aten::hann_window", ("aten::arange", "aten::slice"), MAIN, True),
        ("aten::reshape", (), MAIN, False),
        ("aten::unflatten_dense_tensors", ("aten::narrow", "aten::view"), MAIN, False),
        ("aten::index", ("aten::as_strided",), MAIN, True),  # it takes a quarter of the time
        ("aten::hann_window", (), BACKWARD, False),
    ],
)
def test_what_is_computed_on_the_cpu_between_launches(
    operator: str, inside: Sequence[str], track: int, advised: bool
) -> None:
    made = Made()
    for _, at in made.steps(400):
        made.launch(GEMM, (at + 5, at + 10), (at + 12, at + 60))
        made.op(operator, at + 20, at + 220, track=track)
        for index, name in enumerate(inside):
            made.op(name, at + 30 + 60 * index, at + 80 + 60 * index, track=track)
        made.launch(GEMM, (at + 230, at + 240), (at + 242, at + 390))
    trace = made.trace()
    if not advised:
        assert finding(trace, "host-operators") is None
        return
    row = found(trace, "host-operators")
    assert f"200 µs a step: {operator.removeprefix('aten::')}" in row["what"]
    assert 0 < row["wins_ns"] <= 200_000


@pytest.mark.parametrize("on_device", [True, False])
def test_the_step_counters_of_an_optimizer_are_no_computation_of_the_script(on_device: bool) -> None:
    made = Made()
    for _, at in made.steps(400):
        made.add("annotation", OPTIMIZER, at + 15, at + 300)
        made.op("aten::_foreach_add_", at + 20, at + 220)
        made.op("aten::_foreach_mul_", at + 230, at + 250)
        begun = at + (235 if on_device else 335)
        made.launch(GEMM, (begun, begun + 5), (begun + 8, begun + 40))
    assert (finding(made.trace(), "host-operators") is None) == on_device


@pytest.mark.parametrize(
    ("busy_cores", "loads", "faster"), [(8.0, False, True), (1.2, False, False), (8.0, True, False)]
)
def test_threads_that_spin_after_operators_on_the_cpu_slow_the_host(
    busy_cores: float, loads: bool, faster: bool
) -> None:
    """The other 600 µs of host time of a step take less if no threads of its operators are left."""
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::hann_window", at + 20, at + 420)
        if loads:  # the cores may be busy with workers
            made.add("annotation", "enumerate(DataLoader)#_X.__next__", at + 421, at + 422)
        made.op("aten::mm", at + 430, at + 990)
        made.launch(GEMM, (at + 440, at + 450), (at + 452, at + 472))
    trace = in_session(made.trace(), 1e6, busy_cores=busy_cores)
    row = found(trace, "host-operators")
    assert row["wins_ns"] == pytest.approx(360_000 + faster * 0.05 * 600_000, rel=0.03)
    assert row["wins_low_ns"] <= 360_000, "or they take as long"
    assert ("other cores busy" in row["because"]) == faster


@pytest.mark.parametrize(
    ("busy_cores", "long_ms", "rare"),
    [
        (8.0, (9, 21), True),
        (8.0, (29,), False),
        (8.0, (2, 2), False),
        (8.0, (500, 500), False),  # of an evaluation
        (1.0, (9, 21), False),
    ],
)
def test_steps_in_which_threads_of_operators_wait_for_a_core_count_half(
    busy_cores: float, long_ms: Sequence[float], rare: bool
) -> None:
    """Two of ten steps of the session take 28 ms more together."""
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::hann_window", at + 20, at + 420)
        made.launch(GEMM, (at + 440, at + 450), (at + 452, at + 472))
    trace = made.trace()
    times = [1_000_000] * (10 - len(long_ms)) + [round(ms * 1e6) for ms in long_ms]
    trace.uncaptured = Uncaptured(10, 1e6, 0.7e6, 1e6, busy_cores=busy_cores, times_ns=tuple(times))
    row = found(trace, "host-operators")
    assert (row["wins_ns"] > 1_400_000) == ("few steps" in row["because"]) == rare
    assert row["wins_low_ns"] <= 360_000


def test_threads_that_spin_do_so_only_for_a_while_after_an_operator() -> None:
    made = Made()
    for _, at in made.steps(100_000):
        made.op("aten::hann_window", at, at + 3_000)
        made.op("aten::mm", at + 3_000, at + 100_000)
        made.launch(GEMM, (at + 3_010, at + 3_020), (at + 3_022, at + 3_042))
    trace = in_session(made.trace(), 1e8, busy_cores=8.0)
    assert found(trace, "host-operators")["wins_ns"] == pytest.approx(0.9 * 3e6 + 0.05 * 10e6, rel=0.02)


@pytest.mark.parametrize(
    ("between", "second", "once_more"),
    [
        ((), "aten::copy_", True),
        (("aten::slice",), "aten::copy_", True),
        ((), "aten::argmax", False),
        (("aten::mm",), "aten::copy_", False),
    ],
)
def test_what_is_read_into_pageable_memory_and_copied_again_is_copied_once(
    between: Sequence[str], second: str, once_more: bool
) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::to", at + 10, at + 220)
        made.copy("DtoH (Device -> Pageable)", (at + 15, at + 215), (at + 20, at + 210), 1 << 20)
        for index, operator in enumerate(between):
            made.op(operator, at + 221 + 10 * index, at + 225 + 10 * index)
            if operator == "aten::mm":
                made.launch(GEMM, (at + 222, at + 223), (at + 226, at + 230))
        made.op(second, at + 240, at + 640)
        made.op("aten::mm", at + 650, at + 990)
        made.launch(GEMM, (at + 660, at + 670), (at + 672, at + 690))
    row = found(made.trace(), "pageable-memory")
    assert (row["wins_ns"] > 400_000) == once_more
    assert ("once more, on the CPU" in row["because"]) == once_more
    # The copy leaves threads behind, which slow the other operators.
    assert (wins_by_busy_cores(made, 8.0) > wins_by_busy_cores(made, 1.0) + 10_000) == once_more


@pytest.mark.parametrize(("then", "kept"), [("lerp_", True), ("add_", True), ("argmax", False)])
def test_what_the_cpu_averages_with_what_is_read_is_better_kept_on_the_device(then: str, kept: bool) -> None:
    """As averaged weights, of large tensors and of small ones."""
    made = Made()
    for _, at in made.steps(1000):
        for begin, takes in ((at, 400), (at + 650, 10), (at + 800, 10)):
            made.op("aten::to", begin + 10, begin + 120)
            made.copy(
                "DtoH (Device -> Pageable)", (begin + 15, begin + 115), (begin + 20, begin + 110), 1 << 20
            )
            made.op(f"aten::{then}", begin + 125, begin + 125 + takes)
    row = found(made.trace(), "pageable-memory")
    assert (row["wins_ns"] > 600_000) == kept
    assert row["instead"].startswith(f"keep on the device what {then} computes") == kept
    assert "pinned tensor" in row["instead"]


def wins_by_busy_cores(made: Made, busy_cores: float) -> float:
    return float(found(in_session(made.trace(), busy_cores=busy_cores), "pageable-memory")["wins_ns"])


@pytest.mark.parametrize(
    ("made_in", "track", "filled", "made_there"),
    [
        (4, MAIN, False, True),
        (2, MAIN, False, False),  # as often as something else
        (4, BACKWARD, False, False),  # by another thread
        (4, MAIN, True, False),  # on the device, so it is not what is copied
    ],
)
def test_what_is_copied_is_constant_if_its_thread_has_just_made_it_on_the_cpu(
    made_in: int, track: int, filled: bool, made_there: bool
) -> None:
    made = Made()
    for number in range(4):
        at = number * 400
        name = "zeros" if number < made_in else "neg"
        made.step(number, at, at + 400).op(f"aten::{name}", at + 3, at + 7, track=track)
        if filled:
            made.launch(ELEMENTWISE, (at + 4, at + 5), (at + 6, at + 7))
        made.op("aten::copy_", at + 9, at + 120)
        made.copy("HtoD (Pageable -> Device)", (at + 10, at + 115), (at + 15, at + 110), 1 << 20)
        made.launch(GEMM, (at + 130, at + 135), (at + 140, at + 390))
    row = found(made.trace(), "pageable-memory")
    assert ("device=..." in row["instead"]) == made_there


def test_threads_that_other_operators_need_too_still_spin() -> None:
    made = Made()
    for _, at in made.steps(2000):
        made.op("aten::to", at + 10, at + 220)
        made.copy("DtoH (Device -> Pageable)", (at + 15, at + 215), (at + 20, at + 210), 1 << 20)
        made.op("aten::copy_", at + 240, at + 640).op("aten::hann_window", at + 650, at + 1050)
        made.op("aten::mm", at + 1060, at + 1990)
        made.launch(GEMM, (at + 1070, at + 1080), (at + 1082, at + 1090))
    assert wins_by_busy_cores(made, 8.0) == pytest.approx(wins_by_busy_cores(made, 1.0), rel=0.001)


@pytest.mark.parametrize(
    ("operator", "memory", "size", "loaded_after", "copied"),
    [
        ("to", "Pageable", 1 << 20, False, True),
        ("zeros", "Pageable", 1 << 20, False, True),
        ("to", "Pageable", 1 << 20, True, False),
        ("zeros", "Pageable", 1 << 20, True, False),
        ("to", "Pageable", 64, False, False),
        ("to", "Pinned", 1 << 20, False, False),
    ],
)
def test_a_batch_that_is_computed_on_the_cpu_is_better_copied_as_it_was_loaded(
    operator: str, memory: str, size: int, loaded_after: bool, copied: bool
) -> None:
    made = Made()
    for _, at in made.steps(500):
        made.op(f"aten::{operator}", at + 5, at + 80).op("aten::div", at + 80, at + 138)
        if loaded_after:  # what is computed is no batch, but metrics of the previous step
            made.add("annotation", "enumerate(DataLoader)#_X.__next__", at + 138, at + 139)
        made.op("aten::copy_", at + 140, at + 260)
        made.copy(f"HtoD ({memory} -> Device)", (at + 145, at + 255), (at + 150, at + 250), size)
        made.launch(GEMM, (at + 270, at + 275), (at + 280, at + 490))
    row = found(made.trace(), "host-operators")
    assert f"133 µs a step: {operator}, div" in row["what"]
    assert ("; then the result is copied" in row["what"]) == copied
    assert ("pinned memory" in row["instead"]) == (copied and operator == "to")
    assert ("which needs no copy" in row["instead"]) == (copied and operator == "zeros")
    assert (row["wins_ns"] > 0.9 * 133_000 + 50_000) == copied, "the copy too, at the speed of the link"


@pytest.mark.parametrize(("idle_us", "advised"), [((40, 40, 40), True), ((100, 5, 5), False)])
def test_waits_that_save_little_one_by_one(idle_us: tuple[int, ...], advised: bool) -> None:
    made, at = Made(), 0.0
    for number in range(4):
        made.step(number, at, at + 3 * 110 + sum(idle_us))
        for place, idle in enumerate(idle_us):
            made.launch(GEMM, (at, at + 5), (at + 8, at + 100))
            made.op("aten::item", at + 6, at + 110)
            made.call("cudaStreamSynchronize", at + 7, at + 105)
            made.site(at + 104, f"train.py:{place + 1} part_{place + 1}")
            at += 110 + idle
    trace = made.trace()
    if not advised:
        assert finding(trace, "waits-in-turn") is None, "one of them saves most of it"
        return
    row = found(trace, "waits-in-turn")
    assert "at 3 places" in row["what"]
    assert "part_1" in row["where"]
    assert row["instead"].endswith("the host runs ahead of the device")


def test_waits_of_a_trainer_name_its_arguments() -> None:
    """The script cannot change the lines of a framework that wait."""
    library = "/env/lib/python3.12/site-packages"
    made = Made()
    for _, at in made.steps(540):
        for place, operator in enumerate(("item", "to", "item")):
            begin = at + 180 * place
            made.launch(GEMM, (begin, begin + 5), (begin + 8, begin + 100))
            made.op(f"aten::{operator}", begin + 6, begin + 110)
            if operator == "to":
                work = begin + 101, begin + 104
                made.copy("HtoD (Pageable -> Device)", (begin + 7, begin + 104), work, 1 << 16)
            else:
                made.call("cudaStreamSynchronize", begin + 7, begin + 105)
            line = f"{library}/transformers/trainer.py:{place + 1} part_{place}"
            made.site(begin + 104, line)
    trace = in_session(made.trace(), 540e3, trainer="transformers")
    instead = found(trace, "waits-in-turn")["instead"]
    assert '"non_blocking": True' in instead
    assert "logging_steps=N" in instead


@pytest.mark.parametrize(("function", "advised"), [("all_gather_object", True), ("all_gather", False)])
def test_objects_that_are_exchanged_in_every_step(function: str, advised: bool) -> None:
    made = Made()
    inner = "/site-packages/torch/distributed/distributed_c10d.py"
    for _, at in made.steps(1000):
        for part in range(2):
            begin = at + 20 + part * 500
            made.launch(GEMM, (begin, begin + 5), (begin + 8, begin + 50))
            made.op("aten::item", begin + 6, begin + 60)
            made.call("cudaStreamSynchronize", begin + 7, begin + 55)
            frames = f"{inner}:3233 _tensor_to_object", f"{inner}:3329 {function}", "train.py:7 log"
            made.site(begin + 54, *(frames if advised else frames[1:]))
        made.op("aten::cat", at + 100, at + 500)  # what else it does between its two waits
    row = finding(made.trace(), "object-collective")
    assert (row is not None) == advised
    if row is not None:
        assert "all_gather_object() sends Python objects every step" in row["what"]
        assert "train.py:7" in row["where"]
        assert row["wins_ns"] > row["wins_low_ns"] + 300_000


def test_a_metric_that_is_computed_in_every_step() -> None:
    made = Made()
    for _, at in made.steps(200):
        made.launch("gemm", (at, at + 5), (at + 10, at + 90))
        made.add("python_function", "torchmetrics/metric.py(600): compute", at + 15, at + 99)
        made.op("aten::_local_scalar_dense", at + 20, at + 98)
        made.copy("DtoH (Device -> Pageable)", (at + 30, at + 92), (at + 90, at + 91), 4)
        made.call("cudaStreamSynchronize", at + 93, at + 96)
        made.launch("add", (at + 115, at + 120), (at + 122, at + 190))
    assert "compute() every N steps" in found(made.trace(), "metric-compute")["instead"]


def test_what_a_metric_computes_between_its_waits_is_not_free() -> None:
    def metric(operators: int) -> dict[str, Any]:
        made = Made()
        for _, at in made.steps(1000):
            made.add("python_function", "torchmetrics/metric.py(600): compute", at + 5, at + 900)
            for part in range(2):
                begin = at + 10 + part * 700
                made.op("aten::_local_scalar_dense", begin, begin + 30)
                made.copy("DtoH (Device -> Pageable)", (begin + 5, begin + 15), (begin + 12, begin + 14), 4)
                made.call("cudaStreamSynchronize", begin + 18, begin + 25)
            for one in range(operators):
                begin = at + 50 + one * 60
                made.op("aten::cumsum", begin, begin + 55)
                made.launch("scan", (begin + 5, begin + 50), (begin + 52, begin + 54))
            made.launch("add", (at + 920, at + 925), (at + 930, at + 990))
        return found(made.trace(), "metric-compute")

    alone, computing = metric(0), metric(10)
    assert computing["wins_ns"] > alone["wins_ns"] + 200_000
    assert computing["wins_low_ns"] < alone["wins_ns"] + 20_000, "updating the metric may be all of it"


def reading(*lines: str) -> list[tuple[str, str]]:
    """Return what is said of the loops in steps, and where they are: one at each of these lines, which all read."""
    made = Made()
    for _, at in made.steps(2_000 * (len(lines) + 1)):
        for line in lines:
            for index in range(20):
                begin = at + 10 + index * 90
                for part, op in enumerate(("aten::index", "aten::norm")):
                    start = begin + part * 20
                    made.op(op, start, start + 18)
                    made.launch(REDUCE, (start + 5, start + 9), (start + 12, start + 15))
                made.op("aten::item", begin + 40, begin + 80)
                made.call("cudaStreamSynchronize", begin + 42, begin + 75)
                made.site(begin + 74, line)
            made.op("aten::item", at + 1_900, at + 1_950)
            made.call("cudaStreamSynchronize", at + 1_910, at + 1_940)
            made.site(at + 1_939, "train.py:9 log")
            made.op("aten::linear", at + 1_960, at + 1_990)
            made.launch(GEMM, (at + 1_962, at + 1_970), (at + 1_972, at + 1_988))
            at += 2_000
    rows = advise(made.trace()).table("findings").rows.filter(pl.col("rule") == "kernel-loop")
    return rows.select("what", "where").rows()


def test_the_line_of_a_loop_is_known_by_its_waits() -> None:
    ((what, where),) = reading("train.py:7 clip")
    assert "20 times in a row" in what
    assert where == "clip, train.py:7"


def test_loops_at_two_lines_are_findings_of_their_own() -> None:
    found_ = reading("train.py:7 clip", "train.py:30 log", "train.py:7 clip")
    assert [where for _, where in found_] == ["clip, train.py:7", "log, train.py:30"]
    assert found_[0][0].endswith(", one of 2 loops a step")


@pytest.mark.parametrize(
    ("computes", "makes", "differentiated", "size"),
    [
        ("aten::max", "aten::new_zeros", False, True),
        ("aten::sum", "aten::arange", False, True),
        ("aten::sum", "aten::add", False, False),
        ("aten::mean", "aten::new_zeros", False, False),
        ("aten::sum", "aten::zeros", True, False),
    ],
)
def test_a_size_is_computed_and_read_if_a_tensor_is_made_right_after(
    computes: str, makes: str, differentiated: bool, size: bool
) -> None:
    """The largest index of each graph says how many rows it has."""
    made = Made()
    for number, at in made.steps(400):
        made.op(computes, at + 10, at + 100, sequence=number if differentiated else None)
        made.launch(REDUCE, (at + 15, at + 19), (at + 22, at + 25))
        made.op("aten::item", at + 110, at + 150)
        made.call("cudaStreamSynchronize", at + 115, at + 145)
        made.op(makes, at + 160, at + 190)
        made.launch(GEMM, (at + 165, at + 170), (at + 175, at + 380))
        if differentiated:
            made.op("autograd::engine::evaluate_function: SumBackward0", at + 200, at + 210, sequence=number)
        made.site(at + 151, "train.py:9 pooled")
    trace = made.trace()
    row = finding(trace, "size-from-device")
    assert (row is not None) == size
    assert (finding(trace, "item-each-step") is None) == size, "one of them says what to change"
    if row is not None:
        assert "train.py:9" in row["where"]
        assert row["wins_ns"] > 120_000, "neither the operator nor the read"


def test_the_line_of_a_mask_is_that_of_its_forward_pass() -> None:
    """The backward pass of a mask may wait for longer, but the script cannot change it."""
    made = Made()
    for number, at in made.steps(600):
        made.op("aten::index", at + 10, at + 60, sequence=number)
        made.op("aten::nonzero", at + 12, at + 50)
        made.call("cudaStreamSynchronize", at + 20, at + 40)
        made.launch(GEMM, (at + 65, at + 70), (at + 75, at + 380))
        made.op("autograd::engine::evaluate_function: IndexBackward0", at + 100, at + 500, sequence=number)
        made.op("aten::_index_put_impl_", at + 110, at + 490)
        made.op("aten::nonzero", at + 115, at + 480)
        made.call("cudaStreamSynchronize", at + 120, at + 470)
        made.launch(REDUCE, (at + 482, at + 485), (at + 487, at + 560))
        made.site(at + 61, "train.py:9 parts")
    row = found(made.trace(), "size-from-device")
    assert "train.py:9" in row["where"]
    assert "2 times a step" in row["what"]


@pytest.mark.parametrize(("sizes", "advised"), [(10, True), (9, True), (5, False)])
def test_a_function_that_reads_sizes_and_other_values(sizes: int, advised: bool) -> None:
    made = Made()
    for _, at in made.steps(2_000):
        for index in range(10):
            begin = at + 10 + index * 190
            made.op("aten::sum", begin, begin + 40)
            made.launch(REDUCE, (begin + 5, begin + 9), (begin + 12, begin + 20))
            made.op("aten::item", begin + 50, begin + 90)
            made.call("cudaStreamSynchronize", begin + 55, begin + 85)
            made.op("aten::zeros" if index < sizes else "aten::mul", begin + 100, begin + 130)
            made.launch(GEMM, (begin + 105, begin + 109), (begin + 112, begin + 180))
            made.site(begin + 91, "train.py:9 value")
    assert (finding(made.trace(), "size-from-device") is not None) == advised


@pytest.mark.parametrize(
    ("reads", "moved", "ends", "rule"),
    [
        ("aten::item", 8, 395, "size-from-device"),
        ("aten::item", 4, 395, "item-each-step"),  # a float32, as a value to fill a tensor with
        ("aten::is_nonzero", 8, 395, "item-each-step"),
        ("aten::item", 8, 155, "item-each-step"),  # a metric; the next step begins with an arange
    ],
)
def test_a_value_that_is_read_is_not_always_a_size(reads: str, moved: int, ends: float, rule: str) -> None:
    made = Made()
    for number in range(5):
        at = number * 400
        made.step(number, at - 400 + ends, at + ends)
        made.op("aten::sum", at + 10, at + 100)
        made.launch(REDUCE, (at + 15, at + 19), (at + 22, at + 25))
        made.op(reads, at + 110, at + 150).op("aten::_local_scalar_dense", at + 111, at + 149)
        made.copy("DtoH (Device -> Pageable)", (at + 112, at + 114), (at + 113, at + 114), moved)
        made.call("cudaStreamSynchronize", at + 115, at + 145)
        made.op("aten::arange", at + 160, at + 190)
        made.launch(GEMM, (at + 165, at + 170), (at + 175, at + 380))
    trace = made.trace()
    for name in ("size-from-device", "item-each-step"):
        assert (finding(trace, name) is not None) == (name == rule), name


def test_many_reads_are_one_where_they_are_a_loop() -> None:
    """A norm of each gradient, read one by one: at best they are all read at once."""
    made = Made()
    for _, at in made.steps(2_000):
        for index in range(20):
            begin = at + 10 + index * 90
            made.op("aten::norm", begin, begin + 20)
            made.launch(REDUCE, (begin + 5, begin + 9), (begin + 12, begin + 30))
            made.op("aten::item", begin + 25, begin + 80).op(
                "aten::_local_scalar_dense", begin + 26, begin + 79
            )
            made.copy("DtoH (Device -> Pageable)", (begin + 28, begin + 70), (begin + 60, begin + 61), 4)
            made.call("cudaStreamSynchronize", begin + 71, begin + 75)
            made.site(begin + 81, "train.py:9 clip")
    row = found(made.trace(), "item-each-step")
    assert row["wins_high_ns"] > 1.2 * row["wins_ns"], "the norms themselves are one call then"
    assert "20 times a step" in row["what"]


def calling_back(*, every: int = 1, framework: str = "JAX 0.10.2") -> Trace:
    """Steps of a compiled function that calls Python for 300 µs."""
    made = Made()
    for number, at in made.steps(1000):
        made.op("PjitFunction(step)", at + 10, at + 90)
        if number % every == 0:
            for name, begin, end in (
                ("callback.py(74): pure_callback_impl", 100, 400),
                ("api.py(2035): device_put", 101, 120),
                ("callback.py(69): __call__", 130, 395),
                ("tree_util.py(95): tree_unflatten", 131, 133),
                ("$builtins len", 134, 135),
                ("train.py(12): lookup", 136, 394),
            ):
                made.add("python_function", name, at + begin, at + end)
        made.op("dot.1", at + 410, at + 990)
    return made.trace(framework=framework)


def test_a_thread_that_only_copies_batches_is_not_the_main_thread() -> None:
    made, python = Made(), {"track": BACKWARD}
    for number in range(8):
        at, correlation = number * 1000, 2 * number + 1
        made.add("annotation", "load_batch", at + 10, at + 910, **python)
        made.call("cudaMemcpyAsync", at + 915, at + 920, correlation=correlation)
        made.kernel("MemcpyH2D", at + 922, at + 925, correlation, category="memcpy")
        made.op("PjitFunction(step)", at + 920, at + 950, **python)
        made.call("cuGraphLaunch", at + 930, at + 940, correlation=correlation + 1, **python)
        made.kernel(GEMM, at + 945, at + 990, correlation + 1)
    row = found(made.trace(framework="JAX 0.11.2"), "loader-workers")
    assert row["share"] > 0.4


def test_without_a_callback_the_host_does_not_wait_for_its_arguments() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("PjitFunction(step)", at + 10, at + 30)
        made.launch(GEMM, (at + 12, at + 20), (at + 40, at + 440))
        made.op("debug_callback.3", at + 40, at + 900)
        made.call("cudaStreamSynchronize", at + 45, at + 450)
        made.add("python_function", "debugging.py(84): debug_callback_impl", at + 500, at + 700)
        made.op("dot.1", at + 910, at + 930)
        made.launch(GEMM, (at + 912, at + 920), (at + 940, at + 980))
    trace = made.trace(framework="JAX 0.10.2")
    row = found(trace, "host-callback")
    # What remains is the device's own work, 440 µs a step.
    assert row["wins_ns"] == pytest.approx(560_000, rel=0.05)
    assert row["wins_low_ns"] <= 200_000
    assert finding(trace, "launch-bound") is None, "the device waits for the callback, not for launches"


def test_a_compiled_function_that_calls_back_is_named_by_what_it_calls() -> None:
    row = found(calling_back(), "host-callback")
    assert row["where"] == "train.py lookup() from line 12"
    assert row["wins_ns"] == pytest.approx(300_000, rel=0.01)
    assert "every step" in row["what"]
    assert finding(calling_back(every=2), "host-callback") is None, "now and then"
    assert finding(calling_back(framework="PyTorch 2.11"), "host-callback") is None


def run_one_by_one(calls: int, *, framework: str = "JAX 0.10.2", on_device: bool = False) -> Trace:
    """Steps that differentiate a loss of some operations outside of a jit, 30 µs each, of which 3 µs compute."""
    made = Made()
    for number, at in made.steps(1000):
        end = number * 1000 + 40 + 30 * calls
        made.add("python_function", "train.py(17): train_step", at + 1, end + 2)
        made.add("python_function", "api.py(528): value_and_grad_f", at + 2, end + 1)
        made.add("python_function", "train.py(12): loss", at + 3, end)
        for call in range(calls):
            begin = at + 10 + 30 * call
            made.add("python_function", "ufuncs.py(2602): power", begin, begin + 30)
            made.op("PjitFunction(mul)", begin + 1, begin + 29)
            made.op("PjitFunction(add)", begin + 2, begin + 20)
            made.op("wrapped_multiply", begin + 5, begin + 8, thread=BACKWARD)
        if on_device:
            made.launch("fusion", (at + 10, at + 12), (at + 12, at + 20))
    return made.trace(framework=framework)


def test_operations_of_jax_outside_of_a_jit_are_named_by_the_function_to_compile() -> None:
    row = found(run_one_by_one(30), "uncompiled-step")
    assert row["where"] == "train.py train_step() from line 17", "not the loss in it, nor a file of JAX"
    assert "30 operations a step" in row["what"], "a call within a call is none of its own"
    took = 938_000
    assert row["wins_ns"] == pytest.approx(took - 0.8 * 90_000 - 0.05 * took, rel=0.01)
    assert row["wins_low_ns"] <= took - 90_000 - 0.3 * took
    assert finding(run_one_by_one(8), "uncompiled-step") is None, "a few compiled functions"
    assert finding(run_one_by_one(30, framework="PyTorch 2.11"), "uncompiled-step") is None
    assert finding(run_one_by_one(30, on_device=True), "uncompiled-step") is None, (
        "what it costs is another question"
    )


@pytest.mark.parametrize(
    ("framework", "function"),
    [("JAX 0.11.2", "train.py loss() from line 12"), ("PyTorch 2.11", "ufuncs.py power() from line 2602")],
)
def test_files_of_jax_are_not_the_users_function(framework: str, function: str) -> None:
    trace = run_one_by_one(3, framework=framework)
    assert Evidence(trace, {}).function_of(int(trace.operators("mul")[0])) == function


@pytest.mark.parametrize(
    ("busy", "idle", "usable", "op_us", "threads", "now"),
    [
        (1.0, 3.2, 4, 900, 4, None),
        (1.0, 3.2, 4, 900, 4, 1),
        (1.0, 3.2, 4, 900, None, 4),  # they may use them, but do not
        (1.0, 7.0, 2, 900, 2, None),  # it may not use the others
        (1.0, 0.3, 4, 900, None, None),  # somebody else does
        (3.6, 0.9, 4, 900, None, None),  # it has its threads
        (1.0, 3.0, 1, 900, None, None),
        (1.0, 3.0, 4, 90, None, None),  # operators too short to be shared
    ],
)
def test_operators_on_one_core_of_several(
    busy: float, idle: float, usable: int, op_us: float, threads: int | None, now: int | None
) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::addmm", at + 10, at + 10 + op_us)
    known = {"usable_cores": usable, "busy_cores": busy, "idle_cores": idle, "threads": now}
    trace = in_session(made.trace(), 1e6, **known)
    row = finding(trace, "cpu-threads")
    assert (row is not None) == (threads is not None)
    if row is not None and threads is not None:
        assert f"set_num_threads({threads})" in row["instead"]
        assert row["wins_ns"] == pytest.approx(900_000 * (1 - 1 / (1 + 0.5 * (threads - 1))), rel=0.02)


@pytest.mark.parametrize(
    ("faults", "share", "saved_us"),
    [
        (200, 0.5, 360),  # 1.8 µs each
        (400, 0.5, 500),  # no more than the operating system takes
        (190, 0.5, None),
        (400, 0.04, None),
    ],
)
def test_memory_that_is_requested_again_in_every_step(
    faults: int, share: float, saved_us: float | None
) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::addmm", at + 10, at + 910)
    trace = in_session(made.trace(), 1e6, page_faults=PageFaults(faults, share))
    row = finding(trace, "page-faults")
    assert (row is not None) == (saved_us is not None)
    if row is not None:
        assert f"{faults} page faults a step" in row["what"]
        assert row["wins_ns"] == pytest.approx(1e3 * saved_us, rel=0.01)
        assert row["wins_low_ns"] == 0
        assert "MALLOC_MMAP_MAX_=0" in row["instead"]


def test_page_faults_that_the_capture_lacks() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::addmm", at + 10, at + 910)
    trace = in_session(made.trace(), 1.3e6, page_faults=PageFaults(200, 0.5))
    row = found(trace, "page-faults")
    assert row["wins_ns"] == pytest.approx(360_000, rel=0.01)  # though the capture is faster by 300 µs


def test_a_capture_that_is_faster_than_the_session_is_not_called_slower_by_a_negative_share() -> None:
    trace = in_session(products("avx512_bf16"), 2e6, bf16="avx512_bf16")
    assert "(50.0 % less)" in " ".join(report("advice", trace).notes)


def with_weights(trace: Trace, types: dict[str, int], *layout: int, bf16: str | None = None) -> Trace:
    """Return a trace of a session that has seen the parameters in the capture; no types = it has not."""
    low, high = trace.span
    weights = Weights(types, *layout) if types else None
    return in_session(trace, (high - low) / len(trace.steps), bf16=bf16, weights=weights)


def products(bf16: str | None, *, cast: bool = False, name: str = "aten::linear", us: float = 600) -> Trace:
    """Four steps on a CPU, most of them in one product."""
    made = Made()
    for _, at in made.steps(1000):
        made.op(name, at + 10, at + 10 + us).op("aten::relu", at + 950, at + 990)
        if cast:
            made.op("aten::to", at + 11, at + 40).op("aten::_to_copy", at + 12, at + 39)
    return in_session(made.trace(), 1e6, bf16=bf16)


@pytest.mark.parametrize(
    ("bf16", "cast", "us", "keep"),
    [
        ("amx_bf16", False, 600, 0.4 + 25 / 600),  # with the casts
        ("avx512_bf16", False, 600, 0.28 + 25 / 600),
        ("bf16", False, 600, 0.6 + 25 / 600),
        ("", False, 600, None),  # some 20 times slower there
        (None, False, 600, None),
        ("amx_bf16", True, 600, None),  # it is autocast already
        ("amx_bf16", False, 100, None),
    ],
)
def test_bfloat16_is_advised_where_the_processor_has_it(
    bf16: str | None, cast: bool, us: float, keep: float | None
) -> None:
    row = finding(products(bf16, cast=cast, us=us), "cpu-bfloat16")
    assert (row is None) == (keep is None)
    if row is not None and keep is not None:
        assert row["wins_ns"] == pytest.approx(us * 1000 * (1 - keep), rel=0.02)
        assert bf16 is not None
        assert bf16 in row["what"]


def test_many_small_products_gain_nothing_by_another_type() -> None:
    made = Made()
    for number in range(4):
        made.step(number, number * 1000, number * 1000 + 1000)
        for at in range(number * 1000 + 10, number * 1000 + 910, 30):
            made.op("aten::linear", at, at + 25)
    trace = with_weights(made.trace(), {"float32": 10}, bf16="avx512_bf16")
    assert finding(trace, "cpu-bfloat16") is None


@pytest.mark.parametrize(
    ("weights", "kind", "sure"),
    [
        ({"float32": 30, "int64": 10}, None, "medium"),
        ({"float32": 10, "float64": 30}, None, None),  # autocast leaves them as they are
        ({"bfloat16": 30}, None, None),
        ({}, None, "low"),  # not recorded
        ({}, "float", "medium"),
        ({"float32": 30}, "double", None),  # what was computed counts
    ],
)
def test_bfloat16_is_advised_for_float32(weights: dict[str, int], kind: str | None, sure: str | None) -> None:
    trace = with_weights(products(None), weights, bf16="avx512_bf16")

    with_arguments(trace, lambda _: {"Input Dims": [[8, 8]], "Input type": [kind]} if kind else {})
    row = finding(trace, "cpu-bfloat16")
    assert (row["sure"] if row is not None else None) == sure
    if row is not None:
        assert ("float32" in row["what"]) == (sure == "medium")
        assert (row["wins_low_ns"] > 0) == (sure == "medium")


def convolutions(*more: tuple[str, float], us: float = 300) -> Made:
    """Steps on a CPU of a convolution with its backward pass, a product, and other operators."""
    own = ("aten::conv2d", us), ("aten::linear", us), (f"{AUTOGRAD}: ConvolutionBackward0", 2 * us)
    made, at = Made(), 0.0
    for number in range(4):
        began = at
        for name, took in (*own, *more):
            made.op(name, at + 10, at + 10 + took)
            at += 10 + took
        made.step(number, began, at)
    return made


@pytest.mark.parametrize(("depthwise", "keep"), [(0, 0.57), (5, 1.4)])
def test_depthwise_convolutions_are_slower_in_bfloat16(depthwise: int, keep: float) -> None:
    steps = convolutions(("aten::linear", 2400), us=600)
    row = found(
        with_weights(steps.trace(), {"float32": 30}, 10, depthwise, bf16="avx512_bf16"), "cpu-bfloat16"
    )
    products, of_convolutions = 0.28 * 3000 + 2 * 25, keep * 1800 + 60 + 150
    assert row["wins_ns"] == pytest.approx(1e3 * (4800 - products - of_convolutions), rel=0.05)


def test_a_network_of_depthwise_convolutions_is_not_advised_bfloat16() -> None:
    def advised(*layout: int, known: bool = True, own: str = "aten::relu") -> bool:
        trace = convolutions((own, 100), us=600).trace()
        types = {"float32": 30} if known else {}
        return finding(with_weights(trace, types, *layout, bf16="avx512_bf16"), "cpu-bfloat16") is not None

    assert advised(10, 0)
    assert advised(10, 0, own="aten::_slow_conv2d_forward")  # float32, as far as is known
    assert not advised(10, 1)
    assert advised(known=False)
    assert not advised(known=False, own="aten::_slow_conv2d_forward")


def test_attention_backward_is_slower_in_bfloat16() -> None:
    def saving_us(attention_us: float) -> float:
        attention = f"{AUTOGRAD}: ScaledDotProductFlashAttentionForCpuBackward0", attention_us
        trace = with_weights(convolutions(attention, us=40_000).trace(), {"float32": 30}, bf16="avx512_bf16")
        return float(found(trace, "cpu-bfloat16")["wins_ns"]) / 1e3

    long = saving_us(13_000)
    assert long - saving_us(9_000) == pytest.approx(8_000, rel=0.1)
    assert long - saving_us(500) == pytest.approx(3_000, rel=0.2)


def test_casts_of_the_backward_pass_are_not_those_of_autocast() -> None:
    def advised(where: int) -> bool:
        made = convolutions()
        for row in list(made.rows):
            if row["name"].endswith(("conv2d", "linear", "ConvolutionBackward0")[where]):
                made.op("aten::_to_copy", row["ts"] / 1000 + 5, row["ts"] / 1000 + 10)
        trace = with_weights(made.trace(), {"float32": 30}, bf16="avx512_bf16")
        return finding(trace, "cpu-bfloat16") is not None

    assert [advised(where) for where in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("strides", "advised"),
    [
        ([3 * 64 * 64, 64 * 64, 64, 1], True),
        ([3 * 64 * 64, 1, 3 * 64, 3], False),  # channels last
        (None, False),  # not recorded
    ],
)
def test_channels_first_on_a_cpu(strides: list[int] | None, advised: bool) -> None:
    trace = products(None, name="aten::conv2d")
    arguments = {"Input Dims": [[8, 3, 64, 64]]} | ({"Input Strides": [strides]} if strides else {})

    row = finding(with_arguments(trace, lambda _: arguments), "cpu-channels-last")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(600_000 * 0.25, rel=0.02)


def onednn(*more: tuple[str, float], first: int, name: str = "aten::conv2d", us: float = 600) -> Trace:
    """Return steps of convolutions of oneDNN, some of them in channels-first."""
    made = convolutions(*((name, us) for _ in range(3)), *more, us=us)
    for count, row in enumerate([row for row in made.rows if row["name"] == name]):
        at = row["ts"] / 1000
        made.op("aten::mkldnn_convolution", at + 5, at + us - 5)
        if count % 4 < first:
            made.op("aten::as_strided_", at + us - 15, at + us - 10)
    return made.trace()


def test_onednn_shows_the_layout_of_its_results() -> None:
    def row(first: int, **more: Any) -> Any:
        return finding(onednn(first=first, **more), "cpu-channels-last")

    (advised,) = {row(first)["wins_ns"] for first in (3, 4)}
    assert advised == pytest.approx(0.25 * 1e3 * 4 * 600, rel=0.05)
    assert [row(first) for first in range(3)] == [None] * 3
    # Those over a sequence have one layout.
    assert row(4, name="aten::conv1d") is None
    made = convolutions(*(("aten::conv1d", 600),) * 3, ("aten::conv2d", 2400), us=600)
    for one in list(made.rows):
        if one["name"].startswith("aten::conv"):
            at = one["ts"] / 1000
            made.op("aten::mkldnn_convolution", at + 5, at + 595)
            if one["name"] == "aten::conv1d":
                made.op("aten::as_strided_", at + 500, at + 510)
    assert finding(made.trace(), "cpu-channels-last") is None


@pytest.mark.parametrize(
    ("more", "wins_us"),
    [
        ((), 0.25 * 2400),
        ((("aten::max_pool2d", 800),), 0.25 * 2400 + 0.85 * 800),
        ((("aten::adaptive_avg_pool2d", 800),), 0.25 * 2400),
        ((("aten::group_norm", 500),), 0.25 * 2400 - 0.4 * 500),
        ((("aten::batch_norm", 400),), 0.25 * 2400),  # in evaluation
    ],
)
def test_what_else_is_faster_in_channels_last_on_a_cpu(
    more: tuple[tuple[str, float], ...], wins_us: float
) -> None:
    row = found(onednn(*more, first=4), "cpu-channels-last")
    assert row["wins_ns"] == pytest.approx(1e3 * wins_us, rel=0.05)


@pytest.mark.parametrize(("norm", "wins_us"), [("batch_norm", 0.6 * 300), ("group_norm", -1.3 * (300 + 200))])
def test_norms_in_training_and_channels_last_on_a_cpu(norm: str, wins_us: float) -> None:
    made = Made()
    for number, at in made.steps(3000):
        made.op("aten::conv2d", at + 10, at + 1010, sequence=10 + number)
        made.op("aten::mkldnn_convolution", at + 20, at + 1000).op("aten::as_strided_", at + 30, at + 40)
        made.op(f"aten::{norm}", at + 1100, at + 1400, sequence=20 + number)
        made.op(f"{AUTOGRAD}: NormBackward0", at + 1500, at + 1700, sequence=20 + number)
        made.op(f"{AUTOGRAD}: ConvolutionBackward0", at + 1700, at + 2900, sequence=10 + number)
    row = finding(made.trace(), "cpu-channels-last")
    if norm == "group_norm":
        assert row is None, "it loses more than convolutions win"
    else:
        assert row["wins_ns"] == pytest.approx(1e3 * (0.25 * 2200 + wins_us), rel=0.05)


def test_convolutions_of_pytorch_itself_gain_little_in_channels_last() -> None:
    def wins_us(own: bool, *layout: int) -> float:
        made = Made()
        for _, at in made.steps(3000):
            made.op("aten::conv2d", at + 10, at + 1010).op("aten::mkldnn_convolution", at + 20, at + 1000)
            made.op("aten::as_strided_", at + 30, at + 40).op("aten::conv2d", at + 1500, at + 2500)
            made.op("aten::_slow_conv2d_forward" if own else "aten::empty", at + 1510, at + 2490)
        trace = with_weights(made.trace(), {"float32": 30}, *layout)
        return float(found(trace, "cpu-channels-last")["wins_ns"]) / 1e3

    assert wins_us(False, 10, 0) == pytest.approx(0.25 * 2000, rel=0.05)
    assert wins_us(True, 10, 0) == pytest.approx(0.25 * 1000 + 0.08 * 1000, rel=0.05)
    assert wins_us(True, 10, 5) == pytest.approx(0.4 * 1000 + 0.08 * 1000, rel=0.05)


def trained_convolutions(first: bool, norm: str) -> Trace:
    """Return steps of a convolution of oneDNN and a norm of 1 ms each, with backward passes of 2 and 1 ms."""
    made = Made()
    for number, at in made.steps(5200):
        made.op("aten::conv2d", at + 10, at + 1010, sequence=10 + number)
        made.op("aten::mkldnn_convolution", at + 20, at + 1000)
        if first:
            made.op("aten::as_strided_", at + 30, at + 40)
        made.op(f"aten::{norm}", at + 1100, at + 2100, sequence=20 + number)
        made.op(f"{AUTOGRAD}: NormBackward0", at + 2100, at + 3100, sequence=20 + number)
        made.op(f"{AUTOGRAD}: ConvolutionBackward0", at + 3100, at + 5100, sequence=10 + number)
    return with_weights(made.trace(), {"float32": 30}, bf16="avx512_bf16")


@pytest.mark.parametrize(
    ("first", "norm", "wins_us"),
    [
        (True, "layer_norm", 0.43 * 3000 - 60 - 150),
        (False, "layer_norm", 0.43 * 3000 - 12 - 30),
        (True, "batch_norm", 0.43 * 3000 - 60 - 150 + 0.7 * 1000),
        (False, "batch_norm", 0.43 * 3000 - 12 - 30),
        (True, "group_norm", 0.43 * 3000 - 60 - 150),
        (False, "group_norm", None),  # its backward pass loses more
    ],
)
def test_layouts_and_norms_in_bfloat16_on_a_cpu(first: bool, norm: str, wins_us: float | None) -> None:
    row = finding(trained_convolutions(first, norm), "cpu-bfloat16")
    assert (row is None) == (wins_us is None)
    if row is not None:
        assert row["wins_ns"] == pytest.approx(1e3 * wins_us, rel=0.05)


def test_batch_norms_in_evaluation_gain_nothing_by_bfloat16() -> None:
    def wins_ns(*more: tuple[str, float]) -> float:
        trace = with_weights(onednn(*more, first=4), {"float32": 30}, bf16="avx512_bf16")
        return float(found(trace, "cpu-bfloat16")["wins_ns"])

    assert wins_ns(("aten::batch_norm", 800)) == pytest.approx(wins_ns(("aten::layer_norm", 800)), rel=0.01)


def test_depthwise_convolutions_gain_in_channels_last_without_a_backward_pass() -> None:
    def advised(first: bool, backward: bool) -> bool:
        made = Made()
        for _, at in made.steps(2000):
            made.op("aten::conv2d", at + 10, at + 1010).op("aten::mkldnn_convolution", at + 20, at + 1000)
            if first:
                made.op("aten::as_strided_", at + 30, at + 40)
            name = f"{AUTOGRAD}: ConvolutionBackward0" if backward else "aten::relu"
            made.op(name, at + 1100, at + 1900)
        trace = with_weights(made.trace(), {"float32": 30}, 10, 5, bf16="avx512_bf16")
        return finding(trace, "cpu-bfloat16") is not None

    assert [advised(*how) for how in ((False, False), (False, True), (True, False))] == [True, False, False]


def test_the_gradient_of_prod_takes_scans() -> None:
    def steps(scan: str) -> Trace:
        made, free = Made(), 20.0
        for _, at in made.steps(200):
            made.op("ProdBackward1", at + 10, at + 60, track=BACKWARD)
            for index, (name, takes) in enumerate([("aten::flip", 10), (scan, 1_000), ("aten::mul", 400)]):
                begin = at + 12 + 15 * index
                made.op(name, begin, begin + 12, track=BACKWARD)
                made.launch("kernel", (begin + 2, begin + 5), (free, free + takes), thread=BACKWARD)
                free += takes
        return made.trace()

    assert found(steps("aten::cumprod"), "prod-backward")["wins_ns"] == pytest.approx(1_010_000, rel=0.02)
    rules = advise(steps("aten::div")).table("findings").rows["rule"].to_list()
    assert "prod-backward" not in rules, "a product along no dimension is divided by its element"


def differentiated(*, checked: int = 0, recomputed: int = 0, stack_us: float = 0.0) -> Made:
    """Four steps on a CPU with six layers and their backward pass.

    Args:
        checked: How many of the six backward nodes are checked for NaN.
        recomputed: In how many of them the layer is computed again.
        stack_us: How long each operator of the forward pass keeps its stack before it computes.
    """
    made = Made()
    for _, at in made.steps(10_000):
        for layer in range(6):
            begin, sequence = at + 10 + layer * 700, layer + 1
            made.op("aten::linear", begin, begin + 300 + 2 * stack_us, sequence=sequence)
            made.op("aten::t", begin + 1, begin + 2 + stack_us, sequence=sequence)
            made.op("aten::addmm", begin + 3 + stack_us, begin + 299 + 2 * stack_us, sequence=sequence)
            begin = at + 5_000 + layer * 700
            made.op(f"{AUTOGRAD}: AddmmBackward0", begin, begin + 600, sequence=6 - layer)
            made.op("AddmmBackward0", begin + 1, begin + 400, sequence=6 - layer)
            if layer < recomputed:
                made.op("aten::linear", begin + 2, begin + 302)
            made.op("aten::t", begin + 310, begin + 311).op("aten::mm", begin + 312, begin + 390)
            if layer < checked:
                for index, name in enumerate(("isnan", "any", "item")):
                    made.op(f"aten::{name}", begin + 400 + index * 60, begin + 460 + index * 60)
    return made


def test_anomaly_mode_takes_its_checks_and_its_stacks() -> None:
    row = found(differentiated(checked=6, stack_us=100).trace(), "anomaly-mode")
    # Of each of six layers three checks of 60 µs, and 95 % of the two stacks.
    assert row["wins_ns"] == pytest.approx(6 * (180_000 + 0.95 * 202_000), rel=0.03)
    assert "set_detect_anomaly(False)" in row["instead"]


def test_a_check_of_some_gradients_is_no_anomaly_mode() -> None:
    assert finding(differentiated(checked=2).trace(), "anomaly-mode") is None
    assert finding(differentiated().trace(), "anomaly-mode") is None


def test_a_forward_pass_inside_the_backward_pass_was_recomputed() -> None:
    row = found(differentiated(recomputed=6).trace(), "recomputed-forward")
    # As host time, three quarters as much for what checkpoints save, restore and look up.
    assert row["wins_ns"] == pytest.approx(6 * 300_000 * 1.75, rel=0.02)
    assert 6 * 300_000 < row["wins_low_ns"] < row["wins_ns"]
    assert "6 times a step" in row["what"]
    assert finding(differentiated().trace(), "recomputed-forward") is None


def test_all_that_a_recomputed_forward_pass_launches_is_won() -> None:
    made, free = Made(), 0
    for number, at in made.steps(210):
        free = max(free, number * 210)
        made.op(f"{AUTOGRAD}: AddmmBackward0", at + 10, at + 200, sequence=1)
        made.op("AddmmBackward0", at + 11, at + 190, sequence=1)
        # A layer can begin with operators that a backward pass has as well.
        made.op("aten::mul", at + 12, at + 22)
        # The launch comes after an operator that lies inside of the same linear and has ended.
        made.op("aten::linear", at + 23, at + 90).op("aten::addmm", at + 24, at + 89)
        made.op("aten::empty", at + 25, at + 28)
        for launched in (14, 40, 120):
            begin, free = max(free, at + launched + 5), max(free, at + launched + 5) + 600
            made.launch(GEMM, (at + launched, at + launched + 5), (begin, free))
    assert found(made.trace(), "recomputed-forward")["wins_ns"] == pytest.approx(1_200_000, rel=0.02)


def in_data_parallel(
    *, collectives: Sequence[int] = (2, 2, 2), updates: bool = False, shards: bool = False
) -> Trace:
    """Four steps of three micro-batches each, whose gradients are averaged over the ranks.

    Args:
        collectives: How many of each backward pass.
        updates: Whether an optimizer steps after each of them.
        shards: Whether FSDP2 reduces them, in a range that also copies.
    """
    made, free = Made(), 0.0
    for _, at in made.steps(3_000):
        for micro, count in enumerate(collectives):
            begin = at + micro * 900
            made.op("aten::linear", begin + 1, begin + 100, sequence=1 + micro)
            for index in range(2):
                node = begin + 200 + index * 300
                made.op(f"{AUTOGRAD}: torch::autograd::AccumulateGrad", node, node + 250, sequence=1 + micro)
                if index < count:
                    if shards:
                        made.add("annotation", "FSDP::post_backward_reduce", node + 5, node + 205)
                    else:
                        made.op("torch::distributed::reducer::mul_out", node + 5, node + 25)
                    made.op("c10d::allreduce_", node + 30, node + 130)
                    free = max(free, node + 60) + 10
                    made.launch("ncclDevKernel_AllReduce", (node + 40, node + 60), (free - 10, free))
            if updates:
                made.add("annotation", "Optimizer.step#SGD.step", begin + 820, begin + 840)
    return made.trace()


def test_gradients_averaged_after_each_micro_batch() -> None:
    row = found(in_data_parallel(), "gradient-sync-each-pass")
    # In two of three passes, two collectives of 100 µs and two copies of 20 µs.
    assert row["wins_ns"] == pytest.approx(2 * 2 * 120_000, rel=0.02)
    assert "2 times a step" in row["what"]
    assert "no_sync()" in row["instead"]
    sharded = found(in_data_parallel(shards=True), "gradient-sync-each-pass")
    assert sharded["wins_ns"] == pytest.approx(2 * 2 * 200_000, rel=0.02)


@pytest.mark.parametrize(
    "options", [{"collectives": (0, 0, 2)}, {"collectives": (1, 2, 1)}, {"updates": True}]
)
def test_gradients_of_other_models_or_other_steps_are_averaged_rightly(options: dict[str, Any]) -> None:
    assert finding(in_data_parallel(**options), "gradient-sync-each-pass") is None


def test_gradients_that_are_copied_out_of_their_buckets() -> None:
    copies: list[Op] = [("torch.distributed.ddp.reducer::copy_bucket_to_grad", UNARY, 4.0)] * 30
    trace = gpu_bound(("aten::linear", GEMM, 200), *copies)
    row = found(trace, "bucket-copies")
    assert "30 times a step" in row["what"]
    assert "gradient_as_bucket_view=True" in row["instead"]
    assert row["wins_low_ns"] <= 30 * 4_000 <= row["wins_high_ns"]
    assert finding(trace, "kernel-loop") is None, "it is no loop of the script"


def test_buffers_that_are_sent_before_each_forward_pass() -> None:
    made = Made()
    for _, at in made.steps(3_000):
        made.add("annotation", "DistributedDataParallel.forward", at + 5, at + 2_000)
        names = ["aten::flatten_dense_tensors", "c10d::broadcast_", "aten::unflatten_dense_tensors"]
        names += ["aten::copy_"] * 30 + ["aten::conv2d", "aten::copy_"]
        for index, name in enumerate(names):
            begin = at + 10 + index * 50
            made.op(name, begin, begin + 50)
            if "unflatten" not in name:
                launched, ran = (begin + 10, begin + 20), (begin + 22, begin + 24)
                made.launch("copy", launched, ran)
    row = found(made.trace(), "broadcast-buffers")
    assert "copies 30 of them" in row["what"]
    assert "broadcast_buffers=False" in row["instead"]
    assert row["wins_ns"] == pytest.approx(33 * 50_000, rel=0.03)
    assert finding(made.trace(), "kernel-loop") is None, "it is no loop of the script"


def sharded(gathers: int, gap_us: float = 10) -> Trace:
    """Four steps in which FSDP2 gathers two groups of parameters one or several times."""
    made = Made()
    for _, at in made.steps(10_000):
        for nth in range(gathers):
            for group in range(2):
                begin = at + 10 + (2 * nth + group) * (200 + gap_us)
                made.add("annotation", f"FSDP::all_gather (blocks.{group})", begin, begin + 100)
                launched, ran = (begin + 5, begin + 15), (begin + 20, begin + 40)
                made.launch("ncclDevKernel_AllGather", launched, ran)
                made.add(
                    "annotation", f"FSDP::all_gather_copy_out (blocks.{group})", begin + 110, begin + 150
                )
    return made.trace()


def test_weights_that_are_gathered_again() -> None:
    assert finding(sharded(1), "repeated-gather") is None
    row = found(sharded(2), "repeated-gather")
    assert "gathered 2 times a step" in row["what"]
    assert "reshard_after_forward=False" in row["instead"]
    assert "micro-batches" not in row["instead"]
    assert row["wins_ns"] == pytest.approx(2 * 140_000, rel=0.02)
    several = found(sharded(8), "repeated-gather")
    assert "set_reshard_after_backward(False)" in several["instead"]
    assert several["wins_ns"] == pytest.approx(14 * 140_000, rel=0.02)


@pytest.mark.parametrize(("then", "advised"), [("aten::matmul", True), ("aten::mul", False)])
def test_one_hot_vectors_that_are_multiplied_pick_rows(then: str, advised: bool) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::one_hot", at + 10, at + 110)
        made.op("aten::to", at + 110, at + 210).op(then, at + 210, at + 410, sequence=7)
        made.op("aten::relu", at + 410, at + 500)
        made.op(f"{AUTOGRAD}: MmBackward0", at + 600, at + 900, sequence=7, track=BACKWARD)
    row = finding(made.trace(), "one-hot-product")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(0.95 * 700_000, rel=0.03)


@pytest.mark.parametrize(("filled", "advised"), [("aten::zeros", True), ("aten::neg", False)])
def test_codes_are_picked_counted_and_summed_without_one_hot_vectors(filled: str, advised: bool) -> None:
    row = finding(
        gpu_bound(
            *(("aten::linear", GEMM, 500), ("aten::argmin", REDUCE, 50)),
            *((filled, UNARY, 50), ("aten::scatter_", UNARY, 10)),
            *(("aten::matmul", GEMM, 100), ("aten::sum", REDUCE, 40), ("aten::mul", ELEMENTWISE, 30)),
            *(("aten::t", UNARY, 1), ("aten::matmul", GEMM, 100), ("aten::mean", REDUCE, 40)),
            ("aten::sum", REDUCE, 300),
            *(("aten::add", ELEMENTWISE, 30), ("aten::sum", REDUCE, 300)),
        ),
        "one-hot-product",
    )
    assert (row is not None) == advised
    if row is not None:
        picked, summed = 50 + 10 + 100, 40 + 1 + 100 + 40 + 300
        assert row["wins_ns"] == pytest.approx(0.95 * 1000 * (picked + summed), rel=0.03)
        assert "index_add_" in row["instead"]


SCATTER = "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_{}_internal_kernel<"


@pytest.mark.parametrize(
    ("filled", "scattered", "advised"),
    [("zeros_like", "fill", True), ("zeros_like", "gather", False), ("full", "fill", False)],
)
def test_values_that_are_scattered_are_no_one_hot_vectors(filled: str, scattered: str, advised: bool) -> None:
    # The decoder of a sparse autoencoder, for example, multiplies the largest activations.
    ops: Sequence[Op] = (
        (f"aten::{filled}", UNARY, 50),
        ("aten::scatter_", SCATTER.format(scattered), 10),
        ("aten::linear", GEMM, 300),
    )
    row = finding(gpu_bound(("aten::topk", REDUCE, 500), *ops, ("aten::sub", UNARY, 50)), "one-hot-product")
    assert (row is not None) == advised


@pytest.mark.parametrize(
    "then",
    [
        (("aten::linear", GEMM, 50), ("aten::transpose", UNARY, 1), ("aten::matmul", GEMM, 700)),
        (("aten::transpose", UNARY, 1), ("aten::matmul", GEMM, 700), ("aten::softmax", SOFTMAX, 50)),
    ],
)
def test_attention_to_rows_that_one_hot_vectors_pick_remains(then: Sequence[Op]) -> None:
    ops: Sequence[Op] = (("aten::one_hot", UNARY, 20), ("aten::to", UNARY, 5), ("aten::matmul", GEMM, 100))
    row = found(gpu_bound(*ops, *then, ("aten::sum", REDUCE, 50)), "one-hot-product")
    assert row["wins_ns"] == pytest.approx(0.95 * 125_000, rel=0.03)
    assert "bincount" not in row["instead"]


ONE_HOT: Op = ("aten::one_hot", UNARY, 100)
PICK: Sequence[Op] = (("aten::mul", ELEMENTWISE, 200), ("aten::sum", REDUCE, 100))


@pytest.mark.parametrize(
    ("ops", "saved_us"),
    [
        ((ONE_HOT, *PICK), 0.85 * 400),
        ((ONE_HOT, ("aten::permute", UNARY, 1), *PICK), 0.85 * 401),  # the classes of each pixel
        ((ONE_HOT, ("aten::log_softmax", SOFTMAX, 300), *PICK), 0.85 * 400),  # the scores remain
        ((ONE_HOT, ("aten::mul", UNARY, 100), ("aten::add", UNARY, 100), *PICK), 0.7 * 600),
        (
            (
                ("aten::full_like", UNARY, 100),
                ("aten::unsqueeze", UNARY, 1),
                ("aten::scatter_", UNARY, 10),
                *PICK,
            ),
            0.7 * 410,
        ),
        ((("aten::scatter_", UNARY, 10), *PICK), None),  # not into zeros
        ((ONE_HOT, ("aten::cumsum", UNARY, 100), *PICK), None),
        ((ONE_HOT, ("aten::add", ELEMENTWISE, 200), ("aten::sum", REDUCE, 100)), None),  # no product
    ],
)
def test_sums_of_products_with_one_hot_vectors_pick_values(ops: Sequence[Op], saved_us: float | None) -> None:
    row = finding(gpu_bound(("aten::linear", GEMM, 500), *ops, ("aten::linear", GEMM, 500)), "one-hot-sum")
    assert (row is not None) == (saved_us is not None)
    if row is not None and saved_us is not None:
        assert row["wins_ns"] == pytest.approx(1000 * saved_us, rel=0.01)
        assert ("label_smoothing" in row["instead"]) == (saved_us in (0.7 * 600, 0.7 * 410))


@pytest.mark.parametrize(("vectors", "left"), [(ONE_HOT, False), (("aten::rand", UNARY, 100), True)])
def test_what_one_hot_vectors_pick_is_no_chain_to_fuse(vectors: Op, left: bool) -> None:
    smoothed = (vectors, ("aten::mul", UNARY, 100), ("aten::add", UNARY, 100), *PICK)
    trace = gpu_bound(("aten::linear", GEMM, 500), *smoothed, ("aten::linear", GEMM, 500))
    assert (finding(trace, "elementwise-chain") is not None) == left


@pytest.mark.parametrize(
    ("kind", "weights", "advised"),
    [
        ("double", None, True),
        ("float", None, False),
        ("", None, False),
        ("", {"float64": 30, "float32": 10}, True),
        ("", {"float64": 10, "float32": 30}, False),
        ("float", {"float64": 30}, False),  # what was computed counts
    ],
)
def test_float64_by_the_recorded_types(kind: str, weights: dict[str, int] | None, advised: bool) -> None:
    trace = products(None, name="aten::linear")
    if weights is not None:
        with_weights(trace, weights)

    with_arguments(trace, lambda _: {"Input Dims": [[8, 8]], "Input type": [kind]} if kind else {})
    row = finding(trace, "float64")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(0.5 * 640_000, rel=0.05)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("aten::conv2d", 0.2), ("aten::lstm", 0.2), ("aten::gru", 0.5), ("aten::batch_norm", 0.5)],
)
def test_float64_convolutions_and_lstms_have_no_fast_kernels(name: str, kept: float) -> None:
    made = Made()
    for number, at in made.steps(1000):
        made.op(name, at + 10, at + 310, sequence=number)
        made.op(f"{AUTOGRAD}: UnknownBackward0", at + 400, at + 700, sequence=number)
        made.op("aten::dropout", at + 700, at + 900, sequence=10 + number)  # random numbers take as long
        made.op(f"{AUTOGRAD}: MulBackward0", at + 900, at + 904, sequence=10 + number)
    trace = with_weights(made.trace(), {"float64": 30})
    row = found(trace, "float64")
    assert "types of the parameters" in row["because"]
    assert row["wins_ns"] == pytest.approx((1 - kept) * 600_000, rel=0.03)
    assert finding(with_weights(made.trace(), {"float32": 30}), "float64") is None


@pytest.mark.parametrize(("name", "advised"), [("lstm", True), ("layer_norm", True), ("index_select", False)])
def test_float64_layers_without_a_backward_pass(name: str, advised: bool) -> None:
    trace = with_weights(products(None, name=f"aten::{name}", us=900), {"float64": 30})
    assert (finding(trace, "float64") is not None) == advised


def test_small_float64_operators_take_as_long() -> None:
    made = Made()
    for number in range(4):
        made.step(number, number * 1000, number * 1000 + 1000)
        for at in range(number * 1000 + 10, number * 1000 + 910, 5):
            made.op("aten::add", at, at + 4)
    assert finding(with_weights(made.trace(), {"float64": 30}), "float64") is None


DOUBLE = "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<double, double, double, MulFunctor<double>>>"


@pytest.mark.parametrize(("chip", "kept"), [("NVIDIA L4", 1 / 32), ("NVIDIA H200", 0.9)])
def test_float64_on_a_device_by_the_names_of_kernels(chip: str, kept: float) -> None:
    products = ("aten::mm", "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", 400)
    ops = products, ("aten::mul", DOUBLE, 400), ("aten::mul", ELEMENTWISE, 400)
    trace = gpu_bound(*ops, devices=(DeviceInfo(0, chip),))
    assert found(trace, "float64")["wins_ns"] == pytest.approx(1e3 * 400 * (1 - kept + 0.5), rel=0.03)


def in_types(trace: Trace, **given: tuple[list[Any], list[str], list[str]]) -> Trace:
    """Give the operators of a trace shapes, types and values of their arguments, by name."""
    name_of = dict(zip(trace.ints("ordinal").tolist(), map(trace.name, range(len(trace))), strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        dims, types, values = given.get(name_of[ordinal].removeprefix("aten::"), ([], [], []))
        return {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}

    return with_arguments(trace, arguments)


#: Features of 4096 positions, as a buffer from NumPy makes them, and how much of each operator float32 saves.
HALVES, JOINED = [4096, 256], [4096, 512]
COPIES = "at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>"
D884 = "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"
IN_DOUBLE: dict[str, tuple[str, list[Any], list[str], list[str], float]] = {
    "mm": (D884, [[4096, 2], [2, 256]], ["double", "double"], ["", ""], 0.5),  # reading and writing limits it
    "sin": (DOUBLE, [HALVES], ["double"], [""], 0.5),
    "cat": ("CatArrayBatchedCopy", [[HALVES, HALVES], []], ["TensorList", "Scalar"], ["", "-1"], 0.5),
    "to": (COPIES, [JOINED, []], ["double", "Scalar"], ["", "6", "False"], 1.0),
}


def features(chip: str = "NVIDIA H200", *, types: bool = True, **others: Any) -> Trace:
    """Steps of these operators of 200 µs each and of a float32 one of 800 µs; others replace their arguments."""
    ops = [(f"aten::{name}", kernel, 200.0) for name, (kernel, *_) in IN_DOUBLE.items()]
    trace = gpu_bound(*ops, ("aten::linear", GEMM, 800), devices=(DeviceInfo(0, chip),))
    given = {name: (dims, kinds, values) for name, (_, dims, kinds, values, _) in IN_DOUBLE.items()}
    return in_types(trace, **given | others) if types else trace


def test_float64_on_a_device_by_the_recorded_types() -> None:
    row = found(features(), "float64")
    assert "the input types recorded" in row["because"]
    assert row["wins_ns"] == pytest.approx(200e3 * sum(saved for *_, saved in IN_DOUBLE.values()), rel=0.02)
    assert 200e3 < row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]
    row = found(features(types=False), "float64")
    assert "types" not in row["because"]
    assert row["wins_ns"] == pytest.approx(200e3 * (0.1 + 0.5), rel=0.02), (
        "a product, and a kernel of doubles"
    )


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        pytest.param({"to": ([JOINED], ["double"], ["", "15"])}, 1.5 + 0.4, id="to bfloat16"),
        pytest.param({"to": ([JOINED, [9]], ["float", "double"], ["", ""])}, 1.0 + 1, id="from float32"),
        pytest.param({"to": ([JOINED], ["double"], ["", "", "cuda:0"])}, 1.5 + 0.5, id="to another place"),
        pytest.param({"to": ([JOINED], ["float"], ["", "5"])}, 1.0, id="no doubles: nor is what is joined"),
        pytest.param({"sin": ([HALVES, []], ["float", "double"], ["", ""])}, 2.5, id="by its name"),
        pytest.param({"cat": ([], [], [])}, 2.0, id="without a type"),
        pytest.param(
            {"mm": ([[4096, 512], [512, 4096]], ["double", "double"], ["", ""])}, 2.1, id="arithmetic"
        ),
    ],
)
def test_float64_and_what_float32_makes_of_it(given: dict[str, Any], saved: float) -> None:
    assert found(features(**given), "float64")["wins_ns"] == pytest.approx(200e3 * saved, rel=0.02)


def test_functions_of_doubles_on_a_chip_with_slow_arithmetic() -> None:
    sines = DOUBLE.replace("MulFunctor", "sin_kernel_cuda")
    ops = ("aten::sin", sines, 400), ("aten::mul", ELEMENTWISE, 400)
    trace = gpu_bound(*ops, devices=(DeviceInfo(0, "NVIDIA L4"),))
    kept = (8 / 300e9) / (40 / (30.3e12 / 64))
    assert found(trace, "float64")["wins_ns"] == pytest.approx(400e3 * (1 - kept), rel=0.02)


@pytest.mark.parametrize("kernel", [DOUBLE, ELEMENTWISE])
def test_a_chain_in_float64_is_fused_once_that_is_fixed(kernel: str) -> None:
    chain = [(f"aten::{name}", kernel, 200.0) for name in ("sin", "cos", "exp", "mul", "add")]
    trace = gpu_bound(*chain, ("aten::linear", GEMM, 500), devices=(DeviceInfo(0, "NVIDIA H200"),))
    order = advise(trace).table("findings").rows["rule"].to_list()
    assert order == (["float64", "elementwise-chain"] if kernel == DOUBLE else ["elementwise-chain"])


def test_float32_with_an_argument_in_double_is_no_float64() -> None:
    adam = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float const*, double, double, double>"
    assert finding(gpu_bound(("aten::_fused_adamw_", adam, 400), ("aten::mm", GEMM, 400)), "float64") is None


def with_lines(trace: Trace, *lines: tuple[str, float, str], **known: Any) -> Trace:
    """Return a trace of a session that sampled where the script was, and whose steps took what they take in it."""
    return in_session(trace, lines=tuple(SampledLine(*line) for line in lines), **known)


@pytest.mark.parametrize(
    ("doing", "where", "said"),
    [
        ("", "train.py:7", "Python runs"),
        ("checkpoint", "train.py:7", "a checkpoint is written"),
        ("copies", "train.py:7", "objects are deep-copied"),
        ("backward", "before add", "Python runs"),  # not what an operator is not called in
    ],
)
def test_without_stacks_the_line_is_the_one_that_was_sampled(doing: str, where: str, said: str) -> None:
    row = found(with_lines(host_bound(python_us=1_500).trace(), ("train.py:7", 0.5, doing)), "python-time")
    assert row["where"] == where
    assert row["what"].startswith(said)


@pytest.mark.parametrize(
    ("share", "said"), [(0.1, "the training thread waits"), (0.9, "Python runs"), (None, "Python runs")]
)
def test_a_thread_that_is_not_on_a_core_waits(share: float | None, said: str) -> None:
    """1.5 ms of a step of 2.5 or so: a thread that is on a core for a tenth of it does not compute there."""
    trace = with_lines(host_bound(python_us=1_500).trace(), ("train.py:7", 0.5, ""), thread_share=share)
    row = found(trace, "python-time")
    assert row["what"].startswith(said)
    assert ("a sleep" in row["instead"]) == ("waits" in said)
    assert ("on a core for 10 %" in row["because"]) == ("waits" in said)
    assert row["where"] == "train.py:7"


def test_a_line_with_few_of_the_samples_is_not_where_the_time_is() -> None:
    row = found(with_lines(host_bound(python_us=1_500).trace(), ("train.py:7", 0.1, "")), "python-time")
    assert row["where"] == "before add"


@pytest.mark.parametrize(
    ("inside", "op_us", "gradient", "advised"),
    [("", 5, False, True), ("", 45, False, False), ("", 5, True, False), ("forward", 5, False, False)],
)
def test_python_between_tiny_operators(inside: str, op_us: float, gradient: bool, advised: bool) -> None:
    """What is read, copied or printed piece by piece; not a model's own operators."""
    made = Made()
    for _, at in made.steps(4000):
        made.op("aten::addmm", at + 10, at + 1_000)
        if inside:
            made.add("annotation", inside, at + 1_005, at + 3_995)
        for piece in range(20):
            begin = at + 1_010 + piece * 100
            made.op("aten::detach", begin + 100 - op_us, begin + 100, sequence=piece)
            if gradient:
                back = f"{AUTOGRAD}: DetachBackward0"
                made.op(
                    back, at + 3_010 + piece * 10, at + 3_015 + piece * 10, sequence=piece, track=BACKWARD
                )
        made.op("aten::mul", at + 3_050, at + 3_900)
    assert (finding(made.trace(), "python-time") is not None) == advised


def on_a_cpu(
    *gaps_us: float,
    step_us: float = 5_000,
    frames: bool = False,
    nodes: int = 0,
    gap_at: str = "forward",
    longer_us: float = 0,
) -> Trace:
    """Steps of a CPU with a stretch without operators, ``before`` or ``after`` the backward pass, or in the forward."""
    made, at = Made(), 0.0
    for number, gap_us in enumerate(gaps_us):
        first = at
        gaps = {gap_at: gap_us}
        at += 10 + gaps.get("after", 0)  # the update was the step before
        made.op("aten::hann_window", at, at + 50, sequence=1)
        at += 50 + gaps.get("forward", 0)
        if frames:
            made.add("python_function", "train.py(3): mel", at - gap_us + 5, at - 5)
        made.op("aten::stft", at, at + step_us / 2, sequence=2)
        at += step_us / 2 + gaps.get("before", 0)
        for node in range(nodes):
            made.op(f"{AUTOGRAD}: MulBackward0", at + node, at + node + 0.9, sequence=3 + node)
        at += nodes
        at += longer_us * (number == 2)
        made.op("aten::sum", at - longer_us * (number == 2), at + step_us / 2 - 200)
        made.add("annotation", "Optimizer.step#AdamW.step", at + step_us / 2 - 200, at + step_us / 2)
        made.op("aten::_fused_adamw_", at + step_us / 2 - 150, at + step_us / 2 - 10)
        at += step_us / 2
        made.step(number, first, at)
    return made.trace()


@pytest.mark.parametrize(
    ("gaps_us", "changed", "advised"),
    [
        ((350, 300, 350, 320), {}, True),
        ((350, 300, 350, 320), {"longer_us": 40_000}, True),
        ((350, 0, 350, 320), {}, False),  # not in each step
        ((650, 0, 650, 650), {}, True),
        ((190, 190, 190, 190), {"step_us": 3_000}, False),
        ((350, 300, 350, 320), {"step_us": 9_000}, False),  # 3 % of a step
        ((350, 300, 350, 320), {"frames": True}, False),  # recording them takes time between operators
    ],
)
def test_short_stretches_on_a_cpu_are_python_if_each_step_has_them(
    gaps_us: tuple[float, ...], changed: dict[str, Any], advised: bool
) -> None:
    row = finding(on_a_cpu(*gaps_us, **changed), "python-time")
    assert (row is not None) == advised
    if row is not None:
        assert row["where"] == "before stft"
        assert "do once what is the same" in row["instead"]


@pytest.mark.parametrize(
    ("gap_at", "nodes", "advised"),
    [
        ("after", 3_000, False),
        ("before", 3_000, False),
        ("forward", 3_000, True),
        ("after", 300, True),
        ("before", 300, True),
    ],
)
def test_freeing_the_graph_of_a_backward_pass_is_no_python(gap_at: str, nodes: int, advised: bool) -> None:
    trace = on_a_cpu(1_500, 1_500, 1_500, 1_500, step_us=10_000, nodes=nodes, gap_at=gap_at)
    assert (finding(trace, "python-time") is not None) == advised


def test_the_function_of_a_stretch_is_the_one_that_has_most_of_it() -> None:
    made = host_bound(python_us=1_500, name="train.py(12): augment")
    for row in list(made.rows):
        if row["name"] == "train.py(12): augment":
            middle = (row["ts"] + row["dur"] / 2) / 1000
            made.add("python_function", "helpers.py(3): roll", middle - 20, middle + 20)
    assert found(made.trace(), "python-time")["where"] == "train.py augment() from line 12"


def test_batches_made_where_no_core_is_idle_have_to_become_cheaper() -> None:
    made = Made()
    for _, at in made.steps(1000):
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        made.add("annotation", name, at + 10, at + 610).op("aten::stack", at + 550, at + 600)
        made.op("aten::addmm", at + 620, at + 990)
    lines = ("data.py:9", 0.5, "makes a batch"), ("train.py:30", 0.3, "forward")
    row = found(
        with_lines(made.trace(), *lines, usable_cores=2, busy_cores=1.0, idle_cores=0.0), "loader-workers"
    )
    assert row["where"] == "data.py:9"
    assert row["wins_ns"] == pytest.approx(0.9 * 600_000, rel=0.03)
    assert row["wins_low_ns"] == 0
    assert "cheaper decoding" in row["instead"]


@pytest.mark.parametrize(
    ("making_us", "cores", "idle", "workers", "left"),
    [
        # One worker made such a step a quarter longer, two made it a fifth shorter.
        (5_400, 2, 1.0, 0, 1),
        (400, 8, 7.0, 0, 1),  # sending such a batch takes longer than making it
        (50_000, 2, 1.0, 2, 0.577),  # while training waits, its core is free
        (50_000, 8, 7.0, 6, 0.174),  # a seventh would hardly help
        (50_000, 2, 0.0, 0, 1),
    ],
)
def test_workers_on_a_cpu_have_to_send_their_batches_and_share_the_cores(
    making_us: int, cores: int, idle: float, workers: int, left: float
) -> None:
    made = Made()
    step_us = making_us + 600
    for _, at in made.steps(step_us):
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        made.add("annotation", name, at + 10, at + 10 + making_us)
        made.op("aten::addmm", at + making_us + 20, at + step_us - 10)
    trace = with_lines(made.trace(), usable_cores=cores, busy_cores=cores - idle, idle_cores=idle)
    row = found(trace, "loader-workers")
    if workers:
        assert f"num_workers={workers}," in row["instead"]
        assert row["wins_ns"] == pytest.approx((1 - left) * making_us * 1_000, rel=0.03)
    else:
        assert row["instead"].startswith("cheaper decoding")
        assert "num_workers=" not in row["instead"]
        assert row["wins_low_ns"] == 0
        assert "workers would" in row["because"]


@pytest.mark.parametrize(
    ("idle", "left_us", "said"),
    # 10 ms a batch of which 9 are waited for: one worker made it, eight take an eighth, two half, and none are left.
    [(15.0, 900, "more workers"), (1.0, 4_000, "more workers"), (0.0, 900, "no core is idle")],
)
def test_more_workers_are_as_many_as_cores_are_idle(idle: float, left_us: float, said: str) -> None:
    made = Made()
    for _, at in made.steps(10_000):
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        made.add("annotation", name, at, at + 9_000)
        made.op("aten::addmm", at + 9_010, at + 9_990)
    line = ("train.py:30", 0.8, "waits for a batch")
    trace = with_lines(made.trace(), line, usable_cores=16, busy_cores=1.1, idle_cores=idle)
    row = found(trace, "loader-workers")
    assert row["where"] == "train.py:30"
    assert bool(row["proof"]) == (said == "more workers")  # the ladder shows what a worker saves
    assert row["wins_ns"] == pytest.approx((9_000 - left_us) * 1_000, rel=0.03)
    assert said in row["instead"]


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [("AdamW", "fused=True"), ("RMSprop", "foreach=True"), ("LBFGS", "history_size"), ("Mine", "_foreach_")],
)
def test_an_optimizer_is_told_to_use_what_it_has(optimizer: str, said: str) -> None:
    trace = of_updates(optimizer, *(f"op{index % 6 + index // 300}" for index in range(600)))
    row = found(trace, "single-tensor-optimizer")
    assert said in row["instead"]
    assert finding(trace, "operator-loop") is None, "one finding is enough"
    assert row["instead"].startswith("fused=True") == (said == "fused=True")


def of_updates(optimizer: str, *operators: str, us: float = 20) -> Trace:
    """Two steps of a CPU, which an optimizer takes nearly all of, with the operators that it calls."""
    made, length = Made(), len(operators) * (us + 10) + 1000
    for _, at in made.steps(length, 2):
        made.add("annotation", f"Optimizer.step#{optimizer}.step", at + 5, at + length - 500)
        for index, name in enumerate(operators):
            made.op(f"aten::{name}", at + 10 + index * (us + 10), at + 10 + us + index * (us + 10))
    return made.trace()


@pytest.mark.parametrize(
    ("optimizer", "operators", "us", "saved"),
    [
        ("AdamW", ["lerp_", "addcmul_"] * 100, 20, 0.78),
        ("Adam", ["lerp_", "addcmul_"] * 10, 4_000, 0.78),  # large parameters, read again and again
        ("SGD", ["mul_", "add_"] * 100, 20, 0.55),
        ("SGD", ["mul_", "add_"] * 10, 4_000, None),  # bound by memory either way
        ("RMSprop", ["mul_", "addcmul_"] * 10, 4_000, None),
        ("RMSprop", ["mul_", "addcmul_"] * 100, 20, 0.3),
        ("AdamW", ["_foreach_add_", "_fused_adamw_"], 4_000, None),
    ],
)
def test_what_a_fused_optimizer_saves_on_a_cpu(
    optimizer: str, operators: list[str], us: float, saved: float | None
) -> None:
    row = finding(of_updates(optimizer, *operators, us=us), "single-tensor-optimizer")
    assert (row is not None) == (saved is not None)
    if row is not None:
        length = len(operators) * (us + 10) + 1000 - 505
        assert row["wins_ns"] == pytest.approx(saved * length * 1000, rel=0.01)


def test_a_few_operators_beside_a_fused_update_are_no_loop_over_parameters() -> None:
    trace = of_updates("AdamW", *["add_"] * 20, *["_fused_adamw_"] * 21, us=30)
    assert finding(trace, "single-tensor-optimizer") is None


def test_sparse_gradients_need_an_update_of_their_own_on_a_cpu() -> None:
    dense = ["add_"] * 20
    assert finding(of_updates("SparseAdam", *dense, "_values"), "single-tensor-optimizer") is None
    assert finding(of_updates("SGD", *dense, "_nnz"), "single-tensor-optimizer") is None
    assert finding(of_updates("SGD", *dense), "single-tensor-optimizer") is not None


def test_optimizers_of_two_kinds_on_a_cpu_are_looked_at_apart() -> None:
    made = Made()
    for _, at in made.steps(10_000, 2):
        made.add("annotation", "Optimizer.step#Adam.step", at + 100, at + 6_000)
        made.op("aten::_fused_adam_", at + 110, at + 5_990)
        made.add("annotation", "Optimizer.step#SGD.step", at + 7_000, at + 8_000)
        for index in range(20):
            made.op("aten::add_", at + 7_010 + index * 40, at + 7_040 + index * 40)
    row = found(made.trace(), "single-tensor-optimizer")
    assert row["where"] == "Optimizer.step#SGD.step"
    assert row["wins_ns"] == pytest.approx(0.55 * 1_000_000, rel=0.01)


def repeated(*, layers: bool, backward: bool = True, calls: bool = False) -> Trace:
    """Two steps on a CPU in which a forward pass calls 14 operators 10 times.

    Args:
        layers: Each pass has parameters of its own.
        backward: There is a backward pass.
        calls: Each pass is a call of a model.
    """
    made = Made()
    names = ["linear", *(f"op{index}" for index in range(13))]
    for _, at in made.steps(20_000, 2):
        for index in range(140):
            begin = at + 10 + index * 30
            made.op(f"aten::{names[index % 14]}", begin, begin + 20, sequence=index + 1)
            if calls and not index % 14:
                made.add("annotation", "forward", begin - 2, begin + 14 * 30 - 4)
            begin = at + 6_000 + (139 - index) * 60
            if backward:
                made.op(f"{AUTOGRAD}: Op{index % 14}Backward0", begin, begin + 20, sequence=index + 1)
            if backward and layers and not index % 14:
                made.op(f"{AUTOGRAD}: torch::autograd::AccumulateGrad", begin + 25, begin + 35)
    return made.trace()


def test_layers_are_no_loop_over_items() -> None:
    row = found(repeated(layers=False), "operator-loop")
    assert "10 times in a row (and again in the backward pass)" in row["what"]
    assert finding(repeated(layers=True), "operator-loop") is None
    assert finding(repeated(layers=True, backward=False), "operator-loop") is None
    assert finding(repeated(layers=True, backward=False, calls=True), "operator-loop") is not None


@pytest.mark.parametrize(
    ("source", "operand", "advised"),
    [
        ([8, 256, 512], [1024, 256, 512], True),
        ([8, 256, 512], [1024, 512, 256], True),  # transposed
        ([8, 256, 512], [4, 256, 512], False),  # some of the matrices
        ([8, 256, 512], [1024, 256, 64], False),
        ([50_000, 512], [1024, 1, 512], False),  # rows of a table
        (None, [1024, 256, 512], False),
    ],
)
def test_weights_that_are_copied_for_each_row(
    source: list[int] | None, operand: list[int], advised: bool
) -> None:
    trace = gpu_bound(
        ("aten::linear", GEMM, 300),
        ("aten::index", "vectorized_gather_kernel", 400),
        ("aten::bmm", GEMM, 100),
    )
    names = dict(zip(trace.ints("ordinal").tolist(), map(trace.name, range(len(trace))), strict=True))
    shapes = {"aten::index": [source, []], "aten::bmm": [[1024, 1, 256], operand]}

    with_arguments(trace, lambda ordinal: {"Input Dims": shapes.get(names[ordinal], [[1]])})
    row = finding(trace, "gathered-weights")
    assert (row is not None) == advised
    if row is not None:
        assert "50 % of device time copies 8 weight matrices 1 024 times" in row["what"]
        assert row["wins_ns"] == pytest.approx(400_000 + 70_000, rel=0.01)
        assert row["wins_low_ns"] < 400_000 < row["wins_high_ns"]


@pytest.mark.parametrize(
    ("operation", "waits_us", "framework", "advised"),
    [
        ("copy-done.2", 300, "JAX 0.10.2", True),
        ("copy-done.2", 10, "JAX 0.10.2", False),
        ("copy.2", 300, "JAX 0.10.2", False),
        ("copy-done.2", 300, "PyTorch 2.11", False),
    ],
)
def test_copies_that_a_program_waits_for(
    operation: str, waits_us: float, framework: str, advised: bool
) -> None:
    ops: list[Op] = [("PjRtExecute", "fusion.1", 300), ("PjRtExecute", operation, waits_us)]
    row = finding(gpu_bound(*ops, framework=framework), "awaited-copies")
    assert (row is not None) == advised
    if row is not None:
        assert "for 50 % of its time" in row["what"]
        assert row["where"] == "copy-done.2"
        assert row["wins_ns"] == pytest.approx(0.8 * 300_000, rel=0.01)


def layered(
    *between: str, layers: int = 4, layer: str = GEMM, backward: bool = True, applied: int = 0
) -> Trace:
    """Steps of layers that are a kernel each, with operators without gradients before each of them.

    Right after these, a number of operators with gradients apply what they compute.
    """
    steps = Steps()
    for step in steps.each():
        sequences: list[int] = []
        for operator in (*between, *["aten::add"] * applied, "aten::mm") * layers:
            sequence = 1_000 * step + len(sequences)
            kernel = (layer, 100.0) if operator == "aten::mm" else (ELEMENTWISE, 20.0)
            if operator in ("aten::add", "aten::mm"):
                sequences.append(sequence)
            steps.op(operator, (kernel,), sequence=sequence)
        for sequence in reversed(sequences if backward else []):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 100),), sequence=sequence, track=BACKWARD)
    return steps.trace()


MASK = ("aten::arange", "aten::sub", "aten::gt")


def test_what_is_the_same_in_each_layer_is_computed_once() -> None:
    row = found(layered(*MASK), "repeated-in-layers")
    assert row["wins_ns"] == pytest.approx(3 * 3 * 20_000, rel=0.02)  # of four layers, the first stays
    assert row["wins_low_ns"] == 0, "perhaps it is not the same"
    assert "arange → sub → gt" in row["because"]
    assert "4 layers" in row["what"]


@pytest.mark.parametrize(("applied", "left"), [(0, 1 / 4), (2, 1 / 4), (4, 1)])
def test_what_layers_compute_again_is_no_chain_to_fuse(applied: int, left: float) -> None:
    again, another = (
        found(layered(*chain, applied=applied), "elementwise-chain")["wins_ns"]
        for chain in (MASK, ("aten::neg", *MASK[1:]))
    )
    assert again == pytest.approx(left * another, rel=0.1)


@pytest.mark.parametrize(
    "trace",
    [
        layered(
            "aten::sub", "aten::mul", "aten::gt"
        ),  # of activations that are detached, for all that is known
        layered("aten::arange", "aten::argmax", "aten::eq"),  # a decision
        layered("aten::arange", "aten::randn", "aten::mul"),
        layered("aten::zeros", "aten::scatter_", "aten::mul"),  # a router's choice
        layered(*MASK, layers=2),
        layered(*MASK[:2]),
        layered(*MASK, layer=ELEMENTWISE),  # a loop without layers
        layered(*MASK, backward=False),
    ],
)
def test_what_may_differ_from_layer_to_layer(trace: Trace) -> None:
    assert finding(trace, "repeated-in-layers") is None


def recorded(*steps: Sequence[tuple[str, int | None]], track: int = BACKWARD) -> Trace:
    """Steps of operators with sequence numbers; those named ``visit`` are nodes of a backward pass."""
    made = Made()
    for number, calls_of_step in enumerate(steps):
        at = number * 1000
        made.step(number, at, at + 1000)
        for index, (name, sequence) in enumerate(calls_of_step):
            begin = at + 5 + index * 15
            node = name == "visit"
            name = f"{AUTOGRAD}: MmBackward0" if node else f"aten::{name}"
            made.op(name, begin, begin + 14, sequence=sequence, track=track if node else MAIN)
            made.launch(GEMM, (begin + 2, begin + 5), (begin + 6, begin + 8))
    return made.trace()


INFERENCE = [("mm", number) for number in range(12)]


def test_a_loop_without_a_backward_pass_should_not_record_one() -> None:
    row = found(recorded(*([(name, 12 * i + n) for name, n in INFERENCE] for i in range(4))), "unused-graph")
    assert row["what"].startswith("12 operators a step")
    assert "inference_mode" in row["instead"]
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_what_is_not_differentiated_in_a_training_step_should_not_be_recorded() -> None:
    """Of 24 operators in each step, the twelve of a teacher have nodes that are not visited."""
    steps = [
        [("mm", 24 * i + n) for n in range(24)] + [("visit", 24 * i + n) for n in reversed(range(12, 24))]
        for i in range(4)
    ]
    row = found(recorded(*steps), "unused-graph")
    assert row["what"].startswith("12 operators a step")
    assert "no_grad" in row["instead"]
    assert "inference_mode" not in row["instead"]


@pytest.mark.parametrize(
    "steps",
    [
        [[("mm", None)] * 12] * 4,  # no_grad
        [[("mm", 5)] * 12] * 4,  # nothing that needs a gradient
        [[*INFERENCE, *(("visit", n) for n in range(11, -1, -1))]] * 4,  # each is visited
        [INFERENCE],  # one step, whose backward pass may follow the capture
        # The backward pass of each step runs in the next one, that of the last step after the capture.
        [
            [
                *(("mm", 30 * i + n) for n in range(30)),
                *(("visit", 30 * (i - 1) + n) for n in range(30 if i else 0)),
            ]
            for i in range(3)
        ],
    ],
)
def test_nodes_that_are_visited_or_may_be(steps: Sequence[Sequence[tuple[str, int | None]]]) -> None:
    assert finding(recorded(*steps), "unused-graph") is None


def differentiable(
    node: str = "MulBackward0", *, kernels: int = 1, recorded: int = 12, visited: bool = False, steps: int = 4
) -> Trace:
    """Steps whose backward passes have operators, of which those of the first nodes have numbers of their own."""
    made = Made()
    for number, at in made.steps(6_000, steps):
        for index in range(12):
            made.op("aten::mul", at + 5 + index * 15, at + 15 + index * 15, sequence=number * 12 + index)
        nodes = [*range(number * 12 + 11, number * 12 - 1, -1)]
        if visited:  # after a norm of the gradient
            made.op("aten::norm", at + 195 + 12 * 200, at + 199 + 12 * 200, sequence=400 + number)
            nodes += [400 + number, *range(500 + number * 12, 512 + number * 12)]
        for index, sequence in enumerate(nodes):
            begin, first = at + 200 + index * 200, index < recorded
            made.op(f"{AUTOGRAD}: {node}", begin, begin + 190, sequence=sequence, track=BACKWARD)
            for part in range(kernels):
                start = begin + 5 + part * 20
                mine = 500 + number * 12 + index if first else None
                made.op("aten::mul", start, start + 18, sequence=mine, track=BACKWARD)
                made.launch(ELEMENTWISE, (start + 2, start + 5), (start + 8, start + 9), thread=BACKWARD)
    return made.trace()


def test_a_backward_pass_that_nothing_differentiates_should_not_be_recorded() -> None:
    row = found(differentiable(), "unused-graph")
    assert "12 operators" in row["what"]
    assert "create_graph" in row["instead"]
    part = Evidence(differentiable(), {}).host_part
    assert row["wins_ns"] == pytest.approx(part * 12 * 190_000 * 0.17, rel=0.1)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_what_is_written_out_to_be_differentiated_again_is_one_operator() -> None:
    traces = [differentiable(node, kernels=8) for node in ("SiluBackward0", "MulBackward0")]
    silu, other = (next(iter(unused_graph.RULE.find(trace, Evidence(trace, {})))) for trace in traces)
    assert silu.edit is not None
    assert other.edit is not None
    assert silu.edit.keep.sum() == 4 * 12, "one kernel of each node"
    assert other.edit.keep.sum() == 4 * 12 * 8
    assert silu.edit.host.keep == pytest.approx(np.full(48, 0.83 * 2 / 9))
    assert other.edit.host.keep == pytest.approx(np.full(48, 0.83))


@pytest.mark.parametrize(
    "options",
    [{"visited": True}, {"recorded": 0}, {"recorded": 10}, {"steps": 1}],
    ids=["a penalty of the gradient", "usual", "checkpoints compute layers again", "it may come"],
)
def test_backward_passes_that_are_differentiated_or_may_be(options: dict[str, Any]) -> None:
    trace = differentiable(**options)
    assert not list(unused_graph.RULE.find(trace, Evidence(trace, {})))


@pytest.mark.parametrize(
    ("light_us", "more", "framework", "worth_it"),
    [
        (150, (), "PyTorch 2.11", True),
        (40, (), "PyTorch 2.11", False),  # too little
        (150, (("aten::mm", "triton_poi_fused_add_0", 10.0),), "PyTorch 2.11", False),  # compiled already
        (150, (), "JAX 0.10.2", False),
    ],
)
def test_where_no_rule_finds_a_cost_compiling_is_left_to_try(
    light_us: float, more: tuple[Op, ...], framework: str, worth_it: bool
) -> None:
    ops = (
        ("aten::mm", "sm90_xmma_gemm_bf16", 300.0),
        ("aten::layer_norm", "vectorized_layer_norm_kernel", light_us),
    )
    trace = gpu_bound(*ops, *more, framework=framework)
    said = advise(trace).verdict
    assert ("torch.compile(model)" in said.sentence) == worth_it
    assert ("--shapes" in said.sentence) == worth_it
    assert said.level == ("warn" if worth_it else "good")
    trace = gpu_bound(*ops, *more, framework=framework)
    sized = with_shapes(trace, [[[256, 256], [256, 256]]] * len(trace.operators()))
    assert "--shapes" not in advise(sized).verdict.sentence, "it has them"


LOOKS = ("reshape", "isfinite", "ne", "__and__", "masked_select", "abs", "to", "min", "to", "max", "to")
SHOWN = (
    *LOOKS,
    *("unbind", "ceil", "ne", "is_nonzero", "div", "gt", "is_nonzero", "unbind"),
    *("detach", "item") * 12,
    *("resolve_conj", "resolve_neg", "to_list"),
)


def formatting(*names: str, every: int = 1) -> Trace:
    """Steps that call operators between two layers, some of which wait; in every so many steps."""
    made = Made()
    for number, at in made.steps(3_000):
        between = names if number % every == 0 else ()
        for index, name in enumerate(("linear", *between, "linear")):
            begin = at + 10 + index * 40
            long = name == "linear"
            made.op("aten::to" if name == "to_list" else f"aten::{name}", begin, begin + 20)
            if name not in ("reshape", "unbind", "detach", "resolve_conj", "resolve_neg"):
                work = begin + 8, begin + (15 if long else 10)
                made.launch(GEMM if long else UNARY, (begin + 2, begin + 4), work)
            if name in ("masked_select", "is_nonzero", "item", "to_list"):
                made.call("cudaStreamSynchronize", begin + 12, begin + 19)
                made.site(begin + 20, "train.py:9 note")
    return made.trace()


def test_tensors_formatted_as_text_are_read_and_computed_with() -> None:
    report = advise(trace := formatting(*SHOWN))
    rows = report.table("findings").rows
    row = found(trace, "item-each-step")
    assert row["what"].startswith("tensors are formatted as text")
    assert "train.py:9" in row["where"]
    # All of it, from the first operator to the last.
    part = Evidence(trace, {}).host_part
    assert row["wins_ns"] == pytest.approx(part * len(SHOWN) * 40_000, rel=0.1)
    others = {
        "elementwise-chain",
        "waits-in-turn",
        "size-from-device",
        "array-read",
        "kernel-loop",
        "blocking-copy",
    }
    assert not others & set(rows["rule"]), "this says what to change"


def test_edges_of_a_large_tensor_are_joined_to_be_formatted() -> None:
    edges = ("select",) * 6 + ("slice", "slice", "cat") * 6 + ("stack",)
    alone, joined, apart = (
        calls_formatting(formatting(*before, *SHOWN)) for before in ((), edges, (*edges, "mul"))
    )
    assert alone == len(SHOWN)
    assert (joined - alone, apart - alone) == (len(edges), 0)
    assert calls_formatting(formatting("select", *SHOWN)) == alone, "of which a part is shown"


def calls_formatting(trace: Trace) -> int:
    return len(formatted(trace)[0])


@pytest.mark.parametrize("on_device", [True, False])
def test_a_trace_may_begin_with_a_tensor_that_is_formatted_and_end_in_another(on_device: bool) -> None:
    made = Made()
    for index, name in enumerate((*LOOKS[1:], "is_nonzero", "linear", "isfinite")):
        made.op(f"aten::{name}", 40 * index, 40 * index + 20)
        if on_device:
            made.launch(UNARY, (40 * index + 2, 40 * index + 4), (40 * index + 8, 40 * index + 10))
    found_ = [calls_.tolist() for calls_ in formatted(made.trace())]
    assert found_ == ([list(range(len(LOOKS)))] if on_device else [])


@pytest.mark.parametrize("names", [SHOWN[len(LOOKS) :], ("isfinite", "abs", *SHOWN[len(LOOKS) :])])
def test_numbers_that_are_read_are_not_always_formatted(names: tuple[str, ...]) -> None:
    assert "formatted" not in found(formatting(*names), "item-each-step")["what"]


def test_a_line_that_reads_other_numbers_too_does_not_only_format() -> None:
    row = found(formatting(*SHOWN, "mul", "item"), "item-each-step")
    assert "formatted" in row["what"]
    assert "4 times a step" in row["what"], "the reads by item() are not only for that"


def test_tensors_formatted_now_and_then_are_left_alone() -> None:
    assert finding(formatting(*LOOKS, "is_nonzero", every=4), "item-each-step") is None
    assert finding(formatting(*LOOKS, "is_nonzero"), "item-each-step") is not None
