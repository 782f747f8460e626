"""Fixtures of the probe's tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import ForkedPython
from installed import needs
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


@pytest.fixture
def run_jax(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Run]:
    """As ``run_forked``, with JAX; ``TUIPROF_TEST_JAX_PYTHON`` names a Python that has it, which is started instead."""
    if python := os.environ.get("TUIPROF_TEST_JAX_PYTHON"):
        return functools.partial(run_script, tmp_path, python=python)
    needs("jax")
    return functools.partial(run_script, tmp_path, forked=request.getfixturevalue("forked_jax"))
