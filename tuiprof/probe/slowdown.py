"""Detects steps that take longer since a capture than before it, and steps that have stalled.

A profiler can make each launch cost more for the rest of the run (see :mod:`.frameworks.torch_capture`). The probe
records it in the log; the session applies the same class to what it reads, including recordings of older versions, so
that no figure mixes both kinds of steps.

Standard library only, as all of the probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns

from .assembly import Step

#: Maximum and minimum number of compared steps on either side of a capture.
WINDOW, FEWEST = 200, 10
#: Ignored steps at the start of the process, and after a capture, which are slow for other reasons.
WARM_UP, SETTLING = 10, 2
#: Minimum slowdown as a share, and in standard errors of the two medians.
SHARE, ERRORS = 0.03, 4.0
#: Number of parts on either side, to distinguish a changed level from a fluctuating one.
PARTS = 3
RULE = (
    f"the median of up to {WINDOW} steps after a capture (once its trace is written) is above that of up to {WINDOW} "
    f"steps before it by more than {SHARE * 100:.0f} % and {ERRORS:.0f} standard errors, and the median of each third "
    "after it is above that of each third before it; only in processes that use an accelerator, as elsewhere a "
    "profiler has no lasting effect"
)
#: A stall: no step for this multiple of the median step, and for at least this time.
STALL_TIMES = 10
STALL_NS = 30_000_000_000
_FEWEST_STEPS = 5  # for a reliable median
_MEDIAN_OF = 127
_SUSPENDED_NS = 5_000_000_000  # not checked for this long: the process or the machine was suspended


@dataclass(frozen=True)
class Slowdown:
    """Steps take longer since a capture."""

    first: int  # first step that ran under the profiler, or while it was prepared
    last: int  # the last one
    before_ns: float  # median step time before
    after_ns: float  # median step time since
    index: int  # number of steps before ``first``, counted from the first one that was given

    @property
    def share(self) -> float:
        """Slowdown of a step, relative to before."""
        return self.after_ns / self.before_ns - 1

    def __str__(self) -> str:
        """Return the slowdown as a clause."""
        return (
            f"steps are {1 + self.share:.2f}× slower since the capture of steps {self.first} to {self.last} "
            f"({self.before_ns / 1e6:.3g} → {self.after_ns / 1e6:.3g} ms)"
        )


class SlowdownWatch:
    """Compares the steps before and after each capture, until one capture has slowed them down for good."""

    def __init__(self) -> None:
        self.found: Slowdown | None = None  # the capture that did, as far as known; None = none
        self._is_final = False  # a further capture has begun since
        self._count = 0
        self._skip = WARM_UP
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._before: list[int] = []
        self._after: list[int] = []
        self._first = self._last = -1  # steps of the capture that is judged; -1 = there was none
        self._index = 0
        self._in_capture = False

    @property
    def is_settled(self) -> bool:
        """Whether only a further capture can change the answer."""
        return self._is_final or self._first < 0 or len(self._after) >= WINDOW

    def plain(self, dur_ns: Sequence[int]) -> None:
        """Process the times of steps without a profiler, in order, ns."""
        self._in_capture = False
        self._count += len(dur_ns)
        skipped = min(self._skip, len(dur_ns))
        self._skip -= skipped
        self._recent.extend(dur_ns[max(skipped, len(dur_ns) - WINDOW) :])
        if not self.is_settled and skipped < len(dur_ns):
            self._after += dur_ns[skipped : skipped + WINDOW - len(self._after)]
            self._judge()

    def captured(self, numbers: Sequence[int]) -> bool:
        """Process the numbers of steps that ran under a profiler, in order, at least one.

        Returns whether a capture begins, which is evaluated from now on.
        """
        begins = False
        if not self._in_capture:
            self._in_capture = True
            self._is_final = self.found is not None
            # With too few steps between two captures, both are evaluated as one.
            begins = not self._is_final and (self._first < 0 or len(self._after) >= FEWEST)
            if begins:
                self._before, self._first, self._index = list(self._recent), numbers[0], self._count
            self._recent.clear()
        self._count += len(numbers)
        if not self._is_final:
            self._last = numbers[-1]
            self._after = []
            self._skip = SETTLING
        return begins

    def written(self) -> None:
        """Note that the trace of the last capture is written, which disturbed the steps until now."""
        if not self._in_capture and not self._is_final and self._first >= 0:
            self._recent.clear()
            self._after = []
            self.found = None

    def _judge(self) -> None:
        before, after = self._before, self._after
        self.found = None
        if len(before) < FEWEST or len(after) < FEWEST:
            return
        slower_ns = median(after) - median(before)
        error_ns = (_error_ns(before) ** 2 + _error_ns(after) ** 2) ** 0.5
        lasting = min(_medians(after)) > max(_medians(before))
        if lasting and slower_ns > max(SHARE * median(before), ERRORS * error_ns):
            self.found = Slowdown(self._first, self._last, median(before), median(after), self._index)


def median(times: Sequence[float]) -> float:
    """Return the median. The module ``statistics`` is not imported, as scripts may have one of the same name."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _medians(times: Sequence[int]) -> list[float]:
    """Return the median of each part, in order; all parts are equally long."""
    edges = [len(times) * part // PARTS for part in range(PARTS + 1)]
    return [median(times[low:high]) for low, high in zip(edges, edges[1:])]


def _error_ns(times: Sequence[int]) -> float:
    """Return the standard error of a median, robustly: 1.2533 σ / √n, with σ as 1.4826 median absolute deviations."""
    middle = median(times)
    return float(1.2533 * 1.4826 * median([abs(time - middle) for time in times]) / len(times) ** 0.5)


def stall_after_ns(median_ns: float, min_ns: float = STALL_NS) -> float:
    """Return the time without a step after which a run counts as stalled, ns."""
    return max(min_ns, STALL_TIMES * median_ns)


class StallWatch:
    """Compares the time since the last step with earlier steps."""

    def __init__(self) -> None:
        self.min_ns: float = STALL_NS  # minimum length of a stall, ns
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
        if self.since_ns() > self.min_ns / 2:
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
        if self._done or since < self.min_ns or len(self._times) < _FEWEST_STEPS:
            return None
        median = sorted(self._times)[len(self._times) // 2]
        if since < stall_after_ns(median, self.min_ns):
            return None
        self._done = True
        return since, median
