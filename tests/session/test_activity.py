"""What is said of a script before its first step, on real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from tuiprof.session.live.step_source import activity
from tuiprof.session.run import control
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.folders import Session


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Session]:
    """A script that waits until a file is there, then runs a compiler that waits for another one."""
    compiler = tmp_path / "bin" / "cc1plus"
    compiler.parent.mkdir()
    compiler.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "kernel.cpp").write_text("import sys; sys.stdin.read()\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        f"subprocess.run([{str(compiler)!r}, 'kernel.cpp'], stdin=subprocess.PIPE, timeout=60)\n"
    )
    session = start(
        LaunchSpec(
            ("python", "train.py"),
            cwd=tmp_path,
            python=sys.executable,
            capture=None,
            root=tmp_path / "sessions",
            patience_s=(0.2, 0.2),
        )
    )
    yield session
    if not session.status().over:
        control.request_stop(session)
    wait(session, 30)


def until_active(session: Session, text: str) -> None:
    until(lambda: text in activity(session), lambda: f"{text!r}, but {activity(session)!r}")


def test_importing_then_compiling_which_file(run: Session, tmp_path: Path) -> None:
    until_active(run, "no framework is loaded yet")
    (tmp_path / "go").touch()
    until_active(run, "compiling kernel.cpp (cc1plus)")
    control.request_stop(run)
    assert wait(run, 30).over
    assert "compiling" not in activity(run)
