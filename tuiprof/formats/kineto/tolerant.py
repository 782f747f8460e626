"""Reads events from invalid JSON without losing the events next to a broken one.

Slow; used only for a chunk that the strict decoder rejected, and for the chunk in which the list of events ends.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tuiprof.formats.kineto.columns import (
    Args,
    Event,
    MemoryArgs,
    decode_event,
    decode_exact_event,
    decode_instant,
    decode_loosely,
)


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
_FIELDS = {*Event.__struct_encode_fields__, "id"} - {"args"}
_ARGUMENTS = {*Args.__struct_encode_fields__, *MemoryArgs.__struct_encode_fields__}


@dataclass(slots=True)
class Pieces:
    """The events found in a stretch of text."""

    slices: list[tuple[int, int]] = field(default_factory=list)  # start and end of each event in the text
    damaged: int = 0  # number of stretches between events that are not events
    closed_at: int | None = None  # position of the ``]`` that ends the list; None = not in this text
    #: Where the last event that is not complete begins; the length of the text when there is none.
    rest: int = 0


def split(data: bytes) -> Pieces:
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


def mend(data: bytes) -> bytes | None:
    """Return an event as strict JSON that the typed decoders take: unchanged when sound, else what can be used of it,
    or None.
    """
    if _sound(data):
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
    return mended if _sound(mended) else None


def _sound(data: bytes) -> bool:
    try:
        for decode in (decode_event, decode_exact_event, decode_instant, decode_loosely):
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
