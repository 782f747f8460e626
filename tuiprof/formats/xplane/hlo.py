"""The compiled programs (HLO) that XLA writes beside the events: in plane ``/host:metadata``, one message a program.

Messages and field numbers: ``hlo.proto`` and ``xla_data.proto`` of openxla/xla.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from tuiprof.formats.xplane import protobuf as pb
from tuiprof.formats.xplane import words
from tuiprof.formats.xplane.space import Named, Space
from tuiprof.model.intervals import Ints
from tuiprof.model.programs import Computation, Instruction, Program

_PLANE: Final = "/host:metadata"
_PROTO: Final = "Hlo Proto"
#: ``"jit_step(12)"``: a program and its number.
_NUMBERED: Final = re.compile(r"\((\d+)\)$")
#: ``PrimitiveType`` by number.
_TYPES: Final = (
    *("", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "", "", "c64"),
    *("bf16", "", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz"),
    *("s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu"),
)
#: What has more dimensions, or a longer one, is not a shape.
_MAX_DIMS: Final = 24
_LONGEST: Final = 1 << 40
#: Frames of a stack that are read; those of a damaged table may lead back to each other.
_DEEPEST: Final = 200
#: Field with the number of a parameter, and of an element of a tuple.
_INDEX_OF: Final = {"parameter": 9, "get-tuple-element": 13}
_STATS: Final = ("program_id", "hlo_op", "unique_hlo_op_id")


class HloPrograms:
    """The programs of a file, each read when it is asked for."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[int, Program | None] = {}

    def program(self, number: int) -> Program | None:
        """Return a program by its number; None if it is missing or damaged."""
        if number not in self._known:
            self._known[number] = self._read(number)
        return self._known[number]

    def _read(self, number: int) -> Program | None:
        for plane in self._space.planes:
            if plane.name != _PLANE:
                continue
            for metadata in plane.events.values():
                match = _NUMBERED.search(metadata.name)
                if match is None or _as_signed(int(match[1])) != number:
                    continue
                try:
                    proto = self._space.metadata_values(plane, metadata).get(_PROTO)
                    return read_program(proto) if isinstance(proto, bytes) else None
                except pb.Damaged:
                    return None
        return None

    def operations(self, ordinals: Ints) -> pl.DataFrame:
        """Return program, operation and calling instruction of events, as they say or, on a TPU, as their names do."""
        space = self._space
        plane_of = np.array([line.plane for line in space.lines], dtype=np.int32)[space.line]
        stats = Named(space, plane_of, _STATS)
        code, names = stats.texts("hlo_op")
        found = pl.DataFrame(
            {
                "program": stats.ints("program_id")[ordinals],
                "operation": pl.Series([*names, None])[code[ordinals]],
                "instruction": stats.ints("unique_hlo_op_id")[ordinals],
            }
        ).with_columns(pl.col("program", "instruction").replace(-1, None))
        return found.update(self._of_tpu(ordinals, plane_of[ordinals]))

    def _of_tpu(self, ordinals: Ints, planes: Ints) -> pl.DataFrame:
        """Return program and operation where the metadata that events share say so, else nulls."""
        space = self._space
        rows = pl.DataFrame({"plane": planes, "key": space.metadata[ordinals]})
        known = []
        for index, key in rows.unique().rows():
            plane, metadata = space.planes[index], space.planes[index].events.get(key)
            if metadata is not None and metadata.name.startswith("%"):
                number = space.metadata_values(plane, metadata).get("program_id")
                if number is not None and str(number).isdigit():
                    known.append((index, key, _as_signed(int(number)), words.show_name(metadata.name)))
        schema = {"plane": pl.Int32, "key": pl.Int64, "program": pl.Int64, "operation": pl.String}
        of_key = pl.DataFrame(known, schema=schema, orient="row")
        return rows.join(of_key, ["plane", "key"], "left", maintain_order="left").select(
            "program", "operation"
        )


