"""Calls that sometimes, or once, take a thousand times as long as usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from analyses.made import Made
from findings import finding, found
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.analyses.shared import stretches
from tuiprof.analyses.shared.replay import replayed, trust, warm_up
from tuiprof.cli.answering import refused
from tuiprof.comparison.headline import headline
from tuiprof.model import Trace
from tuiprof.model.steps import Uncaptured
from tuiprof.whatif.replay import Calibrated

KERNEL = "void at::native::vectorized_elementwise_kernel<4, Kernel{}>"


def interrupted(*, places: int = 8, inside: str = "aten::op{}", stops_us: float = 3_000.0) -> Trace:
    """Sixteen steps of eight operators with a launch each, in which the thread stops ten times.

    Args:
        places: In how many different operators it stops.
        inside: Name of the operators.
        stops_us: For how long.
    """
    made, at = Made(), 0.0
    for step in range(16):
        begun = at
        for place in range(8):
            stops = 0 < step < 6 and (step + place) % 4 == 0
            stopping = place % places if stops else place
            held = stops_us if stops else 1.0
            made.op(inside.format(stopping), at, at + held + 7)
            made.launch(
                KERNEL.format(stopping), (at + 2 + held, at + 5 + held), (at + 6 + held, at + 9 + held)
            )
            at += held + 10
        made.step(step, begun, at)
    return made.trace()


def test_a_thread_that_stops_in_many_different_calls_is_interrupted() -> None:
    row = found(interrupted(), "interrupted-thread")
    assert row["wins_ns"] == pytest.approx(10 * 3_000_000 / 16, rel=0.02)
    assert "10 times in 16 steps, for 30.0 ms in all" in row["what"]
    assert row["where"].startswith("longest, 3.00 ms, in op")


@pytest.mark.parametrize(
    "other",
    [
        {"places": 2},  # these operators take long at times
        {"inside": "forward{}"},  # what is no operator of PyTorch may be Python
        {"stops_us": 1_000.0},
    ],
)
def test_what_calls_do_themselves_is_no_interruption(other: dict[str, Any]) -> None:
    assert finding(interrupted(**other), "interrupted-thread") is None


def touching() -> Trace:
    """Operators that begin when the one before ends, each with a call of the same length in it; some are long."""
    made, at = Made(), 0.0
    for number in range(12):
        until = at + (3_000.0 if number % 5 == 3 else 2.0)
        made.op("aten::view", at, until)
        made.call("cudaEventRecord", at, until)
        if number % 2:
            made.op("aten::slice", at, until)
        at = until
    return made.trace()


@pytest.mark.parametrize("block", [1, 2, 3, 5])
@pytest.mark.parametrize("trace", [interrupted, touching])
def test_stretches_do_not_depend_on_how_many_events_are_sorted_together(
    trace: Callable[[], Trace], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stretches.long_stretches(trace())
    assert len(expected.starts) > 1
    monkeypatch.setattr(stretches, "_BLOCK", block)
    found = stretches.long_stretches(trace())
    for name in ("tracks", "starts", "ends", "inside", "usual_ns", "times", "first", "idle"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def used(
    *,
    step: int = 0,
    busy: bool = False,
    kernel: str = "new",
    other_us: float = 10_000.0,
    marked: bool = True,
) -> Trace:
    """Three steps with two launches; one of them takes 20 ms in one step."""
    made, at = Made(), 0.0
    for number in range(3):
        begun = at
        for place, name in enumerate(("known", kernel)):
            takes = 20_000.0 if (number, place) == (step, 1) else 5.0
            made.op("aten::add", at, at + takes + 4)
            works = 20_000.0 if busy and place == 0 else 3.0
            made.launch(KERNEL.format(name), (at + 2, at + 2 + takes), (at + 5, at + 5 + works))
            at += takes + 10
        at += other_us
        if marked:
            made.step(number, begun, at)
    return made.trace()


def test_the_first_launch_of_a_kernel_loads_it() -> None:
    row = found(used(), "first-use")
    assert row["wins_ns"] is None
    assert "take 20.0 ms, 40 % of the steps" in row["what"]
    assert row["where"] == "longest in add"


@pytest.mark.parametrize(("high_ns", "new_sizes"), [(40e6, True), (12e6, False), (80e6, False)])
def test_in_a_run_with_steps_as_uneven_sizes_are_new(high_ns: float, new_sizes: bool) -> None:
    trace = used()
    trace.uncaptured = Uncaptured(30, 10e6, 9e6, high_ns)
    row = found(trace, "first-use")
    assert ("new sizes" in row["what"]) == new_sizes
    # 20 ms in one of three steps.
    assert row["wins_ns"] == (pytest.approx(20_000_000 / 3, rel=0.01) if new_sizes else None)
    assert "cudnn" not in row["instead"]


@pytest.mark.parametrize(
    ("times", "new_sizes"),
    [
        ((30, 9, 30, 30, 9, 30, 30, 9), True),  # known sizes come between new ones
        ((30, 30, 30, 30, 9, 30, 9, 9), False),  # the run warms up
    ],
)
def test_most_steps_may_have_new_sizes(times: tuple[int, ...], new_sizes: bool) -> None:
    trace = used()
    trace.uncaptured = Uncaptured(8, 30e6, 9e6, 31e6, times_ns=tuple(ms * 1_000_000 for ms in times))
    row = found(trace, "first-use")
    assert ("new sizes" in row["what"]) == new_sizes


@pytest.mark.parametrize(("marked", "after_capture"), [(True, True), (False, False)])
def test_without_steps_before_the_capture_to_compare_with_a_run_has_just_begun(
    marked: bool, after_capture: bool
) -> None:
    trace = used(marked=marked)
    trace.uncaptured = Uncaptured(30, 10e6, 9e6, 40e6, after_capture=after_capture)
    row = found(trace, "first-use")
    assert "steady-state" in row["what"]


@pytest.mark.parametrize(
    "other",
    [
        {"step": 2},  # it was launched before
        {"kernel": "known"},
        {"busy": True},  # the call waits for the device
        {"other_us": 100_000.0},  # hardly a part of the steps
    ],
)
def test_a_long_call_is_no_first_use(other: dict[str, Any]) -> None:
    assert finding(used(**other), "first-use") is None


@pytest.mark.parametrize(("first_us", "advised"), [(100_000.0, False), (10.0, True)])
def test_what_is_allocated_while_libraries_start_is_no_habit(first_us: float, advised: bool) -> None:
    made = Made().launch(KERNEL.format(0), (0, first_us), (first_us + 5, first_us + 8))
    for number in range(8):
        at = first_us + 10 + 400 * number
        made.call("cudaMalloc", at, at + 300)
        made.launch(KERNEL.format(0), (at + 310, at + 315), (at + 320, at + 390))
    assert (finding(made.trace(), "allocator-in-steps") is not None) == advised


@st.composite
def calling(draw: st.DrawFn) -> Trace:
    """Steps of calls of an operator that launch work; the first one of a step may be long, and another beside it."""
    made, at = Made(), 0.0
    for number in range(draw(st.integers(1, 3))):
        begun = at
        long = draw(st.sampled_from([(0,), (0,), (0,), (), (1,), (0, 3)]))
        beside = draw(st.sampled_from([None, None, None, 3.0, 2_000.0]))
        others = draw(st.sampled_from([[10.0], [10.0, 200.0], [10.0, 300.0]]))
        for call in range(draw(st.integers(3, 6))):
            takes = draw(st.sampled_from([2_500.0, 4_000.0] if call in long else others))
            made.op("aten::conv", at, at + takes + 10)
            if call == 0 and beside is not None:
                made.op("aten::conv", at, at + min(beside, takes))
            works = draw(st.sampled_from([1.0, 1.0, 3_000.0]))
            made.launch(
                KERNEL.format(0), (at + takes + 4, at + takes + 6), (at + takes + 8, at + takes + 8 + works)
            )
            at += takes + 20
        if number or draw(st.booleans()):
            made.step(number, begun, at)
    return made.trace()


@given(calling())
def test_sizes_are_new_in_the_first_of_several_calls_which_alone_is_long(trace: Trace) -> None:
    long = stretches.long_stretches(trace)
    expected = []
    for index, row in enumerate(long.inside.tolist()):
        step = trace.steps.step_of[row]
        if step < 0 or not trace.name(row).startswith("aten::"):
            continue
        others = [
            other
            for other in range(len(trace))
            if trace.name(other) == trace.name(row) and trace.steps.step_of[other] == step and other != row
        ]
        if len(others) < 3 or trace.starts[others].min() <= trace.starts[row]:
            continue
        if trace.lengths(np.array(others)).max() <= 0.1 * (long.ends - long.starts)[index]:
            expected.append(index)
    in_steps = {trace.steps.step_of[long.inside[index]] for index in expected}
    usual = len(in_steps) >= max(0.75 * len(trace.steps), 2)
    assert stretches.new_sizes(trace).tolist() == [index for index in expected if long.idle[index] or usual]


def warming_up(
    *,
    prepares_us: float = 60_000.0,
    calls: int = 8,
    every: int = 1,
    place: int = 0,
    last_us: float = 79.0,
) -> Trace:
    """Four steps of several calls of one operator, one of which prepares a kernel before it launches it.

    Args:
        prepares_us: How long that takes.
        calls: Calls in a step.
        every: It does so in every so many steps.
        place: Which of the calls it is.
        last_us: How long the last kernel of a step works.
    """
    made, at, correlation = Made(), 0.0, 0
    for number in range(4):
        begun = at
        for call in range(calls):
            correlation += 1
            held = prepares_us if call == place and number % every == 0 else 20.0
            made.op("aten::_cudnn_attention_forward", at, at + held + 30)
            if held > 20:
                made.call("cudaRuntimeGetVersion", at + 5, at + 6)
            made.call("cuLaunchKernelEx", at + held, at + held + 20, correlation=correlation)
            works = last_us if call == calls - 1 else 79.0
            made.kernel("sdpa", at + held + 21, at + held + 21 + works, correlation)
            made.op("aten::mm", at + held + 35, at + held + 90)
            at += held + 300
        made.step(number, begun, at)
    return made.trace()


def in_session(trace: Trace, before_ms: float, last_ms: float, count: int = 100) -> Trace:
    """Say what steps before the capture and at the end of the run took."""
    before, last = (round(ms * 1e6) for ms in (before_ms, last_ms))
    trace.uncaptured = Uncaptured(
        15, before, before, before, times_ns=(before,) * 15, last_ns=(last,) * count
    )
    return trace


def test_what_a_warm_up_prepares_in_each_step_is_left_out_of_the_replayed_step() -> None:
    trace = in_session(warming_up(), 62.5, 2.5)
    step = replayed(trace)
    assert isinstance(step, Calibrated)
    assert (step.step_ns, step.basis) == (2_500_000, "session")
    assert step.replayed_ns == pytest.approx(2_500_000, rel=0.02), "nothing of the 60 ms is left"
    assert "prepare kernels for new sizes (_cudnn_attention_forward, 60.0 ms a step)" in trust(trace).text
    assert finding(trace, "first-use") is None, "what is said once"
    why = "capture 'start' is not representative: …"
    assert refused(trace, why) == ("", why)
    assert headline(trace).of_last_steps


@pytest.mark.parametrize("last_us", [79.0, 30_000.0])  # the device is idle, or works for half of it
def test_sizes_that_are_new_to_the_end_of_the_run_are_prepared_in_each_step(last_us: float) -> None:
    row = found(in_session(warming_up(last_us=last_us), 62.5, 61.0), "first-use")
    assert "prepared for new sizes, 60.0 ms a step: _cudnn_attention_forward" in row["what"]
    assert "enable_cudnn_sdp(False)" in row["instead"]
    left_ns = 2.5e6 if last_us < 100 else 30.6e6  # the host, or the kernels
    assert row["wins_ns"] == pytest.approx(62.5e6 - left_ns, rel=0.02)


@pytest.mark.parametrize(
    "trace",
    [
        in_session(warming_up(), 62.5, 32.0),  # not in later steps: half of it is no longer done
        in_session(warming_up(), 62.5, 61.0, count=5),  # too few to tell
        in_session(warming_up(every=2), 62.5, 61.0),  # half of the steps
    ],
)
def test_sizes_that_later_steps_may_find_prepared_are_not_priced(trace: Trace) -> None:
    row = found(trace, "first-use")
    assert row["wins_ns"] is None


@pytest.mark.parametrize(("every", "known"), [(1, 4), (3, 1)])
def test_beside_a_working_device_sizes_are_new_only_if_that_is_so_in_most_steps(
    every: int, known: int
) -> None:
    # Before the first step, the device has nothing to do.
    assert len(stretches.new_sizes(warming_up(last_us=30_000.0, every=every))) == known


@pytest.mark.parametrize(
    "trace",
    [
        in_session(warming_up(), 62.5, 61.0),  # new sizes to the end
        in_session(warming_up(), 62.5, 2.5, count=5),  # too few to tell
        in_session(warming_up(every=2), 62.5, 2.5),  # half of the steps
        in_session(warming_up(calls=2), 62.5, 2.5),  # it may take so long by itself
        in_session(warming_up(place=3), 62.5, 2.5),  # not the first one
        in_session(warming_up(prepares_us=1_000.0), 62.5, 2.5),  # it is not why the steps are long
        in_session(warming_up(), 62.5, 6.0),  # what is left is another kind of step
    ],
)
def test_other_steps_unlike_the_last_ones_are_no_warm_up(trace: Trace) -> None:
    assert warm_up(trace) is None
    assert refused(trace, "why") == ("why", "")
    assert not headline(trace).of_last_steps
