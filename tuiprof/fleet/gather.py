"""From a list of trace files to their joint summary: batches, workers, and the cache of summaries.

A worker imports this module first: NumPy and Polars are imported with the first file, after their number of threads is
set.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tuiprof import __version__
from tuiprof.system.own_process import available_bytes, cores, on_hang_up

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary
    from tuiprof.model.traceset import RankFile, TraceSet

#: A batch ends with the file that reaches this size, bytes, or number of files.
_BATCH_BYTES: Final = 8 << 20
_BATCH_FILES: Final = 256
#: Minimum number of batches per worker, so that all end at about the same time.
_BATCHES_PER_WORKER: Final = 4


class File(msgspec.Struct, frozen=True):
    """One file to summarise."""

    number: int  # its number in the gathered list
    path: str  # its path, valid on the worker too
    rank: int
    size: int  # bytes on disk


Batch = tuple[File, ...]


def batches(files: Iterable[File], workers: int) -> Iterator[Batch]:
    """Split a list of files into batches: a large file is its own batch, small ones share the cost of scheduling."""
    ordered = sorted(files, key=lambda file: (-file.size, file.number))
    most_files = max(1, min(_BATCH_FILES, len(ordered) // (workers * _BATCHES_PER_WORKER)))
    batch: list[File] = []
    size = 0
    for file in ordered:
        if batch and (len(batch) == most_files or size + file.size > _BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield tuple(batch)


class Executor(Protocol):
    """An executor of batches: :class:`Processes` or :class:`~tuiprof.fleet.dask_.Dask`."""

    workers: int

    @property
    def name(self) -> str:
        """Description for display."""
        ...

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Summary]]:
        """Process batches; yields each with its summary, in order of completion."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of gathering."""

    files: int  # completed files
    files_in_all: int  # total number of files
    bytes: int  # size of the completed files on disk
    bytes_in_all: int  # total size of all files
    failed: int  # files that cannot be read


def gather(
    files: Iterable[File], executor: Executor, progress: Callable[[Progress], None] | None = None
) -> Summary:
    """Summarise files; ``progress`` is called after each batch.

    Raises:
        TuiprofError: The executor is lost; completed summaries are in the cache.
    """
    from tuiprof.fleet.summary import merge

    listed = list(files)
    size = sum(file.size for file in listed)
    summaries = []
    done = read = failed = 0
    for batch, summary in executor.run(batches(listed, executor.workers)):
        summaries.append(summary)
        done += len(batch)
        read += sum(file.size for file in batch)
        failed += int((summary.files["problem"] != "").sum())
        if progress is not None:
            progress(Progress(done, len(listed), read, size, failed))
    tidy_cache()
    return merge(summaries)


# -- a worker --------------------------------------------------------------------------------------------


def run_batch(batch: Batch) -> Summary:
    """Summarize the files of a batch; an unreadable one is a row with the reason."""
    from tuiprof.fleet.summary import merge

    return merge(_one(file) for file in batch)


def _one(file: File) -> Summary:
    from tuiprof.errors import TuiprofError, describe
    from tuiprof.fleet.summary import unreadable

    from polars.exceptions import PanicException  # isort: skip

    def failed(problem: str, remedy: str = "") -> Summary:
        return unreadable(file.number, file.path, file.rank, file.size, problem, remedy)

    try:
        entry = entry_of(Path(file.path))
        if entry is not None and (kept := cached_summary(entry, file)) is not None:
            return kept
        began = time.monotonic()
        found = _read(file)
        if entry is not None:
            cache_summary(entry, found, time.monotonic() - began)
    except TuiprofError as error:
        return failed(error.message, error.remedy)
    except MemoryError:
        return failed("it needs more memory than the worker has", "use fewer workers, or a larger machine")
    except OSError as error:
        return failed(f"cannot be read: {error.strerror or error}")
    except (Exception, PanicException) as error:  # noqa: BLE001 - one file takes no other with it
        return failed(f"it failed: {describe(error)}")
    return found


