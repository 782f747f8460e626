"""Cuts a stream of bytes into stretches of whole events."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuiprof.formats.chrome.layout import Head, MoreNeeded, find_events
from tuiprof.formats.source import Damaged, Stream

#: Size of a stretch, bytes: the objects of one fit the cache of a core.
SIZE = 1 << 20
#: Where in a stretch the last boundary is looked for first.
_WINDOW = 1 << 14
#: Between two events; ``{`` and a quote make it unlikely to be met inside a string or a nested list.
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")


def last_boundary(data: bytes) -> int | None:
    """Return where the last event that is surely whole ends, if the text begins at an event.

    The boundary is a guess (it may lie in a string); that the text up to it can be decoded proves it.

    Args:
        data: Text of a list of events.

    Returns:
        The offset behind its ``}``; None when there is no boundary.
    """
    window = _WINDOW
    while True:
        start = max(0, len(data) - window)
        found = None
        for found in _BOUNDARY.finditer(data, start):  # noqa: B007 - the last one is wanted
            pass
        if found is not None:
            return found.start() + 1
        if not start:
            return None
        window *= 16


class Stretches:
    """The list of events of one stream, in stretches.

    Args:
        stream: The unwrapped bytes.

    Attributes:
        damage: Why the stream ended early; None = it did not.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._held = b""  # read and not handed out; begins behind an event
        self._offset = 0  # of what is held
        self._ended = False
        self.damage: str | None = None

    @property
    def consumed(self) -> int:
        """How much of the file on disk was read, bytes."""
        return self._stream.consumed

    def open(self) -> Head:
        """Find the list of events.

        Raises:
            NotATrace: There is none.
        """
        size = 1 << 16
        while True:
            self._fill(size)
            try:
                head = find_events(self._held, self._ended)
            except MoreNeeded:
                size *= 4
                continue
            self._held = self._held[head.first :]
            self._offset = head.first
            return head

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset in the unwrapped file, text) of stretches that follow each other without a gap."""
        size = SIZE
        while True:
            self._fill(size)
            if not self._held:
                return
            end = len(self._held) if self._ended else last_boundary(self._held)
            if end is None:  # one event longer than this
                size *= 2
                continue
            offset, data = self._offset, self._held[:end] if end < len(self._held) else self._held
            self._held = self._held[end:]
            self._offset += end
            size = SIZE
            yield offset, data
            if self._ended and not self._held:
                return

    def give_back(self, data: bytes) -> None:
        """Put text back that turned out to be the beginning of an event.

        Args:
            data: The end of the stretch handed out last.
        """
        if data and not self._ended:
            self._held = data + self._held
            self._offset -= len(data)

    def remainder(self) -> bytes:
        """Return all that follows the stretch handed out last."""
        parts = [self._held]
        self._held = b""
        while not self._ended:
            self._fill(SIZE)
            parts.append(self._held)
            self._held = b""
        return b"".join(parts)

    def _fill(self, size: int) -> None:
        """Hold this many bytes, or all there are."""
        missing = size - len(self._held)
        if missing <= 0 or self._ended:
            return
        parts = [self._held]
        while missing > 0:
            try:
                part = self._stream.read_some(missing)
            except Damaged as damage:
                self.damage = str(damage)
                part = b""
            if not part:
                self._ended = True
                break
            parts.append(part)
            missing -= len(part)
        self._held = b"".join(parts)
