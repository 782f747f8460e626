"""Which instruction of a compiled program each device event carries out.

Most events name it. What runs as one CUDA graph has only the name of the graph: its kernels are compared, in their
order, with the instructions of the computations that may be in it. Kernels have the names of fusions, or of one that
does the same; those of libraries have names of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared.frames import spot
from tuiprof.analyses.shared.kernel_names import classify
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.programs import Computation, Instruction, Program
from tuiprof.model.trace import cached_on_trace

#: Instructions that launch nothing.
SILENT: Final = (
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"),
    *(
        "while",
        "conditional",
        "call",
        "async-update",
        "async-done",
        "copy-done",
        "partition-id",
        "replica-id",
    ),
)
_LIBRARY, _COPY = "<library>", "<copy>"
#: Maximum product of the lengths of the two sequences that are compared; longer ones take seconds.
_COMPARED: Final = 1 << 26
#: Kinds of kernels by the instructions in them, the first that has any; with only those of the last line, a copy.
_KINDS: Final = {
    "gemm": {"dot"},
    "convolution": {"convolution"},
    "embedding or index": {"gather", "scatter", "sort"},
    "reduction": {"reduce", "reduce-window"},
    "random": {"rng", "rng-bit-generator"},
}
_MOVES: Final = {
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast", "fusion", "async-start"),
    *("copy", "copy-start", "convert", "transpose", "reshape", "broadcast", "concatenate", "pad", "reverse"),
    *("slice", "dynamic-slice", "dynamic-update-slice"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """One instruction and where it is."""

    program: Program
    computation: Computation
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """Which instruction each of ``k`` events carries out."""

    rows: Ints  # rows of the events, shape ``(k,)``
    code: Ints  # index into ``places``; -1 = unknown. Shape ``(k,)``.
    places: Sequence[Place]  # the instructions

    @property
    def programs(self) -> list[Program]:
        """The programs that they are of."""
        return list({id(place.program): place.program for place in self.places}.values())

    def rows_of(self, program: Program) -> dict[str, Ints]:
        """Return the rows of the events of each instruction of a program, by its name, in order of start."""
        order = np.argsort(self.code, kind="stable")
        bounds = np.searchsorted(self.code[order], np.arange(len(self.places) + 1))
        return {
            place.instruction.name: self.rows[order[bounds[at] : bounds[at + 1]]]
            for at, place in enumerate(self.places)
            if place.program is program and bounds[at] < bounds[at + 1]
        }

    def of(self, rows: Ints) -> Ints:
        """Return the index of the instruction of some events; -1 = unknown."""
        if not len(self.rows):
            return np.full(len(rows), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        found: Ints = np.where(self.rows[at] == rows, self.code[at], -1)
        return found


@cached_on_trace
def carried_out(trace: Trace) -> CarriedOut:
    """Return the instructions of all device work; without a device, of all operators."""
    rows = trace.device_work if trace.device_indices else np.flatnonzero(trace.is_category("cpu_op"))
    if trace.programs is None or not len(rows):
        return CarriedOut(rows[:0], rows[:0], ())
    said = trace.programs.operations(trace.ints("ordinal", rows)).with_columns(
        pl.Series("at", np.arange(len(rows))),
        pl.Series("device", trace.ints("device", rows)),
        pl.Series("correlation", trace.ints("correlation", rows)),
    )
    code = np.full(len(rows), -1, dtype=np.int64)
    places = list[Place]()
    for (number,), mine in said.group_by("program", maintain_order=True):
        program = trace.programs.program(int(str(number))) if number is not None else None
        if program is not None:
            reader = _Reader(program, len(places))
            for at, found in reader.read(mine, trace.names, trace.name_codes[rows]):
                code[at] = found
            places += reader.places
    return CarriedOut(rows, code, places)


def source_of(instruction: Instruction) -> str:
    """Return the line of the user's code that an instruction comes from, as ``function, file:line``; empty = unknown.

    In a library, the line that called it comes first.
    """
    found = spot(instruction.frames)
    if found is None:
        return ""
    where, function, caller = found
    function = function.rpartition("<locals>.")[2]
    location = f"{function}, {where}" if function else where
    return f"{caller} → {location}" if caller else location


def place_of(trace: Trace, row: int) -> Place | None:
    """Return the instruction that an event carries out, if known."""
    done = carried_out(trace)
    code = int(done.of(np.array([row]))[0])
    return done.places[code] if code >= 0 else None


def source_line(trace: Trace, row: int) -> str:
    """Return the line of the user's code that an event is for, as :func:`source_of` does; empty = unknown."""
    place = place_of(trace, row)
    return source_of(place.instruction) if place is not None else ""


