"""The head of a trace is what to change."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from on_screen import running, screen_text, until
from trace_app import app_of, settle, typed

from tuiprof import advice, analyses
from tuiprof.formats import open_trace
from tuiprof.model import Trace
from tuiprof.resources import shipped
from tuiprof.tui.trace.head import FindingHead
from tuiprof.tui.trace.view import Finding, finding_rows, tab_of_rule

TRACE = shipped("traces") / "metrics-naive.pt.trace.json.gz"
FOUND = Finding(
    "nan-check", "a metric asks for NaN", "aggregation.py:93", "nan_strategy", "tuiprof ladder metrics",
    1.4e6, 1.1e6, 1.7e6, 0.052, 26.7e6, 7,
)  # fmt: skip


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Read and worked out once: a trace never changes."""
    return open_trace(TRACE)


def lines_of(found: Finding, width: int = 120, height: int = 5, count: int = 3) -> list[str]:
    return ["".join(text for text, _ in row) for row in finding_rows(found, 1, count, width, height)]


def test_the_bar_leaves_room_for_the_number_of_the_finding() -> None:
    for width, cells in ((100, 20), (120, 28)):
        first = lines_of(FOUND, width)[0]
        assert first.endswith("1 of 3 ] next ")
        assert len(re.findall("[█░]", first)) >= cells


def test_a_finding_says_how_much_where_what_to_write_and_which_keys() -> None:
    first, what, where, fix = lines_of(FOUND)
    assert first.startswith("▌✗ saves about 5.2 %")
    assert "1.40 ms of 26.7 ms  (1.10 ms to 1.70 ms)" in first
    assert first.rstrip().endswith("1 of 3 ] next")
    assert "a metric asks for NaN" in what
    assert where.startswith("▌  where  aggregation.py:93")
    assert where.rstrip().endswith("o show")
    assert fix.rstrip().endswith("C copy P prove")


def test_a_place_that_is_too_long_is_cut_in_its_middle() -> None:
    kernel = "linear, cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2"
    where = lines_of(replace(FOUND, where=kernel), 80)[2]
    assert where.startswith("▌  where  linear, cutlass_80_tensorop")
    assert "…" in where
    assert "tn_align2" in where
    line = "ExponentialMovingAverageOfTheWeights.on_train_batch_end, models/callbacks/averages.py:105"
    assert "averages.py:105 " in lines_of(replace(FOUND, where=line), 80)[2]
    chain = (
        "metrics.py update() from line 143 → torchmetrics/aggregation.py _cast_and_nan_check() from line 77"
    )
    where = lines_of(replace(FOUND, where=chain), 80)[2]
    assert "metrics.py update() from line 143 → " in where
    assert " 77 " in where


def test_where_there_is_little_room_the_fix_stays() -> None:
    lines = lines_of(FOUND, 80, 3)
    assert len(lines) == 3
    assert "fix: nan_strategy" in lines[2]
    assert all(len(line) <= 80 for line in lines)


def test_a_fix_ends_at_a_whole_clause_and_its_second_line_takes_the_room_below_the_keys() -> None:
    fix = "larger batches, torch.compile(mode='reduce-overhead') or CUDA graphs, or fewer kernels; no waits"
    lines = lines_of(replace(FOUND, fix=fix), 80)
    assert lines[-1].rstrip() == "▌         or CUDA graphs, or fewer kernels; no waits"
    lines = lines_of(replace(FOUND, fix=fix + " which block the host while the device is idle"), 80)
    assert lines[-1].rstrip() == "▌         or CUDA graphs, or fewer kernels …"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_screen_and_nothing_hostile_is_drawn(width: int) -> None:
    hostile = replace(FOUND, what="x\x1b[31m" * 40, where="[bold]" * 50, fix="y" * 500)
    for line in lines_of(hostile, width, 6):
        assert len(line) <= width
        assert "\x1b" not in line


def test_what_cannot_be_priced_has_no_bar() -> None:
    first = lines_of(replace(FOUND, saves_ns=None, share=None))[0]
    assert "█" not in first
    assert "saves about" not in first
    assert "savings unknown" in first


async def test_keys_go_through_the_findings_and_open_their_evidence(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(trace)
    copied: list[str] = []
    monkeypatch.setattr(type(app), "copy_to_clipboard", lambda self, text: copied.append(text))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "saves about" in app.text("#trace-verdict"))
        await settle(pilot)
        first: Any = app.view.finding
        assert app.view.current == "kernels"  # the evidence of the first finding
        await typed(pilot, "right_square_bracket", "right_square_bracket")
        assert "aggregation.py:93" in app.text("#trace-verdict")
        assert app.view.current == "sync_events"
        await pilot.press("o")
        assert app.timeline.state.event == app.view.finding.event
        await pilot.press("C", "P")
        assert copied == [app.view.finding.fix, app.view.finding.prove]
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert app.view.finding == first
        await pilot.click("#trace-verdict", offset=(115, 0))  # "] next"
        await pilot.click("#trace-verdict", offset=(115, 0))
        await until(pilot, lambda: "3 of 4" in app.text("#trace-verdict"))
        await pilot.click("#trace-verdict", offset=(40, 3))  # the text of the fix
        await pilot.click("#trace-verdict", offset=(107, 3))  # "C copy"
        await until(pilot, lambda: copied[2:] == [app.view.finding.fix])


