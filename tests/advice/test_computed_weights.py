"""Weights that a network computes in each call although nothing trains it, on tiny traces with shapes."""

from __future__ import annotations

import pytest
from host_ahead import Steps
from test_operator_rules import ELEMENTWISE, GEMM, finding, found

from tuiprof.model import Trace

W = [512, 256]
X = [64, 256]
Call = tuple[str, list[list[int]]]  # an operator and the shapes of its tensors


def served(*calls: Call) -> Trace:
    """Return steps of a network on a GPU: these calls of 100 µs, then a product that has an input and a weight."""
    steps = Steps()
    for _ in steps.each():
        for name, dims in (*calls, ("aten::linear", [X, W, [512]])):
            kernel = GEMM if name == "aten::linear" else ELEMENTWISE
            steps.op(name, ((kernel, 100),), dims=dims)
    return steps.trace()


MASK: Call = ("aten::mul", [W, W])
LOW_RANK: tuple[Call, ...] = (("aten::matmul", [[512, 8], [8, 256]]), ("aten::add", [W, W]))
STANDARD: tuple[Call, ...] = (
    ("aten::mean", [W]),
    ("aten::sub", [W, [512, 1]]),
    ("aten::std", [W]),
    ("aten::add", [[512, 1]]),
    ("aten::div", [W, [512, 1]]),
)


@pytest.mark.parametrize(
    ("calls", "operator"),
    [
        ((MASK,), "mul"),
        (LOW_RANK, "add"),
        (STANDARD, "div"),
        ((("aten::_weight_norm", [W, [512, 1]]),), "_weight_norm"),
    ],
    ids=["masks", "an adapter", "standardised", "weight norm"],
)
def test_what_makes_a_weight_is_needed_once(calls: tuple[Call, ...], operator: str) -> None:
    row = found(served(("aten::relu", [X]), *calls), "computed-weights")
    assert f"every step ({operator})" in row["what"]
    assert row["wins_ns"] == pytest.approx(100_000 * len(calls), rel=0.05)


def test_what_lies_before_the_input_belongs_to_something_else() -> None:
    row = found(served(MASK, ("aten::relu", [X]), MASK), "computed-weights")
    assert row["wins_ns"] == pytest.approx(100_000, rel=0.05)


@pytest.mark.parametrize(
    "call",
    [("aten::mul", [X, X]), ("aten::mul", [X, W[1:]]), ("aten::relu", [W]), ("aten::mul", [])],
    ids=["of the input", "of the input and a row", "no arithmetic", "no shapes"],
)
def test_what_makes_the_input_is_none(call: Call) -> None:
    assert finding(served(call), "computed-weights") is None


def test_an_input_as_large_as_the_weight_may_be_either() -> None:
    trace = served(("aten::mul", [W, W]), ("aten::linear", [[512, 256], W, [512]]))
    assert finding(trace, "computed-weights") is None


def test_weights_that_are_trained_change() -> None:
    steps = Steps()
    for number in steps.each():
        steps.op("aten::_weight_norm", ((ELEMENTWISE, 100),), sequence=number)
        steps.op("aten::linear", ((GEMM, 100),))
        steps.op(
            "autograd::engine::evaluate_function: WeightNormBackward", ((ELEMENTWISE, 100),), sequence=number
        )
    assert finding(steps.trace(), "computed-weights") is None
