"""The sentence on top: what matters most, with a mark so that its weight needs no colour."""

from __future__ import annotations

from typing import Final

from tuiprof.model.report import Level, Report
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.glyphs import MARKS as MARKS
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.wrap import wrap

_WEIGHT: Final[dict[Level, int]] = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def most_important(reports: list[Report]) -> Report | None:
    """Return the report with the most urgent verdict; the first of equals."""
    return min(reports, key=lambda report: _WEIGHT[report.verdict.level], default=None)


class Flowing(Lines):
    """Text with automatic height; the screen is laid out again only when the height changes."""

    _taken = -1

    def _fit_height(self) -> None:
        width = self.size.width
        wanted = len(self.draw(width, 0)) if width else -1
        if self.is_attached and (wanted != self._taken or not width):
            self._taken = wanted
            self.lay_out_anew()
        self.redraw()


class VerdictLine(Flowing):
    """A sentence of up to two lines after a bar in the color of its level."""

    DEFAULT_CSS = "VerdictLine { height: auto; max-height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._sentence = ""
        self._role = "text"
        self._mark = ""

    def show(self, sentence: str, level: Level | None = None) -> None:
        """Show a sentence.

        Args:
            sentence: Untrusted text.
            level: Its weight; None = not a verdict yet.
        """
        self._sentence = sanitize(sentence)
        self._role = level or "dim"
        self._mark = MARKS[level] if level else "…"
        self._fit_height()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the sentence."""
        most = height or 2
        lines = wrap(self._sentence, max(width - 4, 8), most)
        return [
            [
                (f"▌{self._mark if i == 0 else ' '} ", self._role),
                (line, "strong" if self._mark != "…" else "dim"),
            ]
            for i, line in enumerate(lines)
        ]
