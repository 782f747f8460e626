from __future__ import annotations

import pytest
from made_traces import MS
from trace_app import app_of, settle

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_a_window_narrows_every_analysis_and_opens_again() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("2", "n", "w")  # the first sync is in step 0
        await settle(pilot)
        assert "window: step 0" in app.text("TabBar")
        assert "1 waits hold the host" in app.text("#trace-verdict")
        await pilot.press("w")
        await settle(pilot)
        assert "window" not in app.text("TabBar")
        assert "2 waits hold the host" in app.text("#trace-verdict")
        app.timeline.select((13 * MS, 21 * MS))
        await pilot.press("w")
        await settle(pilot)
        assert "window: 13.0 ms to 21.0 ms" in app.text("TabBar")
        await pilot.press("5")
        await settle(pilot)
        assert "Events  8 rows" in app.text("#answer-title")
        await pilot.press("escape")
        await settle(pilot)
        assert app.view.window.whole


async def test_moving_in_time() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("n")
        assert app.timeline.cursor == 6 * MS
        await pilot.press("n", "n")
        assert app.timeline.cursor == 18 * MS
        await pilot.press("N")
        assert app.timeline.cursor == 6 * MS
        await pilot.press("right_square_bracket")
        assert app.timeline.cursor == 12 * MS
        await pilot.press("left_square_bracket")
        assert app.timeline.cursor == 0
        whole = app.timeline.view.span
        await pilot.press("z")
        assert app.timeline.view.span == 11 * MS
        await pilot.press("plus", "minus", "minus", "0")
        assert app.timeline.view.span == whole
        app.timeline.focus()
        await pilot.press("down", "full_stop", "enter")
        await settle(pilot)
        assert "cudaLaunchKernel" in app.text("DetailPane") or "aten::mm" in app.text("DetailPane")
