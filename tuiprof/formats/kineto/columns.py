"""Events as they are decoded, and their columns, which a worker returns instead of one object per event.

Field names are those of the Trace Event Format document; Kineto adds the keys inside ``args``. Other fields stay in
the file and are read on demand for the raw event.

Times are microseconds in the file and become nanoseconds, exactly. The reference is decimal arithmetic: microseconds
times 1000, rounded half to even. A binary fraction near 1.7e15 µs (Unix time) has a spacing of 0.25 µs, so such stamps
are read from their text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import LIMIT_NS, Ints

#: Sentinel for a missing time or allocator number, until the table is built.
MISSING = -(1 << 63)
#: Sentinel for missing ids and sizes, which are never negative; a small number is faster to convert and to count.
NONE = -1

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint32]


# Lists of Python numbers are converted by ``struct``: it rejects values of another type, where numpy would truncate
# fractions or parse text, and is two to three times as fast as numpy or ``array``.


def integers(values: Sequence[Any]) -> Ints | None:
    """Return ints as an array; None if there are other values, or one is wider than 64 bits."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)
    except struct.error:
        return None


def floats(values: Sequence[Any]) -> Floats | None:
    """Return ints and floats as an array of doubles; None if there are other values."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), dtype=np.float64)
    except (struct.error, OverflowError):
        return None


def codes(values: Sequence[int]) -> Codes:
    """Return small non-negative ints as an array."""
    return np.frombuffer(struct.pack(f"{len(values)}I", *values), dtype=np.uint32)


_LIMIT_US = LIMIT_NS // 1000
_DOT, _MINUS, _ZERO = ord("."), ord("-"), ord("0")
_WIDEST = 24  # characters of a plain number; longer ones go the slow way


def ns_from_numbers(values: Sequence[object]) -> Ints | None:
    """Convert JSON numbers, microseconds, to ns; None unless all are provably exact (use :func:`ns_from_text`)."""
    whole = integers(values)
    if whole is None:
        return _from_floats(values)
    if len(whole) and max(int(whole.max()), -int(whole.min())) >= _LIMIT_US:
        return None
    return whole * 1000


def _from_floats(values: Sequence[object]) -> Ints | None:
    """Convert floats (or a mixture with ints).

    A double differs from the decimal it was read from by at most half its spacing. Where that cannot move
    the rounded nanosecond, the result is proven.
    """
    us = floats(values)
    if us is None:
        return None
    whole = np.floor(us)
    scaled = (us - whole) * 1000.0  # the subtraction is exact
    rounded = np.rint(scaled)
    reach = np.spacing(np.abs(us)) * 500.0 + 1e-9  # half a spacing in ns, and the rounding of the product
    if not bool((np.abs(scaled - rounded) + reach < 0.5).all()):  # also False for NaN and infinity
        return None
    return whole.astype(np.int64) * 1000 + rounded.astype(np.int64)


def ns_from_text(texts: Sequence[bytes]) -> Ints:
    """Convert microseconds as text of JSON numbers or strings to ns; ``MISSING`` if there is no number in range."""
    ns = np.full(len(texts), MISSING, dtype=np.int64)
    if not len(texts):
        return ns
    padded = np.array(texts, dtype=np.bytes_)
    width = padded.dtype.itemsize
    slow = np.ones(len(texts), dtype=bool)
    if 0 < width <= _WIDEST:
        characters = padded.view(np.uint8).reshape(len(texts), width)
        alike = _alike(characters)
        if alike is not None:
            return alike
        plain, fast = _plain(characters)
        ns[plain] = fast[plain]
        slow = ~plain
    for i in np.flatnonzero(slow).tolist():
        ns[i] = _decimal(texts[i])
    return ns


def _alike(characters: npt.NDArray[np.uint8]) -> Ints | None:
    """Read positive numbers of the same number of digits before and after the point, in ns; None when they differ.

    Time stamps of one stretch have that, unless a power of ten is passed.
    """
    width = characters.shape[1]
    points = np.flatnonzero(characters[0] == _DOT)
    whole = int(points[0]) if len(points) else width
    decimals = max(width - whole - 1, 0)
    if not 0 < whole <= 16 or decimals > 3:
        return None
    columns = np.ascontiguousarray(np.delete(characters, points[:1], axis=1).T) - np.uint8(_ZERO)
    if (len(points) and not (characters[:, whole] == _DOT).all()) or not (columns <= 9).all():
        return None
    value = np.zeros(len(characters), dtype=np.uint64)
    for digits in columns:
        value = value * np.uint64(10) + digits
    value *= np.uint64(10 ** (3 - decimals))
    return value.astype(np.int64) if int(value.max()) < LIMIT_NS else None


def _plain(characters: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Read numbers of at most three decimals, column by column: which rows are such, and their ns."""
    n, width = characters.shape
    value = np.zeros(n, dtype=np.uint64)
    digits = np.zeros(n, dtype=np.int8)
    decimals = np.full(n, -1, dtype=np.int8)  # -1 = no point yet
    plain = np.ones(n, dtype=bool)
    negative = characters[:, 0] == _MINUS
    for column in range(width):
        character = np.ascontiguousarray(characters[:, column])
        digit = character - np.uint8(_ZERO)  # wraps around below "0"
        is_digit = digit <= 9
        is_dot = (character == _DOT) & (decimals < 0)
        value = np.where(is_digit, value * np.uint64(10) + digit, value)
        digits += is_digit
        decimals += is_digit & (decimals >= 0)
        decimals[is_dot] = 0
        known = is_digit | is_dot | (character == 0)
        plain &= known | negative if column == 0 else known
    decimals = np.maximum(decimals, 0)
    # At most 16 digits before the point and 3 after: below 1e19, which 64 unsigned bits hold.
    plain &= (digits > 0) & (decimals <= 3) & (digits - decimals <= 16)
    scale = np.array([1000, 100, 10, 1], dtype=np.uint64)[np.minimum(decimals, 3)]
    size = np.where(plain, value, np.uint64(0)) * scale
    plain &= size < np.uint64(LIMIT_NS)
    ns = np.where(plain, size, np.uint64(0)).astype(np.int64)
    return plain, np.where(negative, -ns, ns)


