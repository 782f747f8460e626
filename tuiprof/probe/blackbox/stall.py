"""Sees that steps have stopped coming, in the log's thread."""

from __future__ import annotations

from collections import deque
from time import monotonic_ns

from ..assembly import Step

#: A stall: no step for so many times the median step, and for at least so long.
STALL_TIMES = 10
STALL_NS = 30_000_000_000
_FEWEST_STEPS = 5  # before a median is believed
_MEDIAN_OF = 127
_SUSPENDED_NS = 5_000_000_000  # not checked for so long: the process or the machine was stopped


def stall_after_ns(median_ns: float, least_ns: float = STALL_NS) -> float:
    """Return after how long without a step a run stalls, ns."""
    return max(least_ns, STALL_TIMES * median_ns)


class StallWatch:
    """Holds the time since the last step against the steps before it.

    Attributes:
        least_ns: Nothing shorter is a stall, ns.
    """

    def __init__(self) -> None:
        self.least_ns: float = STALL_NS
        self._times: deque[int] = deque(maxlen=_MEDIAN_OF)
        self._last_ns = 0
        self._looked_ns = 0
        self._done = True

    def saw(self, steps: list[Step]) -> None:
        """Take steps that have ended."""
        self._times.extend([step[2] for step in steps if not step[6]])
        if steps:
            self._last_ns = monotonic_ns()
            self._done = False

    def answered(self) -> None:
        """Where this process is was written just now: of this stall nothing more is needed."""
        if self.since_ns() > self.least_ns / 2:
            self._done = True

    def since_ns(self) -> int:
        """Return the time since the last step was seen to end, ns; 0 = there was none."""
        return monotonic_ns() - self._last_ns if self._last_ns else 0

    def found(self) -> tuple[int, int] | None:
        """Return for how long there was no step and the median step, ns, once a stall; None = steps are made."""
        now = monotonic_ns()
        gap, self._looked_ns = now - self._looked_ns, now
        if gap > _SUSPENDED_NS:
            self._last_ns = now if self._last_ns else 0
        since = now - self._last_ns
        if self._done or since < self.least_ns or len(self._times) < _FEWEST_STEPS:
            return None
        median = sorted(self._times)[len(self._times) // 2]
        if since < stall_after_ns(median, self.least_ns):
            return None
        self._done = True
        return since, median
