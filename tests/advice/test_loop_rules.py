"""Rules about loops: appending with `torch.cat`, cells of recurrent layers and the layers themselves."""

from __future__ import annotations

from collections.abc import Callable, Container

import pytest
from analyses.made import Made
from findings import finding, found
from host_ahead import Steps, with_shapes

from tuiprof.model import Trace

AUTOGRAD = "autograd::engine::evaluate_function"
CAT = "void at::native::CatArrayBatchedCopy<float>"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"


def appended(
    us_of: Callable[[int], float],
    *,
    times: int = 40,
    tensors: int = 1,
    reads: Callable[[int], float] = lambda _: 5.0,
    slow: int = 0,
) -> Trace:
    """Three steps on a CPU whose loop calls `torch.cat`; ``us_of`` is the time of each call, by its number.

    Args:
        us_of: Time of a call, µs, by its number in the loop.
        times: Iterations of the loop.
        tensors: Tensors that the loop appends to, the second eight times as large as the first.
        reads: Time of the operator after it, µs.
        slow: Calls that are interrupted in every step.
    """
    made, at = Made(), 0.0
    for step in range(3):
        begun = at
        made.op("aten::mm", at + 5, at + 20_000)
        at += 20_010
        for number in range(times):
            made.op("aten::tanh", at, at + 60)
            at += 65
            for tensor in range(tensors):
                us = us_of(number) * (1 + 7 * tensor) + (400 if (number + step) % 13 < slow else 0)
                made.op("aten::cat", at, at + us)
                at += us + 5
            made.op("aten::sum", at, at + reads(number))
            at += reads(number) + 5
        made.step(step, begun, at)
    return made.trace()


@pytest.mark.parametrize("tensors", [1, 2])
def test_a_loop_that_appends_to_a_tensor(tensors: int) -> None:
    row = found(appended(lambda n: 10.0 * (n + 1), tensors=tensors), "growing-cat")
    assert ", 40 times in a row" in row["what"]
    # The last call remains: of 8 200 µs for each tensor, 400.
    assert row["wins_ns"] == pytest.approx((1, 9)[tensors - 1] * 1000 * (8_200 - 400), rel=0.01)
    assert row["wins_low_ns"] <= row["wins_ns"] <= row["wins_high_ns"]


@pytest.mark.parametrize("us_of", [lambda n: 10.0 * (n + 1), lambda n: 10.0 * (n + 1) + 9_000 * (n > 35)])
def test_calls_that_are_interrupted_hide_no_growth(us_of: Callable[[int], float]) -> None:
    assert "40 times" in found(appended(us_of, slow=1), "growing-cat")["what"]


@pytest.mark.parametrize(
    "trace",
    [
        appended(lambda _: 200.0),  # each makes a tensor of its own
        appended(lambda n: 10.0 * (n + 1), times=9),  # too few to be a loop
        appended(lambda n: 10.0 * 4 ** (n // 10)),  # levels of a network
        appended(lambda n: 300 + 5.0 * n),  # hardly grows: keys and values of a text
        appended(lambda n: 10.0 * (n + 1), reads=lambda n: 8.0 * (n + 1)),  # each iteration reads all of it
    ],
)
def test_what_does_not_append_to_a_tensor_that_is_read_at_the_end(trace: Trace) -> None:
    assert finding(trace, "growing-cat") is None


def test_a_loop_on_a_device_that_appends_to_a_tensor() -> None:
    steps = Steps()
    for _ in range(3):
        steps.op("aten::mm", ((GEMM, 500),))
        for number in range(24):
            steps.op("aten::mm", ((GEMM, 50),)).op("aten::cat", ((CAT, 10 * (number + 1)),)).op("aten::view")
        steps.op("aten::mm", ((GEMM, 500),)).end()
    row = found(steps.trace(), "growing-cat")
    assert row["wins_ns"] == pytest.approx(1000 * (sum(range(10, 250, 10)) - 240), rel=0.02)


def generated(
    *,
    layers: int = 4,
    cat_us: float = 200.0,
    product_us: float = 40.0,
    reader: str = "aten::scaled_dot_product_attention",
    grows: int | None = None,
    trained: bool = False,
) -> Trace:
    """Three steps that write a token each: layers with a product, two copies of what was before, and attention.

    Args:
        layers: Layers of the model.
        cat_us: Time of each copy.
        product_us: Time of the product that makes what is appended.
        reader: The operator that reads what is joined.
        grows: By how much it is longer in each step, if shapes are recorded; None = they are not.
        trained: There is a backward pass.
    """
    steps = Steps()
    for step in range(3):
        shape = {} if grows is None else {"dims": [[[4, 1000 + step * grows, 64], [4, 1, 64]]]}
        for _ in range(layers):
            steps.op("aten::linear", ((GEMM, product_us),), **({} if grows is None else {"dims": [[4, 64]]}))
            for _ in range(3 if grows is None else 0):
                steps.op("aten::mul", ((ELEMENTWISE, 2),))
            for _ in range(2):
                steps.op("aten::cat", ((CAT, cat_us),), **shape)
            steps.op(reader, ((GEMM, 30),), **({} if grows is None else {"dims": [[4, 64]]}))
        if trained:
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 30),))
        steps.end()
    return steps.trace()