def _decimal(text: bytes) -> int:
    """Convert one number of any shape."""
    try:
        exact = Decimal(text.decode("ascii").strip('" \t\r\n'))
        if not exact.is_finite() or abs(exact) >= _LIMIT_US:
            return MISSING
        return int((exact * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, ValueError):
        return MISSING


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


class _Timeless(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None


class Event(_Timeless, gc=False):
    """One event with its times as numbers: exact for nearly every trace, and checked per value."""

    ts: Loose = None
    dur: Loose = None
    args: Args | None = NO_ARGS


class ExactEvent(_Timeless, gc=False):
    """One event with its times as text, for timestamps that a double cannot represent."""

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

    def take(self, keep: npt.NDArray[np.bool_] | Ints) -> Columns:
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
    """The distinct values of one chunk, numbered in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[object, int] = {}
        self.cats: dict[object, int] = {}  # category words
        self.lanes: dict[tuple[object, object], int] = {}  # (process, thread) pairs

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
    """Turn events into columns; raises Untimely if a time cannot be read exactly from the decoded number."""
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

    def read(key: str) -> Ints | None:
        return _numbers(list(map(attrgetter(key), arguments)))

    columns = {
        "external_id": _first(read("external_id"), read("external_id_lower")),
        "sequence": read("sequence"),
    }
    if linked:
        columns["correlation"] = _first(read("correlation"), read("connection_id"))
        columns |= {key: read(key) for key in ("device", "stream", "bytes")}
    if of_xla:
        columns["correlation"] = _first(columns.get("correlation"), read("correlation_id"))
        columns["step_num"] = read("step_num")
    return {key: column for key, column in columns.items() if column is not None}


def memory_numbers(instants: Sequence[Instant]) -> dict[str, Ints]:
    """Return the columns that exist only for instants."""
    arguments = [event.args or NO_MEMORY_ARGS for event in instants]
    columns = {key: _numbers(list(map(attrgetter(key), arguments)), MISSING) for key in MEMORY_NUMBERS}
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
