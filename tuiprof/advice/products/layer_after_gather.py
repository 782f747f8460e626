"""A layer that computes each row by itself comes after a gather that repeats rows, as in messages of a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import arguments_of, shape_of, shapes_in
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.compiled.gathers import GatheredProducts, Remains, gathered_products
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share, plural
from tuiprof.whatif import Edit, EditRange

_GATHERS: Final = r"^aten::(index_select|index|embedding)$"
_IS_GATHER: Final = re.compile(_GATHERS)
_JOINS: Final = r"^aten::(cat|concat)$"
_LAYER: Final = "aten::linear"
#: What computes each row of its result from the same row of its input, and draws no random numbers.
_ROW_BY_ROW: Final = re.compile(
    r"^aten::(relu|gelu|silu|elu|selu|mish|hardswish|leaky_relu|tanh|sigmoid|softplus|layer_norm|rms_norm)_?$"
)
#: What keeps the rows of what it takes: a difference of rows of both ends is a product of each, too.
_KEPT: Final = ("aten::sub", "aten::to", "aten::_to_copy", "aten::contiguous", "aten::view", "aten::reshape")
#: What adds up the rows of each target, as of messages and neighbors.
_ADDS_UP: Final = re.compile(
    r"^aten::(index_(add|put|reduce)|scatter(_add|_reduce)?|segment_reduce|sum|mean|amax|max)_?$|^torch_scatter::"
)
#: Calls that are looked at after a gather, and after the layers until their results are added up.
_SOON, _LATER = 8, 40
#: Rows after the gather for each before it, at least, and gathers that are inspected, the longest.
_MIN_REPEATS, _LOOKED_AT = 1.5, 200
#: Minimum share of the time of all operators.
_MIN_SHARE: Final = 0.02
#: What remains of the calls, as multiples of the share of rows that remain: likely, least and most helpful. Fewer rows
#: keep a device less busy. Estimates.
_KEEP: Final = (1.0, 2.0, 0.7)
_APART: Final = (
    "multiply each part by its own rows of the weight (of a Linear, columns) before the gather, as "
    "(x @ w[:n])[index] + y @ w[n:], which computes the same from fewer rows, forward and backward"
)
_LEAST: Final = 1  # the least helpful of them


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Gathers and the layers after them, as indices of calls."""

    gathers: tuple[int, ...]
    layers: tuple[int, ...]
    remains: Remains  # of the layers' work
    repeats: float  # rows after the first gather for each before it
    widens: float  # values of a row after the layers for each of a row that is gathered
    cat: int = -1  # what joins the gathered rows with others; -1 = nothing
    moved: float = 1.0  # values that adding the layers' results moves for each that joining moves


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layers on gathered rows that could be applied before the gather, to fewer rows."""
    yield from _compiled(trace, evidence) if evidence.is_jax else _called(trace, evidence)


@dataclass(frozen=True, slots=True)
class _Launched:
    """The products of one line of a compiled program with gathered rows, and what they launched."""

    line: GatheredProducts
    #: Rows of the launches of each product, and how much of it remains.
    products: list[tuple[Ints, Remains]]
    #: Rows of what gathers and adds up, and how many values it then moves for each one now.
    gathers: list[tuple[Ints, float]]

    @property
    def rows(self) -> Ints:
        """Rows of the products."""
        return np.concatenate([rows for rows, _ in self.products])

    def edit(self, trace: Trace, part: int) -> Edit:
        """Return the change in which the products come before the gathers; ``part`` indexes the estimates."""
        more, edits = 0.0, list[Edit]()
        for rows, moved in self.gathers:
            stays = self.line.others or part == _LEAST
            more += max(moved - (not self.line.others), 0.0) * float(trace.lengths(rows).sum())
            edits.append(Edit.of_work(rows, 1.0 if stays else min(moved, 1.0)))
        more /= max(float(trace.lengths(self.rows).sum()), 1.0)
        edits += (
            Edit.of_work(rows, min(remains.keep(_KEEP[part]) + more, 1.0)) for rows, remains in self.products
        )
        return Edit.all_of(edits)


def _compiled(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for them in compiled programs."""
    if not trace.device_indices:
        return
    done, found = carried_out(trace), list[_Launched]()
    for program in done.programs:
        rows_of = done.rows_of(program)
        for line in gathered_products(program):
            products = [
                (rows_of[carrier.name], remains)
                for _, carrier, remains in line.products
                if carrier.name in rows_of
            ]
            gathers = [(rows_of[name], moved) for name, moved in line.moved.items() if name in rows_of]
            if products:
                found.append(_Launched(line, products, gathers))
    share = sum(evidence.share_of_device_time(one.rows) for one in found)
    if share < _MIN_SHARE:
        return
    largest = max(found, key=lambda one: int(trace.lengths(one.rows).sum()))
    lines = [source_of(one.line.products[0][0]) for one in (largest, *found)]
    others = {*lines} - {lines[0], ""}
    edits = (Edit.all_of(one.edit(trace, part) for one in found) for part in range(len(_KEEP)))
    joined = ", joined with others," if largest.line.joined else ""
    yield Finding(
        f"gathered rows{joined} are multiplied by a weight, {largest.line.repeats:.2g} for each one before the gather: "
        f"{format_rough_share(share)} of device time",
        f"{lines[0]} and {plural(len(others), 'other line')}" if others else lines[0],
        _APART
        if largest.line.joined
        else "multiply before the gather, as (x @ w)[index] instead of x[index] @ w, which computes the same from "
        "fewer rows, forward and backward",
        "high",
        "the compiled program: the sizes of the gather and of the product of its rows",
        *EditRange(*edits),
        event=int(trace.longest(largest.rows)),
    )


