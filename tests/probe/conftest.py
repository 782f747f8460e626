"""Fixtures of the probe's tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from probe_runs import Run, environment, new_session, read


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return new_session(tmp_path / "session")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """``run(script, *args, how=…, python=…, requests=…, triggers=…, flags=…, cwd=…, env…)`` -> Run."""

    def start(
        script: str,
        *args: str,
        how: Sequence[str] | None = None,
        python: str = sys.executable,
        flags: Sequence[str] = (),
        requests: Sequence[dict[str, Any]] = (),
        triggers: Sequence[dict[str, Any]] = (),
        cwd: Path | None = None,
        **more: str,
    ) -> Run:
        session = new_session(tmp_path / f"session{len(list(tmp_path.glob('session*')))}", requests, triggers)
        path = tmp_path / "script.py"
        path.write_text(script)
        command = [python, *flags, *(how if how is not None else [str(path)]), *args]
        done = subprocess.run(
            command,
            env=environment(session, **more),
            cwd=cwd or tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Run(session, done.returncode, done.stdout, done.stderr, *read(session))

    return start
