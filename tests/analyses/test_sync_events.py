"""Waits of the host: found, named, and charged to the device as defined."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
import pytest
from analyses.made import BACKWARD, Made, in_session, site
from analyses.made import report as report_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tuiprof.analyses import run
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.model import Report, Unavailable, Window
from tuiprof.model.intervals import total, union
from tuiprof.model.trust import ReadStats

report = partial(report_of, "sync_events")


def item(
    made: Made, at: float, correlation: int, *, copy: tuple[float, float], wait: tuple[float, float]
) -> Made:
    """Add what `.item()` leaves in a trace: operators, a pageable copy and a stream synchronise."""
    made.op("aten::item", at, wait[1] + 1).op("aten::_local_scalar_dense", at + 0.5, wait[1] + 0.5)
    made.call("cudaMemcpyAsync", at + 1, wait[0], correlation=correlation)
    made.kernel("Memcpy DtoH (Device -> Pageable)", *copy, correlation, category="memcpy", bytes=4)
    return made.call("cudaStreamSynchronize", *wait)


def item_step() -> Made:
    """One step: a kernel of 80 µs, `.item()` that waits for it, and 30 µs until the next kernel arrives."""
    made = Made().step(3, 0, 200).launch("gemm", (0, 5), (10, 90))
    item(made, 10, 2, copy=(90, 92), wait=(94, 96))
    return made.launch("add", (115, 120), (122, 130))


def test_item_is_one_sync_of_two_calls_with_its_whole_cost() -> None:
    found = report(item_step().trace())
    row = found.table("groups").rows.row(0, named=True)
    assert (row["kind"], row["per_step"], row["calls"]) == (
        "item",
        1,
        "cudaMemcpyAsync + cudaStreamSynchronize",
    )
    assert (
        row["blocked_ns_per_step"] == (94 - 11) * 1000 + 2000
    )  # in the copy from 11 to 94, in the sync for 2
    assert row["empty_ns_per_step"] == (122 - 92) * 1000  # dry at the end of the copy, fed at 122
    assert row["through"] == "item → _local_scalar_dense"
    assert (row["waited_for"], row["delayed"], row["bytes"]) == ("Memcpy DtoH (Device -> Pageable)", "add", 4)
    # Without it the host needs 115 of 200 µs, the device less.
    assert (
        "1 sync a step blocks the host for 85.0 µs; removing it saves about 85.0 µs (42.5 %)"
        in found.verdict.sentence
    )


def test_fewer_syncs_than_steps_are_counted_over_all_steps() -> None:
    made = item_step().launch("long", (210, 212), (215, 390)).step(4, 200, 400)
    sentence = report(made.trace()).verdict.sentence
    assert sentence.startswith(
        "1 sync in 2 steps blocks the host for 85.0 µs; removing it saves about 42.5 µs a step"
    )


def test_a_wait_while_the_device_has_more_work_is_harmless() -> None:
    made = item_step()
    made.launch("long", (6, 8), (92, 290))  # queued before the sync, still running after it
    found = report(made.trace())
    assert found.fact("device_empty_ns") == 0
    assert "removing it would not shorten a step: harmless" in found.verdict.sentence
    assert found.verdict.level == "good"


def late_launches(made: Made, since: int, number: int, *, first: int = 100) -> Made:
    """Add kernels of 10 µs, each launched 15 µs after the one before: the device idles 5 µs between them."""
    for i in range(number):
        at = since + i * 15
        made.launch("small", (at, at + 2), (at + 3, at + 13))
    return made


def test_what_the_host_has_to_catch_up_after_a_wait_is_charged_to_it() -> None:
    made = item_step()  # one long wait, then `add` from 122 to 130
    late_launches(made, 132, 6)  # idle from 130 to 135, and five times 5 µs
    # The host gets ahead: submitted at 226 behind a kernel that ends at 400, then a gap that is none of the sync's.
    made.launch("long", (222, 224), (225, 400)).launch("queued", (225, 226), (400, 410))
    made.launch("later", (450, 452), (455, 480)).step(4, 200, 500)
    found = report(made.trace())
    row = found.table("groups").rows.row(0, named=True)
    assert row["empty_ns"] == 30_000
    assert row["refill_ns"] == (5 + 5 * 5 + 5) * 1000  # the last from 220 to 225
    assert found.fact("device_refill_ns_per_step") == row["refill_ns"] / 2  # of two steps


@pytest.mark.parametrize(
    ("queued", "after"),
    [
        ((190, 200), 0),  # 100 µs before its kernel can start: ahead
        ((190, 200.001), 45),  # 1 ns less: what the device lacks afterwards still is the wait's
        ((96, 97), 0),  # made at the very end of the wait, not before it
    ],
)
def test_the_host_has_caught_up_once_it_is_100_us_ahead(queued: tuple[float, float], after: int) -> None:
    made = item_step().launch("long", (132, 134), (135, 300))
    made.launch("queued", queued, (300, 310)).launch("later", (350, 352), (355, 480))
    assert report(made.trace()).fact("device_refill_ns") == (5 + after) * 1000


@pytest.mark.parametrize("steps", [1, 2])
def test_a_synchronise_at_the_end_is_the_profilers_unless_every_step_makes_one(steps: int) -> None:
    made = Made()
    for _, at in made.steps(200, steps):
        made.launch("gemm", (at, at + 5), (at + 10, at + 150))
        made.call("cudaDeviceSynchronize", at + 20, at + 152)
    found = run("sync_events", made.trace())
    if steps == 1:
        assert not isinstance(found, Report) or found.fact("syncs_per_step") == 0
    else:
        assert isinstance(found, Report)
        assert found.fact("syncs_per_step") == 1


@pytest.mark.parametrize(("called", "idle"), [(130, 0), (130.001, 5)])
def test_a_launch_is_late_when_the_device_ran_dry_before_it(called: float, idle: int) -> None:
    made = item_step().launch("long", (called, 134), (135, 300)).launch("last", (140, 150), (300, 310))
    assert report(made.trace()).fact("device_refill_ns") == idle * 1000


def test_a_loop_that_is_always_late_is_not_the_fault_of_a_short_sync() -> None:
    made = Made().step(1, 0, 1000)
    late_launches(made, 0, 30)
    made.call("cudaStreamSynchronize", 452, 458)
    late_launches(made, 460, 30, first=200)
    found = report(made.trace())
    assert found.fact("device_refill_ns") > 100_000
    assert found.fact("saves_ns_per_step") == 6_000
    assert found.verdict.level == "good"
    assert "saves about 6.00 µs (0.6 %)" in found.verdict.sentence


def test_a_long_wait_with_the_queue_filled_in_time_costs_nothing() -> None:
    made = Made().step(1, 0, 26_000).launch("long", (0, 5), (10, 16_000))
    made.launch("queued", (6, 8), (16_000, 17_000))
    made.call("cudaEventSynchronize", 9, 16_005)
    for i in range(10):  # each reaches the queue 900 µs before its turn
        made.launch("next", (16_010 + i * 900, 16_015 + i * 900), (17_000 + i * 1000, 18_000 + i * 1000))
    found = report(made.trace())
    assert found.fact("host_blocked_ns") == 15_996_000
    assert (found.fact("device_empty_ns"), found.fact("device_refill_ns")) == (0, 0)
    assert "removing it would not shorten a step: harmless" in found.verdict.sentence


def test_waits_of_one_place_are_removed_together_and_never_win_more_than_they_held() -> None:
    made = Made()
    for number in range(
        2
    ):  # a long wait that leaves empty nobody and a short one that leaves empty, in every step
        at = number * 1000
        made.step(number, at, at + 1000).launch("k", (at, at + 5), (at + 10, at + 300))
        made.launch("l", (at + 6, at + 8), (at + 300, at + 320))
        made.call("cudaStreamSynchronize", at + 10, at + 302)
        made.call("cudaStreamSynchronize", at + 310, at + 322)
        made.launch("m", (at + 400, at + 405), (at + 420, at + 990))
    found = report(made.trace())
    row = found.table("groups").rows.row(0, named=True)
    assert (row["per_step"], row["blocked_ns_per_step"]) == (2, 304_000)
    cost = row["empty_ns_per_step"] + row["refill_ns_per_step"]
    assert cost > 100_000
    # Without them a step takes what the device needs: 290, 20 and 570 µs of 1000.
    assert row["saves_ns_per_step"] == found.fact("saves_ns_per_step") == 120_000


@pytest.mark.parametrize(
    ("waits", "bound_ns"),
    [
        (
            [(100, 42_000), (42_000, 0)],
            100,
        ),  # the long wait comes after the idle time: it cannot have been won
        ([(42_000, 0), (100, 42_000)], 42_000),  # … and before it
        ([(50, 20), (10, 30), (0, 30)], 60),  # what is left of a credit is carried on
        ([(42_000, 0)], 0),  # nothing is launched behind it
    ],
)
def test_what_waiting_wins_at_most_is_idle_time_after_it(waits: list[tuple[int, int]], bound_ns: int) -> None:
    frame = pl.DataFrame(
        {
            "blocked_ns": [blocked for blocked, _ in waits],
            "empty_ns": [idle for _, idle in waits],
            "refill_ns": [0] * len(waits),
            "in_step": [True] * len(waits),
        }
    )
    assert _wait_table.bound(frame, (), 2).row(0) == (bound_ns, bound_ns / 2)


def test_two_waits_without_a_launch_between_share_the_starvation_once() -> None:
    made = item_step()
    made.call("cudaStreamSynchronize", 100, 104)
    found = report(made.trace())
    empty = dict(found.table("syncs").rows.select("start_ns", "empty_ns").iter_rows())
    assert empty == {11_000: 8_000, 100_000: 22_000}  # 92 to 100, then 100 to 122
    assert found.fact("device_empty_ns") == 30_000


@pytest.mark.parametrize(
    ("memory", "is_sync"),
    [("Pageable -> Device", True), ("Pinned -> Device", False), ("Device -> Device", False)],
)
def test_a_non_blocking_copy_is_a_sync_only_from_pageable_memory(memory: str, is_sync: bool) -> None:
    direction = "DtoD" if memory == "Device -> Device" else "HtoD"
    made = Made().step(1, 0, 100).launch("k", (0, 5), (6, 40))
    made.op("aten::copy_", 7, 45).call("cudaMemcpyAsync", 8, 44, correlation=2)
    made.kernel(f"Memcpy {direction} ({memory})", 40, 43, 2, category="memcpy", bytes=1 << 20)
    found = report(made.launch("l", (50, 55), (56, 60)).trace())
    assert found.fact("syncs") == int(is_sync)
    if is_sync:
        assert found.table("groups").rows["kind"][0] == "pageable copy to device"


@pytest.mark.parametrize(
    ("operator", "call", "kind"),
    [
        ("aten::nonzero", "cudaStreamSynchronize", "nonzero"),
        ("aten::index aten::nonzero", "cudaStreamSynchronize", "boolean mask"),
        ("aten::index", "cudaStreamSynchronize", "stream sync"),
        ("aten::masked_select aten::nonzero", "cudaStreamSynchronize", "masked_select"),
        ("aten::_unique2 aten::item aten::_local_scalar_dense", "cudaStreamSynchronize", "unique"),
        ("aten::repeat_interleave aten::item", "cudaStreamSynchronize", "repeat_interleave"),
        ("aten::is_nonzero aten::item aten::_local_scalar_dense", "cudaStreamSynchronize", "bool"),
        ("aten::allclose aten::item", "cudaStreamSynchronize", "equal"),
        ("aten::nonzero", "cudaMalloc", "allocator"),
        ("aten::empty", "cudaMalloc", "allocator"),
        ("aten::_pin_memory", "cudaHostAlloc", "pin memory"),
        ("c10d::barrier", "cudaStreamSynchronize", "collective wait"),
        ("", "cudaEventSynchronize", "event sync"),
        ("", "hipDeviceSynchronize", "device sync"),
        ("", "hipMemcpyWithStream", "blocking copy"),
        ("", "AscendCL@aclrtSynchronizeStreamWithTimeout", "stream sync"),
        ("", "zeEventHostSynchronize", "event sync"),
        ("", "urQueueFinish", "stream sync"),
        ("", "synchronizeStream", "stream sync"),
    ],
)
def test_kinds(operator: str, call: str, kind: str) -> None:
    made = Made().step(1, 0, 100).launch("k", (0, 5), (6, 40))
    for level, name in enumerate(operator.split()):  # outermost first
        made.op(name, 8 + level / 10, 45 - level / 10)
    made.call(call, 10, 42, correlation=2).launch("l", (50, 55), (56, 60))
    assert report(made.trace()).table("groups").rows["kind"].to_list() == [kind]


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "cudaEventQuery", "cudaStreamWaitEvent", "cudaMallocAsync"]
)
def test_calls_that_do_not_wait_are_not_invented(call: str) -> None:
    made = Made().step(1, 0, 100).launch("k", (0, 5), (6, 40)).call(call, 10, 42, correlation=2)
    found = report(made.launch("l", (50, 55), (56, 60)).trace())
    assert found.fact("syncs") == 0
    assert "no syncs" in found.verdict.sentence


def test_the_function_of_the_user_is_named_and_frames_of_the_framework_are_skipped() -> None:
    made = item_step()
    made.add("python_function", "train.py(40): main", 0, 180)
    made.add("python_function", "torchmetrics/aggregation.py(85): update", 9, 99)
    made.add("python_function", "torch/nn/modules/module.py(1743): _call_impl", 9.2, 98.5)
    row = report(made.trace()).table("groups").rows.row(0, named=True)
    assert row["where"] == "torchmetrics/aggregation.py update() from line 85"
    assert row["found"] == "function"
    assert row["stack"].splitlines() == ["torchmetrics/aggregation.py(85): update", "train.py(40): main"]
    assert row["called_from"] == "train.py main() from line 40"


def test_the_line_itself_is_joined_from_the_probe_by_thread_and_time() -> None:
    trace = item_step().trace(
        [
            site(
                98,
                "/v/site-packages/torch/_tensor.py:9 item",
                "/v/site-packages/torchmetrics/aggregation.py:91 update",
                "/v/site-packages/torchmetrics/metric.py:549 wrapped",
                "/srv/home/user/train.py:57 main",
            ),
            site(98, "elsewhere.py:1 other", tid=999),
        ]
    )
    found = report(trace)
    row = found.table("groups").rows.row(0, named=True)
    assert (row["where"], row["in"], row["found"]) == ("torchmetrics/aggregation.py:91", "update", "line")
    assert row["called_from"] == "…/home/user/train.py:57"
    assert (found.fact("lines_known"), found.fact("sites_unjoined")) == (1, 1)
    assert "torchmetrics/aggregation.py:91" in found.verdict.sentence


def test_a_site_before_the_wait_or_long_after_it_is_not_believed() -> None:
    switched_on = {
        **site(99, "torch/cuda/__init__.py:1270 set"),
        "what": "Synchronization debug mode is a prototype",
    }
    found = report(item_step().trace([site(50, "a.py:1 f"), site(500_000, "b.py:2 g"), switched_on]))
    assert (found.fact("lines_known"), found.fact("sites_unjoined")) == (0, 2)


def test_a_call_of_known_length_has_the_waits_inside_it_and_no_others() -> None:
    around = site(98, "train.py:5 step") | {"dur_ns": 89_000}
    within = site(95.5, "train.py:6 step") | {"dur_ns": 1_000}
    at_once = site(140, "train.py:7 step") | {"dur_ns": 4_000}
    for sites, where in (([around, at_once], "train.py:5"), ([within, at_once], "train.py:6")):
        found = report(item_step().trace(sites))
        assert found.table("groups").rows["where"].to_list() == [where]
        assert (found.fact("lines_known"), found.fact("sites_unjoined")) == (1, 0)
    assert report(item_step().trace([at_once])).fact("lines_known") == 0


def test_what_the_profiler_does_is_listed_apart() -> None:
    made = item_step().call("cudaDeviceSynchronize", 205, 206, correlation=70)
    found = report(made.trace())
    assert found.fact("syncs") == 1
    assert found.table("apart").rows["apart"].to_list() == ["made by the profiler"]
    inside = item_step().add("python_function", "torch/autograd/profiler.py(298): __exit__", 140, 160)
    inside.call("cudaDeviceSynchronize", 141, 150, correlation=70)
    assert report(inside.trace()).fact("syncs") == 1


@pytest.mark.parametrize(
    "wrapper",
    [
        "syncs.py(88): copy",
        "sites.py(88): copy",
        "given_steps.py(88): counted",
        "steps/given_steps.py(88): counted",
        "frameworks/syncs.py(88): copy",
        "frameworks/torch_hooks.py(88): copy",
        "frameworks/torch_black_box.py(88): backward",
        "importlib._bootstrap/module_calls.py(88): _call_impl",
    ],
)
def test_a_wait_inside_a_wrapper_of_the_probe_is_the_scripts(wrapper: str) -> None:
    others = "frameworks/torch_capture.py(9): stop", "frameworks/torch_black_box.py(88): backward_begins"
    for name, count in (wrapper, 1), *((other, 0) for other in others):
        made = item_step().add("python_function", f"tuiprof/probe/{name}", 9, 99)
        assert report(made.trace()).fact("syncs") == count


def test_a_synchronise_that_every_step_makes_is_the_users() -> None:
    made = Made()
    for _, at in made.steps(100, 3):
        made.launch("k", (at, at + 5), (at + 6, at + 40))
        made.call("cudaDeviceSynchronize", at + 10, at + 41)
    assert report(made.trace()).fact("syncs_per_step") == 1


def test_a_wait_cut_by_the_window_is_listed_apart() -> None:
    found = report(item_step().trace(), Window(50_000, 200_000))
    assert found.fact("syncs") == 0
    assert found.table("apart").rows["apart"].to_list() == ["cut by the window"]


def test_a_driver_call_inside_a_runtime_call_is_one_wait() -> None:
    made = item_step().call("cudaDeviceSynchronize", 100, 104)
    made.add("driver", "cuCtxSynchronize", 101, 103)
    assert report(made.trace()).fact("syncs") == 2


def test_without_a_device_the_reason_is_given() -> None:
    found = run("sync_events", Made().op("aten::mm", 0, 10).trace())
    assert isinstance(found, Unavailable)
    assert "CPU-only" in found.reason
    assert "kernels" in found.remedy


@pytest.mark.parametrize("analysis", ["sync_events", "kernel_launches", "device_idle"])
def test_a_damaged_file_is_not_taken_for_a_cpu_only_trace(analysis: str) -> None:
    trace = Made().op("aten::mm", 0, 10).trace()
    trace.stats = ReadStats(events=1, truncated=True)
    found = run(analysis, trace)
    assert isinstance(found, Unavailable)
    assert "CPU-only" not in found.reason
    assert "the file ends in the middle of an event" in found.reason


def test_waits_of_two_threads_give_a_sum_and_a_union() -> None:
    made = item_step().call("cudaStreamSynchronize", 20, 60, track=BACKWARD)
    found = report(made.trace())
    assert found.fact("host_blocked_ns") == 125_000
    assert found.fact("host_blocked_union_ns") == 85_000
    assert "the host for 85.0 µs" in found.verdict.sentence, (
        "it cannot be blocked for longer than the time there is"
    )


TIMES = st.integers(0, 60)


@given(
    st.lists(
        st.tuples(TIMES, st.integers(1, 5), st.integers(0, 12), st.integers(1, 15)), min_size=1, max_size=10
    ),
    st.lists(st.tuples(TIMES, st.integers(1, 20)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_starved_time_is_idle_time_charged_once(
    launches: list[tuple[int, int, int, int]], waits: list[tuple[int, int]]
) -> None:
    made = Made().step(1, 0, 100)
    for at, length, latency, work in launches:
        begin = at + length + latency
        made.launch("k", (at, at + length), (begin, begin + work))
    for number, (at, length) in enumerate(waits):
        made.call("cudaStreamSynchronize", at, at + length, track=number % 2)
    trace = made.trace()
    starts = np.array([at * 1000 for at, _ in waits], dtype=np.int64)
    ends = starts + np.array([length * 1000 for _, length in waits], dtype=np.int64)
    order = np.argsort(ends, kind="stable")
    starts, ends = starts[order], ends[order]
    none = np.full(len(starts), -1)
    result = _wait_table.emptied(trace, np.zeros(len(starts), dtype=np.int64), none, starts, ends)
    late = _wait_table.refill(trace, result, starts, ends, np.zeros(len(starts), dtype=bool))
    assert (result.ns >= 0).all()
    assert (late >= 0).all()
    assert result.ns.sum() == total(*union(result.starts, result.ends))
    gaps = _idle.gaps(trace, 0, *trace.span)
    assert result.ns.sum() + late.sum() <= gaps.ns.sum()
    for low, high in zip(result.starts.tolist(), result.ends.tolist(), strict=True):
        if high > low:
            assert any(a <= low and high <= b for a, b in zip(gaps.starts, gaps.ends, strict=True))
    found = report(trace)
    groups = found.table("groups").rows
    assert found.fact("host_blocked_union_ns") <= found.fact("host_blocked_ns")
    assert found.fact("device_empty_ns") + found.fact("device_refill_ns") <= gaps.ns.sum()
    assert (groups["saves_ns"] <= groups["blocked_ns"]).all()
    assert (groups["saves_ns"] <= groups["empty_ns"] + groups["refill_ns"]).all()
    assert groups["saves_ns_per_step"].sum() <= (found.fact("saves_ns_per_step") or 0) + 1e-6


REAL = (
    "sam-a100-sync-heavy.json.gz",
    "sam-a100-cudagraph.json.gz",
    "pytorchbench-a100-memcpy-sync.json",
    "hta-alexnet-a100-cuda-sync.json.gz",
    "hta-v100-cudagraph-nccl.json.gz",
    "tracelens-h100-bert-small.json.gz",
    "tracelens-mi300-bert-small.json.gz",
    "kineto-resnet50-v100-autograd-api-nosteps.pt.trace.json.gz",
    "ascend-msprof-trace-view.json.gz",
)


@pytest.mark.parametrize("name", REAL)
def test_calls_agree_with_the_reference_figures(name: str) -> None:
    from tuiprof.formats import open_trace

    figures = real_traces.figures(name)
    trace = open_trace(real_traces.path(name))
    found = report(trace)
    calls = {
        row["call"]: (row["count"], row["total_ns"])
        for row in found.table("calls").rows.iter_rows(named=True)
    }
    expected = {call: (v["count"], v["total_ns"]) for call, v in figures["sync_calls"].items()}
    assert {call: calls.get(call) for call in expected} == expected
    idle = run("device_idle", trace)
    assert isinstance(idle, Report)
    assert found.fact("device_empty_ns") + found.fact("device_refill_ns") <= idle.fact("idle_ns")
    assert found.fact("host_blocked_union_ns") <= found.fact("host_blocked_ns")


@pytest.mark.parametrize(("step_ns", "said"), [(None, False), (800_000.0, True)])
def test_a_wait_that_is_shorter_while_captured_is_said_to_be_so(step_ns: float | None, said: bool) -> None:
    """The profiler slows the host, which reaches the wait when the device has nearly finished."""
    made = Made()
    for number, at in made.steps(1_000):
        made.launch("gemm", (at, at + 5), (at + 10, at + 530))
        for index in range(50):
            made.op("aten::view", at + 10 + index * 10, at + 18 + index * 10)
        item(made, at + 511, number * 10 + 2, copy=(at + 531, at + 533), wait=(at + 535, at + 537))
        made.launch("add", (at + 560, at + 565), (at + 570, at + 600))
        for index in range(40):
            made.op("aten::view", at + 600 + index * 9, at + 607 + index * 9)
    trace = made.trace()
    if step_ns is not None:
        in_session(trace, step_ns)
    sentence = report(trace).verdict.sentence
    assert "1 sync a step blocks the host for 2" in sentence
    assert ("while captured" in sentence) == said, sentence


def test_syncs_that_only_save_time_together_are_not_said_to_save_it_at_one_place() -> None:
    """The second wait takes over from the first, so that removing one of them changes little."""
    made = Made()
    for number, at in made.steps(1_000):
        first = number * 10 + 1
        made.launch("gemm", (at, at + 5), (at + 10, at + 500), first)
        made.add("annotation", "log", at + 8, at + 503).add("annotation", "check", at + 505, at + 509)
        made.call("cudaStreamSynchronize", at + 10, at + 502, correlation=first + 500)
        made.call("cudaStreamSynchronize", at + 506, at + 508, correlation=first + 501)
        made.launch("add", (at + 900, at + 905), (at + 920, at + 990), first + 2)
    found = report(made.trace())
    each = found.table("groups").rows["saves_ns_per_step"].to_list()
    together = found.fact("saves_ns_per_step")
    assert len(each) == 2
    assert sum(each) < 0.7 * together, "the case that the sentence is about"
    sentence = found.verdict.sentence
    assert "2 syncs a step block the host for 494 µs; removing all of them saves about" in sentence
    assert "as the host can then run ahead; the costliest alone saves" in sentence
