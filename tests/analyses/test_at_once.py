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
from tuiprof import analyses
from tuiprof.analyses.shared.memo import is_remembered, remember
from tuiprof.errors import UsageProblem
from tuiprof.model import Trace
from tuiprof.report import render_all

SAMPLE = Path(__file__).parents[2] / "traces" / "metrics-naive.pt.trace.json.gz"


def test_answers_are_those_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(analyses.available())
    one_by_one = [analyses.run(name, tuiprof.open_trace(SAMPLE)) for name in names]
    monkeypatch.setattr(analyses, "_WORTH_THREADS", 0)
    at_once = analyses.run_all(names, tuiprof.open_trace(SAMPLE))
    assert render_all(at_once, "json") == render_all(one_by_one, "json")


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_an_analysis_that_is_not_there(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(analyses, "_WORTH_THREADS", least)
    with pytest.raises(UsageProblem, match="nonsense"):
        analyses.run_all(("steps", "nonsense"), Made().op("aten::add", 0, 1).trace())


def test_what_threads_share_is_made_once() -> None:
    trace, begun = Made().trace(), threading.Event()
    made: list[int] = []

    def make() -> int:
        begun.set()
        made.append(len(made))
        return threading.Event().wait(0.05) or made[-1]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(remember, trace, "it", make)
        assert begun.wait(5)
        assert not is_remembered(trace, "it")
        second = pool.submit(remember, trace, "it", make)
        assert (first.result(), second.result(), made) == (0, 0, [0])
    assert is_remembered(trace, "it")


def test_a_trace_goes_with_all_that_is_known_of_it() -> None:
    def ask() -> weakref.ref[Trace]:
        trace = tuiprof.open_trace(SAMPLE)
        analyses.run_all(tuple(analyses.available()), trace)
        remember(trace, "itself", lambda: [trace])
        return weakref.ref(trace)

    asked = ask()
    gc.collect()
    assert asked() is None


def test_what_a_trace_derives_is_made_once() -> None:
    trace = Made().op("aten::add", 0, 1).trace()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: trace.nesting, range(8)))
    assert all(one is found[0] for one in found)
