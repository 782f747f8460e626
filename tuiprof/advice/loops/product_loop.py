"""A layer is called on the slices of a tensor one by one: on its channels, frames or heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import in_a_row
from tuiprof.advice.products.shapes import LISTED, Shape, arguments_of, product_of, shape_of, shapes_in
from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls, loops
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Minimum iterations of a loop, maximum calls in each, and iterations whose shapes are read.
MIN_TIMES, _LONGEST, _LOOKED_AT = 6, 40, 64
_SLICES: Final = re.compile(r"^aten::(select|slice|narrow)$")
_PRODUCTS: Final = re.compile(r"^aten::(linear|matmul|mm|conv[123]d)$")
_CONVOLUTION: Final = "aten::conv"
_COPY: Final = "aten::copy_"
#: What takes a tensor apart before a loop, and joins the results after it; within so many calls.
_PARTS: Final = re.compile(r"^aten::(unbind|chunk|split|tensor_split)$")
_JOINS: Final = re.compile(r"^aten::(cat|stack)$")
_NEAR: Final = 6
#: What computes each item of a batch from that item alone. A batch norm in training does not, and what takes a second
#: tensor may take the result of the iteration before.
_ITEM_BY_ITEM: Final = re.compile(
    r"^aten::(_?(reshape|view|unsafe_view)\w*|(un)?squeeze|(un)?flatten|transpose|permute|t|contiguous|clone|to|_to_copy|"
    r"detach|relu|gelu|silu|tanh|sigmoid|elu|leaky_relu|softplus|hardswish|dropout|layer_norm|group_norm|rms_norm|"
    r"(log_)?softmax|(max|avg|adaptive_avg|adaptive_max)_pool[123]d\w*|mean|sum|pad|constant_pad_nd)_?$"
)
_MAY_BE: Final = re.compile(
    "|".join((_SLICES.pattern, _PRODUCTS.pattern, _ITEM_BY_ITEM.pattern, f"^{_COPY}$"))
)
#: Calls that take longer on average compute more than they cost beside that; kernels, too.
_LONGEST_NS, _LONGEST_KERNEL_NS = 200_000, 15_000
#: Minimum share of the time of all operators.
MIN_SHARE: Final = 0.02
#: Operations that one core computes of the batched call in a second: likely, least and most helpful. Measured on one
#: core of an EPYC (Zen 5), PyTorch 2.13, 17 loops over 8 to 321 slices, forward and backward: 1.6e10 to 7.1e10. They
#: keep 0.06 to 0.91 of their time, one (convolutions of 64 by 64 values) 1.3.
_RATES: Final = (3e10, 1e10, 8e10)
#: Forward and backward pass, as a multiple of the forward pass alone.
_WITH_BACKWARD: Final = 3
#: Share of the device work that stays: likely, least and most helpful; estimated, as that of other loops.
_KEEP_WORK: Final = (0.3, 1.0, 0.1)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over slices; calls as indices."""

    calls: Ints  # those of all iterations
    body: tuple[str, ...]  # names of those of an iteration
    times: int  # iterations
    operations: float  # of the products of all iterations; 0 = unknown


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops whose products take a slice each, the next one in each iteration."""
    calls = evidence.calls
    of_bodies: dict[tuple[str, ...], list[Loop]] = {}
    for loop in loops_over_slices(trace):
        of_bodies.setdefault(loop.body, []).append(loop)
    for found in of_bodies.values():
        yield from _finding(evidence, calls, found)


def _finding(evidence: Evidence, calls: Calls, found: list[Loop]) -> Iterator[Finding]:
    trace = evidence.trace
    forward = calls.mask(*(loop.calls for loop in found))
    own = _gradients_of_own(calls, forward)
    several = len(own) >= sum(loop.times for loop in found)
    which = calls.with_backward(forward) | calls.mask(own if several else list[int]())
    share = float(trace.lengths(calls.rows[which]).sum() / max(trace.lengths(calls.rows).sum(), 1))
    if max(share, calls.share_of_time(which)) < MIN_SHARE:
        return
    largest = max(found, key=lambda loop: len(loop.calls))
    event = int(calls.rows[largest.calls[0]])
    names = [name.removeprefix("aten::") for name in largest.body]
    product = next(operator_label(name) for name in largest.body if _PRODUCTS.search(name))
    yield Finding(
        f"a loop calls {product} on the slices of a tensor one by one, {largest.times} times in a row"
        + (f", {evidence.how_often(len(found))}" if len(found) > evidence.step_count else "")
        + f": {in_a_row(names)}; {format_rough_share(share)} of the time of all operators, backward pass included",
        evidence.line_in(largest.calls) or evidence.function_of(event) or evidence.place_by_share(forward),
        "one call for all slices: "
        + (
            "stack the weights of the layers in one parameter, and torch.baddbmm(biases, slices, weights), or a "
            "convolution with groups"
            if several
            else "the layer takes the whole tensor, with the dimension of the loop as a part of the batch: "
            "layer(x.flatten(0, 1)); if each slice has weights of its own, torch.bmm with stacked weights"
        ),
        "high" if largest.operations else "medium",
        "each iteration takes the next slice or part, and nothing of the iteration before"
        if largest.operations
        else "each iteration takes a slice, has one product, and keeps its result",
        *EditRange(*(_edit(calls, found, own if several else [], at) for at in range(3))),
        event=event,
    )


def _gradients_of_own(calls: Calls, forward: Mask) -> list[int]:
    """Return the calls that store gradients of weights right after the backward nodes of some calls, as indices."""
    stores = calls.trace.named(ACCUMULATE, calls.rows)
    nodes = np.where(calls.backward & ~stores, np.arange(len(calls.rows)), 0)
    last = np.maximum.accumulate(nodes)
    made_by = calls.forward[last]
    found: list[int] = np.flatnonzero(stores & (made_by >= 0) & forward[made_by]).tolist()
    return found


def _edit(calls: Calls, found: list[Loop], own: list[int], at: int) -> Edit:
    """Return the edit in which the slices of each loop are one call: likely, least or most helpful."""
    trace, keep = calls.trace, np.ones(len(calls.rows))
    on_device = bool(len(trace.device_work))
    stays = 1 / float(np.median([loop.times for loop in found]))
    for loop in found:
        mine = calls.with_backward(calls.mask(loop.calls))
        keep[mine] = 1 / loop.times
        if not on_device:
            passes = _WITH_BACKWARD if (mine & calls.backward).any() else 1
            computes_ns = loop.operations * passes / _RATES[at] * 1e9
            keep[mine] = min(
                1 / loop.times + computes_ns / max(trace.lengths(calls.rows[mine]).sum(), 1), 1.0
            )
    keep[own] = stays
    works = np.maximum(np.append(keep, 1.0)[calls.call_of_work], _KEEP_WORK[at])
    return calls.edit(keep < 1, keep, works)


def over_slices(calls: Calls) -> Mask:
    """Return which calls are in a loop over slices."""
    return calls.mask(*(loop.calls for loop in loops_over_slices(calls.trace)))


@cached_on_trace
def loops_over_slices(trace: Trace) -> list[Loop]:
    """Return the loops of short calls whose products each take a slice of a tensor, the next one in each iteration.

    Without shapes, in a trace with device work, these are loops that take a slice right before their only product, and
    join or store its results.
    """
    calls = calls_of(trace)
    aside = calls.backward | updates(trace).hold(calls.rows) | calls.begin_in(fetches(trace))
    forward = np.flatnonzero(~aside & trace.named("^aten::", calls.rows))
    keys = calls.tracks[forward].astype(np.int64) * (len(trace.steps) + 1) + calls.steps[forward] + 1
    found = list[Loop]()
    for key in np.unique(keys).tolist():
        run = forward[keys == key]
        for first, period, times in loops(calls.codes[run], _LONGEST, MIN_TIMES):
            if (loop := _over_slices(calls, run[first : first + period * times], period)) is not None:
                found.append(loop)
    return found


def _over_slices(calls: Calls, whole: Ints, period: int) -> Loop | None:
    """Return a loop, if it is one over slices."""
    names = calls.names_of(whole[:period])
    if not all(_MAY_BE.search(name) for name in names):
        return None
    # An iteration begins with the slice that the first product takes, if it is not a part that was made before.
    begin = next((at for at in range(period) if _is_taken(names[at:] + names[:at])), None)
    whole, body = whole[begin or 0 :], names[begin or 0 :] + names[: begin or 0]
    times = len(whole) // period
    whole = whole[: times * period]
    trace = calls.trace
    if times < MIN_TIMES or trace.lengths(calls.rows[whole]).mean() >= _LONGEST_NS:
        return None
    if len(trace.device_work):
        works = calls.work_count[whole].sum()
        if not works or calls.work_ns[whole].sum() >= _LONGEST_KERNEL_NS * works:
            return None
    looked_at = whole.reshape(times, period)[:_LOOKED_AT]
    known, operations = arguments_of(calls, looked_at.ravel()), 0.0
    if known:
        if len(known) < looked_at.size:
            return None
        given = [[known[index] for index in row] for row in looked_at.tolist()]
        taken = _part(calls, whole, times, given[0][0]) if begin is None else 0
        if begin is None and not taken:
            return None
        if not _take_the_next(body, given, taken) or not (operations := _operations(body, given[0])):
            return None
    elif begin is None or not len(trace.device_work) or not _is_likely(calls, body, int(whole[-1])):
        return None
    return Loop(calls.between(int(whole[0]), int(whole[-1])), body, times, operations * times)


def _part(calls: Calls, whole: Ints, times: int, first: Arguments) -> int:
    """Return the elements of the parts of a tensor that the iterations take, and whose results are joined; 0 = none.

    The tensor is taken apart right before the loop, into as many parts as are joined right after it.
    """
    taken = prod(shape_of(first.dims[0]))
    before = np.arange(max(int(whole[0]) - _NEAR, 0), int(whole[0]))
    after = calls.after(int(whole[-1]), _NEAR)
    apart = [
        index
        for index, given in arguments_of(calls, before).items()
        if _PARTS.search(calls.names[index]) and prod(shape_of(given.dims[0])) == times * taken
    ]
    joined = [
        index
        for index, given in arguments_of(calls, after).items()
        if _JOINS.search(calls.names[index])
        and len(list(shapes_in(given.dims))) in (times, 0 if times > LISTED else times)
    ]
    return taken if apart and joined else 0


def _is_likely(calls: Calls, body: tuple[str, ...], last: int) -> bool:
    """Return whether a loop without shapes may be one over slices: its only product is of a layer, its results joined.

    Layers whose weights are slices look the same, but each works on the result of the one before.
    """
    products = [name for name in body if _PRODUCTS.search(name)]
    following = calls.names_of(calls.after(last, 1))
    joined = _COPY in body or any(_JOINS.search(name) for name in following)
    return len(products) == 1 and products[0] not in ("aten::matmul", "aten::mm") and joined


def _is_taken(names: tuple[str, ...]) -> bool:
    """Return whether the first of some calls is a slice, which a product takes: at most views lie between."""
    after = next((name for name in names[1:] if not _ITEM_BY_ITEM.search(name)), "")
    return _SLICES.search(names[0]) is not None and _PRODUCTS.search(after) is not None


def _take_the_next(body: tuple[str, ...], given: Sequence[Sequence[Arguments]], size: int) -> bool:
    """Return whether the products of each iteration take the next slice, or what was computed of it there.

    ``size`` are the elements of a part that each iteration takes instead; 0 = it takes slices.
    """
    inputs, others = list[tuple[Shape, int, list[int]]](), list[tuple[Shape, int, list[int]]]()
    for at, name in enumerate(body):
        column = [row[at] for row in given]
        source = shape_of(column[0].dims[0])
        if not _SLICES.search(name):
            sizes = {tuple(map(shape_of, each.dims[:2])) for each in column}
            if len(sizes) > 1 or (name != _COPY and size and prod(source) != size):
                return False
            if name != _COPY:
                size = _size_after(name, column[0], size)
            continue
        places = [place for each in column if (place := _place(name, each)) is not None]
        if len(places) < len(column) or len({place[:2] for place in places}) != 1:
            return False
        _, dim, _, taken = places[0]
        slices = (source, dim, [number for _, _, number, _ in places])
        if not _is_taken(body[at:] + body[:at]):
            others.append(slices)
            continue
        if len(moves := set(np.diff(slices[2]).tolist())) != 1 or moves == {0}:
            return False
        inputs.append(slices)
        size = taken
    # What an iteration writes, the next one must not take.
    return not any(one[0] == other[0] and one != other for one in inputs for other in others)


def _place(name: str, given: Arguments) -> tuple[Shape, int, int, int] | None:
    """Return what a slice is taken of, in which dimension and where, and its elements; None = unknown."""
    source = shape_of(given.dims[0])
    try:
        dim, start, *more = (int(value) for value in given.values[1:5])
        dim, size = dim % len(source), source[dim]
        start = start % size
        many = 1
        if name != "aten::select":
            many = len(range(size)[slice(start, more[0])]) if name == "aten::slice" else more[0]
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return None
    return source, dim, start, prod(source) // size * many


def _size_after(name: str, given: Arguments, size: int) -> int:
    """Return the elements of the result of a product, or of what is computed item by item; 0 = unknown."""
    if name == "aten::linear":
        left, right = (*map(shape_of, given.dims[:2]), (), ())[:2]
        return prod(left[:-1]) * right[0] if right else 0
    if _PRODUCTS.search(name):
        product = None if name.startswith(_CONVOLUTION) else product_of(given)
        return product.size if product is not None else 0
    return 0 if re.search(r"pool|mean|sum|pad", name) else size


def _operations(body: tuple[str, ...], given: Sequence[Arguments]) -> float:
    """Return the operations of the products of an iteration; 0 = a product has no shapes, or they do not fit."""
    operations = 0.0
    for name, each in zip(body, given, strict=True):
        if not _PRODUCTS.search(name):
            continue
        left, right = (*map(shape_of, each.dims[:2]), (), ())[:2]
        if not left or not right:
            return 0.0
        if name.startswith(_CONVOLUTION):
            strides = [int(number) for number in re.findall(r"\d+", str(each.values[3:4]))]
            operations += 2.0 * left[0] * prod(right) * prod(left[2:]) / max(prod(strides), 1)
        else:
            columns = right[0] if name == "aten::linear" else right[-1]
            operations += 2.0 * prod(left) * columns
    return operations


RULE = AdviceRule("product-loop", find)
