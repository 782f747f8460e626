"""Processes that tuiprof starts for itself: their command, threads and memory, and how they end with what they serve.

SIGHUP announces that a terminal is gone, but it may be ignored; nothing announces that a parent was killed. Either
way the other end of a descriptor is closed, and ``poll`` reports that without reading from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tuiprof in this interpreter.

    Nothing is imported from the working directory, which may contain anything (``-P``).
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment for it: tuiprof may run from a checkout that is not installed."""
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


#: Threads of Polars at most: reading and analysing 119 MB takes no less time with more, and no more with two.
_POLARS: Final = 8


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bound_threads() -> None:
    """Limit the threads of NumPy and Polars, unless the user set a number; before either is imported.

    Both start one for every core, and a training run on the same machine needs the cores. OpenBLAS, which comes with
    NumPy, lets each of its own turn for some 0.06 to 0.1 s at the import before it sleeps, which is seconds of
    processor time on a machine with 64 cores, and nothing here multiplies matrices. Polars wakes all of its own for
    queries that keep one of them busy for a fraction of a millisecond.

    For processes that are tuiprof's alone: in a notebook both belong to others, too. The libraries read the
    variables from the environment of the C library, and only there are they set: ``os.environ``, which the scripts
    that tuiprof launches are given, stays what the user made it.
    """
    few = {"OPENBLAS_NUM_THREADS": 1, "POLARS_MAX_THREADS": min(_POLARS, cores())}
    for name, count in few.items():
        if name not in os.environ:
            os.putenv(name, str(count))


#: So long a process that has to end may take to end in order.
GRACE_S: Final = 2.0
_GONE: Final = select.POLLHUP | select.POLLERR
#: Signals ignored when this process was started, as SIGHUP is by ``nohup``; those left out Python ignores itself.
IGNORED: Final = frozenset(
    number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
) - {signal.SIGPIPE, signal.SIGXFSZ}


def on_hang_up(descriptor: int, call: Callable[[], object]) -> None:
    """Call a function, in a thread of its own, once the other end of a terminal, pipe or socket is closed.

    Where the descriptor is none of these, or the system cannot tell, it is never called.
    """
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups are reported without being asked for

    def wait() -> None:
        with contextlib.suppress(OSError):
            if any(events & _GONE for _, events in poll.poll()):
                call()

    threading.Thread(target=wait, name="hang-up", daemon=True).start()


def exit_within(seconds: float, status: int) -> None:
    """End this process when it has not ended by itself in time, whatever its threads are doing."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True  # or Python would wait for it at the end of a process that ends in time
    timer.start()


def exit_with_parent() -> None:
    """End this process immediately when its parent, which holds the other end of its standard input, ends."""
    on_hang_up(0, lambda: os._exit(128 + signal.SIGHUP))


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Give a standard input for children that call :func:`exit_with_parent`; it is hung up after the block."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


@contextlib.contextmanager
def signals_kept(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP instead of being ended by them; SIGHUP stays ignored under ``nohup``."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - (IGNORED & {signal.SIGHUP})
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


#: Parameters of the GNU C library's ``mallopt``: above this size a block is mapped on its own, and given back to the
#: system as soon as it is freed; so much free memory at the end of the heap is kept.
_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1
#: The largest threshold that the library accepts, and its smallest useful one for arrays.
_LARGEST, _SMALLEST = 32 << 20, 64 << 10
_CGROUP: Final = Path("/sys/fs/cgroup")


def keep_freed() -> None:
    """Have the C library keep the memory of large arrays that were freed, for those that follow.

    By itself it gives large blocks back at once, and the system zeroes every page of the next one anew. Looking through
    a trace takes half as long with this.
    """
    _set(_M_MMAP_THRESHOLD, _LARGEST)
    _set(_M_TRIM_THRESHOLD, 2 * _LARGEST)


def map_arrays() -> None:
    """Have the C library map every array on its own from now on, and return its memory as soon as it is freed.

    Called before a screen makes its first arrays. The library takes a hole of the heap where one is large enough: those
    that large arrays leave there are never small again, and what is kept moves out of them only slowly.
    """
    _set(_M_MMAP_THRESHOLD, _SMALLEST)


def return_freed() -> None:
    """Collect reference cycles, give what was freed back to the system, and do so at once with arrays from now on.

    Arrays of all sizes, made anew for each picture, leave holes in the heap: a screen that follows steps of a
    millisecond grew by 3 MB an hour through them. Threads that have read something, and strips of Textual's own
    widgets, form reference cycles, which Python collects among old objects only when those have grown by a quarter.
    Python can give back hardly any of what such a peak took: by then something that is kept lies in each megabyte.
    """
    gc.collect()
    map_arrays()
    if trim := _c_function("malloc_trim"):
        trim(0)


def _set(parameter: int, value: int) -> None:
    if mallopt := _c_function("mallopt"):
        mallopt(parameter, value)


def _c_function(name: str) -> Any:
    """Return a function of the C library; None = this one has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def available_bytes() -> int:
    """Return how much more memory this process can take: of the machine, of its container, of its own limit."""
    import psutil

    found = [psutil.virtual_memory().available]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(limit - psutil.Process().memory_info().vms)
    with contextlib.suppress(OSError, ValueError, KeyError):  # no container, or one without a limit
        most = int((_CGROUP / "memory.max").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # What is cached of files is given back when memory is asked for.
        found.append(most - int((_CGROUP / "memory.current").read_text()) + int(stat["file"]))
    return max(0, min(found))
