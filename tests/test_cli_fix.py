"""What the advice finds in a session, tried by its environment alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import needs

from tests.session.session_logs import new_session
from tuiprof.cli import main
from tuiprof.session.run.launch import LaunchSpec, start, wait

LOADED = """
import time, torch, tuiprof
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.tensor([float(index)])

for batch in DataLoader(Slow(), 2):
    time.sleep(0.01)
    tuiprof.step(loss=batch.sum().item())
"""
PLAIN = "import tuiprof\nfor n in range(24): tuiprof.step(loss=1.0)\n"
SCRIPT = """
import os, time, tuiprof
blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") != "0"
for n in range(24):
    time.sleep(0.02 if blocking else 0.001)
    tuiprof.step(loss=1 / (n + 1))
"""


def tuiprof(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuiprof", "--sessions", str(folder / "sessions"), *args],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=90,
    )


def here(folder: Path, *args: str) -> tuple[int, str, str]:
    """Run it in this process; return its status, its output and its errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["--sessions", str(folder / "sessions"), *args])
    return status, out.getvalue(), err.getvalue()


def recorded(folder: Path) -> Path:
    """Record ``train.py``; return its session."""
    command = (sys.executable, str(folder / "train.py"))
    session = start(LaunchSpec(command, cwd=folder, capture=None, root=folder / "sessions"))
    assert wait(session, 60).code == 0
    return session.path


def write(trace: dict[str, Any], session: Path) -> None:
    (session / "traces").mkdir(exist_ok=True)
    (session / "traces" / "rank0.1.pt.trace.json").write_text(json.dumps(trace))


def event(cat: str, name: str, ts: float, dur: float, tid: int, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def blocking_trace() -> dict[str, Any]:
    """Thirty launches that return after their kernels have ended."""
    events = []
    for number in range(30):
        at, ids = number * 50.0, {"correlation": number + 1}
        events.append(event("cuda_runtime", "cudaLaunchKernel", at, 30, 9, **ids))
        events.append(event("kernel", "k", at + 5, 20, 7, device=0, stream=7, **ids))
    return {"schemaVersion": 1, "traceEvents": events}


def test_a_setting_is_listed_with_its_variable_and_tried(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    session = recorded(tmp_path)
    assert here(tmp_path, "fix", str(session))[0] != 0, "it has no trace"
    write(blocking_trace(), session)

    status, listed, err = here(tmp_path, "fix", str(session))
    assert status == 0, err
    assert "launch-blocking" in listed
    assert "CUDA_LAUNCH_BLOCKING=0" in listed
    status, _, unknown = here(tmp_path, "fix", str(session), "--try", "nan-check")
    assert status == 2
    assert "there are launch-blocking" in unknown

    tried = tuiprof(tmp_path, "fix", str(session), "--try", "launch-blocking", "--trials", "3")
    metas = [json.loads(path.read_text()) for path in (tmp_path / "sessions").glob("*/session.json")]
    assert sorted(meta.get("trial", False) for meta in metas) == [False] + 6 * [True]
    assert tried.returncode == 0, tried.stderr
    assert "launch-blocking: faster" in tried.stdout
    assert "the logged metrics are the same with the fix" in tried.stdout
    assert tried.stderr.count("a step") == 6, "a line a trial"
    assert (tmp_path / "train.py").read_text() == SCRIPT


def loading_trace() -> dict[str, Any]:
    """Steps that wait for their batch, made in the process itself, for half of their time."""
    events = []
    for number in range(10):
        at, ids = number * 1000.0, {"correlation": number + 1}
        events.append(event("user_annotation", f"ProfilerStep#{number}", at, 990, 9))
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events.append(event("user_annotation", name, at + 10, 500, 9))
        events.append(event("cuda_runtime", "cudaLaunchKernel", at + 600, 10, 9, **ids))
        events.append(event("kernel", "k", at + 615, 300, 7, device=0, stream=7, **ids))
    return {"schemaVersion": 1, "traceEvents": events}


def test_loader_workers_are_switched_inside_of_the_process(tmp_path: Path) -> None:
    needs("torch")
    (tmp_path / "train.py").write_text(PLAIN)
    session = recorded(tmp_path)
    write(loading_trace(), session)
    (tmp_path / "train.py").write_text(LOADED)
    _, listed, err = here(tmp_path, "fix", str(session))
    assert "TUIPROF_TRY=loader_workers=" in listed, listed + err
    tried = tuiprof(tmp_path, "fix", str(session), "--try", "loader-workers", "--trials", "2")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert re.search("loader-workers: (faster|undecided)", tried.stdout), (
        "undecided where other programs take the cores"
    )
    assert "applied: DataLoader(num_workers=" in tried.stdout
    assert "in the script: DataLoader(num_workers=" in tried.stdout
    assert "the logged metrics are the same with the fix" in tried.stdout
    assert (tmp_path / "train.py").read_text() == LOADED


def test_a_switch_that_meets_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    session = recorded(tmp_path)
    write(loading_trace(), session)
    status, tried, _ = here(tmp_path, "fix", str(session), "--try", "loader-workers", "--trials", "2")
    assert status == 1
    assert "not applied: the script creates nothing" in tried


def test_without_such_advice_the_command_that_shows_the_rest_can_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = new_session(tmp_path, "train")
    trace = {"traceEvents": [event("cpu_op", "aten::mm", 0, 900, 9)]}
    (session.path / "traces").mkdir(exist_ok=True)
    (session.path / "traces" / "rank0.1.pt.trace.json").write_text(json.dumps(trace))
    assert main(["--sessions", str(tmp_path), "fix", session.id]) == 0
    _, _, command = capsys.readouterr().out.partition("see tuiprof ")
    assert main(["--sessions", str(tmp_path), *shlex.split(command)]) == 0