def origins_of(trace: Trace, rows: Ints, groups: Ints) -> dict[int, tuple[str, str]]:
    """Return the source line of the events of each group as ``file:line``, and their operation; some groups lack them.

    Of several lines, it is the one with most of the time, and how many others there are: ``file:line +2``. ``groups``
    are codes, shape ``(len(rows),)``.
    """
    done = carried_out(trace)
    code = done.of(rows)
    known = np.flatnonzero(code >= 0)
    if not len(known):
        return {}
    instructions = {one: done.places[one].instruction for one in np.unique(code[known]).tolist()}
    spots = {one: spot(instruction.frames) for one, instruction in instructions.items()}
    lines = {one: (found[2] or found[0]).rpartition("/")[2] if found else "" for one, found in spots.items()}
    operations = {one: instruction.op_name for one, instruction in instructions.items()}
    frame = pl.DataFrame({"group": groups[known], "code": code[known], "ns": trace.lengths(rows[known])})
    found = (
        frame.group_by("group", "code", maintain_order=True)
        .agg(pl.col("ns").sum())
        .sort("ns", descending=True, maintain_order=True)
        .with_columns(
            line=pl.col("code").replace_strict(lines, return_dtype=pl.String),
            operation=pl.col("code").replace_strict(operations, return_dtype=pl.String),
        )
        .filter(pl.col("line") != "")
        .group_by("group", "line", maintain_order=True)
        .agg(pl.col("ns").sum(), pl.col("operation").first())
        .sort("ns", descending=True, maintain_order=True)
        .group_by("group", maintain_order=True)
        .agg(pl.col("line", "operation").first(), (pl.len() - 1).alias("others"))
    )
    return {
        group: (f"{line} +{others}" if others else line, operation)
        for group, line, operation, others in found.iter_rows()
    }


def kinds_of(trace: Trace, rows: Ints) -> dict[int, str]:
    """Return the kind of some kernels by the codes of their names; where these do not tell, by their instructions."""
    codes = trace.name_codes[rows]
    kinds = classify(trace.names, codes)
    untold = rows[np.isin(codes, [code for code, kind in kinds.items() if kind == "other"])]
    done = carried_out(trace)
    places = done.of(untold)
    for code, at in zip(trace.name_codes[untold].tolist(), places.tolist(), strict=True):
        if at >= 0 and kinds[code] == "other":
            kinds[code] = _kind(done.places[at])
    return kinds


def _kind(place: Place) -> str:
    """Return the kind of an instruction's kernel."""
    inside, left, seen = set[str](), [place.instruction], set[int]()
    for one in left:
        inside.add(one.opcode)
        for computation in place.program.inner(one) if one.opcode in ("fusion", "async-start") else ():
            if computation.id not in seen:
                seen.add(computation.id)
                left += computation.instructions.values()
    if place.instruction.opcode == "custom-call":
        return "other"
    return next(
        (kind for kind, opcodes in _KINDS.items() if inside & opcodes),
        "copy" if inside <= _MOVES else "elementwise",
    )


def kernel_name(instruction: str) -> str:
    """Return the name that XLA gives to the kernel of an instruction."""
    return re.sub(r"\W", "_", instruction)


