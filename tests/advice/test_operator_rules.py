"""Rules about how one operator is called, each on a tiny trace that has its cause and on ones that nearly have it."""

from __future__ import annotations

from typing import Any

import pytest
from analyses.made import BACKWARD, with_arguments
from findings import finding, found
from host_ahead import Steps

from tuiprof.advice import priorities
from tuiprof.model import Trace

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
SEGMENTED = "void cub::DeviceSegmentedRadixSortKernel<Policy, false, float, long>"
ONESWEEP = "void cub::DeviceRadixSortOnesweepKernel<Policy, false, float, long>"
SHORT_ROWS = "void at::native::radixSortKVInPlace<2, -1, 32, 32, float, long>"
LONG_SHORT_ROWS = "void at::native::radixSortKVInPlace<2, -1, 128, 32, long, long, unsigned int>"
MERGED = "void at::native::warpMergeSortKVInPlace<2, -1, 128, 4, long, long, unsigned int>"
INDEX = "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>"

Calls = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


def finds(trace: Trace, rule: str) -> bool:
    """Return whether a rule has a finding, however little that saves."""
    every = priorities(trace)
    return rule in {item.rule for item in (*every.findings, *every.small)}


def sorted_by(*kernels: tuple[str, float], then: Calls, operator: str = "aten::argsort") -> Trace:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::mm", ((GEMM, 500),))
        steps.op(operator, kernels)
        for name, works in then:
            steps.op(name, works)
        steps.op("aten::mm", ((GEMM, 500),))
    return steps.trace()


FIRST: Calls = (("aten::slice", ()), ("aten::index", ((INDEX, 4),)))


@pytest.mark.parametrize(
    ("kernels", "saved_us"),
    [
        (((ELEMENTWISE, 50), (SEGMENTED, 300), (SEGMENTED, 300)), 50 + 0.76 * 600),
        (((ONESWEEP, 300), (ONESWEEP, 300)), 0.5 * 600),
        (((ELEMENTWISE, 100), (LONG_SHORT_ROWS, 600)), 100 + 0.55 * 600),
    ],
)
@pytest.mark.parametrize("operator", ["aten::argsort", "aten::sort"])
def test_a_sort_of_which_only_the_first_are_used(kernels: Calls, saved_us: float, operator: str) -> None:
    row = found(sorted_by(*kernels, then=FIRST, operator=operator), "full-sort")
    x = "x.int()" if kernels[-1][0] == LONG_SHORT_ROWS else "x"
    assert f"torch.topk({x}, k)" in row["instead"]
    assert row["wins_ns"] == pytest.approx(1e3 * saved_us, rel=0.02)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_both_results_of_a_sort_may_be_sliced_and_viewed() -> None:
    then: Calls = (("aten::unsqueeze", ()), ("aten::slice", ()), *FIRST)
    assert finding(sorted_by((SEGMENTED, 600), then=then), "full-sort") is not None


@pytest.mark.parametrize(
    ("kernels", "then"),
    [
        # All of the result is read.
        (((SEGMENTED, 600),), (("aten::index", ((INDEX, 4),)),)),
        (((SEGMENTED, 600),), (("aten::unsqueeze", ()), ("aten::index", ((INDEX, 4),)))),
        # What takes no time says nothing of how much is read.
        (
            ((SEGMENTED, 600),),
            (("aten::slice", ()), ("aten::empty", ()), ("aten::sub", ((ELEMENTWISE, 20),))),
        ),
        # Differences of neighbours: each slice is all but one.
        (
            ((SEGMENTED, 600),),
            (("aten::slice", ()), ("aten::slice", ()), ("aten::sub", ((ELEMENTWISE, 20),))),
        ),
        # The mean without the extremes.
        (((SEGMENTED, 600),), (("aten::slice", ()), ("aten::mean", ((ELEMENTWISE, 8),)))),
        # The permutation is inverted later.
        (((SEGMENTED, 600),), (*FIRST, ("aten::argsort", ((SEGMENTED, 600),)))),
        (((SEGMENTED, 600),), (*FIRST, ("aten::add", ((ELEMENTWISE, 4),)), ("aten::gather", ((INDEX, 40),)))),
        # Short rows are sorted as fast as topk selects from them, and small tensors too.
        (((SHORT_ROWS, 600),), FIRST),
        (((MERGED, 600),), FIRST),
        (((SEGMENTED, 400),), (("aten::slice", ()), ("aten::index", ((INDEX, 2),)))),
    ],
)
def test_sorts_that_topk_does_not_replace(kernels: tuple[tuple[str, float], ...], then: Calls) -> None:
    assert not finds(sorted_by(*kernels, then=then), "full-sort")


