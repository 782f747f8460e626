"""Decodes one chunk of a list of events into columns. Runs in the reader and in its worker processes.

A chunk that is not valid JSON, and the chunk in which the list ends, are decoded event by event, which is slow, and
without losing the events next to a broken one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.formats.kineto import columns, layout
from tuiprof.formats.kineto.lines import LineReader, Lines

T = TypeVar("T")

_SEPARATORS = re.compile(rb"[ \t\r\n,]*")
_LIST_ENDS = re.compile(rb"\}[ \t\r\n]*\]")
#: Where the search for the end of the list starts, bytes from the end of the last chunk.
_LONG_TAIL = 1 << 16
_X = ord("X")


def _among(letters: bytes) -> npt.NDArray[np.bool_]:
    """Return which of all phases are among these, by ASCII."""
    table = np.zeros(256, dtype=bool)
    table[list(letters)] = True
    return table


_NO_EVENTS = columns.build([], np.empty(0, dtype=np.uint32), columns.Books(), with_dur=False)
_INSTANTS, _PAIRS, _RARE = _among(b"iIRnP"), _among(b"BE"), _among(b"MCbe")


_GROUP_KEY, _RECORD_KEY = b'"Process Group Name"', b'"wait_on_cuda_event_record_corr_id"'
#: Maximum length of the arguments of one event, bytes.
_LONGEST_ARGUMENTS = 1 << 16
_Number = int | float | str | None
_Correlation = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Stream = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
#: Bytes of an element, by PyTorch's name of its type.
_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}


class Communication(msgspec.Struct, array_like=True):
    """The process group in the arguments of one event."""

    correlation: int | None  # links a kernel with its launch; None = an operator
    external_id: int | None  # its operator, or the one that launched it
    group: str  # name of the process group, unique among the groups of a rank
    description: str  # what the framework calls it, as ``mesh_dp``
    ranks: str  # its global ranks as written; PyTorch leaves out the middle of a long list
    size: int | None  # number of its ranks; None = not recorded
    bytes: int | None  # of the message, the larger of input and output; None = not recorded


class _Arguments(msgspec.Struct):
    group: int | str = msgspec.field(name="Process Group Name")
    correlation: _Number = None
    external_id: _Number = msgspec.field(name="External id", default=None)
    description: str = msgspec.field(name="Process Group Description", default="")
    ranks: str | list[int] = msgspec.field(name="Process Group Ranks", default="")
    size: _Number = msgspec.field(name="Group size", default=None)
    inputs: _Number = msgspec.field(name="In msg nelems", default=None)
    outputs: _Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: object = None

    @property
    def bytes(self) -> int | None:
        """Bytes of the message; None = not recorded."""
        count = max(_id_or_none(self.inputs) or 0, _id_or_none(self.outputs) or 0)
        wide = _BYTES.get(self.dtype, 0) if isinstance(self.dtype, str) else 0
        return _id_or_none(count * wide) or None


class EventWait(msgspec.Struct, array_like=True):
    """A wait for a device event: of a stream for another one, or of the host."""

    correlation: int  # of the call that waits
    record: int  # correlation of the call that recorded the event
    recorded_on: int  # the stream that it was recorded on
    stream: int | None  # the stream that waits; None = the host


class _WaitArguments(msgspec.Struct):
    correlation: _Correlation
    record: _Correlation = msgspec.field(name="wait_on_cuda_event_record_corr_id")
    recorded_on: _Stream = msgspec.field(name="wait_on_stream")
    stream: int = -1


_decode_arguments = msgspec.json.Decoder(_Arguments).decode
_decode_wait = msgspec.json.Decoder(_WaitArguments).decode
#: What Kineto writes as the stream of a call that waits on the host.
_HOST = (-1, 0xFFFFFFFF)


def find_communications(data: bytes, end: int) -> list[Communication]:
    """Return the process groups of the events in a text whose last complete event ends at ``end``.

    PyTorch writes them into the arguments of collective kernels, which have a correlation, and of the operator
    ``record_param_comms``, which has an external id.
    """
    return [
        Communication(
            _id_or_none(said.correlation),
            _id_or_none(said.external_id),
            str(said.group),
            said.description,
            said.ranks if isinstance(said.ranks, str) else str(said.ranks),
            _id_or_none(said.size),
            said.bytes,
        )
        for said in _arguments_with(_GROUP_KEY, data, end, _decode_arguments)
    ]


def find_event_waits(data: bytes, end: int) -> list[EventWait]:
    """Return the waits for events in a text whose last complete event ends at ``end``.

    PyTorch writes them if ``enable_cuda_sync_events`` is set (``torch._C._profiler._ExperimentalConfig``). Since CUDA
    12.9 it does not know which event was recorded (pytorch/kineto pull request 1552); such waits are left out.
    """
    return [
        EventWait(
            said.correlation, said.record, said.recorded_on, None if said.stream in _HOST else said.stream
        )
        for said in _arguments_with(_RECORD_KEY, data, end, _decode_wait)
    ]


def _arguments_with(key: bytes, data: bytes, end: int, decode: Callable[[bytes], T]) -> Iterator[T]:
    """Yield the arguments that have a key, from the text itself: independent of the decoder of events."""
    at = data.find(key, 0, end)
    while at >= 0:
        start = data.find(b"{", max(data.rfind(b'"args"', max(0, at - _LONGEST_ARGUMENTS), at), 0), at)
        stop = data.find(b"}", at, at + _LONGEST_ARGUMENTS) + 1
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # not arguments as PyTorch writes them
            yield decode(data[start:stop])
        at = data.find(key, at + len(key), end)


def _id_or_none(value: _Number) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


class Rare(msgspec.Struct):
    """An event of a kind that is decoded whole: metadata (M), counters (C), asynchronous ranges (b, e)."""

    ordinal: int  # its position in the chunk
    phase: str
    name: str
    cat: str  # its category word
    pid: columns.Identity  # its process
    tid: columns.Identity  # its thread
    ts: int | None  # its time in ns on the clock of the file; None = missing
    id: str  # what joins asynchronous events
    args: object  # its arguments as decoded


class Chunk(msgspec.Struct):
    """What one chunk holds."""

    events: int  # number of events in it, of every phase
    phases: dict[str, int]  # their number by phase; the phase of an event without one is ``"?"``
    names: list[str]  # names by code
    cats: list[str]  # category words by code
    lanes: list[tuple[columns.Identity, columns.Identity]]  # (process, thread) by code
    spans: columns.Columns  # complete events (X)
    pairs: columns.Columns  # begin and end events (B, E), in file order
    instants: columns.Columns  # events without length
    rare: list[Rare]  # events that are decoded whole
    #: The process groups in the arguments of its events.
    communications: list[Communication] = msgspec.field(default_factory=list)
    event_waits: list[EventWait] = msgspec.field(default_factory=list)  # waits for device events
    malformed: int = 0  # stretches without an event, and events without time
    repaired: int = 0  # events kept after a repair
    strict: bool = True  # whether the chunk is plain JSON; then its n-th value is its n-th event
    closed_at: int | None = None  # where in the chunk the list ends; None = not here
    rest: int = 0  # where in the chunk the last, incomplete event begins; its length when there is none


class ChunkDecoder:
    """Decodes chunks, and remembers the precision required for the times of this file."""

    def __init__(self) -> None:
        self._exactly = False
        self._lines = LineReader()

    def decode(self, data: bytes) -> Chunk:
        """Decode comma-separated events (with an optional leading comma); never raises because of the content."""
        chunk = self._strictly(data)
        if chunk is None:
            chunk = self._patiently(data)
        chunk.communications = find_communications(data, chunk.rest)
        if "cuda_sync" in chunk.cats:
            chunk.event_waits = find_event_waits(data, chunk.rest)
        return chunk

    def _strictly(self, data: bytes) -> Chunk | None:
        """Decode plain JSON; None if it is invalid."""
        try:
            if not self._exactly:
                try:
                    return self._read(data, columns.decode_events)
                except columns.Untimely:
                    self._exactly = True
            return self._read(data, columns.decode_exact_events)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    def _read(self, data: bytes, decode: Callable[[bytes], Sequence[columns.AnyEvent]]) -> Chunk:
        """Read events in libkineto's line format, and decode the rest."""
        books = columns.Books()
        lines = self._lines.read(data, books)
        if lines is None:
            # A chunk begins right after an event, with the comma.
            first = _SEPARATORS.match(data).end()  # type: ignore[union-attr]
            listed = b"".join((b"[", memoryview(data)[first:], b"]"))
            return _chunk(decode(listed), listed, len(data), columns.Books())
        if not lines.texts:
            return _plain(lines, books, len(data))
        listed = b"[%b]" % b",".join(lines.texts)
        chunk = _chunk(decode(listed), listed, len(data), books, lines.others)
        chunk.spans = chunk.spans.joined(lines.spans) if len(chunk.spans) else lines.spans
        chunk.events = lines.events
        for phase, count in lines.phases.items():
            chunk.phases[phase] = chunk.phases.get(phase, 0) + count
        return chunk

    def _patiently(self, data: bytes) -> Chunk:
        """Decode a stretch that is not, or not only, valid events."""
        end = _end_of_list(data)
        if end is not None:
            # The last chunk of a sound file: events, the end of the list, properties.
            chunk = self._strictly(data[:end])
            if chunk is not None:
                chunk.closed_at = chunk.rest = end
                return chunk
        pieces = split_events(data if end is None else data[:end])
        if end is not None:
            pieces.damaged += pieces.rest < end
            pieces.closed_at = pieces.rest = end
        if pieces.slices and not pieces.damaged:
            # Valid events, followed by the end of the list or by a truncated event.
            chunk = self._strictly(data[: pieces.slices[-1][1]])
            if chunk is not None:
                chunk.closed_at, chunk.rest = pieces.closed_at, pieces.rest
                return chunk
        return self._mended(data, pieces)

    def _mended(self, data: bytes, pieces: Pieces) -> Chunk:
        """Decode event by event, repairing if necessary."""
        texts: list[bytes] = []
        malformed, repaired = pieces.damaged, 0
        for start, stop in pieces.slices:
            text = data[start:stop]
            mended = mend_event(text)
            if mended is None:
                malformed += 1
                continue
            repaired += mended is not text
            texts.append(mended)
        chunk = self._strictly(b",".join(texts))
        assert chunk is not None, "repaired events decode one by one, so they also decode together"
        chunk.malformed += malformed
        chunk.repaired += repaired
        chunk.strict = False
        chunk.closed_at, chunk.rest = pieces.closed_at, pieces.rest
        return chunk


