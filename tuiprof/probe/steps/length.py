"""Whether batches, or iterations of a loop, take long enough to be steps."""

from __future__ import annotations

#: Mean time of a batch or an iteration of a loop below which it is no step, and counting it would slow the script down,
#: ns. It is taken over this time, ns, or this many of them: a host that runs ahead of a device goes around faster at
#: first, for as long as its launches are queued.
MIN_NS, _MEAN_OF_NS, _MEAN_OF = 100_000, 100_000_000, 4096
_SEEM_AFTER = 16  # if half of so many are that long, they may be captured before the mean is known


class Length:
    """Takes their mean time from time to time; all times are monotonic ns."""

    __slots__ = {
        "_enough": "those that are counted are known to be long enough",
        "_looked": "the last step at whose end a capture was due, its time, how many in a row, and how many are long",
        "_since": "the step, and the time, from which on their mean time is taken",
    }

    def __init__(self) -> None:
        self._since, self._enough = (0, 0), False
        self._looked = 0, 0, 0, 0

    def restart(self, n: int, t: int) -> None:
        """Nothing is known of what is counted from this step on."""
        self._since, self._enough = (n, t), False

    def too_short_ns(self, n: int, t: int) -> float | None:
        """Return the mean time up to step ``n``, ns, if that is too short; None = it is not, or is not known yet."""
        began, began_at = self._since
        count, ns = n - began, t - began_at
        if 0 <= count < _MEAN_OF and ns < _MEAN_OF_NS:
            return None
        self._since = n, t
        if count <= 0 or ns >= count * MIN_NS:
            self._enough = count > 0
            return None
        return ns / count

    def seems_enough(self, n: int, t: int) -> bool:
        """Whether half of those so far take as long as steps; interruptions lengthen some."""
        last, at, count, long = self._looked
        if n == last + 1:
            count, long = count + 1, long + (t - at >= MIN_NS)
        else:
            count = long = 0
        self._looked = n, t, count, long
        return self._enough or (count >= _SEEM_AFTER and 2 * long >= count)
