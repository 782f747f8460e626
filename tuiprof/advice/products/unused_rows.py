"""A product computes many rows of which few are used, as the scores of all words at each place of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import Shape, arguments_of, shape_of, shapes_in, uses_after
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.units import format_count, format_rough_share
from tuiprof.whatif import EditRange

#: Products with a weight: of a matrix of ``columns × inner``, and of one of ``inner × columns``.
_LINEAR: Final = "aten::linear"
_PRODUCTS: Final = r"^aten::(linear|matmul|mm)$"
_TAKES_ROWS: Final = r"^aten::(select|slice|narrow|index|index_select)$"
_PICKS: Final = re.compile(_TAKES_ROWS)
_VIEWS: Final = re.compile(
    r"^aten::(_?(reshape|view|unsafe_view)\w*|(un)?squeeze|flatten|unflatten|detach|alias|expand)$"
)
#: What computes a row of its result from the same row of its input.
_ROW_BY_ROW: Final = re.compile(
    r"^aten::(to|_to_copy|contiguous|clone|(log_)?softmax|relu|gelu|silu|tanh|sigmoid|elu|leaky_relu|layer_norm|"
    r"rms_norm)_?$"
)
_SCALES: Final = re.compile(r"^aten::(mul|div|add|sub)_?$")
#: Something picks rows within so many calls, and something uses these within so many after that.
_SOON: Final = 8
#: Minimum share of the time of all operators, maximum share of the rows that are used, and products that are inspected.
MIN_SHARE, MAX_USED, _LOOKED_AT = 0.02, 0.5, 100
#: Rows whose time the weights take by themselves, which are read (and whose gradients are written) however few rows
#: there are: likely, least and most helpful. Measured on one core of an EPYC (Zen 5), PyTorch 2.13, float32, weights of
#: 1 to 2 million values: 4 to 32 rows, with and without the backward pass. On a device estimated.
_OF_WEIGHTS: Final = (16.0, 40.0, 4.0)
_OF_WEIGHTS_ON_DEVICE: Final = (150.0, 600.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of which few rows are used, as indices of calls."""

    product: int
    calls: tuple[int, ...]  # it, what goes before it row by row, and what is done with its result
    picks: tuple[int, ...]  # what takes rows of it
    rows: int
    used: int  # rows that are taken
    is_counted: bool  # their number follows from what takes them; else the shape of the next result tells it
    columns: int


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products of which only a part of the rows is picked by an index, in traces with shapes."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    found = list(_products(calls))
    if not found:
        return
    which = calls.with_backward(calls.mask(*([*one.calls, *one.picks] for one in found)))
    share = calls.share_of_time(which)
    if share < MIN_SHARE:
        return
    on_device = bool(len(trace.device_work))
    keeps = []
    for extra in _OF_WEIGHTS_ON_DEVICE if on_device else _OF_WEIGHTS:
        keep = np.ones(len(calls.rows))
        for one in found:
            mine = calls.with_backward(calls.mask([*one.calls, *one.picks]))
            keep[mine] = np.minimum(keep[mine], (one.used + extra) / one.rows)
        keeps.append(keep)
    largest = max(found, key=lambda one: one.rows * one.columns)
    event = int(calls.rows[largest.product])
    forward = calls.mask(*(list(one.calls) for one in found))
    name = calls.names[largest.picks[0]].removeprefix("aten::")
    yield Finding(
        f"a product computes {format_count(largest.rows)} rows of {format_count(largest.columns)} values, of which "
        f"{format_count(largest.used)} are used ({name}), {evidence.how_often(len(found))}: "
        f"{format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(forward),
        "pick the rows before the product: head(x[:, -1]) instead of head(x)[:, -1], head(x[mask]) instead of "
        "head(x)[mask]; in Transformers, model(…, logits_to_keep=1)",
        "high" if all(one.is_counted for one in found) else "medium",
        "the shapes of the product and of what is picked; nothing else uses its result",
        *EditRange(*map(calls.shortened, keeps)),
        event=event,
    )


def _products(calls: Calls) -> Iterator[_Product]:
    """Yield the products of which at most half of the rows are used."""
    trace, took_ns = calls.trace, calls.took_ns
    products, picks = (
        trace.named(pattern, calls.rows) & ~calls.backward for pattern in (_PRODUCTS, _TAKES_ROWS)
    )
    of_products = np.flatnonzero(products)
    # One of the next calls picks: views and conversions may lie between.
    followed = [bool(picks[calls.after(one, _SOON)].any()) for one in of_products.tolist()]
    of_products = of_products[np.array(followed, dtype=bool)]
    of_products = of_products[np.argsort(-took_ns[of_products], kind="stable")[:_LOOKED_AT]]
    known = arguments_of(calls, of_products)
    soon = [calls.after(one, _SOON) for one in known]
    arguments_of(calls, np.concatenate((of_products, *soon)))  # all at once, as most uses follow soon
    for product in known:
        if (result := _result(calls.names[product], known[product])) and (
            found := _used(calls, product, result)
        ):
            yield found


