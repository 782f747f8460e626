"""The page of a trace: its step times are of one kind, each with its name, and it says if anything is missing.

What it says first is the most specific change that causes a good part of the cost.
"""

from __future__ import annotations

import json

import pytest
from analyses.made import Made, report
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.advice import advise
from tuiprof.advice.answer import answer
from tuiprof.advice.finding import Finding
from tuiprof.advice.pricing import ADDS, Priorities, prioritise
from tuiprof.advice.question import answer as question
from tuiprof.advice.question import changes
from tuiprof.analyses.shared.replay import launched_faster, replayed_steps, trust
from tuiprof.comparison.headline import headline
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace
from tuiprof.model.steps import Uncaptured
from tuiprof.report import Style
from tuiprof.report.answer import to_json, to_markdown, to_text
from tuiprof.report.html import page as html_page
from tuiprof.resources import shipped
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import Kinds


def steps(*lengths: int, device: bool = True) -> Trace:
    """Steps of so many µs that multiply and launch."""
    made, at = Made(), 0
    for number, length in enumerate(lengths):
        made.step(number, at, at + length)
        for i in range(length // 100 - 1):
            begin = at + 100 * i
            made.op("aten::mm", begin + 5, begin + 60)
            if device:
                made.launch("gemm", (begin + 10, begin + 15), (begin + 20, begin + 30))
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


@pytest.mark.parametrize(
    ("step_us", "said"),
    [(2_000, "5.0 % more"), (3_000, "30.0 % less"), (1_000, "2.1 times as long"), (160, "13 times as long")],
)
def test_what_a_capture_takes_longer_is_a_share_or_from_twice_on_a_ratio(step_us: int, said: str) -> None:
    trace = steps(2_100, 2_100, 2_100)
    trace.uncaptured = Uncaptured(40, 1e3 * step_us, 0.9e3 * step_us, 1.1e3 * step_us)
    [note] = (note for note in advise(trace).notes if "while captured" in note)
    assert note.endswith(f"while captured, the median step takes 2.10 ms ({said}).")


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


# -- what comes first --------------------------------------------------------------------------------------

#: Operators with one short kernel each; no two in a row have the same name.
NAMES = tuple(f"aten::{name}" for name in ("gather", "cumsum", "sum", "roll", "argmax", "flip", "mean"))


def launching(passes: int, others: int) -> Trace:
    """Steps whose device waits for launches: of a loop of two operators, and of as many others."""
    made = Made()
    names = ["aten::mul_", "aten::add_"] * passes
    # Their order repeats nowhere.
    names += [NAMES[(index * index + index // 7) % len(NAMES)] for index in range(others)]
    for _, at in made.steps(20 * len(names) + 20):
        for index, name in enumerate(names):
            begin = at + 10 + 20 * index
            made.op(name, begin, begin + 18)
            made.launch("reduce_kernel", (begin + 5, begin + 10), (begin + 12, begin + 14))
    return made.trace()


def test_the_loop_that_causes_most_of_the_launches_comes_before_launching_less() -> None:
    trace = launching(passes=40, others=100)
    first, second = answer(trace, "").changes
    assert (first.rule, second.rule) == ("kernel-loop", "launch-bound")
    assert second.saves_ns is not None
    assert first.saves_ns is not None
    assert second.saves_ns > first.saves_ns, "so it is not the order of savings alone"
    assert (first.on_top, second.on_top, second.overlaps) == (False, True, False)
    # Together they save what both say: the second is what is left after the first.
    assert answer(trace, "").together_ns == pytest.approx(first.saves_ns + second.saves_ns)


def test_launching_less_comes_first_where_a_loop_is_a_small_part_of_it() -> None:
    first, second = answer(launching(passes=14, others=160), "").changes
    assert (first.rule, second.rule) == ("launch-bound", "kernel-loop")
    assert (first.on_top, second.overlaps) == (False, True)


def test_what_comes_first_is_the_same_on_every_page() -> None:
    trace = launching(passes=40, others=100)
    page = answer(trace, "")
    loop, rest = page.changes
    findings = json.loads(to_json(page))["findings"]
    assert [(item["rule"], item["on_top"]) for item in findings] == [
        ("kernel-loop", False),
        ("launch-bound", True),
    ]
    for shown in (to_text(page, Style(width=500)), to_markdown(page), html_page(page)):
        assert shown.index("a loop calls") < shown.index(rest.what)
        assert shown.count("once the above is fixed") == 1
    advice = advise(trace)
    assert advice.table("findings").rows["rule"].to_list() == ["kernel-loop", "launch-bound"]
    assert loop.what in advice.verdict.sentence
    assert loop.what in headline(trace).line
    asked = question(trace, [])
    assert isinstance(asked, Report)
    assert asked.table("changes").rows["change"].to_list()[:2] == [
        "without kernel-loop",
        "without launch-bound",
    ]


@st.composite
def advised(draw: st.DrawFn) -> tuple[Priorities, Kinds]:
    """Findings that remove random operators of a step, and a general one that launches all of them faster."""
    lengths = draw(st.lists(st.integers(6, 60), min_size=4, max_size=14))
    works = draw(st.lists(st.integers(1, 80), min_size=len(lengths), max_size=len(lengths)))
    made, free = Made(), 0.0
    for _, at in made.steps(sum(lengths) + 20, 3):
        begin = at + 5.0
        for index, (length, work) in enumerate(zip(lengths, works, strict=True)):
            start = max(begin + 5, free + 1)
            free = start + work
            made.op(f"aten::op{index}", begin, begin + length - 1)
            made.launch(f"kernel{index}", (begin + 1, begin + 4), (start, free))
            begin += length
    trace = made.trace()
    steps = replayed_steps(trace)
    assert isinstance(steps, Kinds)
    found = []
    for number in range(draw(st.integers(0, 4))):
        chosen = draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
        names = "|".join(f"aten::op{index}$" for index in sorted(chosen))
        rows = trace.operators()[trace.named(f"^({names})", trace.operators())]
        finding = Finding(
            f"{number}", "", "", "high", "", Edit.of_host(trace, rows, draw(st.floats(0.0, 0.9)))
        )
        found.append(("specific", finding))
    general = Finding("all", "", "", "medium", "", launched_faster(trace, 0.1), remainder=True)
    return prioritise(draw(st.permutations([*found, ("general", general)])), steps, trace), steps


@given(advised())
def test_a_general_change_comes_after_what_saves_more_or_causes_a_good_part_of_it(
    advised: tuple[Priorities, Kinds],
) -> None:
    found, steps = advised
    savings = [item.win.ns for item in found.findings if item.win is not None and not item.finding.remainder]
    assert savings == sorted(savings, reverse=True)
    general = next((item for item in found.findings if item.finding.remainder), None)
    if general is None:
        return
    assert general.win is not None
    at = found.findings.index(general)
    edit = general.finding.edits.likely
    alone_ns = steps.likely_ns(edit)
    assert general.win.ns <= alone_ns + 1
    causes = {
        index
        for index, item in enumerate(found.findings)
        if not item.finding.remainder
        and steps.likely_ns(edit, on=item.finding.edits.likely) < ADDS * alone_ns
    }
    assert all(index < at for index in causes)
    assert general.on_top == bool(causes)
    larger = [
        index for index, item in enumerate(found.findings[:at]) if item.win and item.win.ns >= general.win.ns
    ]
    # It is directly below the last finding that it has to follow.
    assert at == max((index + 1 for index in (*causes, *larger)), default=0)
