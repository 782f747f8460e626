"""Inflates in a thread while the reader decodes; the inflater lets go of the interpreter lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tuiprof.formats.source import Stream

_BLOCK = 1 << 19
_BLOCKS = 8


class ReadAhead:
    """A stream that is read a few blocks ahead by a thread of its own.

    Args:
        stream: The stream; nobody else may read it meanwhile.

    Attributes:
        at: How many bytes were handed out.
        consumed: How much of the file on disk stands behind that, bytes.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._blocks: queue.Queue[tuple[bytes, int] | Exception] = queue.Queue(_BLOCKS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuiprof-inflate", daemon=True)
        self._failed: Exception | None = None
        self.at = self.consumed = 0

    def read_some(self, size: int) -> bytes:
        """Return the next block, whatever is asked for; none at the end.

        Args:
            size: Not heeded.

        Raises:
            Damaged: As the stream.
            TraceError: As the stream.
        """
        if self._failed is not None:
            raise self._failed
        item = self._blocks.get()
        if isinstance(item, Exception):
            self._failed = item
            raise item
        block, self.consumed = item
        self.at += len(block)
        if not block:
            self._blocks.put(item)  # whoever asks again meets the end again
        return block

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                item: tuple[bytes, int] | Exception = (self._stream.read_some(_BLOCK), self._stream.consumed)
            except Exception as error:  # noqa: BLE001 - raised again where the block is asked for
                item = error
            while not self._stop.is_set():
                try:
                    self._blocks.put(item, timeout=0.05)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception) or not item[0]:
                return

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()


@contextmanager
def read_ahead(stream: Stream) -> Iterator[ReadAhead]:
    """Read a stream ahead.

    Args:
        stream: The stream.
    """
    ahead = ReadAhead(stream)
    ahead.start()
    try:
        yield ahead
    finally:
        ahead.close()
