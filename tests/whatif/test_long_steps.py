"""Steps of another kind, such as those with a rollout: they are replayed too, and a saving is the mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from analyses.made import Made, report

from tuiprof import advice
from tuiprof.advice import AdviceRule, Evidence, Finding, advise, losses_of, priorities
from tuiprof.advice.question import answer, changes
from tuiprof.analyses.shared.replay import opening, replayed_steps
from tuiprof.model import Report, Trace
from tuiprof.model.steps import Uncaptured
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.replay import Kinds

#: What the steps of a session take, µs: nine of ten as those of 20 operators, one as that of 100.
SESSION = (*[600] * 9, 3_000)


def captured(
    operators: Sequence[int] = (20, 20, 100, 20, 20),
    session: Sequence[int] = SESSION,
    slow: int = -1,
    later: Sequence[int] = (),
    *,
    waits: bool = False,
) -> Trace:
    """Steps of so many operators, which take 40 µs each while captured, and five times as long in the ``slow`` step.

    Where it ``waits``, the host does so after each operator of the long steps.
    """
    made, at = Made(), 0.0
    for number, count in enumerate(operators):
        begin = at
        for _ in range(count):
            made.op("aten::mm", at, at + 35)
            made.launch("gemm", (at + 2, at + 6), (at + 9, at + 14))
            if waits and count > 20:
                made.call("cudaStreamSynchronize", at + 15, at + 33)
            at += 200 if number == slow else 40
        made.step(number, begin, at)
    trace = made.trace(format="kineto")
    times = [1_000 * took for took in session]
    low, median, high = np.percentile(times, (10, 50, 90)).tolist()
    later_ns = tuple(1_000 * took for took in later)
    trace.uncaptured = Uncaptured(
        len(times), median, low, high, host_ns=500_000, times_ns=tuple(times), later_ns=later_ns
    )
    return trace


def kinds(trace: Trace) -> Kinds:
    found = replayed_steps(trace)
    assert isinstance(found, Kinds), found
    return found


def test_a_saving_is_the_mean_over_both_kinds_of_steps() -> None:
    trace = captured()
    steps = kinds(trace)
    assert steps.share == 0.1
    assert steps.step_ns == pytest.approx(0.9 * 600_000 + 0.1 * 3_000_000)
    assert steps.usual.graph.step_count == 2, "the long one is no part of the usual ones"
    assert steps.captured_ns == pytest.approx(0.9 * 800_000 + 0.1 * 4_000_000, rel=0.02)
    assert steps.busy_ns == pytest.approx(0.9 * 100_000 + 0.1 * 500_000)
    usual, long = steps.usual.uncaptured, steps.long.uncaptured if steps.long is not None else None
    assert usual is not None
    assert (usual.high_ns, usual.host_ns) == (600_000, 500_000)
    assert long is not None
    assert (long.low_ns, long.host_ns) == (3_000_000, None), "the host runs ahead in the usual ones"
    told = answer(trace, changes(trace, host=0.5))
    assert isinstance(told, Report)
    [row] = told.table("changes").rows.to_dicts()
    assert row["wins_ns"] == pytest.approx(steps.step_ns / 2, rel=0.03)
    assert told.fact("step_ns") == priorities(trace).step_ns == opening(trace, "").step_ns == steps.step_ns
    assert opening(trace, "").step_is == "mean of 10 steps of the session"
    assert any(
        "mean over 10 steps of the session: 1 took about 3.00 ms" in note for note in advise(trace).notes
    )


def test_waits_of_long_steps_alone_cost_what_they_do_on_average() -> None:
    trace = captured(waits=True)
    found, whole_ns = report("sync_events", trace), kinds(trace).step_ns
    saves_ns = found.fact("saves_ns_per_step")
    assert isinstance(saves_ns, float)
    assert 0.1 * 100 * 10_000 < saves_ns < 0.1 * 100 * 18_000
    assert found.fact("saves_share") == saves_ns / whole_ns
    assert found.verdict.level == "bad"
    idle = report("device_idle", trace)
    assert idle.fact("uncaptured_idle_share") == 1 - kinds(trace).device_busy_ns / whole_ns


def test_a_change_that_saves_nothing_is_not_called_faster() -> None:
    told = answer(captured(), changes(captured(), host=1.0))
    assert isinstance(told, Report)
    assert (
        told.verdict.sentence == "the host's time × 1: a step would still take about 840 µs, at best 772 µs"
    )


@pytest.mark.parametrize("session", [SESSION, [600] * 10], ids=["also before", "never before"])
def test_steps_after_the_capture_show_how_often_long_ones_come(session: Sequence[int]) -> None:
    """They are slower than before it: it is those before it, if there are any, that say how long both kinds are."""
    steps = kinds(captured(session=session, later=([660] * 9 + [3_300]) * 4))
    before = len([took for took in session if took > 600])
    assert steps.share == (before + 4) / 50
    assert steps.usual.step_ns == 600_000
    assert steps.long is not None
    assert steps.long.step_ns == pytest.approx(3_000_000 if before else 3_300_000)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        pytest.param({"operators": (100, 20, 20, 20)}, 0.0, id="the first captured"),
        pytest.param({"operators": (20, 20)}, 0.0, id="too few"),
        pytest.param({"operators": (20, 20, 20, 20), "slow": 2}, 0.0, id="long with as many operators"),
        pytest.param({"operators": (20, 20, 20, 20)}, 0.0, id="none captured"),
        pytest.param({"session": [600] * 10}, 0.0, id="none in the session"),
        pytest.param({"session": [*[600] * 40, 3_000]}, 0.0, id="hardly any of the time"),
        pytest.param({"session": [*[600] * 8, 1_900, 6_000]}, 0.1, id="an interrupted step"),
    ],
)
def test_which_steps_are_of_another_kind(options: dict[str, Any], share: float) -> None:
    steps = kinds(captured(**options))
    assert (steps.long is not None) == bool(share)
    assert steps.share == share
    if not share:
        assert opening(captured(**options), "").step_is.startswith("median of")


def test_what_only_long_steps_do_counts_as_often_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = captured()

    def find(trace: Trace, _: Evidence) -> Iterator[Finding]:
        start, end = (int(edges[2]) for edges in (trace.steps.starts, trace.steps.ends))
        host = HostTime(*(np.array([part]) for part in (0, start, end)), np.array([0.5]))
        yield Finding("", "", "", "high", "", Edit(host=host), rare_ns=(1e6, 1e6, 1e6))

    monkeypatch.setattr(advice, "available", lambda: {"mine": AdviceRule("mine", find)})
    [item] = priorities(trace).findings
    assert item.win is not None
    assert item.win.ns == pytest.approx(0.1 * 1_500_000, rel=0.03), (
        "and no steps that a rule finds in the session"
    )
    assert item.win.low_ns == 0, "it is one step of ten"
    assert item.win.high_ns > 0.2 * 1_500_000, "there may be two as well"
    assert "rare steps" in str(losses_of(trace, advice.Window(), 0))
