"""The head of a trace: what it is, and how far it can be trusted."""

from __future__ import annotations

import numpy as np
from textual import events
from textual.message import Message

from tuiprof.model.steps import Steps
from tuiprof.model.trace import Trace
from tuiprof.model.trust import Trust
from tuiprof.model.units import format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.widgets.lines import Lines, Row, fit, row_width
from tuiprof.tui.widgets.verdict import MARKS


class TraceHead(Lines):
    """File, device, steps, events, time a step; at the right the trust line, which a click expands."""

    DEFAULT_CSS = "TraceHead { height: 1; }"

    class TrustWanted(Message):
        """The trust line was clicked."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._file = ""
        self._facts: list[str] = []
        self._trust: Trust | None = None
        self._trust_from = 0

    def show(self, trace: Trace, trust: Trust | None) -> None:
        """Describe a trace.

        Args:
            trace: The trace.
            trust: Its trust; None while that is worked out.
        """
        self._file = sanitize(trace.info.path.name) if trace.info.path else f"{trace.info.format} trace"
        self._facts = [sanitize(fact) for fact in _facts(trace, surveyed=trust is not None)]
        self._trust = trust
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the one line; the trust line gives way before the name does, and never wholly."""
        left: Row = [(" " + self._file, "title"), ("   ", "text"), (" · ".join(self._facts), "dim")]
        if self._trust is None:
            return [fit(left, width)]
        level = self._trust.level
        text = self._trust.line
        mark = "" if level == "good" else f"{MARKS[level]} "
        right: Row = [(mark + sanitize(text), level), (" ", "text")]
        room = width - row_width(left) - 3
        least = min(row_width(right), 26)
        if room < least:
            left = fit(left, max(width - least - 3, 12))
            room = width - row_width(left) - 3
        right = fit(right, max(room, 0))
        gap = width - row_width(left) - row_width(right)
        self._trust_from = width - row_width(right)
        return [[*left, (" " * max(gap, 0), "text"), *right]]

    def on_click(self, event: events.Click) -> None:
        """Expand the trust line."""
        if self._trust is not None and event.x >= self._trust_from:
            self.post_message(self.TrustWanted())


def _facts(trace: Trace, *, surveyed: bool) -> list[str]:
    """Say what the trace is of; steps only when they are worked out, which takes a worker."""
    facts = []
    names = dict.fromkeys(device.name for device in trace.info.devices)
    if names:
        count = len(trace.info.devices)
        facts.append(", ".join(names) + (f" ×{count}" if count > 1 else ""))
    if trace.info.rank is not None and (trace.info.world_size or 1) > 1:
        facts.append(f"rank {trace.info.rank} of {trace.info.world_size}")
    steps = trace.steps if surveyed else ()
    if len(steps):
        facts.append("1 step" if len(steps) == 1 else f"{len(steps)} steps")
    facts.append(f"{format_count(len(trace))} events")
    if isinstance(steps, Steps) and len(steps):
        facts.append(f"{format_ns(float(np.median(steps.ends - steps.starts)))} a step")
    else:
        facts.append(format_ns(trace.span[1] - trace.span[0]))
    return facts
