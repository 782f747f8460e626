"""A change to a captured step, in terms of the trace: waits that are not made, host time and device work that shrink.

Edits are made by rules and by the user, priced by :class:`tuiprof.whatif.replay.Replay`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints

Floats = npt.NDArray[np.float64]

_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
_NO_FLOATS: Floats = np.empty(0, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class HostTime:
    """Stretches of host threads of which only a part stays; arrays of shape ``(k,)``.

    Attributes:
        tracks: Thread of each.
        starts: Begin, captured ns.
        ends: End, captured ns.
        keep: The part of its time that stays, 0 to 1.
    """

    tracks: Ints = field(default_factory=_NO_ROWS.copy)
    starts: Ints = field(default_factory=_NO_ROWS.copy)
    ends: Ints = field(default_factory=_NO_ROWS.copy)
    keep: Floats = field(default_factory=_NO_FLOATS.copy)


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """A change to a captured step.

    Attributes:
        waits: Calls that do not wait any more, as rows.
        host: Host time that shrinks.
        work: Device work that shrinks, as rows.
        keep: The part of the time of each of ``work`` that stays; at 0 it is not launched at all.
    """

    waits: Ints = field(default_factory=_NO_ROWS.copy)
    host: HostTime = field(default_factory=HostTime)
    work: Ints = field(default_factory=_NO_ROWS.copy)
    keep: Floats = field(default_factory=_NO_FLOATS.copy)

    def __or__(self, other: Edit) -> Edit:
        """Return both changes as one; what both shrink is as short as the shorter of the two."""
        pairs = ((getattr(self.host, name), getattr(other.host, name)) for name in HostTime.__slots__)
        return Edit(
            np.concatenate((self.waits, other.waits)),
            HostTime(*(np.concatenate(pair) for pair in pairs)),
            np.concatenate((self.work, other.work)),
            np.concatenate((self.keep, other.keep)),
        )
