"""Analyses that run at the same time answer as one after the other, and share what they have in common."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from analyses.made import Made

import tuiprof
from tests import real_traces
from tuiprof import analyses
from tuiprof.analyses.shared import calls as calls_module
from tuiprof.analyses.shared import stretches
from tuiprof.errors import UsageProblem
from tuiprof.model import Trace
from tuiprof.model import trace as trace_module
from tuiprof.model.trace import cached_on_trace
from tuiprof.report import render_all

SAMPLE = Path(__file__).parents[2] / "traces" / "metrics-naive.pt.trace.json.gz"


def test_answers_are_those_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(analyses.available())
    one_by_one = [analyses.run(name, tuiprof.open_trace(real_traces.SMALL)) for name in names]
    monkeypatch.setattr(analyses, "_WORTH_THREADS", 0)
    at_once = analyses.run_all(names, tuiprof.open_trace(real_traces.SMALL))
    assert render_all(at_once, "json") == render_all(one_by_one, "json")


def test_answers_do_not_depend_on_how_many_events_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = tuple(analyses.available())
    expected = [analyses.run(name, tuiprof.open_trace(SAMPLE)) for name in names]
    for module in (trace_module, calls_module, stretches):
        monkeypatch.setattr(module, "_BLOCK", 37)
    found = [analyses.run(name, tuiprof.open_trace(SAMPLE)) for name in names]
    assert render_all(found, "json") == render_all(expected, "json")


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_an_analysis_that_is_not_there(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(analyses, "_WORTH_THREADS", least)
    with pytest.raises(UsageProblem, match="nonsense"):
        analyses.run_all(("steps", "nonsense"), Made().op("aten::add", 0, 1).trace())


def test_what_threads_share_is_made_once() -> None:
    trace, begun = Made().trace(), threading.Event()
    made: list[int] = []

    @cached_on_trace
    def make(_trace: Trace) -> int:
        begun.set()
        made.append(len(made))
        return threading.Event().wait(0.05) or made[-1]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make, trace)
        assert begun.wait(5)
        assert not make.is_cached(trace)
        second = pool.submit(make, trace)
        assert (first.result(), second.result(), made) == (0, 0, [0])
    assert make.is_cached(trace)


def test_a_trace_goes_with_all_that_is_known_of_it() -> None:
    def ask() -> weakref.ref[Trace]:
        trace = tuiprof.open_trace(real_traces.SMALL)
        analyses.run_all(tuple(analyses.available()), trace)
        cached_on_trace(lambda trace: [trace])(trace)
        return weakref.ref(trace)

    asked = ask()
    gc.collect()
    assert asked() is None


def test_what_a_trace_derives_is_made_once() -> None:
    trace = Made().op("aten::add", 0, 1).trace()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: trace.nesting, range(8)))
    assert all(one is found[0] for one in found)


def test_what_is_kept_of_a_trace_goes_by_function_and_arguments() -> None:
    trace, other = Made().trace(), Made().trace()
    asked: list[int] = []

    @cached_on_trace
    def shifted(_trace: Trace, by: int) -> int:
        asked.append(by)
        return 10 // by

    @cached_on_trace
    def doubled(_trace: Trace, by: int) -> int:
        return 2 * by

    assert [shifted(trace, 1), shifted(trace, 2), shifted(trace, 1), doubled(trace, 1)] == [10, 5, 10, 2]
    assert asked == [1, 2]
    assert shifted.is_cached(trace, 2)
    assert not shifted.is_cached(other, 2)
    for _ in range(2):  # what raises is asked again
        with pytest.raises(ZeroDivisionError):
            shifted(trace, 0)
    assert asked == [1, 2, 0, 0]
