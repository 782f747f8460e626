"""The recorder's part: appending on a full disk, backends that fail, what it costs."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from session_logs import new_session
from small_disk import small_disk
from waiting import until

from tuiprof.errors import SessionError
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.tail import LogFile
from tuiprof.session.log import Head, LogWriter, Note
from tuiprof.session.run.control import put_capture
from tuiprof.session.run.launch import DEFAULT_CAPTURE, LaunchSpec, start, wait
from tuiprof.session.run.recorder import Recorder, git_state
from tuiprof.session.store.folders import create
from tuiprof.telemetry import Absent, Backend, Device, Sample


def test_a_full_disk_tears_no_line_and_loses_nothing(tmp_path: Path) -> None:
    # The limit on the size of a file stands for the disk: a write is cut in the middle of a line.
    session = new_session(tmp_path)
    log = LogWriter(session.log / "recorder.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        written = [log.write(Note(n, "info", "x" * 50)) for n in range(100)]
        assert (session.log / "recorder.jsonl").stat().st_size == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, was)
    assert written[0]
    assert not written[-1]
    assert log.waiting > 50
    assert log.flush()
    log.close()
    fold = read_fold(session)
    assert not fold.problems
    with closing(LogFile(session.log / "recorder.jsonl")) as recorded:
        notes = [note for note in recorded.read() if isinstance(note, Note)]
    assert [note.at for note in notes[:-1]] == list(range(100))
    assert "the disk is full; nothing was lost" in notes[-1].text


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "256k") as disk:
        yield disk


def test_a_run_on_a_full_disk_ends_in_order(tiny_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\n"
        "path = os.environ['TUIPROF_SESSION'] + '/fill'\n"
        "with open(path, 'wb', 0) as file:\n"
        "    try:\n"
        "        while True: file.write(bytes(4096))\n"
        "    except OSError: pass\n"
        "while not os.path.exists(os.environ['GO_ON']): time.sleep(0.02)\n"
    )
    seen = tmp_path / "seen"
    spec = LaunchSpec((str(script),), python=sys.executable, root=tiny_disk, env={"GO_ON": str(seen)})
    session = start(spec)
    until(lambda: not shutil.disk_usage(tiny_disk).free, "the disk is full")
    with pytest.raises(SessionError, match="no space left to"):
        create(tiny_disk / "more", session.meta)
    assert not list(tiny_disk.glob("more/*"))
    with pytest.raises(SessionError, match="no space left to write"):
        put_capture(session, DEFAULT_CAPTURE)
    time.sleep(1.2)  # readings that find no space
    seen.touch()
    assert str(wait(session, 30)) == "finished"
    fold = read_fold(session)
    assert fold.end is not None
    assert len(fold.devices["host"].t_ns) >= 2  # what could not be written at the time, too


class _Source:
    def __init__(self, key: str, fails_after: int = 10**9) -> None:
        self.key = key
        self.left = fails_after
        self.taken = 0
        self.closed = False

    def devices(self) -> list[Device]:
        return [Device(self.key, "test", "A device", 5, {"cores": 2})]

    def sample(self) -> list[Sample]:
        self.left -= 1
        if self.left < 0:
            raise OSError("driver went away")
        self.taken += 1
        return [Sample(self.key, {"util": 0.5, "broken": float("nan")}, {"throttle": "none"})]

    def close(self) -> None:
        self.closed = True


def test_backends_that_fail_are_noted_and_dropped(tmp_path: Path) -> None:
    def explodes(_: int | None) -> Absent:
        raise RuntimeError("no such symbol")

    good, bad = _Source("good"), _Source("bad", fails_after=1)
    backends = {
        "good": Backend("good", lambda _: good),
        "bad": Backend("bad", lambda _: bad),
        "absent": Backend("absent", lambda _: Absent("not in this machine")),
        "explodes": Backend("explodes", explodes),
    }
    session = new_session(tmp_path)
    log = LogWriter(session.log / "recorder.jsonl")
    meta = session.meta
    log.write(Head(1, "recorder", 1, meta.unix_ns, time.monotonic_ns(), boot=meta.boot))
    recorder = Recorder(session.path, session.meta, log, os.getpid(), {}, lambda: backends)
    recorder.start()
    until(lambda: good.taken >= 3, "three samples")
    recorder.stop()
    log.close()
    fold = read_fold(session)
    assert len(fold.devices["good"].t_ns) >= 3
    assert fold.devices["good"].rows.names == ["t_ns", "util"]
    assert len(fold.devices["bad"].t_ns) == 1
    assert good.closed
    assert bad.closed
    notes = [note.text for note in fold.notes]
    assert notes == [
        "telemetry of explodes is off: RuntimeError: no such symbol",
        "telemetry of bad stopped: OSError: driver went away",
    ]
    session.reload()
    assert [device.key for device in session.meta.devices] == ["good", "bad"]
    assert session.meta.absent["absent"] == "not in this machine"
    assert fold.recorder_share is not None
    assert fold.recorder_share < 0.1


def test_devices_that_the_runs_environment_names_are_marked(tmp_path: Path) -> None:
    gpus = [Device(f"gpu{i}", "nvidia", "NVIDIA H200", None, {"pci": f"0000:1{i}:00"}) for i in range(3)]
    source, host = _Source("gpu1"), _Source("host")
    source.devices = lambda: gpus  # type: ignore[method-assign]
    backends = {"host": Backend("host", lambda _: host), "nvidia": Backend("nvidia", lambda _: source)}
    session = new_session(tmp_path)
    log = LogWriter(session.log / "recorder.jsonl")
    env = {"CUDA_VISIBLE_DEVICES": "1"}
    recorder = Recorder(session.path, session.meta, log, os.getpid(), env, lambda: backends)
    recorder.start()
    recorder.stop()
    log.close()
    session.reload()
    seen = {device.key: device.visible for device in session.meta.devices}
    assert seen == {"host": None, "gpu0": False, "gpu1": True, "gpu2": False}


def test_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> None:
        known = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *known, *arguments), cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "trunk")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    state = git_state(tmp_path)
    assert state is not None
    assert (len(state.commit), state.branch, state.dirty) == (40, "trunk", False)
    (tmp_path / "a").write_text("2")
    git("checkout", "--detach")
    state = git_state(tmp_path)
    assert state is not None
    assert (state.branch, state.dirty) == ("", True)
