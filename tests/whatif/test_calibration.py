"""A step without the profiler: what is taken away, what cannot be placed, and how sure a prediction is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analyses.made import Made, site
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import replay as shared
from tuiprof.analyses.shared.replay import replayed, trust
from tuiprof.model import Trace
from tuiprof.model.steps import Uncaptured
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.graph import WAIT, WORK
from tuiprof.whatif.replay import NOISE, Calibrated, Replay


def step_of(trace: Trace, uncaptured: Uncaptured | None = None) -> Calibrated:
    trace.info = replace(trace.info, format="kineto")
    trace.uncaptured = uncaptured
    found = replayed(trace)
    assert isinstance(found, Calibrated), found
    return found


def operators(
    *, slow_at: tuple[int, ...] = (), slow_us: float = 5_000, steps: int = 4, works: float = 5
) -> Trace:
    """Steps of twenty operators of 40 µs; in some steps one of them is preempted."""
    made, at = Made(), 0.0
    for number in range(steps):
        begin = at
        for index in range(20):
            took = 40 + (slow_us if number in slow_at and index == 7 else 0)
            made.op("aten::mm", at, at + took - 5)
            made.launch("gemm", (at + 2, at + 6), (at + 9, at + 9 + works))
            at += took
        made.step(number, begin, at)
    return made.trace()


@pytest.mark.parametrize(("works_us", "scale"), [(34, 1.8), (24, 0.0)])
def test_the_host_does_not_limit_a_step_that_the_device_nearly_fills_and_a_capture_does_not_slow(
    works_us: float, scale: float
) -> None:
    """The device works for 85 or 60 % of the step; the first host is taken to be as in other sessions."""
    assert step_of(operators(works=works_us), Uncaptured(40, 8.1e5, 8e5, 8.2e5)).scale == scale


def test_device_work_that_takes_longer_while_captured_than_a_step_does_shrinks_as_a_whole() -> None:
    """Half of it is left out, which saves half of the session's step."""
    made, correlation = Made(), 0
    for _, at in made.steps(110, 4):
        for index in range(10):
            correlation += 1
            begin, works = at + 5 + 10 * index, 20.0 + 50 * (correlation - 1)
            made.op("aten::mm", begin, begin + 8)
            made.launch("gemm", (begin + 2, begin + 5), (works, works + 50))
    trace = made.trace()
    step = step_of(trace, Uncaptured(40, 4.5e5, 4.5e5, 4.5e5))
    assert step.likely_ns(Edit.of_work(trace.device_work[::2])) == pytest.approx(2.25e5, rel=0.01)


def with_a_graph(kernels: int) -> Trace:
    """Steps of twenty operators of 40 µs, and a launch of 400 µs of a CUDA graph with so many kernels."""
    made, at, correlation = Made(), 0.0, 0
    for number in range(4):
        begin = at
        for _ in range(20):
            correlation += 1
            made.op("aten::mm", at, at + 35).launch("gemm", (at + 2, at + 6), (at + 9, at + 10), correlation)
            at += 40
        correlation += 1
        made.call("cudaGraphLaunch", at + 5, at + 405, correlation=correlation)
        for kernel in range(kernels):
            made.kernel("gemm", at + 407 + kernel, at + 407.5 + kernel, correlation)
        at += 410
        made.step(number, begin, at)
    return made.trace()


def test_a_launch_of_many_kernels_takes_longer_while_each_of_them_is_recorded() -> None:
    left = []
    for kernels in (1, 150):
        trace = with_a_graph(kernels)
        step = step_of(trace, Uncaptured(40, 6e5, 6e5, 6e5))
        assert step.replayed_ns == pytest.approx(6e5, rel=0.01)
        launches = trace.host_events("^cudaGraphLaunch$")
        without = step.likely.step_ns(Edit.of_host(trace, launches))
        left.append(step.replayed_ns - without)
    assert left[0] > 250_000, "recorded once, it takes most of its 400 µs without the profiler, too"
    assert left[1] < 0.5 * left[0]


