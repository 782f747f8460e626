"""Memory: how much more there is, and what is kept or given back of what was freed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Any, Final

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
    millisecond grew by 3 MB an hour through them. Textual's strips form reference cycles, which Python collects among
    old objects only when those have grown by a quarter. They take megabytes a minute, and Python can give back hardly
    any of what such a peak took: by then something that is kept lies in each megabyte.
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
