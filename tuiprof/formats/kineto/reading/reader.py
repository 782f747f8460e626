"""Reads the events of one file: cuts, decodes on as many cores as pay, and gathers in order."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from tuiprof.errors import TraceError
from tuiprof.formats.kineto import layout
from tuiprof.formats.kineto.gather import Gathered
from tuiprof.formats.kineto.raw import ChunkSpan
from tuiprof.formats.kineto.reading.decode import Chunk, ChunkDecoder
from tuiprof.formats.kineto.reading.pool import Pool, WorkerLost
from tuiprof.formats.kineto.reading.stretches import LONGEST, Inflow, Stretch, plan
from tuiprof.formats.kineto.reading.worker import read_at
from tuiprof.formats.registry import Cancelled, Options
from tuiprof.formats.source import Source, Stream
from tuiprof.system.memory import available_bytes

#: Interval in events between checks of free memory, and bytes per event in the table.
_LOOK_EVERY = 4_000_000
_TABLE_BYTES = 100


class EventReader:
    """Reads the events of one file, with a worker pool if there is one.

    Attributes:
        gathered: The events, in file order.
        chunks: Where each chunk is in the file.
        properties: Top-level properties around the events.
        is_list: Whether the file is a bare list.
        truncated: Whether the list does not end.
        damage: Why the compressed stream ended early; None = it did not.
        overlong_at: Offset of an event, or of text after the list, that exceeds the size limit; None = none.
    """

    def __init__(self, source: Source, options: Options, pool: Pool | None) -> None:
        self.source, self.options, self._pool = source, options, pool
        self.gathered = Gathered()
        self.chunks: list[ChunkSpan] = []
        self.properties: dict[str, Any] = {}
        self.is_list = self.truncated = False
        self.damage: str | None = None
        self.overlong_at: int | None = None
        self._decoder = ChunkDecoder()
        self._stretches: list[Stretch] = []
        self._waiting: dict[int, Chunk] = {}
        self._next = 0  # the first stretch that is not gathered
        self._carry = b""  # the beginning of an event whose end lies in a later stretch
        self._tried = 0  # how much of it was decoded without success
        self._closed, self._tail_at = False, 0
        self._looked = 0  # events when memory was looked at last

    def read(self, meanwhile: Callable[[], None]) -> int:
        """Read to the end and return the size of the unwrapped file, bytes.

        Raises:
            NotATrace: There is no list of events in it.
            TraceError: It decompresses to more than the limit, or cannot be read.
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
                if self.overlong_at is not None:
                    break
            self._finish(again, complete=self._all_cut() if plain else inflow.ended)
            self.damage = inflow.damage
            return self.source.size if plain else stream.at

    def _decoded(self, cut: Iterator[Stretch], stream: Stream) -> Iterator[tuple[int, Chunk]]:
        """Yield decoded stretches, in the order in which they get ready."""
        pool = self._pool
        try:
            for number, stretch in enumerate(cut):
                self._stretches.append(stretch._replace(data=None))
                # The first is decoded here, to be shown while the workers start.
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

    def _all_cut(self) -> bool:
        last = self._stretches[-1] if self._stretches else None
        return last is None or last.offset + last.length >= self.source.size

    def _take(self, chunk: Chunk, stretch: Stretch, again: Callable[[Stretch], bytes]) -> None:
        """Gather one chunk, if its stretch began where an event begins; else decode it with what is before it."""
        if not self._carry:
            self._settle(chunk, stretch, again)
            return
        self._carry += again(stretch)
        whole = Stretch(stretch.offset + stretch.length - len(self._carry), len(self._carry), None)
        if whole.length > LONGEST:
            self.overlong_at = whole.offset
        elif (
            whole.length >= 2 * self._tried
        ):  # retry only after doubling, so an event of n bytes costs n, not n²
            self._settle(self._decoder.decode(self._carry), whole, again)

    def _settle(self, chunk: Chunk, stretch: Stretch, again: Callable[[Stretch], bytes]) -> None:
        """Gather a chunk of a stretch that begins where an event begins, and keep what it leaves."""
        carry = b""
        if chunk.closed_at is not None:
            self._closed, self._tail_at = True, stretch.offset + chunk.closed_at
        elif chunk.rest < stretch.length:
            carry = (self._carry or again(stretch))[chunk.rest :]
        self._tried = stretch.length if self._carry and not chunk.rest else 0
        self._carry = carry
        self.gathered.add(chunk)
        self.chunks.append(ChunkSpan(chunk.events, stretch.offset, chunk.rest, chunk.strict))
        if self.gathered.events >= self._looked + _LOOK_EVERY:
            self._looked = self.gathered.events
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        """Reject a file before memory runs out, as a training job may be running on this machine."""
        free, events = available_bytes(), self.gathered.events
        if free < events * _TABLE_BYTES:
            raise TraceError(
                f"{self.source.path} does not fit into memory: {events:,} events were read, and {free >> 20:,} MiB are "
                "free",
                "open it on a machine with more memory, or record fewer steps",
            )

    def _finish(self, again: Callable[[Stretch], bytes], *, complete: bool) -> None:
        """Decode what a lost worker left behind, and read the properties behind the list."""
        while not self._closed and self._next < len(self._stretches) and self.overlong_at is None:
            stretch = self._stretches[self._next]
            chunk = self._waiting.pop(self._next, None) or self._decoder.decode(again(stretch))
            self._take(chunk, stretch, again)
            self._next += 1
        if self._carry and self._tried and self.overlong_at is None:  # no more will come
            end = self._stretches[-1].offset + self._stretches[-1].length
            whole = Stretch(end - len(self._carry), len(self._carry), None)
            self._settle(self._decoder.decode(self._carry), whole, again)
        if not complete and self.overlong_at is None:
            self.overlong_at = self._stretches[-1].offset
        if not self._closed:
            self.truncated = True
            return
        if self.overlong_at is not None:
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
