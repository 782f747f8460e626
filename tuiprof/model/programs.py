"""Compiled programs of a trace: the instructions of the compiler (XLA's HLO) that device events carry out.

An instruction computes one value from the values of others in its computation. Loops, fusions and calls run
computations of their own; a fusion is one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import polars as pl

from tuiprof.model.intervals import Ints


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    id: int  # its number, unique in its program
    name: str  # its name, unique in its program: ``"dot.3"``
    opcode: str  # for example ``"dot"``
    dtype: str = ""  # type of its elements: ``"bf16"``; empty = a tuple
    shape: tuple[int, ...] = ()  # its dimensions
    operands: tuple[int, ...] = ()  # numbers of the instructions whose values it takes
    called: tuple[
        int, ...
    ] = ()  # numbers of the computations that it runs; of a loop its body and its condition
    op_name: str = ""  # the operations that it is part of: ``"jit(step)/while/body/dot_general"``
    frames: tuple[
        str, ...
    ] = ()  # source lines, ``file:line function``, innermost first, the framework's included
    site: int = 0  # number of its source lines, in which columns count too; 0 = not said
    alike: str = (
        ""  # name of the first instruction that does the same; they may share a kernel. Empty = not said
    )
    index: int = -1  # of a parameter its number, of ``get-tuple-element`` that of the element; else -1
    target: str = ""  # the library's function that a ``custom-call`` calls
    direction: str = ""  # the relation of a ``compare``: ``"EQ"``
    #: Dimensions of the two operands of a ``dot`` that it sums over.
    summed: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    zero: bool = False  # of a constant: whether all of its values are 0
    config: str = ""  # what the compiler's backend notes, mostly JSON

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Computation:
    """A sequence of instructions with parameters and one result."""

    id: int  # its number, unique in its program
    name: str  # its name
    instructions: Mapping[
        int, Instruction
    ]  # by number; operands first, scheduled ones in the order in which they run
    root: int  # number of the instruction that computes its result


@dataclass(frozen=True)
class Program:
    """One compiled program."""

    name: str  # for example ``"jit_step"``
    computations: Mapping[int, Computation]  # by number
    entry: int  # number of the computation that a call of the program runs

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Its instructions by name."""
        return {
            one.name: one
            for computation in self.computations.values()
            for one in computation.instructions.values()
        }

    def inner(self, instruction: Instruction) -> tuple[Computation, ...]:
        """Return the computations that an instruction runs, without those that are not in the program."""
        return tuple(self.computations[one] for one in instruction.called if one in self.computations)


class Programs(Protocol):
    """Gives the compiled programs of a trace, which are decoded when they are asked for."""

    def operations(self, ordinals: Ints) -> pl.DataFrame:
        """Return what events say that they carry out, in their order.

        Columns: ``program`` (its number), ``operation`` (the name of an instruction, or of several that the driver runs
        as one graph), ``instruction`` (the number of one that runs them, such as a loop); null = not said.
        """

    def program(self, number: int) -> Program | None:
        """Return a program by the number that events give; None if the trace lacks it, or it is damaged."""
