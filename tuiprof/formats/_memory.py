"""Keeps the memory of arrays that come and go."""

from __future__ import annotations

#: The most that the GNU C library learns from.
_LARGEST = 31 << 20


def keep_freed() -> None:
    """Have the C library keep the memory of large arrays that were freed, for those that follow.

    It gives large blocks back at once, and the system zeroes every page of the next one anew, unless it has seen a
    larger one come and go. Looking through a trace takes half as long with this.
    """
    bytes(_LARGEST)  # zeroed by the system, so no page of it is touched
