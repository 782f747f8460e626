"""What ends when its terminal, its server or its viewer is gone, and what goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from served_page import served_page
from terminals import InTerminal, in_terminal
from waiting import running, until

from tests import real_traces
from tuiprof.session.run.control import request_stop
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import Session, session_dirs

TRACE = real_traces.SMALL
_TRAIN = """
import time, tuiprof
while True:
    time.sleep(0.01)
    tuiprof.step(loss=1.0)
    print("loss of a step", flush=True)
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tuiprof", *map(str, arguments)]


def ignoring_hangup(arguments: list[str]) -> list[str]:
    """Return a command as ``nohup`` starts it: SIGHUP is ignored."""
    return ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *arguments]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[list[str]]:
    """Arguments that launch an endless script in the terminal; it is killed after the test."""
    script = tmp_path / "train.py"
    script.write_text(_TRAIN)
    yield ["--sessions", str(tmp_path / "s"), "run", "--no-capture", "--", "python", str(script)]
    for path in session_dirs(tmp_path / "s"):
        session = Session(path)
        if not session.status().over:
            request_stop(session, firm=True)
            wait(session, 20)


def ended(terminal: InTerminal) -> bool:
    """Return whether the program in a terminal has ended, and take note of it."""
    if terminal.status is None:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        if pid:
            terminal.status = os.waitstatus_to_exitcode(status)
    return terminal.status is not None


def hang_up(terminal: InTerminal) -> None:
    """Take the terminal away, as a connection does that is lost."""
    other_end = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other_end, terminal.fd)
    os.close(other_end)


@pytest.mark.parametrize("screen", ["live", "inline", "trace"])
def test_a_viewer_ends_with_its_terminal_where_hangups_are_ignored(run: list[str], screen: str) -> None:
    arguments = {"live": run, "inline": [*run[:3], "--inline", *run[3:]], "trace": ["open", TRACE]}[screen]
    shown = {"live": "step time", "inline": "step time", "trace": "By operator"}[screen]
    with in_terminal(ignoring_hangup(command(*arguments))) as terminal:
        terminal.until_shown(shown)
        hang_up(terminal)
        until(lambda: ended(terminal), "end of the viewer")
    if screen != "trace":
        (path,) = session_dirs(Path(run[1]))
        assert not Session(path).status().over, "the run must go on"


def test_a_viewer_whose_terminal_is_not_read_ends_on_sigterm(run: list[str]) -> None:
    with in_terminal(command(*run), 200, 50) as terminal:
        terminal.until_shown("step time")
        # Nothing is read from now on: writes to the terminal block, and with them the screen.
        viewer = psutil.Process(terminal.pid)
        until(lambda: _is_stuck(viewer, terminal), "a viewer that waits for its terminal", 60)
        viewer.send_signal(signal.SIGTERM)
        until(lambda: ended(terminal), "end of the viewer")
    assert terminal.status == 128 + signal.SIGTERM


def _is_stuck(process: psutil.Process, terminal: InTerminal) -> bool:
    """Ask for other pictures; return whether a process draws none, nor does anything else."""
    before = process.cpu_times()
    for columns in (190, 200) * 3:
        terminal.resize(columns, 50)
        time.sleep(0.15)
    return process.cpu_times() == before


def test_a_recording_goes_on_where_hangups_are_ignored(run: list[str], tmp_path: Path) -> None:
    arguments = [*run[:2], "record", "--no-capture", *run[4:]]
    with in_terminal(ignoring_hangup(command(*arguments))) as terminal:
        terminal.until_shown("a step")
        (path,) = session_dirs(tmp_path / "s")
        recording = psutil.Process(terminal.pid)
        hang_up(terminal)
        recording.send_signal(signal.SIGHUP)
        size = (path / "stdout.log").stat().st_size
        until(lambda: (path / "stdout.log").stat().st_size > size + 1000, "more steps")
        assert not ended(terminal)
        request_stop(Session(path))
        until(lambda: ended(terminal), "end of the recording")


def test_what_works_for_a_viewer_ends_when_it_is_killed() -> None:
    child = (
        "import time; from tuiprof.system.own_process import exit_with_parent\n"
        "exit_with_parent(); print(1, flush=True); time.sleep(99)"
    )
    viewer = f"""
import subprocess, sys
from tuiprof.system.own_process import lifeline
with lifeline() as stdin:
    subprocess.run([sys.executable, "-c", {child!r}], stdin=stdin)
"""
    with running([sys.executable, "-c", viewer], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        (worker,) = psutil.Process(parent.pid).children()
        parent.kill()
    until(lambda: not _alive(worker), "end of the child")


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_dashboards_end_with_their_server() -> None:
    pytest.importorskip("textual_serve", reason="pip install 'tuiprof[serve]'")
    with served_page([TRACE]) as page:
        page.server.kill()
        until(lambda: not _alive(page.dashboard), "end of the dashboard")


def test_a_dashboard_that_does_not_answer_ends_with_its_page() -> None:
    pytest.importorskip("textual_serve", reason="pip install 'tuiprof[serve]'")
    with served_page([TRACE]) as page:
        page.dashboard.suspend()  # as one that is busy for ever with what its page sent
        page.client.kill()
        until(lambda: not _alive(page.dashboard), "end of the dashboard")
