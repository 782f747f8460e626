"""The replayed step: unchanged it is what was captured, and a change never wins what it cannot.

Where a change saves its time, and when everything happens with it, are read off the replayed step too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from analyses.made import BACKWARD, Made
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.advice import losses_of, priorities
from tuiprof.analyses import run
from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.replay import replayed
from tuiprof.analyses.shared.scope import Scope
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.model.steps import Uncaptured
from tuiprof.resources import shipped
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.replay import TOLERANCE, Calibrated, Losses, Replay, instants

SAMPLES = sorted(path.name for path in shipped("traces").glob("*.gz"))


def step_of(trace: Trace) -> Calibrated:
    found = replayed(trace)
    assert isinstance(found, Calibrated), found
    return found


def step_after(step: Calibrated, edit: Edit) -> float:
    return Replay(step.graph, step.scale).step_ns(edit)


def without_waits(trace: Trace) -> Edit:
    frame = _wait_table.build(trace, Scope.of(trace, Window())).frame
    return _wait_table.without(trace, frame)


def shrunk(trace: Trace, keep: float) -> Edit:
    work = trace.device_work
    return Edit(work=work, keep=np.full(len(work), keep))


@pytest.mark.parametrize("name", SAMPLES)
def test_unchanged_a_real_step_takes_what_was_captured(name: str) -> None:
    step = step_of(open_trace(shipped("traces") / name))
    assert step.error <= TOLERANCE
    assert step.graph.step_count > 1
    # In steady state it takes at least what its device works.
    assert step.captured_ns >= 0.999 * step.graph.device_busy_ns


def test_a_step_of_a_session_takes_what_the_session_measured_without_the_profiler() -> None:
    [path] = (shipped("traces") / "session-metrics-naive" / "traces").glob("*.gz")
    step = step_of(open_trace(path))
    assert step.basis == "session"
    assert step.uncaptured is not None
    assert step.step_ns == step.uncaptured.step_ns < step.captured_ns
    assert step.replayed_ns == pytest.approx(step.step_ns, rel=0.005)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Steps of operators that launch kernels on two streams, and of waits for all that was launched."""
    made, at = Made(), 0.0
    free = {7: 0.0, 8: 0.0}
    for number in range(draw(st.integers(1, 3))):
        begin = at
        for _ in range(draw(st.integers(1, 6))):
            at += draw(st.integers(1, 60))
            if draw(st.booleans()):
                stream = draw(st.sampled_from([7, 8]))
                start = max(at + draw(st.integers(3, 12)), free[stream] + draw(st.integers(0, 3)))
                end = start + draw(st.integers(1, 200))
                made.op("aten::mm", at, at + 6).launch(
                    "gemm",
                    (at + 1, at + 4),
                    (start, end),
                    stream=stream,
                    track=2 if stream == 7 else 3,
                )
                free[stream], at = end, at + 6
            elif draw(st.booleans()):
                made.call(draw(st.sampled_from(["cudaEventRecord", "cudaStreamWaitEvent"])), at, at + 1)
                at += 2
            else:
                end = max([at + 2, *(done + 1 for done in free.values())])
                made.call("cudaDeviceSynchronize", at, end)
                at = end
        at += draw(st.integers(1, 30))
        made.step(number, begin, at)
    return made.trace()


@given(traces())
def test_what_holds_for_every_step(trace: Trace) -> None:
    step = step_of(trace)
    assert step.error <= TOLERANCE
    whole, nothing, half = step.step_ns, Edit(), shrunk(trace, 0.5)
    waits = without_waits(trace)
    assert step.likely_ns(nothing) == 0
    for edit in (half, waits, half | waits, shrunk(trace, 0.0)):
        win = step.win(edit)
        assert 0 <= win.low_ns <= win.ns <= win.high_ns <= whole
    # Two changes never win less than one of them.
    deep = shrunk(trace, 0.2)  # of the same kernels
    for one, other in ((half, waits), (half, deep), (deep, half)):
        assert step.likely_ns(one | other) >= max(step.likely_ns(one), step.likely_ns(other)) - 1


@given(traces())
def test_no_step_is_launch_bound_for_longer_than_its_device_idles(trace: Trace) -> None:
    report = run("kernel_launches", trace)
    if isinstance(report, Unavailable):
        return
    step, bound = step_of(trace), report.fact("launch_bound_share")
    assert isinstance(bound, float)
    assert 0 <= bound <= max(1 - step.graph.device_busy_ns / step.step_ns, 0.0) + 1e-9