def _as_signed(number: int) -> int:
    """Return an unsigned number of 64 bits as the columns of events have it."""
    return pb.signed(number & 0xFFFFFFFFFFFFFFFF)


def read_program(data: pb.Data) -> Program:
    """Read a ``HloProto``.

    Raises:
        Damaged: It is not one.
    """
    span = next(((a, b) for n, k, a, b in pb.fields(data, 0, len(data)) if n == 1 and k == pb.BYTES), None)
    if span is None:
        raise pb.Damaged("it has no module")
    name, entry = "", 0
    bodies, frames, order = list[tuple[int, int]](), (0, 0), (0, 0)
    for number, kind, a, b in pb.fields(data, *span):
        if number == 1 and kind == pb.BYTES:
            name = pb.read_text(data, a, b)
        elif number == 3 and kind == pb.BYTES:
            bodies.append((a, b))
        elif number == 6 and kind == pb.VARINT:
            entry = a
        elif number == 7 and kind == pb.BYTES:
            order = (a, b)
        elif number == 17 and kind == pb.BYTES:
            frames = (a, b)
    table, sequences = _Frames(data, *frames), dict(_sequences(data, *order))
    computations = [_computation(data, *body, table, sequences) for body in bodies]
    return Program(name, {one.id: one for one in computations}, entry)


