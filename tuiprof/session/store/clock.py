"""Session time: one clock for all writers of a session."""

from __future__ import annotations

from tuiprof.session.log.records import Head
from tuiprof.session.store.meta import SessionMeta


class Clock:
    """Session time: ns since the session was made, the same for every writer.

    On the session's own machine it is the monotonic clock shifted to the session's origin, so that a wall
    clock that jumps disorders nothing. A writer of another machine is aligned by the Unix times in the heads.
    """

    def __init__(self, meta: SessionMeta) -> None:
        self._meta = meta

    def offset_ns(self, head: Head | None) -> int:
        """Return what to add to a writer's ``at`` to get session time.

        Args:
            head: The writer's head; None = not read, taken for a writer of the session's own machine.
        """
        meta = self._meta
        if head is None or not head.boot or not meta.boot or head.boot == meta.boot:
            return -meta.mono_ns
        return (head.unix_ns - meta.unix_ns) - head.mono_ns

    def unix_ns(self, t_ns: int) -> int:
        """Return the Unix time of a session time, by the wall clock at the start of the session.

        Args:
            t_ns: Session time, ns.
        """
        return self._meta.unix_ns + t_ns
