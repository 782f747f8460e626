"""Where the events are in a file: the list and the properties around it, and stretches of whole events."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from tuiprof.formats.source import Damaged

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)


class NotATrace(Exception):
    """The text is not Trace Event JSON; the message says what it is."""


class MoreNeeded(Exception):
    """The list of events does not begin in this text."""


@dataclass(slots=True)
class Head:
    """What comes before the events."""

    first: int  # offset of the first byte inside the list
    properties: dict[str, Any] = field(default_factory=dict)  # top-level properties before it
    is_list: bool = False  # whether the file is the list itself


def find_events(data: bytes, complete: bool) -> Head:
    """Find where the list of events begins.

    Raises:
        NotATrace: The text is not a trace.
        MoreNeeded: Call again with more of the file.
    """
    skipped = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    text = data.decode("latin-1")
    at = _past_space(text, skipped)
    if at < len(text) and text[at] == "[":
        return Head(at + 1, is_list=True)
    if at >= len(text) and not complete:
        raise MoreNeeded
    if at >= len(text) or text[at] != "{":
        raise NotATrace("is not JSON")
    properties: dict[str, Any] = {}
    at = _past_space(text, at + 1)
    while True:
        if at < len(text) and text[at] == ",":
            at = _past_space(text, at + 1)
        key = _KEY.match(text, at)
        if key is None:
            if complete:
                raise NotATrace(_without_events(properties))
            raise MoreNeeded
        if key[1] == "traceEvents":
            if key.end() < len(text) and text[key.end()] == "[":
                before = data[skipped : key.start()].rstrip(b", \t\r\n") + b"}"
                return Head(key.end() + 1, _properties(before))
            if key.end() >= len(text) and not complete:
                raise MoreNeeded
        try:
            value, at = _DECODER.raw_decode(text, key.end())
        except (ValueError, RecursionError):
            if complete:
                raise NotATrace(_without_events(properties)) from None
            raise MoreNeeded from None
        # A number may continue in the next part; other values are complete.
        if at >= len(text) and not complete:
            raise MoreNeeded
        properties[key[1]] = value
        at = _past_space(text, at)


def _properties(text: bytes) -> dict[str, Any]:
    """Decode the properties before the events; their positions were found in Latin-1, but they are UTF-8."""
    try:
        return dict(_DECODER.decode(text.decode("utf-8", "replace").strip()))
    except (ValueError, RecursionError):
        return {}  # a key that is no text: the events are what matters


def _past_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _without_events(properties: dict[str, Any]) -> str:
    if {"instructions", "dma"} & {key.lower() for key in properties} or "neuron" in str(
        list(properties)
    ).lower():
        return "is a report of neuron-profile"
    keys = ", ".join(list(properties)[:6])
    return f"is JSON without traceEvents{f' (its keys: {keys})' if keys else ''}"


def tail_properties(data: bytes, *, strict: bool = False) -> dict[str, Any] | None:
    """Read the properties after the list of events; None if the file is not properly terminated."""
    rest = data[1:].strip()
    if rest in (b"", b"}"):
        return {}
    try:
        value = msgspec.json.decode(b'{"traceEvents":null' + rest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        if strict:
            return None
    else:
        return {key: item for key, item in value.items() if key != "traceEvents"}
    try:
        value = _DECODER.raw_decode('{"traceEvents":null' + rest.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None
    return {key: item for key, item in value.items() if key != "traceEvents"}


#: Size of a stretch, bytes. The arrays that the fast path makes of one fit the cache of a core: a trace of 67 MB took
#: 0.18 s of a processor and 125 MB with 1 to 4 MB, 0.40 s with 256 kB, and 0.41 s and 280 MB with 32 MB.
SIZE = 2 << 20
#: Maximum size of an event and of the properties before the list, which bounds memory for any file.
LONGEST = 64 << 20
#: Bytes per read: at most this many before the damage in a compressed file are lost.
_BLOCK = 1 << 19
#: Size of the first window in which the last boundary of a stretch is searched, bytes.
_WINDOW = 1 << 13
#: Boundary between two events. It rarely occurs inside a string, as the quote of the key would end it.
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*(?:\"[^\"\\]{1,40}\"[ \t\r\n]*:|\}))")


class Readable(Protocol):
    """Bytes in order."""

    def read_some(self, size: int) -> bytes:
        """Return the next bytes; none only at the end."""


class Stretch(NamedTuple):
    """A stretch of the list of events."""

    offset: int  # its first byte in the decompressed file
    length: int  # its length, bytes
    data: bytes | None  # its text; None if the decoder reads it itself


def last_boundary(data: bytes, low: int = 0) -> int | None:
    """Return the offset after the last event that seems complete, if the text begins at an event; None = there is none.

    The boundary is a guess (it may lie in a string or a nested list); decoding the text up to it confirms it.
    """
    window = _WINDOW
    while True:
        start = max(low, len(data) - window)
        found = None
        for found in _BOUNDARY.finditer(data, start):  # noqa: B007 - the last one is wanted
            pass
        if found is not None:
            return found.start() + 1
        if start == low:
            return None
        window *= 16


def plan(fd: int, first: int, end: int, size: int = SIZE) -> Iterator[Stretch]:
    """Cut the list of a plain file, reading only near the cuts; ends early where an event would be too long."""
    at, reach = first, size
    while at < end:
        stop = at + reach
        if stop >= end:
            yield Stretch(at, end - at, None)
            return
        window = _WINDOW
        while True:
            start = max(at, stop - window)
            cut = last_boundary(os.pread(fd, stop - start, start))
            if cut is not None or start == at:
                break
            window *= 16
        if cut is None and reach >= LONGEST:
            yield Stretch(at, reach, None)
            return
        if cut is None:  # one event longer than this
            reach = min(2 * reach, LONGEST)
            continue
        yield Stretch(at, start + cut - at, None)
        at, reach = start + cut, size


class Inflow:
    """The list of events of one stream, in stretches with their text."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._held = b""  # read but not yet returned; begins after an event
        self._offset = 0  # of what is held
        self.ended = False  # whether all of the stream was read
        self.damage: str | None = None  # why the stream ended early; None = it did not

    def open(self) -> Head:
        """Find the list of events; raises NotATrace if there is none."""
        size = 1 << 16
        while True:
            self._fill(size)
            try:
                head = find_events(self._held, self.ended)
            except MoreNeeded:
                if size >= LONGEST:
                    raise NotATrace(f"has no list of events in its first {LONGEST >> 20} MiB") from None
                size = min(4 * size, LONGEST)
                continue
            self._held = self._held[head.first :]
            self._offset = head.first
            return head

    def __iter__(self) -> Iterator[Stretch]:
        """Yield stretches that follow each other without a gap; ends early where an event would be too long."""
        size, searched = SIZE, 0
        while True:
            self._fill(size)
            if not self._held:
                return
            end = len(self._held) if self.ended else last_boundary(self._held, max(0, searched - 64))
            if end is None and size >= LONGEST:
                yield Stretch(self._offset, len(self._held), self._held)
                return
            if end is None:  # one event longer than this
                searched = len(self._held)
                size = min(2 * size, LONGEST)
                continue
            stretch = Stretch(self._offset, end, self._held[:end])
            self._held = self._held[end:]
            self._offset += end
            size, searched = SIZE, 0
            yield stretch
            if self.ended and not self._held:
                return

    def _fill(self, size: int) -> None:
        """Hold this many bytes, or all there are."""
        missing = size - len(self._held)
        if missing <= 0 or self.ended:
            return
        parts = [self._held]
        while missing > 0:
            try:
                part = self._stream.read_some(min(missing, _BLOCK))
            except Damaged as damage:
                self.damage = str(damage)
                part = b""
            if not part:
                self.ended = True
                break
            parts.append(part)
            missing -= len(part)
        self._held = b"".join(parts)
