"""Damages files: bytes without sense, and the values of JSON, protobuf and tables one by one.

Every function takes the generator of its case, so that a case can be made again alone.
"""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from tests.formats.xspace import varint

#: Pieces that mean something to a parser of JSON, of traces or of archives.
_SPICE = (
    b"NaN", b"-Infinity", b"1e999", b"-0", b"99999999999999999999", b'"', b"\\", b"\\u", b"\\ud800", b"\xff", b"\0",
    b"{", b"}", b"[", b"]", b"},{", b"}]", b",", b":", b"null", b"\n", b'"ph":"B"', b'"ph":"E"', b'"ph":"C"',
    b'"ts":"1.5"', b'"dur":-1', b"{}", b"[[[[", b'"traceEvents":[', b"\x1f\x8b", b"1.7e15", b"0.0005", b'"args":[]',
    b'"tid":""', b"\xef\xbb\xbf", b"\xff\xfe", b"PK\x03\x04", b"PAR1", b"\x80" * 10, b"\xff" * 11,
)  # fmt: skip

#: Values that a field may hold where its writer is broken, or wants to break its reader.
_EXTREMES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 255, 1 << 15, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 53) + 1, 1 << 60, 1 << 62,
    (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, -(1 << 31), -(1 << 62), -(1 << 63), -(1 << 63) - 1, 0.5, -0.0, 1e-320, 1e9,
    1e18, 1e19, 1e300, float("nan"), float("inf"), float("-inf"), "", " ", "x", "7", "-7", "0x10", "１２", "²", "1e5",
    "nan", "9" * 40, "9" * 5000, "\ud800", "\0", "\x1b[31m", "\u202e", "a\nb", "é" * 300, "a" * 70_000, [], {}, [1, 2],
    [None], {"a": 1}, [[]], ["x"], "ProfilerStep#1", "ProfilerStep#" + "9" * 30, "[memory]", "cudaLaunchKernel",
    "cudaStreamSynchronize", "aten::item", "nc99999999999999999999", "rank0",
)  # fmt: skip
_TWICE = "\ue000twice"
_NESTED = "\ue000nested"


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few faults that know nothing of what they mean."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(8):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.choice((1, 3, 40, 4000))]
            case 2:
                changed[at:at] = rng.choice(_SPICE)
            case 3 if rng.random() < 0.4:
                del changed[at:]
            case 4:
                other = rng.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + rng.choice((1, 30, 200, 5000))]
            case 5:
                spice = rng.choice(_SPICE)
                changed[at : at + len(spice)] = spice
            case 6:
                size = rng.choice((1, 8, 100, 5000))
                changed[at : at + size] = bytes(min(size, len(changed) - at))
            case _:
                changed[at : at + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in changed[at : at + 1])
    return bytes(changed)


#: Characters that one change may add.
_MAX_TEXT = 4_000_000

# -- JSON -----------------------------------------------------------------------------------------------------


def mutated_json(document: Any, rng: random.Random, dump: Callable[[Any], str] = json.dumps) -> bytes:
    """Return the text of a document of which some values, keys and items are others than they were."""
    root = [copy.deepcopy(document)]  # so that the document itself has a place, too
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        holder, key = _place(root, rng)
        _change(holder, key, root, rng)
    text = dump(root[0] if root else None).replace(_TWICE.encode("unicode_escape").decode(), "")
    depth, mark = rng.choice((3, 50, 2000, 100_000)), _NESTED.encode("unicode_escape").decode()
    text = text.replace(f'"{mark}"', "[" * depth + "]" * depth, 1).replace(f'"{mark}"', "0")
    if rng.random() < 0.5:  # characters as they are, where JSON need not escape them
        text = re.sub(r"\\u(?!0|d[89a-f])[0-9a-f]{4}", lambda found: chr(int(found[0][2:], 16)), text)
    return text.encode("utf-8", "surrogatepass")


