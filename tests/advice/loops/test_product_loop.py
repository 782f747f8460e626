"""Layers that are called on slices one by one, on tiny traces of a CPU and of a device."""

from __future__ import annotations

from typing import Any

import pytest
from analyses.made import Made, with_arguments
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tuiprof.advice import priorities
from tuiprof.model import Trace

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
#: An operator, the shapes of its inputs, and its values.
Call = tuple[str, list[Any], list[str]]


LINEAR: Call = ("linear", [[8, 32], [32, 32]], ["", ""])


def select(dims: list[int], at: int, dim: int = 2) -> Call:
    return ("select", [dims, [], []], ["", str(dim), str(at)])


def iteration(at: int) -> list[Call]:
    """Return what one of a few channels goes through, with a layer of its own."""
    taken = ("linear", [[8, 32], [16, 32], [16]], ["", "", ""])
    return [select([8, 32, 99], at), taken, select([8, 16, 99], at), ("copy_", [[8, 16], [8, 16], []], [])]


def on_a_cpu(*calls: Call, trained: bool = False, shapes: bool = True, each_us: float = 20) -> Trace:
    """Return steps with a layer of 1 ms, these calls, and those of their gradients, each as long."""
    made, given = Made(), list[tuple[list[Any], list[str]]]()
    length = 1100 + each_us * len(calls) * (3 if trained else 1)
    for number, at in made.steps(length):
        made.op("aten::gru", at + 5, at + 1000)
        given.append(([[64, 256]], []))
        begin = at + 1000
        for index, (name, dims, values) in enumerate(calls):
            made.op(
                f"aten::{name}", begin, begin + each_us, sequence=1000 * number + index if trained else None
            )
            given.append((dims, values))
            begin += each_us
        for index in reversed(range(len(calls) if trained else 0)):
            kind = "Addmm" if calls[index][0] == "linear" else "Select"
            node = f"autograd::engine::evaluate_function: {kind}Backward0"
            made.op(node, begin, begin + each_us, sequence=1000 * number + index)
            begin += each_us
            given.append(([], []))
            if calls[index][0] == "linear":
                made.op(
                    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
                    begin,
                    begin + each_us,
                )
                given.append(([], []))
                begin += each_us
    trace = made.trace()
    of_op = dict(zip(trace.ints("ordinal", trace.operators()).tolist(), given, strict=True))
    return with_arguments(
        trace,
        lambda ordinal: (
            dict(zip(("Input Dims", "Concrete Inputs"), of_op.get(ordinal, ([], [])), strict=True))
            if shapes
            else {}
        ),
    )


def on_a_device(*calls: Call, kernel_us: float = 4) -> Trace:
    """Return steps that wait for their launches, without shapes."""
    steps = Steps()
    for _ in steps.each():
        for name, _, _ in calls:
            computes = name != "select"
            steps.op(f"aten::{name}", ((GEMM if name == "linear" else ELEMENTWISE, kernel_us),) * computes)
    return steps.trace()


@given(st.integers(2, 40), st.sampled_from((4, 8, 64, 256)), st.sampled_from((16, 64, 256)), st.booleans())
def test_the_saving_follows_from_what_the_batched_product_computes(
    times: int, rows: int, width: int, trained: bool
) -> None:
    """One iteration stays, and the time of the operations at the rate of one core."""
    calls = [
        call
        for at in range(times)
        for call in (select([rows, width, 99], at), ("linear", [[rows, width], [width, width]], ["", ""]))
    ]
    row = finding(on_a_cpu(*calls, trained=trained), "product-loop")
    if times < 6:
        assert row is None
        return
    took_ns = 40e3 * times * (2 if trained else 1)
    computes_ns = 2 * rows * width * width * times * (3 if trained else 1) / 3e10 * 1e9
    stays = min(1 / times + computes_ns / took_ns, 1.0)
    saved_ns = took_ns * (1 - stays) + trained * 20e3 * times * (1 - 1 / times)
    if row is None:
        assert saved_ns < 0.05 * took_ns
    else:
        assert row["wins_ns"] == pytest.approx(saved_ns, rel=0.05)


