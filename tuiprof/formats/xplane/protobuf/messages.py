"""The small messages of an XSpace, read one at a time: map entries, metadata, single stats."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tuiprof.formats.xplane.protobuf.wire import BYTES, FIXED64, VARINT, Data, fields, signed

Value = int | float | str | bytes

#: ``oneof value`` of XStat by field number.
#: Bytes that the text of a compressed stat is inflated to.
_LONGEST_TEXT = 1 << 20
DOUBLE, UINT, INT, STR, RAW, REF, COMPRESSED = 2, 3, 4, 5, 6, 7, 8


@dataclass(slots=True)
class Metadata:
    """What events of one name have in common.

    Attributes:
        name: Its name; for an XLA operation the text of the HLO instruction.
        display_name: A shorter name; may be empty.
        span: First byte and first byte after its message, for its stats.
    """

    name: str
    display_name: str
    span: tuple[int, int]


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
