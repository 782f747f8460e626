"""Steps that differentiate gradients, as for a differential equation: their autograd nodes create others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from analyses.made import BACKWARD, MAIN, Made

from tests.advice.findings import finding, found
from tuiprof.advice.fusing import left_to_compile
from tuiprof.analyses.shared.calls import calls
from tuiprof.formats import open_trace
from tuiprof.model import Trace

NODE = "autograd::engine::evaluate_function: {}Backward0"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
REDUCE = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, MeanOps>>"
SOFTMAX = "void cunn_SoftMaxForward<8>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
#: Operators of the forward pass with the kernel of each, and the number of the first node of the backward thread.
FORWARD = (
    ("linear", GEMM),
    ("mul", ELEMENTWISE),
    ("sin", ELEMENTWISE),
    ("cos", ELEMENTWISE),
    ("linear", GEMM),
)
THEIRS = 5_000


def equation(
    coordinates: int = 3,
    *,
    creates: bool = True,
    thread: int = BACKWARD,
    root: str = "Select",
    slower: float = 1,
    seconds: int = 0,
    operators: Sequence[tuple[str, str]] = FORWARD,
) -> Trace:
    """Steps with gradients of an output, 100 µs a node, and the gradients of these gradients, 70 µs a node.

    Args:
        coordinates: How many gradients are asked for, one after the other.
        creates: Whether their nodes create nodes, of which a loss's backward pass visits all.
        thread: Where the backward pass runs; the main thread goes on to count its own nodes.
        root: At what node they begin.
        slower: What all work takes longer; with less than a tenth, the device waits for the host; 0 = a CPU.
        seconds: Of so many of these gradients, gradients are asked for too: these visit what theirs have created.
        operators: Those of the forward pass.
    """
    made, at, free = Made(), 0.0, 30.0

    def op(name: str, kernel: str, us: float, track: int, sequence: int | None, creating: int = -1) -> None:
        nonlocal at, free
        made.op(name, at, at + 9, track=track, sequence=sequence)
        if creating >= 0:
            made.op(name.split(": ")[-1], at + 1, at + 8, track=track, sequence=sequence)
            made.op("aten::mul", at + 2, at + 7, track=track, sequence=creating)
        free = max(free, at + 6)
        if slower:
            made.launch(kernel, (at + 3, at + 5), (free, free + us * slower), thread=track)
        at, free = at + 10, free + us * slower

    for step in range(3):
        begun, first, theirs = at, 100 * step, THEIRS + 100 * step
        forward = [*operators, (root.lower(), ELEMENTWISE)]
        for number, (name, kernel) in enumerate(forward, first):
            op(f"aten::{name}", kernel, 100, MAIN, number)
        if thread == MAIN:
            theirs = first + len(forward)
        nodes = [
            (
                NODE.format(root if name == root.lower() else "Addmm" if name == "linear" else name.title()),
                number,
            )
            for number, (name, _) in enumerate(forward, first)
        ][::-1]
        created: list[int] = []
        for _ in range(coordinates):
            for name, number in nodes:
                created += [theirs + len(created)] * creates
                op(name, GEMM if "Addmm" in name else ELEMENTWISE, 100, thread, number, [-1, *created][-1])
            op("aten::ones_like", ELEMENTWISE, 1, MAIN, None)
        for one in range(seconds):
            mine = created[one * len(nodes) : (one + 1) * len(nodes)]
            for number in reversed(mine):
                op(NODE.format("Mul"), ELEMENTWISE, 70, thread, number)
            for name, number in nodes:
                op(name, ELEMENTWISE, 10, thread, number)
            op("aten::ones_like", ELEMENTWISE, 1, MAIN, None)
        op(
            "aten::square",
            ELEMENTWISE,
            1,
            MAIN,
            loss := first + len(forward) + len(created) * (thread == MAIN),
        )
        op(NODE.format("Pow"), ELEMENTWISE, 1, thread, loss)
        for number in reversed(created):
            op(NODE.format("Mul"), ELEMENTWISE, 70, thread, number)
        for name, number in nodes:
            op(name, ELEMENTWISE, 10, thread, number)
        store = "torch::autograd::AccumulateGrad"
        made.op(NODE.partition("{")[0] + store, at, at + 9, track=thread)
        made.op("aten::detach", at + 2, at + 4, track=thread)
        at += 10
        made.step(step, begun, at)
    return made.trace()


@pytest.mark.parametrize("thread", [BACKWARD, MAIN], ids=["a thread of its own", "the same thread"])
def test_nodes_that_nodes_create_are_not_those_of_the_operator_before(thread: int) -> None:
    trace = equation(thread=thread)
    found_calls = calls(trace)
    made = found_calls.created_in >= 0
    assert made.sum() == 3 * 3 * 6, "of each gradient of each step, one for each node"
    assert not (found_calls.forward[made] >= 0).any()
    assert set(found_calls.names_of(found_calls.differentiated_twice.nonzero()[0])) == {
        *(f"aten::{name}" for name, _ in FORWARD),
        "aten::select",
    }
    # The last created is the first visited.
    assert found_calls.names_of(found_calls.created_in[made][:1])[0].endswith("AddmmBackward0")


def test_nodes_of_another_thread_with_numbers_of_the_forward_pass_are_not_taken_for_created_ones() -> None:
    """Checkpoints compute the forward pass again in the backward thread, which numbers it on its own."""
    made, at = Made(), 0.0
    for step in range(3):
        begun, first = at, 10 * step
        for number in range(6):
            made.op("aten::linear", at, at + 9, sequence=first + number)
            at += 10
        for number in reversed(range(6)):
            made.op(NODE.format("Mm"), at, at + 9, track=BACKWARD, sequence=first + number)
            made.op("aten::linear", at + 1, at + 3, track=BACKWARD, sequence=first + 5 - number)
            at += 10
        made.step(step, begun, at)
    found_calls = calls(made.trace())
    assert not (found_calls.created_in >= 0).any()
    assert (found_calls.forward >= 0).sum() == 3 * 6


def test_what_is_differentiated_twice_is_not_to_be_compiled() -> None:
    advised = found(equation(1, creates=False), "elementwise-chain")
    assert "torch.compile" in advised["instead"]
    assert "torch.compile" in left_to_compile(equation(1, creates=False))
    trace = equation(1)
    assert finding(trace, "elementwise-chain") is None
    assert not left_to_compile(trace), "most of the step is"


@pytest.mark.parametrize(
    ("rule", "operators"),
    [
        ("unfused-attention", (("matmul", GEMM), ("softmax", SOFTMAX), ("matmul", GEMM))),
        (
            "unfused-norm",
            (("pow", ELEMENTWISE), ("mean", REDUCE), ("rsqrt", ELEMENTWISE), ("mul", ELEMENTWISE)),
        ),
    ],
)
def test_fused_kernels_are_for_what_is_differentiated_once(
    rule: str, operators: tuple[tuple[str, str], ...]
) -> None:
    assert finding(equation(1, creates=False, operators=operators), rule) is not None
    assert finding(equation(1, operators=operators), rule) is None


def test_a_loop_of_what_is_differentiated_twice_is_not_to_be_compiled() -> None:
    loop = (("add", ELEMENTWISE), ("sin", ELEMENTWISE)) * 40
    once, twice = (
        found(equation(1, creates=creates, thread=MAIN, operators=loop, slower=0), "operator-loop")["instead"]
        for creates in (False, True)
    )
    assert once == f"{twice}; or torch.compile"


@pytest.mark.parametrize("creates", [False, True])
def test_graphs_of_what_is_differentiated_twice_are_captured_without_compiling(creates: bool) -> None:
    instead = found(equation(1, creates=creates, slower=0.02), "launch-bound")["instead"]
    assert "CUDA graphs" in instead
    assert ("torch.compile(mode" in instead) != creates
    assert ("does not support gradients of gradients" in instead) == creates


@pytest.mark.parametrize(("root", "remains"), [("Select", 0.0), ("Unbind", 0.4)], ids=["a value", "several"])
def test_gradients_of_one_value_are_all_in_one_pass(root: str, remains: float) -> None:
    row = found(equation(root=root), "repeated-backward")
    whole = 2 * 6 * (100 + 70) * 1000
    assert row["wins_ns"] == pytest.approx((1 - remains) * whole, rel=0.03)
    assert (row["wins_low_ns"] > 0.5 * whole) == (remains == 0)
    assert ("for different outputs" in row["because"]) == (remains > 0)


def test_second_derivatives_are_asked_for_one_by_one_all_the_same() -> None:
    row = found(equation(coordinates=2, seconds=2), "repeated-backward")
    # Those of the loss remain once; the second derivatives with respect to x and y are two passes.
    assert row["wins_ns"] == pytest.approx(6 * (100 + 70) * 1000, rel=0.03)


_PENALTY = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.randn(4, 8, requires_grad=True)
def step():
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    plain = torch.sigmoid(torch.randn(4, 8, requires_grad=True)).sum()
    (slope.square().sum() + plain).backward()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    step()
profile.export_chrome_trace(sys.argv[1])
"""


def test_a_gradient_penalty_recorded_here(tmp_path: Path) -> None:
    file = tmp_path / "penalty.pt.trace.json"
    subprocess.run([sys.executable, "-c", _PENALTY, str(file)], check=True, timeout=120)
    found_calls = calls(open_trace(file))
    twice = found_calls.names_of(found_calls.differentiated_twice.nonzero()[0])
    assert {"aten::linear", "aten::tanh"} <= set(twice)
    assert "aten::sigmoid" not in twice
    assert "aten::square" not in twice
