from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from on_screen import until
from textual.widgets import Input
from trace_app import app_of, settle

from tuiprof.tui.dialogs.export import ExportScreen, write

pytestmark = pytest.mark.usefixtures("made_analyses")


@pytest.mark.parametrize(("fmt", "presses"), [("txt", 0), ("json", 1), ("csv", 2), ("md", 3), ("html", 4)])
async def test_export_writes_what_the_renderers_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str, presses: int
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("2", "e", *["tab"] * presses, "enter")
        await settle(pilot)
        assert not isinstance(app.screen, ExportScreen)
    text = (tmp_path / f"trace.waits.{fmt}").read_text()
    assert "train.py:7 update" in text
    if fmt == "json":
        assert [report["analysis"] for report in json.loads(text)["reports"]] == ["waits"]


async def test_export_never_replaces_a_file_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "trace.report.txt"
    there.write_text("precious")
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("e", "up", "enter")  # all analyses
        await settle(pilot)
        assert "exists; enter again replaces it" in app.text()
        assert there.read_text() == "precious"
        field = app.screen.query_one(Input)
        await pilot.press("backspace", "t", "enter")  # another edit, the same name: asked again
        await settle(pilot)
        assert there.read_text() == "precious"
        await pilot.press("enter")
        await settle(pilot)
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
