"""Opening a trace away from the screen: progress and what was read so far out, cancellation in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace


#: From this size on disk on, parts of a file are shown while the rest is read, bytes.
_WORTH_PARTS = 4 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of opening.

    Attributes:
        done: Bytes of the file read.
        total: Bytes of the file; 0 = not known.
    """

    done: int
    total: int

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

        Returns:
            The trace.

        Raises:
            TuiprofError: It cannot be opened.
            tuiprof.formats.Cancelled: :meth:`cancel` was called.
        """
        # Decoders bring polars and numpy: imported here, so that the loading screen is shown before.
        from tuiprof import formats

        try:
            return formats.open_trace(
                self.path,
                progress=self._tell,
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

    def _tell(self, done: int, total: int) -> None:
        self._reached = Progress(done, total)
        self._report(self._reached)

    def _hand_out(self, trace: Trace) -> None:
        # A small file is complete before a partial view would be useful.
        if self._partial is not None and len(trace) and self._reached.total >= _WORTH_PARTS:
            self._partial(trace, self._reached)
