"""What the library shows, on a folder of real sessions and real scenario headers."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from datetime import UTC, datetime
from pathlib import Path

import pytest
from on_screen import press, running, screen_text, until, until_shown, workers_done
from synthetic import Synthetic
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input
from tiny_library import choose, ended, tiny_start

from tests import real_traces
from tuiprof.resources import shipped
from tuiprof.session.live.listing import Summary
from tuiprof.session.store.meta import Scenario, write_meta
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.library.launch import RunForm
from tuiprof.tui.library.screen import LibraryScreen
from tuiprof.tui.library.view import LadderItem, Listing, VariantItem, best_win, items
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.trace.screen import TraceScreen
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.spans import age, ago, when


async def until_form(pilot: Pilot[int], kind: type[RunForm]) -> RunForm:
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    assert isinstance(pilot.app.screen, kind)
    return pilot.app.screen


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return tiny_start(tmp_path)


async def test_ladders_say_what_can_run_and_why_not(start: Start) -> None:
    async with running(TuiprofApp(start), size=(140, 40)) as (app, pilot):
        await until_shown(pilot, "Learn", "tiny", "2 of 3 can run", "attention", "Python 3.")
        await choose(app, "ladder:tiny")
        text = await until_shown(pilot, "tiny — a loop", "It sleeps [red]and[/red] steps.", "20 ms")
        assert "Sleeps long." in text
        await press(pilot, "tab", "end", shows=("cannot run here: no-such-package-anywhere", "pip install"))
        await pilot.press("r")
        await workers_done(pilot)
        assert isinstance(app.screen, LibraryScreen)  # no form for what cannot run


async def test_variants_show_what_they_took_here_against_the_baseline(start: Start) -> None:
    ended(start.sessions, Scenario("tiny", "slow", "fit"), 20)
    ended(start.sessions, Scenario("tiny", "fast", "fit"), 15)
    async with running(TuiprofApp(start), "2 of 3 can run", size=(160, 40)) as (app, pilot):
        await choose(app, "ladder:tiny")
        text = await until_shown(pilot, "vs slow")
        fast = next(line for line in text.splitlines() if "fast " in line and "faster" in line)
        assert "15." in fast
        assert "1.3" in fast


async def test_sessions_say_how_they_ended(start: Start) -> None:
    done = ended(start.sessions, None, 12)
    failed = ended(start.sessions, None, 12, code=1)
    failed.session.stderr.write_text("Traceback\nValueError: [b]broken[/b] \x1b[31m\n")
    Synthetic(start.sessions, scenario=None, name="going").ran(3)
    cut = Synthetic(start.sessions, scenario=None, name="cut")
    cut.session.meta.unix_ns -= 3600 * 10**9
    write_meta(cut.session.path, cut.session.meta)
    (start.sessions / "20200101T000000Z-newer").mkdir()
    (start.sessions / "20200101T000000Z-newer" / "session.json").write_text('{"v": 99}')
    async with running(TuiprofApp(start), size=(140, 60)) as (app, pilot):
        text = await until_shown(pilot, "Recent", "running", "exit 1", "interrupted", "unreadable")
        assert "✓" in text
        await choose(app, f"session:{failed.session.path}")
        text = await until_shown(pilot, "failed, exit 1", "ValueError: [b]broken[/b]")
        assert "python train.py" in text
        assert "\x1b" not in text
        await choose(app, f"session:{done.session.path}")
        await until_shown(pilot, "R replay", "median step", "12.")


async def test_syncs_a_step_come_from_the_trace_of_the_newest_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache"))
    made = ended(start.sessions, Scenario("tiny", "slow", "fit"), 20)
    sample = shipped("traces") / "metrics-naive.pt.trace.json.gz"
    shutil.copy(sample, made.session.path / "traces" / "rank0.1.pt.trace.json.gz")
    async with running(TuiprofApp(start), "2 of 3 can run", size=(160, 44)) as (app, pilot):
        await choose(app, "ladder:tiny")
        text = await until_shown(pilot, "syncs/step")
        await until(pilot, lambda: " 2  ✓" in screen_text(app), 40)
        assert "the newest run on this machine" in text


async def test_filter_narrows_and_escape_widens(start: Start) -> None:
    async with running(TuiprofApp(start), "attention", "tiny", size=(140, 40)) as (app, pilot):
        await pilot.press("slash", "t", "i", "n", "y")
        await until(pilot, lambda: "attention" not in screen_text(app))
        assert "tiny — a loop" in screen_text(app)
        await press(pilot, "slash", "q", "q", shows="nothing matches")
        await press(pilot, "escape", shows="attention")


async def test_keys_that_come_in_one_bundle_after_the_slash_are_text(start: Start) -> None:
    async with running(TuiprofApp(start), "attention", "tiny", size=(140, 40)) as (app, pilot):
        for name, text in (("slash", "/"), *((letter, letter) for letter in "rlstiny"), ("slash", "/")):
            app.post_message(events.Key(name, text))
        await until(pilot, lambda: bool(app.screen.query("#filter")))
        await until(pilot, lambda: app.screen.query_one("#filter", Input).value == "rlstiny/")
        assert isinstance(app.screen, LibraryScreen)  # neither a form to launch nor a ladder has opened


async def test_a_broken_header_is_named_and_hides_no_other(start: Start) -> None:
    (start.scenarios[0] / "broken.py").write_text("# /// script\n# [tool.tuiprof]\n# name = \n# ///\n")
    async with running(TuiprofApp(start), "tiny", "1 problem", size=(140, 40)) as (app, pilot):
        await choose(app, "problems:")
        await until_shown(pilot, "broken.py:3")


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 50)])
async def test_it_fits(start: Start, size: tuple[int, int]) -> None:
    async with running(TuiprofApp(start), size=size) as (_, pilot):
        text = await until_shown(pilot, "Run my script", "Recent", "q quit", "? help")
        assert all(len(line) <= size[0] for line in text.splitlines())


def test_a_long_name_gives_way_to_what_can_run() -> None:
    names = ("metrics", "a-ladder-of-a-name-that-is-very-long")
    variants = (VariantItem("one", runnable=True), VariantItem("two", runnable=False))
    ladders = tuple(LadderItem(name, "", "", "one", "", (), (), variants) for name in names)
    for width in (20, 30, 60):
        lines = [
            choice.draw(width) for choice in items(Listing(ladders), "") if choice.key.startswith("ladder:")
        ]
        texts = ["".join(text for text, _ in line) for line in lines]
        assert [len(text) for text in texts] == [width, width]
        assert all(text.endswith("1 of 2 can run" if width > 40 else " 1/2 can run") for text in texts)
    assert "…" in "".join(text for text, _ in items(Listing(ladders), "long")[1].draw(30))


def test_times_are_said_as_people_do() -> None:
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).astimezone()
    assert when(int(now.timestamp() * 1e9), now) == now.strftime("%H:%M")
    assert when(int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp() * 1e9), now) == "2 Mar"
    assert when(int(datetime(2025, 3, 2, 12, tzinfo=UTC).timestamp() * 1e9), now) == "2025-03"
    assert when(0, now) == "–"


def test_ages_are_said_in_one_unit() -> None:
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    begun = int(now.timestamp() * 1e9)
    spans = {20: "now", 61: "1 min", 3 * 3600: "3 h", 90 * 86_400: "90 d"}
    assert {s: age(begun - s * 10**9, now) for s in spans} == spans
    assert ago(begun, now) == "now"
    assert ago(begun - 7200 * 10**9, now) == "2 h ago"
    assert age(begun - 800 * 86_400 * 10**9, now) == "2024-09"


async def test_a_script_is_run_again_from_the_first_line_and_can_be_changed(tmp_path: Path) -> None:
    start = Start(sessions=tmp_path / "sessions", python=Path(sys.executable))
    (tmp_path / "train.py").write_text("import sys\nprint('lr is', *sys.argv[1:])\n")
    made = ended(start.sessions, None, 12)
    made.session.meta.argv, made.session.meta.cwd = ["python", "train.py", "--lr", "1"], str(tmp_path)
    write_meta(made.session.path, made.session.meta)
    async with running(TuiprofApp(start)) as (_, pilot):
        await until_shown(pilot, "Run my script", "python train.py --lr 1", "recent commands", "runs in")
        await pilot.press("enter")
        form = await until_form(pilot, RunForm)
        assert form.query_one("#argv", Input).value == "python train.py --lr 1"
        await pilot.press("0")
        assert form.query_one("#argv", Input).value == "python train.py --lr 10", "what is typed is added"
        form.query_one("#argv", Input).value = "python train.py --lr '2"
        await press(pilot, "enter", shows="the command cannot be parsed")
        form.query_one("#argv", Input).value = "python train.py --lr 2"
        form.query_one("#capture", Input).value = ""
        await press(pilot, "enter", opens=LiveScreen)
        await until_shown(pilot, "lr is --lr 2")


async def test_a_pasted_path_is_what_to_open(start: Start) -> None:
    async with running(TuiprofApp(start), "Open a trace") as (app, pilot):
        path = real_traces.SMALL
        app.post_message(events.Paste(f"'{path}'\n"))
        await until(pilot, lambda: bool(app.screen.query("#path")))
        assert app.screen.query_one("#path", Input).value == str(path)
        await press(pilot, "enter", opens=TraceScreen)


async def test_the_example_opens_with_its_key(start: Start) -> None:
    async with running(TuiprofApp(start), "Look at an example") as (_, pilot):
        await press(pilot, "e", opens=TraceScreen)


async def test_another_python_is_chosen_for_the_whole_dashboard(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(bare))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho -n tuiprof-python:2.7\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    async with running(TuiprofApp(start), "2 of 3 can run", "P change", notifications=True) as (app, pilot):
        await press(pilot, "P", shows=("active environment", "neither torch nor jax", "use it"))
        await until_shown(pilot, "PATH: ", "is Python 2.7, which is too old")
        app.screen.query_one(Choices).move_to(str(bare / "bin" / "python"))
        await pilot.press("enter")
        await until(pilot, lambda: app.start.python == bare / "bin" / "python")
        await until_shown(pilot, "(bare)")
        await choose(app, "ladder:attention")
        await press(pilot, "tab", shows=("torch is not installed", "This is /", "chooses"))


def test_only_the_newest_sessions_are_listed_until_the_rest_is_asked_for() -> None:
    sessions = tuple(Summary(str(n), f"/s/{n}", f"run{n}", "finished") for n in range(9))
    keys = [choice.key for choice in items(Listing(sessions=sessions), "") if choice.key]
    assert keys[3:] == [*(f"session:/s/{n}" for n in range(6)), "more:"]
    every = [choice.key for choice in items(Listing(sessions=sessions), "", all_sessions=True) if choice.key]
    assert every[3:] == [f"session:/s/{n}" for n in range(9)]


def test_the_best_gain_measured_here_is_said() -> None:
    def ladder(name: str, *variants: VariantItem) -> LadderItem:
        return LadderItem(name, "", "", "loop", "", (), (), variants)

    slower = VariantItem("worse", here_ns=30.0, change=0.5)
    assert best_win([ladder("one", VariantItem("loop", here_ns=20.0), slower)]) == ""
    fast = VariantItem("triton", here_ns=5.0, change=-0.75)
    found = best_win([ladder("one", slower), ladder("two", fast)])
    assert found.strip() == "best here: loop → triton 4.00× faster"