def _end_of_list(data: bytes) -> int | None:
    """Return the position of the ``]`` that ends the list, if a valid end of the file follows it."""
    for match in _LIST_ENDS.finditer(data, max(0, len(data) - _LONG_TAIL)):
        bracket = match.end() - 1
        if layout.tail_properties(data[bracket:], strict=True) is not None:
            return bracket
    return None


def _plain(lines: Lines, books: columns.Books, size: int) -> Chunk:
    """Return a chunk that consists of complete events and flows only, as most chunks do."""
    return Chunk(
        lines.events,
        lines.phases,
        columns.words(books.names),
        columns.words(books.cats),
        books.lane_list(),
        lines.spans,
        _NO_EVENTS,
        _NO_EVENTS,
        [],
        rest=size,
    )


def _chunk(
    events: Sequence[columns.AnyEvent],
    listed: bytes,
    size: int,
    books: columns.Books,
    positions: columns.Codes | None = None,
) -> Chunk:
    """Sort events by phase into columns; raises Untimely if a time cannot be read exactly from the decoded number."""
    phases = _phases(events)
    every = np.arange(len(events), dtype=np.uint32) if positions is None else positions
    if len(every) != len(events):
        raise msgspec.DecodeError("the number of events does not match their positions")

    def some(mask: npt.NDArray[np.bool_]) -> tuple[list[columns.AnyEvent], columns.Codes]:
        return list(compress(events, mask.tolist())), every[mask]

    is_span = phases == _X
    linked = b'"correlation"' in listed  # searching the text is faster than checking every event
    chosen, ordinals = (events, every) if is_span.all() else some(is_span)
    of_xla = b'"correlation_id"' in listed or b'"step_num"' in listed
    spans = columns.build(chosen, ordinals, books, linked=linked, of_xla=of_xla)
    counted = np.bincount(phases, minlength=256)
    is_pair, is_instant = _PAIRS[phases], _INSTANTS[phases]
    pairs = columns.build(*some(is_pair), books, with_dur=False)
    pairs.phase = phases[is_pair]
    marks, mark_ordinals = some(is_instant)
    instants = columns.build(marks, mark_ordinals, books, with_dur=False)
    instants.phase = phases[is_instant]
    rare_at = np.flatnonzero(_RARE[phases]).tolist()
    texts = [bytes(piece) for piece in columns.decode_pieces(listed)] if marks or rare_at else []
    instants.numbers = columns.memory_numbers(
        [columns.decode_instant(texts[i]) for i in np.flatnonzero(is_instant).tolist()]
    )
    rare = _rare([int(every[i]) for i in rare_at], [events[i] for i in rare_at], [texts[i] for i in rare_at])
    spans, no_time, repaired = _sound(spans)
    pairs, pairs_no_time, _ = _sound(pairs)
    instants, instants_no_time, _ = _sound(instants)
    return Chunk(
        events=len(events),
        phases={chr(code) if code else "?": int(counted[code]) for code in np.flatnonzero(counted).tolist()},
        names=columns.words(books.names),
        cats=columns.words(books.cats),
        lanes=books.lane_list(),
        spans=spans,
        pairs=pairs,
        instants=instants,
        rare=rare,
        malformed=no_time + pairs_no_time + instants_no_time,
        repaired=repaired,
        rest=size,
    )


