from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from made_traces import HOSTILE, MS, large_trace, small_trace, trace_of
from on_screen import running
from textual.app import App, ComposeResult

from tuiprof.model import Window
from tuiprof.tui.terminal.themes import DEFAULTS
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.canvas import label_cells
from tuiprof.tui.timeline.lanes import Bars, Lost, idle_gap
from tuiprof.tui.timeline.state import Viewport
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.timeline.view import instant_words, offset_text, paint, short_name
from tuiprof.tui.widgets.spans import fit_text
from tuiprof.whatif.replay import Losses


class TimelineApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.trace = small_trace()
        self.opened: list[int] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(DEFAULTS)

    def compose(self) -> ComposeResult:
        yield Timeline()

    def on_mount(self) -> None:
        self.timeline.styles.height = 8
        self.timeline.state.show(lane_builder.build(self.trace))
        self.timeline.focus()

    @property
    def timeline(self) -> Timeline:
        return self.query_one(Timeline)

    def on_timeline_opened(self, message: Timeline.Opened) -> None:
        self.opened.append(message.row)

    def lines(self) -> list[str]:
        return [self.timeline.render_line(y).text for y in range(self.timeline.size.height)]


def test_lanes_are_found_by_what_the_trace_holds() -> None:
    lanes = lane_builder.build(small_trace())
    assert [lane.label.strip() for lane in lanes.lanes] == ["main", "ops", "runtime", "stream 7", "idle"]
    assert [lane.label for lane in lanes.choose(4)] == ["main", "runtime", "stream 7", "idle"]
    assert len(lanes.syncs) == 2


def test_operators_that_call_others_have_a_lane_a_level_where_there_is_room() -> None:
    calls = [("cpu_op", f"aten::level_{depth}", depth, 20 - depth, 0, None) for depth in range(6)]
    lanes = lane_builder.build(trace_of([("annotation", "forward", 0, 21, 0, None), *calls]))
    assert [lane.label for lane in lanes.lanes] == ["main", "  ops", "    ops", "      ops", "        ops"]
    assert [len(lane.bars) for lane in lanes.lanes] == [1] * 5
    assert [lane.label for lane in lanes.choose(3)] == ["main", "  ops", "    ops"]


def test_a_trace_without_device_or_events_still_has_a_picture() -> None:
    cpu = trace_of([("cpu_op", "aten::mm", 0, 5, 0, None)])
    assert [lane.label for lane in lane_builder.build(cpu).lanes] == ["main"]
    assert lane_builder.build(trace_of([])).lanes == ()


def test_cells_say_what_fills_their_time() -> None:
    trace = small_trace()
    lanes = {lane.label.strip(): lane for lane in lane_builder.build(trace).lanes}
    edges = np.arange(0, 23, dtype=np.int64) * MS  # one column a millisecond

    def text(name: str) -> str:
        return "".join(paint(trace, lanes[name], edges).chars)

    assert text("main").startswith("▒▒▒▒ ▒▒▒▒▒")  # forward 0 to 4 ms, metrics from 5 ms: no room to name them
    edges = np.arange(0, 45, dtype=np.int64) * MS // 2
    assert text("main").startswith("forward▒  metrics ▒▒")
    edges = np.arange(0, 23, dtype=np.int64) * MS
    assert text("runtime") == " L    SSS    L    SSS "
    assert text("stream 7") == "   █████       █████  "
    # Idle is the complement of work: 0 to 3, 8 to 15 and 20 to 22 ms.
    assert text("idle") == "▓▓▓     ▓▓▓▓▓▓▓     ▓▓"


def test_a_column_shows_the_share_of_its_time_that_was_busy() -> None:
    trace = small_trace()
    lane = next(lane for lane in lane_builder.build(trace).lanes if lane.style == "device")
    assert paint(trace, lane, np.array([0, 6, 12]) * MS).chars == ["▄", "▂"]  # 3 of 6 ms, 2 of 6 ms


def test_one_sync_among_many_launches_is_never_lost() -> None:
    rows = [("runtime", "cudaLaunchKernel", at, at + 1, 0, at + 1) for at in range(200)]
    rows += [("kernel", "k", at + 2, at + 3, 1, at + 1) for at in range(200)]
    rows += [("runtime", "cudaStreamSynchronize", 120, 121, 0, 999)]
    trace = trace_of(rows)
    lane = next(lane for lane in lane_builder.build(trace).lanes if lane.style == "calls")
    cells = "".join(paint(trace, lane, Viewport.over(*trace.span, 20).edges).chars)
    assert cells.count("S") == 1
    assert set(cells) == {"L", "S"}


