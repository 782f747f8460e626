"""Orders of two products, on tiny traces with shapes."""

from __future__ import annotations

from typing import Any

import pytest
from analyses.made import Made
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.findings import finding, found
from tests.advice.host_ahead import with_shapes
from tests.advice.products.one_step import Call, step_of

Q, KEYS, V, SCORES, ROWS = [4, 512, 32], [4, 32, 512], [4, 512, 32], [4, 512, 512], [4, 512, 1]
FIRST: Call = ("matmul", [Q, KEYS])
SECOND: Call = ("matmul", [SCORES, V])
SUM: Call = ("sum", [SCORES, [], []], ["", "[-1]", "False"])


def kept(rows: int, inner: int, columns: int, narrow: int) -> tuple[float, float]:
    """Return the shares of operations and of elements that stay in the other order, one operation after the other."""
    one, two = (
        [(rows, inner, columns), (rows, columns, narrow)],
        [(inner, columns, narrow), (rows, inner, narrow)],
    )
    operations, elements = (
        [sum(cost(*sizes) for sizes in order) for order in (one, two)]
        for cost in (lambda m, k, n: m * k * n, lambda m, k, n: m * k + k * n + m * n)
    )
    return operations[1] / operations[0], elements[1] / elements[0]


def test_scores_without_a_softmax_are_not_needed() -> None:
    row = found(step_of(FIRST, SECOND), "product-order")
    assert "a matrix of 512 × 512 only to multiply it by 32 columns, every step" in row["what"]
    assert "the other order takes 6.2 % of their operations" in row["what"]
    assert "a @ (b @ c) instead of (a @ b) @ c" in row["instead"]
    assert 0 < row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_their_backward_pass_goes_with_them() -> None:
    alone, trained = (found(step_of(FIRST, SECOND, trained=many), "product-order") for many in (False, True))
    assert trained["wins_ns"] == pytest.approx(2 * alone["wins_ns"], rel=0.05)


@given(*(st.sampled_from((8, 24, 64, 200, 512, 1024)),) * 4)
def test_the_saving_follows_from_the_shapes(rows: int, inner: int, columns: int, narrow: int) -> None:
    """The narrow product first is advised where it takes clearly fewer operations, whichever side is narrow."""
    for calls in (
        [("matmul", [[rows, inner], [inner, columns]]), ("matmul", [[rows, columns], [columns, narrow]])],
        [("matmul", [[columns, inner], [inner, rows]]), ("matmul", [[narrow, columns], [columns, rows]])],
    ):
        operations, elements = kept(rows, inner, columns, narrow)
        row = finding(step_of(*calls), "product-order")
        # Twice the same sizes may be two products of one tensor, as keys and values are.
        if operations > 0.6 or inner == columns == narrow:
            assert row is None
        elif min(operations + 0.5 * elements, 1.0) < 0.95:
            assert row is not None
            assert row["wins_ns"] == pytest.approx(
                200_000 * (1 - min(operations + 0.5 * elements, 1.0)), abs=6_000
            )


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([("mul", [SCORES, []])], id="a number"),
        pytest.param(
            [("sum", [SCORES, [], []], ["", "[-1]", "False"]), ("div", [SCORES, ROWS])],
            id="rows that add up to one",
        ),
        pytest.param([("mul", [[512], SCORES])], id="a factor for each column"),
        pytest.param([("_to_copy", [SCORES])], id="another type"),
        pytest.param([("linear", [[4, 512, 64], [32, 64]])], id="the values"),
        pytest.param([("transpose", [V]), ("view", [SCORES])], id="views"),
    ],
)
def test_what_only_scales_the_large_matrix_can_be_done_after_it(between: list[Call]) -> None:
    assert finding(step_of(FIRST, *between, SECOND), "product-order") is not None


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([FIRST, ("softmax", [SCORES]), SECOND], id="softmax"),
        pytest.param([FIRST, ("masked_fill_", [SCORES, [512, 512], []]), SECOND], id="a mask"),
        pytest.param([FIRST, ("mul", [SCORES, [512, 512]]), SECOND], id="a decay for each pair"),
        pytest.param([FIRST, ("mul_", [SCORES, SCORES]), SECOND], id="squares"),
        pytest.param([FIRST, ("div", [[], SCORES]), SECOND], id="one over each"),
        pytest.param([FIRST, ("elu", [SCORES]), SECOND], id="an activation"),
        pytest.param([FIRST, ("add", [SCORES, [4, 1, 512]]), SECOND], id="a bias"),
        pytest.param([FIRST, SECOND, ("softmax", [SCORES])], id="used later, too"),
        pytest.param([FIRST, SECOND, ("mul", [SCORES, ROWS])], id="scaled later"),
        pytest.param([FIRST, SECOND, ("cat", [[SCORES, SCORES]])], id="used in a list"),
        pytest.param([FIRST, ("matmul", [V, [32, 32]])], id="another factor"),
        pytest.param([("matmul", [SCORES, SCORES]), ("matmul", [SCORES, SCORES])], id="nothing narrow"),
        pytest.param(
            [("matmul", [[4, 32, 64], [4, 64, 32]]), ("matmul", [[4, 32, 32], [4, 32, 64]])],
            id="small scores",
        ),
        pytest.param(
            [
                ("matmul", [[64, 256], [256, 256]]),
                ("matmul", [[64, 256], [256, 32]]),
                ("mul", [[64, 256], [64, 1]]),
            ],
            id="two products of one tensor",
        ),
        pytest.param([FIRST, ("matmul", [[4, 512, None], V])], id="damaged"),
        pytest.param([FIRST, ("linear", [SCORES, [32, 512], [32]])], id="a layer"),
    ],
)
def test_others_are_none(calls: list[Call]) -> None:
    assert finding(step_of(*calls), "product-order") is None


def test_without_shapes_nothing_is_advised() -> None:
    assert finding(step_of(FIRST, SECOND, shapes=False), "product-order") is None


def test_an_einsum_is_the_product_that_it_calls() -> None:
    made = Made()
    dims = list[Any]()
    for _, at in made.steps(1000):
        made.op("aten::linear", at + 1, at + 100)
        dims.append([[64, 256], [512, 256]])
        for index, sizes in enumerate(([[4, 512, 32], [4, 32, 512]], [[4, 512, 512], [4, 512, 32]])):
            begin = at + 110 + 300 * index
            made.op("aten::einsum", begin, begin + 290).op("aten::bmm", begin + 10, begin + 280)
            dims += [["", sizes, []], sizes]
    row = found(with_shapes(made.trace(), dims), "product-order")
    assert row["wins_ns"] > 400_000