@given(traces(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_shorter_kernels_never_make_a_step_longer(trace: Trace, one: float, other: float) -> None:
    step, (short, long) = step_of(trace), sorted((one, other))
    assert step_after(step, shrunk(trace, short)) <= step_after(step, shrunk(trace, long)) + 1


def test_a_wait_after_which_nothing_is_launched_wins_nothing() -> None:
    made = Made().step(1, 0, 42_300).op("aten::mm", 0, 10).launch("gemm", (0, 5), (10, 42_000))
    made.call("cudaDeviceSynchronize", 20, 42_010)
    trace = made.trace()
    assert step_of(trace).likely_ns(without_waits(trace)) < 300_000, "the host's own 300 µs, not the 42 ms"


def test_a_host_that_runs_ahead_is_paced_by_its_device() -> None:
    made = Made()
    for number, at in made.steps(30):
        busy = 10 + number * 100
        made.launch("gemm", (at + 1, at + 3), (busy, busy + 99))
    step = step_of(made.trace())
    assert step.captured_ns == pytest.approx(100_000, rel=0.01)
    assert step.likely_ns(shrunk(made.trace(), 0.5)) == pytest.approx(49_500, rel=0.02)


def test_work_that_was_launched_before_the_capture_keeps_no_ordinary_step_waiting() -> None:
    made, at = Made().kernel("gemm", 0, 500, correlation=99), 100
    for number in range(3):
        begin = 500 if number == 0 else at + 10
        made.step(number, at, begin + 105).launch("gemm", (at + 1, at + 3), (begin, begin + 99))
        made.call("cudaStreamSynchronize", at + 5, begin + 100)
        at = begin + 105
    step = step_of(made.trace())
    assert step.trusted
    assert step.graph.last_captured_ns.max() > 600_000, (
        "the first of three waits for what was launched before"
    )
    assert step.captured_ns == pytest.approx(115_000, rel=0.02)


def test_work_behind_another_stream_waits_for_it_without_what_was_between() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.launch("gemm", (at + 2, at + 5), (at + 10, at + 100))
        made.launch("reduce", (at + 10, at + 15), (at + 20, at + 800), stream=20, track=3)
        # Launched early, after the gemm had ended: held back by the other stream, not by its launch.
        made.launch("copy", (at + 300, at + 305), (at + 801, at + 810))
        made.launch("update", (at + 310, at + 315), (at + 811, at + 900))
        made.call("cudaDeviceSynchronize", at + 330, at + 905)
    trace = made.trace()
    step = step_of(trace)
    copies = trace.device_work[trace.named("copy", trace.device_work)]
    assert step.captured_ns == pytest.approx(1_000_000, rel=0.01)
    assert step.likely_ns(Edit(work=copies, keep=np.zeros(len(copies)))) <= 20_000


@pytest.mark.parametrize("ordered", [True, False])
def test_streams_that_wait_for_each_other_do_not_overlap_when_launches_come_sooner(ordered: bool) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.launch("one", (at + 300, at + 305), (at + 310, at + 410))
        if ordered:
            made.call("cudaEventRecord", at + 320, at + 321)
            made.call("cudaStreamWaitEvent", at + 600, at + 601)
        made.launch("two", (at + 700, at + 705), (at + 710, at + 810), stream=20, track=3)
        if ordered:
            made.call("cudaEventRecord", at + 720, at + 721)
            made.call("cudaStreamWaitEvent", at + 990, at + 991)
    step = step_of(made.trace())
    faster = HostTime(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, 4_000_000), np.full(1, 0.01))
    assert step.captured_ns == pytest.approx(1_000_000, rel=0.01)
    took = step_after(step, Edit(host=faster))  # nothing is launched after the last of the waits
    assert took > 170_000 if ordered else took == pytest.approx(100_000, rel=0.05)


@pytest.mark.parametrize(
    ("calls", "takes_us"),
    [
        # The third stream waits once: for the second, which was launched to last, not for the first.
        ((("one", 500), ("two", 100), "record", "wait", ("three", 450)), 555),
        ((("one", 500), ("two", 100), "record", "wait", "record", "wait", ("three", 450)), 955),
        # What is launched after the event is recorded is not waited for.
        ((("one", 100), "record", ("two", 500), "wait", ("three", 450)), 555),
        # A stream does not wait for itself.
        ((("one", 500), ("three", 100), "record", "wait", ("three", 450)), 955),
        # The last event is one of the step before.
        ((("one", 500), ("two", 100), "wait", ("three", 450), "record"), 505),
    ],
)
def test_a_stream_waits_for_what_was_launched_to_last(
    calls: Sequence[str | tuple[str, int]], takes_us: int
) -> None:
    tracks = {"one": (7, 2), "two": (20, 3), "three": (21, 4)}
    made = Made()
    for _, at in made.steps(5000):
        for call in calls:
            at += 600
            if isinstance(call, str):
                made.call("cudaEventRecord" if call == "record" else "cudaStreamWaitEvent", at, at + 1)
                continue
            (stream, track), (name, length) = tracks[call[0]], call
            work = (at + 7, at + 7 + length)
            made.launch(name, (at + 2, at + 5), work, stream=stream, track=track)
        made.call("cudaDeviceSynchronize", at + 600, at + 601)
    step = step_of(made.trace())
    faster = HostTime(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, 20_000_000), np.full(1, 0.001))
    assert step_after(step, Edit(host=faster)) == pytest.approx(takes_us * 1000, rel=0.05)


