"""Fixtures of the probe's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import ForkedPython
from probe_runs import Run, new_session, run_script


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return new_session(tmp_path / "session")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """:func:`run_script` in the test's own folder."""
    return functools.partial(run_script, tmp_path)


@pytest.fixture
def run_forked(tmp_path: Path, forked: ForkedPython) -> Callable[..., Run]:
    """As ``run``, where PyTorch is there before the probe is: it hooks what it finds, which takes half the time.

    Not for tests of how the probe hears of an import, which all tests with ``run`` are as well.
    """
    return functools.partial(run_script, tmp_path, forked=forked)
