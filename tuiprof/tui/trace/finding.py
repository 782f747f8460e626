"""The head of a trace once it is known what to change: what that saves, where, and what to write instead."""

from __future__ import annotations

from typing import Final

from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_ns_span, format_rough_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.trace.findings import Shown, is_bad
from tuiprof.tui.trace.view import Headline
from tuiprof.tui.widgets.lines import Flowing, Row, fit, row_width, spread
from tuiprof.tui.widgets.spans import wrap

_BAR_CELLS: Final = 28
#: Below this width there is no bar.
_WITH_BAR: Final = 100


def finding_rows(found: Shown, number: int, count: int, width: int, height: int) -> list[Row]:
    """Return the lines of a finding."""
    level: Level = "bad" if is_bad(found) else "warn"
    others: Row = [(f"{number} of {count} ", "dim"), ("]", "key"), (" next ", "dim")] if count > 1 else []
    first: Row = [(f"▌{MARKS[level]} ", level), *_saves(found, level, width)]
    lines = [spread(first, others, width)]
    room = max(width - 10, 8)

    def line(text: str, label: str, keys: Row, most: int) -> None:
        space = room - (row_width(keys) + 2 if keys else 0)
        for i, part in enumerate(wrap(sanitize(text), space, most)):
            row: Row = [
                ("▌  ", level),
                ((f"{label:<6} " if not i else " " * 7) if label else "", "dim"),
                (part, "text" if label else "strong"),
            ]
            lines.append(spread(row, keys if not i else [], width))

    show: Row = [("o", "key"), (" show ", "dim")] if found.event is not None else []
    copy: Row = [("C", "key"), (" copy ", "dim")]
    prove: Row = [("P", "key"), (" prove ", "dim")] if found.prove else []
    if height < 4:  # no room for labels: what, and what to write
        texts = (found.what, f"fix: {found.fix}")[: height - 1]
        return [*lines, *(fit([("▌  ", level), (sanitize(text), "text")], width) for text in texts)]
    # What was found gets the spare line before the fix does.
    spare = height - (4 if found.where else 3)
    line(found.what, "", [], 2 if spare > 0 else 1)
    spare -= len(lines) - 2
    if found.where:
        line(found.where, "where", show, 1)
    line(found.fix, "fix", [*copy, *prove, *([] if found.where else show)], 2 if spare > 0 else 1)
    return lines[:height]


def _saves(found: Shown, level: str, width: int) -> Row:
    if found.saves_ns is None:
        return [("savings unknown", level)]
    row: Row = [
        (
            f"saves about {format_rough_share(found.share)}" if found.share is not None else "saves about",
            level,
        )
    ]
    if width >= _WITH_BAR and found.share is not None:
        filled = min(round(found.share * _BAR_CELLS), _BAR_CELLS)
        row += [("  ", "text"), ("█" * filled, level), ("░" * (_BAR_CELLS - filled), "faint")]
    whole = f" of {format_ns(found.step_ns)}" if found.step_ns else ""
    row.append((f"  {format_ns(found.saves_ns)}{whole}", "strong"))
    if found.low_ns is not None and found.high_ns is not None:
        row.append((f"  ({format_ns_span(found.low_ns, found.high_ns)})", "dim"))
    return row


class FindingHead(Flowing):
    """The main finding in full; until it is known, the most important verdict."""

    DEFAULT_CSS = "FindingHead { height: auto; max-height: 6; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._headline = Headline("")
        self._finding: tuple[Shown, int, int] | None = None
        self._lines = 6

    def show_headline(self, headline: Headline) -> None:
        """Show a verdict."""
        self._headline, self._finding = headline, None
        self._fit_height()

    def show_finding(self, found: Shown, number: int, count: int) -> None:
        """Show a finding, and which of how many it is."""
        self._finding = (found, number, count)
        self._fit_height()

    def allow(self, lines: int) -> None:
        """Set the maximum height."""
        if lines != self._lines:
            self._lines = lines
            self._taken = -1  # the present height was computed for another number of lines
            self._fit_height()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the finding, or the sentence."""
        if self._finding is not None:
            return finding_rows(*self._finding, width, self._lines)[: height or self._lines]
        head = self._headline
        show: Row = [(head.pointer, "key"), (" show ", "dim")] if head.pointer else []
        mark = MARKS[head.level] if head.level else "…"
        lines = wrap(
            sanitize(head.sentence),
            max(width - 4 - (row_width(show) + 1 if show else 0), 8),
            min(height or 2, 2),
        )
        rows: list[Row] = [
            [(f"▌{' ' if i else mark} ", head.level or "dim"), (line, "strong" if head.level else "dim")]
            for i, line in enumerate(lines)
        ]
        return [spread(row, [] if i else show, width) for i, row in enumerate(rows)]