def _place(root: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """Return a container and one of its keys, at any depth; rarely the document itself."""
    holder: Any = root
    key: Any = 0
    if not root:  # all of it was deleted
        root.append(None)
    while (
        isinstance(holder[key], (dict, list))
        and holder[key]
        and (rng.random() < 0.85 or (holder is root and rng.random() < 0.9))
    ):
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    return holder, key


def _change(holder: Any, key: Any, root: list[Any], rng: random.Random) -> None:
    value = _instead(holder[key], root, rng)
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 3))
        case 1:
            holder[f"{key}{_TWICE}"] = value  # the same key once more
        case 2 if isinstance(holder, dict):
            name = str(rng.choice(list(holder))) + rng.choice(("", "", "x"))
            holder[name] = holder.pop(key)
        case 3 if isinstance(holder, list):
            rng.shuffle(holder)
        case 4:
            # The same in all that are alike: a column of another type.
            same = [each for each in _objects(root) if key in each] if isinstance(holder, dict) else []
            value = value if len(repr(value)) * len(same) < _MAX_TEXT else None
            share = rng.choice((0.1, 0.5, 1.0))
            for each in same:
                if rng.random() < share:
                    each[key] = copy.deepcopy(value)
        case _:
            holder[key] = value


def _instead(value: Any, root: list[Any], rng: random.Random) -> Any:
    if isinstance(value, (int, float)) and rng.random() < 0.4:
        return rng.choice(
            (-value, value + 1, value - 1, value * 1000, value / 7, str(value), [value], float(value))
        )
    if isinstance(value, str) and rng.random() < 0.4:
        return rng.choice(
            (value * 2, value[: len(value) // 2], value + "\0", [value], {"name": value}, value.upper())
        )
    if rng.random() < 0.05:
        return _NESTED
    if rng.random() < 0.15:
        holder, key = _place(root, rng)
        return copy.deepcopy(holder[key])
    return copy.deepcopy(rng.choice(_EXTREMES))  # or a list of them would come to hold itself


def _objects(root: list[Any]) -> Iterator[dict[str, Any]]:
    todo: list[Any] = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, (dict, list)):
            todo.extend(value.values() if isinstance(value, dict) else value)


# -- protobuf -------------------------------------------------------------------------------------------------

#: Which fields of which message of an XSpace are messages.
_MESSAGES: dict[str, dict[int, str]] = {
    "space": {1: "plane"},
    "plane": {3: "line", 4: "entry", 5: "entry", 6: "stat"},
    "line": {4: "event"},
    "event": {4: "stat"},
    "entry": {2: "metadata"},
    "metadata": {5: "stat"},
    "stat": {},
}
Field = list[Any]  # number, wire type, value (a list of fields where it is a message)


def mutated_space(data: bytes, rng: random.Random) -> bytes:
    """Return an XSpace of which some fields are others than they were, with lengths that fit (or not)."""
    fields = _parse(data, "space")
    for _ in range(rng.choice((1, 1, 2, 4, 10))):
        holder = fields
        while (inner := [f for f in holder if isinstance(f[2], list) and f[2]]) and rng.random() < 0.8:
            holder = rng.choice(inner)[2]
        if holder:
            _change_field(holder, rng)
    return _encode(fields, rng, lie=rng.random() < 0.1)


def _parse(data: bytes, message: str) -> list[Field]:
    found: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
            inner = _MESSAGES[message].get(number)
            if kind == 2 and inner is not None:
                value = _parse(value, inner)
        found.append([number, kind, value])
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def _change_field(holder: list[Field], rng: random.Random) -> None:
    at = rng.randrange(len(holder))
    field = holder[at]
    match rng.randrange(8):
        case 0:
            del holder[at]
        case 1:
            holder[at:at] = [copy.deepcopy(field)] * rng.choice((1, 5))
        case 2:
            field[0] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 16, 1000, 1 << 29))
        case 3:
            field[1:] = rng.choice(
                ([0, 1], [1, bytes(8)], [5, bytes(4)], [2, b"x"], [3, b""], [4, b""], [2, b""])
            )
        case 4:
            rng.shuffle(holder)
        case 5:
            # The same field of all messages beside this one.
            number = rng.choice(holder)[0]
            value = _scalar(rng)
            for each in holder:
                if isinstance(each[2], list):
                    for inner in each[2]:
                        if inner[0] == number and not isinstance(inner[2], list):
                            inner[1:] = copy.deepcopy(value)
        case _:
            if isinstance(field[2], list):
                field[2] = [] if rng.random() < 0.5 else field[2][: rng.randrange(len(field[2]) + 1)]
            else:
                field[1:] = _scalar(rng)


