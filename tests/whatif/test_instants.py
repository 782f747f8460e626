"""Where a change saves its time, and when everything happens with it: both are read off the replayed step."""

from __future__ import annotations

import numpy as np
import pytest

from tuiprof.advice import losses_of, priorities
from tuiprof.analyses.shared.replay import replayed
from tuiprof.formats import open_trace
from tuiprof.model import Trace, Window
from tuiprof.resources import shipped
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import Calibrated, Losses, instants


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

    monkeypatch.setattr(replay, "MOST_LAUNCHES", 600)
    short = naive.captured()  # nothing is kept of the replay of all steps
    step, found = replayed(short), losses_of(short, Window(), place_of(short, "nan-check"))
    assert isinstance(step, Calibrated)
    assert isinstance(found, Losses)
    assert step.graph.step_count == 1
    assert found.high == step.graph.high < short.span[1]
    assert found.ends[-1] <= found.high
