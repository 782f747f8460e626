"""The top of the trace screen: facts about the trace, progress of reading, trust line, and the main finding."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from textual import events
from textual.message import Message

from tuiprof.errors import TuiprofError
from tuiprof.model.report import Level
from tuiprof.model.trace import Trace
from tuiprof.model.trust import Trust
from tuiprof.model.units import plural
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.session.store.folders import trace_title
from tuiprof.tui.opening.captures import Captures
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.trace.view import Finding, Headline, finding_rows, reading_text, trace_facts
from tuiprof.tui.widgets.lines import Flowing, Lines, Row, fit, row_width, spread
from tuiprof.tui.widgets.spans import key_at, verdict_rows, wrap

#: Least cells of a name that is cut to keep the step time beside it.
_MIN_NAME: Final = 20


class TraceHead(Lines):
    """One line: file, device, steps, events, step time; on the right other captures and the trust line, clickable."""

    DEFAULT_CSS = "TraceHead { height: 1; }"

    class TrustWanted(Message):
        """The trust line was clicked."""

    class OthersWanted(Message):
        """The label of other ranks and captures was clicked."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._file = ""
        self._facts: list[str] = []
        self._trace: Trace | None = None
        self._trust: Trust | None = None
        self._part: Progress | None = None
        self._reached: Progress | None = None
        self._failed = False
        self._captures: Captures | None = None
        self._capture_label = ""
        self._step_ns: tuple[float | None, float | None] = None, None
        self._trust_from = self._label_to = 0

    def show(self, trace: Trace, trust: Trust | None, part: Progress | None) -> None:
        """Show a trace; ``trust`` is None while it is unknown, ``part`` is the part that was read, None = all."""
        self._trace, self._trust, self._part = trace, trust, part
        self._update()

    def show_steps(self, uncaptured_ns: float | None, captured_ns: float | None) -> None:
        """Show the step time without the profiler and while capturing; None = unknown."""
        if (uncaptured_ns, captured_ns) != self._step_ns:
            self._step_ns = uncaptured_ns, captured_ns
            self._update()

    def list_captures(self, captures: Captures) -> None:
        self._captures = captures
        self._update()

    def advance(self, progress: Progress) -> None:
        if self._part is not None:
            self._reached = progress
            self._update()

    def fail(self, error: TuiprofError) -> None:
        self._failed = True
        self._update()
        self.notify(str(error), title="the rest cannot be read", severity="error", timeout=15)

    def _update(self) -> None:
        trace = self._trace
        if trace is None:
            return
        path = trace.info.path
        self._file = sanitize(trace_title(path)) if path else f"{trace.info.format} trace"
        self._capture_label = (
            self._captures.label(trace.info.world_size) if self._captures is not None else ""
        )
        self._facts = trace_facts(
            trace, *self._step_ns, surveyed=self._trust is not None, rank=not self._capture_label
        )
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the line. If it is too long, the trust line is cut first, but not completely, then facts, then the name.

        The step time is kept longest.
        """
        left = self._left(self._facts)
        shorter: list[str] = []
        if self._part is not None:
            level: Level = "bad" if self._failed else "warn"
            reached = self._part if self._failed or self._reached is None else self._reached
            text = reading_text(self._part.share, reached.share, failed=self._failed)
            least = 38
        elif self._trust is not None:
            # The facts on the left already show the slowdown by the profiler.
            trust = Trust(self._trust.events, tuple(r for r in self._trust.remarks if r.code != "slowed"))
            level = trust.level
            mark = "" if level == "good" else f"{MARKS[level]} "
            shorter = [mark + sanitize(line) for line in _shorter_lines(trust.line)]
            text = shorter[0]
            # A long clause is replaced by the number of remarks.
            if (remarks := len(trust.remarks)) and cell_len(shorter[-1]) >= width // 3:
                shorter.append(f"{mark}trust: {plural(remarks, 'remark')}")
            least = cell_len(shorter[-1]) + 1
        else:
            level, text, least = "info", "", 0
        right: Row = [(text, level), (" ", "text")] if text else []
        if self._capture_label:
            others: Row = [(f"{self._capture_label} — ", "text"), ("R", "key"), (": others", "dim")]
            right = [*others, *([(" · ", "dim"), *right] if right else [(" ", "text")])]
            least += row_width(others) + (3 if text else 0)
        if not right:
            return [fit(left, width)]
        room = width - row_width(left) - 3
        least = min(row_width(right), least)
        if room < least:
            facts, most = self._facts, max(width - least - 3, 12)
            while len(facts) > 1 and row_width(self._left(facts)) > most:
                facts = _shorter(facts)
            spare = most - row_width(self._left(facts)) + cell_len(self._file)
            if spare < min(cell_len(self._file), _MIN_NAME):
                facts, spare = [], most - 1
            left = fit(self._left(facts, clip(self._file, max(spare, 1))), most)
            room = width - row_width(left) - 3
        for line in shorter:
            if row_width(right) > room:
                right[-2] = (line, level)
        right = fit(right, max(room, 0))
        gap = width - row_width(left) - row_width(right)
        self._trust_from = width - row_width(right)
        self._label_to = self._trust_from + (row_width(right[:3]) if self._capture_label else 0)
        return [[*left, (" " * max(gap, 0), "text"), *right]]

    def _left(self, facts: list[str], file: str = "") -> Row:
        name: Row = [(" " + (file or self._file), "title")]
        return [*name, ("   ", "text"), (" · ".join(facts), "dim")] if facts else name

    def on_click(self, event: events.Click) -> None:
        """Show the other captures, or all remarks of the trust line."""
        if self._trust_from <= event.x < self._label_to:
            self.post_message(self.OthersWanted())
        elif self._trust is not None and event.x >= self._trust_from:
            self.post_message(self.TrustWanted())


def _shorter(facts: list[str]) -> list[str]:
    """Drop the number of events, else the last fact's brackets, else what comes before a step time, else that fact."""
    others = [fact for fact in facts if not fact.endswith(" events")]
    if 0 < len(others) < len(facts):
        return others
    short = facts[-1].partition(" (")[0]
    if short != facts[-1]:
        return [*facts[:-1], short]
    return facts[1:] if short.endswith("a step") else facts[:-1]