@pytest.mark.parametrize(("recorded_on", "takes_us"), [("one", 955), ("two", 555), (None, 555)])
def test_a_stream_waits_for_the_event_that_the_profiler_recorded(
    recorded_on: str | None, takes_us: int
) -> None:
    """Two streams record events and a third waits for one of them; unless it is known, for the last one."""
    tracks, made, waits = {"one": (7, 2), "two": (20, 3), "three": (21, 4)}, Made(), []
    for number, at in made.steps(5000):
        first = number * 10 + 1
        for index, (name, length) in enumerate((("one", 500), ("two", 100), ("three", 450))):
            begin, (stream, track) = at + 1000 * index + 600, tracks[name]
            work = (begin + 7, begin + 7 + length)
            made.launch(name, (begin + 2, begin + 5), work, stream=stream, track=track)
            if name != "three":
                made.call("cudaEventRecord", begin + 10, begin + 11, correlation=1000 + first + index)
        made.call("cudaStreamWaitEvent", at + 2500, at + 2501, correlation=2000 + first)
        made.call("cudaDeviceSynchronize", at + 4500, at + 4501)
        if recorded_on is not None:
            record = 1000 + first + list(tracks).index(recorded_on)
            waits.append((2000 + first, record, tracks[recorded_on][0], tracks["three"][0]))
    trace = made.trace()
    if waits:
        schema = ["correlation", "record", "recorded_on", "stream"]
        trace.event_waits = pl.DataFrame(waits, schema=schema, orient="row")
    faster = HostTime(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, 20_000_000), np.full(1, 0.001))
    assert step_after(step_of(trace), Edit(host=faster)) == pytest.approx(takes_us * 1000, rel=0.05)


@pytest.mark.parametrize("known", [False, True])
def test_the_host_waits_only_for_what_was_launched_before_the_recorded_event(known: bool) -> None:
    made, waits = Made(), []
    for number, at in made.steps(2000):
        first = number * 10 + 1
        made.launch("one", (at + 10, at + 15), (at + 20, at + 120))
        made.call("cudaEventRecord", at + 130, at + 131, correlation=1000 + first)
        made.launch("two", (at + 140, at + 145), (at + 150, at + 950))
        made.call("cudaEventSynchronize", at + 1000, at + 1001, correlation=2000 + first)
        waits.append((2000 + first, 1000 + first, 7, None))
        made.launch("three", (at + 1010, at + 1015), (at + 1020, at + 1900), stream=20, track=3)
        made.call("cudaDeviceSynchronize", at + 1950, at + 1951)
    trace = made.trace()
    if known:
        schema = dict.fromkeys(("correlation", "record", "recorded_on", "stream"), pl.Int64)
        trace.event_waits = pl.DataFrame(waits, schema=schema, orient="row")
    faster = HostTime(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, 8_000_000), np.full(1, 0.001))
    # Its third kernel runs beside the second one if the host does not wait for that.
    takes_us = 1000 if known else 1800
    assert step_after(step_of(trace), Edit(host=faster)) == pytest.approx(takes_us * 1000, rel=0.05)


