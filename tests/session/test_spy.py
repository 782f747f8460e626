"""Stacks of processes that have no probe, or whose probe cannot answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import running, until

from tuiprof.cli import main
from tuiprof.session import ptrace
from tuiprof.session.run.control import request_stop
from tuiprof.session.run.launch import LaunchSpec, start, wait

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="ptrace of Linux"),
    pytest.mark.skipif(ptrace.py_spy() is None, reason="py-spy is not installed"),
]

WAITS = """
import threading
def helper():
    threading.Event().wait()
threading.Thread(target=helper, name="helper", daemon=True).start()
def outer():
    print("ready", flush=True)
    threading.Event().wait()
outer()
"""

#: The interpreter's lock is held in C, as an extension without care does it; before that a step was made.
HOLDS = """
import ctypes, time, tuiprof
def stuck():
    ctypes.PyDLL(None).sleep(600)
for i in range(5):
    tuiprof.step()
    time.sleep(0.2)
print("ready", flush=True)
stuck()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    with running([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if (why := ptrace.forbidden(child.pid)) is not None:
            pytest.skip(why[0])
        yield child


def test_a_process_that_tuiprof_did_not_start(
    other: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stacks", "--pid", str(other.pid)]) == 0
    out = capsys.readouterr().out
    assert f"process {other.pid} in" in out
    assert "outer" in out
    assert "helper of process" in out
    assert other.poll() is None


def test_without_py_spy_it_is_said_how_to_get_it(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptrace, "py_spy", lambda: None)
    assert main(["stacks", "--pid", str(other.pid)]) == 4
    assert "pip install 'tuiprof[stacks]'" in capsys.readouterr().err


def test_a_process_that_is_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    with running(["sleep", "60"]) as other:
        assert main(["stacks", "--pid", str(other.pid)]) == 4
    assert f"py-spy cannot read process {other.pid}" in capsys.readouterr().err


def test_a_rank_that_holds_the_interpreter_is_read_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(HOLDS)
    spec = LaunchSpec(
        ("python", "train.py"), cwd=tmp_path, capture=None, root=tmp_path / "s", python=sys.executable
    )
    session = start(spec)
    try:
        until(lambda: "ready" in session.stdout.read_text(), "the script is ready")
        assert main(["stacks", str(session.path)]) == 0
    finally:
        request_stop(session, firm=True)
        wait(session, 60)
    out = " ".join(capsys.readouterr().out.split())
    assert "stuck" in out
    assert "did not answer, as native code holds its interpreter lock: read by py-spy" in out
