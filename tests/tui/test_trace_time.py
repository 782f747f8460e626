from __future__ import annotations

import threading
from pathlib import Path

import pytest
from made_traces import MS, large_trace, small_trace
from on_screen import press, running, until_shown
from textual.pilot import Pilot
from trace_app import TraceApp, app_of, screen_of, settle, settled, typed

from tuiprof.formats import open_trace
from tuiprof.model import Trace
from tuiprof.tui.app.help import HelpScreen
from tuiprof.tui.dialogs.dialog import PickScreen
from tuiprof.tui.timeline import lanes
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.trace import work

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_a_window_narrows_every_analysis_and_opens_again() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("2", "n", "w")  # the first sync is in step 0
        await settle(pilot)
        assert "window: step 0" in app.text("TabBar")
        assert "1 waits hold the host" in app.text("#trace-verdict")
        await typed(pilot, "w")
        assert "window" not in app.text("TabBar")
        assert "2 waits hold the host" in app.text("#trace-verdict")
        app.timeline.state.select((13 * MS, 21 * MS))
        await typed(pilot, "w")
        assert "window: 13.0 ms to 21.0 ms" in app.text("TabBar")
        await typed(pilot, "5")
        assert "Events  8 rows" in app.text("#answer-title")
        await typed(pilot, "escape")
        assert app.view.window.whole


async def moves(pilot: Pilot[int], *keys: str, to: int) -> None:
    """Press keys, which move the cursor to a time, ns."""
    await pilot.press(*keys)
    app = pilot.app
    assert isinstance(app, TraceApp)
    assert app.timeline.state.cursor == to


async def test_moving_in_time() -> None:
    async with settled(app_of()) as (app, pilot):
        await moves(pilot, "n", to=6 * MS)
        await moves(pilot, "n", "n", to=18 * MS)
        await moves(pilot, "N", to=6 * MS)
        await moves(pilot, "right_curly_bracket", to=12 * MS)
        await moves(pilot, "left_curly_bracket", to=0)
        whole = app.timeline.state.view.span
        await pilot.press("z")
        assert app.timeline.state.view.span == 11 * MS
        await pilot.press("plus", "minus", "minus", "0")
        assert app.timeline.state.view.span == whole
        app.timeline.focus()
        await typed(pilot, "down", "full_stop", "enter")
        assert "cudaLaunchKernel" in app.text("DetailPane") or "aten::mm" in app.text("DetailPane")


async def test_f_jumps_between_a_launch_and_its_work_and_the_link_is_drawn() -> None:
    async with settled(app_of()) as (app, pilot):
        app.timeline.focus()
        await pilot.press("down", "full_stop")  # the first call of the runtime lane
        assert app.timeline.state.lane is not None
        assert app.timeline.state.lane.label == "runtime"
        assert "cudaLaunchKernel 1.00 ms · f: launches sum_kernel, 1.00 ms between" in app.words()
        assert "▸" in app.text("Timeline")
        await moves(pilot, "f", to=3 * MS)
        assert app.timeline.state.lane.label == "stream 7"
        assert "launched by cudaLaunchKernel" in app.words()
        await moves(pilot, "f", to=1 * MS)
        await typed(pilot, "enter")
        app.timeline.focus()
        await typed(pilot, "f")
        assert "launched by" in app.text("DetailPane")  # open details follow


async def test_f_goes_from_a_sync_to_the_work_it_waited_for_and_shift_f_to_what_it_delayed() -> None:
    async with settled(app_of(), size=(160, 48)) as (app, pilot):
        await moves(pilot, "n", to=6 * MS)
        assert "f: waited for sum_kernel, done 1.00 ms before its end" in app.words()
        assert "▸" in app.text("Timeline")
        await pilot.press("f")
        assert (app.timeline.state.cursor, app.timeline.state.lane.label) == (3 * MS, "stream 7")  # type: ignore[union-attr]
        await moves(pilot, "F", to=6 * MS)
        await moves(pilot, "F", to=15 * MS)
        assert "delayed by cudaStreamSynchronize" in app.words()
        await moves(pilot, "F", to=6 * MS)
        app.timeline.focus()
        await typed(pilot, "enter")
        text = app.text("DetailPane")
        assert "waited for  (f goes there)" in text
        assert "delayed  (F goes there)" in text
        assert "6.00 ms after it" in text
        await typed(pilot, "F")
        assert "delayed by  (F goes there)" in app.text("DetailPane")
        assert app.timeline.state.cursor == 15 * MS


async def test_measuring_between_two_points() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("m", "right_curly_bracket")  # from the begin to step 1
        assert "Δ 12.0 ms · busy 5.00 ms (41.7 %), idle 7.00 ms" in app.words()
        assert "◆" in app.text("Timeline")
        await typed(pilot, "w")
        assert "window: 0 ns to 12 ms" in app.text("TabBar")
        await pilot.press("m", "m")
        assert "Δ" not in app.text("Timeline")
        await pilot.press("m", "n", "escape")
        assert app.timeline.state.mark is None


async def test_bookmarks_are_set_listed_and_returned_to() -> None:
    async with settled(app_of(), notifications=True) as (app, pilot):
        await pilot.press("apostrophe", "B")
        await pilot.pause()
        assert "no bookmarks yet" in app.words()
        await pilot.press("b", "n", "b", "n", "b")
        assert app.timeline.state.bookmarks == [0, 6 * MS, 18 * MS]
        assert app.text("Timeline").count("⚑") >= 4  # on the map and on the axis
        await moves(pilot, "apostrophe", to=0)
        await moves(pilot, "apostrophe", to=6 * MS)
        await pilot.press("B")
        await pilot.pause()
        assert isinstance(app.screen, PickScreen)
        assert " 6 ms   step 0 · metrics" in app.text()
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert app.timeline.state.cursor == 18 * MS
        await pilot.press("b")
        assert app.timeline.state.bookmarks == [0, 6 * MS]
        await moves(pilot, "B", "escape", to=18 * MS)


