"""Products with one-hot vectors in compiled programs: they pick rows of a matrix, or add rows where indices say.

One-hot vectors are made by comparing indices with the numbers of all classes (an ``iota``). What is multiplied by them
elementwise has at most one value that is not zero, too; XLA makes that a selection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tuiprof.analyses.shared.compiled.dataflow import FORMS, Flow, is_product
from tuiprof.analyses.shared.compiled.instructions import running
from tuiprof.model.programs import Instruction, Program

#: Instructions that keep the values of their operand, maybe several times.
_SPREAD: Final = (*FORMS, "convert", "broadcast", "transpose")


@dataclass(frozen=True, slots=True)
class OneHot:
    """The products of one computation with one-hot vectors."""

    #: Each product, and the instruction that is launched for it.
    products: list[tuple[Instruction, Instruction]]
    makers: list[Instruction]  # what is launched only to make the vectors


def one_hot_products(program: Program) -> Iterator[OneHot]:
    """Yield the products with one-hot vectors of each computation that has any."""
    for computation in running(program):
        flow = Flow(program, computation)
        vectors = _vectors(flow)
        every = [one for one in flow.nodes.values() if is_product(one)]
        taking = {one.id for one in every if any(each in vectors for each in flow.inputs[one.id][:2])}
        if not taking:
            continue
        products = [one for one in every if one.id in taking or _is_only_masked(flow, one, vectors)]
        carriers = {flow.carrier[one.id].id for one in products}
        candidates = {flow.carrier[at].id for at in vectors} - carriers
        makers = dict[int, Instruction]()
        for at, one in reversed(list(computation.instructions.items())):
            users = flow.launched.get(one.name)
            if at in candidates and users and users <= carriers | makers.keys():
                makers[at] = one
        yield OneHot([(one, flow.carrier[one.id]) for one in products], list(makers.values()))


def _vectors(flow: Flow) -> set[int]:
    """Return the numbers of the instructions whose values are one-hot vectors, or those times something."""
    found = set[int]()
    for at, one in flow.nodes.items():
        inputs = flow.inputs[at]
        if one.opcode == "compare":
            numbers = [_origin(flow, each).opcode for each in inputs]
            if one.direction == "EQ" and numbers.count("iota") == 1 and "constant" not in numbers:
                found.add(at)
            continue
        keeps = one.opcode in _SPREAD and len(inputs) == 1 and inputs[0] in found
        if keeps or _is_masked(flow, one, found):
            found.add(at)
    return found


def _is_masked(flow: Flow, one: Instruction, vectors: set[int]) -> bool:
    """Return whether an instruction leaves of something only what one-hot vectors select."""
    inputs = flow.inputs[one.id]
    if one.opcode == "select":
        return len(inputs) == 3 and inputs[0] in vectors and _origin(flow, inputs[2]).zero
    return one.opcode in ("multiply", "and") and any(each in vectors for each in inputs)


def _origin(flow: Flow, at: int) -> Instruction:
    """Return the instruction whose values are spread or given another form."""
    while flow.nodes[at].opcode in _SPREAD and len(flow.inputs[at]) == 1:
        at = flow.inputs[at][0]
    return flow.nodes[at]


def _is_only_masked(flow: Flow, product: Instruction, vectors: set[int]) -> bool:
    """Return whether of a product only what one-hot vectors select is used."""
    users = flow.users.get(product.id, ())
    return bool(users) and all(_is_masked(flow, flow.nodes[user], vectors) for user in users)