@pytest.mark.parametrize(
    ("sort_ms", "reader", "us", "advised"),
    [
        (50, "mean", 10, True),
        (50, "mean", 80, False),
        (5, "mean", 3, False),  # any operator is as short
        (2, "index", 30, True),
        (2, "index", 65, False),  # by all of it
        (1, "index", 10, False),
        (2, "cumsum", 1, False),
        (2, "resolve_neg", 20, True),  # tolist()
        (2, "resolve_neg", 400, False),
        (50, "resolve_neg", 400, True),
        (50, "resolve_neg", 9_000, False),
    ],
)
def test_a_sort_on_a_cpu_of_which_only_the_first_are_used(
    sort_ms: int, reader: str, us: float, advised: bool
) -> None:
    steps = Steps()
    for number in range(4):
        at, end = number * 80_000.0, number * 80_000.0 + 20_000 + 1000 * sort_ms
        steps.made.step(number, at, at + 80_000)
        steps.made.op("aten::mm", at + 5, at + 19_900)
        steps.made.op("aten::sort", at + 20_000, end)
        steps.made.op("aten::slice", end + 10, end + 12)
        takes = 1 if reader == "resolve_neg" else us
        steps.made.op(f"aten::{reader}", end + 20, end + 20 + takes)
        steps.made.op("aten::addmm", end + 20 + us, at + 79_900)
    row = finding(steps.trace(), "full-sort")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(0.95e6 * sort_ms, rel=0.02)


ROWS = [64, 50_000]
END = str(2**63 - 1)
#: An operator, the shapes and values of its arguments, and what it takes, µs.
Sampled = tuple[str, list[Any], list[str], float]
SORT: Sampled = ("sort", [ROWS, [], []], ["", "-1", "True"], 600)
REST: Sampled = ("slice", [ROWS], ["", "1", "40", END, "1"], 0)
OVERWRITES: Sampled = ("fill_", [[64, 49_960], []], [], 50)
CHOOSES: Sampled = ("argmax", [ROWS, [], []], ["", "-1", "True"], 50)


