"""Drawing: only what changed is repainted, every segment has a style, axes and columns are right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region

from tuiprof.tui import glyphs
from tuiprof.tui.widgets.braille import (
    BRAILLE_BASE,
    cells,
    column_ranges,
    dot_rows,
    joined,
    nice_step,
    text_of,
)
from tuiprof.tui.widgets.device_panel import DevicePanel, DeviceView
from tuiprof.tui.widgets.lines import Lines, Row, _changed, fit, row_width, spread
from tuiprof.tui.widgets.phase_bar import PhaseBar
from tuiprof.tui.widgets.strip_chart import ChartData, Mark, StripChart


class Words(Lines):
    DEFAULT_CSS = "Words { height: 3; }"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.painted: list[Region] = []

    def draw(self, width: int, height: int) -> list[Row]:
        return self.rows

    def refresh(self, *regions: Region, **options: object) -> Words:
        self.painted.extend(regions)
        return super().refresh(*regions, **options)  # type: ignore[arg-type]


class Host(App[None]):
    CSS_PATH = "../../tuiprof/tui/app.tcss"

    def __init__(self, widget: Lines) -> None:
        super().__init__()
        self.widget = widget

    def get_theme_variable_defaults(self) -> dict[str, str]:
        from tuiprof.tui.themes import DEFAULTS

        return dict(DEFAULTS)

    def compose(self) -> ComposeResult:
        yield self.widget


def text_of_widget(widget: Lines) -> list[str]:
    return ["".join(segment.text for segment in widget.render_line(y)) for y in range(widget.size.height)]


async def test_only_changed_cells_are_repainted() -> None:
    widget = Words()
    widget.rows = [[("step 1", "text"), ("  27.0 ms", "strong")], [("still", "dim")]]
    app = Host(widget)
    async with app.run_test(size=(40, 5)) as pilot:
        await pilot.pause()
        widget.painted.clear()
        widget.redraw()
        assert widget.painted == []
        widget.rows = [[("step 2", "text"), ("  27.0 ms", "strong")], [("still", "dim")]]
        widget.redraw()
        assert widget.painted == [Region(5, 0, 1, 1)]
        assert text_of_widget(widget)[0].startswith("step 2  27.0 ms")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([("abc", "text"), ("  ", "text")], [("abd", "text"), ("  ", "text")], (2, 3)),
        ([("abc", "text")], [("abc", "dim")], (0, 3)),
        ([("ab", "text"), ("cd", "dim")], [("ab", "text"), ("xd", "dim")], (2, 3)),
        ([("日本", "text"), ("x", "dim")], [("日語", "text"), ("x", "dim")], (2, 4)),
        ([("aa", "text"), ("b", "dim")], [("a", "text"), ("bb", "dim")], (1, 2)),
    ],
)
def test_range_of_cells_in_which_two_rows_differ(old: Row, new: Row, expected: tuple[int, int]) -> None:
    assert _changed(old, new, row_width(new)) == expected


def test_a_changed_range_never_misses_a_cell() -> None:
    import random

    rng = random.Random(3)
    for _ in range(500):
        old = [("".join(rng.choice("ab ⣿") for _ in range(4)), rng.choice(("text", "dim"))) for _ in range(3)]
        new = [span if rng.random() < 0.5 else (span[0][::-1], rng.choice(("text", "dim"))) for span in old]
        left, right = _changed(old, new, 12)
        flat = [[(char, role) for text, role in row for char in text] for row in (old, new)]
        differing = [at for at, (a, b) in enumerate(zip(*flat, strict=True)) if a != b]
        assert all(left <= at < right for at in differing)


def test_rows_fit_and_spread() -> None:
    assert row_width(fit([("a long sentence", "text")], 6)) == 6
    assert fit([("a long sentence", "text")], 6)[-1][0].endswith("…")
    assert "".join(text for text, _ in spread([("l", "text")], [("r", "text")], 10)) == "l        r"
    assert spread([("left", "text")], [("right", "text")], 8) == [("left", "text")]


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
    app = Host(chart)
    async with app.run_test(size=(90, 14)) as pilot:
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
    app = Host(chart)
    async with app.run_test(size=(92, 14)) as pilot:
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


async def test_every_segment_has_a_style_and_lines_fill_the_width() -> None:
    panel = DevicePanel()
    app = Host(panel)
    async with app.run_test(size=(100, 24)) as pilot:
        panel.styles.height = 20
        panel.show([gpu("[red]evil[/]\x1b[31m")], ["nvidia: absent"])
        await pilot.pause()
        for y in range(panel.size.height):
            strip = panel.render_line(y)
            assert strip.cell_length == panel.size.width == sum(cell_len(segment.text) for segment in strip)
            assert all(segment.style is not None and segment.style.color is not None for segment in strip)
        assert any("[red]evil[/]␛[31m" in line for line in text_of_widget(panel))


async def test_lines_of_devices_stand_in_columns() -> None:
    panel = DevicePanel()
    panel.compact = True
    busy, idle = gpu(), replace(gpu(), key="gpu1")
    idle.latest.update(util=0.0, mem_used_bytes=615 * (1 << 20), power_w=78.3)
    app = Host(panel)
    async with app.run_test(size=(100, 8)) as pilot:
        panel.styles.height = 3
        panel.show([busy, idle], [])
        await pilot.pause()
        first, second = text_of_widget(panel)[:2]
        for mark in (" %", "of 141", " W", "°C"):
            assert first.index(mark) == second.index(mark), mark


def gpu(name: str = "NVIDIA H200") -> DeviceView:
    return DeviceView(
        "gpu0",
        "nvidia",
        name,
        memory_bytes=141 << 30,
        details={"power_limit_w": 700.0},
        latest={"util": 0.94, "mem_used_bytes": 8.9 * (1 << 30), "power_w": 611.0, "temp_c": 58.0},
        words={"throttle": "none"},
        history={"util": [0.5, float("nan"), 1.0], "mem_used_bytes": [1e9, 2e9], "power_w": [350.0, 700.0]},
        allocator=(7 << 30, 8 << 30, 9 << 30),
    )


async def test_devices_give_as_much_detail_as_there_is_room() -> None:
    panel = DevicePanel()
    app = Host(panel)
    async with app.run_test(size=(100, 24)) as pilot:
        panel.styles.height = 20
        panel.show([gpu()], [])
        await pilot.pause()
        whole = "\n".join(text_of_widget(panel))
        for said in (
            "NVIDIA H200",
            "94.0 %",
            "8.90 of 141 GiB",
            "611 W",
            "58 °C",
            "peak 9.00 GiB",
            "throttle",
        ):
            assert said in whole
        panel.styles.height = 1
        await pilot.pause()
        panel.redraw()
        await pilot.pause()
        [line] = text_of_widget(panel)
        assert line.startswith(" GPU 0 util 94.0 % · mem 8.90 of 141 GiB · 611 W · 58 °C · no throttle")


def hosts_gpus(count: int, own: int) -> list[DeviceView]:
    """Return GPU ``own`` of the run, the host, then the GPUs of others."""
    from dataclasses import replace

    others = [replace(gpu(), key=f"gpu{i}", foreign=True) for i in range(count) if i != own]
    host = DeviceView("host", "host", "CPU", latest={"tree_cpu": 1.0, "util": 0.5})
    return [replace(gpu(), key=f"gpu{own}"), host, *others]


async def test_devices_of_others_take_a_line_each_and_what_room_the_runs_leave() -> None:
    panel = DevicePanel()
    app = Host(panel)
    async with app.run_test(size=(100, 40)) as pilot:
        panel.styles.height = 30
        panel.show(hosts_gpus(4, own=3), [])
        await pilot.pause()
        lines = text_of_widget(panel)
        assert lines[0].split() == ["GPU", "3", "NVIDIA", "H200"]
        foreign = [line for line in lines if line.startswith((" GPU 0", " GPU 1", " GPU 2"))]
        assert len(foreign) == 3
        assert all("94.0 %" in line and "8.90 of 141 GiB" in line for line in foreign)
        assert all(line.rstrip().endswith("not this run's") for line in foreign)
        panel.styles.height = 6  # the run's keep their detail, the others give way
        await pilot.pause()
        panel.redraw()
        await pilot.pause()
        lines = text_of_widget(panel)
        assert sum("not this run's" in line for line in lines) == 1
        assert "not this run's  GPU 0 94.0 % · GPU 1 94.0 % · GPU 2 94.0 %" in "\n".join(lines)
        assert lines[1].split()[0] == "mem", "a line for each figure of the run's, not one for all"


async def test_many_devices_of_others_are_one_line_of_a_narrow_screen() -> None:
    panel = DevicePanel()
    panel.compact = True
    app = Host(panel)
    async with app.run_test(size=(80, 24)) as pilot:
        panel.styles.height = "auto"
        panel.show(hosts_gpus(8, own=5), [])
        await pilot.pause()
        assert panel.height_for(80) == panel.size.height == 3
        lines = text_of_widget(panel)
        assert lines[0].startswith(" GPU 5 ")
        assert lines[1].startswith(" host ")
        assert lines[2].strip() == "not this run's  7 devices: util 94.0 % to 94.0 %"


async def test_processes_on_a_device_are_listed_where_it_is_shared() -> None:
    from dataclasses import replace

    panel = DevicePanel()
    app = Host(panel)
    async with app.run_test(size=(100, 24)) as pilot:
        panel.styles.height = 20
        view = gpu()
        shared = {"pid41_mem_used_bytes": 8.0 * (1 << 30), "pid977_mem_used_bytes": 1.0 * (1 << 30)}
        ours = {"tree_mem_used_bytes": 8.0 * (1 << 30)}
        panel.show([replace(view, latest={**view.latest, **shared, **ours})], [])
        await pilot.pause()
        [line] = [line for line in text_of_widget(panel) if "processes" in line]
        words = " ".join(line.split())
        assert words == "processes pid 41 8.00 GiB pid 977 1.00 GiB not this run 1.00 GiB"
        alone = {"pid41_mem_used_bytes": 8.0 * (1 << 30), **ours}
        panel.show([replace(view, latest={**view.latest, **alone})], [])
        await pilot.pause()
        assert not any("processes" in line for line in text_of_widget(panel))


async def test_a_throttled_device_says_so() -> None:
    panel = DevicePanel()
    app = Host(panel)
    async with app.run_test(size=(120, 5)) as pilot:
        view = gpu()
        panel.show(
            [DeviceView("gpu0", "nvidia", "x", latest=view.latest, words={"throttle": "power cap"})], []
        )
        await pilot.pause()
        assert "throttle: power cap" in text_of_widget(panel)[0]


@pytest.mark.parametrize("width", [40, 80, 120, 160])
async def test_phases_fit_any_width_and_keep_the_largest(width: int) -> None:
    bar = PhaseBar()
    app = Host(bar)
    means = {"data": 4e5, "h2d": 9e5, "forward": 8.1e6, "backward": 15.2e6, "optimizer": 9e5, "other": 1e5}
    async with app.run_test(size=(width, 4)) as pilot:
        bar.show(means, "")
        await pilot.pause()
        [line] = text_of_widget(bar)
        assert "backward 15.2" in line
        assert "forward" in line


async def test_no_phases_say_why() -> None:
    bar = PhaseBar()
    app = Host(bar)
    async with app.run_test(size=(100, 4)) as pilot:
        bar.show({}, "no phases recorded")
        await pilot.pause()
        assert "no phases recorded" in text_of_widget(bar)[0]


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
    row = "".join(text for text, _ in chart._time_axis(0.0, 60.0, width))
    assert len(row) == width
    words = row.replace(glyphs.CAPTURED, " ").split()
    assert all(word in ("captured", "now") or re.fullmatch(r"\d\d:\d\d:\d\d", word) for word in words), row
