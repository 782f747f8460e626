"""What the loops of compiled programs (``lax.scan``) do from one iteration to the next.

If each iteration only multiplies the state and adds to it, ``state = a * state + b``, any stretch of iterations has
that form too, so that all can be computed in a tree. If no iteration needs another, all can be computed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from tuiprof.analyses.shared.compiled.dataflow import FORMS, RUN, size_of
from tuiprof.analyses.shared.compiled.instructions import SILENT, running
from tuiprof.analyses.shared.compiled.scans import Body, trips_of
from tuiprof.model.programs import Computation, Instruction, Program

#: How iterations depend on each other: they only scale the state and add to it, not at all, or in any other way.
Form = Literal["linear", "apart", "in turn"]
#: What a launch is for: work that the compiler keeps apart from others (of that, sums), element by element from the
#: state to the next one, or element by element beside that.
Role = Literal["whole", "sum", "state", "beside"]
_SUM: Final = frozenset(("reduce", "reduce-window"))
_WHOLE: Final = frozenset(
    (
        *(
            "dot",
            "convolution",
            "custom-call",
            "fft",
            "cholesky",
            "triangular-solve",
            "sort",
            "topk",
            "scatter",
        ),
        *("select-and-scatter", "rng", "rng-bit-generator", "infeed", "outfeed"),
        *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "send", "recv"),
    )
)
#: Instructions whose value changes by a factor if their operand does.
_SCALED: Final = (*FORMS, "negate", "convert", "broadcast", "real", "imag", "reduce-precision")
_NOT_LINEAR: Final = 2
#: With more elements, the state is more than a number and its companion, and the tree multiplies matrices.
_MAX_STATES: Final = 3


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A loop whose number of iterations is known."""

    loop: Instruction
    trips: int  # its iterations
    form: Form
    states: int  # elements of its state
    state_bytes: float  # of one iteration
    launched: Mapping[str, Role]  # what its body launches, by name

    @property
    def backward(self) -> bool:
        """Whether it computes a gradient."""
        return "transpose(" in self.loop.op_name


def recurrences(program: Program) -> Iterator[Recurrence]:
    """Yield the loops of a program without loops or branches in them."""
    for computation in running(program):
        for loop in computation.instructions.values():
            trips, inner = trips_of(loop), program.inner(loop)
            if loop.opcode == "while" and trips and inner:
                found = _recurrence(program, inner[0], loop, trips)
                if found is not None:
                    yield found


def _recurrence(program: Program, inside: Computation, loop: Instruction, trips: int) -> Recurrence | None:
    own = list(_called(program, inside))
    if any(one.opcode in ("while", "conditional") for one in own):
        return None
    body = Body(program, inside, loop)
    if not body.results or any(at not in body.nodes for at in body.results):
        return None
    constant, counters, collect = body.kinds()
    collect &= ~_running_sums(body, collect)
    state = ~(constant | counters | collect) & ((1 << len(body.results)) - 1)
    results = [body.nodes[at] for index, at in enumerate(body.results) if state >> index & 1]
    degree = _degree_of(body, state)
    form: Form = "in turn"
    if not degree:
        form = "apart"
    elif degree < _NOT_LINEAR and len(results) <= _MAX_STATES:
        form = "linear"
    return Recurrence(
        loop,
        trips,
        form,
        len(results),
        sum(prod(one.shape) * size_of(one.dtype) for one in results),
        {one.name: _role(program, body, one, state) for one in own if one.opcode not in SILENT},
    )


def _called(program: Program, computation: Computation) -> Iterator[Instruction]:
    """Yield the instructions of a computation and of those that it calls."""
    seen, left = set[int](), [computation]
    for each in left:
        if each.id not in seen:
            seen.add(each.id)
            for one in each.instructions.values():
                yield one
                left += program.inner(one) if one.opcode == "call" else ()


def _running_sums(body: Body, collect: int) -> int:
    """Return which sums are used while they grow, as bits: those are a state."""
    found = 0
    for index, at in enumerate(body.results):
        one = body.nodes[body.flow.same(at)]
        users = {*body.flow.users.get(one.id, ())} - {body.flow.computation.root}
        if collect >> index & 1 and one.opcode == "add" and users:
            found |= 1 << index
    return found


def _degree_of(body: Body, state: int) -> int:
    """Return how the next state depends on the state.

    0 = not at all; 1 = it is scaled, element by element, and added to; 2 = otherwise.
    """
    degrees = dict[int, int]()
    for at, inputs in body.flow.inputs.items():
        of = [degrees.get(each, 0) for each in inputs]
        if at in body.elements:
            degrees[at] = state >> body.elements[at] & 1
        else:
            degrees[at] = _degree(body.nodes[at], of) if any(of) else 0
    following = [at for index, at in enumerate(body.results) if state >> index & 1]
    degree = max((degrees[at] for at in following), default=0)
    numbers = all(body.nodes[at].dtype[:1] in ("f", "b", "c") for at in following)  # bf16, c64
    return degree if numbers or not degree else _NOT_LINEAR


def _degree(one: Instruction, of: list[int]) -> int:
    """Return how often the state is a factor of a value, given that of its operands; 2 = too often, or otherwise."""
    if one.opcode in (*_SCALED, "add", "subtract", "tuple"):
        return max(of)
    if one.opcode == "multiply":
        return min(sum(of), _NOT_LINEAR)
    if one.opcode in ("divide", "select"):
        unchanged = of[1] if one.opcode == "divide" else of[0]  # the divisor, or the condition
        return _NOT_LINEAR if unchanged else max(of)
    return _NOT_LINEAR


def _role(program: Program, body: Body, launched: Instruction, state: int) -> Role:
    takes = gives = 0
    parts = list(_parts(program, launched))
    opcodes = {one.opcode for one in parts}
    if opcodes & _WHOLE or opcodes & _SUM:
        return "whole" if opcodes & _WHOLE else "sum"
    for one in parts:
        takes |= body.takes.get(one.id, 0)
        gives |= body.gives.get(one.id, 0)
    return "state" if takes & state and gives & state else "beside"


def _parts(program: Program, launched: Instruction) -> Iterator[Instruction]:
    """Yield an instruction and those that it runs as its own part."""
    seen, left = set[int](), [launched]
    for one in left:
        yield one
        for part in program.inner(one) if one.opcode in RUN else ():
            if part.id not in seen:
                seen.add(part.id)
                left += part.instructions.values()