def _phases(events: Sequence[columns.AnyEvent]) -> npt.NDArray[np.uint8]:
    """Return the phase of each event as ASCII; 0 for one that is missing or no single letter."""
    phases = [event.ph for event in events]
    if phases.count("X") == len(phases):
        return np.full(len(phases), _X, dtype=np.uint8)
    joined = "".join(phases)
    if len(joined) == len(phases) and joined.isascii() and "" not in phases:
        return np.frombuffer(joined.encode(), dtype=np.uint8)
    return np.array([ord(p) if len(p) == 1 and p.isascii() else 0 for p in phases], dtype=np.uint8)


def _sound(events: columns.Columns) -> tuple[columns.Columns, int, int]:
    """Drop events without time, give those without length one of 0; also how many were dropped and repaired."""
    timeless = events.ts == columns.MISSING
    lost = int(timeless.sum())
    if lost:
        events = events.take(~timeless)
    if events.dur is None:
        return events, lost, 0
    short = events.dur < 0  # MISSING is negative, too
    mended = int(short.sum())
    if mended:
        events.dur = np.where(short, 0, events.dur)
    return events, lost, mended


def _rare(ordinals: Sequence[int], events: Sequence[columns.AnyEvent], texts: Sequence[bytes]) -> list[Rare]:
    """Decode events whole; their times all at once, because an array operation an event is slow."""
    whole = [columns.decode_loosely(text) for text in texts]
    times = columns.ns_from_text([bytes(event.ts) for event in whole]).tolist()
    return [
        Rare(
            ordinal,
            event.ph,
            "" if event.name is None else str(event.name),
            event.cat or "",
            columns.identity(event.pid),
            columns.identity(event.tid),
            None if ts == columns.MISSING else ts,
            "" if loosely.id is None else str(loosely.id),
            loosely.args,
        )
        for ordinal, event, loosely, ts in zip(ordinals, events, whole, times, strict=True)
    ]


