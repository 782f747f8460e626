"""Replays the captured step without the profiler, and with a change.

A trace becomes a graph of host calls, waits and device work (:mod:`.graph`, made by :mod:`.build`). Replaying it
(:mod:`.replay`) with host time corrected for profiler overhead, and with a change (:class:`Edit`), gives the resulting
step time. Changes are made by rules and by the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tuiprof.model.intervals import Floats, Ints

_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
_NO_FLOATS: Floats = np.empty(0, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class HostTime:
    """Stretches of host threads that keep a share of their time; arrays of shape ``(k,)``."""

    tracks: Ints = field(default_factory=_NO_ROWS.copy)  # thread of each
    starts: Ints = field(default_factory=_NO_ROWS.copy)  # begin, captured ns
    ends: Ints = field(default_factory=_NO_ROWS.copy)  # end, captured ns
    keep: Floats = field(default_factory=_NO_FLOATS.copy)  # share of its time that remains, 0 to 1


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """A change to a captured step, in terms of its trace."""

    #: Rows of calls that no longer wait, and of collectives that no longer wait for other ranks
    waits: Ints = field(default_factory=_NO_ROWS.copy)
    host: HostTime = field(default_factory=HostTime)  # host time that shrinks
    work: Ints = field(default_factory=_NO_ROWS.copy)  # rows of device work that shrinks
    #: Share of the time of each of ``work`` that remains; at 0 it is not launched
    keep: Floats = field(default_factory=_NO_FLOATS.copy)

    def __or__(self, other: Edit) -> Edit:
        """Return both changes as one; where both shrink the same time, the smaller result counts."""
        pairs = ((getattr(self.host, name), getattr(other.host, name)) for name in HostTime.__slots__)
        return Edit(
            np.concatenate((self.waits, other.waits)),
            HostTime(*(np.concatenate(pair) for pair in pairs)),
            np.concatenate((self.work, other.work)),
            np.concatenate((self.keep, other.keep)),
        )
