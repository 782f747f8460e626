"""Which values the instructions of a compiled computation take, with those of its fusions in their place.

Also what a matrix product is among them: instructions of XLA, and calls of a library.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Final

import msgspec

from tuiprof.analyses.shared.compiled.instructions import SILENT
from tuiprof.model.programs import Computation, Instruction, Program

#: Instructions that run a computation once, as a part of the one that they are in.
RUN: Final = ("fusion", "async-start", "call")
#: Instructions whose value is that of their operand in another form.
FORMS: Final = (
    *(*RUN, "parameter", "get-tuple-element", "async-done", "opt-barrier"),
    *("bitcast", "copy", "reshape"),
)
#: Instructions that combine values of which at most one is not zero.
_COMBINED: Final = ("add", "maximum", "or")
_MOST_JOINED: Final = 64
_LIBRARY_PRODUCT: Final = re.compile(r"gemm|matmul")
_BITS: Final = re.compile(r"^[a-z]+(\d+)")


class Flow:
    """The instructions of a computation and of the fusions in it, operands first."""

    def __init__(self, program: Program, computation: Computation) -> None:
        self.computation = computation
        self.nodes = dict[int, Instruction]()  # by number
        self.inputs = dict[int, tuple[int, ...]]()  # numbers of the instructions whose values each takes
        self.carrier = dict[
            int, Instruction
        ]()  # the instruction of the computation itself that each is part of
        self._program = program
        self._expand(computation, None, None, set())

    def _expand(
        self,
        computation: Computation,
        caller: Instruction | None,
        carrier: Instruction | None,
        seen: set[int],
    ) -> None:
        seen.add(computation.id)
        for one in computation.instructions.values():
            parts = self._program.inner(one)[:1] if one.opcode in RUN else ()
            for part in parts:
                if part.id not in seen:
                    self._expand(part, one, carrier or one, seen)
            inputs = one.operands
            if parts:
                inputs = (parts[0].root,)
            elif one.opcode == "parameter" and caller is not None:
                inputs = caller.operands[one.index : one.index + 1]
            elif one.opcode == "get-tuple-element" and one.operands:
                inputs = self._element(one.operands[0], one.index)
            if one.id not in self.nodes:  # a damaged program may repeat a number
                self.inputs[one.id] = tuple(each for each in inputs if each in self.nodes)
                self.nodes[one.id], self.carrier[one.id] = one, carrier or one

    def _element(self, of: int, index: int) -> tuple[int, ...]:
        """Return the instruction that makes an element of a tuple, else the tuple."""
        at = self.nodes.get(of)
        while at is not None and at.opcode in RUN and len(self.inputs[at.id]) == 1:
            at = self.nodes[self.inputs[at.id][0]]
        if at is not None and at.opcode == "tuple":
            return at.operands[index : index + 1]
        return (of,)

    def same(self, at: int) -> int:
        """Return the instruction that an instruction's value comes from in another form."""
        while self.nodes[at].opcode in FORMS and len(self.inputs[at]) == 1:
            at = self.inputs[at][0]
        return at

    @cached_property
    def direct_users(self) -> Mapping[int, tuple[int, ...]]:
        """The instructions that take the value of each one as it is."""
        users = defaultdict[int, list[int]](list)
        for at, inputs in self.inputs.items():
            for source in set(inputs):
                users[source].append(at)
        return {at: tuple(each) for at, each in users.items()}

    @cached_property
    def users(self) -> Mapping[int, tuple[int, ...]]:
        """The instructions that take the value of each one, in whatever form."""
        users = defaultdict[int, list[int]](list)
        for at, inputs in self.inputs.items():
            if self.nodes[at].opcode not in FORMS or at == self.computation.root:
                for source in {self.same(each) for each in inputs}:
                    users[source].append(at)
        return {at: tuple(each) for at, each in users.items()}

    @cached_property
    def launched(self) -> Mapping[str, frozenset[int]]:
        """What the computation launches by name, each with the numbers of what it launches to use it.

        Its result counts as such a use.
        """
        users = defaultdict[int, set[int]](set)
        own = list(self.computation.instructions.values())
        for one in reversed(own):
            result = one.id == self.computation.root
            by = users[one.id] if one.opcode in SILENT and not result else {one.id}
            for each in one.operands:
                users[each] |= by
        return {one.name: frozenset(users[one.id]) for one in own if one.opcode not in SILENT}

    def joined(self, at: int) -> tuple[int, tuple[int, ...]]:
        """Return the instruction that joins several values to one, and the values; none = it is not joined.

        They are concatenated, or each is padded with zeros, and those are combined.
        """
        at = self.same(at)
        while self.nodes[at].opcode == "convert" and len(self.inputs[at]) == 1:
            at = self.same(self.inputs[at][0])
        one, parts = self.nodes[at], self.inputs[at]
        if one.opcode in _COMBINED:
            left, found = [*parts], list[int]()
            for each in left:  # of more than two values, pairs are combined
                padded = self.nodes[self.same(each)]
                if padded.opcode == "pad":
                    found += self.inputs[padded.id][:1]
                elif padded.opcode == one.opcode and len(left) < _MOST_JOINED:
                    left += self.inputs[padded.id]
                else:
                    return at, ()
            parts = tuple(found)
        elif one.opcode != "concatenate":
            return at, ()
        whole = len(parts) > 1 and sum(self.nodes[each].elements for each in parts) == one.elements
        return at, parts if whole else ()

    def result(self, product: Instruction) -> tuple[tuple[int, ...], str]:
        """Return the dimensions and the type of a product, which a library returns with its workspace."""
        if product.dtype:
            return product.shape, product.dtype
        parts = (
            each
            for each in self.nodes.values()
            if each.opcode == "get-tuple-element" and each.operands == (product.id,) and each.index == 0
        )
        return next(((part.shape, part.dtype) for part in parts), ((), ""))

    def operations(self, product: Instruction) -> float:
        """Return the arithmetic operations of a product; a multiply-add is two."""
        left = self.nodes[self.inputs[product.id][0]].shape
        summed = product.summed[0] or summed_by_library(product)[0]
        return 2.0 * prod(self.result(product)[0]) * prod(left[at] for at in summed if at < len(left))


