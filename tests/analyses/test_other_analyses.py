"""Data loading, memory, compile and the comparison of two traces."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD, Made, report

from tests import real_traces
from tuiprof.analyses import available, run
from tuiprof.analyses.compare import compare
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.model.steps import Uncaptured


def loading(wait: float, steps: int = 4) -> Trace:
    made = Made()
    for number, at in made.steps(100, steps):
        made.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + wait)
        made.add("python_function", "torch/utils/data/dataloader.py(700): __next__", at, at + wait + 1)
        made.launch("gemm", (at + 45, at + 50), (at + 52, at + 99), number + 1)
    return made.trace()


def test_the_verdict_is_about_the_waits_of_the_session() -> None:
    trace = loading(1)
    trace.uncaptured = Uncaptured(40, 200_000.0, 190_000.0, 210_000.0, fetch_ns=101_000.0)
    found = report("data_loading", trace)
    assert found.verdict.level == "bad"
    assert (
        "waits 101 µs a step (50.5 %) for data, 2.00 µs a step (2.0 %) while captured"
        in found.verdict.sentence
    )
    assert report("data_loading", loading(1)).verdict.level == "good"
    part = report("data_loading", trace, Window(0, 200_000))
    assert "while captured" not in part.verdict.sentence


def test_the_wait_for_a_batch_is_counted_once() -> None:
    found = report("data_loading", loading(40))
    assert found.fact("data_wait_ns_per_step") == 41_000
    assert found.fact("data_wait_share") == pytest.approx(0.41)
    assert (
        found.fact("device_idle_ns_per_step") == 3 * 41_000 / 4
    )  # in all steps but the first the device is dry then
    assert found.verdict.level == "bad"


@pytest.mark.parametrize(
    ("wait", "level"), [(9, "bad"), (8.999, "warn"), (2, "warn"), (1.999, "good")]
)  # one more is the frame's
def test_where_waiting_for_a_batch_gets_a_warning(wait: float, level: str) -> None:
    assert report("data_loading", loading(wait)).verdict.level == level


def test_a_loader_in_the_training_process_is_said_to_be_one_with_what_runs_in_it() -> None:
    assert "in the training process" not in report("data_loading", loading(40)).verdict.sentence
    made = Made()
    for number, at in made.steps(100, 2):
        made.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 30)
        made.add("python_function", "data.py(10): read", at + 1, at + 30)
        made.add("python_function", "data.py(20): decode", at + 5, at + 9)
        made.add("python_function", "data.py(20): decode", at + 10, at + 20 + number)
        made.add("python_function", "data.py(30): other", at + 6, at + 8, track=BACKWARD)  # of another thread
        made.add("python_function", "train.py(5): step", at + 40, at + 50)
    trace = made.trace()
    found = report("data_loading", trace)
    assert "loaded in the training process (num_workers=0)" in found.verdict.sentence
    rows = found.table("functions").rows
    assert {row["function"].split()[1]: row["count"] for row in rows.iter_rows(named=True)} == {
        "read()": 2,
        "decode()": 4,
    }
    times = {row["function"].split()[1]: row["total_ns"] for row in rows.iter_rows(named=True)}
    assert times == {"read()": 29_000, "decode()": 29_000}  # own time, without the others'
    decode = rows.filter(rows["function"].str.contains("decode")).row(0, named=True)
    assert (decode["per_step"], decode["per_step_ns"]) == (2, 14_500)
    assert trace.ends[decode["event"]] - trace.starts[decode["event"]] == 11_000  # the longest


def test_recompiles_and_compiling_in_the_window() -> None:
    made = (
        Made()
        .step(1, 0, 100)
        .op("Torch-Compiled Region: 0/0", 0, 10)
        .op("Torch-Compiled Region: 1/2", 10, 20)
    )
    found = report("compile", made.trace())
    assert (found.fact("regions"), found.fact("recompiled"), found.verdict.level) == (2, 1, "warn")
    made.add("annotation", "compile_fx_inner (dynamo_timed)", 30, 90)
    found = report("compile", made.trace())
    assert (found.fact("compile_ns"), found.verdict.level) == (60_000, "bad")
    assert isinstance(run("compile", loading(40)), Unavailable)


def test_memory_peaks_where_the_allocator_says() -> None:
    from tuiprof.formats import open_trace

    trace = open_trace(real_traces.path("particle-a100-memory-events.json.gz"))
    found = report("memory", trace)
    assert trace.instants is not None
    assert found.fact("peak_bytes") == trace.instants["total_allocated"].max()
    held = found.table("held").rows
    assert held["bytes"].sum() == found.fact("peak_bytes")
    assert (held["share"] <= 1).all()


def test_a_difference_is_sure_only_beyond_the_spread() -> None:
    same = compare(loading(40), loading(40))
    assert "takes the same" in same.verdict.sentence

    def steps(*lengths: int) -> Trace:
        made, at = Made(), 0
        for number, length in enumerate(lengths):
            made.step(number, at, at + length).launch(
                "k", (at, at + 5), (at + 6, at + length - 1), number + 1
            )
            at += length
        return made.trace()

    faster = compare(steps(100, 101, 99, 100, 102), steps(80, 81, 79, 80, 80))
    assert faster.verdict.sentence.startswith(
        "under the profiler, a step is 1.25× faster: 100 µs before, 80.0 µs after"
    )
    assert (faster.fact("sure"), faster.verdict.level) == ("yes", "good")
    assert faster.table("kernels").rows["change_ns"][0] == pytest.approx((80 - 100.4) * 1000)
    noisy = compare(steps(100, 140, 60, 100, 120), steps(90, 130, 50, 95, 115))
    assert str(noisy.fact("sure")).startswith("no")
    assert noisy.verdict.sentence.startswith("under the profiler, a step may be 1.053× faster")
    few = compare(steps(100, 100), steps(80, 80))
    assert "unknown" in str(few.fact("sure"))


@pytest.mark.parametrize("name", sorted(available()))
@pytest.mark.parametrize(
    "trace",
    [
        Made().op("aten::mm", 0, 1).trace(),
        Made().call("cudaLaunchKernel", 0, 1).trace(),
        Made().kernel("k", 0, 0).trace(),
        Made().kernel("k", 0, 5, 3).trace(),
        Made().launch("k", (5, 6), (0, 2), 1).trace(),
        Made().step(1, 0, 0).trace(),
        Made().call("cudaDeviceSynchronize", 0, 1).launch("k", (2, 3), (4, 5), 1).trace(),
    ],
    ids=["cpu", "lost", "zero", "orphan", "skewed", "empty-step", "bare-sync"],
)
@pytest.mark.parametrize(
    "window", [Window(), Window(1_000, 2_000), Window(50_000, 60_000)], ids=["all", "part", "beyond"]
)
def test_odd_traces_and_windows_get_an_answer_or_a_reason(name: str, trace: Trace, window: Window) -> None:
    found = run(name, trace, window)
    if isinstance(found, Report):
        assert found.verdict.sentence
        for fact in found.facts:
            if fact.kind == "share" and fact.value is not None:
                assert 0 <= float(fact.value) <= 1, fact
    else:
        assert found.reason


def ahead(host: int, device: int, steps: int = 5) -> Trace:
    """Make a trace whose steps take this on the host and on the device, µs; the host is never held back."""
    made = Made()
    for number in range(steps):
        made.step(number, number * host, (number + 1) * host)
        begin = 10 + number * max(host, device)
        made.launch("gemm", (number * host + 1, number * host + 3), (begin, begin + device), number + 1)
    return made.trace()


def test_a_step_takes_what_the_device_needs_where_the_host_runs_ahead() -> None:
    found = report("steps", ahead(host=40, device=100))
    assert (found.fact("step_median_ns"), found.fact("step_period_ns")) == (40_000, 100_000)
    assert "100 µs a step" in found.verdict.sentence
    assert "the host runs ahead at 40.0 µs a step" in found.verdict.sentence
    assert found.fact("steps_per_second") == pytest.approx(10_000)
    beside = report("steps", ahead(host=100, device=40))
    assert (beside.fact("step_median_ns"), beside.fact("step_period_ns")) == (100_000, 100_000)
    assert "ahead" not in beside.verdict.sentence


@pytest.mark.parametrize(("device", "runs_ahead"), [(105, True), (104, False)])
def test_the_host_runs_ahead_from_5_percent_on(device: int, runs_ahead: bool) -> None:
    found = report("steps", ahead(host=100, device=device))
    assert found.fact("step_period_ns") == (device if runs_ahead else 100) * 1000
    assert ("the host runs ahead" in found.verdict.sentence) == runs_ahead


def test_two_steps_are_enough_to_see_the_host_run_ahead() -> None:
    assert report("steps", ahead(host=40, device=100, steps=2)).fact("step_period_ns") == 100_000
    assert report("steps", ahead(host=40, device=100, steps=1)).fact("step_period_ns") == 40_000


def test_slow_steps_are_said_to_take_what_they_take_beyond_the_median() -> None:
    made = Made()
    for number in range(8):
        at = number * 100 if number < 7 else 900
        length = 300 if number == 6 else 100
        made.step(number, at, at + length)
        made.op("aten::mm", at, at + length)
        if number == 6:
            made.op("enumerate(DataLoader)#_It.__next__", at + 10, at + 200)
    said = report("steps", made.trace()).verdict.sentence
    assert "; 1 slow step took 200 µs longer, 190 µs of that data loading" in said


def test_compare_does_not_take_a_host_that_runs_ahead_for_a_faster_step() -> None:
    found = compare(ahead(host=100, device=100), ahead(host=50, device=100))
    assert "takes the same" in found.verdict.sentence
    metrics = found.table("metrics").rows
    assert metrics.filter(metrics["key"] == "step_period_ns")["after_value"].to_list() == [100_000]


def test_compare_matches_a_sync_whose_line_moved() -> None:

    def waits(line: int, syncs: int) -> Trace:
        made = Made()
        for number, at in made.steps(100):
            made.launch("k", (at, at + 5), (at + 6, at + 40), number * 10 + 1)
            for turn in range(syncs):
                begin = at + 10 + turn * 20
                made.op("aten::item", begin, begin + 16).call("cudaStreamSynchronize", begin + 1, begin + 15)
                made.site(begin + 16.5, f"train.py:{line} step")
            made.launch("l", (at + 60, at + 65), (at + 66, at + 90), number * 10 + 2)
        return made.trace()

    rows = compare(waits(31, 2), waits(47, 1)).table("syncs").rows
    assert rows.select("name", "before_count", "after_count").rows() == [("train.py:47 ← item", 2.0, 1.0)]


def test_kernel_times_of_several_devices_are_said_to_be_sums() -> None:
    made = Made().step(0, 0, 200)
    for device in (0, 1):
        made.launch("k", (10 + device, 11 + device), (20, 190), 1 + device, device=device)
        report = run("kernels", made.trace())
        assert isinstance(report, Report)
        said = any("sums over 2 devices" in note for note in report.notes)
        assert said == bool(device)


def test_no_figures_a_step_of_kernels_that_are_mostly_outside_of_the_steps() -> None:
    made = Made().step(0, 0, 200).launch("inside", (10, 15), (20, 60), 1)
    made.launch("behind", (210, 215), (220, 320), 2)
    report = run("kernels", made.trace())
    assert isinstance(report, Report)
    assert report.notes[0] == "71.4 % of the work lies outside the steps."
    shown = {column.key for column in report.table("kinds").columns if not column.hidden}
    assert shown.isdisjoint({"per_step_ns", "per_step"})
    assert {"total_ns", "count"} <= shown
