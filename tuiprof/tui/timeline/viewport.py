"""Which part of a trace a timeline shows: zoom and pan as arithmetic on nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_ns


@dataclass(frozen=True, slots=True)
class Viewport:
    """A range of time over a number of columns, kept within the trace.

    Attributes:
        low: First instant shown, ns.
        high: First instant not shown, ns.
        columns: Number of columns.
        first: Begin of the trace, ns.
        last: End of the trace, ns.
    """

    low: int
    high: int
    columns: int
    first: int
    last: int

    @classmethod
    def over(cls, first: int, last: int, columns: int) -> Viewport:
        """Show all of a trace."""
        columns = max(columns, 1)
        last = max(last, first + columns)
        return cls(first, last, columns, first, last)

    @property
    def span(self) -> int:
        """Length of the range shown, ns."""
        return self.high - self.low

    @property
    def edges(self) -> Ints:
        """Edges of the columns, shape ``(columns + 1,)``, ns."""
        steps = np.arange(self.columns + 1, dtype=np.int64)
        # Split so that no product leaves 64 bits, however long the trace.
        whole, rest = divmod(self.span, self.columns)
        return self.low + steps * whole + (steps * rest) // self.columns

    def resized(self, columns: int) -> Viewport:
        """Return the same range over another number of columns."""
        return replace(self, columns=max(columns, 1))._kept(self.low, self.span)

    def column_of(self, instant: int) -> int:
        """Return the column an instant falls into; outside the range, below 0 or beyond the columns."""
        return int((instant - self.low) * self.columns // self.span)

    def instant_of(self, column: int) -> int:
        """Return the middle of a column, ns."""
        return self.low + (2 * column + 1) * self.span // (2 * self.columns)

    def zoomed(self, factor: float, around: int) -> Viewport:
        """Return a narrower or wider range in which an instant keeps its place.

        Args:
            factor: Above 1 shows less time.
            around: The instant, ns.
        """
        span = max(round(self.span / factor), self.columns)
        share = (around - self.low) / self.span
        return self._kept(around - round(span * share), span)

    def panned(self, share: float) -> Viewport:
        """Return the range moved by a share of itself."""
        return self._kept(self.low + round(self.span * share), self.span)

    def fitted(self, low: int, high: int) -> Viewport:
        """Return a range that shows two instants with a little room around them."""
        margin = max((high - low) // 20, 1)
        return self.over_range(low - margin, high + margin)

    def over_range(self, low: int, high: int) -> Viewport:
        """Return exactly a range, kept within the trace."""
        return self._kept(low, high - low)

    def showing(self, instant: int) -> Viewport:
        """Return this range when it shows an instant, else one of the same length around it."""
        return self if self.low <= instant < self.high else self._kept(instant - self.span // 2, self.span)

    def _kept(self, low: int, span: int) -> Viewport:
        """Return a range within the trace, never shorter than 1 ns a column."""
        span = min(max(span, self.columns), max(self.last - self.first, self.columns))
        low = max(self.first, min(low, self.last - span))
        return replace(self, low=low, high=low + span)

    def ticks(self, spacing: int = 14) -> list[tuple[int, str]]:
        """Return round instants to label: column and text, counted from the begin of the trace.

        Args:
            spacing: Least number of columns between two.
        """
        least = self.span * spacing / self.columns
        step = next(s for e in range(19) for s in (10**e, 2 * 10**e, 5 * 10**e) if s >= least)
        begin = -(-(self.low - self.first) // step) * step
        instants = range(begin, self.high - self.first, step)
        return [(self.column_of(self.first + t), _tick_label(t, step)) for t in instants]


def _tick_label(offset: int, step: int) -> str:
    """Return an offset with as many digits as the tick step needs."""
    if offset == 0:
        return "0"
    for scale, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if offset >= scale:
            digits = 0
            while step % scale and digits < 9:
                digits, step = digits + 1, step * 10
            return f"{offset / scale:.{digits}f} {unit}"
    return format_ns(offset)
