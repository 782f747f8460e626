"""Collectives: the transfer is this rank's to shorten, the wait is for another rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from analyses.made import BACKWARD, Made, in_session

from tuiprof.advice import advise
from tuiprof.analyses.shared.collectives import peer_waits
from tuiprof.analyses.shared.replay import launched_faster, replayed
from tuiprof.model import Trace
from tuiprof.model.traceset import RankFile, TraceSet
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import Calibrated

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
#: Each step of a made rank on the host and on the device, when all ranks leave its collective, and how long the
#: transfer takes, µs.
HOST, STEP, LEFT, TRANSFER = 600, 1_000, 700, 20


def rank(arrives: Sequence[int], *, reads: bool = False, sizes: Sequence[int] = (), apart: int = 0) -> Trace:
    """A rank that computes until it arrives at its collective, at these µs of its steps, and after it.

    Args:
        arrives: When, one per step.
        reads: Whether it reads a value behind each.
        sizes: Bytes of the collectives; none = not recorded.
        apart: How much later all steps from the third on are, µs.
    """
    made = Made()
    for number, arrival in enumerate(arrives):
        at, later, first = number * STEP + 20, (number >= 2) * apart, number * 100 + 1
        host, at = number * (STEP if reads else HOST) + later, at + later
        made.step(number, host, host + (STEP if reads else HOST))
        made.launch("gemm", (host + 5, host + 8), (at, at + arrival))
        made.launch(REDUCE, (host + 10, host + 14), (at + arrival, at + LEFT), first + 1)
        if reads:
            made.op("aten::item", host + 16, at + LEFT + 12)
            made.call("cudaMemcpyAsync", host + 18, host + 21, correlation=first + 2)
            made.kernel("Memcpy DtoH", at + LEFT, at + LEFT + 2, first + 2, category="memcpy")
            made.call("cudaStreamSynchronize", host + 22, at + LEFT + 8)
        for index in range(20):
            begin = (at + LEFT + 15 if reads else host + 20) + index * 12
            work = at + LEFT + (index * 12 + 25 if reads else index * 15)
            made.op("aten::mul", begin, begin + 9)
            made.launch("mul", (begin + 2, begin + 5), (work, work + (2 if reads else 15)))
    trace = made.trace()
    if sizes:
        trace.communications = pl.DataFrame(
            {
                "correlation": [number * 100 + 2 for number in range(len(sizes))],
                "external_id": pl.Series([None] * len(sizes), dtype=pl.Int64),
                "group": "0",
                "description": "default_pg",
                "ranks": "[0, 1]",
                "size": 2,
                "bytes": sizes,
            }
        )
    return trace


def together(*traces: Trace) -> Trace:
    """Make ranks of one job of traces; return the first."""
    by_path = {Path(f"rank{number}"): trace for number, trace in enumerate(traces)}
    files = tuple(RankFile(number, path, "name") for number, path in enumerate(by_path))
    traces[0].info = replace(traces[0].info, path=files[0].path, rank=0)
    traces[0].siblings = TraceSet("", files, by_path.__getitem__)
    return traces[0]


def late(**options: Any) -> Trace:
    """Rank 0, which waits in each step for rank 1."""
    return together(rank([50] * 4, **options), rank([LEFT - TRANSFER] * 4, **options))


def step_of(trace: Trace) -> Calibrated:
    found = replayed(trace)
    assert isinstance(found, Calibrated), found
    return found


def found(trace: Trace, rule: str) -> dict[str, Any] | None:
    rows = advise(trace).table("findings").rows.filter(rule=rule)
    return rows.row(0, named=True) if len(rows) else None


def hosted(arrives: Sequence[int], left: int = 1_500, beside: int = 0) -> Trace:
    """A rank on a CPU: a thread of gloo runs the collective, which begins at these µs of its steps.

    Args:
        arrives: When, one per step.
        left: When all ranks leave it.
        beside: How long the main thread computes meanwhile.
    """
    made = Made()
    for number, arrival in enumerate(arrives):
        at = number * 2_000
        made.step(number, at, at + 1_900)
        made.op("aten::mm", at + 5, at + arrival - 10)
        made.op("c10d::allreduce_", at + arrival - 8, at + arrival - 2)
        if beside:
            made.op("aten::mm", at + arrival, at + arrival + beside)
        made.add("annotation", "gloo:all_reduce", at + arrival, at + left, track=BACKWARD)
        made.op("aten::mm", at + left + 5, at + 1_880)
    return made.trace()


# -- separation ---------------------------------------------------------------------------------------------


def test_the_transfer_takes_as_long_as_on_the_rank_that_arrives_last() -> None:
    trace = late()
    waits = peer_waits(trace)
    assert waits.ns.tolist() == [(LEFT - 50 - TRANSFER) * 1000] * 4
    assert waits.last.tolist() == [1] * 4
    assert waits.of(trace.device_work).sum() == waits.ns.sum()  # no other work waits


def test_ranks_take_turns_in_being_late() -> None:
    waits = peer_waits(together(rank([50, 680, 50, 680]), rank([680, 50, 680, 50])))
    assert waits.ns.tolist() == [630_000, 0, 630_000, 0]
    assert waits.last.tolist() == [1, 0, 1, 0]


def test_ranks_without_groups_whose_collectives_end_apart_have_not_met() -> None:
    trace = together(rank([50] * 4), rank([LEFT - TRANSFER] * 4, apart=5_000))
    assert peer_waits(trace).last.tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("sizes", "waits"),
    [
        ((8, 8, 8, 8), (0, 200, 0, 550)),  # as fast as the fastest of its size
        ((8, 8, 8, 4), (0, 200, 0, 550)),  # no slower than a larger one
        ((8, 8, 8, 16), (0, 200, 0, 450)),  # per byte no slower than a smaller one
        ((8, 8, 8, 80), (0, 200, 0, 0)),
        ((), (0, 200, 0, 550)),  # as fast as the same one of another step
    ],
)
def test_of_one_rank_alone_a_message_is_as_fast_as_others(
    sizes: tuple[int, ...], waits: tuple[int, ...]
) -> None:
    found = peer_waits(rank([LEFT - 100, LEFT - 300, LEFT - 100, LEFT - 650], sizes=sizes))
    assert found.ns.tolist() == [wait * 1000 for wait in waits]
    assert found.last.tolist() == [-1] * 4


def test_a_rank_whose_others_are_missing_is_not_compared_with_itself() -> None:
    alone = rank([LEFT - 100, LEFT - 300, LEFT - 100, LEFT - 650], sizes=(8, 8, 8, 8))
    assert peer_waits(together(alone)).ns.tolist() == [0, 200_000, 0, 550_000]


def test_of_one_rank_alone_a_transfer_beside_computation_may_be_slower() -> None:
    assert not peer_waits(rank([LEFT - 100, LEFT - 140] * 2)).ns.any()


# -- savings ------------------------------------------------------------------------------------------------


def test_a_change_of_communication_saves_its_transfer_and_not_the_wait() -> None:
    trace = late()
    step, rows = step_of(trace), peer_waits(trace).rows
    assert step.likely_ns(Edit(work=rows, keep=np.zeros(4))) <= TRANSFER * 1000
    row = found(trace, "exposed-collectives")
    assert row is None or row["wins_ns"] <= TRANSFER * 1000


def test_a_read_behind_a_collective_is_not_blamed_for_the_wait() -> None:
    known, unknown = late(reads=True), rank([50] * 4, reads=True, sizes=(8, 8, 8, 8))
    assert not peer_waits(unknown).ns.any()
    less, more = (found(trace, "item-each-step") for trace in (known, unknown))
    assert less is not None
    assert more is not None
    assert less["wins_ns"] < 0.5 * more["wins_ns"]


def test_the_late_rank_is_named_with_the_wait() -> None:
    row = found(late(), "late-rank")
    assert row is not None
    assert "rank 0 waits for rank 1 in collectives, 630 µs a step" in row["what"]
    assert row["wins_ns"] == pytest.approx((STEP - HOST) * 1000, rel=0.05)
    assert row["wins_low_ns"] == 0
    alone = found(rank([LEFT - 100, 50, 50, 50]), "late-rank")
    assert alone is not None
    assert "another rank in collectives, at least" in alone["what"]
    assert found(together(rank([LEFT - TRANSFER] * 4), rank([50] * 4)), "late-rank") is None


def test_the_late_rank_is_named_where_the_host_runs_the_collectives() -> None:
    trace = together(hosted([100] * 4), hosted([1_480] * 4))
    row = found(trace, "late-rank")
    assert row is not None
    assert "rank 0 waits for rank 1 in collectives, 1.38 ms a step" in row["what"]
    assert row["wins_ns"] == pytest.approx(1_380_000, rel=0.05)
    assert found(trace, "python-time") is None  # the main thread waits; no Python runs
    assert found(together(hosted([1_480] * 4), hosted([100] * 4)), "late-rank") is None


def test_a_wait_beside_which_the_main_thread_computes_costs_nothing() -> None:
    busy = together(hosted([100] * 4, beside=1_380), hosted([1_480] * 4))
    assert found(busy, "late-rank") is None


def test_a_rank_alone_whose_thread_runs_a_collective_runs_no_python() -> None:
    assert found(hosted([100] * 4), "python-time") is None


@pytest.mark.parametrize(("host_us", "waits"), [(540, False), (380, True)])
def test_the_first_steps_show_whether_the_host_or_another_rank_limits_the_step(
    host_us: int, waits: bool
) -> None:
    trace = in_session(late(), 560e3, host_ns=host_us * 1e3)
    assert (step_of(trace).waiting_ns > 100_000) == waits
    assert (found(trace, "late-rank") is not None) == waits


def test_a_change_on_a_rank_that_waits_may_save_nothing() -> None:
    trace = late()
    step = step_of(trace)
    assert step.waiting_ns == pytest.approx((STEP - HOST) * 1000, rel=0.05)
    saved = step.win(launched_faster(trace, 0.0))
    assert saved.ns == pytest.approx((HOST - 370) * 1000, rel=0.05)  # until its own device work takes longer
    assert saved.low_ns == 0


@pytest.mark.parametrize(("session_us", "waits_us"), [(590, 0), (800, 362)])
def test_outside_the_capture_a_step_waits_for_what_it_takes_longer_than_alone(
    session_us: int, waits_us: int
) -> None:
    """Profiled ranks may be apart although the others are not."""
    trace = in_session(late(), session_us * 1e3)
    trace.info = replace(trace.info, format="kineto")
    step = step_of(trace)
    assert step.waiting_ns == pytest.approx(waits_us * 1000, abs=10_000)
    assert step.likely_ns(step.graph.alone) == pytest.approx(step.waiting_ns, abs=10_000)


# -- small buckets ------------------------------------------------------------------------------------------


def in_buckets(count: int, size: int, node: str = "torch::autograd::AccumulateGrad") -> Trace:
    """Four steps whose backward pass averages gradients with this many collectives of a size."""
    made, correlations = Made(), []
    for number, at in made.steps(10_000):
        for index in range(count):
            begin, correlation = at + 10 + index * 200, number * 100 + index + 1
            made.op(f"autograd::engine::evaluate_function: {node}", begin, begin + 150, sequence=correlation)
            made.op("c10d::allreduce_", begin + 10, begin + 110)
            made.launch(REDUCE, (begin + 50, begin + 60), (begin + 65, begin + 75), correlation)
            correlations.append(correlation)
    trace = made.trace()
    trace.communications = pl.DataFrame(
        {
            "correlation": correlations,
            "external_id": pl.Series([None] * len(correlations), dtype=pl.Int64),
            "group": "0",
            "description": "default_pg",
            "ranks": "[0, 1]",
            "size": 2,
            "bytes": size,
        }
    )
    return trace


def test_gradients_averaged_in_many_small_buckets() -> None:
    row = found(in_buckets(40, 1 << 20), "small-buckets")
    assert row is not None
    assert row["what"] == "gradients of 40.0 MiB are averaged by 40 collectives a step"
    assert row["wins_ns"] == pytest.approx(38 * 100_000, rel=0.05)  # two buckets are left


@pytest.mark.parametrize(
    ("count", "size", "node"),
    [
        (40, 32 << 20, "torch::autograd::AccumulateGrad"),  # large ones
        (8, 1 << 10, "torch::autograd::AccumulateGrad"),  # few
        (
            40,
            1 << 20,
            "_ReduceFromModelParallelRegionBackward",
        ),  # of activations, each of which is needed at once
        (40, 0, "torch::autograd::AccumulateGrad"),  # of unknown size
    ],
)
def test_buckets_that_are_large_or_few(count: int, size: int, node: str) -> None:
    assert found(in_buckets(count, size, node), "small-buckets") is None
