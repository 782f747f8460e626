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


GATHERED = ("index_select", [NODES, [], [EDGES[0]]])
OF_A_LONG_TABLE = ("index_select", [[1_000_000, 64], [], [EDGES[0]]])


def joined(
    *between: tuple[str, Any],
    columns: int = 64,
    second: tuple[str, Any] = GATHERED,
    gather: str = "index_select",
    index: Any = EDGES[0],
    parts: tuple[Any, ...] = (EDGES, EDGES, [EDGES[0], 4]),
) -> Trace:
    """Steps that join the rows of both nodes of each edge with what is known of the edge, and apply a layer."""
    width = sum(part[1] for part in parts)
    layer = ("linear", [[EDGES[0], width], [columns, width], [columns]])
    after = (second, *between, ("cat", [[*parts], []]), layer, ("silu", [[EDGES[0], columns]]))
    return messages(after, gather=gather, index=index)


@pytest.mark.parametrize("columns", [64, 16])
def test_a_layer_on_joined_rows_comes_before_the_gathers(columns: int) -> None:
    row = found(joined(columns=columns), "layer-after-gather")
    assert "(index_select → cat → linear) computes 20 rows for each one" in row["what"]
    assert "(x @ w[:n])[index] + y @ w[n:]" in row["instead"]
    # With the backward pass, the layer and the cat take 900 µs, the gathers 1000 and 900.
    layer_us = 900 * (1 - (2 * 64 / 20 + 4) / 132)
    moved = columns * 7 / (2 * 132)
    gathers_us = 1900 * (1 - columns / 64)
    assert row["wins_ns"] == pytest.approx((layer_us + 900 * (1 - moved) + gathers_us) * 1000, rel=0.03)


def test_the_shapes_of_a_list_of_indices_are_not_recorded() -> None:
    by_list = ("index", [NODES, []])
    rows = [found(trace, "layer-after-gather") for trace in (joined(), joined(second=by_list))]
    assert rows[0]["wins_ns"] == rows[1]["wins_ns"]


def test_a_part_that_was_not_gathered_stays() -> None:
    row = found(joined(columns=16, second=("abs", [NODES])), "layer-after-gather")
    layer_us = 900 * 64 / 132 * (1 - 1 / 20)
    moved = 16 * 7 / (2 * 132)
    assert row["wins_ns"] == pytest.approx((layer_us + 900 * (1 - moved) + 1000 * 3 / 4) * 1000, rel=0.03)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(joined(("mul", [EDGES, [EDGES[0], 1]])), id="rows that are weighted first"),
        pytest.param(joined(second=("abs", [EDGES])), id="other rows of that width"),
        pytest.param(joined(gather="abs", second=("neg", [EDGES])), id="no gather"),
        pytest.param(
            joined(gather="abs", second=("index_select", [NODES, [], [7]])), id="rows of something else"
        ),
        pytest.param(joined(parts=([EDGES[0], 32],) * 3), id="none is as wide"),
        pytest.param(joined(parts=(EDGES, [EDGES[0] // 2, 64])), id="rows are joined"),
        pytest.param(joined(columns=512), id="gathers of wider rows take as much"),
        pytest.param(
            joined(OF_A_LONG_TABLE, second=OF_A_LONG_TABLE, parts=(EDGES, EDGES)),
            id="other gathers are joined",
        ),
        pytest.param(
            joined(second=("linear", [[EDGES[0], 32], [64, 32], [64]]), parts=(EDGES, [EDGES[0], 8])),
            id="what a layer makes is joined",
        ),
        pytest.param(
            messages((GATHERED, ("cat", [[EDGES, EDGES], []]), ("linear", [[0, 128], [64, 128], [64]]))),
            id="no rows",
        ),
    ],
)
def test_joined_rows_that_cannot_be_gathered_after_the_layer(trace: Trace) -> None:
    assert finding(trace, "layer-after-gather") is None


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