def _int(text: str) -> int | str:
    return int(text) if len(text) < 40 else text  # Python itself refuses thousands of digits


_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_int=_int, parse_constant=str)
_SCANNER = json.JSONDecoder(strict=False)  # only to find where a value ends
_SPACE = re.compile(r"[ \t\r\n]*")
#: A string, up to the end of the text if unterminated. Each quote is tried only once, regardless of length.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_TOKEN = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_GARBAGE = re.compile(rf'{_STRING}|[^,\[\]{{}}"]+|.', re.DOTALL)
#: The end of a string that contains the beginning of the next event, because a quote is missing.
_SWALLOWED = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*\{[ \t\r\n]*\"$")
#: Characters of an event that are decoded to find its end: most are short.
_WINDOWS = (1 << 12, 1 << 17, 8 << 20)
#: Maximum nesting depth; deeper text is skipped.
_DEEPEST = 500_000
_FIELDS = {*columns.Event.__struct_encode_fields__, "id"} - {"args"}
_ARGUMENTS = {*columns.Args.__struct_encode_fields__, *columns.MemoryArgs.__struct_encode_fields__}


@dataclass(slots=True)
class Pieces:
    """The events found in a stretch of text."""

    slices: list[tuple[int, int]] = field(default_factory=list)  # start and end of each event in the text
    damaged: int = 0  # number of stretches between events that are not events
    closed_at: int | None = None  # position of the ``]`` that ends the list; None = not in this text
    #: Where the last event that is not complete begins; the length of the text when there is none.
    rest: int = 0


#: What may stand between two events.
_BETWEEN = b", \t\r\n"


def strict_events(data: bytes) -> list[msgspec.Raw]:
    """Return the events in text that begins and ends at one or between two; empty = it is not strict JSON.

    Several times as fast as :func:`split_events`, which also finds events among damage. The events are views of one
    copy of the text.
    """
    start, stop = 0, len(data)
    while start < stop and data[start] in _BETWEEN:
        start += 1
    while start < stop and data[stop - 1] in _BETWEEN:
        stop -= 1
    try:
        text = b"".join((b"[", memoryview(data)[start:stop], b"]"))
        found = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        return []
    return found if {memoryview(one)[0] for one in found} <= {ord("{")} else []


