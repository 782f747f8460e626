"""Workers and schedulers of Dask that are killed in the midst of a reading."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from installed import needs
from made_job import files_in
from test_gather import same
from waiting import until

from tuiprof.errors import TuiprofError
from tuiprof.fleet.gather import FOLDER_VARIABLE, Progress, _read, gather, run_batch
from tuiprof.fleet.summary import merge

needs("distributed")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The workers are started afterwards, with the same environment."""
    folder = tmp_path_factory.mktemp("summaries")
    with pytest.MonkeyPatch.context() as here:
        here.setenv(FOLDER_VARIABLE, str(folder))
        yield folder


class Cluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        python = [sys.executable, "-m"]
        port = self.address.rpartition(":")[2]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        self.scheduler = subprocess.Popen(
            [
                *python,
                "distributed.cli.dask_scheduler",
                "--port",
                port,
                "--host",
                "127.0.0.1",
                "--no-dashboard",
            ],
            **quiet,
        )
        self.workers = [
            subprocess.Popen(
                [
                    *python,
                    "distributed.cli.dask_worker",
                    self.address,
                    "--nthreads",
                    "1",
                    "--no-nanny",
                    "--no-dashboard",
                ],
                **quiet,
            )
            for _ in range(workers)
        ]

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, summaries: Path) -> Iterator[Cluster]:
    """Each test here kills a part of it, the last one the scheduler."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    yield made
    made.close()


def connect(cluster: Cluster):  # type: ignore[no-untyped-def]
    """Connect once all workers are there that nobody has killed."""
    from tuiprof.errors import UsageProblem
    from tuiprof.fleet.dask_ import Dask

    found: list[Dask] = []

    def all_there() -> bool:
        with contextlib.suppress(UsageProblem):
            works = Dask(cluster.address)
            if works.workers == sum(worker.poll() is None for worker in cluster.workers):
                found.append(works)
            else:
                works.close()
        return bool(found)

    until(all_there, "the workers of the cluster")
    return found[0]


def test_a_killed_worker_changes_nothing(folder: Path, cluster: Cluster) -> None:
    works = connect(cluster)
    files = files_in(folder)  # more than both workers are given at once

    def kill_one(now: Progress) -> None:
        if cluster.workers[0].poll() is None:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
            cluster.workers[0].wait()

    found = gather(files, works, kill_one)
    works.close()
    assert found.files["problem"].to_list() == [""] * 12
    same(found, merge(run_batch((file,)) for file in files))


def test_a_killed_scheduler_is_said_and_what_was_done_is_kept(
    folder: Path, cluster: Cluster, summaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kept in summaries.glob("??/*"):
        kept.unlink()
    works = connect(cluster)
    files = files_in(folder)  # more than both workers are given at once

    def kill_it(now: Progress) -> None:
        if now.files >= 2 and cluster.scheduler.poll() is None:
            os.kill(cluster.scheduler.pid, signal.SIGKILL)
            cluster.scheduler.wait()

    with pytest.raises(TuiprofError, match=r"scheduler of tcp://.* is lost") as lost:
        gather(files, works, kill_it)
    assert "run the same command again" in lost.value.remedy
    works.close()
    kept = len(list(summaries.glob("??/*")))
    assert kept >= 2
    read = []
    monkeypatch.setattr("tuiprof.fleet.gather._read", lambda file: (read.append(file), _read(file))[1])
    again = merge(run_batch((file,)) for file in files)
    assert again.files["problem"].to_list() == [""] * 12
    assert len(read) <= 12 - 2
