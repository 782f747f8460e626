"""Retrieves the raw text of an event."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tuiprof.errors import TraceError
from tuiprof.formats.kineto import tolerant
from tuiprof.formats.source import Damaged, Source


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The location of a chunk."""

    events: int  # number of events in it
    offset: int  # its first byte in the unwrapped file
    length: int  # its length, bytes
    strict: bool  # whether it is plain JSON


class RawChunks:
    """Reads the chunk of an event again and extracts the event."""

    def __init__(self, source: Source, chunks: Sequence[ChunkSpan]) -> None:
        self._source = source
        self._chunks = chunks
        self._firsts = [0]
        for chunk in chunks:
            self._firsts.append(self._firsts[-1] + chunk.events)
        self._last: tuple[int, list[bytes]] | None = None

    def saved(self) -> bytes:
        """Return what :meth:`restored` needs, for the cache."""
        return msgspec.msgpack.encode([(p.events, p.offset, p.length, p.strict) for p in self._chunks])

    @classmethod
    def restored(cls, source: Source, saved: bytes) -> RawChunks:
        """Return what was saved."""
        chunks = msgspec.msgpack.decode(saved, type=list[tuple[int, int, int, bool]])
        return cls(source, [ChunkSpan(*chunk) for chunk in chunks])

    def text(self, ordinal: int) -> str:
        """Return the text of an event; empty if the file was removed or has changed."""
        index = bisect_right(self._firsts, ordinal) - 1
        if not 0 <= index < len(self._chunks):
            return ""
        if self._last is None or self._last[0] != index:
            self._last = index, self._events(self._chunks[index])
        events, position = self._last[1], ordinal - self._firsts[index]
        return events[position].decode("utf-8", errors="replace") if position < len(events) else ""

    def _events(self, chunk: ChunkSpan) -> list[bytes]:
        try:
            data = self._source.extract(chunk.offset, chunk.length)
        except (OSError, Damaged, TraceError):
            return []  # the file was moved or overwritten: the raw text is lost
        pieces = tolerant.split(data)
        texts = [data[start:stop] for start, stop in pieces.slices]
        if not chunk.strict:
            return [text for text in texts if tolerant.mend(text) is not None]
        # Damage in unread arguments: return none rather than the text of a neighbor.
        return texts if len(texts) == chunk.events else []