def phased(*interrupted: int) -> Trace:
    """Steps on a CPU of twenty operators of 40 µs, as many backward nodes, and an optimizer with ten operators.

    One operator of the optimizer takes 5 ms longer in some of the steps, not always the same.
    """
    made, at = Made(), 0.0
    for number in range(4):
        begin = at
        for index in range(50):
            later = 5_000 * (number in interrupted)
            if index == 40:
                made.add("annotation", "Optimizer.step#Adam.step", at, at + 400 + later)
            name = "aten::mm" if not 20 <= index < 40 else "autograd::engine::evaluate_function: MmBackward0"
            late = later * (index == 43 + number)
            sequence = 100 * number + (index if index < 20 else 39 - index) + 1
            made.op(name, at, at + 35 + late, sequence=sequence)
            at += 40 + late
        made.step(number, begin, at)
    return made.trace()


def left_us(step: Calibrated) -> list[float]:
    """Return what remains of the operators, the backward pass and the optimizer of a step, µs."""
    [clock] = step.graph.clocks
    passed = np.interp([0, 800e3, 1_600e3, 2_000e3], clock.at, clock.passed(step.scale))
    return [round(ns / 1e3) for ns in np.diff(passed)]


@pytest.mark.parametrize(("backward", "optimizer", "rest"), [(300, 40, 60), (60, 40, 300), (100, 160, 140)])
def test_each_phase_is_as_much_faster_without_the_profiler_as_the_session_says(
    backward: int, optimizer: int, rest: int
) -> None:
    slowed = {"backward": 1e3 * backward, "optimizer": 1e3 * optimizer, "": 1e3 * rest}
    step = step_of(phased(), Uncaptured(40, 1.6e6, 1.59e6, 1.61e6, slowed_ns=slowed))
    assert left_us(step) == pytest.approx([800 - rest, 800 - backward, 400 - optimizer], abs=5)


def test_an_operator_that_takes_longer_than_its_whole_phase_in_the_session_is_interrupted() -> None:
    session = Uncaptured(40, 1.6e6, 1.59e6, 1.61e6)
    known = replace(session, phases_ns={"backward": 640e3, "optimizer": 320e3})

    def saved_us(trace: Trace, seen: Uncaptured) -> float:
        optimizer = HostTime.of(trace, np.flatnonzero(trace.named("Optimizer")))
        return step_of(trace, seen).likely_ns(Edit(host=optimizer)) / 1e3

    interrupted = phased(1, 2, 3)  # three of four steps, and not at the same operator
    assert saved_us(interrupted, session) > 1_000
    assert saved_us(phased(1, 2, 3), known) < 500
    assert saved_us(phased(), known) == pytest.approx(320, rel=0.05)


def test_no_phase_of_a_step_is_recorded_for_nothing() -> None:
    slowed = {"backward": 500e3, "optimizer": -50e3, "": -50e3}
    step = step_of(phased(), Uncaptured(40, 1.6e6, 1.59e6, 1.61e6, slowed_ns=slowed))
    operators, backward, optimizer = left_us(step)
    assert operators + backward + optimizer == pytest.approx(1_600, abs=3)
    assert backward < operators < 790
    assert optimizer < 395


def test_phases_that_the_session_does_not_know_are_slowed_alike() -> None:
    step = step_of(phased(), Uncaptured(40, 1.6e6, 1.59e6, 1.61e6))
    operators, backward, optimizer = left_us(step)
    assert operators == pytest.approx(backward, rel=0.01)
    assert optimizer == pytest.approx(backward / 2, rel=0.01)


def test_what_holds_up_a_single_step_is_no_part_of_the_others() -> None:
    session = Uncaptured(40, 600_000.0, 590_000.0, 610_000.0)
    even, hiccup = step_of(operators(), session), step_of(operators(slow_at=(2,)), session)
    assert hiccup.captured_ns == pytest.approx(even.captured_ns + 5_000_000 / 4)
    # Recording costs what it costs in the other steps, and not the preemption as well.
    assert hiccup.scale == pytest.approx(even.scale, rel=0.02)
    assert hiccup.replayed_ns == pytest.approx(600_000, rel=0.01)


def test_what_holds_up_half_of_the_steps_is_no_part_of_the_median_one() -> None:
    session = Uncaptured(40, 600_000.0, 590_000.0, 610_000.0)
    assert step_of(operators(slow_at=(1, 3)), session).replayed_ns == pytest.approx(600_000, rel=0.01)