async def test_the_head_follows_the_cursor_in_the_list_of_findings(trace: Trace) -> None:
    async with running(app_of(trace), size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "1 of 4" in app.text("#trace-verdict"))
        await pilot.press("9", "down", "down")
        await until(pilot, lambda: "3 of 4" in app.text("#trace-verdict"))
        assert app.view.current == "advice"
        head = app.text("#answer-table").splitlines()[0].split("  ")
        assert [word.strip() for word in head if word.strip()] == ["saves/step", "of step", "what", "where"]
        assert app.table.size.height > len(app.view.findings), "every finding is in view"
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "4 of 4" in app.text("#trace-verdict"))
        assert app.view.current != "advice"
        await typed(pilot, "9")
        assert app.table.current == 3
        assert "4 of 4" in app.text("#trace-verdict")


def test_every_rule_opens_a_tab_that_shows_it() -> None:
    tabs = {rule: tab_of_rule(rule) for rule in advice.available()}
    assert set(tabs.values()) <= set(analyses.available())
    assert tabs["python-time"] == "steps", "a table of kernels does not show time that is in no operator"


async def test_a_tab_that_was_chosen_stays_open(trace: Trace) -> None:
    async with running(app_of(trace), size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await pilot.press("5")
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "saves about" in app.text("#trace-verdict"))
        assert app.view.current == "steps"


async def test_the_timeline_shows_what_the_finding_costs_and_the_step_with_its_fix(trace: Trace) -> None:
    async with running(app_of(trace), size=(140, 40)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "lost" in app.text("#timeline"))
        await settle(pilot)
        lost = app.timeline.state.lanes.lost if app.timeline.state.lanes is not None else None
        assert lost is not None
        first, steps = app.view.finding, app.view.trace.steps
        low, high = int(steps.starts[0]), int(steps.ends[-1])
        assert first is not None
        assert first.saves_ns is not None
        # The lane adds up to the figure of the head.
        assert lost.between(low, app.view.trace.span[1]) == pytest.approx(4 * first.saves_ns, rel=1e-6)
        assert "lost to this finding" in app.text("#timeline")
        assert " ops " not in app.text("#timeline")
        await typed(pilot, "d")
        assert " ops " in app.text("#timeline")
        await typed(pilot, "p")
        await until(pilot, lambda: "fix GPU" in app.text("#timeline"))
        assert app.timeline.state.lanes is not None
        assert app.timeline.state.lanes.replayed is not None
        await typed(pilot, "escape")
        assert app.timeline.state.lanes.lost is lost
        assert app.timeline.state.view.low <= low < high <= app.timeline.state.view.high


async def test_figures_are_without_the_profiler_until_they_are_wanted_as_captured(trace: Trace) -> None:
    async with running(app_of(trace), size=(140, 40)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "of 27.1 ms" in app.text("#trace-verdict"))
        assert "27.1 ms a step (median 28.4 ms while captured)" in app.text("#trace-head")
        assert "of 27.1 ms" in app.text("#trace-verdict")
        await pilot.press("U")
        await until(pilot, lambda: "of 29.2 ms" in app.text("#trace-verdict"))
        assert "29.2 ms a step " in app.text("#trace-head")
        assert "as captured" in app.text("TabBar")
        await typed(pilot, "U")
        assert "of 27.1 ms" in app.text("#trace-verdict")
        assert "as captured" not in app.text("TabBar")


async def test_advice_is_in_view_at_80_columns_whichever_tab_is_open(trace: Trace) -> None:
    async with running(app_of(trace), size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: "9 Advice 4" in app.text("TabBar"))
        await settle(pilot)
        for digit in "123456":
            await typed(pilot, digit)
            assert "9 Advice 4" in app.text("TabBar"), digit
            assert f" {digit} " in app.text("TabBar")


async def test_a_device_that_idles_outside_of_the_steps_is_dim(trace: Trace) -> None:
    async with running(app_of(trace), size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(FindingHead)))
        await until(pilot, lambda: app.timeline.state.lanes is not None and app.timeline.state.lanes.exact)
        await settle(pilot)
        app.timeline.state.fit(*app.view.trace.span)
        await settle(pilot)
        lines = [app.timeline.render_line(y) for y in range(app.timeline.size.height)]
        (idle,) = (line for line in lines if line.text.startswith(" idle"))
        colours = [
            (segment.style.color if segment.style else None)
            for segment in idle
            for char in segment.text
            if char == "▓"
        ]
        steps, span = app.view.trace.steps, app.view.trace.span
        assert steps.ends[-1] < span[1] - 20e6, "the trace goes on for long behind its last step"
        assert colours[-1] == colours[0]  # before the first step and behind the last
        assert len(set(colours)) == 2


@pytest.mark.parametrize(("width", "whole"), [(120, True), (80, False), (60, False)])
async def test_the_step_time_outlasts_the_other_facts_and_the_whole_name(
    width: int, whole: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"{'a-long-name-of-a-run-' * 3}.pt.trace.json.gz"
    path.symlink_to(TRACE)
    async with running(app_of(open_trace(path)), size=(width, 24)) as (app, pilot):
        await until(pilot, lambda: "   27.1 ms a step " in screen_text(app).splitlines()[0])
        assert (path.name in screen_text(app)) == whole
