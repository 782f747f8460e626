"""A loop that runs after the counted one: whether it takes the run over, as training does after a loop of the setup.

Which of them is the training only time tells. A loop that takes longer than the counted one did takes its place; if the
counted one went around often, or if a loop around both may enter it again, several times as long. What runs after the
training of an epoch never does, because that is evaluation. As soon as the counted loop goes around again, all of this
is void.

Its time is that between its iterations, so the first one may wait for what was launched before without being taken
for a long loop. Before Python 3.12 iterations are not seen, and the time is that of the samples.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Callable

from ..sampler import Loop, goes_over_epochs, same_loop
from .length import MIN_NS

#: At least so many iterations, and so much time, ns.
_MIN_ITERATIONS, _MIN_TIME_NS = 3, 2_000_000_000
#: Multiple of the time of the counted loop, if that went around at most so often, and otherwise.
_MULTIPLE, _FEW, _MULTIPLE_OF_MANY = 1, 100, 4
#: Time after which iterations are known to be too short for steps, ns.
_MEAN_OF_NS = 1_000_000_000

_Jumped = Callable[[CodeType, int, int], Any]


class LaterLoop:
    """Watches the last of ``loops``, which has to take ``needed_ns`` to take over; ``seen_ns``: when it was found."""

    __slots__ = ("_first_at", "_iterations", "_last_at", "_needed_ns", "loops", "seen_ns")

    def __init__(self, loops: list[Loop], needed_ns: int, seen_ns: int) -> None:
        self.loops, self.seen_ns = loops, seen_ns
        self._needed_ns = max(needed_ns, _MIN_TIME_NS)
        self._iterations = self._first_at = self._last_at = 0

    def callback(self, counted: _Jumped, clock: Callable[[], int]) -> _Jumped:
        """Return the callback for jumps in the code of this loop and of the counted one, which ``counted`` counts."""
        loop = self.loops[-1]
        code, head = loop.code, loop.head

        def jumped(at_code: CodeType, at: int, to: int) -> Any:
            if at_code is not code or to != head:
                return counted(at_code, at, to)
            self._last_at = clock()
            self._first_at = self._first_at or self._last_at
            self._iterations += 1
            return None

        return jumped

    @property
    def is_too_short(self) -> bool:
        """Whether its iterations are too short for steps."""
        ns = self._last_at - self._first_at
        return ns >= _MEAN_OF_NS and ns < (self._iterations - 1) * MIN_NS

    def has_iterated(self) -> bool:
        """Whether its iterations took long enough to take over."""
        ns = self._last_at - self._first_at
        return self._iterations >= _MIN_ITERATIONS and ns >= self._needed_ns

    def was_seen(self, t: int) -> bool:
        """Whether it was sampled for long enough to take over."""
        return t - self.seen_ns >= self._needed_ns


def needed_ns(counted: list[Loop], n: int, counted_ns: int, later: list[Loop]) -> int | None:
    """Return how long the last later loop has to take to replace the last of the counted ones; None = it cannot.

    Each is given after the loops around it. The counted one took ``counted_ns`` for ``n`` iterations.
    """
    around = [
        index for index, loop in enumerate(counted[:-1]) if any(same_loop(loop, other) for other in later)
    ]
    if around and goes_over_epochs(counted[around[-1]], counted[around[-1] + 1]):
        return None
    return counted_ns * (_MULTIPLE_OF_MANY if around or n > _FEW else _MULTIPLE)
