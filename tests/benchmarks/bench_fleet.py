"""What reading many ranks costs: against one file after the other, on processes and on Dask, and of small files.

    pytest -m bench tests/benchmarks/bench_fleet.py -s
    TUIPROF_BENCH_RANKS=1000 TUIPROF_BENCH_SAMPLE=TRACE.json.gz pytest -m bench tests/benchmarks/bench_fleet.py -s

The ranks are made of a real trace by ``tests/fleet/made_job.py``: by default 24 of the smallest sample.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tuiprof.fleet.fleet import Fleet
from tuiprof.fleet.gather import FOLDER_VARIABLE, Batch, Executor, File, Processes, gather, run_batch
from tuiprof.fleet.summary import MAX_BYTES
from tuiprof.fleet.views import reports
from tuiprof.model import Report
from tuiprof.resources import shipped
from tuiprof.system.own_process import cores

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from made_job import Job, Plan, Sample

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]

RANKS = int(os.environ.get("TUIPROF_BENCH_RANKS", "24"))
SAMPLE = Path(os.environ.get("TUIPROF_BENCH_SAMPLE", shipped("traces") / "planted-syncs.pt.trace.json.gz"))
SMALL = int(os.environ.get("TUIPROF_BENCH_SMALL", "20000"))
STRAGGLER, SYNCED = RANKS // 8, RANKS - 2
HOST = RANKS // 8 // 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[File]:
    folder = tmp_path_factory.mktemp("job")
    sample = Sample.read(SAMPLE)
    step = int((sample.start.max() - sample.start.min()) / sample.step_count)
    Job(
        sample,
        Plan(
            RANKS,
            jitter_ns=5_000,
            straggler=(STRAGGLER, step // 20),
            throttled=(HOST, 0.25),
            synced=(SYNCED, step // 40),
        ),
    ).write(folder)
    paths = sorted(folder.iterdir())
    return [File(i, str(path), i, path.stat().st_size) for i, path in enumerate(paths)]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "off")


def timed(call: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def processor_s() -> float:
    """Return the processor time of this process and of all that it started and that have ended."""
    psutil.wait_procs(
        [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())], 30
    )
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def dask(workers: int) -> Executor:
    pytest.importorskip("distributed")
    from tuiprof.fleet.dask_ import Dask

    return Dask(workers=workers)


def test_many_against_single_files(files: list[File]) -> None:
    """On all cores as many files a second and core as one process reads; the planted causes are found."""
    some = files[:: max(1, len(files) // 24)]
    run_batch((some[0],))  # what is imported once
    before = processor_s()
    alone, _ = timed(lambda: [run_batch((file,)) for file in some])
    single_s = (processor_s() - before) / len(some)
    workers, before = min(cores(), len(files)), processor_s()
    together, summary = timed(lambda: gather(files, Processes(workers)))
    pooled_s = (processor_s() - before) / len(files)
    size = sum(file.size for file in files)
    share = (len(files) / together) / (workers * len(some) / alone)
    client = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    load = os.getloadavg()[0]
    print(f"\n{len(files)} ranks, {size / 1e6:.0f} MB on disk, {workers} processes, load {load:.1f}")
    each = alone / len(some) * 1e3
    print(f"one after the other {each:.0f} ms a file; together {together:.1f} s, {share:.2f} of that speed")
    print(
        f"processor time {single_s * 1e3:.0f} ms a file alone, {pooled_s * 1e3:.0f} ms together, starts included"
    )
    print(f"summaries {summary.nbytes / len(files) / 1e3:.1f} kB a rank; peak of the client {client:.0f} MB")
    assert summary.nbytes <= MAX_BYTES * len(files)
    took, found = timed(lambda: {r.analysis: r for r in reports(Fleet(summary)) if isinstance(r, Report)})
    print(f"views {took:.2f} s: {found['stragglers'].verdict.sentence}")
    assert found["stragglers"].fact("first_straggler") == STRAGGLER
    assert found["differences"].table("ranks").rows["rank"].to_list() == [SYNCED]
    assert found["slow_kernels"].table("ranks").rows["host"].unique().to_list() == [f"node{HOST:02d}"]


@pytest.mark.parametrize("workers", [2, 4])
def test_dask_against_processes(files: list[File], workers: int) -> None:
    some = files[:96]
    processes, _ = timed(lambda: gather(some, Processes(workers)))
    works = dask(workers)
    by_dask, _ = timed(lambda: gather(some, works))
    works.close()
    print(
        f"\n{len(some)} ranks on {workers} workers: processes {processes:.1f} s, Dask {by_dask:.1f} s, "
        f"{processes / by_dask:.2f} of their speed, load {os.getloadavg()[0]:.1f}"
    )


def nothing(batch: Batch) -> object:
    """Return a row a file without reading one: what remains is scheduling."""
    from tuiprof.fleet.summary import merge, unreadable

    return merge(unreadable(file.number, file.path, file.rank, file.size, "not read") for file in batch)


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_small_files(kind: str) -> None:
    """What each file costs beside being read: at most 1 ms."""
    files = [File(i, f"/nowhere/{i}.json", i, 1000) for i in range(SMALL)]
    if kind == "dask":
        pytest.importorskip("distributed")
        import cloudpickle

        from tuiprof.fleet.dask_ import Dask

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        works: Executor = Dask(workers=2, task=nothing)  # type: ignore[arg-type]
    else:
        works = Processes(2, nothing)  # type: ignore[arg-type]
    took, summary = timed(lambda: gather(files, works))
    assert len(summary.files) == SMALL
    peak = psutil.Process().memory_info().rss / 1e6
    print(f"\n{SMALL} small files on 2 {kind}: {took / SMALL * 1e3:.3f} ms a file, client {peak:.0f} MB")
    assert took / SMALL <= 1e-3
