"""Loops that find the places of an expert or a class on the device, and wait for how many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analyses.made import Made, site

from tests.advice.findings import found
from tuiprof.advice import priorities
from tuiprof.advice.finding import Finding
from tuiprof.advice.pricing import prioritise
from tuiprof.analyses.shared.replay import launched_faster, replayed_steps
from tuiprof.model import Trace
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.replay import Kinds

AUTOGRAD = "autograd::engine::evaluate_function"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"


def experts(
    count: int,
    takes: str = "aten::index",
    finds: str = "aten::where",
    wait_us: float = 20,
    layers: int = 1,
    index_us: float = 10,
) -> Trace:
    """Steps of so many experts on their rows: finding them waits, and their gradient is added row by row."""
    made, correlation, free = Made(), 0, 0.0
    each = wait_us + 20 + 20 * layers + 4 * index_us + 40
    for number, at in made.steps(count * each + 20):
        now = at + 5.0

        def call(name: str, took: float, sequence: int | None = None) -> None:
            nonlocal correlation, free, now
            correlation += 1
            free = max(free, now + 4) + 1.0
            made.op(name, now, now + took - 1, sequence=sequence)
            made.launch(GEMM, (now + 1, now + 3), (free, free + 0.5), correlation)
            now += took

        for expert in range(count):
            correlation += 1
            made.op(finds, now, now + wait_us - 1)
            made.op("aten::nonzero", now + 1, now + wait_us - 2)
            made.call("cudaStreamSynchronize", now + 2, now + wait_us - 3, correlation=correlation)
            now += wait_us
            call(takes, index_us, 100 * number + expert)
            for _ in range(layers):
                call("aten::linear", 20)
        for expert in reversed(range(count)):
            call(f"{AUTOGRAD}: Index0Backward0", 3 * index_us, 100 * number + expert)
    return made.trace([site(number * (count * each + 20) + 26, "moe.py:7 forward") for number in range(4)])


def test_a_loop_over_experts_sorts_once_instead() -> None:
    row = found(experts(16), "size-from-device")
    assert "x[order].split(sizes)" in row["instead"]
    assert "16 times a step" in row["what"]
    # What finds the rows, what takes them, and its backward pass.
    assert row["wins_ns"] == pytest.approx(16 * (20 + 10 + 30) * 1000 * 0.9, rel=0.05)


@pytest.mark.parametrize(
    ("trace", "count"),
    [
        pytest.param(experts(4), 4, id="few"),
        pytest.param(experts(16, takes="aten::mul"), 16, id="nothing takes rows"),
        pytest.param(experts(16, finds="aten::unique_dim"), 16, id="no places"),
    ],
)
def test_sizes_that_are_no_loop_over_rows(trace: Trace, count: int) -> None:
    row = found(trace, "size-from-device")
    assert "keep shapes fixed" in row["instead"]
    assert row["wins_ns"] < count * 20_000


def general(trace: Trace) -> Finding | None:
    """Return the finding about launching less."""
    return next((item.finding for item in priorities(trace).findings if item.finding.remainder), None)


@pytest.mark.parametrize(("count", "known"), [(16, True), (6, False)])
def test_launching_less_needs_the_end_of_many_waits(count: int, known: bool) -> None:
    after = general(experts(count, layers=5))
    assert after is not None
    assert (after.after is not None) == known


@pytest.mark.parametrize(
    ("waits", "wait_us", "first"),
    [(True, 60, "waits"), (False, 60, "general"), (True, 20, "general")],
    ids=["it needs their end", "it does not", "they are a small part"],
)
def test_the_end_of_waits_that_a_change_needs_comes_before_it(waits: bool, wait_us: int, first: str) -> None:
    trace = experts(16, layers=2, wait_us=wait_us)
    steps = replayed_steps(trace)
    assert isinstance(steps, Kinds)
    rows = trace.operators("^aten::where$")
    ends = Edit(trace.host_events("^cudaStreamSynchronize$"), HostTime.of(trace, rows))
    less = Finding("", "", "", "low", "", launched_faster(trace, 0.1), remainder=True)
    less = replace(less, after=ends if waits else None)
    all_ = [("general", less), ("waits", Finding("", "", "", "low", "", ends))]
    ordered = prioritise([(name, one.of(steps)) for name, one in all_], steps, trace).findings
    assert [item.rule for item in ordered] == [first, {"waits": "general", "general": "waits"}[first]]
