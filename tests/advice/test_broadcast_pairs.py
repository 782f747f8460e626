"""Tensors of all pairs that are only made to be summed, on tiny traces with shapes."""

from __future__ import annotations

import pytest
from host_ahead import Steps
from test_operator_rules import ELEMENTWISE, GEMM, finding, found

from tuiprof.model import Trace

X, Y, PAIRS = [128, 1, 64], [1, 256, 64], [128, 256, 64]
SQUARED = ("sub", "pow", "sum")


def combined(x: object, y: object, *names: str, trained: bool = False) -> Trace:
    """Return steps with a product of 1 ms, then a combination of two tensors and what follows, of 100 µs each."""
    steps = Steps()
    for number in steps.each():
        steps.op("aten::linear", ((GEMM, 1000),), dims=[[64, 256], [512, 256]])
        for at, name in enumerate(names):
            dims = [x, y, []] if at == 0 else [PAIRS, []]
            steps.op(
                f"aten::{name}",
                ((ELEMENTWISE, 100),),
                dims=dims,
                sequence=10 * number + at if trained else None,
            )
        if trained:
            for at in reversed(range(len(names))):
                node = f"autograd::engine::evaluate_function: {names[at].title()}Backward0"
                steps.op(node, ((ELEMENTWISE, 100),), dims=[], sequence=10 * number + at)
    return steps.trace()


@pytest.mark.parametrize(
    ("names", "instead"),
    [
        (SQUARED, "torch.cdist"),
        (("sub", "linalg_vector_norm"), "torch.cdist"),
        (("sub", "abs", "mean"), "torch.cdist"),
        (("mul", "sum"), "torch.einsum"),
    ],
)
def test_pairs_that_are_summed_need_no_tensor_of_all(names: tuple[str, ...], instead: str) -> None:
    row = found(combined(X, Y, *names), "broadcast-pairs")
    assert f"a tensor of 128 × 256 × 64 (8.00 MiB in float32), and summed: {' → '.join(names)}" in row["what"]
    assert instead in row["instead"]
    assert row["wins_ns"] == pytest.approx(0.75 * len(names) * 100_000, rel=0.03)


def test_their_backward_pass_goes_with_them() -> None:
    row = found(combined(X, Y, *SQUARED, trained=True), "broadcast-pairs")
    assert row["wins_ns"] == pytest.approx(0.75 * 600_000, rel=0.03)


@pytest.mark.parametrize(
    ("x", "y", "names"),
    [
        pytest.param(X, Y, ("sub", "pow", "mul"), id="not summed"),
        pytest.param(X, Y, ("sub", "exp", "sum"), id="another function"),
        pytest.param(X, Y, ("add", "pow", "sum"), id="a sum of sums"),
        pytest.param(PAIRS, Y, SQUARED, id="one side"),
        pytest.param(PAIRS, PAIRS, SQUARED, id="no broadcast"),
        pytest.param([128, 1, 64], [1, 4, 64], SQUARED, id="few"),
        pytest.param([128, None, 64], Y, SQUARED, id="damaged"),
        pytest.param([], Y, SQUARED, id="a number"),
    ],
)
def test_others_are_none(x: object, y: object, names: tuple[str, ...]) -> None:
    assert finding(combined(x, y, *names), "broadcast-pairs") is None
