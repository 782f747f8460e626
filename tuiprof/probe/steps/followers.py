"""The optimizer steps of an iteration after the counted one, the last of which ends the step."""

from __future__ import annotations

from typing import Callable

from .put_off import NO_CALL

_MAX_SEEN = 64  # so the longest period is half of it
_MORE = 4  # times as many, after a prediction that was too high


class Followers:
    """Counts them, and predicts with which one an iteration ends."""

    __slots__ = {
        "_counted_in": "the framework call in which the counted optimizer stepped last",
        "_counts": "how many there were in each iteration",
        "count": "optimizer steps since the counted one that belong to its iteration; -1 = there was none",
        "last_at": "when the last of them ended; 0 = there was none",
        "waiting_since": "when the counted optimizer stepped, if a later one ends the step; 0 = it has ended",
    }

    def __init__(self) -> None:
        self._counts = PeriodicCount()
        self._counted_in = NO_CALL
        self.count = -1
        self.last_at = self.waiting_since = 0

    def forget_counts(self) -> None:
        """Predict nothing until iterations of another optimizer have been seen."""
        self._counts = PeriodicCount()
        self.count = -1

    def restart(self, waiting_since: int) -> None:
        """Count anew, from an iteration that has just begun; ``waiting_since`` as the attribute."""
        self._counts = PeriodicCount()
        self.count = self.last_at = 0
        self.waiting_since = waiting_since

    def begin(self, t: int, call: int, counts: bool) -> bool:
        """The counted optimizer has stepped, inside this call of the framework: an iteration begins.

        Returns:
            Whether the step ends now; else, and only if optimizer steps count, a later one ends it.
        """
        if self.count >= 0:
            self._counts.add(self.count)
        self.count = self.last_at = 0
        self._counted_in = call
        self.waiting_since = t if self._counts.next and counts else 0
        return not self.waiting_since

    def add(self, t: int, running_call: Callable[[], int]) -> bool:
        """Another step has followed; return whether it is the last one of its iteration, and ends the step."""
        if self._counted_in != NO_CALL and self._counted_in == running_call():
            return False  # hooks of one backward pass are a single part of the iteration
        self.count += 1
        self.last_at = t
        if self.waiting_since and self.count == self._counts.next:
            self.waiting_since = 0
            return True
        return False

    def stop_waiting(self) -> int:
        """Return when the step ended that waits for more of them; 0 = none waits."""
        t, self.waiting_since = self.waiting_since, 0
        return max(t, self.last_at) if t else 0


class PeriodicCount:
    """Predicts the count of the next iteration; each time it was too high, more counts have to repeat from then on."""

    __slots__ = {
        "_pause": "iterations without another search, which takes 10 µs",
        "_period": "iterations after which the counts repeat; 0 = not known",
        "_proof": "minimum number of counts that have to repeat",
        "_seen": "the last counts",
        "next": "the predicted count; 0 if they are not known to repeat",
    }

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._period = self._pause = self.next = 0
        self._proof = 4

    def add(self, count: int) -> None:
        """Take the count of an iteration, and predict that of the next one."""
        seen = self._seen
        seen.append(count)
        if len(seen) > _MAX_SEEN:
            del seen[0]
        if count < self.next and len(seen) > 2:  # else it was only guessed, from the first one
            self._proof *= _MORE
        if not self._period or count != self.next:
            self._period = 1 if len(seen) == 1 else self._shortest_period()
        self.next = seen[-self._period] if self._period else 0

    def _shortest_period(self) -> int:
        self._pause -= 1
        if self._pause > 0:
            return 0
        self._pause = self._proof // _MORE
        seen = self._seen
        for period in range(1, len(seen) // 2 + 1):
            last = max(2 * period, self._proof)
            if last <= len(seen) and seen[-last + period :] == seen[-last:-period]:
                return period
        return 0