@pytest.mark.parametrize("name", ["gemm", "Memcpy HtoD (Pinned -> Device)"])
def test_kernels_share_the_device_and_overlap_only_as_far_as_in_the_capture(name: str) -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.launch("gemm", (at + 10, at + 15), (at + 20, at + 420))
        made.call("cudaDeviceSynchronize", at + 20, at + 430)
        made.launch(name, (at + 440, at + 445), (at + 450, at + 850), stream=20, track=3)
        if name != "gemm":
            made.rows[-1]["category"] = "memcpy"
        made.call("cudaDeviceSynchronize", at + 450, at + 860)
    trace = made.trace()
    step, waits = step_of(trace), without_waits(trace)
    win = step.win(waits)
    assert win.ns == pytest.approx(200_000 if name == "gemm" else 600_000, rel=0.2)
    assert win.high_ns == pytest.approx(600_000, rel=0.3)


def test_streams_that_overlap_do_not_wait_for_each_other() -> None:
    made = Made()
    for _, at in made.steps(1000):
        made.launch("one", (at + 300, at + 305), (at + 310, at + 900))
        made.call("cudaEventRecord", at + 320, at + 321).call("cudaStreamWaitEvent", at + 322, at + 323)
        made.launch("two", (at + 400, at + 405), (at + 410, at + 810), stream=20, track=3)
    step = step_of(made.trace())
    assert step_after(
        step, Edit(host=HostTime(*(np.zeros(1, np.int64),) * 2, np.full(1, 1), np.ones(1)))
    ) == (pytest.approx(1_000_000, rel=0.01))
    faster = HostTime(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, 4_000_000), np.full(1, 0.01))
    assert step_after(step, Edit(host=faster)) == pytest.approx(600_000, rel=0.05)


def add_step_with_backward_thread(made: Made, number: int) -> None:
    """Add a step of 1 ms in which the main thread waits for a backward pass, of 600 µs, on another thread."""
    at = number * 1000
    made.step(number, at, at + 1000).op("aten::mm", at + 5, at + 100)
    made.launch("forward", (at + 20, at + 25), (at + 30, at + 60))
    made.op("autograd::engine::evaluate_function: MmBackward0", at + 200, at + 800, track=BACKWARD)
    made.launch("backward", (at + 700, at + 705), (at + 710, at + 760), thread=BACKWARD)


def test_the_main_thread_goes_on_when_the_backward_thread_has_done_its_part() -> None:
    made = Made()
    for number in range(2):
        add_step_with_backward_thread(made, number)
        made.op("aten::add_", number * 1000 + 820, number * 1000 + 990)
    trace = made.trace()
    step = step_of(trace)
    assert step.captured_ns == pytest.approx(1_000_000)
    half = HostTime(
        np.full(2, BACKWARD), np.array([200_000, 1_200_000]), np.array([800_000, 1_800_000]), np.full(2, 0.5)
    )
    assert step.likely_ns(Edit(host=half)) == pytest.approx(300_000, rel=0.01)


def test_what_follows_the_backward_thread_is_drawn_after_it() -> None:
    made = Made()
    for number in range(2):
        at = number * 1000
        add_step_with_backward_thread(made, number)
        made.add("annotation", "Optimizer.step#Adam.step", at + 810, at + 990)
        made.op("aten::add_", at + 860, at + 990)
        made.launch("update", (at + 870, at + 875), (at + 880, at + 890))
    found = instants(step_of(made.trace()))
    begins = np.array([810_000, 1_810_000])
    assert np.interp(begins, found.captured, found.replayed) == pytest.approx(begins, abs=2_000)


@pytest.mark.parametrize("model", ["GPT #1, no gradients", "Blocks", "tuiprof.inputs"])
def test_what_the_probe_does_to_name_a_call_is_no_part_of_the_step(model: str) -> None:
    """In a capture, it looks at the model between the begin of a phase and that of the call's range.

    For a part of a model it has a range of its own.
    """
    made = Made()
    for _, at in made.steps(3000):
        made.add("annotation", "forward", at + 100, at + 2900)
        looks = model.startswith("tuiprof")
        made.add("annotation", model, at + (110 if looks else 1600), at + (1600 if looks else 2890))
        for i in range(20):
            made.op("aten::mm", at + 1610 + i * 60, at + 1665 + i * 60)
        made.launch("gemm", (at + 1620, at + 1625), (at + 1630, at + 1640))
    trace = made.trace(format="kineto")
    named = model != "Blocks"
    assert step_of(trace).replayed_ns < 1_500_000 if named else step_of(trace).replayed_ns > 2_500_000
    assert ("python-time" in [item.rule for item in priorities(trace).findings]) != named


