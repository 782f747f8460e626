"""Two matrix products in a row make a large matrix only to multiply it by a narrow one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import (
    Product,
    products_of,
    shape_of,
    uses_after,
)
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.stretches import VIEWS
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange

_PRODUCTS: Final = r"^aten::(matmul|mm|bmm|einsum)$"
_GRADIENTS: Final = r"^aten::(mm|bmm|mv|addmm|baddbmm|addmv|dot)$"
#: A product's result is multiplied again within so many calls.
_SOON: Final = 16
#: What makes attention of two products, and cannot be exchanged with them.
_NONLINEAR: Final = r"softmax|masked_fill|dropout|^aten::(tril|triu|where|exp|relu|sigmoid|tanh)_?$"
_VIEWS: Final = re.compile(VIEWS)
#: Copies and other types leave the values as they are.
_COPIES: Final = re.compile(r"^aten::(to|_to_copy|contiguous|clone)$")
#: Scaling of all elements, of rows or of columns can be done to a factor or to the result, and so can these sums.
_SCALES: Final = re.compile(r"^aten::(mul|div)_?$")
_SUMS: Final = "aten::sum"
_OF_ROWS_OR_COLUMNS: Final = ("[-1]", "[-2]")
#: Minimum share of the time of all operators, and maximum share of the operations in the other order.
MIN_SHARE, MAX_PART = 0.02, 0.6
#: Pairs that are inspected, the longest first.
_LOOKED_AT: Final = 200
#: Share of the time that stays, as parts of the shares of operations and of elements moved: likely, least and most
#: helpful. Measured on one core of an EPYC (Zen 5), PyTorch 2.13, float32: 13 pairs of 128 to 1024 rows and 1 to 128
#: columns, with and without their backward pass, keep 0.02 to 0.73. Likely is within 0.09 of that (0.03 for half of
#: them), and below it by up to 0.24 for pairs of less than 0.6 ms.
_OF_OPERATIONS: Final = (1.0, 1.6, 1.0)
_OF_ELEMENTS: Final = (0.08, 0.3, 0.0)
#: On a device products of few operations take as long as memory does.
_OF_ELEMENTS_ON_DEVICE: Final = (0.5, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two products, of which the second takes the result of the first, as indices of calls."""

    first: int
    second: int
    product: Product  # the first
    narrow: int  # columns (or rows) of the second's other factor
    from_left: bool  # whether the first's result is the left factor of the second
    contracted: int  # size of the dimension of the first's result that is summed
    until: int  # the next call of the same product, as in another layer

    @property
    def ambiguous(self) -> bool:
        """Whether a factor of the first product is as large as its result, so that the second may take that factor."""
        return self.product.size in (prod(self.product.left), prod(self.product.right))

    @property
    def operations(self) -> float:
        """Operations of the forward pass in the other order, as a share of those now."""
        one = self.product
        now = one.rows * one.columns * (one.inner + self.narrow)
        return one.inner * self.narrow * (one.rows + one.columns) / now


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a product of a product that takes far fewer operations in the other order, in traces with shapes."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    pairs = {pair: also for pair in _pairs(calls) if (also := _scalings(calls, pair)) is not None}
    if not pairs:
        return
    gradients, keeps = _gradients(calls), [np.ones(len(calls.rows)) for _ in _OF_OPERATIONS]
    for pair, also in pairs.items():
        whole = calls.with_backward(calls.mask([pair.first, pair.second], also))
        for keep, part in zip(keeps, _shares(calls, pair, gradients), strict=True):
            keep[whole] = np.minimum(keep[whole], part)
    which = keeps[0] < 1
    took_ns = calls.took_ns
    share = calls.share_of_time(which)
    if share < MIN_SHARE:
        return
    longest = max(pairs, key=lambda pair: int(took_ns[[pair.first, pair.second]].sum()))
    product, event = longest.product, int(calls.rows[longest.first])
    forward = calls.mask(*([pair.first, pair.second] for pair in pairs))
    yield Finding(
        f"two products in a row make a matrix of {product.rows} × {product.columns} only to multiply it by "
        f"{longest.narrow} {_plural(longest)}, {evidence.how_often(len(pairs))}: {format_rough_share(share)} of the "
        f"time of all operators; the other order takes {format_rough_share(longest.operations)} of their operations",
        evidence.function_of(event) or evidence.place_by_share(forward),
        "the narrow product first: "
        + (
            "a @ (b @ c) instead of (a @ b) @ c"
            if longest.from_left
            else "(c @ a) @ b instead of c @ (a @ b)"
        )
        + " (equal up to rounding); in attention without a softmax, q @ (k.transpose(-2, -1) @ v)",
        "high",
        "the shapes of the products; nothing else uses the large matrix, and it is at most scaled",
        *EditRange(*map(calls.shortened, keeps)),
        event=event,
    )


def _plural(pair: _Pair) -> str:
    return ("column" if pair.from_left else "row") + ("s" if pair.narrow > 1 else "")