def _shorter_lines(line: str) -> list[str]:
    """Return a trust line, the line without its remark's consequence, and that without the number of other remarks."""
    text, bracket, more = line.partition(" (+")
    head, colon, remark = text.partition(": ")
    first = remark.partition(": ")[0]
    # After these words, the colon introduces a message of the profiler itself.
    clause = head + colon + (remark if first.endswith(("says", "reports", "warns")) else first)
    return [line, clause + bracket + more, clause]


#: Textual's name of the key ``]``.
_NEXT: Final = "right_square_bracket"


class FindingHead(Flowing):
    """The main finding in full; until it is known, the most urgent verdict."""

    DEFAULT_CSS = "FindingHead { height: auto; max-height: 6; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._headline = Headline("")
        self._finding: tuple[Finding, int, int] | None = None
        self._lines = 6

    def show_headline(self, headline: Headline) -> None:
        self._headline, self._finding = headline, None
        self._fit_height()

    def show_finding(self, found: Finding, number: int, count: int) -> None:
        self._finding = (found, number, count)
        self._fit_height()

    def allow(self, lines: int) -> None:
        if lines != self._lines:
            self._lines = lines
            self._height = -1  # the current height was computed for another number of lines
            self._fit_height()

    def on_click(self, event: events.Click) -> None:
        rows = self.draw(self.size.width, self.size.height)
        if event.y < len(rows) and (key := key_at(rows[event.y], event.x)):
            self.app.simulate_key(_NEXT if key == "]" else key)

    def draw(self, width: int, height: int) -> list[Row]:
        if self._finding is not None:
            return finding_rows(*self._finding, width, self._lines)[: height or self._lines]
        head = self._headline
        show: Row = [(head.pointer, "key"), (" show ", "dim")] if head.pointer else []
        lines = wrap(
            sanitize(head.sentence),
            max(width - 4 - (row_width(show) + 1 if show else 0), 8),
            min(height or 2, 2),
        )
        rows = verdict_rows(lines, head.level)
        return [spread(row, [] if i else show, width) for i, row in enumerate(rows)]