def test_what_takes_far_longer_than_the_long_ones_of_all_steps_is_a_hiccup() -> None:
    """A full garbage collection among those of young objects, some of which take long too."""
    made, at = Made(), 0.0
    for number in range(4):
        begin = at
        for index in range(20):
            made.op("aten::mm", at, at + 15).launch("gemm", (at + 2, at + 6), (at + 9, at + 12))
            took = {5: 300.0, 9: 5_000.0 if number == 1 else 25.0}.get(index, 25.0)
            made.add("annotation", "Python GC", at + 15, at + 15 + took)
            at += 15 + took
        made.step(number, begin, at)
    step = step_of(made.trace(), Uncaptured(40, 900_000.0, 890_000.0, 910_000.0))
    assert sum(float(clock.hiccup_ns.sum()) for clock in step.graph.clocks) == pytest.approx(
        4_975_000, rel=0.01
    )


def test_what_happens_in_most_steps_is_no_hiccup() -> None:
    session = Uncaptured(40, 5_500_000.0, 5_400_000.0, 5_600_000.0)
    often = step_of(operators(slow_at=(0, 2, 3)), session)
    assert not any(clock.hiccup_ns.any() for clock in often.graph.clocks)
    assert step_of(operators(slow_at=(1,))).replayed_ns > 1_500_000, (
        "without a session nothing is taken for one"
    )


@pytest.mark.parametrize(
    ("frames", "lag_us", "noted_us"), [(3, 10, 15), (13, 10, 25), (13, 18, 38), (3, 60, 0)]
)
def test_the_time_in_which_the_probe_notes_the_line_of_a_wait_is_no_part_of_a_step(
    frames: int, lag_us: float, noted_us: float
) -> None:
    """It stamps a site some µs after a read, and looks at each frame; one that comes far later is of something else."""
    made = Made()
    for _, at in made.steps(2_000):
        made.launch("gemm", (at + 2, at + 6), (at + 9, at + 12))
        made.op("aten::item", at + 100, at + 140).call("cudaStreamSynchronize", at + 110, at + 138)
        made.site(at + 140 + lag_us, *["train.py:9 log"] * frames)
        made.op("aten::mm", at + 178 + 200 * (lag_us > 38), at + 600)
    step = step_of(made.trace(), Uncaptured(40, 1.5e6, 1.4e6, 1.6e6))
    assert sum(float(clock.noting_ns.sum()) for clock in step.graph.clocks) == pytest.approx(4_000 * noted_us)
    assert step.captured_ns == pytest.approx(2e6), "the capture is replayed as it was"
    made.sites.clear()
    plain = step_of(made.trace(), Uncaptured(40, 1.5e6, 1.4e6, 1.6e6))
    assert (step.scale < plain.scale) == (noted_us > 0), "less of the rest is taken for the profiler's"


def test_all_lines_that_are_noted_in_a_stretch_take_time_but_not_known_calls() -> None:
    made = Made()
    for _, at in made.steps(2_000):
        made.launch("gemm", (at + 2, at + 6), (at + 9, at + 12))
        made.op("aten::item", at + 100, at + 140).op("aten::mm", at + 190, at + 600)
        made.site(at + 145, "train.py:9 log").site(at + 150, "train.py:9 log")
        made.sites.append(site(at + 145, "train.py:5 step") | {"dur_ns": 40_000})
    step = step_of(made.trace(), Uncaptured(40, 1.5e6, 1.4e6, 1.6e6))
    noted = sum(float(clock.noting_ns.sum()) for clock in step.graph.clocks)
    assert noted == pytest.approx(4_000 * 1.3 * (5 + 10))


def test_one_step_that_stands_out_is_no_habit_nor_are_pauses() -> None:
    usual = [1_000_000] * 17
    once, twice = (Uncaptured(20, 1e6, 0.95e6, 1.1e6, times_ns=(*usual, *[3_000_000] * n)) for n in (1, 2))
    paused = Uncaptured(20, 1e6, 0.95e6, 1.1e6, times_ns=(*twice.times_ns, 900_000_000))
    assert once.outliers_ns(1e9) == 0
    assert twice.outliers_ns(1e9) == pytest.approx(2 * 2_000_000 / 19)
    assert paused.outliers_ns(1e7) == pytest.approx(2 * 2_000_000 / 20)


