"""Rules about how one operator is called, each on a tiny trace that has its cause and on ones that nearly have it."""

from __future__ import annotations

from typing import Any

import pytest
from host_ahead import Steps

from tuiprof.advice import advise
from tuiprof.model import Trace

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
SEGMENTED = "void cub::DeviceSegmentedRadixSortKernel<Policy, false, float, long>"
ONESWEEP = "void cub::DeviceRadixSortOnesweepKernel<Policy, false, float, long>"
SHORT_ROWS = "void at::native::radixSortKVInPlace<2, -1, 32, 32, float, long>"
INDEX = "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>"

Calls = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


def finding(trace: Trace, rule: str) -> dict[str, Any] | None:
    """Return the row of a rule's first finding; None = it has none."""
    report = advise(trace)
    assert not [note for note in report.notes if "unavailable" in note], report.notes
    rows = report.table("findings").rows
    return next((row for row in rows.iter_rows(named=True) if row["rule"] == rule), None)


def found(trace: Trace, rule: str) -> dict[str, Any]:
    row = finding(trace, rule)
    assert row is not None, f"{rule} not found"
    return row


def sorted_by(*kernels: tuple[str, float], then: Calls, operator: str = "aten::argsort") -> Trace:
    steps = Steps()
    for _ in range(4):
        steps.op("aten::mm", ((GEMM, 500),))
        steps.op(operator, kernels)
        for name, works in then:
            steps.op(name, works)
        steps.op("aten::mm", ((GEMM, 500),))
        steps.end()
    return steps.trace()


FIRST: Calls = (("aten::slice", ()), ("aten::index", ((INDEX, 4),)))


@pytest.mark.parametrize(
    ("kernels", "saved_us"),
    [
        (((ELEMENTWISE, 50), (SEGMENTED, 300), (SEGMENTED, 300)), 50 + 0.76 * 600),
        (((ONESWEEP, 300), (ONESWEEP, 300)), 0.5 * 600),
    ],
)
@pytest.mark.parametrize("operator", ["aten::argsort", "aten::sort"])
def test_a_sort_of_which_only_the_first_are_used(kernels: Calls, saved_us: float, operator: str) -> None:
    row = found(sorted_by(*kernels, then=FIRST, operator=operator), "full-sort")
    assert "torch.topk(x, k)" in row["instead"]
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
        # Differences of neighbours: each slice is all but one.
        (
            ((SEGMENTED, 600),),
            (("aten::slice", ()), ("aten::slice", ()), ("aten::sub", ((ELEMENTWISE, 20),))),
        ),
        # The permutation is inverted later.
        (((SEGMENTED, 600),), (*FIRST, ("aten::argsort", ((SEGMENTED, 600),)))),
        (((SEGMENTED, 600),), (*FIRST, ("aten::add", ((ELEMENTWISE, 4),)), ("aten::gather", ((INDEX, 40),)))),
        # Short rows are sorted as fast as topk selects from them, and small tensors too.
        (((SHORT_ROWS, 600),), FIRST),
        (((SEGMENTED, 150),), FIRST),
    ],
)
def test_sorts_that_topk_does_not_replace(kernels: tuple[tuple[str, float], ...], then: Calls) -> None:
    assert finding(sorted_by(*kernels, then=then), "full-sort") is None


@pytest.mark.parametrize(("sort_us", "advised"), [(5000.0, True), (1000.0, False)])
def test_a_sort_on_a_cpu_of_which_only_the_first_are_used(sort_us: float, advised: bool) -> None:
    steps = Steps()
    for number in range(4):
        at = number * 20_000.0
        steps.made.step(number, at, at + 20_000)
        steps.made.op("aten::mm", at + 5, at + 9000)
        steps.made.op("aten::sort", at + 9010, at + 9010 + sort_us)
        steps.made.op("aten::slice", at + 9020 + sort_us, at + 9022 + sort_us)
        steps.made.op("aten::mean", at + 9030 + sort_us, at + 9040 + sort_us)
    row = finding(steps.trace(), "full-sort")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(0.95e3 * sort_us, rel=0.02)
