"""Predicts counts that repeat, such as how many optimizers step after the counted one in each iteration of a loop."""

from __future__ import annotations

_MAX_SEEN = 64  # so the longest period is half of it
_MORE = 4  # times as many, after a prediction that was too high


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
