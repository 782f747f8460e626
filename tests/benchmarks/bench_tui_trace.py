"""What the trace screen costs: key to repaint and memory at a million rows, a timeline frame at ten million events.

    pytest -m bench tests/benchmarks/bench_tui_trace.py -s

Every figure is the median of several, printed beside its limit; the limits are those of the screen's design.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import psutil
import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tui"))

from made_traces import large_trace

from tuiprof.model import Column, Trace
from tuiprof.tui.terminal.themes import DEFAULTS
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import Lanes, sketch
from tuiprof.tui.timeline.state import Search, Viewport
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.timeline.view import overview, paint
from tuiprof.tui.widgets.frame_rows import FrameRows
from tuiprof.tui.widgets.table import VirtualTable

pytestmark = pytest.mark.bench

ROWS = 1_000_000
EVENTS = 10_000_000
SIZE = (160, 48)


class TableApp(App[None]):
    def __init__(self, rows: FrameRows) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        yield VirtualTable()

    def on_mount(self) -> None:
        table = self.query_one(VirtualTable)
        table.load(self._rows)
        table.focus()


def table_rows() -> FrameRows:
    random = np.random.default_rng(0)
    words = pl.Series([f"void at::native::kernel_{i}<float, 4>(int)" for i in range(2000)])
    frame = pl.DataFrame(
        {
            "start_ns": np.cumsum(random.integers(1, 1000, ROWS)),
            "dur_ns": random.integers(1, 10**7, ROWS),
            "name": words.gather(random.integers(0, 2000, ROWS)).cast(pl.Enum(words)),
            "share": random.random(ROWS),
        }
    )
    columns = (
        Column("start_ns", "start", "ns"),
        Column("dur_ns", "duration", "ns"),
        Column("name", "name"),
        Column("share", "share", "share"),
    )
    return FrameRows(frame, columns)


def timed(work: Callable[[], object], repeats: int = 7) -> float:
    """Median time of a call, ms."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e3)
    return median(took)


async def key_ms(pilot: Pilot[None], *keys: str, repeats: int = 15) -> float:
    """Median time from a key to the end of the repaint it causes, ms, without the pilot's own waiting."""
    table = pilot.app.query_one(VirtualTable)
    screen = pilot.app.screen
    took = []
    for index in range(repeats):
        binding = next(b for b in table._bindings.key_to_bindings[keys[index % len(keys)]])
        began = time.perf_counter()
        await table.run_action(binding.action)
        screen._on_timer_update()  # lays out and repaints what the action left dirty
        for y in range(table.size.height):
            table.render_line(y)
        took.append((time.perf_counter() - began) * 1e3)
        await pilot.pause()
    return median(took)


def report(rows: list[tuple[str, float, float, str]]) -> None:
    print()
    for what, value, limit, unit in rows:
        print(f"{what:<58}{value:>9.2f} {unit:<3} limit {limit:>7.1f} {unit:<3} ×{value / limit:.2f}")
    over = [what for what, value, limit, _ in rows if value > limit]
    assert not over, f"over the limit: {', '.join(over)}"


async def test_a_table_of_a_million_rows() -> None:
    rows = table_rows()
    before = psutil.Process().memory_info().rss
    app = TableApp(rows)
    began = time.perf_counter()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        opened = (time.perf_counter() - began) * 1e3
        table = app.query_one(VirtualTable)
        held = (psutil.Process().memory_info().rss - before) / 1e6
        figures = [
            ("table, 1 M rows: app started, first rows on screen", opened, 1000.0, "ms"),
            ("table, 1 M rows: memory beyond the data, unsorted", held, 60.0, "MB"),
            ("table: row down, key to repaint", await key_ms(pilot, "down"), 30.0, "ms"),
            ("table: page down, key to repaint", await key_ms(pilot, "pagedown"), 30.0, "ms"),
            ("table: to the end and back, key to repaint", await key_ms(pilot, "end", "home"), 30.0, "ms"),
            (
                "table: column right and left, key to repaint",
                await key_ms(pilot, "right", "left"),
                30.0,
                "ms",
            ),
        ]
        for index, column in enumerate(rows.columns):

            def order(index: int = index) -> None:
                rows._ascending.clear()
                rows.prepare_sort(index)

            def show(index: int = index) -> None:
                table.sort_by(index)

            what = f"table: sort by {column.label}"
            figures += [
                (f"{what}, first time, in a worker, processor", cpu_ms(order), 100.0, "ms"),
                (f"{what}, on the screen's thread, processor", cpu_ms(show), 30.0, "ms"),
            ]
        figures.append(("table: filter by a text", timed(lambda: rows.filter("kernel_77")), 100.0, "ms"))
        expression = "duration > 1ms and name ~ kernel_77 or share < 5%"
        figures.append(
            ("table: filter by an expression", timed(lambda: rows.filter(expression)), 100.0, "ms")
        )
        rows.filter("")
    report(figures)