def _pairs(calls: Calls) -> Iterator[_Pair]:
    """Yield neighboring products that may be a chain by their shapes, and take fewer operations in the other order."""
    trace, took_ns = calls.trace, calls.took_ns
    products = trace.named(_PRODUCTS, calls.rows) & ~calls.backward
    nonlinear = trace.named(_NONLINEAR, calls.rows) | calls.backward
    found = list[tuple[int, int]]()
    for first in np.flatnonzero(products).tolist():
        for second in calls.after(first, _SOON).tolist():
            if nonlinear[second] or calls.steps[second] != calls.steps[first]:
                break
            if products[second]:
                found.append((first, second))
    found.sort(key=lambda pair: -int(took_ns[list(pair)].sum()))
    found = sorted(found[:_LOOKED_AT])
    known = products_of(calls, np.unique(np.array(found, dtype=np.int64)))
    in_order = sorted(known)
    for first, second in found:
        one, two = known.get(first), known.get(second)
        if one is None or two is None:
            continue
        until = next((at for at in in_order if at > first and known[at] == one), len(calls.rows))
        if until > second and (pair := _chain(first, second, one, two, until)) is not None:
            yield pair


def _chain(first: int, second: int, one: Product, two: Product, until: int) -> _Pair | None:
    """Return two products as a pair if the second may take the result of the first, and the other order is cheaper."""
    large = sorted((one.rows, one.columns))
    for from_left, shape, sizes, narrow in (
        (True, two.left, (two.rows, two.inner), two.columns),
        (False, two.right, (two.inner, two.columns), two.rows),
    ):
        if prod(shape) == one.size and sorted(sizes) == large:
            pair = _Pair(first, second, one, narrow, from_left, two.inner, until)
            if pair.operations <= MAX_PART:
                return pair
    return None


def _scalings(calls: Calls, pair: _Pair) -> list[int] | None:
    """Return the calls that only scale, sum or copy the large matrix; None = something else uses it, too."""
    size, found = pair.product.size, list[int]()
    for index, given in uses_after(calls, pair.first, size):
        name = calls.names[index]
        if index >= pair.until:
            break
        if index == pair.second or _VIEWS.search(name):
            continue
        summed = name == _SUMS and given.values[1:2] and given.values[1] in _OF_ROWS_OR_COLUMNS
        scaled = _COPIES.search(name) or (_SCALES.search(name) and _scales(name, given, size))
        # What is scaled after the second product is used by something else, as may be a factor of the same size.
        if pair.ambiguous or not (summed or (scaled and index < pair.second)):
            return None
        found.append(index)
    return found


def _scales(name: str, given: Arguments, size: int) -> bool:
    """Return whether a matrix is multiplied or divided by a number, or by one for each row or column."""
    left, right = (*map(shape_of, given.dims[:2]), (), ())[:2]
    if "div" not in name and prod(right) == size:
        left, right = right, left
    return prod(left) == size and prod(right) < size and (len(right) < 2 or 1 in right[-2:])


def _shares(calls: Calls, pair: _Pair, gradients: Ints) -> Iterator[float]:
    """Yield the share of its time that a pair keeps in the other order, with its backward pass: likely, least, most."""
    one, narrow = pair.product, pair.narrow
    other = one.rows + one.columns - pair.contracted  # rows of the result
    firsts, seconds = int(gradients[pair.first]), int(gradients[pair.second])
    # As many gradients as now, and at least that of the narrow factor, which goes through both.
    passes = 1 + max((firsts + seconds) / 2, float(firsts + seconds > 0))
    on_device = bool(len(calls.trace.device_work))
    shares = []
    for cost in (_operations, _elements):
        now = cost(one.rows, one.inner, one.columns) * (1 + firsts)
        now += cost(other, pair.contracted, narrow) * (1 + seconds)
        then = cost(one.inner, pair.contracted, narrow) + cost(other, one.inner, narrow)
        shares.append(then * passes / now)
    for of_operations, of_elements in zip(
        _OF_OPERATIONS, _OF_ELEMENTS_ON_DEVICE if on_device else _OF_ELEMENTS, strict=True
    ):
        yield min(of_operations * shares[0] + of_elements * shares[1], 1.0)


def _operations(rows: int, inner: int, columns: int) -> int:
    return rows * inner * columns


def _elements(rows: int, inner: int, columns: int) -> int:
    """Return the elements that a product reads and writes."""
    return rows * inner + inner * columns + rows * columns


def _gradients(calls: Calls) -> Ints:
    """Return how many products the backward nodes of each call compute."""
    inside = calls.inside(calls.trace.operators(_GRADIENTS))
    inside = inside[inside >= 0]
    made_by = calls.forward[inside[calls.backward[inside]]]
    return np.bincount(made_by[made_by >= 0], minlength=len(calls.rows))


RULE = AdviceRule("product-order", find)