def sampling(*calls: Sampled, shapes: bool = True, kernel: str = SEGMENTED) -> Trace:
    """Steps with a product, these calls, and another product."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::mm", ((GEMM, 1000),), dims=[[64, 9], [9, 50_000]] if shapes else None)
        for name, dims, values, us in calls:
            works = ((kernel if name == "sort" else ELEMENTWISE, us),) if us else ()
            steps.op(f"aten::{name}", works, dims=dims if shapes else None, values=values)
        steps.op("aten::mm", ((GEMM, 500),), dims=[[64, 8], [8, 8]] if shapes else None)
    return steps.trace()


def test_a_sort_of_which_the_rest_is_overwritten_and_what_is_computed_of_whole_rows() -> None:
    follow: list[Sampled] = [
        ("softmax", [ROWS], [], 100),
        ("cumsum", [ROWS], [], 200),
        ("sum", [[64, 1]], [], 3),  # of one value of each row
        ("empty_like", [ROWS], [], 0),
        ("div", [ROWS, ROWS], [], 100),
    ]
    row = found(sampling(SORT, ("lift_fresh", [[]], [], 0), REST, OVERWRITES, *follow, CHOOSES), "full-sort")
    assert "rows of 50 000 values are sorted, and all but the first 40 are overwritten" in row["what"]
    assert "torch.topk(x, 40)" in row["instead"]
    assert "by 4 operators on whole rows" in row["because"]
    assert row["wins_ns"] == pytest.approx(1e3 * (0.76 * 600 + 500 - 5 * 2.5), rel=0.02)
    assert 0 < row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([CHOOSES, ("log_softmax", [ROWS], [], 300)], id="after one is chosen"),
        pytest.param([("scatter", [ROWS, [], ROWS], [], 90), ("softmax", [ROWS], [], 90)], id="put back"),
        pytest.param([("mm", [[64, 512], [512, 512]], [], 90), ("softmax", [ROWS], [], 90)], id="others"),
    ],
)
def test_what_is_computed_of_other_rows_stays(after: list[Sampled]) -> None:
    row = found(sampling(SORT, REST, OVERWRITES, *after), "full-sort")
    chooses = 47.5 if after[0] == CHOOSES else 0
    assert row["wins_ns"] == pytest.approx(1e3 * (0.76 * 600 + 47.5 + chooses), rel=0.02)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((SORT, OVERWRITES, CHOOSES), id="all is overwritten"),
        pytest.param((SORT, ("add", [ROWS], [], 9), REST, OVERWRITES), id="of another result"),
        pytest.param((SORT, REST, ("fill_", [[64, 9_960]], [], 50)), id="less is overwritten"),
        pytest.param((SORT, REST, ("copy_", [[64, 49_960]], [], 50)), id="by other values"),
        pytest.param((SORT, ("slice", [ROWS], ["", "1", "-1", END, "1"], 0), OVERWRITES), id="the last one"),
        pytest.param(
            (SORT, ("slice", [ROWS], ["", "1", "9000", END, "1"], 0), ("fill_", [[64, 41_000]], [], 50)),
            id="much is kept",
        ),
        pytest.param((("sort", [ROWS], ["", "0", "True"], 600), REST, OVERWRITES), id="along columns"),
        pytest.param((SORT, ("slice", [ROWS], ["", "1", "x", END], 0), OVERWRITES), id="damaged"),
    ],
)
def test_sorts_of_which_nothing_or_much_is_kept(calls: tuple[Sampled, ...]) -> None:
    assert not finds(sampling(*calls), "full-sort")


def test_sorts_that_are_overwritten_without_shapes_and_in_short_rows() -> None:
    assert not finds(sampling(SORT, REST, OVERWRITES, CHOOSES, shapes=False), "full-sort")
    assert not finds(sampling(SORT, REST, OVERWRITES, CHOOSES, kernel=SHORT_ROWS), "full-sort")


ATTENDS = "aten::scaled_dot_product_attention"
CONVERTS = "void at::native::elementwise_kernel<128, 4, where_kernel_impl>"
CUDNN = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop",
    "void cudnn::fusion::convert_dq_to_16bits<true>",
)
EFFICIENT = ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "fmha_cutlassB_bf16_aligned_64x64_k64_sm80")


def attending(
    kernels: tuple[str, str] = CUDNN,
    *,
    converts: bool = True,
    before: str = "",
    shapes: Any = None,
    **grids: int,
) -> Trace:
    """Steps in which queries attend to keys, 300 µs forward and 700 µs backward; a mask is converted in 50 µs."""
    steps = Steps()
    for _ in steps.each():
        if before:
            steps.op(before, ((ELEMENTWISE, 1),))
        begin = steps.now
        works = ((CONVERTS, 50.0),) * converts + ((kernels[0], 300.0),)
        kind = "efficient" if kernels[0].startswith("fmha") else "cudnn"
        steps.op(ATTENDS, works, inside=f"aten::_scaled_dot_product_{kind}_attention", sequence=1)
        if converts:
            steps.made.op("aten::where", begin + 1.5, begin + 6)
        node = "autograd::engine::evaluate_function: ScaledDotProductAttentionBackward0"
        steps.op(node, ((kernels[1], 700.0),), sequence=1, track=BACKWARD)
    trace = steps.trace()
    names = dict(zip(trace.ints("ordinal").tolist(), map(trace.name, range(len(trace))), strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        name = names[ordinal]
        known = {CONVERTS: grids.get("mask", 0), kernels[0]: grids.get("forward", 0)}
        grid = [known.get(name, grids.get("backward", 0)), 16, 16]
        return {"grid": grid, **({"Input Dims": shapes} if name == ATTENDS else {})}

    return with_arguments(trace, arguments)


@pytest.mark.parametrize(
    ("trace", "saved_us"),
    [
        (attending(mask=2048, backward=32), 50 + 0.5 * 1000),
        (attending(EFFICIENT, mask=2048, forward=16), 50 + 0.7 * 1000),
        # The last blocks are not full: 1000 positions.
        (attending(mask=1954, backward=32), 50 + 0.5 * 1000),
        (attending(shapes=[[8, 16, 1024, 64]] * 3 + [[1024, 1024]]), 50 + 0.5 * 1000),
        (attending(shapes=[[8, 16, 1024, 64]] * 3 + [[1, 1, 1024, 1024]]), 50 + 0.5 * 1000),
        (attending(shapes=[[1, 16, 1024, 64]] * 3 + [[1024, 1024]], converts=False), 0.5 * 1000),
    ],
)
def test_a_mask_that_all_samples_share_may_be_causal(trace: Trace, saved_us: float) -> None:
    row = found(trace, "causal-mask")
    assert row["instead"].startswith("if the mask is causal, pass is_causal=True")
    assert row["sure"] == "low"
    assert row["wins_ns"] == pytest.approx(1e3 * saved_us, rel=0.02)
    assert row["wins_low_ns"] == 0 < row["wins_ns"] < row["wins_high_ns"]


def test_a_step_that_makes_a_triangular_tensor_has_a_causal_mask() -> None:
    assert found(attending(before="aten::tril", mask=2048, backward=32), "causal-mask")["sure"] == "medium"


@pytest.mark.parametrize(
    "trace",
    [
        attending(mask=8 * 2048, backward=32),  # of each sample
        attending(mask=16, backward=32),  # of the keys of each sample
        attending(shapes=[[8, 16, 1024, 64]] * 3 + [[8, 1, 1024, 1024]]),
        attending(shapes=[[1, 16, 1024, 64]] * 3 + [[1, 1, 1024, 1024]]),
        attending(shapes=[[8, 16, 1024, 64]] * 3 + [[1, 16, 1024, 1024]]),  # a bias of each head
        attending(shapes=[[8, 16, 1024, 64], [8, 16, 77, 64], [8, 16, 77, 64], [1024, 77]]),  # other keys
        attending(shapes=[[8, 16, 1024, 64]] * 3 + [[]], converts=False),  # none
        attending(shapes=[["?"], None, 7, "mask"]),
        attending(mask=8, backward=2),  # short: 64 positions of one sample, or 32 of four
        attending(mask=2048),  # of an unknown length
        attending(("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "fmha_cutlassB_f32"), mask=2048, forward=16),
        attending(converts=False, backward=32),
    ],
)
def test_masks_that_are_not_shared_or_not_known(trace: Trace) -> None:
    assert not finds(trace, "causal-mask")


def test_masks_of_some_layers_are_shared() -> None:
    """An encoder masks the padding of each sample, and a decoder what comes later."""
    shapes = [[8, 16, 1024, 64]] * 3
    steps = Steps()
    for _ in steps.each(3):
        for _ in range(2):
            steps.op(ATTENDS, ((CUDNN[0], 300),), inside="aten::_scaled_dot_product_cudnn_attention")
    trace = steps.trace()
    attends = {row["ordinal"]: i for i, row in enumerate(r for r in steps.made.rows if r["name"] == ATTENDS)}

    masks = [8, 1, 1024, 1024], [1024, 1024]
    with_arguments(trace, lambda at: {"Input Dims": [*shapes, masks[attends.get(at, 0) % 2]]})
    row = found(trace, "causal-mask")
    assert "every step" in row["what"]
    assert row["wins_ns"] == pytest.approx(0.5 * 300_000, rel=0.02)


FILL = "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>"
SORTED = "void indexing_backward_kernel<float, 4>"


def deterministic(*calls: tuple[str, str, str]) -> Trace:
    """Steps of 500 µs and calls of 100 µs each, given by their operator, one inside of it and its kernel."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::mm", ((GEMM, 500),))
        for operator, inside, kernel in calls:
            steps.op(operator, ((kernel, 100),), inside=inside)
    return steps.trace()


