"""Figures of a part of a trace: time inside counts, and what a step launched counts whole."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD, Made, report

from tuiprof.analyses import run
from tuiprof.analyses.compare import compare
from tuiprof.model import Unavailable, Window


def test_launches_whose_work_runs_after_the_window() -> None:
    made = Made().launch("k", (0, 1), (2, 5)).launch("l", (10, 11), (40, 50))
    found = run("kernel_launches", made.trace(), Window(9_000, 30_000))
    assert isinstance(found, Unavailable)
    assert "runs later" in found.reason


def test_waiting_for_a_batch_never_takes_more_than_the_window() -> None:
    made = Made().op("enumerate(DataLoader)#_It.__next__", 0, 100).op("aten::add", 100, 101)
    found = report("data_loading", made.trace(), Window(20_000, 30_000))
    assert (found.fact("data_wait_share"), found.fact("data_wait_ns")) == (1, 10_000)


def test_compiling_never_takes_more_than_the_window() -> None:
    made = Made().add("annotation", "compile_fx (dynamo_timed)", 0, 100).op("aten::add", 100, 101)
    found = report("compile", made.trace(), Window(20_000, 30_000))
    assert (found.fact("compile_share"), found.fact("compile_ns")) == (1, 10_000)


def test_a_kernel_counts_for_its_time_in_the_window() -> None:
    made = Made().launch("k", (0, 1), (10, 110)).launch("l", (2, 3), (110, 120))
    found = report("kernels", made.trace(), Window(100_000, 115_000))
    assert (found.fact("work_ns"), found.fact("busy_ns"), found.fact("overlap")) == (15_000, 15_000, 1)
    rows = found.table("kernels").rows
    assert dict(rows.select("kernel", "total_ns").iter_rows()) == {"k": 10_000, "l": 5_000}
    assert dict(rows.select("kernel", "longest_ns").iter_rows()) == {"k": 100_000, "l": 10_000}


def test_a_steps_kernels_count_whole_where_the_device_lags_behind() -> None:
    made = Made().step(1, 0, 20).step(2, 20, 40)
    made.launch("k", (1, 2), (5, 30)).launch("k", (21, 22), (30, 55))
    trace = made.trace()
    step = trace.steps.window(1)
    found = report("kernels", trace, step)
    assert found.fact("work_ns_per_step") == 25_000
    assert found.fact("work_ns_per_step") == report("steps", trace, step).fact("device_busy_ns_per_step")
    row = found.table("kernels").rows.row(0, named=True)
    assert (row["count"], row["total_ns"], row["per_step"], row["per_step_ns"]) == (2, 20_000, 1, 25_000)


def test_idle_time_for_data_is_that_of_the_steps() -> None:
    made = Made().launch("k", (0, 1), (2, 5))
    made.op("enumerate(DataLoader)#_It.__next__", 10, 30).launch("k", (31, 32), (33, 40))  # before any step
    made.step(1, 50, 100).op("enumerate(DataLoader)#_It.__next__", 50, 60).launch("k", (61, 62), (63, 70))
    found = report("data_loading", made.trace())
    assert found.fact("device_idle_ns_per_step") == 10_000
    causes = report("device_idle", made.trace()).table("causes").rows
    assert dict(causes.select("cause", "idle_ns_per_step").iter_rows())["data loading"] == 10_000


def test_a_step_inside_another_has_what_it_holds_and_no_more() -> None:
    made = Made().step(1, 0, 100).add("annotation", "ProfilerStep#2", 20, 30, track=BACKWARD)
    made.op("aten::a", 10, 11).op("aten::b", 25, 26).op("aten::c", 50, 51)
    trace = made.trace()
    step = {trace.name(row): int(trace.steps.step_of[row]) for row in range(len(trace))}
    assert [step[f"aten::{name}"] for name in "abc"] == [0, 1, 0]


def test_two_threads_that_wait_starve_the_device_once() -> None:
    made = Made().launch("k", (0, 1), (2, 10))
    made.call("cudaStreamSynchronize", 12, 20, track=BACKWARD)
    made.call("cudaStreamSynchronize", 14, 18)
    made.launch("k", (21, 22), (30, 40))
    found = report("sync_events", made.trace())
    rows = found.table("syncs").rows
    # 12 to 14 while only the first waits, from 14 on for the one that began last.
    assert dict(rows.select("start_ns", "empty_ns").iter_rows()) == {12_000: 2_000, 14_000: 16_000}
    assert found.fact("device_empty_ns") == 18_000


def test_bytes_that_nobody_wrote_down_are_not_none() -> None:
    made = Made()
    for number, size in enumerate((None, 4_000)):
        made.call("cudaMemcpyAsync", number * 20, number * 20 + 2, correlation=number + 1)
        columns = {"category": "memcpy", "bytes": size}
        made.kernel("Memcpy HtoD (Pinned -> Device)", number * 20 + 3, number * 20 + 5, number + 1, **columns)
    made.op("enumerate(DataLoader)#_It.__next__", 50, 60)
    rows = report("data_loading", made.trace()).table("copies").rows
    assert (rows["bytes"][0], rows["gb_per_s"][0]) == (4_000, pytest.approx(2.0))
    unknown = Made().call("cudaMemcpyAsync", 0, 1, correlation=1).op("enumerate(DataLoader)#", 9, 10)
    unknown.kernel("Memcpy HtoD (Pinned -> Device)", 2, 4, 1, category="memcpy")
    rows = report("data_loading", unknown.trace()).table("copies").rows
    assert (rows["bytes"][0], rows["gb_per_s"][0]) == (None, None)


def test_steps_are_compared_by_what_they_launched_and_waited_for() -> None:
    made = Made()
    for number in range(1, 4):
        at = number * 20
        made.step(number, at, at + 20).launch("k", (at + 1, at + 2), (at + 5, at + 23))
        made.call("cudaStreamSynchronize", at + 15, at + 18)
    trace = made.trace()
    # Two whole steps, and the end of one in which there is a sync that belongs to no complete step.
    part = Window(34_000, 80_000)
    found = compare(trace, trace, part, part)
    for table in ("kernels", "syncs"):
        row = found.table(table).rows.row(0, named=True)
        assert (row["before_count"], row["after_count"], row["change_ns"]) == (1, 1, 0), table
    assert found.table("kernels").rows["before_ns"][0] == 18_000


def test_a_device_that_never_idles_is_idle_for_no_time_a_step() -> None:
    found = report("device_idle", Made().step(1, 0, 9).launch("k", (1, 2), (3, 9)).trace())
    assert (found.fact("idle_ns"), found.fact("idle_ns_per_step")) == (0, 0)


def test_operators_that_read_alike_are_compared_as_one() -> None:
    made = Made()
    for number, name in enumerate(("aten::add", "add")):
        made.op(name, number * 10, number * 10 + 5).launch(
            "k", (number * 10 + 1, number * 10 + 3), (number * 10 + 4, number * 10 + 9)
        )
    trace = made.trace()
    rows = compare(trace, trace).table("launches").rows
    assert rows.select("name", "before_count", "after_count", "change_ns").rows() == [("add", 2, 2, 0)]