def queued(count: int) -> Trace:
    """A step that launches works of 100 µs faster than they run; the last launch takes 5 ms."""
    made = Made()
    for index in range(count):
        made.launch("gemm", (index * 5, index * 5 + 3), (10 + index * 100, 110 + index * 100))
    at = count * 5
    begin = max(at + 5_000, 10 + count * 100)
    made.launch("gemm", (at, at + 5_000), (begin, begin + 100))
    return made.step(1, 0, at + 5_010).trace()


def test_a_slow_launch_waits_for_the_queue_only_where_that_is_full() -> None:
    slow, full = step_of(queued(20)), step_of(queued(400))
    assert not (slow.graph.kind == WAIT).any()
    assert (full.graph.kind == WAIT).sum() == 1
    assert slow.error <= 0.001
    assert full.error <= 0.02


def silent(works: float = 40) -> Trace:
    """Steps of an operator and of Python alone: nothing that is recorded could take less without the profiler."""
    made = Made()
    for _, at in made.steps(1000):
        made.op("aten::mm", at + 10, at + 40)
        made.launch("gemm", (at + 12, at + 15), (at + 20, at + 20 + works))
    return made.trace()


def test_what_a_replay_cannot_place_makes_a_prediction_less_sure() -> None:
    trace = silent()
    step = step_of(trace, Uncaptured(40, 600_000.0, 590_000.0, 610_000.0))
    assert step.unplaced_ns == pytest.approx(step.replayed_ns - 600_000)
    tracks = np.zeros(4, dtype=np.int64)
    starts = np.arange(4) * 1_000_000 + 500_000
    edit = Edit(host=HostTime(tracks, starts, starts + 400_000, np.zeros(4)))
    win, left = step.win(edit), Replay(step.graph, step.scale).step_ns(edit) / step.replayed_ns
    assert win.ns == pytest.approx((1 - left) * 600_000), "a share of the step that there is"
    assert win.low_ns == 0
    assert win.high_ns <= 600_000


def test_no_change_of_the_host_wins_more_than_the_device_leaves() -> None:
    trace = silent(works=550)
    step = step_of(trace, Uncaptured(40, 600_000.0, 590_000.0, 610_000.0))
    starts = np.arange(4) * 1_000_000 + 500_000
    host = HostTime(np.zeros(4, dtype=np.int64), starts, starts + 400_000, np.zeros(4))
    assert step.replayed_ns > 650_000, "as much as the session's step cannot be placed"
    assert step.likely_ns(Edit(host=host)) == pytest.approx(600_000 - 550_000)


@given(st.floats(0, 0.5))
def test_the_more_a_sessions_steps_differ_the_less_is_known(spread: float) -> None:
    trace = operators()
    narrow = step_of(trace, Uncaptured(40, 600_000.0, 600_000.0, 600_000.0)).noise_ns
    low, high = 600_000 * (1 - spread), 600_000 * (1 + spread)
    wide = step_of(operators(), Uncaptured(40, 600_000.0, low, high)).noise_ns
    assert wide >= narrow >= NOISE * 600_000


def test_a_step_that_its_device_fills_is_known_best() -> None:
    session = Uncaptured(40, 900_000.0, 800_000.0, 1_000_000.0)
    assert step_of(operators(works=44), session).noise_ns < step_of(operators(), session).noise_ns / 4


def queued_ahead(count: int = 20, works: int = 100) -> Trace:
    """Steps of operators of 40 µs, whose longer works the device is still at when the next step begins."""
    made, free = Made(), 0.0
    for number in range(4):
        begin = number * 40.0 * count
        for index in range(count):
            at = begin + 40 * index
            made.op("aten::mm", at, at + 35)
            free = max(free, at + 9) + works
            made.launch("gemm", (at + 2, at + 6), (free - works, free))
        made.step(number, begin, begin + 40 * count)
    return made.trace()


def test_a_host_that_was_seen_to_run_ahead_sets_the_pace_once_the_device_is_faster() -> None:
    trace = queued_ahead()
    works = trace.device_work
    no_work = Edit(work=works, keep=np.full(len(works), 0.01))
    known = step_of(trace, Uncaptured(40, 2_000_000.0, 1_990_000.0, 2_010_000.0, host_ns=500_000.0))
    win = known.win(no_work)
    assert known.step_ns - win.ns == pytest.approx(500_000, rel=0.15)
    slower = step_of(queued_ahead(), Uncaptured(40, 2_000_000.0, 1_990_000.0, 2_010_000.0, host_ns=700_000.0))
    assert slower.win(no_work).ns < win.ns - 150_000


