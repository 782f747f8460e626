"""Fixtures of the probe's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from probe_runs import Run, new_session, run_script


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return new_session(tmp_path / "session")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """:func:`probe_runs.run_script` in the test's own folder."""
    return functools.partial(run_script, tmp_path)
