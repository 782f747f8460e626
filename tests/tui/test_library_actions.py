"""What is done from the library: open, run, delete, tag, compare, read; by keys and by the palette."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from on_screen import press, running, screen_text, until, until_shown
from synthetic import Synthetic
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Input
from tiny_library import choose, ended, sidebar, tiny_start

from tests import real_traces
from tests.session.host_parts import part
from tuiprof.errors import SessionError
from tuiprof.resources import shipped
from tuiprof.session.store.meta import Scenario
from tuiprof.tui import Start
from tuiprof.tui.app.app import Navigator, TuiprofApp
from tuiprof.tui.dialogs.form import _PathSuggester
from tuiprof.tui.ladder.screen import LadderScreen
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.screen import LibraryScreen
from tuiprof.tui.library.view import Listing
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.trace.screen import TraceScreen


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return tiny_start(tmp_path)


async def palette(pilot: Pilot[int]) -> None:
    await press(pilot, "ctrl+p", shows="open a file — Open a trace")


async def test_enter_opens_a_session_and_q_comes_back(start: Start) -> None:
    made = ended(start.sessions, None, 12)
    async with running(TuiprofApp(start), "Recent", "tiny", size=(140, 40)) as (app, pilot):
        await until(pilot, lambda: bool(sidebar(app).current))
        await choose(app, f"session:{made.session.path}")
        await press(pilot, "enter", opens=LiveScreen)
        await until_shown(pilot, "finished")
        await press(pilot, "q", opens=LibraryScreen)
        await press(pilot, "R", shows="▶ replay 1×")


async def test_a_scenario_is_launched_from_the_form_and_watched(start: Start) -> None:
    async with running(TuiprofApp(start), "2 of 3 can run", size=(140, 40)) as (app, pilot):
        await choose(app, "ladder:tiny")
        await until_shown(pilot, "tiny — a loop")
        await press(pilot, "r", shows=("run tiny:slow", "preset", "capture"))
        await press(pilot, "tab", "x", "enter", shows="steps must be a whole number above 0")
        await pilot.press("backspace", "9", "tab", "ctrl+u", "enter")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen), 30)
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        assert screen.session.meta.scenario == Scenario("tiny", "slow", "fit")
        assert screen.session.meta.capture is None
        assert screen.session.meta.argv[-2:] == ["--steps", "9"]
        await until_shown(pilot, "running", "step ")
        await press(pilot, "Q", shows="y stop it")
        await pilot.press("y")
        await until(pilot, lambda: screen.moment.status.over, 30)
        await until_shown(pilot, "■ stopped")


async def test_deleting_asks_and_moves_to_the_trash(start: Start) -> None:
    made = ended(start.sessions, None, 12)
    async with running(TuiprofApp(start), "Recent", "tiny", size=(140, 40)) as (app, pilot):
        await choose(app, f"session:{made.session.path}")
        await press(pilot, "delete", shows="y delete it")
        await press(pilot, "y", shows=("no session yet", "u undo delete"))
        assert not made.session.path.exists()
        assert (start.sessions / ".trash" / made.session.path.name / "session.json").exists()
        await pilot.press("u")
        await until(pilot, lambda: made.session.path.exists())
        await until(pilot, lambda: "no session yet" not in screen_text(app))


@pytest.mark.parametrize("gone", [False, True], ids=["comes back", "a part is gone for good"])
async def test_what_all_hosts_of_a_run_recorded_is_deleted_and_comes_back(start: Start, gone: bool) -> None:
    parts = [part(start.sessions, f"node{n}", [n]) for n in range(2)]
    async with running(TuiprofApp(start), size=(140, 40), notifications=True) as (app, pilot):
        await until_shown(pilot, "Recent", "train")
        await choose(app, f"session:{parts[0].path}")
        await press(pilot, "delete", shows="What its hosts recorded is moved")
        await press(pilot, "y", shows=("no session yet", "u undo delete"))
        assert not any(session.path.exists() for session in parts)
        if gone:
            shutil.rmtree(start.sessions / ".trash" / parts[0].path.name)
        await pilot.press("u")
        await until(pilot, lambda: all(session.path.exists() for session in parts[gone:]))
        if gone:
            await until_shown(pilot, "error")


async def test_tags_and_notes_are_shown_and_searched(start: Start) -> None:
    made = ended(start.sessions, None, 12)
    Synthetic(start.sessions, scenario=None, name="other").ran(2, code=0)
    async with running(TuiprofApp(start), size=(140, 60)) as (app, pilot):
        await until_shown(pilot, "Recent", "tiny", "on disk", "other")
        await choose(app, f"session:{made.session.path}")
        await until_shown(pilot, "disk use")
        await press(pilot, "t", *"a/b", "enter", shows="'a/b' is not a valid tag")
        await press(pilot, "escape", opens=LibraryScreen)
        await press(pilot, "t", *"base h200", "enter", shows="#base #h200")
        await press(pilot, "m", *"on NFS", "enter", shows="on NFS")
        await pilot.press("slash", *"nfs")
        await until(pilot, lambda: "other" not in screen_text(app))
        assert "#base" in screen_text(app)


async def test_two_marked_sessions_are_compared(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (ended(start.sessions, None, ms) for ms in (12, 14))
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(Navigator, "compare", lambda _self, before, after: asked.append((before, after)))
    async with running(TuiprofApp(start), "Recent", "tiny", size=(140, 60)) as (app, pilot):
        await choose(app, f"session:{two.session.path}")
        await press(pilot, "space", shows="[1]")
        assert "c compare" not in screen_text(app)
        await choose(app, f"session:{one.session.path}")
        await press(pilot, "space", shows=("[2]", "c compare"))
        await pilot.press("c")
        assert asked == [(str(two.session.path), str(one.session.path))]
        await pilot.press("space")
        await until(pilot, lambda: "[2]" not in screen_text(app))


async def test_a_marked_session_that_was_deleted_is_not_compared(start: Start) -> None:
    one, two = (ended(start.sessions, None, ms) for ms in (12, 14))
    async with running(TuiprofApp(start), size=(140, 60), notifications=True) as (app, pilot):
        await until_shown(pilot, "Recent", "tiny")
        screen = app.screen
        assert isinstance(screen, LibraryScreen)
        screen.marked = [str(one.session.path), str(two.session.path)]
        shutil.rmtree(one.session.path)
        screen.action_compare()
        await until_shown(pilot, "a marked session was deleted")
        assert screen.marked == [str(two.session.path)]


async def test_a_variant_is_not_run_where_the_sessions_cannot_be_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(TuiprofApp(start), size=(140, 44), notifications=True) as (app, pilot):
        await until_shown(pilot, "2 of 3 can run")
        screen = app.screen
        assert isinstance(screen, LibraryScreen)

        def unreadable(_library: Library) -> Listing:
            raise SessionError("the folder cannot be read")

        monkeypatch.setattr(Library, "scan", unreadable)
        screen._listing = None  # as before the first scan
        screen.run_variant("tiny", "baseline")
        await until_shown(pilot, "the folder cannot be read")


async def test_the_source_of_a_variant_is_read(start: Start) -> None:
    async with running(TuiprofApp(start), "2 of 3 can run", size=(140, 44)) as (app, pilot):
        await choose(app, "ladder:tiny")
        await until_shown(pilot, "tiny — a loop")
        await press(pilot, "s", shows=("tiny.py", "baseline", "import tuiprof", "for step in range(6000)"))
        await pilot.resize_terminal(40, 44)
        box = app.screen.query_one(VerticalScroll)
        await until(pilot, lambda: box.max_scroll_x > 0)
        await until_shown(pilot, "q back")
        await pilot.press("right")  # long lines go on
        await until(pilot, lambda: "import tuiprof" not in screen_text(app))
        await pilot.resize_terminal(140, 44)
        await press(pilot, "left", "end", "pageup", "g", "q", shows="tiny — a loop")


async def test_a_path_is_completed_checked_and_opened(start: Start, tmp_path: Path) -> None:
    made = ended(tmp_path / "elsewhere", None, 12)
    async with running(TuiprofApp(start), "Learn", size=(140, 40)) as (app, pilot):
        await press(pilot, "o", shows="open a trace or a session")
        app.screen.query_one("Input").value = str(tmp_path / "nowhere")  # type: ignore[attr-defined]
        await press(pilot, "enter", shows=("nowhere", "does not exist"))
        app.screen.query_one("Input").value = str(tmp_path / "elsewhere") + "/"  # type: ignore[attr-defined]
        await pilot.press("end", "2")
        field = app.screen.query_one(Input)
        await until(pilot, lambda: field._suggestion != "")
        await press(pilot, "tab", "enter", opens=LiveScreen)
        assert app.screen.session.path == made.session.path  # type: ignore[attr-defined]


async def test_a_folder_is_opened_as_on_the_command_line(start: Start, tmp_path: Path) -> None:
    traces = tmp_path / "runs" / "traces"
    (tmp_path / "empty").mkdir()
    traces.mkdir(parents=True)
    trace = shutil.copy(shipped("traces") / "planted-syncs.pt.trace.json.gz", traces)
    (tmp_path / "runs" / "a.log").touch()
    async with running(TuiprofApp(start), "Learn", notifications=True) as (app, pilot):
        for folder, shown in (
            (tmp_path / "empty", "contains no trace"),
            (tmp_path / "runs", "Syncs by location"),
        ):
            await press(pilot, "o", shows="open a trace or a session")
            field = app.screen.query_one(Input)
            field.value = f"{folder}/"
            await press(pilot, "end", "enter", shows=shown)
        assert isinstance(app.screen, TraceScreen)
        assert app.screen.path == Path(trace)


async def test_folders_and_traces_are_suggested_before_other_files(tmp_path: Path) -> None:
    suggest = _PathSuggester().get_suggestion
    for name, is_folder, suggested in (
        ("a.log", False, "a.log"),
        ("c.pt.trace.json", False, "c.pt.trace.json"),
        ("b", True, "b/"),
    ):
        (tmp_path / name).mkdir() if is_folder else (tmp_path / name).touch()
        assert await suggest(f"{tmp_path}/") == f"{tmp_path}/{suggested}"
    assert await suggest(f"{tmp_path}/a") == f"{tmp_path}/a.log"


async def test_the_palette_finds_scenarios_sessions_and_actions(start: Start) -> None:
    ended(start.sessions, None, 12)
    async with running(TuiprofApp(start), "Recent", "tiny", size=(140, 40)) as (_, pilot):
        await palette(pilot)
        await press(pilot, *"tiny:fast", shows="run tiny:fast")
        await press(pilot, "enter", shows=("run tiny:fast", "from the preset"))


async def test_the_palette_opens_ladders_and_captured_traces(start: Start) -> None:
    session = ended(start.sessions, None, 12)
    trace = session.session.path / "traces" / "captured.pt.trace.json.gz"
    trace.parent.mkdir(exist_ok=True)
    shutil.copy(real_traces.SMALL, trace)
    async with running(TuiprofApp(start), "Recent", "tiny", size=(140, 40)) as (_, pilot):
        await palette(pilot)
        await press(pilot, *"captured.pt", shows=("open trace", "captured.pt.trace.json.gz"))
        await pilot.press("escape")
        await palette(pilot)
        await press(pilot, *"ladder tiny", shows="ladder tiny — show results, measure it")
        await press(pilot, "enter", opens=LadderScreen)
