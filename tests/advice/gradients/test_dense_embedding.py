"""Dense gradients of embedding tables, on tiny traces whose device is the bottleneck."""

from __future__ import annotations

import pytest
from analyses.made import Made

from tests.advice.findings import finding, found
from tuiprof.model import Trace

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
GATHER = "void at::native::vectorized_gather_kernel<16, long>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
LISTS = "void at::native::multi_tensor_apply_kernel<TensorList{}>"
NODE = "autograd::engine::evaluate_function: EmbeddingBackward0"
RULE = "dense-embedding-gradient"
OF_TABLE_US = 400  # what remains of a table's update, whatever a batch looks up

#: An operator of an optimizer, its kernel and how long that takes, µs.
Update = tuple[str, str, float]
SQRT: Update = ("_foreach_sqrt", LISTS.format("Metadata<2>"), 20_000)


def trained(
    *optimizers: tuple[Update, ...],
    fills_us: tuple[float, ...] = (1000,),
    gather_us: float = 1,
    others_us: float = 100,
    sums_us: float = 0,
    kind: str = "Adagrad",
    passes: int = 1,
) -> Trace:
    """Steps that look up rows of tables, with a number of backward passes and then the optimizers."""
    made, free, number = Made(), 50.0, 0

    def op(name: str, at: float, kernel: str = "", us: float = 0, **columns: int) -> None:
        nonlocal free, number
        made.op(name, at, at + 8, **columns)
        if kernel:
            number += 1
            made.launch(kernel, (at + 2, at + 5), (free, free + us), number)
            free += us

    for _, begin in made.steps(1000):
        at = begin + 5
        for _ in range(passes):
            first = number
            for index in range(len(fills_us)):
                op("aten::embedding", at, GATHER, gather_us, sequence=first + index)
                at += 10
            op("aten::linear", at, GEMM, others_us, sequence=first + len(fills_us))
            at += 10
            for index, fill_us in enumerate(fills_us):
                made.op(NODE, at, at + 29, sequence=first + index)
                made.op("aten::embedding_dense_backward", at + 1, at + 28)
                op("aten::zeros", at + 2, FILL, fill_us)
                if sums_us:
                    number += 1
                    made.launch("sum_and_scatter", (at + 12, at + 15), (free, free + sums_us), number)
                    free += sums_us
                at += 30
        for updates in optimizers:
            made.add("annotation", f"Optimizer.step#{kind}.step", at, at + 10 * len(updates) + 5)
            at += 1
            for name, kernel, us in updates:
                op(f"aten::{name}", at, kernel, us)
                at += 10
            at += 5
    return made.trace()


def saved_us(trace: Trace) -> float:
    """Return the likely saving."""
    return float(found(trace, RULE)["wins_ns"]) / 1000


@pytest.mark.parametrize(("fill_us", "advised"), [(1000, True), (100, False)])
def test_of_an_update_of_all_parameters_tables_take_their_part(fill_us: float, advised: bool) -> None:
    trace = trained((("_foreach_sqrt", "multi_tensor_apply_kernel<sqrt>", 20_000),), fills_us=(fill_us,))
    assert (finding(trace, RULE) is not None) == advised
    if advised:
        assert saved_us(trace) == pytest.approx(1000 + 3 * 1.25 * 1000 - OF_TABLE_US, rel=0.02)


@pytest.mark.parametrize(
    ("name", "lists", "passes"),
    [
        ("_foreach_sqrt", "Metadata<2>", 2),
        ("_foreach_add_", "Metadata<1>", 2),
        ("_foreach_mul", "ScalarListMetadata<float, 2>", 2),
        ("_foreach_add_", "Metadata<2>", 3),
        ("_foreach_addcdiv_", "Metadata<3>", 4),
    ],
)
def test_kernels_over_lists_say_how_often_they_pass_over_the_table(
    name: str, lists: str, passes: int
) -> None:
    trace = trained(((name, LISTS.format(lists), 20_000),))
    assert saved_us(trace) == pytest.approx(1000 + passes * 1.25 * 1000 - OF_TABLE_US, rel=0.02)