def _sequences(data: pb.Data, start: int, end: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the order in which the instructions of each scheduled computation run."""
    for number, kind, a, b in pb.fields(data, start, end):
        if number == 1 and kind == pb.BYTES:
            key, span = pb.read_entry(data, a, b)
            yield (
                key,
                [one for n, k, p, q in pb.fields(data, *span) if n == 1 for one in _numbers(data, k, p, q)],
            )


def _computation(
    data: pb.Data, start: int, end: int, frames: _Frames, sequences: Mapping[int, list[int]]
) -> Computation:
    identity = root = 0
    name, instructions = "", dict[int, Instruction]()
    for number, kind, a, b in pb.fields(data, start, end):
        if number == 1 and kind == pb.BYTES:
            name = pb.read_text(data, a, b)
        elif number == 2 and kind == pb.BYTES:
            one = _instruction(data, a, b, frames)
            instructions[one.id] = one
        elif number == 5 and kind == pb.VARINT:
            identity = a
        elif number == 6 and kind == pb.VARINT:
            root = a
    ordered = {one: instructions[one] for one in sequences.get(identity, ()) if one in instructions}
    return Computation(identity, name, ordered | instructions, root)


#: Fields of an instruction with text, and those with lists of numbers.
_TEXTS: Final = {1: "name", 2: "opcode", 28: "target", 43: "config", 63: "direction"}
_LISTS: Final = {36: "operands", 38: "called"}


def _instruction(data: pb.Data, start: int, end: int, frames: _Frames) -> Instruction:
    found: dict[str, Any] = {"id": 0, "name": "", "opcode": ""}
    indices: dict[int, int] = {}
    for number, kind, a, b in pb.fields(data, start, end):
        if key := _LISTS.get(number):
            found[key] = (*found.get(key, ()), *_numbers(data, kind, a, b))
        elif kind == pb.VARINT:
            if number == 35:
                found["id"] = a
            elif number in _INDEX_OF.values():
                indices[number] = a
        elif kind == pb.BYTES:
            if key := _TEXTS.get(number):
                found[key] = pb.read_text(data, a, b)
            elif number == 3:
                found["dtype"], found["shape"] = _shape(data, a, b)
            elif number == 7:
                found |= _metadata(data, a, b, frames)
            elif number == 8:
                found["zero"] = _is_zero(data, a, b)
            elif number == 30:
                found["summed"] = _summed(data, a, b)
    if field := _INDEX_OF.get(found["opcode"]):
        found["index"] = indices.get(field, 0)
    return Instruction(**found)


def _numbers(data: pb.Data, kind: int, a: int, b: int) -> Iterator[int]:
    """Yield the values of a repeated integer field, packed or one by one."""
    if kind == pb.VARINT:
        yield a
    while kind == pb.BYTES and a < b:
        value, a = pb.varint(data, a)
        yield value


def _shape(data: pb.Data, start: int, end: int) -> tuple[str, tuple[int, ...]]:
    """Return the type of the elements and the dimensions; nothing for a tuple."""
    dtype, lengths = 0, list[int]()
    for number, kind, a, b in pb.fields(data, start, end):
        if number == 2 and kind == pb.VARINT:
            dtype = a
        elif number == 3:
            lengths += _numbers(data, kind, a, b)
    if len(lengths) > _MAX_DIMS or any(length > _LONGEST for length in lengths):
        raise pb.Damaged(f"byte {start} is not the start of a shape")
    return _TYPES[dtype] if dtype < len(_TYPES) else "", tuple(lengths)


def _summed(data: pb.Data, start: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides: dict[int, list[int]] = {1: [], 2: []}
    for number, kind, a, b in pb.fields(data, start, end):
        if number in sides:
            sides[number] += _numbers(data, kind, a, b)
    return tuple(sides[1]), tuple(sides[2])


def _is_zero(data: pb.Data, start: int, end: int) -> bool:
    """Return whether all values of a literal are 0; its first field is its shape."""
    return not any(
        a if kind == pb.VARINT else any(data[a:b])
        for number, kind, a, b in pb.fields(data, start, end)
        if number != 1
    )


def _metadata(data: pb.Data, start: int, end: int, frames: _Frames) -> dict[str, Any]:
    """Return what an instruction says of its origin."""
    found: dict[str, Any] = {}
    file, line, frame = "", 0, 0
    for number, kind, a, b in pb.fields(data, start, end):
        if number == 2 and kind == pb.BYTES:
            found["op_name"] = pb.read_text(data, a, b)
        elif number == 3 and kind == pb.BYTES:
            file = pb.read_text(data, a, b)
        elif number == 4 and kind == pb.VARINT:
            line = a
        elif number == 12 and kind == pb.BYTES:
            found["alike"] = pb.read_text(data, a, b)
        elif number == 15 and kind == pb.VARINT:
            frame = a
    if stack := frames.stack(frame):
        found["frames"], found["site"] = stack, frame
    elif file:
        found["frames"] = (f"{file}:{line} ",)
    return found


class _Frames:
    """The table of source lines that instructions refer to by number, from 1 on."""

    def __init__(self, data: pb.Data, start: int, end: int) -> None:
        texts: dict[int, list[str]] = {1: [], 2: []}  # files, functions
        rows: dict[int, list[dict[int, int]]] = {3: [], 4: []}  # locations, frames
        for number, kind, a, b in pb.fields(data, start, end):
            if kind == pb.BYTES and number in texts:
                texts[number].append(pb.read_text(data, a, b))
            elif kind == pb.BYTES and number in rows:
                rows[number].append({n: v for n, k, v, _ in pb.fields(data, a, b) if k == pb.VARINT})
        self._texts, self._locations, self._frames = texts, rows[3], rows[4]
        self._stacks: dict[int, tuple[str, ...]] = {}

    def stack(self, frame: int) -> tuple[str, ...]:
        """Return the lines of a frame and those it was called from, innermost first."""
        if frame not in self._stacks:
            found, at = list[str](), frame
            while 0 < at <= len(self._frames) and len(found) < _DEEPEST:
                location, at = self._frames[at - 1].get(1, 0), self._frames[at - 1].get(2, 0)
                if 0 < location <= len(self._locations):
                    found.append(self._line(self._locations[location - 1]))
            self._stacks[frame] = tuple(found)
        return self._stacks[frame]

    def _line(self, location: dict[int, int]) -> str:
        file, function = (
            names[at - 1] if 0 < (at := location.get(number, 0)) <= len(names) else ""
            for number, names in self._texts.items()
        )
        return f"{file}:{location.get(3, 0)} {function}"
