"""A small builder of steps whose device never waits for the host: what is left out of them is saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from analyses.made import MAIN, Made, with_arguments

from tuiprof.model import Trace

#: An operator, its kernel and how long that takes, µs.
Op = tuple[str, str, float]


def with_shapes(trace: Trace, dims: Sequence[Any], values: Sequence[list[str]] = ()) -> Trace:
    """Give the operators of a trace these shapes of their inputs, in order, and these values."""
    of = {
        ordinal: {"Input Dims": shapes, "Concrete Inputs": concrete}
        for ordinal, shapes, concrete in zip(
            trace.ints("ordinal", trace.operators()).tolist(), dims, values or [[]] * len(dims), strict=True
        )
    }
    return with_arguments(trace, lambda ordinal: of.get(ordinal, {}))


class Steps:
    """Steps of a device that its host is ahead of: each operator has one kernel or none."""

    def __init__(self) -> None:
        self.made = Made()
        self._at, self._free = 0.0, 30.0
        self._begun, self._ended = 0.0, 0  # the step, and how many there were before
        self._dims: list[Any] = []
        self._values: list[list[str]] = []

    def op(
        self,
        name: str,
        kernels: tuple[tuple[str, float], ...] = (),
        inside: str = "",
        dims: Any = None,
        values: Sequence[str] = (),
        **columns: Any,
    ) -> Steps:
        """Add an operator with what it launches, each with its µs, and one that lies inside of it.

        ``dims`` are the shapes of its inputs; then all operators have them, and nothing lies inside of one. ``values``
        are those of its other inputs, as the trace writes them.
        """
        if dims is not None:
            self._dims.append(dims)
            self._values.append(list(values))
        begin = self._at
        self._at += 10 * max(len(kernels), 1)
        self.made.op(name, begin, self._at - 1, **columns)
        if inside:
            self.made.op(inside, begin + 1, self._at - 2, track=columns.get("track", MAIN))
        for index, (kernel, works) in enumerate(kernels):
            call = (begin + 10 * index + 2, begin + 10 * index + 4)
            work = self._free, self._free + works
            self.made.launch(kernel, call, work, thread=columns.get("track", MAIN))
            self._free += works
        return self

    @property
    def now(self) -> float:
        """When the next operator begins, µs."""
        return self._at

    def within(
        self, name: str, *ops: tuple[str, tuple[tuple[str, float], ...]], first: int | None = None
    ) -> Steps:
        """Add a range, if it has a name, with operators, whose autograd nodes are numbered from ``first`` on."""
        begin = self._at
        self._at += 1
        for index, (op, kernels) in enumerate(ops):
            self.op(op, kernels, sequence=None if first is None else first + index)
        self._at += 1
        if name:
            self.made.add("annotation", name, begin, self._at)
        return self

    def each(self, count: int = 4) -> Iterator[int]:
        """Make steps: yield the number of each, and end it where the next one begins."""
        for number in range(count):
            yield number
            self.end()

    def end(self) -> None:
        """End a step."""
        self.made.step(self._ended, self._begun, self._at)
        self._ended, self._begun = self._ended + 1, self._at

    def trace(self, **info: Any) -> Trace:
        """Return the trace; fields of its info may be given."""
        trace = self.made.trace(**info)
        return with_shapes(trace, self._dims, self._values) if self._dims else trace


def gpu_bound(*ops: Op, steps: int = 4, around: str = "", **info: Any) -> Trace:
    """Steps whose host runs ahead of its device.

    Args:
        *ops: Operator, its kernel and how long that takes, µs, one after the other.
        steps: How many steps.
        around: A range around all of a step's operators.
        **info: Fields of the trace's info.
    """
    made = Steps()
    for number in made.each(steps):
        calls = [(operator, ((kernel, works),)) for operator, kernel, works in ops]
        made.within(around, *calls, first=1 + number * len(ops))
    return made.trace(**info)