def test_an_event_that_reaches_over_later_ones_is_still_found() -> None:
    trace = trace_of([("cpu_op", "long", 0, 100, 0, None), ("cpu_op", "short", 10, 20, 0, None)])
    bars = Bars(trace, np.array([0, 1]))
    assert bars.at(np.array([5, 15, 50, 100]) * MS).tolist() == [0, 1, 0, -1]
    assert bars.shares(np.array([0, 50, 200]) * MS).tolist() == pytest.approx([1.0, 1 / 3])


def test_idle_gap_at_an_instant() -> None:
    trace = small_trace()
    bars = Bars(trace, trace.device_work)
    gap = [idle_gap(bars, at * MS, *trace.span) for at in (0, 5, 10, 21, 30)]
    assert gap == [(0, 3 * MS), None, (8 * MS, 15 * MS), (20 * MS, 22 * MS), None]


def test_viewport_stays_within_the_trace() -> None:
    view = Viewport.over(1000, 1_001_000, 100)
    assert view.zoomed(10, 1000).low == 1000
    assert view.zoomed(0.1, 5000) == view
    near = view.zoomed(1e9, 500_000)
    assert near.span == near.columns  # never below 1 ns a column
    assert near.low <= 500_000 < near.high
    assert view.zoomed(4, 500_000).panned(99).high == view.last
    assert view.zoomed(4, 500_000).showing(900_000).low > 500_000
    edges = Viewport.over(0, 10**17, 300).edges
    assert (np.diff(edges) > 0).all()
    assert (edges[0], edges[-1]) == (0, 10**17)


def test_ticks_are_round_and_count_from_the_begin_of_the_trace() -> None:
    labels = [label for _, label in Viewport.over(7_000, 7_000 + 20 * MS, 100).ticks()]
    assert labels == ["0", "5 ms", "10 ms", "15 ms"]
    assert offset_text(1_268_300, 900) == "1.268 ms"


def test_kernel_names_keep_what_tells_them_apart() -> None:
    assert short_name("void at::native::(anonymous namespace)::sum_kernel<4, float>(int)") == "sum_kernel"
    assert short_name("aten::mm") == "mm"
    assert short_name(HOSTILE).isprintable()


def test_readout_names_what_is_under_the_cursor() -> None:
    lanes = lane_builder.build(small_trace())
    text = instant_words(lanes, list(lanes.lanes), 7 * MS)
    for part in ("step 0", "metrics 5.00 ms", "cudaStreamSynchronize 3.00 ms", "sum_kernel 5.00 ms"):
        assert part in text
    assert "outside of steps" in instant_words(lanes, list(lanes.lanes), 11 * MS)
    assert "idle 7.00 ms" in instant_words(lanes, list(lanes.lanes), 11 * MS)


async def test_keys_move_select_zoom_and_open() -> None:
    async with running(TimelineApp(), size=(100, 12)) as (app, pilot):
        timeline = app.timeline
        await pilot.press("right", "right")
        assert timeline.state.view.column_of(timeline.state.cursor) == 2
        await pilot.press("shift+right", "shift+right", "shift+left")
        low, high = timeline.state.selection or (0, 0)
        assert (timeline.state.view.column_of(low), timeline.state.view.column_of(high)) == (2, 3)
        await pilot.press("left")
        assert timeline.state.selection is None
        await pilot.press("end")
        assert timeline.state.cursor == app.trace.span[1] - 1
        await pilot.press("home")
        timeline.state.zoom(4)
        await pilot.press("ctrl+right")
        assert timeline.state.view.low > 0
        timeline.state.fit()
        assert (timeline.state.view.low, timeline.state.view.high) == app.trace.span
        await pilot.press("down", "full_stop")  # to the first call of the runtime lane
        assert timeline.state.lane is not None
        assert timeline.state.lane.style == "calls"
        assert timeline.state.cursor == 1 * MS
        await pilot.press("full_stop", "enter", "comma", "enter", "up", "up")
        assert [app.trace.name(row) for row in app.opened] == ["cudaStreamSynchronize", "cudaLaunchKernel"]
        assert timeline.state.chosen == 0