def _read(file: File) -> Summary:
    from tuiprof.fleet.summary import summarise
    from tuiprof.formats.open import open_file
    from tuiprof.formats.registry import Options

    # The other cores read other files, and a trace read once needs no decoded cache.
    opener = functools.partial(open_file, options=Options(workers=0, cache=False))
    trace = opener(Path(file.path))
    if (found := trace.siblings) is not None:
        trace.siblings = _shared(found.files, replace(found, opener=opener))
    return summarise(trace, file.number, file.rank, file.size)


_sets: dict[tuple[RankFile, ...], TraceSet] = {}


def _shared(files: tuple[RankFile, ...], found: TraceSet) -> TraceSet:
    """Return the set of the file before, if it is the same: each rank of a small job is compared with all others."""
    if files not in _sets:
        _sets.clear()
    return _sets.setdefault(files, found)


def bound_worker() -> None:
    """Limit this worker's libraries to one thread each, before import: there is one worker per core."""
    for name in ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")


# -- the cache -------------------------------------------------------------------------------------------

# An entry is named after the version of tuiprof and the content of the file: its size, time of change, and a digest of
# its first and last 64 KiB. A digest of the whole file would cost about as much as reading the trace; a change in the
# middle of the same size changes the modification time. The path is not included, so a folder may be moved or copied
# with its times. Workers on other hosts write into the cache of their host; the variable may name a
# shared one.

#: ``off`` = no cache; a path = its directory.
FOLDER_VARIABLE: Final = "TUIPROF_FLEET_CACHE"
#: Maximum total size of all summaries, bytes; the least recently used are deleted first.
LIMIT_VARIABLE: Final = "TUIPROF_FLEET_CACHE_BYTES"
_DEFAULT_LIMIT: Final = 2 << 30
#: Increment if the content of summaries changes within a version.
_LAYOUT: Final = 4
#: Files read in less time are not cached.
WORTH_KEEPING_S: Final = 0.02


def cache_folder() -> Path | None:
    """Return the directory of the cache; None if the user disabled it."""
    from tuiprof.formats.cache import directory

    return directory(FOLDER_VARIABLE, "fleet")


def entry_of(path: Path) -> Path | None:
    """Return the path of the cached summary of a file; None = no cache, or the trace is a directory.

    Raises:
        OSError: The file cannot be read.
    """
    folder = cache_folder()
    if folder is None or path.is_dir():
        return None
    from tuiprof.formats.cache import status_and_ends
    from tuiprof.formats.session_files import sidecar_names

    status, ends = status_and_ends(path)
    identity = f"{__version__} {_LAYOUT} {status.st_size} {status.st_mtime_ns} "
    digest = hashlib.blake2b(identity.encode() + ends, digest_size=16)
    for sidecar in sidecar_names(path.name):
        with contextlib.suppress(OSError):  # the probe wrote none
            beside = path.with_name(sidecar).stat()
            digest.update(f" {beside.st_size} {beside.st_mtime_ns}".encode())
    name = digest.hexdigest()
    return folder / name[:2] / name


def cached_summary(entry: Path, file: File) -> Summary | None:
    """Return the cached summary of a file; None = there is none."""
    import polars as pl

    from tuiprof.fleet.summary import TABLES, Summary, decode, numbered

    try:
        kept = decode(entry.read_bytes())
        os.utime(entry)  # mark as recently used
    except (OSError, ValueError):
        return None
    tables = {name: getattr(kept, name) for name in TABLES}
    tables["files"] = kept.files.with_columns(path=pl.lit(file.path), rank=pl.lit(file.rank, pl.Int64))
    own = {name: numbered(rows, file.number) for name, rows in tables.items() if name != "names"}
    return Summary(**own, names=kept.names)


def cache_summary(entry: Path, summary: Summary, took_s: float) -> None:
    """Cache the summary of a file if creating it took long enough; on a full disk it is not cached."""
    if took_s < WORTH_KEEPING_S:
        return
    from tuiprof.fleet.summary import encode
    from tuiprof.formats.cache import UNFINISHED

    with contextlib.suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = entry.with_name(f"{UNFINISHED}{os.getpid()}-{entry.name}")
        try:
            new.write_bytes(encode(summary))
            os.replace(new, entry)
        finally:
            new.unlink(missing_ok=True)


