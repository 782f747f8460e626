"""Real scripts started, watched, stopped and killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from installed import needs
from waiting import until

from tuiprof.errors import LaunchError, SessionError, UsageProblem
from tuiprof.session.live.listing import list_sessions
from tuiprof.session.live.replay import read_fold
from tuiprof.session.run import launch
from tuiprof.session.run.control import request_capture, request_stop, stop_unless_over
from tuiprof.session.run.launch import DEFAULT_CAPTURE, LaunchSpec, parse_capture, start, wait
from tuiprof.session.run.supervisor import Plan
from tuiprof.session.store.folders import Session, find_session
from tuiprof.session.store.status import Status, processes
from tuiprof.system.process import alive

Run = Callable[..., Session]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Start a script given as text; it is killed after the test if it still runs."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    started: list[Session] = []

    def launch_text(source: str, *arguments: str, **options: Any) -> Session:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(source))
        options = {
            "python": sys.executable,
            "root": tmp_path / "sessions",
            "grace_s": (0.3, 0.3),
        } | options
        started.append(start(LaunchSpec((str(script), *arguments), **options)))
        return started[-1]

    yield launch_text  # type: ignore[misc]
    for session in started:
        who = processes(session)
        for process in (who.supervisor, who.script) if who else ():
            if process is not None and alive(process):
                os.kill(process.pid, signal.SIGKILL)


def _pids(session: Session) -> tuple[int, int]:
    who = processes(session)
    assert who is not None
    assert who.script is not None
    return who.supervisor.pid, who.script.pid


def _notes(session: Session) -> str:
    return " ".join(note.text for note in read_fold(session).notes)


def _ended(session: Session, *, script: bool = False) -> bool:
    """Return whether the supervisor, or the script, runs no more: what is left of it is init's to collect."""
    who = processes(session)
    assert who is not None
    return not alive(who.script if script and who.script else who.supervisor)


def test_a_run_is_recorded_whole(run: Run, tmp_path: Path) -> None:
    session = run(
        """
        import os, sys
        print(os.environ["TUIPROF_SESSION"], sys.argv[1:], os.environ["MINE"], sys.stdin.read() == "")
        sys.stdout.buffer.write(bytes(range(256)))
        print("to stderr", file=sys.stderr)
        print(os.getpid() == os.getpgid(0))
        sys.exit(3)
        """,
        "--lr",
        "1e-3",
        env={"MINE": "mine"},
        name="a name",
    )
    status = wait(session, 20)
    assert status == Status("failed", 3)
    assert session.stdout.read_bytes().startswith(f"{session.path} ['--lr', '1e-3'] mine True\n".encode())
    assert bytes(range(256)) in session.stdout.read_bytes()
    assert session.stdout.read_bytes().endswith(b"True\n")
    assert "to stderr" in session.stderr.read_text()
    session.reload()
    assert (session.meta.name, session.meta.python) == ("a name", sys.executable)
    assert session.meta.devices[0].kind == "host"
    assert (session.control / f"capture-{DEFAULT_CAPTURE.id}.json").exists()
    fold = read_fold(session)
    assert len(fold.devices["host"].t_ns) >= 1
    assert "the probe recorded nothing" in _notes(session)
    assert (session.control / "supervisor.log").read_text() == ""
    until(lambda: _ended(session), "end of the supervisor")
    stop_unless_over(session)  # it is what was wanted
    with pytest.raises(SessionError, match=r"has ended: failed \(exit 3\)"):
        request_stop(session)


def test_a_script_killed_from_outside(run: Run) -> None:
    session = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    status = wait(session, 20)
    assert (str(status), status.code) == ("failed (SIGKILL)", 137)