async def test_a_timeline_of_ten_million_events() -> None:
    trace = large_trace(EVENTS)
    sample, first_frame = cpu_ms(lambda: first_picture(trace)), wall_ms(lambda: first_picture(trace))
    began = time.process_time()
    lanes = lane_builder.build(trace)
    built = time.process_time() - began
    whole = Viewport.over(*trace.span, SIZE[0])
    middle = (whole.first + whole.last) // 2

    def frame(view: Viewport) -> Callable[[], object]:
        return lambda: [paint(trace, lane, view.edges) for lane in lanes.lanes]

    figures = [
        ("timeline, 10 M events: first frame, a sketch", first_frame, 300.0, "ms"),
        ("  the same, processor time", sample, 300.0, "ms"),
        ("timeline: exact lanes built, in a worker, processor time", built, 8.0, "s"),
        ("timeline: a frame of everything", timed(frame(whole)), 30.0, "ms"),
        ("timeline: a frame at 1000×", timed(frame(whole.zoomed(1e3, middle))), 30.0, "ms"),
        ("timeline: a frame at 1 000 000×", timed(frame(whole.zoomed(1e6, middle))), 30.0, "ms"),
        ("timeline: map of the whole, once a width", timed(lambda: overview(lanes, whole)), 30.0, "ms"),
    ]
    app = TimelineApp(lanes)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        timeline = app.query_one(Timeline)
        for what, actions in (
            ("zoom in and out", ("+", "-")),
            ("next event of a lane, with its link", ("full_stop", "comma")),
            ("pan on and back", ("L", "H")),
            ("cursor on and back", ("right", "left")),
        ):
            figures.append(
                (f"timeline: {what}, key to repaint", await timeline_ms(pilot, timeline, actions), 30.0, "ms")
            )
        took = timed(lambda: Search.of(lanes, "kernel_77"), 3)
        figures.append(("timeline: a search, in a worker", took, 2000.0, "ms"))
        timeline.state.set_search(Search.of(lanes, "kernel_77"))
        figures.append(
            (
                "timeline: zoom with hits of a search, key to repaint",
                await timeline_ms(pilot, timeline, ("+", "-")),
                30.0,
                "ms",
            )
        )
    report(figures)


class TimelineApp(App[None]):
    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self._lanes = lanes

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(DEFAULTS)

    def compose(self) -> ComposeResult:
        yield Timeline()

    def on_mount(self) -> None:
        timeline = self.query_one(Timeline)
        timeline.styles.height = 12
        timeline.state.show(self._lanes)
        timeline.state.chosen = len(self._lanes.lanes) - 2
        timeline.focus()


def first_picture(trace: Trace) -> None:
    """What must be done before the first frame of a trace that was just opened."""
    fresh = Trace(trace.events, trace.tracks, trace.info)
    lanes = sketch(fresh)
    view = Viewport.over(*lanes.trace.span, SIZE[0])
    for lane in lanes.lanes:
        paint(lanes.trace, lane, view.edges)
    overview(lanes, Viewport.over(*lanes.trace.span, SIZE[0]))


async def timeline_ms(
    pilot: Pilot[None], timeline: Timeline, keys: tuple[str, ...], repeats: int = 16
) -> float:
    """Median time from a key to the end of the repaint it causes, ms."""
    took = []
    for index in range(repeats):
        name = keys[index % len(keys)]
        began = time.perf_counter()
        if name in "+-":
            timeline.state.zoom(2.0 if name == "+" else 0.5)
        else:
            await timeline.run_action(timeline._bindings.key_to_bindings[name][0].action)
        for y in range(timeline.size.height):
            timeline.render_line(y)
        took.append((time.perf_counter() - began) * 1e3)
        await pilot.pause()
    return median(took)


def wall_ms(work: Callable[[], object]) -> float:
    return timed(work, 5)


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor time of a call, ms: what a busy machine does not change."""
    took = []
    for _ in range(5):
        began = time.process_time()
        work()
        took.append((time.process_time() - began) * 1e3)
    return median(took)