class _Reader:
    """Finds the instructions of the events of one program."""

    def __init__(self, program: Program, first: int) -> None:
        self._running = list(running(program))
        self.places = [
            Place(program, computation, one)
            for computation in self._running
            for one in computation.instructions.values()
        ]
        #: The index of each place, counted from ``first`` on, by the name of its instruction.
        self._index = {place.instruction.name: first + at for at, place in enumerate(self.places)}
        self._alike = {kernel_name(one.name): _token(one) for one in program.by_name.values()}
        #: Instructions of each computation that launch something, and what their kernels are expected to be.
        self._launching = {
            one.id: [(each, _token(each)) for each in one.instructions.values() if each.opcode not in SILENT]
            for one in self._running
        }
        self._used = Counter[int]()

    def read(
        self, events: pl.DataFrame, names: Sequence[str], name_codes: Ints
    ) -> Iterator[tuple[Ints, int | Ints]]:
        """Yield the positions of events, and the index of the place of all or of each of them."""
        for (operation,), same in events.group_by("operation", maintain_order=True):
            if (place := self._index.get(str(operation))) is not None:
                yield same["at"].to_numpy(), place
            else:
                yield from self._of_graphs(same, names, name_codes)

    def _of_graphs(
        self, events: pl.DataFrame, names: Sequence[str], name_codes: Ints
    ) -> Iterator[tuple[Ints, Ints]]:
        """Yield the positions of the events of each launch of a graph, and their places."""
        known: dict[tuple[int | None, bytes], Ints] = {}
        runs = events.group_by("instruction", "device", "correlation", maintain_order=True).agg("at")
        for number, positions in runs.select("instruction", "at").iter_rows():
            at = np.array(positions)
            key = (number, name_codes[at].tobytes())
            if key not in known:
                known[key] = self._of_graph(number, [names[one] for one in name_codes[at].tolist()])
            yield at, known[key]

    def _of_graph(self, number: int | None, names: Sequence[str]) -> Ints:
        """Return the places of the kernels of a graph, which an instruction of this number may run."""
        kernels = [self._of_kernel(name) for name in names]
        counted = [at for at, token in enumerate(kernels) if token]
        own = {called for one in self._with_id(number) for called in one.called}
        best: tuple[tuple[int, bool, int], int, list[tuple[int, Instruction]]] | None = None
        for computation in self._running:
            pairs = self._pairs(self._launching[computation.id], [kernels[at] for at in counted])
            rank = (len(pairs), computation.id in own, -self._used[computation.id])
            if pairs and (best is None or rank > best[0]):
                best = (rank, computation.id, pairs)
        found = np.full(len(names), -1, dtype=np.int64)
        if best is not None:
            self._used[best[1]] += 1
            for at, instruction in best[2]:
                found[counted[at]] = self._index[instruction.name]
        return found

    def _with_id(self, number: int | None) -> Iterator[Instruction]:
        for computation in self._running:
            if number is not None and number in computation.instructions:
                yield computation.instructions[number]

    def _of_kernel(self, name: str) -> str:
        """Return what a kernel may carry out; empty = a part of something else."""
        if name.startswith(("Memset", "memset")):
            return ""
        token = self._alike.get(name.removesuffix(".kd"))
        return token or (_COPY if name.lower().startswith("memcpy") else _LIBRARY)

    @staticmethod
    def _pairs(
        launching: Sequence[tuple[Instruction, str]], kernels: Sequence[str]
    ) -> list[tuple[int, Instruction]]:
        """Return which kernels carry out which instructions, in the order that both have."""
        tokens = [token for _, token in launching]
        if not set(tokens) & set(kernels) or len(tokens) * len(kernels) > _COMPARED:
            return []
        pairs = list[tuple[int, Instruction]]()
        for a, b, size in SequenceMatcher(None, tokens, kernels, autojunk=False).get_matching_blocks():
            pairs += ((b + at, launching[a + at][0]) for at in range(size))
        return pairs


def running(program: Program) -> Iterator[Computation]:
    """Yield the computations whose instructions launch something: not those of fusions."""
    seen, left = set[int](), [program.entry]
    while left:
        one = program.computations.get(left.pop())
        if one is None or one.id in seen:
            continue
        seen.add(one.id)
        yield one
        for instruction in one.instructions.values():
            if instruction.opcode in ("while", "conditional", "call"):
                left += instruction.called


def _token(instruction: Instruction) -> str:
    if instruction.opcode == "custom-call":
        return _LIBRARY
    if instruction.opcode in ("async-start", "copy", "copy-start"):
        return _COPY
    # Without a number: it may share its kernel with another one of its kind.
    return instruction.alike or instruction.name.partition(".")[0]
