"""A job of twelve ranks on three hosts, with three planted causes, made once."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

# The map of ranks is a screen, and tested like the others.
sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
sys.path.insert(0, str(Path(__file__).parent))

from made_job import STRAGGLER, STRAGGLER_NS, SYNCED, SYNCED_NS, THROTTLED, THROTTLED_SHARE, Job, Plan, Sample

from tests import real_traces


@pytest.fixture(scope="session")
def sample() -> Sample:
    """Short, as every rank of every job is read as a trace of its own."""
    return Sample.read(real_traces.SMALL)


@pytest.fixture(scope="session")
def made(sample: Sample) -> Job:
    return Job(
        sample,
        Plan(
            12,
            4,
            5_000,
            straggler=(STRAGGLER, STRAGGLER_NS),
            throttled=(THROTTLED, THROTTLED_SHARE),
            synced=(SYNCED, SYNCED_NS),
        ),
    )


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the tests share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def folder(made: Job, of_all_workers: Path) -> Path:
    path = of_all_workers / "job"
    with (of_all_workers / "job.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made.write(of_all_workers / "unfinished")
            (of_all_workers / "unfinished").rename(path)
    return path
