"""Every figure against its definition, worked out event by event, over traces that spare nothing."""

from __future__ import annotations

import math
from statistics import mean, median

import numpy as np
import pytest
from analyses.by_definition import ByDefinition, charge, length
from analyses.made import BACKWARD, MAIN, OTHER_STREAM, STREAM, Made
from hypothesis import given, settings
from hypothesis import strategies as st

from tuiprof.analyses import available, run
from tuiprof.analyses.kernels import self_times
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.wait_table import emptied
from tuiprof.model import Report, Trace, Window

MOMENT, LENGTH, THREAD = (
    st.integers(0, 60),
    st.sampled_from([0, 0, 1, 2, 5, 10]),
    st.sampled_from([MAIN, BACKWARD]),
)
STREAMS = st.sampled_from([(STREAM, 0), (OTHER_STREAM, 0), (OTHER_STREAM, 1)])
CORRELATION = st.sampled_from([None, 0, 1, 2, 3, 4, 5])
COPIES = (
    "Memcpy DtoH (Device -> Pageable)",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoD (Device -> Device)",
)
HOST = (
    ("cpu_op", "aten::add"),
    ("cpu_op", "aten::item"),
    ("cpu_op", "enumerate(DataLoader)#_It.__next__"),
    ("annotation", "load"),
    ("python_function", "train.py(1): main"),
    ("runtime", "cudaStreamSynchronize"),
    ("runtime", "cudaDeviceSynchronize"),
    ("runtime", "cudaMalloc"),
    ("annotation", "compile_fx (dynamo_timed)"),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Make a trace: steps that overlap, several devices and threads, clocks that differ, ids that lie."""
    made = Made()
    step = st.tuples(MOMENT, st.integers(0, 20), THREAD)
    for number, (at, long, thread) in enumerate(draw(st.lists(step, max_size=4))):
        made.add("annotation", f"ProfilerStep#{number}", at, at + long, track=thread)
    launch = st.tuples(st.sampled_from(["runtime", "driver"]), MOMENT, LENGTH, THREAD, CORRELATION)
    for category, at, long, thread, correlation in draw(st.lists(launch, max_size=6)):
        made.add(category, "cudaLaunchKernel", at, at + long, track=thread, correlation=correlation)
    work = st.tuples(
        st.sampled_from(["kernel", "memset", "collective", *COPIES]), MOMENT, LENGTH, STREAMS, CORRELATION
    )
    for kind, at, long, (track, device), correlation in draw(st.lists(work, max_size=8)):
        category, name = ("memcpy", kind) if kind in COPIES else (kind, "gemm")
        made.kernel(name, at, at + long, correlation, category=category, track=track, device=device)
    host = st.tuples(st.sampled_from(HOST), MOMENT, LENGTH, THREAD)
    for (category, name), at, long, thread in draw(st.lists(host, max_size=10)):
        made.add(category, name, at, at + long, track=thread)
    made.op("aten::end", 80, 81)  # so that nothing lies on the trace's last instant
    return made.trace()


def row(event: object) -> int:
    return -1 if event is None else event.row


@settings(max_examples=80, deadline=None)
@given(traces())
def test_links_steps_nesting_and_own_times(trace: Trace) -> None:
    plain = ByDefinition(trace)
    assert trace.links.launch_of.tolist() == [row(event.launch) for event in plain.events]
    assert trace.steps.step_of.tolist() == [event.step for event in plain.events]
    assert trace.nesting.parent.tolist() == [row(event.parent) for event in plain.events]
    own = plain.own_times()
    assert self_times(trace, np.array(list(own), dtype=np.int64)).tolist() == list(own.values())


@settings(max_examples=80, deadline=None)
@given(traces())
def test_device_time_and_launches(trace: Trace) -> None:
    plain = ByDefinition(trace)
    idle = run("device_idle", trace)
    if isinstance(idle, Report):
        gaps = [gap for device in plain.devices for gap in plain.gaps(device)]
        assert idle.fact("busy_ns") == sum(length(plain.busy(device)) for device in plain.devices)
        assert idle.fact("idle_ns") == length(gaps) == idle.table("causes").rows["idle_ns"].sum()
    launches = run("kernel_launches", trace)
    if isinstance(launches, Report):
        latencies = plain.latencies()
        assert launches.fact("launches") == len(latencies)
        assert launches.fact("latency_median_ns") == median(latencies)
        assert launches.fact("latency_negative") == sum(latency < 0 for latency in latencies)
        depths = [plain.queue_depth(device) for device in plain.devices if plain.busy(device)]
        assert launches.fact("queue_depth_mean") == pytest.approx(mean(depths))
        if plain.steps:
            stepped = sum(call.step >= 0 for call in plain.launches)
            assert launches.fact("launches_per_step") == pytest.approx(stepped / len(plain.steps))


@settings(max_examples=80, deadline=None)
@given(traces())
def test_starved_time_is_charged_once_and_to_the_wait_that_began_last(trace: Trace) -> None:
    plain = ByDefinition(trace)
    waits = _waits.find(trace, Window())
    spans = list(zip(waits.starts.tolist(), waits.ends.tolist(), strict=True))
    found = emptied(trace, trace.ints("track")[waits.last], waits.copy, waits.starts, waits.ends)
    for device in plain.devices:
        mine = [i for i, one in enumerate(found.device.tolist()) if one == device]
        expected = charge(plain.empty([spans[i] for i in mine], device))
        assert [int(found.ns[i]) for i in mine] == expected
        for i in mine:
            done = [work.end for work in plain.on(device) if work.end <= spans[i][1]]
            later = [work.start for work in plain.on(device) if work.submitted >= spans[i][1]]
            assert trace.ends[found.waited_for[i]] == max(done) if done else found.waited_for[i] < 0
            assert trace.starts[found.delayed[i]] == min(later) if later else found.delayed[i] < 0


#: Differences, and times from a moment that may be earlier.
SIGNED = ("latency", "difference", "excess", "growth", "from_ns", "to_ns")
WINDOWS = st.one_of(
    st.just(Window()),
    st.tuples(st.integers(0, 70), st.integers(0, 30)).map(lambda w: Window(w[0] * 1000, sum(w) * 1000)),
    st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(traces(), WINDOWS)
def test_no_report_says_the_impossible(trace: Trace, window: Window | int) -> None:
    if isinstance(window, int):
        window = trace.steps.window(window) if window < len(trace.steps) else Window()
    for name in available():
        found = run(name, trace, window)
        if not isinstance(found, Report):
            assert found.reason
            continue
        values = [(fact.key, fact.kind, fact.value) for fact in found.facts]
        values += [
            (c.key, c.kind, v) for t in found.tables for c in t.columns for v in t.rows[c.key].to_list()
        ]
        for key, kind, value in values:
            if isinstance(value, (int, float)):
                assert math.isfinite(value), (name, key)
                assert value >= 0 or key.startswith(SIGNED) or kind in ("text", "number"), (name, key, value)
                assert value <= 1 + 1e-9 or kind != "share", (name, key, value)