def _scalar(rng: random.Random) -> Field:
    """Return wire type and value of a field that is no message."""
    number = rng.choice(
        (0, 1, 127, 128, 1 << 31, 1 << 32, 1 << 40, 10**15 + 1, 10**18, 1 << 62, 1 << 63, (1 << 64) - 1)
    )
    text = rng.choice((b"", b"/device:TPU:0", b"/host:CPU", b"XLA Ops", b"\xff\xfe", b"size:" + b"9" * 30, b"x" * 5000,
                       b"ProfilerStep#" + b"9" * 30, b"correlation_id", b"step_num", b"1:2", b"Steps"))  # fmt: skip
    double = rng.choice((0.0, 1e300, float("nan"), float("inf"), -1.0))
    return rng.choice(([0, number], [2, text], [1, struct.pack("<d", double)]))


def _encode(fields: list[Field], rng: random.Random, *, lie: bool) -> bytes:
    parts = []
    for number, kind, value in fields:
        parts.append(varint(number << 3 | kind))
        if isinstance(value, int):
            parts.append(varint(value))
            continue
        content = _encode(value, rng, lie=lie) if isinstance(value, list) else value
        if kind == 2:
            wrong = lie and rng.random() < 0.001
            parts.append(varint(len(content) + rng.choice((-1, 1, 100, 1 << 40)) if wrong else len(content)))
        parts.append(content)
    return b"".join(parts)


# -- tables ---------------------------------------------------------------------------------------------------

_TYPES: tuple[Callable[[pl.Expr], pl.Expr], ...] = (
    lambda c: c.cast(pl.String, strict=False),
    lambda c: c.cast(pl.Float64, strict=False),
    lambda c: c.cast(pl.Int8, strict=False),
    lambda c: c.cast(pl.UInt64, strict=False),
    lambda c: c.cast(pl.Boolean, strict=False),
    lambda c: c.cast(pl.String, strict=False).cast(pl.Categorical),
    lambda c: c.cast(pl.String, strict=False).cast(pl.Binary),
    lambda c: c.cast(pl.Int64, strict=False).cast(pl.Datetime("ns")),
    lambda c: c.cast(pl.Int64, strict=False).cast(pl.Duration("us")),
    lambda c: c.cast(pl.Float64, strict=False).cast(pl.Decimal(30, 3), strict=False),
    lambda c: pl.concat_list(c, c),
    lambda c: pl.struct(c.alias("a"), c.alias("b")),
    lambda c: pl.lit(None).alias(c.meta.output_name()),
    lambda c: c.reverse(),
    lambda c: pl.when(pl.int_range(pl.len()) % 3 == 0).then(c),
    *(
        lambda c, v=value: pl.lit(v, dtype=pl.Int64)
        for value in (0, -1, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63))
    ),
    *(
        lambda c, v=value: pl.lit(v)
        for value in (float("nan"), 1e300, "", "9" * 30, "\0", "x" * 70_000, b"\xff\xfe")
    ),
)


def mutated_frame(frame: pl.DataFrame, rng: random.Random) -> pl.DataFrame:
    """Return a table of which some columns are others than they were."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not frame.width:
            break
        name = rng.choice(frame.columns)
        match rng.randrange(6):
            case 0:
                frame = frame.drop(name)
            case 1:
                other = rng.choice([*frame.columns, "start_ts", "timestamp", "name"])
                frame = frame.with_columns(pl.col(name).alias(other))
            case 2:
                frame = frame.head(rng.choice((0, 1, 3)))
            case _:
                try:
                    frame = frame.with_columns(rng.choice(_TYPES)(pl.col(name)).alias(name))
                except pl.exceptions.PolarsError:  # a cast that does not exist
                    continue
    return frame