@pytest.mark.parametrize("grows", [None, 1])
def test_each_step_appends_to_keys_and_values(grows: int | None) -> None:
    row = found(generated(grows=grows), "growing-cat")
    assert "8 tensors of earlier steps, as keys and values are, grow by torch.cat" in row["what"]
    assert row["wins_ns"] == pytest.approx(1000 * 8 * (200 - 2.5), rel=0.02), "a row is written instead"
    assert row["wins_low_ns"] < 0.71 * row["wins_ns"]
    chain = finding(generated(grows=grows), "elementwise-chain")
    assert chain is None or chain["wins_ns"] < 1000 * 4 * 3 * 2, "the copies are not in it"


@pytest.mark.parametrize(
    "trace",
    [
        generated(cat_us=60.0),  # the step may have made what it joins
        generated(layers=1),
        generated(reader="aten::linear"),  # weights that are joined
        generated(grows=0),  # constants
        generated(trained=True),
        generated(cat_us=8.0, product_us=1.0),  # too short to matter
    ],
)
def test_other_joins_in_each_step_do_not_grow(trace: Trace) -> None:
    assert finding(trace, "growing-cat") is None


def recurrent(cell: str = "", *, layer: bool = False, slow: Container[int] = ()) -> Trace:
    """Two steps on a CPU with a loop over a cell, or a layer whose backward pass is a loop of its own.

    Args:
        cell: Operator of the cell; empty = the loop calls ordinary operators.
        layer: One operator of the forward pass makes all nodes of the loop.
        slow: Steps in whose forward pass operators take twice as long.
    """
    made = Made()
    for number, at in made.steps(20_000, 2):
        made.op("aten::embedding", at + 2, at + 8, sequence=1)
        if layer:
            made.op("aten::gru", at + 10, at + 3_000, sequence=200)
            for index in range(100):
                made.op(
                    "aten::sigmoid" if index % 2 else "aten::add",
                    at + 12 + index * 28,
                    at + 30 + index * 28,
                    sequence=index + 2,
                )
        for index in range(0 if layer else 100):
            us = 55 if number in slow else 25
            begin = at + 10 + index * (us + 5)
            name = ("aten::mul", cell or "aten::add")[index % 2]
            made.op(name, begin, begin + us, sequence=200 * number + index + 2)
        for index in range(100):
            begin = at + 6_000 + (99 - index) * 60
            name = ("MulBackward0", "SigmoidBackward0")[index % 2]
            made.op(f"{AUTOGRAD}: {name}", begin, begin + 40, sequence=200 * number + index + 2)
    return made.trace()


def test_a_loop_and_its_backward_pass_are_one_although_a_step_was_slow() -> None:
    row = found(recurrent("aten::gru_cell", slow=[1]), "operator-loop")
    assert "(and again in the backward pass): mul → gru_cell" in row["what"]
    alone = found(recurrent("aten::gru_cell", slow=[0, 1]), "operator-loop")
    assert alone["instead"] == row["instead"], "that of a cell"


@pytest.mark.parametrize(
    ("cell", "layer", "kept"),
    [
        ("aten::gru_cell", "nn.GRU", 0.85),
        ("aten::lstm_cell", "nn.LSTM", 0.4),
        ("aten::rnn_tanh_cell", "nn.RNN", 0.8),
    ],
)
def test_iterations_of_a_recurrent_cell_are_not_made_at_once(cell: str, layer: str, kept: float) -> None:
    row = found(recurrent(cell), "operator-loop")
    assert row["instead"].startswith(f"{layer} on the whole sequence")
    assert "torch.compile" not in row["instead"]
    loop_us = 99 * 30 + 25 + 99 * 60 + 40
    assert row["wins_ns"] == pytest.approx(1000 * (1 - kept) * loop_us, rel=0.02)
    assert row["wins_low_ns"] == 0


def test_the_backward_pass_of_a_recurrent_layer_is_no_loop_of_the_script() -> None:
    assert "process all items at once" in found(recurrent(), "operator-loop")["instead"]
    assert finding(recurrent(layer=True), "operator-loop") is None


def rows_of_numbers(body: str) -> Trace:
    """Two steps on a CPU with a loop over each of three rows."""
    made = Made()
    for _, at in made.steps(20_000, 2):
        for row in range(3):
            begin = at + 10 + row * 3_000
            made.op("aten::unbind", begin, begin + 40)
            for index in range(100):
                start = begin + 50 + index * 20
                made.op(("aten::ne", f"aten::{body}")[index % 2], start, start + 15)
    return made.trace()