def test_the_other_optimizer_does_not_process_the_table() -> None:
    name, kernel, _ = SQRT
    assert saved_us(trained((SQRT,), ((name, kernel, 400),))) == pytest.approx(
        saved_us(trained((SQRT,))), rel=0.001
    )


@pytest.mark.parametrize("small_us", [900.0, 1600.0])
def test_of_updates_of_a_parameter_each_the_longest_are_over_tables(small_us: float) -> None:
    small, large = ("sqrt_", "sqrt_kernel", small_us), ("sqrt_", "sqrt_kernel", 4000.0)
    trace = trained((*[small] * 3, large, *[small] * 3))
    assert saved_us(trace) == pytest.approx(1000 + 3 * 1.25 * 1000 - OF_TABLE_US, rel=0.02)


@pytest.mark.parametrize("passes", [1, 4])
def test_an_update_after_several_backward_passes_goes_over_the_table_once(passes: int) -> None:
    saved = saved_us(trained((SQRT,), passes=passes))
    assert saved == pytest.approx(passes * (1000 - OF_TABLE_US) + 2 * 1.25 * 1000, rel=0.02)


@pytest.mark.parametrize(("update_us", "advised"), [(20_000, True), (1500, False)])
def test_passes_of_the_optimizer_make_a_table_large(update_us: float, advised: bool) -> None:
    names = ("sqrt", "mul", "neg", "abs", "sign")
    updates = tuple((f"_foreach_{name}", LISTS.format("Metadata<2>"), update_us / 5) for name in names)
    trace = trained(updates, others_us=60_000)  # to fill it takes 1 %
    assert (finding(trace, RULE) is not None) == advised


@pytest.mark.parametrize(("gather_us", "advised"), [(500, True), (1900, True), (2500, False)])
def test_a_batch_that_may_use_most_rows_needs_a_dense_gradient(gather_us: float, advised: bool) -> None:
    trace = trained((SQRT,), gather_us=gather_us)
    assert (finding(trace, RULE) is not None) == advised
    if advised:
        assert saved_us(trace) == pytest.approx(
            1000 + max(2 * 1.25 * 1000 - OF_TABLE_US - gather_us, 0), rel=0.02
        )


@pytest.mark.parametrize(
    ("kind", "update", "left", "remains_us"),
    [
        ("SGD", "_foreach_add_", 0.5, 0),
        ("SGD", "_foreach_mul_", 1.0, OF_TABLE_US),  # momentum
        ("Adagrad", "_foreach_add_", 1.0, OF_TABLE_US),
    ],
)
def test_plain_sgd_needs_no_sums_of_the_rows_of_a_batch(
    kind: str, update: str, left: float, remains_us: float
) -> None:
    trace = trained(((update, "multi_tensor_apply_kernel<add>", 10_000),), kind=kind, sums_us=4000)
    assert saved_us(trace) == pytest.approx(1000 + (1 - left) * 4000 + 3 * 1.25 * 1000 - remains_us, rel=0.02)


def test_the_range_is_from_zeroing_less_to_no_update_at_all() -> None:
    row = found(trained((SQRT,)), RULE)
    assert row["wins_low_ns"] / 1000 <= 1000 + 2500 - 3 * OF_TABLE_US
    assert row["wins_high_ns"] / 1000 >= 1000 + 2500 - 1


@pytest.mark.parametrize(("fill_us", "advised"), [(300, True), (5, False)])
def test_gradients_as_large_as_tables_on_a_cpu(fill_us: float, advised: bool) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::embedding_dense_backward", at + 10, at + 60 + fill_us)
        made.op("aten::zeros", at + 11, at + 11 + fill_us)
        made.add("annotation", "Optimizer.step#SGD.step", at + 500, at + 900)
        made.op("aten::add_", at + 510, at + 710).op("aten::add_", at + 720, at + 730)
    row = finding(made.trace(), RULE)
    assert (row is not None) == advised
    if row is not None:
        # The zeros, and most of the table's update; that of a small parameter stays.
        assert row["wins_ns"] == pytest.approx(300_000 + 0.8 * 200_000, rel=0.03)
        assert row["wins_low_ns"] <= 300_000
