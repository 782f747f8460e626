"""Memory that was freed: kept by the C library for what follows, or given back to the system."""

from __future__ import annotations

import ctypes
import sys

#: The most that the GNU C library learns from.
_LARGEST = 31 << 20


def keep_freed() -> None:
    """Have the C library keep the memory of large arrays that were freed, for those that follow.

    It gives large blocks back at once, and the system zeroes every page of the next one anew, unless it has seen a
    larger one come and go. Looking through a trace takes half as long with this.
    """
    bytes(_LARGEST)  # zeroed by the system, so no page of it is touched


def return_freed() -> None:
    """Have the GNU C library give the memory that was freed back to the system.

    Arrays of all sizes, made anew for each picture, leave holes that the library keeps: a screen that follows steps of
    a millisecond grew by some 5 MB an hour in which it kept nothing.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)
