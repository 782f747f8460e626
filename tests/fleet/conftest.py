"""A job of twelve ranks on three hosts, with three planted causes, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_job import STRAGGLER, STRAGGLER_NS, SYNCED, SYNCED_NS, THROTTLED, THROTTLED_SHARE, Job, Plan, Sample

from tuiprof.resources import shipped


@pytest.fixture(scope="session")
def sample() -> Sample:
    return Sample.read(shipped("traces") / "planted-syncs.pt.trace.json.gz")


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
def folder(made: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job")
    made.write(path)
    return path