def test_recorded_events_are_what_the_profiler_is_charged_for() -> None:
    """Half of the step is operators, half a Python loop: only the former is shorter without the profiler."""
    made = Made()
    for _, at in made.steps(1000, 3):
        for i in range(50):
            made.op("aten::add", at + i * 10, at + i * 10 + 9)
        made.launch("add", (at + 495, at + 498), (at + 500, at + 510))
    trace = made.trace(format="kineto")
    trace.uncaptured = Uncaptured(40, 700_000.0, 690_000.0, 710_000.0)
    step = step_of(trace)
    assert (step.basis, step.step_ns) == ("session", 700_000)
    assert step.replayed_ns == pytest.approx(700_000, rel=0.002)
    loop = HostTime(
        np.zeros(3, dtype=np.int64),
        np.array([500_000, 1_500_000, 2_500_000]),
        np.array([1_000_000, 2_000_000, 3_000_000]),
        np.zeros(3),
    )
    assert step.likely_ns(Edit(host=loop)) == pytest.approx(500_000, rel=0.03), (
        "the loop is as long as captured"
    )


def test_the_probe_holds_no_other_thread_for_the_replay() -> None:
    """A synchronise that the profiler makes at the end of its window takes no time of the step."""
    made = Made().step(1, 0, 200).launch("gemm", (0, 5), (10, 150)).call("cudaDeviceSynchronize", 20, 152)
    trace = made.trace()
    assert _waits.find(trace, Window()).apart.tolist() == [_waits.BY_PROFILER]
    assert step_of(trace).captured_ns < 150_000


SESSIONS = Path(__file__).parents[3] / "shared" / "whatif"


def _recorded() -> list[Path]:
    """Return the samples, and the sessions of steps with a planted cost where they are at hand."""
    samples = sorted(Path(__file__).parents[2].glob("traces/*.json.gz"))
    return samples + sorted(SESSIONS.glob("*/traces/*.json.gz"))


@pytest.mark.skipif(
    not (SESSIONS / "truth.json").exists(), reason="needs recorded sessions that are not in a clone"
)
def test_steps_of_an_h100_are_replayed_as_they_were_without_the_profiler() -> None:
    for case in json.loads((SESSIONS / "truth.json").read_text())["cases"]:
        [path] = (SESSIONS / case / "traces").glob("*.json.gz")
        step = step_of(open_trace(path))
        assert step.error < 0.001, case
        assert step.replayed_ns == pytest.approx(step.step_ns, rel=0.03), case
        assert Replay(step.graph).step_ns() >= 0.99 * step.graph.device_busy_ns, case


#: From this share of step without the profiler on the device sets the pace.
GPU_BOUND = 0.9


