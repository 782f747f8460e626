"""Attaching to a process that was started without tuiprof."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked import ForkedPython
from installed import needs
from waiting import running, until

from tuiprof.cli import main
from tuiprof.errors import SessionError
from tuiprof.session import ptrace
from tuiprof.session.attach import Candidate, attach, candidates, detach
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import session_dirs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ptrace and /proc of Linux")

TRAINS = """
import os, sys, threading, time
threading.Thread(target=threading.Event().wait, daemon=True).start()
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
step, backward = torch.optim.SGD.step, torch.autograd.backward
if sys.argv[1:]:
    with open("pid", "w") as file: print(os.getpid(), file=file)
    sys.stdin = open(sys.argv[1])
print("ready", flush=True)
done = threading.Event()
said = []
threading.Thread(target=lambda: (said.append(sys.stdin.readline()), done.set()), daemon=True).start()
while not done.is_set():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    schedule.step()
    time.sleep(0.005)
if said == ["quietly\\n"]:
    sys.exit()
assert torch.optim.SGD.step is step and torch.autograd.backward is backward
assert not [name for name in sys.modules if "tuiprof" in name]
"""


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[str]]:
    needs("torch")
    needs("hypno")
    script = folder / "train.py"
    script.write_text(TRAINS)
    with running(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if (why := ptrace.forbidden(child.pid)) is not None:
            pytest.skip(why[0])
        yield child


@pytest.fixture(scope="module")
def trains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that each test leaves as it was, which it says at its end."""
    with training(tmp_path_factory.mktemp("trains")) as child:
        yield child
        assert child.poll() is None
        _, err = child.communicate("\n", timeout=60)
        assert child.returncode == 0, err


def _until_stepping(session: Path) -> None:
    log = session / "log" / "rank0.jsonl"
    until(lambda: log.exists() and log.read_bytes().count(b'"t":"step"') > 5, "steps")


def test_a_process_is_entered_captured_and_left(trains: subprocess.Popen[str], tmp_path: Path) -> None:
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.run.control import request_capture

    session, [answer] = attach([trains.pid], root=tmp_path / "sessions")
    assert (answer.frameworks, answer.optimizers) == (["torch"], 1)
    assert (session.meta.name, session.meta.attached) == ("train", [trains.pid])
    _until_stepping(session.path)
    assert session.status().state == "running"
    with pytest.raises(SessionError, match="it is already recorded") as second:
        attach([trains.pid], root=tmp_path / "sessions")
    assert session.id in second.value.remedy
    assert [path.name for path in session_dirs(tmp_path / "sessions")] == [session.id]

    request_capture(session, 2)
    until(session.traces, "the capture")
    detach(session)
    assert str(session.status()) == "finished (detached, the process keeps running)"
    lead = read_fold(session).lead
    assert lead is not None
    assert {"forward", "backward", "optimizer"} <= set(lead.steps.phases)
    assert trains.poll() is None


@pytest.mark.parametrize(
    ("line", "status"), [("quietly\n", "finished (exit status unknown)"), ("\n", "failed (exit 1)")]
)
def test_a_process_that_ends_while_it_is_recorded(
    tmp_path: Path, forked: ForkedPython, line: str, status: str
) -> None:
    """Its parent alone is told the status; the probe knows of an exception, here that it is still in there."""
    needs("torch")
    needs("hypno")
    script, lines, pid = (tmp_path / name for name in ("train.py", "lines", "pid"))
    script.write_text(TRAINS)
    os.mkfifo(lines)
    with ThreadPoolExecutor(1) as beside:
        ended = beside.submit(forked.run, script, str(lines), env=os.environ, cwd=tmp_path)
        with lines.open("w") as asked:  # once the script has opened it
            if (why := ptrace.forbidden(int(pid.read_text()))) is not None:
                pytest.skip(why[0])
            session, _ = attach([int(pid.read_text())], root=tmp_path / "sessions")
            _until_stepping(session.path)
            asked.write(line)
        assert ended.result()[0] == ("quietly" not in line)
    assert str(wait(session, 60)) == status


def test_stopping_the_session_leaves_the_process(trains: subprocess.Popen[str], tmp_path: Path) -> None:
    from tuiprof.session.run.control import request_stop

    session, _ = attach([trains.pid], root=tmp_path / "sessions")
    request_stop(session, firm=True)
    assert wait(session, 60).state == "finished"
    assert trains.poll() is None


def test_processes_that_train_are_listed(trains: subprocess.Popen[str]) -> None:
    found = {one.pid: one for one in candidates()}
    one = found[trains.pid]
    assert isinstance(one, Candidate)
    assert one.python == sys.version_info[:2]
    assert "torch" in one.frameworks
    assert "train.py" in one.command
    assert os.getpid() not in found


def test_what_cannot_be_entered_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running([shutil.which("sleep") or "sleep", "60"]) as other:
        root = str(tmp_path / "sessions")
        assert main(["--sessions", root, "attach", "--pid", str(other.pid)]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert f"process {other.pid} does not run a CPython that tuiprof supports: " in said
    assert main(["--sessions", root, "attach", "--pid", str(1 << 22)]) == 4
    assert "there is no process" in capsys.readouterr().err
    assert main(["--sessions", root, "attach", "--pid", "x"]) == 2
    assert main(["--sessions", root, "attach", "last", "--pid", "1"]) == 2
    assert not (tmp_path / "sessions").exists()


def test_a_session_that_was_launched_is_not_detached(tmp_path: Path) -> None:
    from session_logs import new_session

    with pytest.raises(SessionError, match="was started by tuiprof"):
        detach(new_session(tmp_path))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize(
    ("call", "unlimited", "at_all"),
    [
        ("202 0x1 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", True, True),  # a lock
        (
            "202 0x1 0x89 0x0 0x7f00 0x0 0xffffffff 0x7f 0x7f",
            False,
            False,
        ),  # a lock with a limit: maybe Python's own
        ("7 0x1 0x1 0xffffffffffffffff 0x0 0x0 0x0 0x7f 0x7f", True, True),  # poll without a limit
        ("7 0x1 0x1 0x64 0x0 0x0 0x0 0x7f 0x7f", False, True),  # poll for 100 ms
        ("230 0x1 0x0 0x7f 0x0 0x0 0x0 0x7f 0x7f", False, True),  # a sleep
        ("0 0x0 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f", True, True),  # a read
        ("9 0x0 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f", False, False),  # mmap: of an allocation
    ],
)
def test_which_waits_hold_nothing(call: str, unlimited: bool, at_all: bool) -> None:
    assert ptrace._waits(call, limited=False) is unlimited
    assert ptrace._waits(call, limited=True) is at_all


def test_why_ptrace_is_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with running([shutil.which("sleep") or "sleep", "60"]) as other:
        monkeypatch.setattr(ptrace, "_has_capability", lambda: False)
        scope = tmp_path / "scope"
        monkeypatch.setattr(ptrace, "_YAMA", scope)
        assert ptrace.forbidden(other.pid) is None
        for level, said in (
            ("1", "its own children only"),
            ("2", "administrators only"),
            ("3", "ptrace_scope is 3"),
        ):
            scope.write_text(level)
            told = ptrace.forbidden(other.pid)
            assert told is not None
            assert said in told[0].replace("a process's own", "its own")
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        told = ptrace.forbidden(other.pid)
        assert told is not None
        assert "belongs to another user" in told[0]
        other.kill()