async def test_a_click_chooses_an_event_and_a_drag_moves_the_view() -> None:
    async with running(TimelineApp(), size=(100, 12)) as (app, pilot):
        timeline = app.timeline
        left = timeline.label_cells
        runtime = timeline.state.map_lines + 1
        column = timeline.state.view.column_of(7 * MS)
        await pilot.click(Timeline, offset=(left + column, runtime))
        assert timeline.state.event is not None
        assert app.trace.name(timeline.state.event) == "cudaStreamSynchronize"
        assert timeline.state.chosen == 1
        assert timeline.state.selection is None
        timeline.state.zoom(4)
        low = timeline.state.view.low
        await pilot.mouse_down(Timeline, offset=(left + 40, runtime))
        await pilot.hover(Timeline, offset=(left + 20, runtime))
        await pilot.mouse_up(Timeline, offset=(left + 20, runtime))
        assert timeline.state.view.low - low == pytest.approx(
            20 * timeline.state.view.span / timeline.state.view.columns, rel=0.01
        )


async def test_dragging_on_the_axis_or_with_a_key_selects() -> None:
    for line, ctrl in (("axis", False), ("lane", True)):
        async with running(TimelineApp(), size=(100, 12)) as (app, pilot):
            timeline = app.timeline
            left = timeline.label_cells
            y = timeline.state.map_lines + (len(timeline.state.visible_lanes) if line == "axis" else 1)
            await pilot.mouse_down(Timeline, offset=(left + 10, y), control=ctrl)
            await pilot.hover(Timeline, offset=(left + 30, y))
            await pilot.mouse_up(Timeline, offset=(left + 30, y))
            low, high = timeline.state.selection or (0, 0)
            assert (timeline.state.view.column_of(low), timeline.state.view.column_of(high)) == (10, 30)


async def test_the_wheel_zooms_at_the_pointer_and_pans_with_shift() -> None:
    async with running(TimelineApp(), size=(100, 12)) as (app, _):
        timeline = app.timeline
        left, span = timeline.label_cells, timeline.state.view.span
        under = timeline.state.view.instant_of(20)
        timeline._wheel(_wheel(left + 20), 2.0, 0.1)
        assert timeline.state.view.span == pytest.approx(span / 2, rel=0.01)
        assert timeline.state.view.column_of(under) in (19, 20, 21)
        timeline._wheel(_wheel(left + 20, shift=True), 2.0, 0.1)
        assert timeline.state.view.span == pytest.approx(span / 2, rel=0.01)


def _wheel(x: int, shift: bool = False):
    from textual.events import MouseScrollDown

    return MouseScrollDown(None, x, 2, 0, 0, 0, shift, False, False)


async def test_drawing_is_whole_styled_and_safe_at_every_size() -> None:
    app = TimelineApp()
    for size in ((100, 12), (40, 10), (200, 12)):
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            app.timeline.state.set_window(Window(2 * MS, 9 * MS))
            app.timeline.state.select((3 * MS, 6 * MS))
            for y in range(app.timeline.size.height):
                strip = app.timeline.render_line(y)
                assert all(segment.style is not None for segment in strip)
                assert strip.cell_length == size[0]
                assert strip.text.isprintable()
            assert any("▏0 " in line for line in app.lines()[:2])  # where step 0 starts
            assert any("▲" in line for line in app.lines())
        app = TimelineApp()


async def test_hostile_names_stand_in_the_lane_as_text() -> None:
    async with running(TimelineApp(), size=(160, 12)) as (app, pilot):
        app.timeline.state.show_nested(True)
        await pilot.pause()
        ops = next(line for line in app.lines() if line.strip().startswith("ops"))
        assert "[red]evil[/red]" in ops


def test_a_frame_of_a_large_trace_agrees_with_counting() -> None:
    trace = large_trace(200_000)
    lanes = lane_builder.build(trace)
    stream = next(lane for lane in lanes.lanes if lane.style == "device")
    view = Viewport.over(*trace.span, 160).zoomed(50, trace.span[1] // 2)
    edges = view.edges
    starts, ends = trace.starts[stream.bars.rows], trace.ends[stream.bars.rows]
    counted = [
        np.maximum(np.minimum(ends, high) - np.maximum(starts, low), 0).sum() / (high - low)
        for low, high in pairwise(edges.tolist())
    ]
    assert stream.bars.shares(edges) == pytest.approx(np.array(counted))


def test_queues_are_told_apart_by_their_lanes_at_120_columns() -> None:
    room = label_cells(120) - 2
    assert len({fit_text(label, room) for label in ("DMA Q14-E67", "DMA Q14-E68", "DMA Q14-E81")}) == 3


def test_a_finding_that_loses_nothing_in_the_trace_draws_nothing() -> None:
    nothing = np.empty(0, dtype=np.int64)
    lost = Lost(Losses(nothing, nothing, np.empty(0), 100), bad=True)
    assert lost.up_to(np.array([0, 50, 100])).tolist() == [0, 0, 0]
    assert lost.between(0, 100) == 0
