"""Batches on a local process pool."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Final

from tuiprof.fleet.task import Batch, bound_worker, run
from tuiprof.system.own_process import on_hang_up

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary

#: Memory for reading a trace per byte on disk, compressed or not, and memory of an idle worker.
_MEMORY_PER_BYTE: Final = 25
_MEMORY_PER_WORKER: Final = 250 << 20
#: Queued batches besides the running ones, so that no worker waits for the client.
_AHEAD: Final = 2
_DIED = "the process that read it died, usually because memory ran out"
_DIED_REMEDY = "read it on a machine with more memory, or record fewer steps"


def affordable(largest_bytes: int) -> int:
    """Return how many workers this machine has cores and memory for.

    Args:
        largest_bytes: Size of the largest file: in the worst case each worker holds one of this size.
    """
    from tuiprof.system.memory import available_bytes
    from tuiprof.system.own_process import cores

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
    """A pool of processes.

    Args:
        workers: How many.
        task: The function that a worker runs on a batch.
    """

    def __init__(self, workers: int, task: Callable[[Batch], Summary] = run) -> None:
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
                yield (
                    (file,),
                    unreadable(file.number, file.path, file.rank, file.size, _DIED, _DIED_REMEDY),
                )
            finally:
                pool.shutdown(cancel_futures=True)


def _new_pool(workers: int) -> ProcessPoolExecutor:
    # multiprocessing hands the descriptor of sys.stderr to its helper, and Textual's stand-in for that has none.
    with contextlib.redirect_stderr(sys.__stderr__):
        resource_tracker.ensure_running()
    # Not forked: Polars has threads, and forking a process with threads may hang.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start)