@pytest.mark.parametrize(
    ("body", "instead"), [("is_nonzero", "make a list"), ("add", "process all items at once")]
)
def test_loops_over_rows_are_one_finding_that_says_how_many_there_are(body: str, instead: str) -> None:
    row = found(rows_of_numbers(body), "operator-loop")
    assert "50 times in a row, 3 times a step: ne" in row["what"]
    assert instead in row["instead"]


def test_an_iteration_of_a_loop_over_samples_may_be_long() -> None:
    """One read among a hundred operators does not make it a loop that reads items."""
    made = Made()
    for _, at in made.steps(40_000, 2):
        for index in range(16 * 100):
            start, body = at + 100 + index * 20, index % 100
            made.op("aten::is_nonzero" if body == 60 else f"aten::special_{body}", start, start + 15)
    row = found(made.trace(), "operator-loop")
    assert row["what"].endswith("special_8 → special_9 → … (100 operators)")
    assert "16 times in a row" in row["what"]
    assert "process all items at once" in row["instead"]
    assert row["wins_ns"] == pytest.approx(1_000 * (15 / 16) * 1_600 * 20, rel=0.03)


def test_what_waits_in_a_loop_stays() -> None:
    made = Made()
    for _, at in made.steps(20_000, 2):
        for index in range(100):
            start = at + 100 + index * 20 + (4_000 if index > 50 else 0)
            made.op(("aten::add", "aten::mul")[index % 2], start, start + (4_015 if index == 50 else 15))
    row = found(made.trace(), "operator-loop")
    assert row["wins_ns"] == pytest.approx(1_000 * 0.98 * 100 * 20, rel=0.03)


def averaged(*shapes: list[int], body: tuple[str, ...] = ("mul", "mul", "add")) -> Trace:
    """Return steps on a CPU that do the same arithmetic on tensors of these shapes in turn, the first ones large."""
    made, dims = Made(), []
    for step in range(3):
        at = step * 40_000.0
        made.step(step, at, at + 40_000).op("aten::mm", at + 5, at + 9_000)
        dims.append([[64, 64]])
        at += 10_000
        for number in range(40):
            for name in body:
                us = 600 if number % 20 == 0 else 15
                made.op(f"aten::{name}", at, at + us)
                dims.append([shapes[number % len(shapes)], []])
                at += us + 5
    return with_shapes(made.trace(), dims)


def test_a_loop_over_parameters_is_one_call_on_all_of_them() -> None:
    row = found(averaged([320, 1280], [1280], [320]), "operator-loop")
    assert "40 times in a row: mul ×2 → add" in row["what"]
    assert "torch._foreach_" in row["instead"]
    took_ns = 1_000 * 3 * (38 * 20 + 2 * 605)
    assert row["wins_ns"] == pytest.approx(0.6 * took_ns, rel=0.03), "the large ones do not wait"


@pytest.mark.parametrize(
    "averages", [averaged([320, 64]), averaged([8], [9]), averaged([8, 4], [8], body=("cat",))]
)
def test_a_loop_over_samples_is_one_call_on_a_batch(averages: Trace) -> None:
    assert "pad and mask" in found(averages, "operator-loop")["instead"]


def collected(*rows: int, steps: int = 4, sort: str = "aten::argsort") -> Trace:
    """Return steps with a product, and a metric over so many rows; the last size is of all later steps."""
    made = Steps()
    for step in made.each(steps):
        length = rows[min(step, len(rows) - 1)]
        made.op("aten::linear", ((GEMM, 500),), dims=[[512, 24], [384, 24]])
        made.op("aten::cat", ((CAT, 10),), dims=[])
        for name in (sort, "aten::index", "aten::cumsum", "aten::eq"):
            made.op(name, ((CAT, 100),), dims=[[length], []])
    return made.trace()


def test_a_metric_over_all_steps_so_far_is_computed_in_each() -> None:
    row = found(collected(5120, 5632, 6144, 6656), "growing-history")
    assert "5 120 rows, 512 more in each step" in row["what"]
    assert row["wins_ns"] == pytest.approx(0.95 * 400_000, rel=0.05)


@pytest.mark.parametrize(
    "rows",
    [(5120,), (5120, 5632, 6144), (5120, 4608, 4096, 3584), (512, 1024, 1536, 2048), (90, 91, 92, 93)],
    ids=["a fixed number", "up to a limit", "fewer each time", "since the capture", "word by word"],
)
def test_sizes_that_do_not_grow_with_the_run_are_no_history(rows: tuple[int, ...]) -> None:
    assert finding(collected(*rows), "growing-history") is None


def test_two_steps_show_no_history() -> None:
    assert finding(collected(5120, 5632, steps=2), "growing-history") is None