@pytest.mark.parametrize(("host_ms", "known"), [(56, False), (70, True)])
def test_a_step_that_fills_the_queue_does_not_show_how_fast_its_host_is(host_ms: int, known: bool) -> None:
    """Of 2048 launches, the second half waits for the device: 102.4 ms are 51.2 at least, also if nothing is queued."""
    session = Uncaptured(40, 102.4e6, 102.4e6, 102.4e6, host_ns=host_ms * 1e6)
    assert (step_of(queued_ahead(2048, 50), session).scale != 1.8) == known


def test_a_host_that_would_record_at_almost_no_cost_does_not_limit_a_step() -> None:
    """Steps take 97 % of what they took while captured, and the device works for 85 % of them."""
    step = step_of(operators(works=34), Uncaptured(40, 7.8e5, 7.7e5, 7.9e5))
    assert step.scale == 1.8


def test_queued_kernels_follow_each_other_faster_without_the_profiler() -> None:
    """Steps of 200 kernels of 10 µs, 2 µs apart, that wait for the device at their end."""
    made, at = Made(), 0.0
    for number in range(4):
        begin = at
        for index in range(200):
            made.launch("gemm", (at, at + 2), (begin + 10 + 12 * index, begin + 20 + 12 * index))
            at += 3
        made.call("cudaDeviceSynchronize", at, begin + 2_415)
        for index in range(20):
            made.op("aten::select", begin + 2_420 + 20 * index, begin + 2_435 + 20 * index)
        at = begin + 2_830
        made.step(number, begin, at)
    floor = Replay(step_of(made.trace()).graph, 16.0).step_ns()
    longer, shorter, by_far = (
        step_of(made.trace(), Uncaptured(40, part * floor, part * floor, part * floor))
        for part in (1.005, 0.995, 1.02)
    )
    assert longer.replayed_ns == pytest.approx(longer.step_ns, rel=0.001)
    wait = Edit(waits=np.flatnonzero(made.trace().named("Synchronize")))
    left = [one.step_ns - one.likely_ns(wait) for one in (longer, shorter)]
    assert left[0] == pytest.approx(200 * (10_000 + 0.74 * 2_000), rel=0.005)
    assert by_far.gaps == 1, "its host limits it"
    assert left[1] == pytest.approx(200 * 12_000 * shorter.step_ns / shorter.replayed_ns, rel=0.005)


def test_a_host_that_no_session_shows_is_as_fast_as_usual() -> None:
    filled = step_of(queued_ahead(), Uncaptured(40, 2_000_000.0, 1_990_000.0, 2_010_000.0))
    assert filled.scale == pytest.approx(1.8, rel=0.01)
    assert step_of(queued_ahead()).scale == 1, "nothing says how fast it is"


def test_steps_are_told_apart_by_what_happens_in_them_and_not_by_their_numbers() -> None:
    """A thread may lose its core between the end of one step and the beginning of the next."""
    made, at = Made(), 0.0
    for number in range(4):
        made.step(number, at, at + 400).op("aten::mm", at + 10, at + 380)
        made.launch("gemm", (at + 12, at + 15), (at + 20, at + 60))
        at += 410 + (6_000 if number == 1 else 0)
    step = step_of(made.trace(), Uncaptured(40, 400_000.0, 390_000.0, 410_000.0))
    assert sum(float(clock.hiccup_ns.sum()) for clock in step.graph.clocks) == pytest.approx(
        6_000_000, rel=0.01
    )


def test_of_a_long_run_without_steps_the_middle_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_LAUNCHES", 100)
    made = Made()
    for index in range(400):
        at = index * 50 + (1_000_000 if index > 380 else 0)
        made.op("aten::mm", at, at + 40).launch("gemm", (at + 2, at + 6), (at + 9, at + 12))
    trace = made.trace()
    assert shared.in_part(trace)
    graph = step_of(trace).graph
    assert (graph.low, graph.high) == (150 * 50_000 + 2_000, 250 * 50_000 + 2_000)
    short = operators()
    assert not shared.in_part(short), "its steps can be left out instead"


