"""Many values that are read in a row, and the loops that compute them and handle them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from analyses.made import Made

from tests.advice.findings import found
from tuiprof.model import Trace

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
REDUCE = "void at::native::reduce_kernel<512, 1, NormTwoOps>"
COPY = "void at::native::vectorized_elementwise_kernel<4, copy>"
READS = 20
STEP_US = 8_000
WITH_LOOPS = "in a loop over these values"


@dataclass(frozen=True)
class Loop:
    """Operators of a loop, one each iteration."""

    operator: str
    times: int = READS
    kernel: str = COPY
    work_us: float = 2
    differentiated: bool = False


NORMS, LOGS = Loop("aten::linalg_vector_norm", kernel=REDUCE), Loop("aten::clone")


class _Steps:
    """Steps of a large product that the host waits for, and of loops."""

    def __init__(self) -> None:
        self.made, self.at = Made(), 0.0

    def launch(self, operator: str, kernel: str, work_us: float, sequence: int | None = None) -> None:
        self.made.op(operator, self.at, self.at + 40, sequence=sequence)
        starts = self.at + 10
        self.made.launch(kernel, (self.at + 5, self.at + 9), (starts, starts + work_us))
        self.at += max(50, work_us + 20)

    def read(self) -> None:
        at = self.at
        self.made.op("aten::item", at, at + 40).op("aten::_local_scalar_dense", at + 1, at + 39)
        self.made.copy("DtoH (Device -> Pageable)", (at + 5, at + 9), (at + 10, at + 12), 4)
        self.made.call("cudaStreamSynchronize", at + 12, at + 35)
        self.at += 50

    def loop(self, loop: Loop, number: int) -> None:
        first = number * 1_000
        for index in range(loop.times):
            sequence = first + index if loop.differentiated else None
            self.launch(loop.operator, loop.kernel, loop.work_us, sequence)
        if loop.differentiated:
            for index in range(loop.times):
                self.made.op(
                    "autograd::engine::evaluate_function: NormBackward0",
                    number * STEP_US + 7_000 + 10 * index,
                    number * STEP_US + 7_008 + 10 * index,
                    sequence=first + index,
                )


def steps(before: Loop | None, after: Loop | None, *, reads: int = READS, between: int = 0) -> Trace:
    """Four steps of a product, a loop, reads in a row (of one ``between`` iterations of work) and another loop."""
    all_steps = _Steps()
    for number in range(4):
        all_steps.made.step(number, number * STEP_US, (number + 1) * STEP_US)
        all_steps.at = number * STEP_US + 10.0
        all_steps.launch("aten::mm", GEMM, 500)
        if before is not None:
            all_steps.loop(before, number)
        for index in range(reads):
            if between and index % between == 0:
                all_steps.launch("aten::sum", REDUCE, 2)
            all_steps.read()
            all_steps.made.site(all_steps.at - 11, "train.py:72 log_norms")
        if after is not None:
            all_steps.loop(after, number)
        all_steps.launch("aten::mm", GEMM, 500)
    return all_steps.made.trace()


SOME_LOGS = Loop("aten::clone", READS // 2)


@pytest.mark.parametrize(
    ("before", "after"), [(NORMS, LOGS), (NORMS, SOME_LOGS), (NORMS, None), (None, LOGS)]
)
def test_loops_around_reads_in_a_row_go_with_them(before: Loop | None, after: Loop | None) -> None:
    row = found(steps(before, after), "item-each-step")
    assert WITH_LOOPS in row["what"]
    assert f"{READS} times a step" in row["what"]
    assert "only every N steps" in row["instead"]
    assert "train.py:72" in row["where"]
    count = READS + sum(loop.times for loop in (before, after) if loop is not None)
    # Seven eighths of 50 µs for each operator of each loop, and as little as the reads.
    assert row["wins_ns"] == pytest.approx(7 / 8 * count * 50_000, rel=0.15)
    assert row["wins_low_ns"] < READS * 50_000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, None, id="no-loop"),
        pytest.param(Loop("aten::linalg_vector_norm", READS // 2), None, id="half-as-many"),
        pytest.param(Loop("aten::linalg_vector_norm", 2 * READS), None, id="twice-as-many"),
        pytest.param(Loop("aten::norm", differentiated=True), None, id="losses"),
        pytest.param(Loop("aten::linear", kernel=GEMM), None, id="layers"),
        pytest.param(None, SOME_LOGS, id="half-as-many-after"),
        pytest.param(None, Loop("aten::mul_"), id="clipping"),
        pytest.param(None, Loop("aten::mul", work_us=40), id="large-tensors"),
    ],
)
def test_loops_that_are_needed_stay(before: Loop | None, after: Loop | None) -> None:
    row = found(steps(before, after), "item-each-step")
    assert WITH_LOOPS not in row["what"]
    assert "every N steps" in row["instead"]
    assert row["wins_ns"] < 1.3 * READS * 50_000


@pytest.mark.parametrize(("reads", "between"), [(7, 0), (READS, 1)])
def test_reads_that_are_few_or_alternate_with_other_work_are_no_row(reads: int, between: int) -> None:
    loop = Loop("aten::linalg_vector_norm", reads, REDUCE)
    row = found(steps(loop, None, reads=reads, between=between), "item-each-step")
    assert WITH_LOOPS not in row["what"]