@pytest.mark.parametrize(
    "operator", ["aten::empty", "aten::empty_strided", "aten::resize_", "aten::new_empty"]
)
def test_memory_that_is_filled_before_it_is_used(operator: str) -> None:
    row = found(deterministic((operator, "aten::fill_", FILL)), "deterministic-algorithms")
    assert row["what"].endswith("new memory is filled before it is used, every step")
    assert "fill_uninitialized_memory = False" in row["instead"]
    assert "last bits may differ" in row["instead"]
    assert row["wins_ns"] == pytest.approx(100_000, rel=0.02)


@pytest.mark.parametrize("operator", ["aten::index_add", "aten::scatter_add_"])
def test_additions_by_index_that_sort(operator: str) -> None:
    fill = ("aten::empty", "aten::fill_", FILL)
    row = found(deterministic(fill, (operator, "aten::index_put_", SORTED)), "deterministic-algorithms")
    assert "additions by index sort, every step" in row["what"]
    # Atomic additions may take as long.
    assert row["wins_ns"] == pytest.approx(100_000, rel=0.02)
    assert row["wins_high_ns"] > 160_000


def test_an_addition_by_index_is_one_however_often_it_sorts() -> None:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::mm", ((GEMM, 500),))
        steps.op("aten::empty", ((FILL, 100),), inside="aten::fill_")
        begin = steps.now
        steps.op("aten::index_add", ((SORTED, 100), (SORTED, 100)), inside="aten::index_add_")
        for put in (begin + 2, begin + 12):
            steps.made.op("aten::index_put_", put, put + 5)
    row = found(steps.trace(), "deterministic-algorithms")
    assert "additions by index sort, every step" in row["what"]
    assert row["wins_high_ns"] > 200_000


