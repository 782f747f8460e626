"""Products in an optimizer, as Muon's, that are of the longer side of a matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tuiprof.model import Trace

GEMM, ELEMENTWISE = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "vectorized_elementwise_kernel<4>"
Call = tuple[str, tuple[tuple[str, float], ...]]


def iterations(
    rows: int, columns: int, times: int = 5, products: int = 3, us: float = 1, adds: bool = True
) -> Iterator[Call]:
    """Yield the operators of Newton-Schulz iterations on a matrix; sides in multiples of what takes 1 µs."""
    square, other = rows * rows, rows * columns

    def op(name: str, took: float) -> Call:
        if name != "matmul" and not adds:  # the products do it
            return "aten::t", ()
        return f"aten::{name}", ((GEMM if name == "matmul" else ELEMENTWISE, took * us),)

    for _ in range(times):
        yield op("matmul", square * columns)
        yield op("mul", square / 2)
        if products > 2:
            yield op("matmul", square * rows)
            yield op("mul", square / 2)
            yield op("add", square)
        yield op("mul", other / 8)
        yield op("matmul", square * columns)
        yield op("add", other / 8)


def muon(*matrices: Iterator[Call], where: str = "Optimizer.step#Muon.step") -> Trace:
    """Steps with a long backward pass, whose optimizer makes some matrices orthogonal one by one."""
    given, steps = [list(one) for one in matrices], Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 3_000),))
        calls: list[Call] = []
        for one in given:
            calls += [("aten::lerp_", ((ELEMENTWISE, 5),)), *one]
        steps.within(where, *calls)
    return steps.trace()


def test_tall_matrices_are_transposed_before_their_iterations() -> None:
    row = found(muon(iterations(8, 2), iterations(2, 8), iterations(4, 4)), "newton-schulz")
    assert "a parameter multiply along the longer side, about 4.0 times the shorter one" in row["what"]
    assert "X = X.mT" in row["instead"]
    # Most of the first and last product, of the square, and of what is added to it.
    most = 5 * (2 * 128 * 3 / 4 + 512 * 63 / 64 + 128 * 15 / 16) * 1000
    assert 0.9 * most < row["wins_ns"] < most
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]
    assert row["sure"] == "medium"


def test_products_scale_and_add_by_themselves() -> None:
    row = found(muon(iterations(4, 4)), "newton-schulz")
    assert "torch.addmm(A, A, A, beta=b, alpha=c)" in row["instead"]
    assert row["wins_ns"] == pytest.approx(5 * (8 + 8 + 16 + 2 + 2) * 0.75 * 1000, rel=0.03)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_the_shapes_of_products_tell_the_sides() -> None:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 900),), dims=[])
        begin = steps.now
        for _ in range(5):
            steps.op("aten::mT", dims=[[512, 256]])
            for left, right in (([512, 256], [256, 512]), ([512, 512],) * 2, ([512, 512], [512, 256])):
                steps.op("aten::mm", ((GEMM, 50),), dims=[left, right])
        steps.made.add("annotation", "Optimizer.step#Muon.step", begin, steps.now)
    row = found(steps.trace(), "newton-schulz")
    assert "the longer side, 2.0 times the shorter one" in row["what"]
    assert row["sure"] == "high"


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            muon(iterations(2, 8, adds=False), iterations(4, 4, adds=False)), id="of the shorter side"
        ),
        pytest.param(muon(iterations(8, 2), where="forward"), id="no optimizer"),
        pytest.param(muon(iterations(8, 2, products=2)), id="a cubic iteration"),
        pytest.param(muon(iterations(8, 2, times=2)), id="no loop"),
        pytest.param(muon(iterations(8, 2, us=0.002)), id="next to nothing"),
    ],
)
def test_products_of_which_nothing_is_known_to_be_saved(trace: Trace) -> None:
    assert finding(trace, "newton-schulz") is None
