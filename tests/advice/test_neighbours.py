"""Neighbours that each layer searches again among the same points, in made traces."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD
from host_ahead import Steps
from test_operator_rules import GEMM, finding, found

from tuiprof.model import Trace

ADD = "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<CUDAFunctor_add<{}>>>"
AUTOGRAD = "autograd::engine::evaluate_function"
CDIST = ("aten::cdist",)


def searched(
    *distances: str,
    chooses: str = "aten::topk",
    detached: bool = False,
    recorded: bool = False,
    creates: int = 0,
    differences: tuple[str, ...] = ("float",) * 4,
    took: tuple[float, ...] = (50,) * 4,
    kernel: str = "gatherTopK",
) -> Trace:
    """Steps of layers that each search neighbours, and subtract tensors that need no gradient.

    Args:
        distances: Operators before the one that chooses.
        chooses: Operator that chooses by distances.
        detached: Whether what is searched was detached.
        recorded: Whether gradient mode is on during the search.
        creates: How many nodes the search creates then.
        differences: Type of what each layer subtracts; empty = nothing.
        took: Device time of the choice in each layer, µs.
        kernel: What chooses in the last layer.
    """
    steps = Steps()
    node = 0
    for _ in steps.each():
        first = node
        for layer, (kind, choice_us) in enumerate(zip(differences, took, strict=True)):
            if detached:
                steps.op("aten::detach", sequence=node)
            for name in distances:
                steps.op(name, ((ADD.format("float"), 20),), sequence=node if recorded else None)
            node += creates
            chosen = kernel if layer == len(took) - 1 else "gatherTopK"
            steps.op(chooses, ((chosen, choice_us),), sequence=node if recorded else None)
            steps.op("aten::linear", ((GEMM, 100),), sequence=node)
            node += 1
            if kind:
                steps.op("aten::sub", ((ADD.format(kind), 5),), sequence=node)
            steps.op("aten::linear", ((GEMM, 100),), sequence=node)
            node += 1
        made = {row["sequence"] for row in steps.made.rows if row["name"] == "aten::linear"}
        for number in sorted((number for number in made if number >= first), reverse=True):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
    return steps.trace()


@pytest.mark.parametrize(
    "trace",
    [
        searched(*CDIST),
        searched(*CDIST, recorded=True, differences=("",) * 4),
        searched(*CDIST, took=(50, 55, 45, 50)),
        searched("aten::cdist", chooses="aten::sort", recorded=True),
    ],
)
def test_neighbours_of_the_same_points_are_searched_once(trace: Trace) -> None:
    row = found(trace, "repeated-in-layers")
    assert row["wins_ns"] == pytest.approx(3 * 70_000, rel=0.03)  # of four layers, the first stays
    assert row["wins_low_ns"] == 0, "perhaps they are other points"
    assert row["what"].startswith("4 layers each run the same 2 operators to find neighbours")
    assert "if the points are the same" in row["instead"]


def test_distances_may_be_written_out() -> None:
    trace = searched("aten::sub", "aten::pow", "aten::sum", chooses="aten::argsort")
    assert found(trace, "repeated-in-layers")["wins_ns"] == pytest.approx(3 * 110_000, rel=0.03)


@pytest.mark.parametrize(
    "trace",
    [
        searched(*CDIST, differences=("",) * 4),  # among what layers computed, for all that is known
        searched(*CDIST, differences=("float", "float", "", "float")),
        searched(*CDIST, differences=("long",) * 4),  # of indices
        searched(*CDIST, recorded=True, creates=1, differences=("",) * 4),  # among what needs gradients
        searched(*CDIST, detached=True),
        searched(*CDIST, took=(50, 50, 50, 20)),  # fewer points
        searched(*CDIST, kernel="sbtopk"),
        searched("aten::softmax"),  # a router's choice
        searched("aten::rand", "aten::cdist"),
        searched(*CDIST, differences=("float",) * 2, took=(50, 50)),  # two layers
    ],
)
def test_neighbours_that_may_differ(trace: Trace) -> None:
    assert finding(trace, "repeated-in-layers") is None
