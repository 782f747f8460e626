"""Products in the loops of compiled programs (``lax.scan``), and which of them all iterations could share.

A loop carries a tuple from one iteration to the next. Some of its elements never change (weights, the inputs of all
iterations), some count iterations, some only collect results (a slice for each iteration, or a sum), and the rest is
its state. A product that the state takes no part in can be made for all iterations at once before the loop; one whose
result only goes to what collects results, after it. Without a state a loop does one part of a batch after the other,
most likely to save memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Final, Literal

from tuiprof.analyses.shared.compiled.dataflow import Flow, is_gradient, is_product, size_of
from tuiprof.analyses.shared.compiled.instructions import running
from tuiprof.model.programs import Computation, Instruction, Program

#: When all iterations could share a product; empty = each needs its own.
Shared = Literal["before", "after", ""]
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True, slots=True)
class LoopProduct:
    """A matrix product in a loop."""

    instruction: Instruction  # the product itself
    carrier: Instruction  # the instruction of the loop's body that is launched for it
    trips: int  # iterations of the loop each time; 0 = not known
    shared: Shared
    operations: float  # of one iteration; a multiply-add is two
    #: Bytes of one iteration that a product of all iterations moves too: all but those of the weights, or of a sum.
    bytes: float
    result_bytes: float  # its result in one iteration
    dtype: str  # type of its operands
    #: What the loop launches to get its operands from inputs that never change, such as a slice, each by name with the
    #: numbers of the instructions that use it.
    slices: Mapping[str, frozenset[int]]
    loop: int  # number of the loop that it is in
    sums: tuple[str, ...] = ()  # names of what the loop launches to add its results up, one for each sum
    #: Share of it that a product outside the loop replaces: the compiler makes products with one operand in common in
    #: one, and some of their results may stay in the loop; an operand may be joined of the state and of what is known.
    moves: float = 1.0
    sums_move: float = 1.0  # share of its sums that goes with it
    #: What the loop launches only to join what is known before the loop with the state, for this product alone.
    joins: tuple[str, ...] = ()

    @property
    def backward(self) -> bool:
        """Whether it is part of a gradient."""
        return is_gradient(self.instruction)


def loop_products(program: Program) -> Iterator[LoopProduct]:
    """Yield the products in the loops of a program."""
    for computation in running(program):
        for loop in computation.instructions.values():
            if loop.opcode == "while" and (inner := program.inner(loop)):
                yield from Body(program, inner[0], loop).products()


def shared_products(program: Program) -> Iterator[list[LoopProduct]]:
    """Yield the products that all iterations can share, each with those of its gradients that then can, too.

    They have the source of the product; where that has to stay in the loop, so have they. Of one that was made together
    with others, only a part is counted.
    """
    by_site = defaultdict[int, list[LoopProduct]](list)
    every = list(loop_products(program))
    for one in every:
        by_site[one.instruction.site or one.instruction.id].append(one)
    for same in by_site.values():
        forward = [one for one in same if not one.backward]
        if forward and all(one.shared for one in forward):
            part = min(one.moves for one in forward)
            backward = [
                _of_one_weight(one, part) for one in same if one.backward and one.shared and one.moves == 1
            ]
            # The gradient of its input has the source of another product, if it was made together with that one's.
            loops = {one.loop for one in backward if one.moves < 1}
            inputs = [
                one for one in every if one.backward and one.shared and one.moves < 1 and one.loop in loops
            ]
            yield [*forward, *backward, *inputs]


def _of_one_weight(one: LoopProduct, part: float) -> LoopProduct:
    """Return the part of a product that makes the gradient of one weight, where it makes those of several.

    Of that weight, it is the rows that are multiplied outside the loop.
    """
    count = max(len(one.sums), 1)
    return replace(one, moves=part / count, sums=one.sums[:1], sums_move=part)


def trips_of(loop: Instruction) -> int:
    """Return the iterations of a loop each time; 0 = not known."""
    match = _TRIPS.search(loop.config)
    return int(match[1]) if match else 0


class Body:
    """What depends on what in one iteration."""

    def __init__(self, program: Program, body: Computation, loop: Instruction) -> None:
        self.flow, self.loop = Flow(program, body), loop
        self.nodes = self.flow.nodes
        #: The number of the instruction that makes each element of the next iteration's tuple.
        root = self.nodes.get(body.root)
        self.results = root.operands if root is not None and root.opcode == "tuple" else ()
        state = next((one.id for one in body.instructions.values() if one.opcode == "parameter"), -1)
        #: The instructions that take an element of the carried tuple, and its number.
        self.elements = {
            one.id: one.index
            for one in self.nodes.values()
            if one.opcode == "get-tuple-element"
            and one.operands == (state,)
            and one.index < len(self.results)
        }

    def products(self) -> Iterator[LoopProduct]:
        """Yield the products."""
        found = [one for one in self.nodes.values() if is_product(one) and len(self.flow.inputs[one.id]) > 1]
        if found and all(at in self.nodes for at in self.results):
            constant, counters, collect = self.kinds()
            has_state = (constant | counters | collect) + 1 < 1 << len(self.results)
            for one in found:
                product = self._product(one, constant, constant | counters, collect)
                yield product if has_state or product.backward else replace(product, shared="")

    def _element(self, at: int) -> int | None:
        """Return the element of the carried tuple that an instruction is a form of; None = it computes something."""
        while at not in self.elements:
            inputs = self.flow.inputs[at]
            if len(inputs) != 1 or self.flow.same(at) == at:
                return None
            at = inputs[0]
        return self.elements[at]

    @cached_property
    def takes(self) -> Mapping[int, int]:
        """Which elements of the carried tuple each instruction depends on, as bits."""
        takes = dict[int, int]()
        for at, inputs in self.flow.inputs.items():
            takes[at] = 1 << self.elements[at] if at in self.elements else 0
            for each in inputs:
                takes[at] |= takes.get(each, 0)
        return takes

    @cached_property
    def gives(self) -> Mapping[int, int]:
        """Which elements of the next iteration's tuple depend on each instruction, as bits."""
        gives = defaultdict[int, int](int)
        for index, at in enumerate(self.results):
            gives[at] |= 1 << index
        for at, inputs in reversed(self.flow.inputs.items()):
            for each in inputs:
                gives[each] |= gives[at]
        return gives

    def kinds(self) -> tuple[int, int, int]:
        """Return which elements of the carried tuple never change, which count, and which collect results, as bits."""
        constant = counters = collect = 0
        for index, at in enumerate(self.results):
            if self._element(at) == index:
                constant |= 1 << index
            elif self._collects(at, index):
                collect |= 1 << index
        for index, at in enumerate(self.results):
            one, own = self.nodes[at], 1 << index
            if one.dtype[:1] in ("s", "u") and not one.shape and not self.takes[at] & ~(constant | own):
                counters |= own & ~constant
        return constant, counters, collect

    def _collects(self, at: int, index: int) -> bool:
        """Return whether a result is an element with a slice of it replaced or something added, its only use."""
        one = self.nodes[self.flow.same(at)]
        takes = [self._element(each) for each in self.flow.inputs[one.id]]
        if one.opcode == "dynamic-update-slice":
            collects = takes[:1] == [index]
        else:
            collects = (one.opcode == "add" or is_product(one)) and takes.count(index) == 1
        sources = [each for each, element in self.elements.items() if element == index]
        uses = {user for each in sources for user in self._uses(each)}
        return collects and uses == {one.id}

    def _uses(self, element: int) -> Iterator[int]:
        """Yield what computes with an element of the tuple."""
        for user in self.flow.users.get(self.flow.same(element), ()):
            if any(self._element(each) == self.elements[element] for each in self.flow.inputs[user]):
                yield user

    def _product(self, one: Instruction, constant: int, known: int, collect: int) -> LoopProduct:
        flow = self.flow
        sides = [self.nodes[at] for at in flow.inputs[one.id][:2]]
        takes = [self.takes[side.id] for side in sides]
        weights = [not took & ~constant and self._is_matrix(took) for took in takes]
        gives = self.gives[one.id]
        collected = bool(gives) and not gives & ~collect
        summed = collected and self._is_sum(gives)
        shared: Shared = ""
        if any(weights) and not (takes[0] | takes[1]) & ~known:
            shared = "before"
        elif collected and (any(weights) or summed):
            shared = "after"
        moves = 1.0
        # A script can take a gradient apart, but not a product of the state that it writes as one.
        if (
            not shared
            and is_gradient(one)
            and any(weights)
            and 0 < (part := self._collected_part(one, collect)) < 1
        ):
            shared, moves = "after", part
        shape, dtype = flow.result(one)
        result = moved_result = prod(shape) * size_of(dtype)
        joiner = -1
        if not shared and not is_gradient(one) and any(weights):
            joiner, part = self._known_part(one, weights, known)
            if part:
                shared, moves = "before", part
                moved_result = result / part  # the part has a result as large
        moved = [prod(side.shape) * size_of(side.dtype) for side in sides]
        carrier = flow.carrier[one.id]
        return LoopProduct(
            one,
            carrier,
            trips_of(self.loop),
            shared,
            flow.operations(one),
            sum(size for size, weight in zip(moved, weights, strict=True) if not weight)
            + (0 if summed else moved_result),
            result,
            sides[0].dtype,
            {
                name: users
                for name, users in flow.launched.items()
                if carrier.id in users and not self.takes[self._by_name[name]] & ~known
            },
            self.loop.id,
            tuple(self._sums(gives, carrier)) if shared == "after" and summed else (),
            moves,
            joins=tuple(self._only_for(joiner, carrier)),
        )

    def _known_part(self, product: Instruction, weights: list[bool], known: int) -> tuple[int, float]:
        """Return the share of a product that takes no state, of which an operand is joined with what is known.

        Also the instruction that joins it.
        """
        flow = self.flow
        sides = [self.nodes[at] for at in flow.inputs[product.id][:2]]
        side, weight = sides if weights[1] else sides[::-1]
        at, parts = flow.joined(side.id)
        if not parts:
            return -1, 0.0
        whole, first = self.nodes[at], self.nodes[parts[0]]
        along = next(
            (n for n, (a, b) in enumerate(zip(whole.shape, first.shape, strict=False)) if a != b), -1
        )
        if along < 0 or len(whole.shape) != len(first.shape):
            return -1, 0.0
        # As many operations say that it is the dimension that is summed, in whatever form the operands are.
        summed = whole.shape[along] * flow.operations(product) == 2.0 * side.elements * weight.elements
        count = sum(self.nodes[each].elements for each in parts if not self.takes[each] & ~known)
        return at, count / whole.elements if summed else 0.0

    def _only_for(self, at: int, product: Instruction) -> Iterator[str]:
        """Yield the name of what is launched to compute a value, if only a product uses it."""
        carrier = self.flow.carrier.get(at)
        if carrier is not None and self.flow.launched.get(carrier.name, frozenset()) == {product.id}:
            yield carrier.name

    def _collected_part(self, product: Instruction, collect: int) -> float:
        """Return the share of a product's result that the loop only collects, if all that uses it takes a slice."""
        slices, left = list[Instruction](), [product.id]
        for at in left:
            for user in self.flow.users.get(at, ()):
                if self.nodes[user].opcode == "slice":
                    slices.append(self.nodes[user])
                elif self.nodes[user].opcode in ("convert", "reduce"):  # the sum of a product made in parts
                    left.append(user)
                else:
                    return 0.0
        collected = [one for one in slices if self.gives[one.id] and not self.gives[one.id] & ~collect]
        return sum(one.elements for one in collected) / max(sum(one.elements for one in slices), 1)

    def _sums(self, elements: int, product: Instruction) -> Iterator[str]:
        """Yield the names of what is launched for each of some sums, beside the product itself."""
        for index, at in enumerate(self.results):
            carrier = self.flow.carrier[self.flow.same(at)]
            if elements >> index & 1 and carrier.id != product.id:
                yield carrier.name

    @cached_property
    def _by_name(self) -> Mapping[str, int]:
        return {one.name: one.id for one in self.flow.computation.instructions.values()}

    def _is_matrix(self, elements: int) -> bool:
        """Return whether all of some elements have at most two dimensions, as weights do and activations do not."""
        return all(
            len(self.nodes[at].shape) <= 2 for at, element in self.elements.items() if elements >> element & 1
        )

    def _is_sum(self, elements: int) -> bool:
        """Return whether all of some elements of the next iteration's tuple that collect results are sums."""
        return all(
            self.nodes[self.flow.same(at)].opcode != "dynamic-update-slice"
            for index, at in enumerate(self.results)
            if elements >> index & 1
        )
