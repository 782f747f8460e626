"""Idle time by cause, launches, steps and kernels against hand-made traces and reference figures."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD, MAIN, OTHER_STREAM, Made, report
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tuiprof.analyses import run
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import kernel_names
from tuiprof.model import Trace, Unavailable, Window
from tuiprof.model.steps import Uncaptured


def causes(trace: Trace, window: Window | None = None) -> dict[str, int]:
    table = report("device_idle", trace, window).table("causes").rows
    return dict(table.select("cause", "idle_ns").iter_rows())


def test_every_part_of_a_gap_has_its_cause() -> None:
    made = Made().launch("k", (0, 5), (6, 20))
    made.call("cudaStreamSynchronize", 10, 30)  # 20 to 30: sync
    made.add("python_function", "train.py(1): main", 0, 100)  # 30 to 40: Python
    made.op("enumerate(DataLoader)#_It.__next__", 40, 60)  # data loading, not operator
    made.op("aten::add", 60, 72).call("cudaFuncGetAttributes", 62, 64)  # 60 to 70: operator 8, call 2
    made.launch("l", (70, 74), (80, 90))  # 70 to 80: launching
    assert causes(made.trace()) == {
        "sync": 10_000,
        "Python": 10_000,
        "data loading": 20_000,
        "operator": 8_000,
        "runtime call": 2_000,
        "launching": 10_000,
    }


def test_work_submitted_in_time_is_a_hand_over_not_the_hosts_fault() -> None:
    made = Made().launch("k", (0, 2), (3, 50)).launch("l", (4, 6), (80, 90))
    assert causes(made.trace()) == {"hand-over": 30_000}


def test_idle_is_the_complement_of_the_union_over_streams() -> None:
    made = Made().launch("a", (0, 1), (2, 40))
    made.launch("b", (1, 2), (10, 60), track=OTHER_STREAM, stream=8).launch("c", (70, 71), (80, 100))
    found = report("device_idle", made.trace())
    assert (found.fact("idle_ns"), found.fact("busy_ns"), found.fact("work_ns")) == (20_000, 78_000, 108_000)
    assert found.fact("idle_share") == pytest.approx(20 / 98)


def test_a_window_cuts_gaps_and_work() -> None:
    made = Made().launch("a", (0, 1), (2, 40)).launch("b", (60, 61), (62, 100))
    found = report("device_idle", made.trace(), Window(30_000, 70_000))
    assert (found.fact("idle_ns"), found.fact("busy_ns")) == (22_000, 18_000)


@pytest.mark.parametrize("session", [True, False])
def test_the_idle_share_without_the_profiler_of_a_single_step_is_known_from_the_session(
    session: bool,
) -> None:
    made = Made().step(0, 0, 800)
    for index in range(20):
        at = index * 40
        made.op("aten::mm", at, at + 35).launch("k", (at + 2, at + 6), (at + 9, at + 14))
    trace = made.trace(format="kineto")
    trace.uncaptured = Uncaptured(40, 400_000.0, 390_000.0, 410_000.0) if session else None
    share = report("device_idle", trace).fact("uncaptured_idle_share")
    assert share == (pytest.approx(0.75, abs=0.01) if session else None)


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 6), st.integers(-3, 9), st.integers(1, 15)), min_size=1
)


@given(
    SPANS, st.lists(st.tuples(st.sampled_from(["cpu_op", "runtime"]), st.integers(0, 60), st.integers(1, 9)))
)
@settings(max_examples=40, deadline=None)
def test_causes_add_up_to_the_gap(
    launches: list[tuple[int, int, int, int]], host: list[tuple[str, int, int]]
) -> None:
    made = Made()
    for at, length, latency, work in launches:
        begin = max(at + length + latency, 0)
        made.launch("k", (at, at + length), (begin, begin + work))
    for category, at, length in host:
        made.add(category, "x", at, at + length)
    trace = made.trace()
    gaps = _idle.gaps(trace, 0, *trace.span)
    assert (gaps.causes >= 0).all()
    assert (gaps.causes.sum(axis=0) == gaps.ns).all()
    share = report("device_idle", trace).fact("idle_share")
    assert 0 <= share <= 1


def test_launch_bound_by_its_rule() -> None:
    made = Made().step(1, 0, 1000)
    for i in range(20):  # kernels of 5 µs, one every 50 µs: the device idles 90 % in operators
        made.op("aten::add", i * 50, i * 50 + 40)
        made.launch("add", (i * 50 + 10, i * 50 + 20), (i * 50 + 22, i * 50 + 27))
    found = report("kernel_launches", made.trace())
    assert found.verdict.sentence.startswith("launch-bound: ")
    assert found.fact("launches_per_step") == 20
    assert found.fact("launch_host_ns_per_step") == 200_000
    assert found.fact("latency_median_ns") == 2_000
    assert found.fact("shorter_than_launch_share") == 1
    assert found.fact("captured_launch_bound_share") == pytest.approx(19 * 45 / (19 * 50 + 5))
    # With a host that takes no time: twenty kernels of 5 µs with 1 µs between them, of 1000.
    assert found.fact("launch_bound_share") == pytest.approx(0.88)
    assert found.table("sensitivity").rows["verdict"].to_list() == ["launch-bound"] * 3
    loop = found.table("sequences").rows.row(0, named=True)
    assert (loop["shape"], loop["times"], loop["kernels"]) == ("loop", 20, "add")
    assert found.table("by_operator").rows["operator"].to_list() == ["add"]


def test_launch_latency_is_counted_by_class_and_by_what_the_launch_found() -> None:
    made = Made()
    for i in range(20):  # each finds the device idle; latencies of 1 to 20 µs
        made.launch("k", (i * 100, i * 100 + 2), (i * 100 + 3 + i, i * 100 + 13 + i))
    made.launch("k", (1924, 1925), (1940, 1950))  # while the last kernel runs
    table = report("kernel_launches", made.trace()).table("latency")
    rows = table.rows.filter(table.rows["launches"] > 0)
    assert rows.select("from_ns", "to_ns", "launches", "unqueued").rows() == [
        (0, 5_000, 4, 4),
        (5_000, 10_000, 5, 5),
        (10_000, 20_000, 11, 10),
        (20_000, 50_000, 1, 1),
    ]
    assert table.note == "p5 2.00 µs, p50 11.0 µs, p95 19.0 µs, p99 19.8 µs, longest 20.0 µs"


def test_kernels_go_by_a_short_name_and_operators_by_their_own() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
    made = Made().op("aten::fill_", 0, 10).launch(name, (1, 3), (5, 9))
    made.op("aten::mm", 20, 30).launch("g" * 60, (21, 23), (25, 39)).launch("h" * 61, (31, 33), (39, 40))
    found = report("kernel_launches", made.trace())
    kernels = found.table("by_kernel").rows
    assert dict(kernels.select("kernel", "short").iter_rows())[name] == kernel_names.short_name(name) != name
    operators = found.table("by_operator").rows
    assert operators["short"].to_list() == operators["operator"].to_list()
    assert "g" * 60 in report("kernels", made.trace()).verdict.sentence  # as long as fits whole
    longer = made.launch("h" * 61, (40, 41), (50, 90)).trace()
    assert "h" * 59 + "… (" in report("kernels", longer).verdict.sentence


def test_a_full_queue_is_not_launch_bound() -> None:
    made = Made().step(1, 0, 200)
    for i in range(10):
        made.launch("gemm", (i * 5, i * 5 + 4), (10 + i * 100, 110 + i * 100))
    found = report("kernel_launches", made.trace())
    assert found.verdict.sentence.startswith("not launch-bound: the GPU waits for launches 0 % of a step")
    assert found.fact("queue_depth_mean") > 4
    assert found.table("queue_depth").rows["highest"].max() == 10


@pytest.mark.parametrize(
    ("kernel_us", "verdict"), [(50, "launch-bound"), (84, "partly"), (96, "not launch-bound")]
)
def test_the_advice_is_given_for_what_is_partly_launch_bound(kernel_us: int, verdict: str) -> None:
    made = Made()
    for number in range(40):
        at = 100 * number
        if number % 10 == 0:
            made.step(number // 10, at, at + 1000)
        made.op("aten::mm", at, at + 95)
        made.launch("gemm", (at + 5, at + 10), (at + 12, at + 12 + kernel_us))
    trace = made.trace()
    assert report("kernel_launches", trace).verdict.sentence.startswith(verdict)
    advice = report("advice", trace).table("findings").rows["rule"].to_list()
    assert ("launch-bound" in advice) == (verdict != "not launch-bound")


def test_faster_launches_save_no_more_because_faster_kernels_would_leave_the_host_behind() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::empty", at, at + 150)
        for index in range(10):
            begin, work = at + 150 + 60 * index, at + 165 + 82 * index
            made.op("aten::mm", begin, begin + 58)
            made.launch("xmma_gemm_tf32f32", (begin + 5, begin + 10), (work, work + 82))
        made.call("cudaStreamSynchronize", at + 760, at + 990)
    found = report("advice", made.trace())
    saved = dict(found.table("findings").rows.select("rule", "wins_ns").iter_rows())
    assert {"launch-bound", "mixed-precision"} <= saved.keys()
    assert saved["launch-bound"] <= found.fact("step_ns") - found.fact("floor_ns")


def test_negative_latency_is_counted_and_shown_not_cut() -> None:
    made = Made().launch("a", (0, 10), (8, 20)).launch("b", (30, 40), (25, 50))
    found = report("kernel_launches", made.trace())
    assert (found.fact("latency_negative"), found.fact("latency_impossible")) == (2, 1)
    assert found.fact("latency_median_ns") == -8_500
    assert any("clocks" in note for note in found.notes)


def test_a_graph_launch_is_one_launch_of_many() -> None:
    made = Made().call("cudaGraphLaunch", 0, 10, correlation=5)
    for i in range(4):
        made.kernel("k", 12 + i * 10, 20 + i * 10, 5)
    found = report("kernel_launches", made.trace())
    graphs = found.table("graphs").rows.row(0, named=True)
    assert (graphs["works"], graphs["device_ns"], graphs["latency_ns"]) == (4, 32_000, 2_000)
    assert (found.fact("launches"), found.fact("graph_launches")) == (1, 1)


def test_a_graph_launch_is_told_by_its_call() -> None:
    made = Made().call("cudaGraphLaunch", 0, 10, correlation=1).kernel("alone", 12, 20, 1)
    made.call("hipGraphLaunch", 30, 40, correlation=2).kernel("a", 42, 50, 2).kernel("b", 52, 60, 2)
    # One call, two works, and no graph: so MTIA does it.
    made.call("enqueueCommand memcpyHtoDAsync", 70, 80, correlation=3).kernel("c", 82, 85, 3).kernel(
        "d", 86, 90, 3
    )
    made.launch("e", (100, 105), (106, 110))
    found = report("kernel_launches", made.trace())
    assert (found.fact("launches"), found.fact("graph_launches")) == (4, 2)
    graphs = found.table("graphs").rows
    assert graphs.select("call", "works").sort("works").rows() == [
        ("cudaGraphLaunch", 1),
        ("hipGraphLaunch", 2),
    ]


def test_launch_blocking_mode_is_recognised() -> None:
    made = Made()
    for i in range(30):
        made.launch("k", (i * 50, i * 50 + 30), (i * 50 + 5, i * 50 + 25))
    assert "launch-blocking mode" in report("kernel_launches", made.trace()).verdict.sentence


def test_a_step_owns_what_it_launched() -> None:
    made = Made().step(1, 0, 100).step(2, 100, 200)
    made.launch("late", (90, 95), (120, 180)).launch("own", (110, 115), (180, 190))
    rows = report("steps", made.trace()).table("steps").rows
    assert rows["device_busy_ns"].to_list() == [60_000, 10_000]
    assert rows["launches"].to_list() == [1, 1]


@pytest.mark.parametrize(("begin", "said"), [(1000, " from its first work to its last"), (10, "")])
def test_idle_time_says_what_it_is_of_where_the_device_works_in_a_part_of_the_trace(
    begin: int, said: str
) -> None:
    made = Made().op("aten::mm", 0, begin)
    for at in (begin, begin + 300):
        made.launch("gemm", (at, at + 5), (at + 10, at + 110))
    sentence = report("device_idle", made.trace()).verdict.sentence
    assert sentence.startswith(f"the GPU is idle 50.0 % of the time{said} (200 µs)")


def test_a_device_that_waits_for_batches_does_not_wait_for_launches() -> None:
    """Faster launches would hide the loading of the next batch behind the kernels: half of the step."""
    made = Made()
    for _, at in made.steps(200, 4):
        made.op("enumerate(DataLoader)#_It.__next__", at, at + 100)
        made.launch("gemm", (at + 101, at + 104), (at + 106, at + 206))
        made.op("aten::mm", at + 105, at + 199)
    found = report("kernel_launches", made.trace())
    share, ns = found.fact("launch_bound_share"), found.fact("launch_bound_ns")
    assert isinstance(share, float)
    assert share < 0.05
    assert ns == pytest.approx(share * 200_000)
    assert found.verdict.sentence.startswith("not launch-bound")


def test_slow_steps_are_explained_by_the_part_that_grew() -> None:
    made, at = Made(), 0
    for number, length in enumerate((100, 100, 180, 100, 100)):
        made.step(number, at, at + length)
        made.op("enumerate(DataLoader)#_It.__next__", at, at + length - 90)
        made.launch("k", (at + length - 80, at + length - 75), (at + length - 70, at + length - 10))
        at += length
    found = report("steps", made.trace())
    assert "1 slow step took 80.0 µs longer, 80.0 µs of that data loading" in found.verdict.sentence
    assert found.table("slow").rows["part"][0] == "data loading"


@pytest.mark.parametrize("track", [MAIN, BACKWARD])
def test_forward_and_backward_in_the_closure_of_an_optimizer_are_not_its_own_time(track: int) -> None:
    made = Made().step(1, 0, 100).op("Optimizer.step#Adam.step", 10, 90).op("aten::linear", 12, 30)
    made.op("autograd::engine::evaluate_function: AddmmBackward0", 40, 70, track=track)
    rows = report("steps", made.trace()).table("phases").rows
    assert dict(rows.select("phase", "per_step_ns").rows()) == {
        "forward (in a closure)": 30_000,
        "backward (autograd engine)": 30_000,
        "Optimizer.step#Adam.step": 20_000,
        "other": 20_000,
    }


def test_phases_are_outermost_ranges_and_the_autograd_threads() -> None:
    made = Made().step(1, 0, 100).add("annotation", "forward", 0, 40).add("annotation", "attention", 5, 20)
    made.add("annotation", "tuiprof.inputs", 90, 95)  # of the probe
    made.op("autograd::engine::evaluate_function: MulBackward0", 50, 80, track=BACKWARD)
    rows = report("steps", made.trace()).table("phases").rows
    assert dict(rows.select("phase", "per_step_ns").iter_rows()) == {
        "forward": 40_000,
        "backward (autograd engine)": 30_000,
        "other": 30_000,
    }
    made.add("annotation", "backward", 45, 85)
    rows = report("steps", made.trace()).table("phases").rows
    assert dict(rows.select("phase", "per_step_ns").iter_rows()) == {
        "forward": 40_000,
        "backward": 40_000,
        "other": 20_000,
    }
    assert rows["share"].sum() == pytest.approx(1)


def test_kernels_by_kind_share_the_summed_time() -> None:
    made = Made().launch("volta_sgemm_128x64_nn", (0, 1), (2, 62))
    made.launch(
        "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>()",
        (1, 2),
        (62, 102),
    )
    found = report("kernels", made.trace())
    assert dict(found.table("kinds").rows.select("kind", "share").iter_rows()) == pytest.approx(
        {"gemm": 0.6, "elementwise": 0.4}
    )
    assert found.table("kernels").rows["short"].to_list() == [
        "volta_sgemm_128x64_nn",
        "vectorized_elementwise<Mul>",
    ]
    assert found.table("kernels").rows["tensor_cores"].to_list() == ["no", ""]


def test_shares_are_of_the_work_that_figures_a_step_count() -> None:
    made = Made().step(1, 0, 100).step(2, 100, 200)
    for start in (10, 110):
        made.launch("volta_sgemm_128x64_nn", (start, start + 1), (start + 2, start + 62))
        made.launch("cunn_SoftMaxForward", (start + 1, start + 2), (start + 62, start + 82))
    made.launch("cunn_SoftMaxForward", (201, 202), (203, 303))
    found = report("kernels", made.trace())
    rows = found.table("kinds").rows
    assert rows.select("per_step_ns", "share").rows() == [(60_000, 0.75), (20_000, 0.25)]
    assert found.verdict.sentence.startswith("75.0 % of GPU time is gemm")
    assert found.notes[0] == "38.5 % of the work lies outside the steps, and is in no share."


def test_without_a_device_operators_by_self_time() -> None:
    made = Made().op("aten::linear", 0, 100).op("aten::linear", 10, 90).op("aten::addmm", 20, 80)
    rows = report("kernels", made.trace()).table("operators").rows
    assert dict(rows.select("operator", "total_ns").iter_rows()) == {"addmm": 60_000, "linear": 40_000}
    assert dict(rows.select("operator", "with_inner_ns").iter_rows()) == {"addmm": 60_000, "linear": 100_000}


@pytest.mark.parametrize("name", ["device_idle", "kernel_launches"])
def test_reasons_instead_of_zeros(name: str) -> None:
    cpu = run(name, Made().op("aten::mm", 0, 10).trace())
    lost = run(name, Made().call("cudaLaunchKernel", 0, 5, correlation=3).trace())
    assert isinstance(cpu, Unavailable)
    assert isinstance(lost, Unavailable)
    assert "CPU-only" in cpu.reason
    assert "no device activity" in lost.reason


REAL = (
    "sam-a100-sync-heavy.json.gz",
    "hta-v100-cudagraph-nccl.json.gz",
    "kineto-resnet50-v100-torch19-steps.pt.trace.json.gz",
    "tracelens-mi300-sglang-decode-hipgraph.json.gz",
    "torchtutorial-h100-stack-steps.pt.trace.json.gz",
)


@pytest.mark.parametrize(
    ("name", "graphs"),
    [
        ("hta-v100-cudagraph-nccl.json.gz", 12),
        ("sam-a100-cudagraph.json.gz", 32),
        ("tracelens-rocm7-vllm-decode-hipgraph.json.gz", 1),
        ("hta-mtia-inference-rank0.json.gz", 0),
    ],
)
def test_graph_launches_of_real_traces(name: str, graphs: int) -> None:
    from tuiprof.formats import open_trace

    assert report("kernel_launches", open_trace(real_traces.path(name))).fact("graph_launches") == graphs


@pytest.mark.parametrize("name", REAL)
def test_busy_time_and_kernels_agree_with_the_reference_figures(name: str) -> None:
    from tuiprof.formats import open_trace

    figures = real_traces.figures(name)
    trace = open_trace(real_traces.path(name))
    busy = sum(device["busy_union_ns"] for device in figures["gpu"].values())
    assert report("device_idle", trace).fact("busy_ns") == busy
    assert report("kernels", trace).fact("busy_ns") == busy
    kinds = report("kernels", trace).table("kinds").rows
    moved = kinds.filter(kinds["kind"].is_in(["memcpy", "memset"]))
    total = kinds["total_ns"].sum() - moved["total_ns"].sum()
    assert total == figures["kernels"]["total_ns"]
    launches = report("kernel_launches", trace)
    assert launches.fact("launches") == len(trace.links.launches)
    assert 0 <= launches.fact("launch_bound_share") <= 1


def test_idle_time_whose_launch_is_not_in_the_trace_is_said_to_be_unexplained() -> None:
    from tuiprof.formats import open_trace

    trace = open_trace(real_traces.path("neuron-profile-baseline-bf16-s512.json.gz"))
    sentence = report("device_idle", trace).verdict.sentence
    assert sentence.endswith("all of that unexplained: the trace has no calls of a host")
    made = Made().call("cudaLaunchKernel", 0, 1, correlation=9).kernel("k", 2, 10).kernel("k", 20, 30)
    assert report("device_idle", made.trace()).verdict.sentence.endswith(
        "all of that unexplained: the call that launched the next work is missing from the trace"
    )


def test_launches_rank_by_the_figure_that_shows() -> None:
    """Of a trace with much launched outside of its steps as well."""
    from tuiprof.formats import open_trace

    trace = open_trace(real_traces.path("sam-a100-sync-heavy.json.gz"))
    by_operator = report("kernel_launches", trace).table("by_operator").rows
    assert by_operator["idle_ns_per_step"].is_sorted(descending=True, nulls_last=True)
    assert by_operator["idle_ns"].is_sorted(descending=True) is False
