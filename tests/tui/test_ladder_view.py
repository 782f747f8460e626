"""What the ladder screen shows, without a screen."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from ladder.made_ladders import ladder_meta

from tuiprof.ladder.state import Figures, LadderMeta, Rung, Trial
from tuiprof.model import Column, Report, Table, Verdict
from tuiprof.tui.ladder.view import (
    LadderView,
    Ratio,
    Scale,
    about_rung,
    axis_row,
    forest_row,
    head_row,
    rung_choices,
    scale_of,
    state_rows,
    view_of,
    with_report,
)
from tuiprof.tui.widgets.spans import Row, row_width

FOLDER = Path("/ladders/tiny")


def meta_of(timings: dict[str, float], *, running: bool = False) -> LadderMeta:
    rungs = (
        *(Rung(name, "slow", note=f"{name} sleeps.") for name in timings),
        Rung("gone", "slow", reason="no TPU"),
    )
    trials = [
        Trial("timing", number, name, "", "done", wall_ns=10**9, figures=Figures(ns * (1 + number / 1e3), 30))
        for number in (1, 2, 3)
        for name, ns in timings.items()
    ]
    if running:
        trials.append(Trial("trace", 0, "fast", "", "running"))
    title, source, machine = "a [b]loop[/b]", "a laptop", "2 cores"
    return ladder_meta(
        *rungs, ladder="tiny", title=title, source=source, machine=machine, rounds=3, unix_ns=1, trials=trials
    )


def text(rows: list[Row]) -> str:
    return "\n".join("".join(span for span, _ in row) for row in rows)


def rungs(view: LadderView, width: int) -> list[str]:
    lines = [choice.draw(width) for choice in rung_choices(view)]
    assert all(row_width(line) <= width for line in lines)
    return text(lines).split("\n")


MEASURED = meta_of({"slow": 20e6, "fast": 15e6})


def test_each_rung_has_its_time_its_ratio_and_a_verdict() -> None:
    head, slow, fast, gone = rungs(view_of(MEASURED, FOLDER), 150)
    assert "95 % interval" in head
    assert "20.0 ms" in slow
    assert "baseline" in slow
    assert "15.0 ms" in fast
    assert "1.33× faster" in fast
    assert "faster" in fast
    assert "unavailable  no TPU" in gone
    narrow = rungs(view_of(MEASURED, FOLDER), 45)
    assert "95 % interval" not in narrow[0]
    assert "15.0 ms" in narrow[2]


def test_the_state_of_a_ladder() -> None:
    assert "not measured on this machine yet" in text(state_rows(view_of(MEASURED), 120))
    stopped = view_of(MEASURED, FOLDER, problem="Killed \x1b[2J")
    said = text(state_rows(stopped, 120))
    assert "stopped" in said
    assert "Killed" in said
    assert "\x1b" not in said
    running = view_of(meta_of({"slow": 20e6, "fast": 15e6}, running=True), FOLDER, running=True)
    assert running.trial is not None
    assert "capturing fast" in text(state_rows(running, 120))
    assert f"{running.done}/{running.total} trials" in text(state_rows(running, 120))


def test_what_the_traces_tell_is_added() -> None:
    columns = tuple(
        Column(name, name) for name in ("variant", "syncs_per_step", "launches_per_step", "trace")
    )
    found = pl.DataFrame(
        {"variant": ["fast"], "syncs_per_step": [2.0], "launches_per_step": [9.0], "trace": ["/t"]}
    )
    why = pl.DataFrame({"variant": ["fast"], "changes": ["2 syncs fewer"]})
    tables = (
        Table("rungs", "Rungs", columns, found),
        Table("why", "Why", (Column("variant", "variant"), Column("changes", "changes")), why),
    )
    view = with_report(
        view_of(MEASURED, FOLDER), Report("ladder", "Ladder", Verdict("fast wins", "good"), (), tables)
    )
    rung = view.row("fast")
    assert rung is not None
    assert rung.trace == Path("/t")
    measured = replace(view, done=view.total)
    assert text(state_rows(measured, 100)).startswith("▌✓ fast wins"), "how good it is needs no colour"
    assert "syncs/step" in rungs(view, 150)[0]
    about = text(about_rung(view, rung, 100))
    assert "fast sleeps." in about
    assert "against slow: 2 syncs fewer" in about
    assert "a [b]loop[/b]" in text([head_row(view, "tiny", "1 of 2", 120)])
    assert about_rung(view, view.row("no such"), 100) == []


WIDTH = 61
FAR: Ratio = (1 / 100, 1 / 200, 1 / 50)
NEAR: Ratio = (1.01, 0.99, 1.03)


def scale() -> Scale:
    found = scale_of([FAR, NEAR])
    assert found is not None
    return found


def test_the_point_lies_in_its_interval_and_faster_lies_left_of_the_baseline() -> None:
    far, near = (text([forest_row(scale(), ratio, "good", WIDTH)]) for ratio in (FAR, NEAR))
    assert len(far) == len(near) == WIDTH
    assert far.count("●") == near.count("●") == 1
    assert far.index("─") < far.index("●") < far.rindex("─") < far.index("│")
    # What cannot be told from the baseline reaches over its line.
    assert "●" in near
    assert near.strip(" ─●│") == ""


def test_equal_factors_take_equal_room() -> None:
    one = Scale(1 / 1000, 1.0)
    at = [one.column(ratio, 301) for ratio in (1 / 1000, 1 / 100, 1 / 10, 1.0)]
    steps = [b - a for a, b in pairwise(at)]
    assert max(steps) - min(steps) <= 1


@pytest.mark.parametrize("ratio", [1e-9, 1e9])
def test_what_lies_beyond_the_scale_is_drawn_at_its_edge(ratio: float) -> None:
    assert row_width(forest_row(scale(), (ratio, ratio, ratio), "bad", WIDTH)) == WIDTH


def test_nothing_measured_needs_no_scale_and_alike_ratios_get_one() -> None:
    assert scale_of([]) is None
    alike = scale_of([(1.0, 1.0, 1.0)])
    assert alike is not None
    assert alike.low < 1 < alike.high
    assert math.isclose(alike.low * alike.high, 1.0)


def test_names_of_the_axis_that_would_touch_are_left_out() -> None:
    words = text([axis_row(scale(), "÷200", "baseline", "+3.0 %", WIDTH)])
    assert words.startswith("÷200")
    assert "baseline" in words
    assert "+3.0 %" not in words
    assert text([axis_row(scale(), "÷200", "baseline", "+3.0 %", 9)]).strip() == "baseline"
