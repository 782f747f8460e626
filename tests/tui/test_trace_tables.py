from __future__ import annotations

import pytest
from made_traces import HOSTILE
from trace_app import app_of, settle

from tuiprof.tui.screens.reading import ReadingScreen
from tuiprof.tui.widgets.tab_bar import TabBar

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_tables_filters_rules_and_trust_by_key() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("/", *"forward")
        await settle(pilot)
        assert "2 of 16 rows  filter: forward" in app.text("#answer-title")
        await pilot.press("escape")
        await settle(pilot)
        assert "16 rows" in app.text("#answer-title")
        assert app.focused is app.table
        await pilot.press("2", "t")
        await settle(pilot)
        assert "no kinds: this is a made analysis" in app.text("VirtualTable")
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, ReadingScreen)
        assert "The host stands for more than 0 ns." in app.text()
        assert "Number of waits" in app.text()
        await pilot.press("escape", "i")
        await settle(pilot)
        assert "no Python frames: source lines cannot be named" in app.text()
        assert "→ record with" in app.text()
        await pilot.press("escape")
        await pilot.click(TabBar, offset=(5, 0))
        assert app.view.current == "names"


async def test_a_tab_is_found_as_it_was_left() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("down", "down", "s", "2")
        await settle(pilot)
        await pilot.press("1")
        await settle(pilot)
        assert app.table.current == 2
        assert app.table.sorted_by == 0


async def test_hostile_names_are_shown_verbatim_everywhere() -> None:
    app = app_of()
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot)
        await pilot.press("/", *"evil", "enter")
        await settle(pilot)
        await pilot.press("5", "/", *"evil", "enter")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        text = app.text()
        assert "[red]evil[/red] ␛[31mcolour␛[0m ␛]0;title␇ $(reboot)" in text
        assert text.replace("\n", "").isprintable()
        assert HOSTILE not in text
