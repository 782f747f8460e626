"""Reads the events of one file: cuts, decodes on as many cores as pay, and gathers in order."""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.errors import TraceError
from tuiprof.formats.kineto import layout
from tuiprof.formats.kineto.columns import MEMORY_NUMBERS, MISSING, NONE, NUMBERS, Codes, Columns, Identity
from tuiprof.formats.kineto.decode import (
    Chunk,
    ChunkDecoder,
    Communication,
    EventWait,
    Rare,
    mend_event,
    split_events,
    strict_events,
)
from tuiprof.formats.kineto.layout import LONGEST, Inflow, Stretch, plan
from tuiprof.formats.kineto.pool import Pool, WorkerLost, read_at
from tuiprof.formats.registry import Cancelled, Options
from tuiprof.formats.source import Damaged, Source, Stream
from tuiprof.system.own_process import available_bytes

if TYPE_CHECKING:
    from tuiprof.model.trust import ReadStats

#: Largest code of a category, which fills two bytes.
_MAX_CATEGORIES: Final = 0xFFFF


class Column:
    """A growing column; its buffer grows with it, so no concatenation is needed later."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._bytes = bytearray()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values."""
        self._bytes += np.ascontiguousarray(values, dtype=self._dtype).data.cast("B")

    def values(self) -> npt.NDArray[Any]:
        """Return a view of the values, which must be released before the column grows again."""
        return np.frombuffer(self._bytes, dtype=self._dtype)


class Rows:
    """The events of one shape."""

    def __init__(self, numbers: Sequence[str], missing: int) -> None:
        self._missing = missing
        self._number_names = numbers
        self._empty()

    def _empty(self) -> None:
        self.length = 0
        self._numbers: dict[str, Column] = {}
        self._ts, self._dur = Column(np.int64), Column(np.int64)
        self._ordinal, self._name, self._lane = Column(np.uint32), Column(np.uint32), Column(np.uint32)
        self._cat, self._phase = Column(np.uint16), Column(np.uint8)

    def append(self, columns: Columns, first: int, names: Codes, cats: Codes, lanes: Codes) -> None:
        """Add the events of a chunk."""
        count = len(columns)
        if not count:
            return
        self._ts.append(columns.ts)
        if columns.dur is not None:
            self._dur.append(columns.dur)
        if columns.phase is not None:
            self._phase.append(columns.phase)
        self._ordinal.append(columns.ordinal + np.uint32(first))
        self._name.append(names[columns.name])
        self._cat.append(cats[columns.cat])
        self._lane.append(lanes[columns.lane])
        for key in self._number_names:
            column = columns.numbers.get(key)
            if column is None:
                if key in self._numbers:
                    self._numbers[key].append(np.full(count, self._missing, dtype=np.int64))
                continue
            if key not in self._numbers:
                self._numbers[key] = Column(np.int64)
                self._numbers[key].append(np.full(self.length, self._missing, dtype=np.int64))
            self._numbers[key].append(column)
        self.length += count

    def columns(self, *, give_away: bool) -> Columns:
        """Return views of all columns."""
        dur, phase = self._dur.values(), self._phase.values()
        columns = Columns(
            self._ordinal.values(),
            self._ts.values(),
            dur if len(dur) == self.length else None,
            self._name.values(),
            self._cat.values(),
            self._lane.values(),
            {key: column.values() for key, column in self._numbers.items()},
            phase if len(phase) == self.length else None,
        )
        if give_away:
            self._empty()
        return columns


