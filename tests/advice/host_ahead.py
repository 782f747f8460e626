"""A small builder of steps whose device never waits for the host: what is left out of them is saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from analyses.made import Made, with_arguments

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


def gpu_bound(*ops: Op, steps: int = 4, around: str = "", **info: Any) -> Trace:
    """Steps whose host runs ahead of its device.

    Args:
        *ops: Operator, its kernel and how long that takes, µs, one after the other.
        steps: How many steps.
        around: A range around all of a step's operators.
        **info: Fields of the trace's info.
    """
    made, correlation, free = Made(), 0, 20.0
    length = 10 + 10 * len(ops)
    for _, at in made.steps(length, steps):
        if around:
            made.add("annotation", around, at + 1, at + length - 1)
        for index, (operator, kernel, works) in enumerate(ops):
            begin, correlation = at + 5 + 10 * index, correlation + 1
            made.op(operator, begin, begin + 8, sequence=correlation)
            made.launch(kernel, (begin + 2, begin + 5), (free, free + works), correlation)
            free += works
    return made.trace(**info)


class Steps:
    """Steps of a device that its host is ahead of: each operator has one kernel or none."""

    def __init__(self) -> None:
        self.made = Made()
        self._at, self._free, self._number = 0.0, 30.0, 0
        self._begun = 0.0
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
            self.made.op(inside, begin + 1, self._at - 2, track=columns.get("track", 0))
        for index, (kernel, works) in enumerate(kernels):
            self._number += 1
            call = (begin + 10 * index + 2, begin + 10 * index + 4)
            self.made.call("cudaLaunchKernel", *call, correlation=self._number, track=columns.get("track", 0))
            self.made.kernel(kernel, self._free, self._free + works, self._number)
            self._free += works
        return self

    @property
    def now(self) -> float:
        """When the next operator begins, µs."""
        return self._at

    def within(
        self, name: str, *ops: tuple[str, tuple[tuple[str, float], ...]], first: int | None = None
    ) -> Steps:
        """Add a range with operators, whose autograd nodes are numbered from ``first`` on."""
        begin = self._at
        self._at += 1
        for index, (op, kernels) in enumerate(ops):
            self.op(op, kernels, sequence=None if first is None else first + index)
        self._at += 1
        self.made.add("annotation", name, begin, self._at)
        return self

    def each(self, count: int = 4) -> Iterator[int]:
        """Make steps: yield the number of each, and end it where the next one begins."""
        for number in range(count):
            yield number
            self.end()

    def end(self) -> None:
        """End a step."""
        number = sum(row["name"].startswith("ProfilerStep") for row in self.made.rows)
        self.made.step(number, self._begun, self._at)
        self._begun = self._at

    def trace(self) -> Trace:
        """Return the trace."""
        trace = self.made.trace()
        return with_shapes(trace, self._dims, self._values) if self._dims else trace
