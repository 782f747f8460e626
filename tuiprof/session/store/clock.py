"""Session time: one clock for all writers of a session."""

from __future__ import annotations

from tuiprof.session.log.records import Head
from tuiprof.session.store.meta import SessionMeta


class Clock:
    """Session time: ns since the session was made, the same for every writer.

    On the session's own machine it is the monotonic clock shifted to the session's origin, so that a wall
    clock that jumps disorders nothing. A writer of another machine is aligned by the Unix times in the heads.

    Args:
        meta: The session.
        shift_ns: Added to its time: for a host's part of a run, converts to the time of the run's first part.
    """

    def __init__(self, meta: SessionMeta, shift_ns: int = 0) -> None:
        self._meta = meta
        self._shift_ns = shift_ns

    def offset_ns(self, head: Head | None) -> int:
        """Return what to add to a writer's ``at`` to get session time.

        Args:
            head: The writer's head; None = not read, taken for a writer of the session's own machine.
        """
        meta = self._meta
        if head is None or not head.boot or not meta.boot or head.boot == meta.boot:
            return self._shift_ns - meta.mono_ns
        return self._shift_ns + (head.unix_ns - meta.unix_ns) - head.mono_ns

    def unix_ns(self, t_ns: int) -> int:
        """Return the Unix time of a session time, by the wall clock at the start of the session.

        Args:
            t_ns: Session time, ns.
        """
        return self._meta.unix_ns + t_ns
