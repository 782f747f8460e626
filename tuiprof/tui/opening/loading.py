"""Opening a trace in a worker, with progress and cancellation, and the panel that shows it or why it failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from tuiprof.errors import TraceError, TuiprofError
from tuiprof.model.units import format_bytes
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.spans import wrap

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: From this size on disk on, parts of a file are shown while the rest is read, bytes.
_WORTH_PARTS = 4 << 20
_BAR = 40


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of opening."""

    done: int  # bytes of the file read
    total: int  # bytes of the file; 0 = not known

    @property
    def share(self) -> float:
        """From 0 to 1; 0 while the size is not known."""
        return min(1.0, self.done / self.total) if self.total else 0.0


class Opening:
    """One attempt to open a trace; runs in a worker thread, is cancelled from the screen's.

    Args:
        path: The file.
        report: Called with progress from the worker's thread.
        partial: Called from there with what has been read so far, and how far that is; None = only the whole
            trace is wanted.
    """

    def __init__(
        self,
        path: Path,
        report: Callable[[Progress], None],
        partial: Callable[[Trace, Progress], None] | None = None,
    ) -> None:
        self.path = path
        self._report = report
        self._partial = partial
        self._reached = Progress(0, 0)
        self._stop = threading.Event()

    def cancel(self) -> None:
        """Stop soon."""
        self._stop.set()

    @property
    def cancelled(self) -> bool:
        """Whether opening was cancelled."""
        return self._stop.is_set()

    def run(self) -> Trace:
        """Open the trace.

        Raises:
            TuiprofError: It cannot be opened.
            tuiprof.formats.Cancelled: :meth:`cancel` was called.
        """
        # Decoders bring polars and numpy: imported here, so that the loading screen is shown before.
        from tuiprof import formats

        try:
            return formats.open_trace(
                self.path,
                progress=self._advance,
                cancelled=self._stop.is_set,
                partial=self._hand_out if self._partial is not None else None,
            )
        except OSError as error:
            raise TraceError(
                f"{self.path} cannot be read: {error.strerror or error}", "check the path and its permissions"
            ) from error
        except MemoryError as error:
            raise TraceError(
                f"{self.path} does not fit in memory", "record fewer steps, or open it on a larger machine"
            ) from error

    def _advance(self, done: int, total: int) -> None:
        self._reached = Progress(done, total)
        self._report(self._reached)

    def _hand_out(self, trace: Trace) -> None:
        # A small file is complete before a partial view would be useful.
        if self._partial is not None and len(trace) and self._reached.total >= _WORTH_PARTS:
            self._partial(trace, self._reached)


class LoadingPanel(Lines, can_focus=True):
    """A bar while opening; the error and its remedy where that failed.

    Args:
        name: Name of the file; safe for a terminal.
    """

    DEFAULT_CSS = "LoadingPanel { height: 1fr; padding: 1 2; }"

    @dataclass(eq=False)
    class Moved(Message):
        """Progress of opening, posted by a worker to the screen."""

        progress: Progress

        def can_replace(self, message: Message) -> bool:
            """Only the latest counts."""
            return isinstance(message, LoadingPanel.Moved)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._file = name
        self._progress = Progress(0, 0)
        self._began = time.monotonic()
        self.error: TuiprofError | None = None  # why it cannot be opened; None = nothing is known to be wrong

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
        self.error = error
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the bar, or the error."""
        rows: list[Row] = [[(self._file, "title")], []]
        if self.error is not None:
            rows += [[(line, "bad")] for line in wrap("✗ " + sanitize_lines(self.error.message), width)]
            if self.error.remedy:
                rows += [
                    [],
                    *([(line, "text")] for line in wrap("→ " + sanitize_lines(self.error.remedy), width)),
                ]
            return rows
        share, seconds = self._progress.share, time.monotonic() - self._began
        size = min(_BAR, max(width - 8, 4))
        rows.append([(glyphs.bar(share, size), "line"), (f" {share * 100:3.0f} %", "strong")])
        if self._progress.total > 1:
            done = f"{format_bytes(self._progress.done)} of {format_bytes(self._progress.total)}"
            # The file is read; lanes and the first analysis take as long again.
            doing = "analysing" if share >= 1 else "reading"
            rows.append([(f"{doing} · {done} · {seconds:.0f} s", "dim")])
        else:
            rows.append([(f"opening · {seconds:.0f} s", "dim")])
        return rows
