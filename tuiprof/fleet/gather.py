"""From a list of files to their joint summary, on any executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tuiprof.fleet.task import Batch, File, batches

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary


class Executor(Protocol):
    """An executor of batches: :class:`~tuiprof.fleet.processes.Processes` or :class:`~tuiprof.fleet.dask_.Dask`."""

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
    """Progress of gathering.

    Attributes:
        files: Completed files.
        files_in_all: Total number of files.
        bytes: Size of the completed files on disk.
        bytes_in_all: Total size of all files.
        failed: Files that cannot be read.
    """

    files: int
    files_in_all: int
    bytes: int
    bytes_in_all: int
    failed: int


def gather(
    files: Iterable[File], executor: Executor, progress: Callable[[Progress], None] | None = None
) -> Summary:
    """Summarise files.

    Args:
        files: The files.
        executor: The executor.
        progress: Called after each batch.

    Raises:
        TuiprofError: The executor is lost; completed summaries are in the cache.
    """
    from tuiprof.fleet import cache
    from tuiprof.fleet.summary import Reduction

    listed = list(files)
    size = sum(file.size for file in listed)
    reduction = Reduction()
    done = read = failed = 0
    for batch, summary in executor.run(batches(listed, executor.workers)):
        reduction.add(summary)
        done += len(batch)
        read += sum(file.size for file in batch)
        failed += int((summary.files["problem"] != "").sum())
        if progress is not None:
            progress(Progress(done, len(listed), read, size, failed))
    cache.tidy()
    return reduction.result()