def test_channels_with_layers_of_their_own_are_one_batched_product() -> None:
    calls = [call for at in range(20) for call in iteration(at)]
    row = found(on_a_cpu(*calls, trained=True), "product-loop")
    assert "a loop calls linear on the slices of a tensor one by one, 20 times in a row" in row["what"]
    assert "torch.baddbmm(biases, slices, weights)" in row["instead"]
    assert row["sure"] == "high"
    assert finding(on_a_cpu(*calls, trained=True), "operator-loop") is None


def parts(
    *calls: Call, apart: Call = ("unbind", [[8, 20, 32], []], ["", "1"]), joined: int = 20
) -> list[Call]:
    return [apart, *calls * 20, ("stack", [[[8, 32]] * joined, []], ["", "1"])]


@pytest.mark.parametrize(
    "apart",
    [("unbind", [[8, 20, 32], []], []), ("chunk", [[8, 640], [], []], []), ("split", [[160, 32]], [])],
)
def test_the_tensor_may_be_taken_apart_before(apart: Call) -> None:
    row = found(
        on_a_cpu(*parts(LINEAR, ("relu", [[8, 32]], []), LINEAR, apart=apart), trained=True), "product-loop"
    )
    assert "20 times in a row: linear → relu → linear" in row["what"]
    assert "torch.baddbmm" in row["instead"]


def test_the_shapes_of_a_long_list_are_not_recorded() -> None:
    apart: Call = ("unbind", [[8, 40, 32], []], ["", "1"])
    calls = [apart, *[LINEAR] * 40, ("stack", [[], []], ["", "1"])]
    assert finding(on_a_cpu(*calls), "product-loop") is not None


def test_a_layer_that_all_share_takes_the_whole_tensor() -> None:
    calls = [
        call
        for at in range(20)
        for call in (
            select([4, 99, 3, 16, 16], at, 1),
            ("conv2d", [[4, 3, 16, 16], [8, 3, 3, 3], [8]], ["", "", "", "[2, 2]"]),
            ("relu", [[4, 8, 8, 8]], []),
            ("flatten", [[4, 8, 8, 8]], []),
        )
    ]
    row = found(on_a_cpu(*calls), "product-loop")
    assert "select → conv2d → relu → flatten" in row["what"]
    assert "layer(x.flatten(0, 1))" in row["instead"]


def test_on_a_device_one_product_of_a_slice_is_recognized_by_names() -> None:
    calls = [call for at in range(20) for call in iteration(at)]
    row = found(on_a_device(*calls), "product-loop")
    assert row["sure"] == "medium"
    assert finding(on_a_device(*calls), "kernel-loop") is None
    assert finding(on_a_device(*calls, kernel_us=40), "product-loop") is None


