"""The doctor, on this machine and on described ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tuiprof.cli import machine as doctor
from tuiprof.errors import UsageProblem
from tuiprof.report import render
from tuiprof.telemetry import Absent, Device


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> doctor.Report:
    return doctor.examine(Path(sys.executable), sessions=tmp_path_factory.mktemp("sessions"))


def test_this_machine(here: doctor.Report) -> None:
    devices = here.table("devices").rows
    assert devices.row(0, named=True)["device"] == "host"
    absent = here.table("absent").rows
    assert set(devices["backend"]) | set(absent["backend"]) == {"host", "nvidia", "amd", "neuron", "tpu"}
    assert all(absent["reason"])
    assert here.fact("script_python") == f"{sys.version.split()[0]} ({sys.executable})"
    free = here.fact("sessions_free_bytes")
    assert isinstance(free, int)
    assert free > 0
    parts = here.table("parts").rows
    assert {"kineto", "xplane"} <= set(parts.filter(parts["part"] == "format")["name"])
    assert parts.filter(parts["part"] == "analysis").height > 3
    assert {"nan-check"} <= set(parts.filter(parts["part"] == "rule")["name"])
    assert {"text", "json"} <= set(parts.filter(parts["part"] == "output format")["name"])


def test_scenarios_add_up(here: doctor.Report) -> None:
    ladders, lacking = here.table("ladders").rows, here.table("lacking").rows
    assert here.fact("variants") == ladders["of"].sum()
    assert (
        here.fact("variants_runnable") == ladders["can"].sum() == ladders["of"].sum() - lacking["count"].sum()
    )
    assert all(lacking["reason"])


def test_text_and_json(here: doctor.Report) -> None:
    text = doctor.present(here, verbose=True)
    assert all(table.title in text for table in here.tables)
    short = doctor.present(here)
    assert "Missing requirements of scenarios" not in short
    assert "tuiprof doctor LADDER" in short
    document = json.loads(render(here, "json"))
    assert json.dumps(document).count("nvidia") >= 1


def test_what_one_ladder_lacks(here: doctor.Report) -> None:
    text = doctor.present(here, ladder="pallas-attention")
    assert "torch_xla" in text or "torch-xla" in text
    assert "metrics" not in text
    with pytest.raises(UsageProblem, match="no ladder 'metric'"):
        doctor.present(here, ladder="metric")


def test_a_python_that_is_not_there() -> None:
    report = doctor.examine(Path("/nowhere/python"))
    assert report.verdict.level == "bad"
    assert any("/nowhere/python" in note for note in report.notes)
    assert report.fact("script_python") is None
    assert report.fact("variants_runnable") == 0


def test_a_machine_with_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Device(f"gpu{i}", "nvidia", "NVIDIA H200", 141 << 30) for i in range(2)]
    found = doctor.Hardware({"nvidia": gpus}, {"tpu": Absent("no Google TPU on the PCI bus")})
    monkeypatch.setattr(doctor, "find_hardware", lambda: found)
    report = doctor.examine(Path(sys.executable))
    assert "NVIDIA H200 ×2" in report.verdict.sentence
    assert report.table("devices").rows["memory_bytes"].to_list() == [141 << 30] * 2
    assert report.fact("accelerators") == 2


@pytest.mark.parametrize(
    ("environment", "what", "found"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "colours", "16 million"),
        ({"TERM": "screen-256color", "TMUX": "/tmp/x"}, "inside", "tmux"),
        ({"TERM": "screen", "STY": "1.tty"}, "inside", "screen"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "colours", "off (NO_COLOR)"),
        ({"TERM": "linux"}, "mouse", "no"),
        ({"TERM": "xterm", "SSH_CONNECTION": "a b"}, "SSH", "yes (latency not measured)"),
        ({}, "colours", "none"),
    ],
)
def test_terminal(environment: dict[str, str], what: str, found: str) -> None:
    rows = {row[0]: row[1] for row in doctor.terminal_facts(environment, tty=True)}
    assert rows[what] == found


def test_output_that_is_no_terminal() -> None:
    assert doctor.terminal_facts({}, tty=False)[0][1] == "not a terminal"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_sessions_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    report = doctor.examine(Path(sys.executable), sessions=tmp_path / "sessions")
    assert any("cannot be written" in note for note in report.notes)
    tmp_path.chmod(0o700)
