"""The head of a trace: what it is, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message

from tuiprof.analyses.shared.step_times import step_period_ns
from tuiprof.model.report import Level
from tuiprof.model.trace import Trace
from tuiprof.model.trust import Trust
from tuiprof.model.units import format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row, fit, row_width
from tuiprof.tui.widgets.verdict import MARKS


@dataclass(frozen=True, slots=True)
class Reading:
    """A trace of which only a part was read.

    Attributes:
        part: Share of the file that the figures rest on, 0 to 1.
        reached: Share that was read meanwhile.
        failed: The rest cannot be read.
    """

    part: float
    reached: float
    failed: bool = False

    @property
    def line(self) -> str:
        """What the head says instead of how far to trust the trace."""
        if self.failed:
            return f"{MARKS['bad']} figures of the first {self.part:.0%}: the rest cannot be read"
        return f"{glyphs.INTERRUPTED} {self.reached:.0%} read · figures of the first {self.part:.0%}"


class TraceHead(Lines):
    """File, device, steps, events, time a step; at the right the trust line, which a click expands."""

    DEFAULT_CSS = "TraceHead { height: 1; }"

    class TrustWanted(Message):
        """The trust line was clicked."""

    class OthersWanted(Message):
        """What it says of other ranks and captures was clicked."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._file = ""
        self._facts: list[str] = []
        self._trust: Trust | None = None
        self._reading: Reading | None = None
        self._place = ""
        self._trust_from = self._place_to = 0

    def show(
        self, trace: Trace, trust: Trust | None, reading: Reading | None = None, place: str = ""
    ) -> None:
        """Describe a trace.

        Args:
            trace: The trace.
            trust: Its trust; None while that is worked out.
            reading: How much of the file it is; None = all of it.
            place: Which it is of those it belongs with, such as ``rank 0 of 8``; empty = there are no others.
        """
        self._file = sanitize(trace.info.path.name) if trace.info.path else f"{trace.info.format} trace"
        self._facts = [sanitize(fact) for fact in _facts(trace, surveyed=trust is not None, rank=not place)]
        self._place = place
        self._trust, self._reading = trust, reading
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the one line; the trust line gives way before the name does, and never wholly."""
        left = self._left(self._facts)
        if self._reading is not None:
            level: Level = "bad" if self._reading.failed else "warn"
            text = self._reading.line
            least = 38
        elif self._trust is not None:
            level = self._trust.level
            text = ("" if level == "good" else f"{MARKS[level]} ") + sanitize(self._trust.line)
            least = 26
        else:
            level, text, least = "info", "", 0
        right: Row = [(text, level), (" ", "text")] if text else []
        if self._place:
            others: Row = [(f"{self._place} — ", "text"), ("R", "key"), (": others", "dim")]
            right = [*others, *([(" · ", "dim"), *right] if right else [(" ", "text")])]
            least += row_width(others)
        if not right:
            return [fit(left, width)]
        room = width - row_width(left) - 3
        least = min(row_width(right), least)
        if room < least:
            facts = self._facts
            while facts and row_width(self._left(facts)) > width - least - 3:
                facts = facts[:-1]
            left = fit(self._left(facts), max(width - least - 3, 12))
            room = width - row_width(left) - 3
        right = fit(right, max(room, 0))
        gap = width - row_width(left) - row_width(right)
        self._trust_from = width - row_width(right)
        self._place_to = self._trust_from + (row_width(right[:3]) if self._place else 0)
        return [[*left, (" " * max(gap, 0), "text"), *right]]

    def _left(self, facts: list[str]) -> Row:
        name: Row = [(" " + self._file, "title")]
        return [*name, ("   ", "text"), (" · ".join(facts), "dim")] if facts else name

    def on_click(self, event: events.Click) -> None:
        """Expand the trust line, or list the traces that this one belongs with."""
        if self._trust_from <= event.x < self._place_to:
            self.post_message(self.OthersWanted())
        elif self._trust is not None and event.x >= self._trust_from:
            self.post_message(self.TrustWanted())


def _facts(trace: Trace, *, surveyed: bool, rank: bool) -> list[str]:
    """Say what the trace is of; steps only when they are worked out, which takes a worker."""
    facts = []
    names = dict.fromkeys(device.name for device in trace.info.devices)
    if names:
        count = len(trace.info.devices)
        facts.append(", ".join(names) + (f" ×{count}" if count > 1 else ""))
    if rank and trace.info.rank is not None and (trace.info.world_size or 1) > 1:
        facts.append(f"rank {trace.info.rank} of {trace.info.world_size}")
    steps = trace.steps if surveyed else ()
    step_ns = step_period_ns(trace) if surveyed else None
    if len(steps):
        facts.append("1 step" if len(steps) == 1 else f"{len(steps)} steps")
    facts.append(f"{format_count(len(trace))} events")
    facts.append(
        format_ns(trace.span[1] - trace.span[0]) if step_ns is None else f"{format_ns(step_ns)} a step"
    )
    return facts
