"""Finds the list of events in the top level of a JSON file, and the properties around it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

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
    properties: dict[str, Any] = field(default_factory=dict)  # top-level properties that stand before it
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
