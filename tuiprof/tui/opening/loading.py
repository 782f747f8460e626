"""Opening a trace in a worker, with progress and cancellation, and the panel that shows progress and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message
from textual.screen import Screen

from tuiprof.errors import TraceError, TuiprofError
from tuiprof.model.units import format_bytes
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.spans import wrap

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: Minimum size of a file to show parts of it while the rest is read, bytes.
_MIN_PARTIAL_BYTES = 4 << 20
_BAR = 40
Found = TypeVar("Found")


def open_in_thread(
    screen: Screen[Any],
    read: Callable[[], Found],
    show: Callable[[Found], object],
    fail: Callable[[TuiprofError], object],
    *,
    problem: str,
    cancelled: Callable[[], bool],
) -> None:
    """Call ``read`` in a thread, then on the screen ``show`` with the result, or ``fail`` unless it was cancelled.

    An error that is a bug is shown too; ``problem`` says what it prevents.
    """

    def work() -> None:
        try:
            found = read()
        except TuiprofError as error:
            if not cancelled():
                screen.call_later(fail, error)
        except Exception as error:  # noqa: BLE001 - a bug is shown on the screen and does not end the dashboard
            text = f"{problem}: {type(error).__name__}: {error}"
            screen.call_later(fail, TuiprofError(text, "this is a bug in tuiprof; please report it"))
        else:
            screen.call_later(show, found)

    screen.run_worker(work, thread=True, exclusive=True, group="open", exit_on_error=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of opening."""

    done: int  # bytes read
    total: int  # bytes of the file; 0 = unknown

    @property
    def share(self) -> float:
        """From 0 to 1; 0 while the size is unknown."""
        return min(1.0, self.done / self.total) if self.total else 0.0


class Opening:
    """Opens a trace; :meth:`run` is called in a worker thread, and ends soon after :attr:`stop` is set.

    There it reports progress, and the part of the trace read so far.
    """

    def __init__(
        self, path: Path, report: Callable[[Progress], object], partial: Callable[[Trace, Progress], object]
    ) -> None:
        self.path = path
        self._report = report
        self._partial = partial
        self._reached = Progress(0, 0)
        self.stop = threading.Event()

    def run(self) -> Trace:
        """Open the trace.

        Raises:
            TuiprofError: The trace cannot be opened.
            tuiprof.formats.Cancelled: :attr:`stop` was set.
        """
        # The decoders import Polars and NumPy: import them after the loading screen is shown.
        from tuiprof import formats

        try:
            return formats.open_trace(
                self.path, progress=self._advance, cancelled=self.stop.is_set, partial=self._show_part
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

    def _show_part(self, trace: Trace) -> None:
        if len(trace) and self._reached.total >= _MIN_PARTIAL_BYTES:
            self._partial(trace, self._reached)


class LoadingPanel(Lines, can_focus=True):
    """A progress bar under the sanitized name of the file, or the error with its remedy."""

    DEFAULT_CSS = "LoadingPanel { height: 1fr; padding: 1 2; }"

    @dataclass(eq=False)
    class Moved(Message):
        """Progress, posted by a worker."""

        progress: Progress

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LoadingPanel.Moved)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._file = name
        self._progress = Progress(0, 0)
        self._began = time.monotonic()
        self.error: TuiprofError | None = None

    def on_mount(self) -> None:
        self.focus()
        self.set_interval(0.5, self.redraw)

    def advance(self, progress: Progress) -> None:
        self._progress = progress
        self.redraw()

    def on_loading_panel_moved(self, message: Moved) -> None:
        self.advance(message.progress)

    def fail(self, error: TuiprofError) -> None:
        self.error = error
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
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
            # After reading, building lanes and the first analysis take about as long again.
            doing = "analysing" if share >= 1 else "reading"
            rows.append([(f"{doing} · {done} · {seconds:.0f} s", "dim")])
        else:
            rows.append([(f"opening · {seconds:.0f} s", "dim")])
        return rows