def is_product(one: Instruction) -> bool:
    """Return whether an instruction is a matrix product."""
    return len(one.operands) >= 2 and (
        one.opcode == "dot"
        or (one.opcode == "custom-call" and _LIBRARY_PRODUCT.search(one.target) is not None)
    )


def is_gradient(one: Instruction) -> bool:
    """Return whether an instruction is part of a gradient."""
    return "transpose(" in one.op_name


def size_of(dtype: str) -> float:
    """Return the bytes of an element of a type such as ``bf16``."""
    bits = _BITS.match(dtype)
    return int(bits[1]) / 8 if bits else 1.0


class _Dimensions(msgspec.Struct):
    lhs_contracting_dimensions: list[str] = []
    rhs_contracting_dimensions: list[str] = []


class _Gemm(msgspec.Struct):
    dot_dimension_numbers: _Dimensions = msgspec.field(default_factory=_Dimensions)


class _Config(msgspec.Struct):
    gemm_backend_config: _Gemm = msgspec.field(default_factory=_Gemm)


_decode: Final = msgspec.json.Decoder(_Config).decode


def summed_by_library(product: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dimensions of both operands that a library's product sums over, as the compiler notes them."""
    try:
        found = _decode(product.config).gemm_backend_config.dot_dimension_numbers
        sides = (found.lhs_contracting_dimensions, found.rhs_contracting_dimensions)
        left, right = (tuple(int(one) for one in side) for side in sides)
    except (msgspec.MsgspecError, ValueError):
        return (), ()
    return left, right
