"""A job of twelve ranks on three hosts, with three planted causes, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_job import Job, Plan, Sample

from tuiprof.fleet.task import File
from tuiprof.resources import shipped

STRAGGLER, STRAGGLER_NS = 1, 600_000
THROTTLED, THROTTLED_SHARE = 1, 0.5
SYNCED, SYNCED_NS = 10, 300_000


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


def files_in(folder: Path) -> list[File]:
    paths = sorted(folder.glob("*.json*"))
    return [File(i, str(path), i, path.stat().st_size) for i, path in enumerate(paths)]
