"""Events as they are decoded, and their columns, which a worker returns instead of one object per event.

Field names are those of the Trace Event Format document; Kineto adds the keys inside ``args``. Other fields stay in
the file and are read on demand for the raw event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.formats.kineto.numbers import (
    MISSING,
    NONE,
    Codes,
    Ints,
    codes,
    integers,
    ns_from_numbers,
    ns_from_text,
)

#: Accepted types of a number. Tools write ids as text; non-numeric text is MISSING.
Loose = int | float | str | None
#: A process or a thread, as :func:`identity` returns it.
Identity = int | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that become columns."""

    correlation: Loose = NONE
    external_id: Loose = msgspec.field(default=NONE, name="External id")
    # PyTorch 1.8 to 1.10 wrote it in lower case on runtime calls and device work.
    external_id_lower: Loose = msgspec.field(default=NONE, name="external id")
    sequence: Loose = msgspec.field(default=NONE, name="Sequence number")
    # Ascend's msprof: joins a CANN call with the task it launched.
    connection_id: Loose = NONE
    # XLA's profilers (JAX) write both as text.
    correlation_id: Loose = NONE
    step_num: Loose = NONE
    stream: Loose = NONE
    device: Loose = NONE
    bytes: Loose = NONE


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of Kineto's ``[memory]`` instants."""

    bytes: Loose = msgspec.field(default=MISSING, name="Bytes")
    address: Loose = msgspec.field(default=MISSING, name="Addr")
    total_allocated: Loose = msgspec.field(default=MISSING, name="Total Allocated")
    total_reserved: Loose = msgspec.field(default=MISSING, name="Total Reserved")
    device_type: Loose = msgspec.field(default=MISSING, name="Device Type")
    device: Loose = msgspec.field(default=MISSING, name="Device Id")


NO_ARGS = Args()
NO_MEMORY_ARGS = MemoryArgs()


class Event(msgspec.Struct, gc=False):
    """One event with its times as numbers: exact for nearly every trace, and checked per value."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: Loose = None
    dur: Loose = None
    args: Args | None = NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
    """One event with its times as text, for timestamps that a double cannot represent."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = NO_ARGS


class Instant(msgspec.Struct, gc=False):
    """Fields of events without a duration."""

    args: MemoryArgs | None = NO_MEMORY_ARGS


class Loosely(msgspec.Struct, gc=False):
    """An event of a rare kind (metadata, counters, asynchronous ranges) with all its arguments."""

    ts: msgspec.Raw = msgspec.Raw()
    id: int | str | float | None = None
    args: Any = None


AnyEvent = Event | ExactEvent

decode_events = msgspec.json.Decoder(list[Event]).decode
decode_exact_events = msgspec.json.Decoder(list[ExactEvent]).decode
decode_pieces = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_exact_event = msgspec.json.Decoder(ExactEvent).decode
decode_instant = msgspec.json.Decoder(Instant).decode
decode_loosely = msgspec.json.Decoder(Loosely).decode


#: Integer columns besides the times: those of the event table, and the number that marks a step.
NUMBERS = ("device", "stream", "correlation", "external_id", "sequence", "bytes", "step_num")
#: Additional columns of memory allocator instants.
MEMORY_NUMBERS = ("bytes", "address", "total_allocated", "total_reserved", "device_type", "device")


#: Categories of Kineto whose events have no device, stream or size.
_ON_HOST = {"cpu_op", "Operator", "python_function", "user_annotation", "Trace"}


class Untimely(Exception):
    """Some time of this stretch must be read from its text."""


class Columns(msgspec.Struct):
    """Events of one shape as columns; codes index into the lists of the chunk."""

    ordinal: Codes  # position of each event in its chunk
    ts: Ints  # start in ns on the clock of the file; MISSING = none
    dur: Ints | None  # Length in ns; MISSING = none. None = no such column.
    name: Codes  # codes into the chunk's names
    cat: Codes  # codes into the chunk's category words
    lane: Codes  # codes into the chunk's lanes
    #: :data:`NUMBERS`, NONE = missing (or :data:`MEMORY_NUMBERS` for instants, MISSING = missing); no column if all
    #: are missing.
    numbers: dict[str, Ints]
    phase: npt.NDArray[np.uint8] | None = None  # phase of each event as ASCII, where they differ

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.ts)

    def take(self, keep: npt.NDArray[np.bool_]) -> Columns:
        """Return some of the rows."""
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

    def joined(self, other: Columns) -> Columns:
        """Return these events followed by others; both use the same codebooks."""
        numbers = {}
        for key in self.numbers.keys() | other.numbers.keys():
            numbers[key] = np.concatenate(
                [part.numbers.get(key, np.full(len(part), NONE, dtype=np.int64)) for part in (self, other)]
            )
        assert self.dur is not None
        assert other.dur is not None
        return Columns(
            np.concatenate((self.ordinal, other.ordinal)),
            np.concatenate((self.ts, other.ts)),
            np.concatenate((self.dur, other.dur)),
            np.concatenate((self.name, other.name)),
            np.concatenate((self.cat, other.cat)),
            np.concatenate((self.lane, other.lane)),
            numbers,
        )


