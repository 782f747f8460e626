"""Cuts the list of events into stretches of whole events, without decoding them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tuiprof.formats.kineto.layout import Head, MoreNeeded, NotATrace, find_events
from tuiprof.formats.source import Damaged

#: Size of a stretch, bytes. The arrays that the fast path makes of one fit the cache of a core: a trace of 67 MB took
#: 0.18 s of a processor and 125 MB with 1 to 4 MB, 0.40 s with 256 kB, and 0.41 s and 280 MB with 32 MB.
SIZE = 2 << 20
#: Maximum size of an event and of the properties before the list, which bounds memory for any file.
LONGEST = 64 << 20
#: Bytes per read: at most this many before the damage in a compressed file are lost.
_BLOCK = 1 << 19
#: Where in a stretch the last boundary is looked for first.
_WINDOW = 1 << 13
#: Boundary between two events. It rarely occurs inside a string, as the quote of the key would end it.
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*(?:\"[^\"\\]{1,40}\"[ \t\r\n]*:|\}))")


class Readable(Protocol):
    """Bytes in order."""

    def read_some(self, size: int) -> bytes:
        """Return the next bytes; none only at the end."""


class Stretch(NamedTuple):
    """A stretch of the list of events."""

    offset: int  # its first byte in the unwrapped file
    length: int  # its length, bytes
    data: bytes | None  # its text; None if the decoder reads it itself


def last_boundary(data: bytes, low: int = 0) -> int | None:
    """Return the offset behind the last event that seems whole, if the text begins at an event; None = there is none.

    The boundary is a guess (it may lie in a string or a nested list); decoding the text up to it confirms it.
    """
    window = _WINDOW
    while True:
        start = max(low, len(data) - window)
        found = None
        for found in _BOUNDARY.finditer(data, start):  # noqa: B007 - the last one is wanted
            pass
        if found is not None:
            return found.start() + 1
        if start == low:
            return None
        window *= 16


def plan(fd: int, first: int, end: int, size: int = SIZE) -> Iterator[Stretch]:
    """Cut the list of a plain file, reading only near the cuts; ends early where an event would be too long."""
    at, reach = first, size
    while at < end:
        stop = at + reach
        if stop >= end:
            yield Stretch(at, end - at, None)
            return
        window = _WINDOW
        while True:
            start = max(at, stop - window)
            cut = last_boundary(os.pread(fd, stop - start, start))
            if cut is not None or start == at:
                break
            window *= 16
        if cut is None and reach >= LONGEST:
            yield Stretch(at, reach, None)
            return
        if cut is None:  # one event longer than this
            reach = min(2 * reach, LONGEST)
            continue
        yield Stretch(at, start + cut - at, None)
        at, reach = start + cut, size


class Inflow:
    """The list of events of one stream, in stretches with their text.

    Attributes:
        ended: Whether all of the stream was read.
        damage: Why the stream ended early; None = it did not.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._held = b""  # read and not handed out; begins behind an event
        self._offset = 0  # of what is held
        self.ended = False
        self.damage: str | None = None

    def open(self) -> Head:
        """Find the list of events.

        Raises:
            NotATrace: There is none.
        """
        size = 1 << 16
        while True:
            self._fill(size)
            try:
                head = find_events(self._held, self.ended)
            except MoreNeeded:
                if size >= LONGEST:
                    raise NotATrace(f"has no list of events in its first {LONGEST >> 20} MiB") from None
                size = min(4 * size, LONGEST)
                continue
            self._held = self._held[head.first :]
            self._offset = head.first
            return head

    def __iter__(self) -> Iterator[Stretch]:
        """Yield stretches that follow each other without a gap; ends early where an event would be too long."""
        size, searched = SIZE, 0
        while True:
            self._fill(size)
            if not self._held:
                return
            end = len(self._held) if self.ended else last_boundary(self._held, max(0, searched - 64))
            if end is None and size >= LONGEST:
                yield Stretch(self._offset, len(self._held), self._held)
                return
            if end is None:  # one event longer than this
                searched = len(self._held)
                size = min(2 * size, LONGEST)
                continue
            stretch = Stretch(self._offset, end, self._held[:end])
            self._held = self._held[end:]
            self._offset += end
            size, searched = SIZE, 0
            yield stretch
            if self.ended and not self._held:
                return

    def _fill(self, size: int) -> None:
        """Hold this many bytes, or all there are."""
        missing = size - len(self._held)
        if missing <= 0 or self.ended:
            return
        parts = [self._held]
        while missing > 0:
            try:
                part = self._stream.read_some(min(missing, _BLOCK))
            except Damaged as damage:
                self.damage = str(damage)
                part = b""
            if not part:
                self.ended = True
                break
            parts.append(part)
            missing -= len(part)
        self._held = b"".join(parts)
