"""The tour, and jumping between panes: on the real screens, with real keys."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from on_screen import live, press, running, until, until_shown, workers_done
from synthetic import Synthetic
from terminals import in_terminal
from textual import events

from tests import real_traces
from tuiprof.model import Trace
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.app.help import TourCard, is_first_start
from tuiprof.tui.app.palette import JumpScreen, panes_of
from tuiprof.tui.library.screen import LibraryScreen
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.opening.loading import Opening
from tuiprof.tui.trace.screen import TraceScreen
from tuiprof.tui.trace.widget import TraceView


@pytest.mark.parametrize("size", [(50, 16), (80, 24), (160, 48)])
async def test_five_steps_each_on_the_screen_it_speaks_of(tmp_path: Path, size: tuple[int, int]) -> None:
    app = TuiprofApp(Start(sessions=tmp_path))

    async def on_the_card(*texts: str) -> None:
        await until_shown(pilot, *texts)
        await until(pilot, lambda: isinstance(app.focused, TourCard))

    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "Run my script")
        await pilot.press("ctrl+t")
        await on_the_card("1 of 5", "Run a script")
        assert isinstance(app.screen, LibraryScreen)
        await pilot.press("enter")
        await on_the_card("2 of 5", "replay", "median")
        assert isinstance(app.screen, LiveScreen)
        await pilot.press("space")
        await on_the_card("3 of 5", "syncs a step")
        assert isinstance(app.screen, TraceScreen)
        await pilot.press("enter")
        await on_the_card("4 of 5", "step 22")
        await pilot.press("backspace")
        await on_the_card("3 of 5")
        await pilot.press("enter")
        await on_the_card("4 of 5", "step 22")
        await pilot.press("enter")
        await on_the_card("5 of 5", "Advice")
        await press(pilot, "enter", opens=LibraryScreen)
        assert not app.screen.query(TourCard)


async def test_a_trace_that_is_read_late_does_not_take_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, run = threading.Event(), Opening.run

    def late(opening: Opening) -> Trace:
        assert read.wait(60)
        return run(opening)

    monkeypatch.setattr(Opening, "run", late)
    clock = time.monotonic
    async with running(TuiprofApp(Start(sessions=tmp_path)), size=(100, 30)) as (app, pilot):
        await press(pilot, "ctrl+t", "enter", "enter", shows="3 of 5")
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600)  # as if it took an hour
        read.set()
        await until(pilot, lambda: bool(app.screen.query(TraceView)))
        await workers_done(pilot)
        await until(pilot, lambda: isinstance(app.focused, TourCard))
        await press(pilot, "enter", shows="4 of 5")


async def test_a_key_or_a_click_moves_the_focus_away_from_the_card(tmp_path: Path) -> None:
    async with running(TuiprofApp(Start(sessions=tmp_path)), size=(100, 30)) as (app, pilot):
        await pilot.press("ctrl+t")
        await until(pilot, lambda: isinstance(app.focused, TourCard))
        # Through the application, as a terminal's click comes: the pilot hands its clicks to the screen.
        app.post_message(events.MouseDown(None, 5, 3, 0, 0, 1, False, False, False, 5, 3))
        await until(pilot, lambda: app.focused is app.screen.query_one("#items"))


async def test_it_can_be_left_at_any_step(tmp_path: Path) -> None:
    async with running(TuiprofApp(Start(sessions=tmp_path)), "Run my script", size=(100, 30)) as (app, pilot):
        await press(pilot, "ctrl+t", shows="1 of 5")
        await press(pilot, "enter", shows="2 of 5")
        await pilot.press("escape")
        await workers_done(pilot)
        assert isinstance(app.screen, LiveScreen)
        assert not app.screen.query(TourCard)


def test_it_comes_by_itself_once(tmp_path: Path) -> None:
    import sys

    command = [sys.executable, "-m", "tuiprof", "--sessions", str(tmp_path)]
    with in_terminal(command, XDG_STATE_HOME=str(tmp_path / "state")) as terminal:
        terminal.until_shown("1 of 5", "enter next")
        terminal.press("\x1b")
        terminal.until(lambda: "1 of 5" not in terminal.text())
        terminal.press("q")
        assert terminal.until_over() == 0
    with in_terminal(command, XDG_STATE_HOME=str(tmp_path / "state")) as terminal:
        terminal.until_shown("metrics", "? help")
        terminal.pump(1.5)
        assert "1 of 5" not in terminal.text()


def test_where_it_cannot_be_noted_it_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not is_first_start()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert is_first_start()
    assert not is_first_start()


async def test_a_letter_goes_to_its_pane(tmp_path: Path) -> None:
    made = Synthetic(tmp_path).ran(5)
    async with running(live(made.session.path), "median") as (app, pilot):
        await app.push_screen(TraceScreen(real_traces.SMALL))
        await until_shown(pilot, "saves about", "By operator")
        panes = panes_of(app.screen)
        assert len(panes) >= 2
        for index, pane in enumerate(panes):
            await press(pilot, "ctrl+o", opens=JumpScreen)
            await until_shown(pilot, "a timeline")
            await pilot.press("asdf"[index])
            await until(pilot, lambda: not isinstance(app.screen, JumpScreen))
            assert app.focused is pane
        await press(pilot, "ctrl+o", opens=JumpScreen)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, JumpScreen))
        assert app.focused is panes[-1]
