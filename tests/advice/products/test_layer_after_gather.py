"""Layers on rows that a gather has repeated, as in messages of a graph."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tuiprof.model import Trace

NODE = "autograd::engine::evaluate_function"
GEMM, COPY = "sm90_xmma_gemm_bf16bf16_bf16f32", "void at::native::indexSelectLargeIndex<float>"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
NODES, EDGES = [1000, 64], [20_000, 64]


def messages(
    after: tuple[tuple[str, Any], ...],
    *,
    index: Any = EDGES[0],
    gather: str = "index_select",
    shapes: bool = True,
) -> Trace:
    """Steps of a gather of 400 µs, what comes after it, 300 µs each, and their backward pass."""
    steps = Steps()
    calls = [(gather, [NODES, [], [index]]), *after]
    for number in steps.each():
        steps.op("aten::mm", ((GEMM, 500),), dims=[] if shapes else None)
        for at, (name, dims) in enumerate(calls):
            kernel = (COPY, 400) if not at else (GEMM if name == "linear" else ELEMENTWISE, 300)
            steps.op(f"aten::{name}", (kernel,), dims=dims if shapes else None, sequence=10 * number + at)
        for at in reversed(range(len(calls))):
            node = f"{NODE}: Node{at}Backward0"
            steps.op(node, ((GEMM, 600),), dims=[] if shapes else None, sequence=10 * number + at)
    return steps.trace()


LINEAR, RELU = ("linear", [EDGES, [64, 64], [64]]), ("relu", [EDGES])
WEIGHTED, SUMMED = ("mul", [EDGES, [EDGES[0], 1]]), ("index_add_", [NODES, [], [EDGES[0]], EDGES])
MESSAGES = (LINEAR, RELU, WEIGHTED, SUMMED)


def test_a_layer_on_rows_that_a_gather_repeats_comes_before_it() -> None:
    row = found(messages(MESSAGES), "layer-after-gather")
    assert "(index_select → linear → relu) computes 20 rows for each one" in row["what"]
    assert "layer(x)[index]" in row["instead"]
    assert row["wins_ns"] == pytest.approx(2 * (300 + 600) * 1000 * 0.95, rel=0.03)


def resized(columns: int) -> Trace:
    """Steps whose layer makes so many values of the 64 of a row."""
    summed = [[1000, columns], [], [EDGES[0]], [EDGES[0], columns]]
    return messages((("linear", [EDGES, [columns, 64], [columns]]), ("index_add_", summed)))


def test_a_gather_of_the_result_moves_as_many_values_as_the_layer_makes() -> None:
    row = found(resized(columns=32), "layer-after-gather")
    assert row["wins_ns"] == pytest.approx((900 * 0.95 + 1000 / 2) * 1000, rel=0.05)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(messages(MESSAGES, shapes=False), id="no shapes"),
        pytest.param(resized(columns=128), id="a gather of wider rows takes as much"),
        pytest.param(messages((WEIGHTED, LINEAR, SUMMED)), id="rows that are weighted first"),
        pytest.param(messages((RELU, SUMMED)), id="no layer"),
        pytest.param(messages(MESSAGES, gather="cat"), id="no gather"),
        pytest.param(messages(MESSAGES, index=7), id="rows of something else"),
        pytest.param(messages((LINEAR, ("add", [EDGES, EDGES]), SUMMED)), id="two tensors of as many rows"),
        pytest.param(messages((LINEAR, ("cat", [[EDGES, EDGES]]), SUMMED)), id="in a list"),
        pytest.param(messages((LINEAR, RELU)), id="rows that nothing adds up"),
        pytest.param(messages((("linear", [NODES, [64, 64], [64]]), SUMMED)), id="a layer on the source"),
        pytest.param(
            messages((("linear", [[500, 64], [64, 64]]), ("sum", [[500, 64]])), index=500), id="fewer rows"
        ),
        pytest.param(
            messages((("linear", [[1000, 640], [64, 640]]), ("sum", [NODES])), index=640),
            id="columns are gathered",
        ),
    ],
)
def test_layers_that_cannot_come_before_a_gather(trace: Trace) -> None:
    assert finding(trace, "layer-after-gather") is None
