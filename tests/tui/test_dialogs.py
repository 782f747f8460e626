"""Forms say what is wrong with what was typed; a report is written as a file once, and replaced only when asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from on_screen import screen_text, until
from textual.widgets import Input
from trace_app import app_of, settle, settled, typed

from tuiprof.session.run.control import trigger_requests
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.dialogs.export import ExportScreen, write
from tuiprof.tui.dialogs.form import Form, PathForm, TextForm
from tuiprof.tui.ladder.screen import LadderForm
from tuiprof.tui.library.launch import LaunchForm, RunForm
from tuiprof.tui.live.forms import ArmForm, CaptureForm, StepsForm

LADDER: Any = SimpleNamespace(name="tiny", presets=["smoke", "fit"])
VARIANT: Any = SimpleNamespace(name="fast")


def no_x(text: str) -> None:
    if "x" in text:
        raise ValueError("no x, please")


@pytest.mark.parametrize(
    ("form", "wrong", "said", "right", "answer"),
    [
        (
            lambda: CaptureForm(5),
            ["0", "0", "0"],
            "steps must be a whole number from 1 to 1000",
            ["backspace", "backspace", "backspace", "7", "tab", "space"],
            {"steps": 7, "stack": True, "shapes": False, "memory": False},
        ),
        (
            lambda: ArmForm("35 ms", "", 10**9),
            ["tab", "0"],
            "every: a whole number of steps above 0",
            ["backspace", "9"],
            trigger_requests(above_ns=35_000_000, every=9, budget_bytes=10**9),
        ),
        (
            lambda: ArmForm("fast", "", 10**9),
            [],
            "'fast' is not a time (40ms, 2s)",
            ["backspace"],
            trigger_requests(budget_bytes=10**9),
        ),
        (
            lambda: LadderForm("tiny", ["fit", "smoke"]),
            ["right", "space", "tab", "tab", "1"],
            "steps must be a whole number above 1",
            ["2"],
            {"preset": "smoke", "rounds": 5, "steps": 12},
        ),
        (
            lambda: LaunchForm(LADDER, VARIANT),
            ["tab", "tab", "@"],
            "capture must be N or N@STEP, for example 5@20",
            ["backspace"],
            {"preset": "fit", "steps": None, "capture": "", "stack": False},
        ),
        (
            lambda: StepsForm("optimizer steps", lambda kind, text: {kind: text}, "3.11.4"),
            [*"train.py:8"],
            "a line requires Python 3.12, and the script runs on 3.11.4",
            [*["backspace"] * 10, *"backward"],
            {"by": "backward"},
        ),
        (lambda: TextForm("tags", check=no_x), ["x"], "no x, please", ["backspace", "a", " "], "a"),
        (PathForm, [*"/no-such-place"], "/no-such-place does not exist", [], None),
    ],
)
async def test_a_form_answers_only_what_it_understands(
    form: Any, wrong: list[str], said: str, right: list[str], answer: object, tmp_path: Path
) -> None:
    app = TuiprofApp(Start(sessions=tmp_path / "sessions", scenarios=(tmp_path,)))
    async with app.run_test(size=(100, 40)) as pilot:
        answers: list[object] = []
        asked: Form[Any] = form()
        await app.push_screen(asked, answers.append)
        await pilot.press(*wrong, "enter")
        await until(pilot, lambda: said in screen_text(app))
        assert app.screen is asked
        if answer is None:
            await pilot.press("escape")
        else:
            await pilot.press(*right, "enter")
        await until(pilot, lambda: bool(answers))
        assert answers == [answer]


async def test_a_path_is_completed_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    app = TuiprofApp(Start(sessions=tmp_path / "sessions", scenarios=(tmp_path,)))
    async with app.run_test(size=(100, 40)) as pilot:
        answers: list[object] = []
        await app.push_screen(PathForm(), answers.append)
        await pilot.press("enter")
        await until(pilot, lambda: "type a path; tab completes it" in screen_text(app))
        await pilot.press("r", "u")
        await until(pilot, lambda: "run.json" in screen_text(app))
        await pilot.press("tab", "enter")
        await until(pilot, lambda: bool(answers))
        assert answers == [tmp_path / "run.json"]


pytestmark = pytest.mark.usefixtures("made_analyses")


@pytest.mark.parametrize(("fmt", "presses"), [("txt", 0), ("json", 1), ("csv", 2), ("md", 3), ("html", 4)])
async def test_export_writes_what_the_renderers_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str, presses: int
) -> None:
    monkeypatch.chdir(tmp_path)
    async with settled(app_of()) as (app, pilot):
        await typed(pilot, "2", "e", *["tab"] * presses, "enter")
        assert not isinstance(app.screen, ExportScreen)
    text = (tmp_path / f"trace.waits.{fmt}").read_text()
    assert "train.py:7 update" in text
    if fmt == "json":
        assert [report["analysis"] for report in json.loads(text)["reports"]] == ["waits"]


async def test_export_never_replaces_a_file_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "trace.report.txt"
    there.write_text("precious")
    async with settled(app_of(), size=(80, 24)) as (app, pilot):
        await pilot.press("e", "up", "enter")  # all analyses
        await settle(pilot)
        assert "exists; press enter again to replace it" in app.text()
        assert there.read_text() == "precious"
        field = app.screen.query_one(Input)
        await pilot.press("backspace", "t", "enter")  # another edit, the same name: asked again
        await settle(pilot)
        assert there.read_text() == "precious"
        await typed(pilot, "enter")
        assert "all names are fine" in there.read_text()
        assert "no memory events" in there.read_text()
        await pilot.press("e")
        field = app.screen.query_one(Input)
        field.value = str(tmp_path / "no" / "folder.txt")
        await pilot.press("enter")
        await until(pilot, lambda: "No such file or directory" in app.words())
        await pilot.press("escape")
        assert sorted(os.listdir(tmp_path)) == ["trace.report.txt"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write(target, "one", replace=False)
    with pytest.raises(FileExistsError):
        write(target, "two", replace=False)
    write(target, "three", replace=True)
    assert target.read_text() == "three"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_a_command_that_cannot_start_stays_to_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    app = TuiprofApp(Start(sessions=tmp_path / "sessions", scenarios=(tmp_path,)))
    async with app.run_test(size=(100, 40)) as pilot:
        answers: list[Any] = []
        form = RunForm(None, sys.executable)
        await app.push_screen(form, answers.append)
        field = form.query_one("#argv", Input)
        for typed, said in (
            ("pythn train.py", "there is no command 'pythn'"),
            ("python trian.py", "'train.py'?"),
        ):
            field.value = typed
            await pilot.press("enter")
            await until(pilot, lambda said=said: said in screen_text(app))  # type: ignore[misc]
            assert app.screen is form
        field.value = "python train.py"
        await pilot.press("enter")
        await until(pilot, lambda: bool(answers))
        assert answers[0]["argv"] == ("python", "train.py")


async def test_a_field_that_was_not_filled_in_yet_does_not_look_wrong(tmp_path: Path) -> None:
    app = TuiprofApp(Start(sessions=tmp_path / "sessions", scenarios=(tmp_path,)))
    async with app.run_test(size=(100, 40)) as pilot:
        await app.push_screen(RunForm(None, ""))
        await until(pilot, lambda: "type a command, for example python train.py" in screen_text(app))
        field = app.screen.query_one("#argv", Input)
        assert not field.has_class("-invalid")
        await pilot.press("enter")
        await pilot.press(*"train '")
        await until(pilot, lambda: "the command cannot be parsed: No closing quotation" in screen_text(app))
        assert field.has_class("-invalid")
