"""Products in compiled programs whose operand was gathered from fewer rows, with those of their gradients.

Each row of a product takes one row of its operand, so that the product of what is gathered, ``x[index] @ w``, is what
is gathered of a product: ``(x @ w)[index]``. Of an operand that is joined of several parts, each is multiplied by
its own rows of the weight: ``concatenate([x[index], y]) @ w`` is ``(x @ w[:n])[index] + y @ w[n:]``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tuiprof.analyses.shared.compiled.dataflow import Flow, is_gradient, is_product
from tuiprof.analyses.shared.compiled.instructions import running
from tuiprof.model.programs import Instruction, Program

#: Rows after a gather for each before it, at least.
_MIN_REPEATS: Final = 1.5


class Remains(NamedTuple):
    """Which shares of a product's operations remain if its gathered parts are multiplied before the gathers."""

    others: float  # what was not gathered
    gathered: float  # what was, with fewer rows

    def keep(self, times: float) -> float:
        """Return the share of the time that remains if that of fewer rows is some times their share."""
        return self.others + times * self.gathered


@dataclass(frozen=True, slots=True)
class GatheredProducts:
    """The products of one source line with gathered rows, and those of their gradients."""

    #: Each product, the instruction that is launched for it, and how much of it remains.
    products: list[tuple[Instruction, Instruction, Remains]]
    repeats: float  # rows after the gathers for each before them, of the largest part
    joined: bool  # whether the operand was joined of several parts
    #: What is launched to gather and to join, and to add up the gradients of the rows, by name, with how many values it
    #: then moves for each one now.
    moved: Mapping[str, float]
    others: bool  # whether what is gathered is used otherwise, too, so that it is still made


@dataclass(frozen=True, slots=True)
class _Operand:
    """What a product multiplies by a weight."""

    at: int  # number of the instruction that joins it, or gathers it
    width: int  # values of a row
    remains: Remains
    gathers: tuple[int, ...]  # numbers of the gathers
    repeats: float  # of the largest of them
    others: int  # parts that are not gathered
    columns: int  # values of a row of the product


def gathered_products(program: Program) -> Iterator[GatheredProducts]:
    """Yield the products of each line all of which multiply gathered rows by a weight."""
    for computation in running(program):
        flow = Flow(program, computation)
        lines = defaultdict[int, list[Instruction]](list)
        for one in flow.nodes.values():
            if is_product(one) and len(flow.inputs[one.id]) > 1:
                lines[one.site or one.id].append(one)
        for same in lines.values():
            forward = [(one, _operand(flow, one)) for one in same if not is_gradient(one)]
            operands = [(one, operand) for one, operand in forward if operand is not None]
            if operands and len(operands) == len(forward):
                yield _of_line(flow, operands, [one for one in same if is_gradient(one)])


def _of_line(
    flow: Flow, forward: list[tuple[Instruction, _Operand]], backward: list[Instruction]
) -> GatheredProducts:
    """Return the products of a line; those of gradients do as many operations as one of the others."""
    remain = {flow.operations(one): operand.remains for one, operand in forward}
    gradients = [one for one in backward if flow.operations(one) in remain]
    products = [
        (one, flow.carrier[one.id], remain[flow.operations(one)])
        for one in (*(one for one, _ in forward), *gradients)
    ]
    carriers = {carrier.id for _, carrier, _ in products}
    moved, others = dict[str, float](), False
    for _, operand in forward:
        values = operand.columns * (len(operand.gathers) + operand.others + 1)
        if operand.at in operand.gathers:
            values, now = operand.columns, operand.width
        else:
            now = 2 * operand.width
        makers = {flow.carrier[at].id: flow.carrier[at] for at in (operand.at, *operand.gathers)}
        makers = {at: one for at, one in makers.items() if at not in carriers}
        for one in makers.values():
            moved[one.name] = moved.get(one.name, 0.0) + values / now
            others |= not flow.launched.get(one.name, frozenset()) <= carriers | makers.keys()
    columns = {flow.operations(one): operand.columns for one, operand in forward}
    for one in gradients:
        for scatter, width in _added_up(flow, one):
            moved[flow.carrier[scatter].name] = columns[flow.operations(one)] / width
    largest = max((operand for _, operand in forward), key=lambda operand: operand.repeats)
    return GatheredProducts(
        products, largest.repeats, any(one.at not in one.gathers for _, one in forward), moved, others
    )


