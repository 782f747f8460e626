"""Memory: how much more there is, and what is kept or given back of what was freed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Final

#: The most that the GNU C library learns from.
_LARGEST: Final = 31 << 20
_CGROUP: Final = Path("/sys/fs/cgroup")


def keep_freed() -> None:
    """Have the C library keep the memory of large arrays that were freed, for those that follow.

    It gives large blocks back at once, and the system zeroes every page of the next one anew, unless it has seen a
    larger one come and go. Looking through a trace takes half as long with this.
    """
    bytes(_LARGEST)  # zeroed by the system, so no page of it is touched


def return_freed() -> None:
    """Collect reference cycles, and have the GNU C library give what was freed back to the system.

    Arrays of all sizes, made anew for each picture, leave holes that the library keeps: a screen that follows steps of
    a millisecond grew by more than 3 MB an hour through them. Textual's strips form reference cycles, which Python
    collects among old objects only when those have grown by a quarter.
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


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
