"""Reads the events of one file: cuts, decodes on as many cores as pay, and gathers in order."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from tuiprof.formats import Cancelled, Options
from tuiprof.formats.chrome import layout
from tuiprof.formats.chrome.decode import Chunk, ChunkDecoder
from tuiprof.formats.chrome.gather import Gathered
from tuiprof.formats.chrome.pool import Pool, WorkerLost
from tuiprof.formats.chrome.raw import ChunkPlace
from tuiprof.formats.chrome.stretches import Inflow, Stretch, plan
from tuiprof.formats.chrome.worker import read_at
from tuiprof.formats.source import Source, Stream


class EventReader:
    """Reads the events of one file.

    Args:
        source: The file.
        options: How to read.
        pool: Who decodes beside the reader; None = nobody.

    Attributes:
        gathered: The events, in file order.
        places: Where each chunk lies.
        properties: Top-level properties around the events.
        is_list: Whether the file is a bare list.
        truncated: Whether the list does not end.
        damage: Why the compressed stream ended early; None = it did not.
    """

    def __init__(self, source: Source, options: Options, pool: Pool | None) -> None:
        self.source, self.options, self._pool = source, options, pool
        self.gathered = Gathered()
        self.places: list[ChunkPlace] = []
        self.properties: dict[str, Any] = {}
        self.is_list = self.truncated = False
        self.damage: str | None = None
        self._decoder = ChunkDecoder()
        self._stretches: list[Stretch] = []
        self._waiting: dict[int, Chunk] = {}
        self._next = 0  # the first stretch that is not gathered
        self._carry = b""  # the beginning of an event whose end lies in the next stretch
        self._closed, self._tail_at = False, 0

    def read(self, meanwhile: Callable[[], None]) -> int:
        """Read to the end.

        Args:
            meanwhile: Called after each stretch that was gathered.

        Returns:
            Size of the unwrapped file, bytes.

        Raises:
            NotATrace: There is no list of events in it.
            TraceError: It inflates to more than the limit, or cannot be read.
        """
        plain = self.source.wrapping == "plain"
        with self.source.stream() as stream:
            inflow = Inflow(stream)
            head = inflow.open()
            self.is_list = head.is_list
            self.properties.update(head.properties)
            again = self._reread(stream)
            cut = plan(stream.fileno(), head.first, self.source.size) if plain else iter(inflow)
            for number, chunk in self._decoded(cut, stream):
                self._waiting[number] = chunk
                self._gather(again)
                self._report(stream.consumed)
                meanwhile()
            self._finish(again)
            self.damage = inflow.damage
            return self.source.size if plain else stream.at

    def _decoded(self, cut: Iterator[Stretch], stream: Stream) -> Iterator[tuple[int, Chunk]]:
        """Yield decoded stretches, in the order in which they get ready."""
        pool = self._pool
        try:
            for number, stretch in enumerate(cut):
                self._stretches.append(stretch._replace(data=None))
                # The first is decoded here, to be shown while the workers still start.
                if number and pool is not None and pool.offer(number, stretch):
                    yield from pool.answers(0)
                    continue
                if number:  # Needed at the end, and slow to load: now that the others have enough to do.
                    importlib.import_module("polars")
                yield number, self._decoder.decode(self._text(stretch, stream))
                if pool is not None:
                    yield from pool.answers(0)
            while pool is not None and pool.busy:
                yield from pool.answers(None)
        except WorkerLost:
            # A worker was killed: what it held is decoded here once the rest is through.
            for number, stretch in enumerate(cut, len(self._stretches)):
                self._stretches.append(stretch._replace(data=None))
                yield number, self._decoder.decode(self._text(stretch, stream))

    @staticmethod
    def _text(stretch: Stretch, stream: Stream) -> bytes:
        if stretch.data is not None:
            return stretch.data
        return read_at(stream.fileno(), stretch.offset, stretch.length)

    def _reread(self, stream: Stream) -> Callable[[Stretch], bytes]:
        """Return how to get at the text of a stretch once more."""
        if self.source.wrapping == "plain":
            return lambda stretch: read_at(stream.fileno(), stretch.offset, stretch.length)
        return lambda stretch: self.source.extract(stretch.offset, stretch.length)

    def _gather(self, again: Callable[[Stretch], bytes]) -> None:
        """Gather what is ready and next in order."""
        while not self._closed and self._next in self._waiting:
            chunk = self._waiting.pop(self._next)
            self._take(chunk, self._stretches[self._next], again)
            self._next += 1

    def _take(self, chunk: Chunk, stretch: Stretch, again: Callable[[Stretch], bytes]) -> None:
        """Gather one chunk, if its stretch began where an event begins; else decode it once more."""
        if self._carry:
            data = self._carry + again(stretch)
            stretch = Stretch(stretch.offset - len(self._carry), len(data), None)
            chunk = self._decoder.decode(data)
        self._carry = b""
        if chunk.closed_at is not None:
            self._closed, self._tail_at = True, stretch.offset + chunk.closed_at
        elif chunk.rest < stretch.length:
            self._carry = again(stretch)[chunk.rest :]
        self.gathered.add(chunk)
        self.places.append(ChunkPlace(chunk.events, stretch.offset, chunk.rest, chunk.strict))

    def _finish(self, again: Callable[[Stretch], bytes]) -> None:
        """Decode what a lost worker left behind, and read the properties behind the list."""
        while not self._closed and self._next < len(self._stretches):
            stretch = self._stretches[self._next]
            chunk = self._waiting.pop(self._next, None) or self._decoder.decode(again(stretch))
            self._take(chunk, stretch, again)
            self._next += 1
        if not self._closed:
            self.truncated = True
            return
        end = self._stretches[-1].offset + self._stretches[-1].length
        text = again(Stretch(self._tail_at, end - self._tail_at, None))
        if self.is_list:
            return
        tail = layout.tail_properties(text)
        if tail is None or not text[1:].strip():
            self.truncated = True
        else:
            self.properties.update(tail)

    def _report(self, consumed: int) -> None:
        if self.options.cancelled is not None and self.options.cancelled():
            raise Cancelled(f"stopped reading {self.source.path}")
        if self.options.progress is None:
            return
        if self.source.wrapping == "plain":
            consumed = self._stretches[-1].offset + self._stretches[-1].length
        self.options.progress(min(consumed, self.source.size), self.source.size)
