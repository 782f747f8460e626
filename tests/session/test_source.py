"""The script that ran is kept with its session, and two runs of a script edited in place are told apart by it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
import pytest

from tuiprof.analyses.shared.changes import script_change
from tuiprof.comparison.sides import compare_targets
from tuiprof.report import render
from tuiprof.session.run.launch import (
    MAX_SOURCE_BYTES,
    LaunchSpec,
    own_files,
    script_of,
    source_texts,
    start,
    wait,
)
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import Scenario, Source, write_meta


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "config.toml"))
    path = tmp_path / "train.py"
    path.write_text("for step in range(3):\n    total = step\n    wait = True\nprint(total)\n")
    return path


def ran(script: Path, *, scenario: bool = False, keep_source: bool = True) -> Session:
    session = start(
        LaunchSpec(
            (str(script),),
            root=script.parent / "sessions",
            scenario=Scenario("made", "naive") if scenario else None,
            capture=None,
            keep_source=keep_source,
        )
    )
    assert wait(session, 60).code == 0
    return Session(session.path)


def test_what_changed_in_a_script_that_was_edited_in_place(script: Path) -> None:
    before = ran(script)
    script.write_text(
        script.read_text().replace("    wait = True\n", "    code\t= '`|<b>\x1b[31m'\n    more = 1\n")
    )
    after = ran(script)
    assert source_texts(before)["train.py"].count("wait = True") == 1
    report = compare_targets(before.path, after.path)
    assert report.fact("script") == "1 line removed, 2 lines added"
    rows = report.table("script").rows.select("before_line", "after_line", "change", "text").rows()
    assert rows == [
        (1, 1, " ", "for step in range(3):"),
        (2, 2, " ", "    total = step"),
        (3, None, "-", "    wait = True"),
        (None, 3, "+", "    code    = '`|<b>\x1b[31m'"),
        (None, 4, "+", "    more = 1"),
        (4, 5, " ", "print(total)"),
    ]
    shown = {name: render(report, name) for name in ("text", "md", "html", "json", "csv")}
    assert "       3      –  -      wait = True\n" in shown["text"]
    assert "| – | 3 | + | ``     code    = '`\\|<b>␛[31m' `` |" in shown["md"]
    assert ">    code    = &#x27;`|&lt;b&gt;␛[31m&#x27;</td>" in shown["html"]
    assert not [name for name, text in shown.items() if "\x1b" in text]
    same = compare_targets(before.path, before.path)
    assert same.fact("script") == "the same"
    assert same.table("script").rows.is_empty()


def test_what_belongs_to_a_scenario_is_kept_up_to_a_size(script: Path) -> None:
    folder = script.with_suffix("")
    folder.mkdir()
    (folder / "kernel.cu").write_text("fast\n")
    (folder / "table.bin").write_bytes(b"\0\1")
    (folder / "weights.txt").write_text("1" * MAX_SOURCE_BYTES)
    before = ran(script, scenario=True)
    source = before.meta.source
    assert source is not None
    assert source.kept == ["train.py", "train/kernel.cu"]
    assert set(source.digests) == {"train.py", "train/kernel.cu", "train/table.bin", "train/weights.txt"}
    (folder / "kernel.cu").write_text("faster\n")
    (folder / "weights.txt").write_text("2" * MAX_SOURCE_BYTES)
    table = compare_targets(before.path, ran(script, scenario=True).path).table("script")
    assert table.rows.select("file", "change", "text").rows() == [
        ("train/kernel.cu", "-", "fast"),
        ("train/kernel.cu", "+", "faster"),
    ]
    assert "too large to be stored: train/weights.txt" in table.note
    assert list(source_texts(ran(script))) == ["train.py"], "a script of the user's own is kept alone"


@pytest.mark.parametrize("by", ["option", "configuration", "broken configuration"])
def test_only_digests_are_kept_where_the_user_says_so(by: str, script: Path) -> None:
    if by != "option":
        said = "keep_source = false\n" if by == "configuration" else "keep_source = "
        (script.parent / "config.toml").write_text(said)
    before = ran(script, keep_source=by != "option")
    same = compare_targets(before.path, ran(script, keep_source=by != "option").path)
    script.write_text("secret = 1\n")
    after = ran(script, keep_source=by != "option")
    assert not (after.path / "source").exists()
    assert "secret" not in (after.path / "session.json").read_text()
    assert same.fact("script") == "the same"
    assert "its text was not kept" in compare_targets(before.path, after.path).table("script").empty


def test_sessions_of_an_earlier_tuiprof_and_of_somebody_else(script: Path) -> None:
    before, after = ran(script), ran(script)
    before.meta.source = None
    write_meta(before.path, before.meta)
    why = compare_targets(before.path, after.path).table("script").empty
    assert why.startswith(f"{before.id} has not kept its script")
    (script.parent / "private").write_text("mine")
    os.symlink(script.parent / "private", after.path / "source" / "link")
    after.meta.source = Source("link", {}, ["link", "../../../private", str(script)])
    assert source_texts(after) == {}


def test_the_file_that_a_command_runs(tmp_path: Path) -> None:
    for name in ("train.py", "plain", "pack/tool.py", "pack/app/__main__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    commands = {
        ("train.py", "--lr", "1"): "train.py",
        ("python", "-u", "train.py", "other.py"): "train.py",
        ("torchrun", "--nproc-per-node", "2", "train.py"): "train.py",
        ("python3", "plain"): "plain",
        ("python", "-m", "pack.tool", "-v"): "pack/tool.py",
        (sys.executable, "-m", "pack.app"): "pack/app/__main__.py",
        ("python", "-c", "pass"): None,
        ("python", "-m", "pip"): None,
        ("./plain",): None,
    }
    found = {command: script_of(command, tmp_path) for command in commands}
    assert found == {command: name and tmp_path / name for command, name in commands.items()}


def test_of_a_full_folder_always_the_same_files_belong_to_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuiprof.session.run.launch._MAX_FILES", 3)
    found = []
    for names in (["a/1.cu", "a/2.cu", "b.py", "c.py"], ["c.py", "b.py", "a/2.cu", "a/1.cu"]):
        folder = tmp_path / str(len(found)) / "kernel"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        found.append([str(path.relative_to(folder)) for path in own_files(folder.with_suffix(".py"))])
    assert found[0] == found[1]
    assert len(found[0]) == 3


def test_of_a_long_line_the_changed_part_is_shown() -> None:
    line = "    trainer.fit(model, DataLoader(data, shuffle=True, pin_memory=True, drop_last=True, batch_size={}))"
    short = "batch_size = {}"
    before, after = ("\n".join((line.format(size), "x = 1", short.format(size))) for size in (64, 256))
    table, said = script_change({"train.py": before}, {"train.py": after})
    assert said == "2 lines removed, 2 lines added"
    changed = table.rows.filter(pl.col("change").is_in(["-", "+"]))["text"].to_list()
    assert changed == [
        "… st=True, batch_size=64))",
        "… st=True, batch_size=256))",
        "batch_size = 64",
        "batch_size = 256",
    ]
