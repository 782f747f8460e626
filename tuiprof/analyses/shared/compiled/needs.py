"""What the instructions of compiled programs need at least: arithmetic, and bytes read and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from tuiprof.analyses.shared.compiled.dataflow import RUN, Flow, is_product, size_of
from tuiprof.analyses.shared.compiled.instructions import SILENT, running
from tuiprof.model.programs import Instruction, Program

#: Instructions that read from their first operand only what they return.
_PARTS: Final = ("dynamic-slice", "slice", "gather")
#: Instructions of which an element needs more than one of an operand with as many.
_WHOLE: Final = ("dot", "custom-call", "reduce-window", "dynamic-update-slice", "concatenate", "tuple")
#: Instructions whose work depends on values, or whose dimensions are not read.
_UNKNOWN: Final = (
    "convolution",
    "sort",
    "scatter",
    "rng",
    "rng-bit-generator",
    "fft",
    "triangular-solve",
    "cholesky",
)


@dataclass(frozen=True, slots=True)
class InstructionNeed:
    """The minimum work of one instruction each time that it is launched."""

    operations: float  # of its matrix products; a multiply-add is two
    bytes: float  # read and written
    dtype: str  # type of the operands of its products; empty = it has none


def needs_of(program: Program) -> dict[str, InstructionNeed]:
    """Return what the instructions of a program that launch something need, by name; some are not known."""
    found = dict[str, InstructionNeed]()
    for computation in running(program):
        flow = Flow(program, computation)
        inside = dict[int, list[Instruction]]()
        for at, carrier in flow.carrier.items():
            inside.setdefault(carrier.id, []).append(flow.nodes[at])
        for one in computation.instructions.values():
            if one.opcode not in SILENT and (need := _need(flow, one, inside.get(one.id, []))) is not None:
                found[one.name] = need
    return found


def _need(flow: Flow, carrier: Instruction, inside: list[Instruction]) -> InstructionNeed | None:
    """Return the need of an instruction that runs some others, itself included."""
    library = carrier.opcode == "custom-call" and not is_product(carrier)
    if library or any(one.opcode in _UNKNOWN for one in inside):
        return None
    products = [one for one in inside if is_product(one) and len(flow.inputs[one.id]) > 1]
    operations = sum(flow.operations(one) for one in products)
    dtype = flow.nodes[flow.inputs[products[0].id][0]].dtype if products else ""
    own = {one.id for one in inside}
    read = sum(_read(flow, source, own) for source in _sources(flow, carrier, own))
    return InstructionNeed(operations, read + sum(_written(flow, carrier)), dtype)


def _sources(flow: Flow, carrier: Instruction, own: set[int]) -> set[int]:
    """Return the instructions outside whose values an instruction takes."""
    return {each for at in own for each in flow.inputs[at] if each not in own}


def _read(flow: Flow, source: int, own: set[int]) -> float:
    """Return how many bytes of a value are read by some instructions."""
    whole = prod(flow.nodes[source].shape) * size_of(flow.nodes[source].dtype)
    left, seen, parts = [source], {source}, 0.0
    for at in left:
        users = [user for user in flow.direct_users.get(at, ()) if user in own]
        if not users:
            return whole  # it is the result
        for user in users:
            one, first = flow.nodes[user], flow.inputs[user][:1] == (at,)
            if one.opcode in _PARTS and first:
                parts += one.elements * size_of(flow.nodes[source].dtype)
            elif one.opcode == "dynamic-update-slice" and first:
                continue  # it leaves the rest in place
            elif one.opcode in RUN or (one.elements == flow.nodes[at].elements and one.opcode not in _WHOLE):
                if user not in seen:  # of an element, it needs one
                    seen.add(user)
                    left.append(user)
            else:
                return whole
    return min(parts, whole)


def _written(flow: Flow, carrier: Instruction) -> Iterator[float]:
    """Yield the bytes of each result of an instruction."""
    if is_product(carrier):
        shape, dtype = flow.result(carrier)
        yield prod(shape) * size_of(dtype)
        return
    root = flow.nodes[flow.same(carrier.id)]
    results = [flow.nodes[flow.same(at)] for at in flow.inputs[root.id]] if root.opcode == "tuple" else [root]
    for one in results:
        if one.opcode == "dynamic-update-slice" and len(flow.inputs[one.id]) > 1:
            one = flow.nodes[flow.inputs[one.id][1]]
        yield prod(one.shape) * size_of(one.dtype)