def tidy_cache() -> None:
    """Delete the least recently used summaries until the rest fits the limit."""
    from tuiprof.formats.cache import evict

    if (folder := cache_folder()) is not None:
        evict(folder.glob("??/*"), LIMIT_VARIABLE, _DEFAULT_LIMIT)


# -- processes -------------------------------------------------------------------------------------------

#: Memory for reading a trace per byte on disk, compressed or not, and memory of an idle worker.
_MEMORY_PER_BYTE: Final = 25
_MEMORY_PER_WORKER: Final = 250 << 20
#: Queued batches besides the running ones, so that no worker waits for the client.
_AHEAD: Final = 2
_DIED = "the process that read it died, usually because memory ran out"
_DIED_REMEDY = "read it on a machine with more memory, or record fewer steps"


def affordable(largest_bytes: int) -> int:
    """Return how many workers this machine has cores for, and memory if each holds a file of the largest size."""
    each = _MEMORY_PER_WORKER + _MEMORY_PER_BYTE * largest_bytes
    return max(1, min(cores(), available_bytes() // each))


def _start() -> None:
    """Prepare a worker: few threads, exit with the client, and no output on interrupts."""
    bound_worker()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        on_hang_up(parent.sentinel, lambda: os._exit(1))


class Processes:
    """A pool of processes; a worker runs ``task`` on a batch."""

    def __init__(self, workers: int, task: Callable[[Batch], Summary] = run_batch) -> None:
        self.workers = workers
        self._task = task

    @property
    def name(self) -> str:
        """Description for display."""
        return f"{self.workers} process" + ("es" if self.workers > 1 else "")

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Summary]]:
        """Process batches; yields each with its summary, in order of completion.

        A worker that dies (out of memory, a crashed library) breaks the whole pool, and the file is unknown. The
        running batches are then read file by file, each in its own process: a file that kills that process too becomes
        a row with this reason.
        """
        waiting = deque(batches)
        while waiting:
            suspects: list[Batch] = []
            yield from self._pool(waiting, suspects)
            for batch in suspects:
                yield from self._alone(batch)

    def _pool(self, waiting: deque[Batch], suspects: list[Batch]) -> Iterator[tuple[Batch, Summary]]:
        """Process the queue until it is empty or the pool breaks."""
        running: dict[Future[Summary], Batch] = {}
        pool = _new_pool(self.workers)
        try:
            while waiting or running:
                try:
                    while waiting and len(running) < self.workers + _AHEAD:
                        future = pool.submit(self._task, waiting[0])
                        running[future] = waiting.popleft()
                except BrokenProcessPool:
                    suspects += running.values()
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                broken = False
                for future in done:
                    batch = running.pop(future)
                    try:
                        summary = future.result()
                    except BrokenProcessPool:
                        suspects.append(batch)
                        broken = True
                    else:
                        yield batch, summary
                if broken:
                    suspects += running.values()
                    return
        finally:
            pool.shutdown(cancel_futures=True)

    def _alone(self, batch: Batch) -> Iterator[tuple[Batch, Summary]]:
        from tuiprof.fleet.summary import unreadable

        for file in batch:
            pool = _new_pool(1)
            try:
                yield (file,), pool.submit(self._task, (file,)).result()
            except BrokenProcessPool:
                yield ((file,), unreadable(file.number, file.path, file.rank, file.size, _DIED, _DIED_REMEDY))
            finally:
                pool.shutdown(cancel_futures=True)


def _new_pool(workers: int) -> ProcessPoolExecutor:
    # multiprocessing hands the descriptor of sys.stderr to its helper, and Textual's stand-in for that has none.
    with contextlib.redirect_stderr(sys.__stderr__):
        resource_tracker.ensure_running()
    # Not forked: Polars has threads, and forking a process with threads may hang.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start)