@pytest.mark.parametrize("works", [5, 25])
def test_at_most_all_but_the_device_work_is_won_where_no_session_says_what_a_step_takes(works: float) -> None:
    step = step_of(operators(works=works))
    graph = step.graph
    everything = Edit(
        host=HostTime(np.array([0]), np.array([graph.low]), np.array([graph.high]), np.array([0.0]))
    )
    win = step.win(everything)
    assert win.low_ns <= win.ns <= win.high_ns <= step.step_ns - graph.device_busy_ns + 1
    gone = np.flatnonzero(graph.kind == WORK)[:40]  # half of it
    without = Edit(work=graph.row[gone], keep=np.zeros(len(gone)))
    assert step.win(everything | without).high_ns > step.step_ns - graph.device_busy_ns


@pytest.mark.parametrize(
    ("median_ns", "low_ns", "high_ns", "said"),
    [
        (300_000.0, 290_000.0, 310_000.0, "the profiler slowed a step from about 300 µs"),
        (300_000.0, 100_000.0, 900_000.0, "steps took 100 µs to 900 µs before the capture"),
        (9e9, 1e9, 99e9, "savings are rough estimates"),  # although the captured one is faster
    ],
)
def test_what_the_profiler_added_is_only_told_of_steps_that_are_alike(
    median_ns: float, low_ns: float, high_ns: float, said: str
) -> None:
    trace = silent()
    step_of(trace, Uncaptured(40, median_ns, low_ns, high_ns))
    assert said in next(remark.text for remark in trust(trace).remarks if remark.code == "slowed")


def launched_in_steps(*steps: tuple[float, int]) -> Trace:
    """Return steps of so many µs and launches each."""
    made, at = Made(), 0.0
    for number, (length, launches) in enumerate(steps):
        made.step(number, at, at + length)
        for begin in np.linspace(at + 1, at + length - 9, launches):
            made.launch("gemm", (begin, begin + 1), (begin + 2, begin + 3))
        at += length
    return made.trace()


@pytest.mark.parametrize(
    ("steps", "first", "count"),
    [
        ([(2_000, 30)] + [(1_000, 30)] * 7, 1, 3),  # the first one is slow
        ([(1_000, 30)] * 7 + [(200, 2)] * 6, 0, 3),  # more steps of an evaluation would fit
        ([(1_000, 30)] * 3, 0, 3),
        ([(1_500, 150), (1_000, 150), (1_000, 150)], 1, 1),  # one of them is too much already
        ([(100, 0)] * 5, 0, 5),
    ],
)
def test_of_steps_with_many_launches_usual_ones_are_replayed(
    steps: list[tuple[float, int]], first: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_LAUNCHES", 100)
    trace = launched_in_steps(*steps)
    low, high, found = shared.stretch(trace, 0)
    assert found == count
    assert low == trace.steps.starts[first]
    assert high == trace.steps.ends[first + count - 1]


def fetching(wait_us: int) -> Trace:
    """Steps of 400 µs on the host, after a batch that takes ``wait_us``."""
    made, correlation = Made(), 0
    for number in range(4):
        begin = number * (400 + wait_us)
        made.step(number, begin, begin + 400 + wait_us)
        made.add(
            "annotation",
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            begin,
            begin + wait_us,
        )
        for index in range(10):
            at, correlation = begin + wait_us + 40 * index, correlation + 1
            made.op("aten::mm", at, at + 38, sequence=correlation)
            made.launch("gemm", (at + 10, at + 20), (at + 21, at + 25))
    return made.trace()


def test_a_step_waits_for_its_batch_as_long_as_in_the_session() -> None:
    trace = fetching(10)
    step = step_of(trace, Uncaptured(40, 700e3, 690e3, 710e3, fetch_ns=400e3))
    assert step.trusted
    assert step.captured_ns == pytest.approx(410e3, rel=0.01)
    assert step.replayed_ns == pytest.approx(700e3, rel=0.01)
    batches = Edit.of_host(trace, fetches(trace))
    assert step.likely_ns(batches) == pytest.approx(400e3, rel=0.02)


def test_batches_that_come_no_earlier_than_in_the_session_stay_as_captured() -> None:
    step = step_of(fetching(300), Uncaptured(40, 650e3, 640e3, 660e3, fetch_ns=305e3))
    assert step.with_early_batches is None