@pytest.mark.parametrize("path", _recorded(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_recorded_step_that_the_device_fills_is_called_launch_bound(path: Path) -> None:
    trace = open_trace(path)
    step = replayed(trace)
    if isinstance(step, str) or step.graph.device_busy_ns < GPU_BOUND * step.step_ns:
        return
    report = run("kernel_launches", trace)
    assert isinstance(report, Report)
    assert report.fact("launch_bound") == "no"
    assert "launch-bound" not in [item.rule for item in priorities(trace).findings]


@pytest.fixture(scope="module")
def naive() -> Trace:
    return open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")


def place_of(trace: Trace, rule: str) -> int:
    return [item.rule for item in priorities(trace).findings].index(rule)


def test_what_is_lost_adds_up_to_what_the_change_saves(naive: Trace) -> None:
    step = replayed(naive)
    assert isinstance(step, Calibrated)
    for place, item in enumerate(priorities(naive).findings):
        found = losses_of(naive, Window(), place)
        assert isinstance(found, Losses)
        assert item.win is not None
        assert found.ns.sum() == pytest.approx(item.win.ns * step.graph.step_count)
        assert (found.ns > 0).all()
        assert (found.starts[1:] >= found.ends[:-1]).all()
        assert step.graph.low <= found.starts[0]
        assert found.ends[-1] <= naive.span[1]


def test_a_wait_costs_where_the_device_runs_dry_behind_it_and_a_kernel_where_it_runs(naive: Trace) -> None:
    waiting = losses_of(naive, Window(), place_of(naive, "nan-check"))
    layout = losses_of(naive, Window(), place_of(naive, "channels-last"))
    assert isinstance(waiting, Losses)
    assert isinstance(layout, Losses)
    idle, busy = [], naive.busy(naive.device_indices[0])
    for found in (waiting, layout):
        middle = (found.starts + found.ends) // 2
        at = np.searchsorted(busy[0], middle, side="right") - 1
        works = (at >= 0) & (busy[1][np.maximum(at, 0)] > middle)
        idle.append(float(found.ns[~works].sum() / found.ns.sum()))
    assert idle[0] > 0.8, "what a wait costs is idle time"
    assert idle[1] < 0.1, "what kernels cost is their own time"


def test_with_a_change_everything_ends_earlier_and_what_goes_is_gone(naive: Trace) -> None:
    step = replayed(naive)
    assert isinstance(step, Calibrated)
    edit = priorities(naive).findings[place_of(naive, "channels-last")].finding.edit
    assert edit is not None
    now, then = instants(step), instants(step, edit)
    saved = (now.end_ns - then.end_ns) / step.graph.step_count
    assert saved == pytest.approx(step.likely_ns(edit), rel=0.05)
    assert len(now.work) == int((step.graph.kind == 2).sum())
    assert not np.isin(edit.work[edit.keep == 0], then.work).any()
    assert (np.diff(then.replayed) >= 0).all()
    # The step that is not changed takes as long as the one it was replayed from, from its first call on.
    assert now.of_host(np.array([step.graph.low]))[0] == pytest.approx(step.graph.low, abs=1)


def test_without_a_change_nothing_is_lost(naive: Trace) -> None:
    from tuiprof.whatif.replay import losses

    step = replayed(naive)
    assert isinstance(step, Calibrated)
    assert len(losses(naive, step, Edit(), 0.0).ns) == 0


def test_figures_as_captured_are_larger_and_the_trace_stays_as_it_is(naive: Trace) -> None:
    other = naive.captured()
    plain, captured = replayed(naive), replayed(other)
    assert isinstance(plain, Calibrated)
    assert isinstance(captured, Calibrated)
    assert captured.basis == "none"
    assert captured.step_ns == pytest.approx(plain.captured_ns)
    assert captured.step_ns > plain.step_ns
    assert not naive.as_captured
    assert replayed(naive) is plain


def test_of_a_long_trace_it_is_said_where_the_replayed_steps_end(
    naive: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuiprof.analyses.shared import replay

    monkeypatch.setattr(replay, "MAX_LAUNCHES", 600)
    short = naive.captured()  # nothing is kept of the replay of all steps
    step, found = replayed(short), losses_of(short, Window(), place_of(short, "nan-check"))
    assert isinstance(step, Calibrated)
    assert isinstance(found, Losses)
    assert step.graph.step_count == 1
    assert found.high == step.graph.high < short.span[1]
    assert found.ends[-1] <= found.high


def allocating(call: str, at_last: str) -> Trace:
    """Steps with a call that returns once work of 500 µs is done; one in the last step returns 200 µs before that."""
    made = Made()
    for number, at in made.steps(1000, 6):
        last = number == 5
        made.launch("work", (at + 5, at + 8), (at + 10, at + 510))
        end = at + (310 if last else 512)
        made.call(at_last if last else call, at + 200, end)
        made.launch("work", (end + 300, end + 303), (end + 304, end + 310))
        made.call("cudaHostAlloc", at + 900, at + 901)
    return made.trace()


@pytest.mark.parametrize(
    ("call", "at_last", "waits"),
    [
        ("cudaMalloc", "cudaMalloc", False),
        ("cudaMalloc", "cudaFree", True),  # that kind does not wait
        ("cudaDeviceSynchronize", "cudaDeviceSynchronize", True),  # whatever the clocks say
    ],
)
def test_calls_of_the_allocator_of_a_kind_that_returned_beside_pending_work_do_not_wait(
    call: str, at_last: str, waits: bool
) -> None:
    trace = allocating(call, at_last)
    step = step_of(trace)
    without = Edit(waits=np.flatnonzero(trace.named(f"^{call}$")))
    assert (step_after(step, without) < 0.9 * step_after(step, Edit())) == waits