def test_only_additions_are_deterministic() -> None:
    steps = Steps()
    for _ in steps.each():
        for _ in range(20):
            steps.made.op("aten::index_put_", steps.now + 2, steps.now + 90)
            steps.op("aten::index_add_", ((SORTED, 2),) * 10)
    row = found(steps.trace(), "deterministic-algorithms")
    assert "fill" not in row["what"] + row["instead"]
    assert row["share"] > 0.7  # of steps that the host limits


@pytest.mark.parametrize(
    "calls",
    [
        [
            ("aten::zeros", "aten::fill_", FILL),
            ("aten::full_like", "aten::fill_", FILL),
            ("aten::fill_", "", FILL),
        ],
        [("aten::index_put_", "aten::_index_put_impl_", SORTED), ("aten::index_add", "", SORTED)],
        [("aten::index_add", "", SORTED), ("aten::scatter_add_", "aten::_local_scalar_dense", SORTED)],
    ],
)
def test_fills_and_additions_of_the_default_mode(calls: list[tuple[str, str, str]]) -> None:
    assert not finds(deterministic(*calls), "deterministic-algorithms")


UPSAMPLES = "void at::native::(anonymous namespace)::upsample_bilinear2d_{}out_frame<float, float>(unsigned long, int)"


def upsampled(backward_us: float, kernel: str = "backward_") -> Trace:
    """Steps with an interpolation, 100 µs forward, and a convolution."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::conv2d", ((GEMM, 1000.0),))
        steps.op("aten::upsample_bilinear2d", ((UPSAMPLES.format("nhwc_"), 100.0),), sequence=1)
        node = "autograd::engine::evaluate_function: UpsampleBilinear2DBackward0"
        steps.op(node, ((UPSAMPLES.format(kernel), backward_us),), sequence=1, track=BACKWARD)
    return steps.trace()


def test_the_gradient_of_an_interpolation_is_as_fast_as_products() -> None:
    row = found(upsampled(2000.0), "upsample-backward")
    assert row["what"] == (
        "the gradient of an interpolation takes 65 % of device time, 20 times as long as the interpolation itself"
    )
    assert row["wins_ns"] == pytest.approx((2000 - 1.5 * 100) * 1000, rel=0.01)
    assert row["wins_low_ns"] <= (2000 - 5 * 100) * 1000


@pytest.mark.parametrize("trace", [upsampled(500.0), upsampled(2000.0, "backward_nhwc_")])
def test_gradients_of_interpolations_that_are_fast_or_in_channels_last_stay(trace: Trace) -> None:
    assert finding(trace, "upsample-backward") is None
