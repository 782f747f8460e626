"""The page of a trace: its step times are of one kind, each with its name, and it says if anything is missing."""

from __future__ import annotations

import json

import pytest
from analyses.made import Made, report

from tuiprof.advice import advise
from tuiprof.advice.answer import answer
from tuiprof.advice.question import answer as question
from tuiprof.advice.question import changes
from tuiprof.analyses.shared.replay import trust
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace
from tuiprof.model.steps import Uncaptured
from tuiprof.report import Style
from tuiprof.report.answer import to_json, to_text
from tuiprof.resources import shipped


def steps(*lengths: int, device: bool = True) -> Trace:
    """Steps of so many µs that multiply and launch."""
    made, at = Made(), 0
    for number, length in enumerate(lengths):
        made.step(number, at, at + length)
        for i in range(length // 100 - 1):
            begin = at + 100 * i
            made.op("aten::mm", begin + 5, begin + 60)
            if device:
                correlation = 1000 * number + i + 1
                made.launch("gemm", (begin + 10, begin + 15), (begin + 20, begin + 30), correlation)
        at += length
    return made.trace()


def test_what_a_captured_step_takes_is_one_figure_everywhere_and_is_called_the_median() -> None:
    trace = steps(6_000, 2_000, 2_100, 1_900)  # the mean is 3 ms
    trace.uncaptured = Uncaptured(40, 1e6, 0.9e6, 1.1e6)
    page = answer(trace, "train")
    shown = to_text(page, Style(width=200))
    launches = report("kernel_launches", trace)
    assert shown.startswith(
        "train · 4 steps · 1.00 ms a step, median of 40 steps before the capture (median 2.05 ms while captured)"
    )
    assert json.loads(to_json(page))["captured_step_ns"] == 2_050_000
    assert advise(trace).fact("captured_step_ns") == 2_050_000
    asked = question(trace, changes(trace, host=0.5))
    assert isinstance(asked, Report)
    assert asked.fact("captured_step_ns") == 2_050_000
    for text in (
        next(line.sentence for line in page.lines if line.analysis == "steps"),
        next(remark.text for remark in trust(trace).remarks if remark.code == "slowed"),
        next(note for note in page.notes if "while captured" in note),
        next(note for note in launches.notes if "While captured" in note),
    ):
        assert "2.05 ms" in text
        assert "3.00 ms" not in text


def test_the_base_of_the_savings_says_which_steps_it_is_of() -> None:
    trace = steps(1_000, 1_000, 1_000)
    assert answer(trace, "").step_is == "mean of 3 captured steps", (
        "nothing is known of steps without the profiler"
    )
    trace = steps(1_000, 1_000, 1_000)
    trace.uncaptured = Uncaptured(1, 0.9e6, 0.9e6, 0.9e6, after_capture=True)
    page = answer(trace, "")
    assert page.step_is == "median of 1 step after the capture"
    assert json.loads(to_json(page))["step_is"] == page.step_is


@pytest.mark.parametrize(
    ("name", "said"),
    [("metrics-naive", "without the profiler"), ("metrics-no-nan-check", "mean of 4 captured steps")],
)
def test_a_step_whose_pace_the_device_sets_is_no_other_without_the_profiler(name: str, said: str) -> None:
    assert answer(open_trace(shipped("traces") / f"{name}.pt.trace.json.gz"), "").step_is == said


@pytest.mark.parametrize(("device", "said"), [(False, "CPU-only trace"), (True, "no Python frames")])
def test_a_trace_is_complete_if_only_something_else_was_not_recorded_and_that_is_said(
    device: bool, said: str
) -> None:
    page = answer(steps(1_000, 1_000, device=device), "")
    assert json.loads(to_json(page))["trust"]["complete"]
    shown = to_text(page, Style(width=200))
    assert said in shown
    assert "trace complete" not in shown


def test_a_trace_whose_events_cannot_be_placed_is_not_complete() -> None:
    made = Made()
    for number in range(4):
        made.step(number, number * 1000, number * 1000 + 1000).op(
            "aten::mm", number * 1000 + 1, number * 1000 + 9
        )
        made.kernel("gemm", number * 1000 + 10, number * 1000 + 900)  # without a launch
    page = answer(made.trace(), "")
    assert not json.loads(to_json(page))["trust"]["complete"]
    assert "no launch here" in to_text(page, Style(width=200))
