"""Shown while a trace is opened, and if opening fails."""

from __future__ import annotations

import time

from textual.message import Message

from tuiprof.errors import TuiprofError
from tuiprof.model.units import format_bytes
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.spans import wrap

_BAR = 40


class LoadingPanel(Lines, can_focus=True):
    """A bar while opening; the error and its remedy where that failed.

    Args:
        name: Name of the file; safe for a terminal.
    """

    DEFAULT_CSS = "LoadingPanel { height: 1fr; padding: 1 2; }"

    class Moved(Message):
        """Progress of opening, posted by a worker to the screen."""

        def __init__(self, progress: Progress) -> None:
            super().__init__()
            self.progress = progress

        def can_replace(self, message: Message) -> bool:
            """Only the latest counts."""
            return isinstance(message, LoadingPanel.Moved)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._file = name
        self._progress = Progress(0, 0)
        self._began = time.monotonic()
        self._error: TuiprofError | None = None

    @property
    def error(self) -> TuiprofError | None:
        """Why it cannot be opened; None = nothing is known to be wrong."""
        return self._error

    def on_mount(self) -> None:
        """Count the seconds."""
        self.focus()
        self.set_interval(0.5, self.redraw)

    def advance(self, progress: Progress) -> None:
        """Show how far it is."""
        self._progress = progress
        self.redraw()

    def fail(self, error: TuiprofError) -> None:
        """Show why it cannot be opened, and what to do."""
        self._error = error
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the bar, or the error."""
        rows: list[Row] = [[(self._file, "title")], []]
        if self._error is not None:
            rows += [[(line, "bad")] for line in wrap("✗ " + sanitize_lines(self._error.message), width)]
            if self._error.remedy:
                rows += [
                    [],
                    *([(line, "text")] for line in wrap("→ " + sanitize_lines(self._error.remedy), width)),
                ]
            return rows
        share, seconds = self._progress.share, time.monotonic() - self._began
        size = min(_BAR, max(width - 8, 4))
        rows.append([(glyphs.bar(share, size), "line"), (f" {share * 100:3.0f} %", "strong")])
        if self._progress.total > 1:
            done = f"{format_bytes(self._progress.done)} of {format_bytes(self._progress.total)}"
            rows.append([(f"reading · {done} · {seconds:.0f} s", "dim")])
        else:
            rows.append([(f"opening · {seconds:.0f} s", "dim")])
        return rows