class Gathered:
    """All chunks so far."""

    def __init__(self) -> None:
        self.communications: list[Communication] = []  # what events say of process groups
        self.event_waits: list[EventWait] = []  # waits for device events
        self.spans = Rows(NUMBERS, NONE)  # complete events
        self.pairs = Rows(NUMBERS, NONE)  # begin and end events
        self.instants = Rows(MEMORY_NUMBERS, MISSING)  # events without length
        #: Events that were decoded whole; ``ordinal`` is their position in the file.
        self.rare: list[Rare] = []
        self.events = self.malformed = self.repaired = 0  # numbers of events, of every phase
        self._phases: Counter[str] = Counter()
        self._names: dict[str, int] = {}
        self._cats: dict[str, int] = {}
        self._lanes: dict[tuple[Identity, Identity], int] = {}

    @property
    def names(self) -> list[str]:
        """Names by code."""
        return list(self._names)

    @property
    def cats(self) -> list[str]:
        """Category words by code."""
        return list(self._cats)

    @property
    def lanes(self) -> list[tuple[Identity, Identity]]:
        """(process, thread) by code."""
        return list(self._lanes)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of the file."""
        codes = (
            np.array([self._names.setdefault(w, len(self._names)) for w in chunk.names], dtype=np.uint32),
            np.array([self.code_of_cat(word) for word in chunk.cats], dtype=np.uint32),
            np.array([self._lanes.setdefault(w, len(self._lanes)) for w in chunk.lanes], dtype=np.uint32),
        )
        self.spans.append(chunk.spans, self.events, *codes)
        self.pairs.append(chunk.pairs, self.events, *codes)
        self.instants.append(chunk.instants, self.events, *codes)
        for event in chunk.rare:
            event.ordinal += self.events
        self.rare += chunk.rare
        self.communications += chunk.communications
        self.event_waits += chunk.event_waits
        self._phases.update(chunk.phases)
        self.events += chunk.events
        self.malformed += chunk.malformed
        self.repaired += chunk.repaired

    def code_of_name(self, name: str) -> int:
        """Return the code of a name, adding it if necessary."""
        return self._names.setdefault(name, len(self._names))

    def code_of_cat(self, cat: str) -> int:
        """Return the code of a category word, adding it if necessary; the last code is for all further words."""
        return self._cats.setdefault(cat, min(len(self._cats), _MAX_CATEGORIES))

    def code_of_lane(self, pid: Identity, tid: Identity) -> int:
        """Return the code of a lane, adding it if necessary."""
        return self._lanes.setdefault((pid, tid), len(self._lanes))

    def count_into(self, stats: ReadStats) -> None:
        """Write the counts down."""
        stats.events, stats.phases = self.events, dict(self._phases.most_common())
        stats.malformed += self.malformed
        stats.repaired += self.repaired


class ChunkSpan(msgspec.Struct, array_like=True, frozen=True):
    """The location of a chunk."""

    events: int  # number of events in it
    offset: int  # its first byte in the decompressed file
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
        self._last: tuple[int, Sequence[bytes]] | None = None

    def saved(self) -> bytes:
        """Return what :meth:`restored` needs, for the cache."""
        return msgspec.msgpack.encode(self._chunks)

    @classmethod
    def restored(cls, source: Source, saved: bytes) -> RawChunks:
        """Return what was saved."""
        return cls(source, msgspec.msgpack.decode(saved, type=list[ChunkSpan]))

    def text(self, ordinal: int) -> str:
        """Return the text of an event; empty if the file was removed or has changed."""
        index = bisect_right(self._firsts, ordinal) - 1
        if not 0 <= index < len(self._chunks):
            return ""
        if self._last is None or self._last[0] != index:
            self._last = None  # freed before the next one is read
            self._last = index, self._events(self._chunks[index])
        events, position = self._last[1], ordinal - self._firsts[index]
        return bytes(events[position]).decode("utf-8", errors="replace") if position < len(events) else ""

    def _events(self, chunk: ChunkSpan) -> Sequence[bytes]:
        try:
            data = self._source.extract(chunk.offset, chunk.length)
        except (OSError, Damaged, TraceError):
            return []  # the file was moved or overwritten: the raw text is lost
        if chunk.strict and len(found := strict_events(data)) == chunk.events:
            return found
        texts = [data[start:stop] for start, stop in split_events(data).slices]
        if not chunk.strict:
            return [text for text in texts if mend_event(text) is not None]
        # Damage in unread arguments: return none rather than the text of a neighbor.
        return texts if len(texts) == chunk.events else []


#: Interval in events between checks of free memory, and bytes per event in the table.
_LOOK_EVERY = 4_000_000
_TABLE_BYTES = 100


class EventReader:
    """Reads the events of one file, with a worker pool if there is one."""

    def __init__(self, source: Source, options: Options, pool: Pool | None) -> None:
        self.source, self.options, self._pool = source, options, pool
        self.gathered = Gathered()  # the events, in file order
        self.chunks: list[ChunkSpan] = []  # where each chunk is in the file
        self.properties: dict[str, Any] = {}  # top-level properties around the events
        self.is_list = False  # whether the file is a bare list
        self.truncated = False  # whether the list does not end
        self.damage: str | None = None  # why the compressed stream ended early; None = it did not
        #: Offset of an event, or of text after the list, that exceeds the size limit; None = none.
        self.overlong_at: int | None = None
        self._decoder = ChunkDecoder()
        self._stretches: list[Stretch] = []
        self._waiting: dict[int, Chunk] = {}
        self._next = 0  # the first stretch that is not gathered
        self._carry = b""  # the beginning of an event that ends in a later stretch
        self._tried = 0  # how much of it was decoded without success
        self._closed, self._tail_at = False, 0
        self._looked = 0  # number of events at the last check of free memory

    def read(self, meanwhile: Callable[[], None]) -> int:
        """Read to the end and return the size of the decompressed file, bytes.

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
            for number, chunk in self._decoded(cut, again):
                self._waiting[number] = chunk
                self._gather(again)
                self._report(stream.consumed)
                meanwhile()
                if self.overlong_at is not None:
                    break
            self._finish(again, complete=self._all_cut() if plain else inflow.ended)
            self.damage = inflow.damage
            return self.source.size if plain else stream.at

    def _decoded(
        self, cut: Iterator[Stretch], again: Callable[[Stretch], bytes]
    ) -> Iterator[tuple[int, Chunk]]:
        """Yield decoded stretches, in the order in which they get ready."""
        pool = self._pool

        def decoded(stretch: Stretch) -> Chunk:
            return self._decoder.decode(again(stretch) if stretch.data is None else stretch.data)

        try:
            for number, stretch in enumerate(cut):
                self._stretches.append(stretch._replace(data=None))
                # The first is decoded here, to be shown while the workers start.
                if number and pool is not None and pool.offer(number, stretch):
                    yield from pool.answers(0)
                    continue
                if number:  # Needed at the end, and slow to load: now that the others have enough to do.
                    importlib.import_module("polars")
                yield number, decoded(stretch)
                if pool is not None:
                    yield from pool.answers(0)
            while pool is not None and pool.busy:
                yield from pool.answers(None)
        except WorkerLost:
            # A worker was killed: what it held is decoded here once the rest is through.
            for number, stretch in enumerate(cut, len(self._stretches)):
                self._stretches.append(stretch._replace(data=None))
                yield number, decoded(stretch)

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
        ):  # retried only after doubling: an event of n bytes costs n, not n²
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
        """Decode what a lost worker did not, and read the properties after the list."""
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
