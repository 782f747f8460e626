"""Mixtures of experts that compute all rows, on tiny traces with shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.findings import finding, found
from tests.advice.products.one_step import Call, step_of

ROWS = 8192
X, WIDE = [ROWS, 64], [ROWS, 256]
UP: Call = ("linear", [X, [256, 64], [256]], [])
DOWN: Call = ("linear", [WIDE, [64, 256], [64]], [])
EXPERT: list[Call] = [UP, ("gelu", [WIDE], []), DOWN]
WEIGHTED: list[Call] = [("mul", [[ROWS, 1], X], []), ("add", [X, X], [])]


def router(experts: int, chosen: int, rows: int = ROWS) -> Call:
    return ("topk", [[rows, experts], [], []], ["", str(chosen), "1", "True", "True"])


def joined(experts: int, *then: Call) -> list[Call]:
    return [*EXPERT * experts, ("stack", [[X] * experts, []], []), *then]


@given(st.integers(2, 12), st.integers(1, 6), st.booleans())
def test_the_saving_follows_from_how_many_experts_a_row_needs(
    experts: int, chosen: int, stacked: bool
) -> None:
    weights: Call = ("mul", [[ROWS, experts, 64], [ROWS, experts, 1]], [])
    calls = joined(experts, weights) if stacked else [*EXPERT, *WEIGHTED] * experts
    row = finding(step_of(router(experts, chosen), *calls), "all-experts")
    if chosen > 0.5 * experts:
        assert row is None
        return
    took_ns = 1e5 * (3 * experts + 2 if stacked else 5 * experts - 1)
    assert row is not None
    assert (
        f"each of {experts} experts computes all 8 192 rows, though a row needs {chosen} of them"
        in row["what"]
    )
    assert row["wins_ns"] == pytest.approx(took_ns * (1 - 1.2 * chosen / experts - 150 / ROWS), rel=0.03)
    assert row["sure"] == "high"


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([router(4, 1), *[*EXPERT, *WEIGHTED] * 4], id="weighted one by one"),
        pytest.param(
            [router(4, 2), *joined(4, ("einsum", ["", [[ROWS, 4, 64], [ROWS, 4]], []], []))],
            id="weighted by einsum",
        ),
        pytest.param([router(4, 2), *joined(4, ("gather", [[ROWS, 4, 64], [ROWS, 2, 64]], []))], id="chosen"),
        pytest.param(
            [*EXPERT * 4, router(4, 1), *joined(4)[-1:], ("mul", [[ROWS, 4, 64], [ROWS, 4, 1]], [])],
            id="chosen after",
        ),
        pytest.param(
            [UP, DOWN, router(4, 1), UP, ("gelu", [WIDE], []), *[*EXPERT, *WEIGHTED] * 4], id="after a layer"
        ),
        pytest.param([("argmax", [[16, 512, 4]], []), *[*EXPERT, *WEIGHTED] * 4], id="the best one"),
    ],
)
def test_a_mixture_is_written_in_many_ways(calls: list[Call]) -> None:
    assert finding(step_of(*calls), "all-experts") is not None


def test_its_backward_pass_goes_with_it() -> None:
    calls = [router(4, 1), *[*EXPERT, *WEIGHTED] * 4]
    alone, trained = (found(step_of(*calls, trained=many), "all-experts") for many in (False, True))
    assert trained["wins_ns"] == pytest.approx(2 * alone["wins_ns"], rel=0.05)


def test_the_shapes_of_a_long_list_are_not_recorded() -> None:
    weights: Call = ("mul", [[ROWS, 40, 64], [ROWS, 40, 1]], [])
    calls = [*EXPERT * 40, ("stack", [[], []], []), weights]
    assert finding(step_of(router(40, 2), *calls), "all-experts") is not None
    assert finding(step_of(router(40, 2), *calls[:-1]), "all-experts") is None


def test_each_layer_has_a_mixture() -> None:
    calls = [router(4, 1), *[*EXPERT, *WEIGHTED] * 4]
    one, two = (found(step_of(*calls * many), "all-experts") for many in (1, 2))
    assert "2 times a step" in two["what"]
    assert two["wins_ns"] == pytest.approx(2 * one["wins_ns"], rel=0.05)


def test_a_mask_does_not_tell_how_many_experts_a_row_needs() -> None:
    row = found(
        step_of(("masked_fill", [[ROWS, 4], [ROWS, 4], []], []), *[*EXPERT, *WEIGHTED] * 4), "all-experts"
    )
    assert row["sure"] == "low"
    assert row["wins_low_ns"] == 0 < row["wins_ns"] < row["wins_high_ns"]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([("softmax", [[ROWS, 4]], []), *[*EXPERT, *WEIGHTED] * 4], id="every row needs all"),
        pytest.param([router(4, 3), *[*EXPERT, *WEIGHTED] * 4], id="a row needs most"),
        pytest.param([router(4, 1), *[*EXPERT, *WEIGHTED] * 3], id="fewer products than scores"),
        pytest.param([router(4, 1, 100), *[*EXPERT, *WEIGHTED] * 4], id="experts of other rows"),
        pytest.param([router(4, 1), *EXPERT * 4], id="layers"),
        pytest.param([router(4, 1), *[*EXPERT, ("add", [X, X], [])] * 4], id="residual layers"),
        pytest.param([router(4, 1), *joined(4, ("sum", [[ROWS, 4, 64]], []))], id="heads that are summed"),
        pytest.param(
            [
                router(4, 1),
                *[
                    call
                    for rows in (100, 200, 300, 7592)
                    for call in (
                        ("linear", [[rows, 64], [256, 64]], []),
                        ("mul", [[rows, 1], [rows, 256]], []),
                    )
                ],
            ],
            id="each has its rows",
        ),
        pytest.param([("topk", [[ROWS, None]], ["", "1"]), *[*EXPERT, *WEIGHTED] * 4], id="damaged"),
    ],
)
def test_others_are_none(calls: list[Call]) -> None:
    assert finding(step_of(*calls), "all-experts") is None


def test_without_shapes_nothing_is_advised() -> None:
    calls = [router(4, 1), *[*EXPERT, *WEIGHTED] * 4]
    assert finding(step_of(*calls, shapes=False), "all-experts") is None