def _result(name: str, given: Arguments) -> Shape:
    """Return the shape of the result of a product with a weight; empty = it is none."""
    left, right = (*map(shape_of, given.dims[:2]), (), ())[:2]
    if len(left) < 2 or len(right) != 2:
        return ()
    inner, columns = reversed(right) if name == _LINEAR else right
    return (*left[:-1], columns) if inner == left[-1] else ()


def _used(calls: Calls, product: int, result: Shape) -> _Product | None:
    """Return what is used of a product; None = more than half of its rows, or it is not known."""
    size, columns = prod(result), result[-1]
    done, picks, used, is_counted = [product], list[int](), 0, True
    for index, given in uses_after(calls, product, size):
        name = calls.names[index]
        if _is_pick(name, given, size, columns):
            if "index" in name:
                # A mask has an element for each row, so only what is made of the rows tells how many there are.
                indices = max((prod(shape) for shape in shapes_in(given.dims[1:])), default=0)
                is_mask = indices * columns >= size
                picked = _rows_soon(calls, index, size, columns, 1 if is_mask else indices)
                is_counted &= indices > 0 and not is_mask
            else:
                picked = _picked(name, given)
            if picked * columns < size:
                picks.append(index)
                used += picked
            if not picked or used * columns > MAX_USED * size:
                return None
        elif _row_by_row(name, given, columns) and not picks:
            done.append(index)
        elif not _VIEWS.search(name):
            return None
    if not picks:
        return None
    done = [*_before(calls, product), *done]
    return _Product(product, tuple(done), tuple(picks), size // columns, used, is_counted, columns)


def _is_pick(name: str, given: Arguments, size: int, columns: int) -> bool:
    """Return whether a call takes rows out of a tensor whose last dimension is that of the product."""
    source = shape_of(given.dims[0])
    return _PICKS.search(name) is not None and prod(source) == size and source[-1:] == (columns,)


def _picked(name: str, given: Arguments) -> int:
    """Return how many rows a select, slice or narrow takes; 0 = it takes columns, or its values are not known."""
    source = shape_of(given.dims[0])
    try:
        dim, *values = (int(value) for value in given.values[1:5])
        size = source[dim]
        many = 1
        if name != "aten::select":
            many = len(range(size)[slice(*values)]) if name == "aten::slice" else values[1]
    except (TypeError, ValueError, IndexError):
        return 0
    return prod(source[:-1]) // size * many if dim % len(source) < len(source) - 1 else 0


def _rows_soon(calls: Calls, index: int, size: int, columns: int, indices: int) -> int:
    """Return how many rows an index takes, by the next call that has so many columns; 0 = unknown.

    Each of the indices takes as many of them.
    """
    for given in arguments_of(calls, calls.after(index, _SOON)).values():
        for shape in shapes_in(given.dims):
            rows = prod(shape[:-1])
            if len(shape) > 1 and shape[-1] == columns and prod(shape) < size and rows % max(indices, 1) == 0:
                return rows
    return 0


def _row_by_row(name: str, given: Arguments, columns: int) -> bool:
    """Return whether a call computes each row of its result from the same row of its input."""
    source, other = (*map(shape_of, given.dims[:2]), (), ())[:2]
    if _SCALES.search(name):
        return other in ((), (1,), (columns,))
    last = given.values[1:2] in (["-1"], [str(len(source) - 1)]) or "softmax" not in name
    return last and _ROW_BY_ROW.search(name) is not None


def _before(calls: Calls, product: int) -> list[int]:
    """Return the calls right before a product whose rows are used by it alone, as those of a head of two layers."""
    found, at = list[int](), product
    nearby = np.arange(max(product - _SOON, 0), product + 1)
    nearby = nearby[(calls.tracks[nearby] == calls.tracks[product]) & ~calls.backward[nearby]]
    nearby = nearby[calls.steps[nearby] == calls.steps[product]]
    known = arguments_of(calls, nearby)
    for index in reversed(nearby[:-1].tolist()):
        if (given := known.get(index)) is None:
            break
        name, needed = calls.names[index], prod(shape_of(known[at].dims[0]))
        result = _result(name, given)
        if prod(result or shape_of(given.dims[0])) != needed or not (result or _row_by_row(name, given, 0)):
            break
        if any(
            one not in (product, *found) and not _VIEWS.search(calls.names[one])
            for one, _ in uses_after(calls, index, needed)
        ):
            break
        found.append(index)
        at = index
    return found[::-1]


RULE = AdviceRule("unused-rows", find)
