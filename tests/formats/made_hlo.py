"""Writes HLO programs from text much like XLA's own, for what no recorded file shows.

    body {
      state = [] parameter()
      x = f32[128,256,64] get-tuple-element(state), index=1
      root = [] tuple(x)
    }
    main {
      loop = [] while(state), calls=body, op="jit(f)/while", site=2
    }

The last computation is the entry, and the last instruction of each is its result. ``site=2`` is the second of the given
source lines, ``file:line function``; all are called from the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from formats.xspace import Plane, chunk, number, varint

_TYPES = {"": 13, "pred": 1, "s32": 4, "f32": 11, "bf16": 16}
_COMPUTATION = re.compile(r"(\S+) \{\n(.*?)\n\s*\}", re.DOTALL)
_INSTRUCTION = re.compile(r"\s*(\S+) = (\w*)\[([\d,]*)\] ([\w-]+)\(([^)]*)\)(.*)")
_ATTRIBUTE = re.compile(r', (\w+)=("[^"]*"|\S+?)(?=,? |$|, )')


def packed(values: Sequence[int]) -> bytes:
    return b"".join(map(varint, values))


def encode(name: str, text: str, lines: Sequence[str] = ()) -> bytes:
    """Return a ``HloProto``."""
    computations = _COMPUTATION.findall(text)
    ids = {title: at for at, (title, _) in enumerate(computations, 1)}
    body = chunk(1, name) + number(6, len(ids))
    for title, inside in computations:
        body += chunk(3, _computation(title, inside, ids))
    return chunk(1, body + chunk(17, _frames(lines)))


def plane(**programs: bytes) -> Plane:
    """Return the plane with some programs, numbered from 1 on, by name."""
    shared = {f"{name}({at})": {"Hlo Proto": proto} for at, (name, proto) in enumerate(programs.items(), 1)}
    found = Plane("/host:metadata", shared=dict(shared))
    for key in shared:
        found.event_id(key)
        found.stat("Hlo Proto", b"")  # gives its name a number
    return found


def _computation(title: str, inside: str, computations: dict[str, int]) -> bytes:
    first = computations[title] << 32
    body, ids = chunk(1, title) + number(5, computations[title]), dict[str, int]()
    for line in inside.splitlines():
        match = _INSTRUCTION.fullmatch(line)
        assert match is not None, line
        name, dtype, shape, opcode, operands, rest = match.groups()
        ids[name] = first + len(ids)
        lengths = [int(length) for length in shape.split(",") if length]
        one = chunk(1, name) + chunk(2, opcode)
        one += chunk(3, number(2, _TYPES[dtype]) + chunk(3, packed(lengths)))
        one += number(35, ids[name]) + chunk(36, packed([ids[each] for each in operands.split(", ") if each]))
        one += _attributes(
            opcode, {key: value.strip('"') for key, value in _ATTRIBUTE.findall(rest)}, computations
        )
        body += chunk(2, one)
    return body + number(6, first + len(ids) - 1)


def _attributes(opcode: str, given: dict[str, str], computations: dict[str, int]) -> bytes:
    metadata = chunk(2, given.get("op", "")) + chunk(12, given.get("alike", ""))
    one = chunk(7, metadata + number(15, int(given.get("site", 0))))
    one += number(13 if opcode == "get-tuple-element" else 9, int(given.get("index", 0)))
    one += chunk(28, given.get("target", "")) + chunk(63, given.get("direction", ""))
    one += chunk(43, given.get("config", ""))
    one += chunk(8, number(4, int(given["value"]))) if "value" in given else b""  # of a constant
    for name in given.get("calls", "").split("+"):
        one += number(38, computations[name]) if name else b""
    if "sums" in given:  # dimensions of the two operands: sums=1x0
        one += chunk(
            30, b"".join(chunk(at, packed([int(d)])) for at, d in enumerate(given["sums"].split("x"), 1))
        )
    return one


def _frames(lines: Sequence[str]) -> bytes:
    body = b""
    for at, line in enumerate(lines, 1):
        place, _, function = line.partition(" ")
        file, _, at_line = place.rpartition(":")
        body += chunk(1, file) + chunk(2, function)
        body += chunk(3, number(1, at) + number(2, at) + number(3, int(at_line)))
        body += chunk(4, number(1, at) + number(2, 1 if at > 1 else 0))
    return body
