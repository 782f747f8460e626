"""`tuiprof record` where the session's folder goes wrong: the exit status is the script's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_disk import small_disk
from waiting import running, until

from tuiprof.session.store.folders import Session, session_dirs
from tuiprof.session.store.status import processes
from tuiprof.system.process import alive

_DELETES = """
import os, shutil, sys, time
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
session = os.environ["TUIPROF_SESSION"]
while os.path.exists(session):  # files are still written to it, so that one attempt may find it not empty
    shutil.rmtree(session, ignore_errors=True)
if len(sys.argv) > 3:  # as when the recorder writes the devices that it found during the deletion
    os.makedirs(session, exist_ok=True)
    with open(os.path.join(session, "session.json"), "w") as file:
        file.write(sys.argv[3])
print("goes on", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(_DELETES)
    return path


def record(tmp_path: Path, *command: object, options: tuple[str, ...] = ()) -> list[str]:
    verb = ["--sessions", tmp_path / "s", "record", "--no-capture", *options, "--", "python", *command]
    return [sys.executable, "-m", "tuiprof", *map(str, verb)]


@contextmanager
def deleted(tmp_path: Path, script: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Record a script that deletes its session once it is followed, and goes on for some seconds."""
    command = record(tmp_path, script, seconds, tmp_path / "go")
    with running(command, stderr=subprocess.PIPE, text=True) as recording:
        assert recording.stderr is not None
        assert recording.stderr.readline().startswith("recording train")
        (tmp_path / "go").touch()
        until(lambda: not session_dirs(tmp_path / "s"), "the session is gone")
        yield recording


@pytest.mark.parametrize("content", ["", '{"v": 1, "name": "train", "argv": []}'])
def test_a_session_that_is_written_again_after_its_deletion(
    tmp_path: Path, script: Path, content: str
) -> None:
    command = record(tmp_path, script, 0.3, tmp_path / "go", content)
    with running(command, stderr=subprocess.PIPE, text=True) as recording:
        assert recording.stderr is not None
        assert recording.stderr.readline().startswith("recording train")
        (tmp_path / "go").touch()
        _, said = recording.communicate(timeout=60)
    assert recording.returncode == 7, said


def test_a_session_deleted_underneath(tmp_path: Path, script: Path) -> None:
    with deleted(tmp_path, script, 0.3) as recording:
        _, said = recording.communicate(timeout=30)
    assert recording.returncode == 7, said
    assert "the report failed" in said
    assert "Traceback" not in said


def test_a_run_whose_session_was_deleted_is_stopped(tmp_path: Path, script: Path) -> None:
    with deleted(tmp_path, script, 100) as recording:
        recording.send_signal(signal.SIGINT)
        recording.communicate(timeout=30)
    assert recording.returncode == 128 + signal.SIGINT


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "s", "1m") as disk:
        yield disk


def test_a_run_on_a_full_disk_can_be_stopped(tiny_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('x' * (2 << 20), flush=True)\ntime.sleep(100)")
    with running(record(tmp_path, script), stderr=subprocess.PIPE, text=True) as recording:
        until(lambda: not os.statvfs(tiny_disk).f_bavail, "the disk is full")
        (path,) = session_dirs(tiny_disk)
        who = processes(Session(path))
        recording.send_signal(signal.SIGINT)
        recording.communicate(timeout=30)
    assert recording.returncode == 128 + signal.SIGINT
    assert who is not None
    assert who.script is not None
    assert not alive(who.script)


def test_the_script_ignores_what_it_would_ignore_without_tuiprof(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal\n"
        "print(*(s.name for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN))"
    )
    shell = ["sh", "-c", "trap '' HUP USR1 INT; exec \"$@\"", "sh"]
    alone = subprocess.run(
        [*shell, sys.executable, script], capture_output=True, text=True, check=True
    ).stdout
    assert "SIGHUP" in alone
    assert "SIGINT" in alone
    command = [*shell, *record(tmp_path, script, options=("--tee", "-q"))]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert told.splitlines()[0] == alone.strip()