async def test_a_search_in_the_timeline_goes_from_hit_to_hit() -> None:
    async with settled(app_of(), notifications=True) as (app, pilot):
        app.timeline.focus()
        await until_shown(pilot, "n next sync")
        await press(pilot, "/", *"SUM_", "enter", shows="n next match")
        await settle(pilot)
        assert app.focused is app.timeline
        assert app.timeline.state.cursor == 3 * MS
        assert "/SUM_ 1 of 2 · sum_kernel" in app.words()
        await moves(pilot, "n", to=15 * MS)
        await moves(pilot, "n", to=3 * MS)
        await pilot.press("N")
        assert "2 of 2" in app.text("Timeline")
        await press(pilot, "escape", shows="n next sync")
        await pilot.press("home", "n")  # without a search, n goes to the next wait again
        assert app.timeline.state.search is None
        assert app.timeline.state.cursor == 6 * MS
        await typed(pilot, "/", *"nothing such", "enter")
        assert "no event has 'nothing such' in its name" in app.words()
        await pilot.press("/", "x", "escape")
        await pilot.pause()
        assert app.focused is app.timeline


async def test_the_map_shows_where_the_view_lies_and_moves_it() -> None:
    async with settled(app_of(), size=(80, 24)) as (app, pilot):
        assert app.timeline.state.map_lines == 0  # at 24 lines it costs a lane: only when it tells something
        app.timeline.focus()
        await pilot.press("end", "plus", "plus", "plus")
        await pilot.pause()
        assert app.timeline.state.map_lines == 1
        first = app.text("Timeline").splitlines()[0]
        assert first.startswith(" all")
        assert "[" in first
        await pilot.click(Timeline, offset=(app.timeline.label_cells + 2, 0))
        assert app.timeline.state.view.low == app.timeline.state.view.first


async def test_a_large_trace_is_sketched_until_its_lanes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    build = lanes.build

    def slow(trace: Trace) -> lanes.Lanes:
        if len(trace) == 2000:
            go_on.wait(20)
        return build(trace)

    monkeypatch.setattr(lanes, "SKETCH_FROM", 2000)
    monkeypatch.setattr(lanes, "_SKETCHED_EVENTS", 100)
    monkeypatch.setattr(lanes, "build", slow)
    async with running(app_of(large_trace(2000)), notifications=True) as (app, pilot):
        await until_shown(pilot, "preview from 1 in 20 events", "stream 7")
        app.timeline.focus()
        await press(pilot, "down", "full_stop", "enter", shows="the exact timeline is not ready yet")
        go_on.set()
        await settle(pilot)
        assert "sketch" not in app.text("Timeline")
        await typed(pilot, "full_stop", "enter")
        assert "kernel_" in app.text("DetailPane")


async def test_the_trust_line_of_a_large_trace_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What replaying its steps shows is not known when its first picture is drawn."""
    monkeypatch.setattr(work, "_MAX_EVENTS_AT_ONCE", 0)
    trace = open_trace(Path(__file__).parents[2] / "traces" / "planted-syncs.pt.trace.json.gz")
    async with settled(app_of(trace)) as (app, _):
        shown = app.view.work.trust
        assert shown is not None
        assert "slowed" in {remark.code for remark in shown.remarks}


@pytest.mark.parametrize(("step", "says"), [(1, "window: step 1"), (7, "has no step 7")])
async def test_a_trace_opens_at_the_step_that_is_asked_for(step: int, says: str) -> None:
    async with running(TraceApp(lambda: screen_of(small_trace(), step)), notifications=True) as (app, pilot):
        await until_shown(pilot, says)
        await settle(pilot)
        assert app.view.window.whole == (step == 7)
        assert app.timeline.state.cursor == (12 * MS if step == 1 else 0)


async def test_letters_move_as_the_arrows_do() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("1", "j", "j", "k")
        assert app.table.cursor == 1
        await pilot.press("G")
        assert app.table.cursor == 15
        await pilot.press("g")
        assert app.table.cursor == 0
        app.timeline.focus()
        await pilot.press("j", "l", "l", "h")
        assert app.timeline.state.chosen == 1
        assert app.timeline.state.view.column_of(app.timeline.state.cursor) == 1
        await pilot.press("k", "G")
        assert app.timeline.state.chosen == 0
        assert app.timeline.state.cursor == app.view.trace.span[1] - 1
        await pilot.press("equals_sign", "equals_sign", "H", "H")
        high = app.timeline.state.view.high
        assert high < app.timeline.state.view.last
        await pilot.press("L")
        assert app.timeline.state.view.high > high
        await moves(pilot, "ctrl+left", "g", to=0)


async def test_help_lists_every_key_of_each_pane() -> None:
    async with settled(app_of(), size=(140, 48)) as (app, pilot):
        for pane in (app.timeline, app.table):
            pane.focus()
            await pilot.pause()
            working = {active.binding.id for active in app.screen.active_bindings.values() if active.enabled}
            await pilot.press("question_mark")
            await pilot.pause()
            assert isinstance(app.screen, HelpScreen)
            await pilot.press("i")
            page = str(app.screen._page())
            assert working
            assert [name for name in working if name and name not in page] == []
            await pilot.press("escape")