def _operand(flow: Flow, product: Instruction) -> _Operand | None:
    """Return what a product multiplies by a weight, if it was gathered from fewer rows; None = it was not."""
    left, right = flow.inputs[product.id][:2]
    for side, weight in ((left, right), (right, left)):
        at, parts = flow.joined(side)
        gather = _gather(flow, at)
        whole = flow.nodes[gather if gather is not None else at]
        if not whole.shape or (gather is None and not parts):
            continue
        width, elements = whole.shape[-1], flow.nodes[side].elements
        if not elements or not flow.nodes[weight].elements:
            continue
        # As many operations say that each row is multiplied by all of the weight.
        if (
            whole.elements != elements
            or flow.operations(product) * width != 2.0 * elements * flow.nodes[weight].elements
        ):
            continue
        if parts and any(flow.nodes[one].shape[:-1] != whole.shape[:-1] for one in parts):
            continue
        few, known, repeats, gathers = 0.0, 0.0, list[tuple[float, float]](), list[int]()
        for each in parts or (whole.id,):
            found = _gather(flow, each)
            share = flow.nodes[each].elements / elements
            times = _repeats(flow, flow.nodes[found]) if found is not None else 1.0
            if found is not None and times > 1:
                few, known = few + share / times, known + share
                gathers.append(found)
                repeats.append((share, times))
        if gathers:
            columns = flow.nodes[weight].elements // width
            others = len(parts or (0,)) - len(gathers)
            return _Operand(
                whole.id, width, Remains(1 - known, few), tuple(gathers), max(repeats)[1], others, columns
            )
    return None


def _gather(flow: Flow, at: int) -> int | None:
    """Return the gather that makes a value, maybe with another value where an index is out of bounds; None = none."""
    one = flow.nodes[flow.same(at)]
    while one.opcode in ("convert", "select") and flow.inputs[one.id]:
        if one.opcode == "select":
            filled = flow.nodes[flow.same(flow.inputs[one.id][-1])]
            if len(flow.inputs[one.id]) != 3 or filled.opcode not in ("broadcast", "constant"):
                return None
        one = flow.nodes[flow.same(flow.inputs[one.id][one.opcode == "select"])]
    return one.id if one.opcode == "gather" and len(flow.inputs[one.id]) > 1 else None


def _repeats(flow: Flow, gather: Instruction) -> float:
    """Return how many rows a gather makes of each one of its source; 1 = it makes no more, or not whole rows."""
    source, indices = (flow.nodes[at] for at in flow.inputs[gather.id][:2])
    width = gather.shape[-1] if gather.shape else 0
    rows = gather.elements // max(width, 1)
    depth = indices.elements / max(rows, 1)  # numbers that say where a row is
    if source.shape[-1:] != (width,) or depth >= min(width, len(source.shape)):
        return 1.0
    repeats = gather.elements / max(source.elements, 1)
    return repeats if repeats >= _MIN_REPEATS else 1.0


def _added_up(flow: Flow, product: Instruction) -> Iterator[tuple[int, int]]:
    """Yield what adds up the rows of a gradient where they were gathered, and how many values it takes of a row."""
    left = [product.id]
    for at in left:
        for user in flow.users.get(at, ()):
            one = flow.nodes[user]
            if one.opcode == "scatter":
                updates = flow.nodes[flow.inputs[user][-1]]
                yield user, max(1, *updates.shape[-1:])
            elif one.opcode in ("slice", "convert") and len(left) < len(flow.nodes):
                left.append(user)