class Books:
    """The distinct values of one chunk, numbered in order of appearance.

    Attributes:
        names: Names.
        cats: Category words.
        lanes: (process, thread) pairs.
    """

    def __init__(self) -> None:
        self.names: dict[object, int] = {}
        self.cats: dict[object, int] = {}
        self.lanes: dict[tuple[object, object], int] = {}

    def lane_codes(self, pids: list[Any], tids: list[Any]) -> Codes:
        """Number the (process, thread) pairs."""
        book = self.lanes
        if not pids:
            return np.empty(0, dtype=np.uint32)
        pid, tid = integers(pids), integers(tids)
        if pid is None or tid is None:  # text, or wider than 64 bits
            return codes([book.setdefault(lane, len(book)) for lane in zip(pids, tids, strict=True)])
        # Neighbors mostly share their lane: number runs of them.
        starts = np.flatnonzero(np.append(True, (tid[1:] != tid[:-1]) | (pid[1:] != pid[:-1])))
        runs = list(zip(pid[starts].tolist(), tid[starts].tolist(), strict=True))
        for lane in dict.fromkeys(runs):
            book.setdefault(lane, len(book))
        return np.repeat(codes([book[lane] for lane in runs]), np.diff(starts, append=len(pid)))

    def lane_list(self) -> list[tuple[Identity, Identity]]:
        """Return the lanes in order of their codes; numbers written as text are numbers."""
        return [(identity(pid), identity(tid)) for pid, tid in self.lanes]


def build(
    events: Sequence[AnyEvent],
    ordinals: Codes,
    books: Books,
    *,
    with_dur: bool = True,
    linked: bool = True,
    of_xla: bool = False,
) -> Columns:
    """Turn events into columns.

    Raises:
        Untimely: A time cannot be read exactly from the decoded number.
    """
    cats = _codes([event.cat for event in events], books.cats)
    return Columns(
        ordinals,
        _times([event.ts for event in events], events),
        _times([event.dur for event in events], events) if with_dur else None,
        _codes([event.name for event in events], books.names),
        cats,
        books.lane_codes([event.pid for event in events], [event.tid for event in events]),
        _arguments(events, linked or not books.cats.keys() <= _ON_HOST, of_xla),
    )


def _arguments(events: Sequence[AnyEvent], linked: bool, of_xla: bool) -> dict[str, Ints]:
    arguments = [event.args or NO_ARGS for event in events]
    external = _numbers([a.external_id for a in arguments])
    older = _numbers([a.external_id_lower for a in arguments])
    columns = {"external_id": _first(external, older), "sequence": _numbers([a.sequence for a in arguments])}
    if linked:
        correlation = _numbers([a.correlation for a in arguments])
        connection = _numbers([a.connection_id for a in arguments])
        columns["correlation"] = _first(correlation, connection)
        columns["device"] = _numbers([a.device for a in arguments])
        columns["stream"] = _numbers([a.stream for a in arguments])
        columns["bytes"] = _numbers([a.bytes for a in arguments])
    if of_xla:
        of_call = _numbers([a.correlation_id for a in arguments])
        columns["correlation"] = _first(columns.get("correlation"), of_call)
        columns["step_num"] = _numbers([a.step_num for a in arguments])
    return {key: column for key, column in columns.items() if column is not None}


def memory_numbers(instants: Sequence[Instant]) -> dict[str, Ints]:
    """Return the columns that exist only for instants."""
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
        return ns_from_text([bytes(value) for value in values])  # type: ignore[arg-type]
    converted = ns_from_numbers(values)
    if converted is None:
        raise Untimely
    return converted


def _codes(values: list[Any], book: dict[object, int]) -> Codes:
    if values and values.count(values[0]) == len(values):
        return np.full(len(values), book.setdefault(values[0], len(book)), dtype=np.uint32)
    for value in dict.fromkeys(values):
        book.setdefault(value, len(book))
    return codes([book[value] for value in values])


def words(book: dict[object, int]) -> list[str]:
    """Return the values of a codebook in order of their codes, as text; a missing one is empty."""
    return ["" if key is None else str(key) for key in book]


def _numbers(values: list[Loose], missing: int = NONE) -> Ints | None:
    """Return integers; None when all are missing."""
    if values.count(missing) == len(values):
        return None
    column = integers(values)
    if column is None:
        column = np.array([_integer(value, missing) for value in values], dtype=np.int64)
    return column


def _integer(value: Loose, missing: int) -> int:
    """Return a number in any notation; the default if it is not a number, or wider than 64 bits."""
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


def identity(value: object) -> Identity:
    """Return a process or thread; a number written as text is a number."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    return value if isinstance(value, int) else None