def split_events(data: bytes) -> Pieces:
    """Find the events in text that begins at an event or between two."""
    # Latin-1 gives one character a byte, so positions agree; every structural character is ASCII.
    text = data.decode("latin-1")
    found, at, end = Pieces(), 0, len(text)
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at >= end:
            found.rest = end
            return found
        character = text[at]
        if character == ",":
            at += 1
        elif character == "]":
            found.closed_at = found.rest = at
            return found
        elif character in "{[":
            whole, stop = extent(text, at)
            if stop is None:
                found.rest = at
                return found
            if whole and character == "{":
                found.slices.append((at, stop))
            else:
                found.damaged += 1
            at = stop
        else:
            found.damaged += 1
            at = _GARBAGE.match(text, at).end()  # type: ignore[union-attr]


def extent(text: str, at: int) -> tuple[bool, int | None]:
    """Return whether an object or array is whole, and where it ends.

    A broken one ends where the next event seems to begin. None = it does not end in this text.
    """
    for window in _WINDOWS:
        try:
            return True, at + _SCANNER.raw_decode(text[at : at + window])[1]
        except json.JSONDecodeError as error:
            # The decoder counts lines up to an error, so it is given no more than it needs.
            if at + window >= len(text) or (
                error.pos < window - 1 and not error.msg.startswith("Unterminated")
            ):
                break
        except (ValueError, RecursionError):
            break
    # Not strict JSON, deeper than the decoder goes, cut off, or so long that its values would fill memory: follow the
    # brackets.
    stack: list[str] = []
    for token in _TOKEN.finditer(text, at):
        start, character = token.start(), text[token.start()]
        if character == '"':
            if swallowed := _SWALLOWED.search(text, start, token.end()):
                return False, text.index("{", swallowed.start())
        elif character in "[{":
            if stack and stack[-1] == "{" and _behind_comma(text, start):
                return False, start  # an object cannot be a key: the closing bracket before it is missing
            stack.append(character)
            if len(stack) > _DEEPEST:
                return False, len(text)
        elif (stack[-1] == "{") != (character == "}"):
            following = text.find("{", start)
            return False, None if following < 0 else following
        else:
            stack.pop()
            if not stack:
                return True, token.end()
    return False, None


def _behind_comma(text: str, at: int) -> bool:
    """Return whether the last character before a position, spaces left out, is a comma."""
    at -= 1
    while at >= 0 and text[at] in " \t\r\n":
        at -= 1
    return at >= 0 and text[at] == ","


def mend_event(data: bytes) -> bytes | None:
    """Return an event as strict JSON for the typed decoders: unchanged if sound, else what is usable, or None."""
    if _is_valid(data):
        return data
    text = data.decode("utf-8", errors="replace")
    try:
        fields = _DECODER.decode(text)
    except (ValueError, RecursionError):
        try:
            fields = _DECODER.decode(_without_depths(text))
        except (ValueError, RecursionError):
            return None
    if not isinstance(fields, dict):
        return None
    # Unpaired surrogates become question marks.
    mended = json.dumps(_coerced(fields), ensure_ascii=False).encode("utf-8", errors="replace")
    return mended if _is_valid(mended) else None


def _is_valid(data: bytes) -> bool:
    try:
        for decode in (
            columns.decode_event,
            columns.decode_exact_event,
            columns.decode_instant,
            columns.decode_loosely,
        ):
            decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _without_depths(text: str) -> str:
    """Replace what is nested deeper than arguments by ``null``."""
    parts: list[str] = []
    depth = kept = 0
    for token in _TOKEN.finditer(text):
        bracket = text[token.start()]
        if bracket in "[{":
            depth += 1
            if depth == 3:
                parts.append(text[kept : token.start()])
        elif bracket in "]}":
            if depth == 3:
                parts.append("null")
                kept = token.end()
            depth -= 1
    parts.append(text[kept:])
    return "".join(parts)


def _coerced(fields: dict[str, Any]) -> dict[str, Any]:
    """Give every field that becomes a column a type it may have."""
    arguments = fields.get("args")
    sound = {key: value for key, value in fields.items() if key not in _FIELDS}
    for key in _FIELDS & fields.keys():
        value = fields[key]
        if key in ("ph", "cat") or not isinstance(value, (int, str, type(None))) or isinstance(value, bool):
            value = "" if value is None else _text(value)
        sound[key] = value
    if isinstance(arguments, dict):
        sound["args"] = {
            key: None if key in _ARGUMENTS and isinstance(value, (bool, dict, list)) else value
            for key, value in arguments.items()
        }
    else:
        sound["args"] = None
    return sound


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
