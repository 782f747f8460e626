"""Turns counters that only grow into rates."""

from __future__ import annotations

from collections.abc import Mapping


class Rates:
    """Differences of counters between two readings, per second.

    A counter that went backwards (a driver reload, an interface that vanished) gives no rate that time.
    """

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._at: float | None = None

    def update(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Take a reading and return the rates since the one before.

        Returns:
            Rate per second by key; empty the first time and when no time has passed.
        """
        elapsed = now - self._at if self._at is not None else 0.0
        rates = {}
        if elapsed > 0:
            for key, value in counters.items():
                before = self._before.get(key)
                if before is not None and value >= before:
                    rates[key] = (value - before) / elapsed
        self._before = dict(counters)
        self._at = now
        return rates
