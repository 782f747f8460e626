"""Which times a trace may hold: 64 bits of nanoseconds, with room for a difference and an end.

A format drops an event that lies outside, so that nothing behind it needs to look: times since the first event, ends and
gaps then never overflow.
"""

from __future__ import annotations

from typing import Final

#: Earliest and latest start on the clock of the file: 73 years before 1970, and 2116.
EARLIEST_NS: Final = -(1 << 61)
LATEST_NS: Final = 1 << 62
#: Longest event: 73 years.
LONGEST_NS: Final = 1 << 61
