"""The live chart: where its dots, marks, axes and words stand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines_app import Host, text_of_widget
from on_screen import running

from tuiprof.tui.live.charts import (
    BRAILLE_BASE,
    ChartData,
    Mark,
    Plot,
    StripChart,
    cells,
    column_ranges,
    dot_rows,
    joined,
    nice_step,
    text_of,
)
from tuiprof.tui.terminal import glyphs


def test_columns_hold_every_step_and_cover_long_ones() -> None:
    ends = np.array([1.0, 1.1, 1.2, 4.0])
    took = np.array([1.0, 0.1, 0.1, 2.8])
    least, mean, greatest = column_ranges(ends - took, ends, took, took, np.linspace(0, 4, 5))
    assert least.tolist() == [1.0, 0.1, 2.8, 2.8]
    assert greatest.tolist() == [1.0, 2.8, 2.8, 2.8]
    assert mean[0] == 1.0
    empty = column_ranges(*(np.empty(0),) * 4, np.linspace(0, 4, 5))
    assert all(np.isnan(values).all() for values in empty)


def test_braille_dots_are_where_the_values_are() -> None:
    rows = dot_rows(np.array([0.0, 1.0]), 0.0, 1.0, 4)
    assert rows.tolist() == [3, 0]
    # The second column reaches down to the first, so that the line is not torn.
    assert [int(edge[1]) for edge in joined(rows)] == [0, 2]
    line = text_of(cells(*joined(rows), 1)[0])
    assert ord(line) - BRAILLE_BASE == 0x40 | 0x08 | 0x10 | 0x20
    assert text_of(cells(np.array([1, 1]), np.array([0, 0]), 1)[0]) == " "


@pytest.mark.parametrize(("span", "most", "step"), [(10, 5, 2), (0.7, 7, 0.1), (4.2, 8, 1), (1234, 3, 500)])
def test_ticks_are_round(span: float, most: int, step: float) -> None:
    assert nice_step(span, most) == pytest.approx(step)


async def test_the_chart_marks_outliers_and_captured_steps() -> None:
    chart = StripChart()
    took = np.full(200, 27.0)
    took[150] = 60.0
    ends = np.cumsum(took) / 1e3
    async with running(Host(chart), size=(90, 14)) as (_, pilot):
        chart.styles.height = 12
        await pilot.pause()
        chart.show(
            ChartData(
                ends - took / 1e3,
                ends,
                took,
                took,
                now_s=float(ends[-1]),
                window_s=10.0,
                median_ms=27.0,
                marks=(Mark(float(ends[150]), 60.0, "step 150  60.0 ms"),),
                captured_s=((2.0, 2.4),),
            )
        )
        await pilot.pause()
        lines = text_of_widget(chart)
        assert any("step 150  60.0 ms ●" in line for line in lines)
        assert "captured" in lines[-1]
        assert glyphs.CAPTURED in lines[-1]
        assert "now" in lines[-1]
        labels = [line[:10].strip() for line in lines[:-1] if line[:10].strip()]
        assert all(label.endswith(" ms") for label in labels)
        # The axis shows the bulk: one slow step does not flatten all the others.
        assert max(float(label.split()[0]) for label in labels) < 40


@pytest.mark.parametrize("selected", range(60, 180, 5))
async def test_the_selected_step_leaves_no_part_of_another_label(selected: int) -> None:
    chart = StripChart()
    took = np.full(200, 27.0)
    slow = (100, 140)
    took[list(slow)] = 60.0
    ends = np.cumsum(took) / 1e3
    marks = [Mark(float(ends[n]), float(took[n]), f"step {n}  {took[n]:.1f} ms") for n in (*slow, selected)]
    async with running(Host(chart), size=(90, 14)) as (_, pilot):
        chart.styles.height = 12
        await pilot.pause()
        now = {"now_s": float(ends[-1]), "window_s": 6.0, "median_ms": 27.0, "selected": marks[-1]}
        chart.show(ChartData(ends - took / 1e3, ends, took, took, marks=tuple(marks[:-1]), **now))  # type: ignore[arg-type]
        await pilot.pause()
        lines = text_of_widget(chart)[:-1]
        assert any(marks[-1].label in line for line in lines)
        for line in lines:
            left = line[11:]
            for mark in marks:
                left = left.replace(mark.label, "")
            assert not re.search(r"\w", left), line


def test_a_slow_start_is_no_scale_for_what_follows() -> None:
    chart = StripChart()

    def axis(steps: int) -> tuple[float, float]:
        took = np.array([500.0, 450.0, *[26.0 + 0.01 * (n % 7) for n in range(steps)]])
        ends = np.cumsum(took) / 1e3
        chart._data = ChartData(
            ends - took / 1e3, ends, took, took, median_ms=26.0, limit_ms=30.0 if steps else 1e9
        )
        return chart._axis(0.0, 60.0)

    assert axis(0)[1] > 450
    low, high = axis(50)
    assert 20 < low < 26 < high < 32
    assert axis(60) == (low, high)  # and stands still from then on


@pytest.mark.parametrize("now_s", [3.0, 5.4, 9.9])
async def test_the_median_ends_at_the_moment_shown(now_s: float) -> None:
    chart = StripChart()
    ends = np.arange(0.5, now_s, 0.5)
    took = np.where(np.arange(len(ends)) % 2, 30.0, 24.0)
    async with running(Host(chart), size=(92, 14)) as (_, pilot):
        chart.styles.height = 12
        await pilot.pause()
        chart.show(
            ChartData(
                ends - 0.01,
                ends,
                took,
                took,
                now_s=now_s,
                edge_s=10.0,
                window_s=10.0,
                median_ms=27.0,
                live=True,
            )
        )
        await pilot.pause()
        dotted = [line for line in text_of_widget(chart) if glyphs.MEDIAN in line]
        assert len(dotted) == 1
        per_s = (len(dotted[0]) - 12) / 10
        assert dotted[0].rindex(glyphs.MEDIAN) - 11 == pytest.approx(now_s * per_s, abs=1.5)


@given(
    st.integers(20, 180),
    st.floats(0.0, 60.0),
    st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 5.0)), max_size=4),
    st.booleans(),
)
def test_words_below_the_chart_never_run_into_one_another(
    width: int, now_s: float, captures: list[tuple[float, float]], live: bool
) -> None:
    chart = StripChart()
    spans = tuple((start, min(start + took, now_s)) for start, took in captures if start < now_s)
    chart._data = ChartData(now_s=now_s, captured_s=spans, live=live)
    row = "".join(text for text, _ in chart._time_axis(Plot(width, 4, 0.0, 60.0, 0.0, 1.0)))
    assert len(row) == width
    words = row.replace(glyphs.CAPTURED, " ").split()
    assert all(word in ("captured", "now") or re.fullmatch(r"\d\d:\d\d:\d\d", word) for word in words), row
