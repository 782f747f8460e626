"""Detects stalled steps, in the log's thread."""

from __future__ import annotations

from collections import deque
from time import monotonic_ns

from ..assembly import Step

#: A stall: no step for this multiple of the median step, and for at least this time.
STALL_TIMES = 10
STALL_NS = 30_000_000_000
_FEWEST_STEPS = 5  # for a reliable median
_MEDIAN_OF = 127
_SUSPENDED_NS = 5_000_000_000  # not checked for this long: the process or the machine was suspended


def stall_after_ns(median_ns: float, least_ns: float = STALL_NS) -> float:
    """Return the time without a step after which a run counts as stalled, ns."""
    return max(least_ns, STALL_TIMES * median_ns)


class StallWatch:
    """Compares the time since the last step with earlier steps.

    Attributes:
        least_ns: Minimum length of a stall, ns.
    """

    def __init__(self) -> None:
        self.least_ns: float = STALL_NS
        self._times: deque[int] = deque(maxlen=_MEDIAN_OF)
        self._last_ns = 0
        self._looked_ns = 0
        self._done = True

    def saw(self, steps: list[Step]) -> None:
        """Process completed steps."""
        self._times.extend([step[2] for step in steps if not step[6]])
        if steps:
            self._last_ns = monotonic_ns()
            self._done = False

    def answered(self) -> None:
        """The stacks of this process were just written: nothing more is needed for this stall."""
        if self.since_ns() > self.least_ns / 2:
            self._done = True

    def since_ns(self) -> int:
        """Return the time since the last step was seen to end, ns; 0 = there was none."""
        return monotonic_ns() - self._last_ns if self._last_ns else 0

    def found(self) -> tuple[int, int] | None:
        """Return the time without a step and the median step, ns, once per stall; None = no stall."""
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
