"""Writes XSpace protobufs by hand, for what no recorded file shows."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

Stat = int | float | str | bytes


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def chunk(field_number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(field_number << 3 | 2) + varint(len(raw)) + raw


@dataclass
class Line:
    plane: Plane
    name: str
    timestamp_ns: int = 0
    id: int = 1
    events: list[bytes] = field(default_factory=list)

    def event(self, name: str, offset_ps: int, duration_ps: int = 0, **stats: Stat) -> Line:
        body = number(1, self.plane.event_id(name)) + number(2, offset_ps) + number(3, duration_ps)
        self.events.append(body + b"".join(self.plane.stat(key, value) for key, value in stats.items()))
        return self

    def encode(self) -> bytes:
        head = number(1, self.id) + chunk(2, self.name) + number(3, self.timestamp_ns)
        return head + b"".join(chunk(4, event) for event in self.events)


@dataclass
class Plane:
    name: str
    lines: list[Line] = field(default_factory=list)
    values: dict[str, Stat] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    shared: dict[str, dict[str, Stat]] = field(default_factory=dict)

    def line(self, name: str, timestamp_ns: int = 0, line_id: int = 1) -> Line:
        self.lines.append(Line(self, name, timestamp_ns, line_id))
        return self.lines[-1]

    def event_id(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names) + 1)

    def stat(self, key: str, value: Stat, tag: int = 4) -> bytes:
        body = number(1, self.stats.setdefault(key, len(self.stats) + 1))
        if isinstance(value, str):
            body += chunk(5, value)
        elif isinstance(value, bytes):
            body += chunk(6, value)
        elif isinstance(value, float):
            body += varint(2 << 3 | 1) + struct.pack("<d", value)
        else:
            body += number(3 if value >= 1 << 63 else 4, value)
        return chunk(tag, body)

    def encode(self) -> bytes:
        parts = [chunk(2, self.name)]
        parts += [chunk(3, line.encode()) for line in self.lines]
        parts += [self.stat(key, value, 6) for key, value in self.values.items()]
        for name, key in self.names.items():
            shared = b"".join(self.stat(k, v, 5) for k, v in self.shared.get(name, {}).items())
            parts.append(chunk(4, number(1, key) + chunk(2, number(1, key) + chunk(2, name) + shared)))
        parts += [
            chunk(5, number(1, key) + chunk(2, number(1, key) + chunk(2, name)))
            for name, key in self.stats.items()
        ]
        return b"".join(parts)


def encode(*planes: Plane, host: str = "vm") -> bytes:
    return b"".join(chunk(1, plane.encode()) for plane in planes) + chunk(4, host)
