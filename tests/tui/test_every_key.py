"""Every key of the screens of runs, sessions and ladders does what it does without harm, wherever it is pressed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from on_screen import press, running, screen_text, until, until_shown, workers_done
from synthetic import Synthetic, recorded
from test_ladder_screen import SCRIPT, measured
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input

from tests import real_traces
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.ladder.screen import LadderScreen
from tuiprof.tui.library import data as library_data
from tuiprof.tui.library.screen import LibraryScreen
from tuiprof.tui.live.screen import LiveScreen

LEAVING = {"leave", "quit", "escape"}


def keys(bindings: list[object]) -> list[str]:
    found = [
        binding for binding in bindings if isinstance(binding, Binding) and binding.action not in LEAVING
    ]
    assert len(found) > 5
    return [key for binding in found for key in binding.key.split(",")]


async def press_all(pilot: Pilot[int], home: type, pressed: list[str]) -> None:
    """Press keys one after the other, coming back to the screen after each."""
    app = pilot.app

    def is_home() -> bool:
        return isinstance(app.screen, home) and not isinstance(app.focused, Input)

    for key in pressed:
        await pilot.press(key)
        await workers_done(pilot)  # one may open a screen
        for _ in range(3):
            if not is_home():
                await pilot.press("escape")
        assert is_home(), key


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of a run that is made up answers that its stacks are wanted."""
    monkeypatch.setattr("tuiprof.session.asking._STACKS_PATIENCE_S", 0.05)


@pytest.fixture
def run(tmp_path: Path) -> Synthetic:
    return recorded(tmp_path / "s", 20, ranks=2)


async def test_on_a_run_that_goes_on(run: Synthetic) -> None:
    async with running(TuiprofApp(Start("live", run.session.path)), "27.0 ms", size=(150, 44)) as (_, pilot):
        await press_all(pilot, LiveScreen, keys(LiveScreen.BINDINGS) * 2)
        await press(pilot, "end", shows="● running")


async def test_on_a_replay(run: Synthetic) -> None:
    run.end()
    app = TuiprofApp(Start("replay", run.session.path, speed=8.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "replay 8×")
        await press_all(pilot, LiveScreen, keys(LiveScreen.BINDINGS) * 2)
        assert isinstance(app.screen, LiveScreen)
        assert app.screen.moment.replay is not None


async def test_on_a_run_without_a_step(tmp_path: Path) -> None:
    made = Synthetic(tmp_path, gpus=0)
    made.start()
    async with running(TuiprofApp(Start("live", made.session.path)), size=(100, 30)) as (_, pilot):
        await until_shown(pilot, "no step yet")
        await press_all(pilot, LiveScreen, keys(LiveScreen.BINDINGS))


async def test_in_the_library_on_ladders_sessions_and_traces(
    run: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = real_traces.SMALL  # a key opens the example
    (tmp_path / "traces").mkdir()
    shutil.copy(small, tmp_path / "traces" / library_data.EXAMPLE)
    monkeypatch.setattr(library_data, "shipped", tmp_path.joinpath)
    run.end()
    app = TuiprofApp(Start(sessions=run.root, python=Path(sys.executable)))
    async with app.run_test(size=(140, 50)) as pilot:
        await until_shown(pilot, "Learn", "Recent", "metrics:naive")
        screen = app.screen
        assert isinstance(screen, LibraryScreen)
        for kind in ("ladder:", "session:", "trace:"):
            items = screen.query_one("#items")
            index = next(choice.key for choice in items._choices if choice.key.startswith(kind))  # type: ignore[attr-defined]
            items.move_to(index)  # type: ignore[attr-defined]
            items.focus()
            await until(pilot, lambda kind=kind: screen.current.startswith(kind))  # type: ignore[misc]
            await press_all(pilot, LibraryScreen, keys(LibraryScreen.BINDINGS))
        assert run.session.path.exists()  # deleting asks, and escape is no yes


async def test_on_a_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "tuiprof.tui.ladder.screen.start_in_background", lambda ladder: pytest.fail("a form must come first")
    )
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "tiny.py").write_text(SCRIPT)
    start = Start(sessions=tmp_path / "sessions", scenarios=(folder,), python=Path(sys.executable))
    measured(start, {"slow": 20e6, "fast": 15e6})
    measured(start, {"slow": 20e6, "fast": 15e6})
    async with running(TuiprofApp(start), size=(140, 40)) as (app, pilot):
        app.go.ladder("tiny")
        await until_shown(pilot, "1.33× faster")
        await press_all(pilot, LadderScreen, keys(list(LadderScreen.BINDINGS)))
        assert "tiny" in screen_text(app)
