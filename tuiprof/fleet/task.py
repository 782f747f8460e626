"""Batches of files, and the function that a worker runs on one of them.

A worker imports this module first: NumPy and Polars are imported with the first file, after their number of threads is
set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary

#: A batch ends with the file that reaches this size, bytes, or number of files.
_BATCH_BYTES: Final = 8 << 20
_BATCH_FILES: Final = 256
#: Minimum number of batches per worker, so that all end at about the same time.
_BATCHES_PER_WORKER: Final = 4


class File(msgspec.Struct, frozen=True):
    """One file to summarise.

    Attributes:
        number: Its number in the gathered list.
        path: Its path, valid on the worker too.
        rank: Its rank.
        size: Bytes on disk.
    """

    number: int
    path: str
    rank: int
    size: int


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


def run(batch: Batch) -> Summary:
    """Summarize the files of a batch; an unreadable one is a row with the reason."""
    from tuiprof.fleet.summary import merge

    return merge(_one(file) for file in batch)


def _one(file: File) -> Summary:
    from tuiprof.errors import TuiprofError, describe
    from tuiprof.fleet import cache
    from tuiprof.fleet.summary import unreadable

    from polars.exceptions import PanicException  # isort: skip

    def failed(problem: str, remedy: str = "") -> Summary:
        return unreadable(file.number, file.path, file.rank, file.size, problem, remedy)

    try:
        entry = cache.entry_of(Path(file.path))
        if entry is not None and (kept := cache.find(entry, file)) is not None:
            return kept
        began = time.monotonic()
        found = _read(file)
        if entry is not None:
            cache.keep(entry, found, time.monotonic() - began)
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
    from tuiprof.fleet.summarise import summarise
    from tuiprof.formats.open import open_file
    from tuiprof.formats.registry import Options

    # The other cores read other files, and a trace read once needs no decoded cache.
    trace = open_file(Path(file.path), Options(workers=0, cache=False))
    return summarise(trace, file.number, file.rank, file.size)


def bound_worker() -> None:
    """Limit this worker's libraries to one thread each, before import: there is one worker per core."""
    for name in ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")


def version() -> str:
    """Return the running version of tuiprof."""
    from tuiprof import __version__

    return __version__