def slices(*calls: Call, step: int = 1) -> list[Call]:
    return [call for at in range(20) for call in (select([8, 32, 99], at * step), *calls)]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([LINEAR, ("relu", [[8, 32]], [])] * 20, id="layers"),
        pytest.param(slices(LINEAR, step=0), id="always the same slice"),
        pytest.param(slices(("linear", [[8, 64], [32, 64]], ["", ""])), id="of something else"),
        pytest.param(slices(LINEAR, ("linear", [[8, 64], [32, 64]], ["", ""])), id="and of a state"),
        pytest.param(
            slices(LINEAR, LINEAR, ("add", [[8, 32], [8, 32]], []), ("tanh", [[8, 32]], [])),
            id="a recurrence",
        ),
        pytest.param(
            slices(("cat", [[[8, 32], [8, 32]]], []), ("linear", [[8, 64], [32, 64]], [])), id="with a state"
        ),
        pytest.param(slices(LINEAR, ("batch_norm", [[8, 32], [32]], [])), id="a norm over the batch"),
        pytest.param(slices(("relu", [[8, 32]], [])), id="no product"),
        pytest.param(
            [
                call
                for at in range(20)
                for call in (
                    select([8, 32, 99], at),
                    LINEAR,
                    select([8, 32, 99], at + 1),
                    ("copy_", [[8, 32], [8, 32]], []),
                )
            ],
            id="the next one is written",
        ),
        pytest.param(
            [call for at in range(20) for call in (("select", [[8, 32, 99]], ["", "2", "x"]), LINEAR)],
            id="damaged",
        ),
        pytest.param(
            [
                call
                for at in range(20)
                for call in (select([8, 32, 99], at), ("linear", [[8, 32], [32 + at, 32]], ["", ""]))
            ],
            id="layers of different widths",
        ),
        pytest.param(
            [
                call
                for at in range(20)
                for call in (
                    select([20, 32, 32], at, 0),
                    ("matmul", [[8, 32], [32, 32]], []),
                    ("relu", [[8, 32]], []),
                )
            ],
            id="slices of weights",
        ),
        pytest.param(slices(LINEAR)[:10], id="few"),
        pytest.param(
            [
                call
                for at in range(20)
                for call in (
                    select([16, 32, 32], at, 1),
                    ("linear", [[16, 32], [32, 32]], ["", ""]),
                    select([16, 32, 32], at, 2),
                    ("copy_", [[16, 32], [16, 32]], []),
                )
            ],
            id="written across",
        ),
        pytest.param(parts(LINEAR, joined=19), id="not all joined"),
        pytest.param(parts(LINEAR)[:-1], id="not joined"),
        pytest.param(parts(LINEAR)[1:], id="not taken apart"),
        pytest.param(parts(LINEAR, apart=("unbind", [[8, 21, 32], []], [])), id="parts of another tensor"),
        pytest.param(parts(("linear", [[8, 64], [32, 64]], [])), id="of a wider state"),
    ],
)
def test_others_are_none(calls: list[Call]) -> None:
    assert finding(on_a_cpu(*calls), "product-loop") is None


def test_long_products_compute_more_than_their_calls_cost() -> None:
    assert finding(on_a_cpu(*slices(LINEAR), each_us=300), "product-loop") is None


def test_a_cpu_has_to_tell_the_shapes() -> None:
    assert finding(on_a_cpu(*slices(LINEAR), shapes=False), "product-loop") is None


@pytest.mark.parametrize(
    ("calls", "is_one"),
    [
        ([LINEAR], True),
        ([LINEAR, ("relu", [], [])], True),
        ([LINEAR, ("linear", [], [])], False),  # of a state
        ([LINEAR, ("add", [], [])], False),
        ([("linear", [], []), ("cat", [], [])], False),
        ([("matmul", [], [])], False),  # the slices may be weights
    ],
)
def test_on_a_device_results_have_to_be_joined(calls: list[Call], is_one: bool) -> None:
    joined: Call = ("stack", [], [])
    assert (finding(on_a_device(*slices(*calls), joined), "product-loop") is not None) is is_one
    assert finding(on_a_device(*slices(*calls)), "product-loop") is None


def waiting_for_launches(*calls: Call) -> Trace:
    """Return steps whose device waits for each launch, without shapes."""
    made, number = Made(), 0
    for _, at in made.steps(10 * len(calls) + 30):
        for index, (name, _, _) in enumerate(calls):
            begin, number = at + 5 + 10 * index, number + 1
            made.op(f"aten::{name}", begin, begin + 9)
            if name != "select":
                made.launch(GEMM, (begin + 2, begin + 5), (begin + 12, begin + 14), number)
    return made.trace()


def test_the_loop_comes_before_the_launches_that_it_makes() -> None:
    loop = [call for at in range(60) for call in iteration(at)]
    names = ("relu", "linear", "gelu", "layer_norm", "add", "mul", "tanh")
    mixed: list[Call] = [(names[at**3 % 7 - at % 5], [], []) for at in range(240)]
    first, second = (priorities(waiting_for_launches(*calls)).findings for calls in (loop, mixed))
    assert first[0].rule == "product-loop"
    assert "launch-bound" not in {item.rule for item in first}
    assert second[0].rule == "launch-bound"
