from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tuiprof.tui.ladder.view import Ratio, Scale, axis_row, forest_row, scale_of
from tuiprof.tui.widgets.lines import Row, row_width

WIDTH = 61
FAR: Ratio = (1 / 100, 1 / 200, 1 / 50)
NEAR: Ratio = (1.01, 0.99, 1.03)


def text(row: Row) -> str:
    return "".join(part for part, _ in row)


def scale() -> Scale:
    found = scale_of([FAR, NEAR])
    assert found is not None
    return found


def test_the_point_lies_in_its_interval_and_faster_lies_left_of_the_baseline() -> None:
    far, near = (text(forest_row(scale(), ratio, "good", WIDTH)) for ratio in (FAR, NEAR))
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
    words = text(axis_row(scale(), "÷200", "baseline", "+3.0 %", WIDTH))
    assert words.startswith("÷200")
    assert "baseline" in words
    assert "+3.0 %" not in words
    assert text(axis_row(scale(), "÷200", "baseline", "+3.0 %", 9)).strip() == "baseline"
