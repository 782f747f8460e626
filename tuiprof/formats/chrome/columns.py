"""Turns a stretch of events into columns: what a worker hands back instead of one object an event."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.formats.chrome import clock
from tuiprof.formats.chrome.arrays import Codes, Ints, codes, integers
from tuiprof.formats.chrome.events import (
    MISSING,
    NO_ARGS,
    NO_MEMORY_ARGS,
    NONE,
    AnyEvent,
    ExactEvent,
    Instant,
    Loose,
)

#: Integer columns beside the times, in the order of the event table; None in a chunk = missing throughout.
NUMBERS = ("device", "stream", "correlation", "external_id", "bytes")
#: What instants of the memory allocator add.
MEMORY_NUMBERS = ("bytes", "address", "total_allocated", "total_reserved", "device_type", "device")


class Untimely(Exception):
    """Some time of this stretch must be read from its text."""


class Codebook(dict[object, int]):
    """Numbers distinct values in order of appearance."""

    def __missing__(self, key: object) -> int:
        code = self[key] = len(self)
        return code

    def words(self) -> list[str]:
        """Return the values in order of their codes, as text; a missing one is empty."""
        return ["" if key is None else str(key) for key in self]


class Columns(msgspec.Struct):
    """Events of one shape as columns; codes index into the lists of the chunk.

    Attributes:
        ordinal: Position of each event in its chunk.
        ts: Start in ns on the clock of the file; MISSING = none.
        dur: Length in ns; MISSING = none. None = no such column.
        name: Codes into the chunk's names.
        cat: Codes into the chunk's category words.
        lane: Codes into the chunk's lanes.
        numbers: :data:`NUMBERS`, NONE = not said (or :data:`MEMORY_NUMBERS` for instants, MISSING = not said);
            absent = not said throughout.
        phase: Phase of each event as ASCII, where they differ.
    """

    ordinal: Codes
    ts: Ints
    dur: Ints | None
    name: Codes
    cat: Codes
    lane: Codes
    numbers: dict[str, Ints]
    phase: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.ts)

    def take(self, keep: npt.NDArray[np.bool_]) -> Columns:
        """Return some of the rows.

        Args:
            keep: Which, shape ``(len(self),)``.
        """
        return Columns(
            self.ordinal[keep],
            self.ts[keep],
            None if self.dur is None else self.dur[keep],
            self.name[keep],
            self.cat[keep],
            self.lane[keep],
            {key: column[keep] for key, column in self.numbers.items()},
            None if self.phase is None else self.phase[keep],
        )


class Books:
    """The codebooks of one chunk."""

    def __init__(self) -> None:
        self.names = Codebook()
        self.cats = Codebook()
        self.lanes: dict[tuple[object, object], int] = {}

    def lane_codes(self, pids: Sequence[object], tids: Sequence[object]) -> Codes:
        """Number the (process, thread) pairs; neighbours mostly share theirs, so runs of them are numbered.

        Args:
            pids: Process of each event.
            tids: Thread of each event.
        """
        book = self.lanes
        pid, tid = integers(pids), integers(tids)
        if pid is None or tid is None:  # text, or wider than 64 bits
            return codes([book.setdefault(lane, len(book)) for lane in zip(pids, tids, strict=True)])
        if not len(pid):
            return np.empty(0, dtype=np.uint32)
        starts = np.concatenate(([0], np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1))
        processes, process = np.unique(pid[starts], return_inverse=True)
        threads, thread = np.unique(tid[starts], return_inverse=True)
        pairs, run = np.unique(process * len(threads) + thread, return_inverse=True)
        found = [
            book.setdefault(lane, len(book))
            for lane in zip(
                processes[pairs // len(threads)].tolist(), threads[pairs % len(threads)].tolist(), strict=True
            )
        ]
        return np.repeat(codes(found)[run], np.diff(starts, append=len(pid)))

    def lane_list(self) -> list[tuple[int | str | None, int | str | None]]:
        """Return the lanes in order of their codes; numbers written as text are numbers."""
        return [(identity(pid), identity(tid)) for pid, tid in self.lanes]


def build(events: Sequence[AnyEvent], ordinals: Codes, books: Books, *, with_dur: bool = True) -> Columns:
    """Turn events into columns.

    Args:
        events: The events.
        ordinals: Position of each in its chunk.
        books: Codebooks to extend.
        with_dur: Whether the events have a length.

    Raises:
        Untimely: A time cannot be told exactly from the decoded number.
    """
    arguments = [event.args or NO_ARGS for event in events]
    external = _numbers([a.external_id for a in arguments])
    older = _numbers([a.external_id_lower for a in arguments])
    correlation = _numbers([a.correlation for a in arguments])
    connection = _numbers([a.connection_id for a in arguments])
    columns = {
        "device": _numbers([a.device for a in arguments]),
        "stream": _numbers([a.stream for a in arguments]),
        "correlation": _first(correlation, connection),
        "external_id": _first(external, older),
        "bytes": _numbers([a.bytes for a in arguments]),
    }
    return Columns(
        ordinals,
        _times([event.ts for event in events], events),
        _times([event.dur for event in events], events) if with_dur else None,
        _codes([event.name for event in events], books.names),
        _codes([event.cat for event in events], books.cats),
        books.lane_codes([event.pid for event in events], [event.tid for event in events]),
        {key: column for key, column in columns.items() if column is not None},
    )


def memory_numbers(instants: Sequence[Instant]) -> dict[str, Ints]:
    """Return the columns that only instants have.

    Args:
        instants: The events, decoded as instants.
    """
    arguments = [event.args or NO_MEMORY_ARGS for event in instants]
    columns = {
        "bytes": _numbers([a.bytes for a in arguments], MISSING),
        "address": _numbers([a.address for a in arguments], MISSING),
        "total_allocated": _numbers([a.total_allocated for a in arguments], MISSING),
        "total_reserved": _numbers([a.total_reserved for a in arguments], MISSING),
        "device_type": _numbers([a.device_type for a in arguments], MISSING),
        "device": _numbers([a.device for a in arguments], MISSING),
    }
    return {key: column for key, column in columns.items() if column is not None}


def _times(values: list[Loose | msgspec.Raw], events: Sequence[AnyEvent]) -> Ints:
    if events and isinstance(events[0], ExactEvent):
        return clock.from_text([bytes(value) for value in values])  # type: ignore[arg-type]
    converted = clock.from_numbers(values)
    if converted is None:
        raise Untimely
    return converted


def _codes(values: Sequence[object], book: Codebook) -> Codes:
    return codes([book[value] for value in values])


def _numbers(values: list[Loose], missing: int = NONE) -> Ints | None:
    """Return integers; None when all are missing."""
    if values.count(missing) == len(values):
        return None
    column = integers(values)
    if column is None:
        column = np.array([_integer(value, missing) for value in values], dtype=np.int64)
    return column


def _integer(value: Loose, missing: int) -> int:
    """Return a number however it is written; the stand-in when it is none, or wider than 64 bits."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return missing
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or not -(1 << 63) < value < 1 << 63:
        return missing
    return value


def _first(preferred: Ints | None, other: Ints | None) -> Ints | None:
    if preferred is None or other is None:
        return other if preferred is None else preferred
    return np.where(preferred == NONE, other, preferred)


def identity(value: object) -> int | str | None:
    """Return a process or thread; a number written as text is a number.

    Args:
        value: As decoded.
    """
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    return value if isinstance(value, int) else None
