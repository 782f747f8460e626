"""Inverses that are only multiplied, on tiny traces with and without shapes."""

from __future__ import annotations

import pytest
from analyses.made import Made
from host_ahead import Steps
from test_operator_rules import ELEMENTWISE, GEMM, finding, found
from test_rules import with_lines

from tuiprof.model import Trace

N, COLUMN, FEW, MANY = [256, 256], [256, 1], [256, 32], [256, 256]
Calls = tuple[tuple[str, list[list[int]]], ...]
INVERSE: Calls = (("inverse", [N]),)


def solved(*calls: tuple[str, list[list[int]]], shapes: bool = True, trained: bool = False) -> Trace:
    """Return steps with a product of 1 ms, then these calls of 100 µs each."""
    steps = Steps()
    for number in steps.each():
        steps.op("aten::linear", ((GEMM, 1000),), dims=[[64, 256], [512, 256]] if shapes else None)
        for at, (name, dims) in enumerate(calls):
            work, given = ((ELEMENTWISE, 100),), dims if shapes else None
            steps.op(f"aten::{name}", work, dims=given, sequence=10 * number + at if trained else None)
        for at in reversed(range(len(calls) if trained else 0)):
            node = f"autograd::engine::evaluate_function: Node{at}Backward0"
            steps.op(node, ((ELEMENTWISE, 100),), dims=[] if shapes else None, sequence=10 * number + at)
    return steps.trace()


@pytest.mark.parametrize("right", [[256], COLUMN, FEW])
@pytest.mark.parametrize("name", ["inverse", "linalg_inv"])
def test_an_inverse_times_a_few_columns_is_a_solution(name: str, right: list[int]) -> None:
    row = found(solved((name, [N]), ("matmul", [N, right])), "matrix-inverse")
    assert row["instead"].startswith("torch.linalg.solve")
    assert row["wins_ns"] == pytest.approx(0.7 * 100_000, rel=0.03)
    assert row["wins_low_ns"] > 0


def test_rows_may_stand_on_the_left() -> None:
    assert finding(solved(*INVERSE, ("matmul", [[8, 256], N])), "matrix-inverse") is not None


def test_its_backward_pass_goes_with_it() -> None:
    row = found(solved(*INVERSE, ("matmul", [N, COLUMN]), trained=True), "matrix-inverse")
    assert row["wins_ns"] == pytest.approx(0.7 * 200_000, rel=0.03)


def test_without_shapes_it_may_save_nothing() -> None:
    row = found(solved(*INVERSE, ("matmul", [N, COLUMN]), shapes=False), "matrix-inverse")
    assert row["wins_low_ns"] == 0 < row["wins_ns"]


def test_a_determinant_of_the_same_matrix_needs_no_factors_of_its_own() -> None:
    calls: Calls = (*INVERSE, ("matmul", [N, MANY]), ("logdet", [N]))
    row = found(solved(*calls), "matrix-inverse")
    assert "cholesky" in row["instead"]
    assert row["wins_ns"] == pytest.approx(0.45 * 200_000, rel=0.03)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (("gp.py:9", 0.35, ""), "gp.py:9"),
        (("gp.py:9", 0.35, "forward"), "gp.py:9"),
        (("gp.py:9", 0.8, ""), ""),  # it does something else as well
        (("gp.py:9", 0.35, "backward"), ""),
    ],
)
def test_the_line_is_the_one_that_was_sampled_as_often(line: tuple[str, float, str], where: str) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::mm", at + 10, at + 600)
        made.op("aten::inverse", at + 610, at + 960).op("aten::mm", at + 970, at + 990)
    assert found(with_lines(made.trace(), line), "matrix-inverse")["where"] == where


@pytest.mark.parametrize(
    "calls",
    [
        (*INVERSE, ("matmul", [N, MANY])),
        (*INVERSE, ("add", [N, N])),
        (("logdet", [N]), ("matmul", [N, COLUMN])),
        (*INVERSE, *((("add", [N, N]),) * 9), ("matmul", [N, COLUMN])),
    ],
    ids=["as many columns", "no product", "a determinant alone", "much later"],
)
def test_others_are_none(calls: Calls) -> None:
    assert finding(solved(*calls), "matrix-inverse") is None