def test_stop_is_polite_first(run: Run) -> None:
    session = run(
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("checkpoint written", flush=True)
        """,
        grace_s=(20.0, 20.0),
    )
    until(lambda: b"ready" in session.stdout.read_bytes(), "start")
    request_stop(session)
    status = wait(session, 20)
    assert (status.state, status.code) == ("stopped", 0)
    assert b"checkpoint written" in session.stdout.read_bytes()


def test_stop_is_firm_with_all_that_ignore_it(run: Run) -> None:
    # The script and a child that left its group and session: nothing of it may stay, not even a zombie.
    session = run(
        """
        import os, signal, time
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
        os.write(1, b"%d ready\\n" % os.getpid())  # whole: print writes in parts, and two write here
        time.sleep(60)
        """
    )
    until(lambda: session.stdout.read_bytes().count(b"ready") == 2, "start")
    pids = [int(line.split()[0]) for line in session.stdout.read_text().splitlines()]
    request_stop(session)
    status = wait(session, 20)
    assert (status.state, status.signal, status.code) == ("stopped", signal.SIGKILL, 137)
    assert len(set(pids)) == 2
    until(lambda: _ended(session), "end of the supervisor")
    for pid in pids:
        until(lambda pid=pid: not psutil.pid_exists(pid), "end of every process")


def test_signals_to_the_supervisor(run: Run) -> None:
    session = run(
        """
        import signal, time
        signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
        print("ready", flush=True)
        while True:
            time.sleep(1)
        """,
        grace_s=(0.5, 20.0),
    )
    supervisor, _ = _pids(session)
    until(lambda: b"ready" in session.stdout.read_bytes(), "start")
    plan = Plan(["true"], "/", {}, (1.0, 1.0))
    with pytest.raises(SessionError, match="is already being recorded"):
        launch._supervise(session, plan)
    os.kill(supervisor, signal.SIGHUP)
    os.kill(supervisor, signal.SIGUSR1)
    until(lambda: b"usr1" in session.stdout.read_bytes(), "signal passed on")
    assert session.status() == Status("running")
    os.kill(supervisor, signal.SIGTERM)
    status = wait(session, 20)
    assert (status.state, status.signal) == ("stopped", signal.SIGTERM)


def test_the_recorder_killed_and_the_script_goes_on(run: Run) -> None:
    session = run(
        """
        import signal, sys, time
        print("ready", flush=True)
        for n in range(600):
            print(n, flush=True)
            time.sleep(0.1)
        """
    )
    supervisor, _ = _pids(session)
    until(lambda: b"ready" in session.stdout.read_bytes(), "start")
    until(lambda: (session.log / "recorder.jsonl").stat().st_size > 500, "reading")
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: _ended(session), "end of the supervisor")
    assert str(session.status()) == "running (recorder lost)"
    size = session.stdout.stat().st_size
    until(lambda: session.stdout.stat().st_size > size + 10, "more output")
    assert len(read_fold(session).devices["host"].t_ns) >= 1  # what was recorded is there
    assert request_capture(session, 3) == "c1"
    request_stop(session, firm=True)
    until(lambda: _ended(session, script=True), "end of the script")
    assert str(session.status()) == "stopped (recorder lost)"
    assert list_sessions(session.path.parent)[0].state == "stopped"


def test_the_viewer_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    gone = tmp_path / "viewer is gone"
    script.write_text(
        f"import os, time\nwhile not os.path.exists({str(gone)!r}): time.sleep(.01)\nprint('trained')"
    )
    viewer = (
        "import os, sys; from pathlib import Path; from tuiprof.session.run.launch import LaunchSpec, start\n"
        "start(LaunchSpec((sys.argv[1],), root=Path(sys.argv[2]), python=sys.executable))\n"
        "os.killpg(0, 9)"
    )
    run = [sys.executable, "-c", viewer, str(script), str(tmp_path)]
    assert subprocess.run(run, start_new_session=True, check=False).returncode == -signal.SIGKILL
    session = find_session(tmp_path, "last")
    assert not session.status().over
    gone.touch()
    assert wait(session, 20) == Status("finished", 0)
    assert session.stdout.read_text() == "trained\n"


def test_torch_end_to_end(run: Run) -> None:
    needs("torch")
    session = run(
        """
        import torch
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        """,
        capture=parse_capture("2@5"),
        env={"OMP_NUM_THREADS": "1"},
    )
    assert wait(session, 120) == Status("finished", 0)
    fold = read_fold(session)
    assert fold.lead is not None
    assert len(fold.lead.steps) == 30
    assert {"forward", "backward", "optimizer"} <= set(fold.lead.steps.phases)
    capture = fold.captures["start"]
    assert (capture.state, capture.first, capture.last) == ("written", 5, 6)
    assert [str(path.relative_to(session.path)) for path in session.traces()] == capture.paths


def test_what_a_script_leaves_behind_is_left_in_peace(run: Run) -> None:
    session = run(
        """
        import subprocess
        child = subprocess.Popen(["sleep", "100"])
        print(child.pid, flush=True)
        child.returncode = 0
        """
    )
    assert wait(session, 20) == Status("finished", 0)
    child = int(session.stdout.read_text())
    assert psutil.Process(child).name() == "sleep"
    assert f"left processes running: sleep ({child})" in _notes(session)
    os.kill(child, signal.SIGKILL)


def test_a_script_that_trains_in_the_background(run: Run) -> None:
    session = run(
        """
        import json, os, time
        if os.fork():
            os._exit(0)
        with open(os.environ["TUIPROF_SESSION"] + "/log/rank0.jsonl", "a") as log:
            for n in range(28):
                at = time.monotonic_ns()
                log.write(json.dumps({"t": "step", "n": n, "at": at, "dur": 1}) + "\\n")
                log.flush()
                time.sleep(0.1)
        """
    )
    assert wait(session, 30) == Status("finished", 0)
    assert read_fold(session).writers["rank0"].steps.last_n == 27


def test_what_cannot_start(tmp_path: Path) -> None:
    def fails(*argv: str, **options: Any) -> str:
        with pytest.raises(LaunchError) as caught:
            start(LaunchSpec(argv, **{"cwd": tmp_path, "root": tmp_path / "sessions"} | options))
        return str(caught.value)

    (tmp_path / "train.py").write_text("")
    (tmp_path / "plain").write_text("echo\n")
    assert "did you mean 'train.py'?" in fails("trian.py")
    assert "did you mean 'train.py'?" in fails("python", "trian.py")
    assert "no command given" in fails()
    assert "did you mean 'sleep'?" in fails("sleeep")
    assert "chmod +x ./plain" in fails("./plain")
    assert "type ./plain" in fails("plain")
    assert "there is no directory" in fails("true", cwd=tmp_path / "nowhere")
    assert "no interpreter 'python9'" in fails("python", "x", python="python9")
    assert "ls is not a Python interpreter" in fails("train.py", python="/bin/ls")
    (tmp_path / "python2").write_text("#!/bin/sh\nprintf tuiprof-python:2.7\n")
    (tmp_path / "python2").chmod(0o755)
    assert "is Python 2.7, which is too old — tuiprof runs scripts in" in fails(
        "train.py", python=tmp_path / "python2"
    )
    assert not list(tmp_path.glob("sessions/*"))
    # These are only known once they are executed.
    (tmp_path / "plain").chmod(0o755)
    assert "is not an executable — start the script with a #! line" in fails("./plain")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    assert "interpreter named in its first line does not exist" in fails("./broken")
    rows = list_sessions(tmp_path / "sessions")
    assert {row.title: (row.state, row.code) for row in rows} == {
        "plain": ("failed", 126),
        "broken": ("failed", 127),
    }, "as a shell would say it"


def test_a_launch_that_comes_to_nothing_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")  # what the supervisor would run under
    with pytest.raises(LaunchError, match="the supervisor could not be started"):
        start(LaunchSpec(("true",), root=tmp_path))
    status = find_session(tmp_path, "last").status()
    assert (status.state, status.code) == ("failed", 126)
    assert "the supervisor could not be started" in str(status)


def test_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.session.run.interpreter import choose_python, resolve

    for folder in ("venv", "conda", "path"):
        python = tmp_path / folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
    torchrun = tmp_path / "venv" / "bin" / "torchrun"
    torchrun.write_text("#!/bin/sh\n")
    torchrun.chmod(0o755)
    env = {"PATH": str(tmp_path / "path" / "bin")}
    assert choose_python(None, {"PATH": ""}) == Path(sys.executable)
    assert choose_python(None, env) == tmp_path / "path" / "bin" / "python"
    env["CONDA_PREFIX"] = str(tmp_path / "conda")
    assert choose_python(None, env) == tmp_path / "conda" / "bin" / "python"
    env["VIRTUAL_ENV"] = str(tmp_path / "venv")
    chosen = choose_python(None, env)
    assert chosen == tmp_path / "venv" / "bin" / "python"  # the link itself: its place is the environment
    assert choose_python(tmp_path / "conda", env) == tmp_path / "conda" / "bin" / "python"
    (tmp_path / "train.py").write_text("")
    assert resolve(["python3", "-m", "x"], tmp_path, chosen, env) == [str(chosen), "-m", "x"]
    assert resolve(["train.py"], tmp_path, chosen, env) == [str(chosen), str(tmp_path / "train.py")]
    assert resolve(["torchrun", "train.py"], tmp_path, chosen, env) == [str(torchrun), "train.py"]


def test_capture_option() -> None:
    request = parse_capture("5@20", stack=True)
    assert (request.steps, request.at, request.stack, request.memory) == (5, 20, True, False)
    assert request.or_after_s is None, "step 20 was asked for"
    assert (parse_capture("4").at, parse_capture("4").or_after_s) == (30, DEFAULT_CAPTURE.or_after_s)
    for text in ("", "x", "0", "5@", "5@x", "-1@3", "5@20@3"):
        with pytest.raises(UsageProblem, match="N@STEP"):
            parse_capture(text)
