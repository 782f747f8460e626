"""Shapes of the arguments of framework calls, and of their matrix products, as the trace records them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from tuiprof.analyses.shared.arguments import Arguments, arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace

Shape = tuple[int, ...]
#: The profiler records the shapes of at most so many tensors of a list; of longer lists, none.
LISTED: Final = 30


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products of matrices of ``rows × inner`` and ``inner × columns``; a vector is one row or column."""

    left: Shape  # shape of its left operand
    right: Shape  # shape of its right operand
    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.batch * self.rows * self.columns


def shape_of(dims: Any) -> Shape:
    """Return the shape of an argument; empty = it is none, or a number."""
    whole = isinstance(dims, list) and all(type(size) is int and size > 0 for size in dims)
    return tuple(dims) if whole else ()


def shapes_in(dims: Any) -> Iterator[Shape]:
    """Yield the shapes of the tensors among arguments, also of those in lists."""
    if shape := shape_of(dims):
        yield shape
    elif isinstance(dims, list):
        for one in dims:
            yield from shapes_in(one)


def product_of(given: Arguments) -> Product | None:
    """Return what an operator multiplies that takes two matrices, or batches of them; None = its shapes do not fit."""
    left, right = ((*map(shape_of, given.dims[:2]), (), ()))[:2]
    if not left or not right:
        return None
    rows, inner = left[-2:] if len(left) > 1 else (1, left[0])
    also, columns = right[-2:] if len(right) > 1 else (right[0], 1)
    batch = max(prod(left[:-2]), prod(right[:-2]))
    return Product(left, right, batch, rows, inner, columns) if inner == also else None


#: Arguments that are kept.
_MAX_KEPT: Final = 5_000


def arguments_of(calls: Calls, which: Ints) -> dict[int, Arguments]:
    """Return the arguments of some calls, given as indices, by their index, in order, without those without shapes.

    They are kept, and many are read faster at once than one after the other.
    """
    read, which = _read(calls.trace), np.unique(which)
    if len(read) > _MAX_KEPT:
        read.clear()
    rows = calls.rows[which]
    missing = rows[[row not in read for row in rows.tolist()]]
    read |= dict.fromkeys(missing.tolist())
    read |= arguments(calls.trace, missing)
    known = zip(which.tolist(), map(read.get, rows.tolist()), strict=True)
    return {index: given for index, given in known if given is not None}


@cached_on_trace
def _read(_trace: Trace) -> dict[int, Arguments | None]:
    """Return the arguments that were read, by row; None = the trace has none of it."""
    return {}


#: Calls of a step in which the uses of a result are looked for, and how many of them are read at once; other threads
#: make at most so many calls for each.
_LATER, _AT_ONCE, _THREADS = 960, 8, 4


def uses_after(calls: Calls, index: int, size: int) -> Iterator[tuple[int, Arguments]]:
    """Yield the calls after one that take a tensor of so many elements, as indices, in order.

    They are on its thread, in its step, and before a backward pass; at most :data:`_LATER` are looked at.
    """
    later = calls.after(index, _LATER * _THREADS)
    later = later[calls.steps[later] == calls.steps[index]]
    later = later[: np.argmax(np.append(calls.backward[later], True))][:_LATER]
    for low in range(0, len(later), _AT_ONCE):
        for after, given in arguments_of(calls, later[low : low + _AT_ONCE]).items():
            if any(prod(shape) == size for shape in shapes_in(given.dims)):
                yield after, given


def products_of(calls: Calls, which: Ints) -> dict[int, Product]:
    """Return the product of each of some calls, given as indices; of an einsum, the only one that it calls."""
    trace = calls.trace
    einsum = trace.named("^aten::einsum$", calls.rows[which])
    given = arguments_of(calls, which[~einsum])
    inside = trace.operators(r"^aten::(mm|bmm)$") if einsum.any() else calls.rows[:0]
    at = calls.inside(inside)
    many = np.bincount(at[at >= 0], minlength=len(calls.rows) + 1)
    chosen = np.isin(at, which[einsum]) & (many[at] == 1)
    at_row = dict(zip(inside[chosen].tolist(), at[chosen].tolist(), strict=True))
    given |= {at_row[row]: each for row, each in arguments(trace, inside[chosen])}
    return {index: found for index, each in given.items() if (found := product_of(each)) is not None}