def _called(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for them in the calls of a framework."""
    calls = evidence.calls
    found = [
        *_found(calls, _GATHERS, _layers_after),
        *_found(calls, _JOINS, _layer_after_joining),
    ]
    if not found:
        return
    took_ns = calls.took_ns
    keeps = [np.ones(len(calls.rows)) for _ in _KEEP]
    for one in found:
        layers, gathers, cat = (
            calls.with_backward(calls.mask(which))
            for which in (list(one.layers), list(one.gathers), [one.cat])
        )
        more_ns = (
            max(one.widens - 1, 0.0) * took_ns[gathers].sum() + max(one.moved - 1, 0.0) * took_ns[cat].sum()
        )
        for keep, part in zip(keeps, _KEEP, strict=True):
            keep[layers] = min(one.remains.keep(part) + more_ns / max(took_ns[layers].sum(), 1), 1.0)
            keep[gathers], keep[cat] = min(one.widens, 1.0), min(one.moved, 1.0)
    layers = calls.mask(*(list(one.layers) for one in found))
    share = calls.share_of_time(calls.with_backward(layers))
    if share < _MIN_SHARE:
        return
    longest = max(found, key=lambda one: int(took_ns[list(one.layers)].sum()))
    event = int(calls.rows[longest.layers[0]])
    joined = longest.cat >= 0
    shown = (longest.gathers[0], *([longest.cat] if joined else []), *longest.layers)
    names = " → ".join(calls.names[index].removeprefix("aten::") for index in shown)
    yield Finding(
        f"a layer after a gather ({names}) computes {longest.repeats:.2g} rows for each one "
        f"before it, {evidence.how_often(len(found))}: {format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(layers),
        _APART
        if joined
        else "apply the layer before the gather: layer(x)[index] instead of layer(x[index]), which computes the same "
        "from fewer rows, forward and backward",
        "high",
        "the shapes of the gathers, of what is joined and of the layer"
        if joined
        else "the shapes of the gather and of the layer; until the rows are added up, no other tensor has as many",
        *EditRange(*map(calls.shortened, keeps)),
        event=event,
    )


def _found(calls: Calls, names: str, look: Callable[[Calls, int], _Gathered | None]) -> Iterator[_Gathered]:
    """Yield what is found at calls of some names with a layer right after them."""
    chosen = np.flatnonzero(calls.trace.named(names, calls.rows) & ~calls.backward)
    chosen = chosen[[bool(len(_calls_after(calls, one))) for one in chosen.tolist()]]
    chosen = chosen[np.argsort(-calls.took_ns[chosen], kind="stable")[:_LOOKED_AT]]
    for one in arguments_of(calls, chosen):
        if (found := look(calls, one)) is not None:
            yield found


def _calls_after(calls: Calls, gather: int) -> Ints:
    """Return the next calls of the step that compute, as indices, if the first of them is a layer."""
    after = calls.after(gather, _SOON)
    found: Ints = after[(calls.steps[after] == calls.steps[gather]) & (calls.took_ns[after] > 0)]
    return found if len(found) and calls.names[found[0]] == _LAYER else found[:0]


def _layers_after(calls: Calls, gather: int) -> _Gathered | None:
    """Return a gather that repeats rows with the layers right after it, each on its own row; None = there are none."""
    after = _calls_after(calls, gather)
    known = arguments_of(calls, np.append(gather, after))
    if gather not in known or int(after[0]) not in known:
        return None
    source, rows = (shape_of(known[index].dims[0]) for index in (gather, int(after[0])))
    count, repeats = prod(rows[:-1]), _repeats_to(prod(rows[:-1]), known[gather].dims)
    if source[-1:] != rows[-1:] or repeats < _MIN_REPEATS:
        return None
    width, layers = rows[-1], list[int]()
    for index, given in known.items():
        name, values = calls.names[index], shape_of(given.dims[0])
        if index == gather:
            continue
        if values[-1:] != (width,) or prod(values[:-1]) != count:
            break
        if name == _LAYER:
            width = shape_of(given.dims[1])[0]
        elif not _ROW_BY_ROW.search(name):
            break
        layers.append(index)
    if not _alone(calls, layers[-1], count, {rows[-1], width}):
        return None
    return _Gathered((gather,), tuple(layers), Remains(0.0, 1 / repeats), repeats, width / rows[-1])


def _layer_after_joining(calls: Calls, cat: int) -> _Gathered | None:
    """Return a layer right after a cat of rows some of which gathers have repeated; None = there is none."""
    layer = int(_calls_after(calls, cat)[0])
    earlier = np.arange(max(cat - _LATER, 0), cat)
    same = (calls.tracks[earlier] == calls.tracks[cat]) & (calls.steps[earlier] == calls.steps[cat])
    known = arguments_of(calls, np.append(earlier[same][-_SOON:], [cat, layer]))
    if cat not in known or layer not in known:
        return None
    parts = list(shapes_in(known[cat].dims[:1]))
    rows, weight = (shape_of(dims) for dims in (*known[layer].dims[:2], [], [])[:2])
    count, left = prod(rows[:-1]), [part[-1] for part in parts]
    if (
        len(parts) < 2
        or not rows
        or not weight
        or sum(left) != rows[-1]
        or any(prod(part[:-1]) != count for part in parts)
    ):
        return None
    gathers, few, others, most = list[int](), 0.0, rows[-1], (0, 0.0)
    for index in sorted(known.keys() - {cat, layer}, reverse=True):
        given, name = known[index].dims, calls.names[index]
        repeats = _repeats_to(count, given) if _IS_GATHER.search(name) else 0.0
        width = shape_of(given[0])[-1:] if given else ()
        if repeats and width and width[0] in left:
            left.remove(width[0])
            if repeats >= _MIN_REPEATS:
                gathers.append(index)
                few, others = few + width[0] / repeats, others - width[0]
                most = max(most, (width[0], repeats))
        elif name not in _KEPT:  # what it takes may have been gathered, and is not what is joined
            taken = {shape[-1] for shape in shapes_in(given) if prod(shape[:-1]) == count}
            if name == _LAYER and taken:
                taken.add(next(iter(shape_of(given[1])), 0))
            left = [each for each in left if each not in taken]
    if not gathers:
        return None
    remains = Remains(others / rows[-1], few / rows[-1])
    moved = weight[0] * (3 * (len(parts) - 1) + (others > 0)) / (2 * rows[-1])
    return _Gathered(tuple(reversed(gathers)), (layer,), remains, most[1], weight[0] / most[0], cat, moved)


def _repeats_to(count: int, given: list[Any]) -> float:
    """Return how often a gather repeats whole rows, if it makes so many; 0 = it does not."""
    source = shape_of(given[0]) if given else ()
    # The profiler does not record the shapes of the list of indices that `x[index]` has.
    indices = max((prod(shape) for shape in shapes_in(given[1:])), default=count if len(source) == 2 else 0)
    if len(source) < 2 or indices < 2 or count % indices:
        return 0.0
    # An index along the last dimension takes other values of the same rows.
    apart = {prod(source[:-1]) // size for size in source[:-1]}  # times that the same rows are taken
    return count * source[-1] / prod(source) if count // indices in apart else 0.0


def _alone(calls: Calls, last: int, count: int, widths: set[int]) -> bool:
    """Return whether the result of the layers is the only tensor of so many rows until they are added up.

    Else the layer may take something else with as many rows, such as what is known of each edge, and what was gathered
    is combined with its result.
    """
    after = calls.after(last, _LATER)
    after = after[(calls.steps[after] == calls.steps[last]) & ~calls.backward[after]]
    for index, given in arguments_of(calls, after).items():
        several = [
            shape
            for shape in shapes_in(given.dims)
            if prod(shape) // shape[-1] == count and shape[-1] in widths
        ]
        if len(several) > 1:
            return False
        if several and _ADDS_UP.search(calls.names[index]):
            return True
    return False


RULE = AdviceRule("layer-after-gather", find)
