"""The protobuf wire format, read in two ways: one message at a time, and a column of a million messages at once.

Encoding: https://protobuf.dev/programming-guides/encoding. A message is a sequence of fields; each is a tag
(number and wire type in one varint) and a value: a varint (type 0), eight bytes (1), a length and that many
bytes (2), or four bytes (5).

The columnar reader keeps one cursor per message and advances all of them by one field at a time, with NumPy. It needs
no object per event, so a million events with their stats take half a second.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Data = bytes | bytearray

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

#: Bytes to append to a buffer so that reading a word at its last byte stays inside.
PADDING: Final = bytes(16)

_U = np.uint64
_MSB: Final = _U(0x8080808080808080)
_ONES: Final = _U(1)
#: Multiplied with 1 << 8k this leaves k in the top byte: the k-th byte of the constant, counted from the top, is k.
_INDEX: Final = _U(sum(k << (56 - 8 * k) for k in range(8)))


class Damaged(ValueError):
    """The bytes are not a message; the text gives the position."""


def varint(data: Data, position: int) -> tuple[int, int]:
    """Read one varint: its value, 0 to 2^64 − 1, and the position after it.

    Raises:
        Damaged: It does not end within ten bytes or within the buffer.
    """
    value = shift = 0
    for offset in range(10):
        try:
            byte = data[position + offset]
        except IndexError:
            break
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + offset + 1
        shift += 7
    raise Damaged(f"the number at byte {position} does not end")


def signed(value: int) -> int:
    """Return a varint read as int64 (two's complement)."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data: Data, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield field number, wire type, and the value and 0 of a varint, else start and end of the bytes.

    Raises:
        Damaged: A field does not end within the message or has no wire type.
    """
    position = start
    while position < end:
        at = position
        tag, position = varint(data, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise Damaged(f"byte {at} is not the start of a field (number 0)")
        if kind == VARINT:
            value, position = varint(data, position)
            yield number, kind, value, 0
        elif kind in (BYTES, FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if kind == BYTES:
                size, position = varint(data, position)
            if position + size > end:
                raise Damaged(f"field {number} at byte {at} is longer than its message")
            yield number, kind, position, position + size
            position += size
        else:
            raise Damaged(f"byte {at} is not the start of a field (wire type {kind})")
    if position > end:
        raise Damaged(f"the message at byte {start} ends in the middle of a field")


class Buffer:
    """A buffer, :data:`PADDING` appended, with the views that columnar reading needs."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.size = len(data) - len(PADDING)
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        #: The eight bytes that start at each position, as one little-endian number.
        self.words: Words = np.ndarray(shape=(self.size + 8,), dtype="<u8", buffer=data, strides=(1,))

    def varints(self, at: Positions) -> tuple[Words, Positions]:
        """Read a varint at each position: values, and lengths in bytes (11 = it does not end)."""
        word = self.words[at]
        # The lowest byte without the continuation bit is the last one of the number.
        stop = ~word & _MSB
        stop &= ~stop + _ONES
        long = np.flatnonzero(stop == 0)
        value = word & (stop - _ONES) & ~_MSB
        # Squeeze out the continuation bits: seven bits a byte become 14 a pair, 28 a quad, 56 in all.
        value = (value & _U(0x007F007F007F007F)) | ((value & _U(0x7F007F007F007F00)) >> _ONES)
        value = (value & _U(0x00003FFF00003FFF)) | ((value & _U(0x3FFF00003FFF0000)) >> _U(2))
        value = (value & _U(0x000000000FFFFFFF)) | ((value & _U(0x0FFFFFFF00000000)) >> _U(4))
        length = ((((stop >> _U(7)) * _INDEX) >> _U(56)) + _ONES).astype(np.int64)
        if len(long):  # nine or ten bytes: negative numbers and large unsigned ones
            value[long], length[long] = self._long(at[long], word[long])
        return value, length

    def _long(self, at: Positions, word: Words) -> tuple[Words, Positions]:
        value = np.zeros(len(at), dtype=np.uint64)
        for i in range(8):
            value |= ((word >> _U(8 * i)) & _U(0x7F)) << _U(7 * i)
        ninth, tenth = self.bytes[at + 8].astype(np.uint64), self.bytes[at + 9].astype(np.uint64)
        value |= (ninth & _U(0x7F)) << _U(56)
        two = ninth >= 0x80
        value[two] |= (tenth[two] & _ONES) << _U(63)
        length = np.where(two, np.where(tenth >= 0x80, 11, 10), 9)
        return value, length.astype(np.int64)


@dataclass(slots=True)
class Step:
    """One field of every message that still has one."""

    rows: Positions  # which message, shape ``(n,)``
    tag: npt.NDArray[np.uint8]  # field number × 8 + wire type, shape ``(n,)``
    value: Words  # The varint; for bytes their length; undefined for fixed fields. Shape ``(n,)``.
    at: Positions  # Position of the content: of the first byte for bytes and fixed fields. Shape ``(n,)``.


def walk(buffer: Buffer, starts: Positions, ends: Positions, bad: npt.NDArray[np.bool_]) -> Iterator[Step]:
    """Yield the fields of many messages at once: the first field of every message that has one, then the second, …"""
    rows = np.flatnonzero(starts < ends)
    at, end = starts[rows], ends[rows]
    while len(rows):
        tag = buffer.bytes[at]
        kind = tag & 7
        value, length = buffer.varints(at + 1)
        content = at + 1 + np.where((kind == VARINT) | (kind == BYTES), length, 0)
        size = np.zeros(len(rows), dtype=np.int64)
        sized = kind == BYTES
        # A length beyond the message is damage; keep it from wrapping around when it is made signed.
        size[sized] = np.minimum(value[sized], _U(1 << 40)).astype(np.int64)
        size[kind == FIXED64] = 8
        size[kind == FIXED32] = 4
        after = content + size
        # Field numbers above 15 (two-byte tags) do not occur in the messages read this way.
        broken = (
            (after > end) | (length > 10) | ((kind > BYTES) & (kind != FIXED32)) | (tag < 8) | (tag >= 0x80)
        )
        if broken.any():
            bad[rows[broken]] = True
            fine = ~broken
            rows, tag, value = rows[fine], tag[fine], value[fine]
            content, after, end = content[fine], after[fine], end[fine]
        yield Step(rows, tag, value, content)
        going = after < end
        rows, at, end = rows[going], after[going], end[going]


#: What a short event has before its content: the tag and one byte of length.
_HEAD = 2
_LONG = 0x80


class Chains:
    """Finds the consecutive events of a line without a Python step per event.

    Each event begins where the previous one ends, so one pass over all bytes finds every position at which an event (of
    less than 128 bytes) could begin and the position it would lead to; positions inside another event are left out.
    From the first event on the chain is followed; as long as each leads to the next, many links are taken at once. A
    position where no event begins does no harm: the chain does not lead to it, or it hides others from the chain,
    which then ends early.
    """

    def __init__(self, buffer: Buffer, tag: int, then: int) -> None:
        content = buffer.bytes[: buffer.size]
        positions = np.flatnonzero((content[:-2] == tag) & (content[2:] == then) & (content[1:-1] < _LONG))
        leads_to = positions + (_HEAD + content[positions + 1].astype(np.int64))
        reach = np.maximum.accumulate(leads_to)
        outermost = np.append(True, positions[1:] >= reach[:-1]) if len(positions) else reach > 0
        self._positions, self._leads_to = positions[outermost], leads_to[outermost]
        # The last link of each run in which every position leads to the next one.
        self._run_ends = np.flatnonzero(np.append(self._leads_to[:-1] != self._positions[1:], True))

    def follow(self, position: int, end: int) -> tuple[Positions, int]:
        """Return where the messages of the chain at a position begin (maybe none), and where the last ends."""
        first = int(np.searchsorted(self._positions, position))
        if first == len(self._positions) or self._positions[first] != position:
            return self._positions[:0], position
        run = int(self._run_ends[np.searchsorted(self._run_ends, first)])
        last = min(run, int(np.searchsorted(self._positions, end)) - 1)
        return self._positions[first : last + 1], int(self._leads_to[last])


Value = int | float | str | bytes

#: ``oneof value`` of XStat by field number.
#: Bytes that the text of a compressed stat is inflated to.
_LONGEST_TEXT = 1 << 20
DOUBLE, UINT, INT, STR, RAW, REF, COMPRESSED = 2, 3, 4, 5, 6, 7, 8


@dataclass(slots=True)
class Metadata:
    """Common data of the events of one name."""

    name: str  # its name; for an XLA operation the text of the HLO instruction
    display_name: str  # a shorter name; may be empty
    span: tuple[int, int]  # first byte and first byte after its message, for its stats


def read_text(data: Data, start: int, end: int) -> str:
    """Read text; bytes that are not UTF-8 are marked."""
    return data[start:end].decode("utf-8", "replace")


def read_entry(data: Data, start: int, end: int) -> tuple[int, tuple[int, int]]:
    """Read an entry of a map from int64 to a message: the key, and the bounds of the message."""
    key, span = 0, (end, end)
    for number, kind, a, b in fields(data, start, end):
        if number == 1 and kind == VARINT:
            key = signed(a)
        elif number == 2 and kind == BYTES:
            span = (a, b)
    return key, span


def read_metadata(data: Data, start: int, end: int) -> Metadata:
    """Read the metadata of an event."""
    metadata = Metadata("", "", (start, end))
    for number, kind, a, b in fields(data, start, end):
        if number == 2 and kind == BYTES:
            metadata.name = read_text(data, a, b)
        elif number == 4 and kind == BYTES:
            metadata.display_name = read_text(data, a, b)
    return metadata


def put_stat(data: Data, start: int, end: int, names: Mapping[int, str], values: dict[str, Value]) -> None:
    """Read one stat into a dictionary under its name."""
    key, value = 0, None
    for number, kind, a, b in fields(data, start, end):
        if number == 1 and kind == VARINT:
            key = signed(a)
        elif number == DOUBLE and kind == FIXED64:
            value = struct.unpack_from("<d", data, a)[0]
        elif number == UINT and kind == VARINT:
            value = a
        elif number == INT and kind == VARINT:
            value = signed(a)
        elif number == REF and kind == VARINT:
            value = names.get(a, f"<no name {a}>")
        elif number == STR and kind == BYTES:
            value = read_text(data, a, b)
        elif number == RAW and kind == BYTES:
            value = bytes(data[a:b])
        elif number == COMPRESSED and kind == BYTES:
            value = _gunzip(bytes(data[a:b]))
    if value is not None:
        values[names.get(key, f"<no name {key}>")] = value


def _gunzip(packed: bytes) -> str | bytes:
    """Return the text of a compressed stat, of a long one its beginning; as it is when it is damaged."""
    try:
        plain = zlib.decompressobj(wbits=47).decompress(packed, _LONGEST_TEXT)
    except zlib.error:
        return packed
    return plain.decode("utf-8", "replace")
