"""A layer that computes each row by itself comes after a gather that repeats rows, as in messages of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import arguments_of, shape_of, shapes_in
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.compiled.gathers import GatheredProducts, gathered_products
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share, plural
from tuiprof.whatif import Edit, EditRange

_GATHERS: Final = r"^aten::(index_select|index|embedding)$"
_LAYER: Final = "aten::linear"
#: What computes each row of its result from the same row of its input, and draws no random numbers.
_ROW_BY_ROW: Final = re.compile(
    r"^aten::(relu|gelu|silu|elu|selu|mish|hardswish|leaky_relu|tanh|sigmoid|softplus|layer_norm|rms_norm)_?$"
)
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
_LEAST: Final = 1  # the least helpful of them


@dataclass(frozen=True, slots=True)
class _Gather:
    """A gather and the layers after it, as indices of calls."""

    gather: int
    layers: tuple[int, ...]
    repeats: float  # rows after the gather for each before it
    widens: float  # values of a row after the layers for each of a row before them


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layers on gathered rows that could be applied before the gather, to fewer rows."""
    yield from _compiled(trace, evidence) if evidence.is_jax else _called(trace, evidence)


@dataclass(frozen=True, slots=True)
class _Launched:
    """The products of one line of a compiled program with gathered rows, and what they launched."""

    line: GatheredProducts
    products: list[
        tuple[Ints, float]
    ]  # rows of each product's launches, and the share of operations that remains
    gathers: list[
        tuple[Ints, float]
    ]  # rows of what gathers and adds up, and how much it then moves for each value now

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
        edits += (Edit.of_work(rows, min(_KEEP[part] * keep + more, 1.0)) for rows, keep in self.products)
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
                (rows_of[carrier.name], keep) for _, carrier, keep in line.products if carrier.name in rows_of
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
        "multiply each part by its rows of the weight before the gather, as (x @ w[:n])[index] + y @ w[n:], which "
        "computes the same from fewer rows, forward and backward"
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
    gathers = np.flatnonzero(trace.named(_GATHERS, calls.rows) & ~calls.backward)
    gathers = gathers[[bool(len(_calls_after(calls, gather))) for gather in gathers.tolist()]]
    gathers = gathers[np.argsort(-calls.took_ns[gathers], kind="stable")[:_LOOKED_AT]]
    shaped = arguments_of(calls, gathers)
    found = [one for gather in shaped if (one := _layers_after(calls, gather)) is not None]
    if not found:
        return
    took_ns = calls.took_ns
    keeps = [np.ones(len(calls.rows)) for _ in _KEEP]
    for one in found:
        layers, gather = (
            calls.with_backward(calls.mask(which)) for which in (list(one.layers), [one.gather])
        )
        wider = max(one.widens - 1, 0.0) * took_ns[gather].sum() / max(took_ns[layers].sum(), 1)
        for keep, part in zip(keeps, _KEEP, strict=True):
            keep[layers] = min(part / one.repeats + wider, 1.0)
            keep[gather] = min(one.widens, 1.0)
    layers = calls.mask(*(list(one.layers) for one in found))
    share = calls.share_of_time(calls.with_backward(layers))
    if share < _MIN_SHARE:
        return
    longest = max(found, key=lambda one: int(took_ns[list(one.layers)].sum()))
    event = int(calls.rows[longest.layers[0]])
    names = " → ".join(
        calls.names[index].removeprefix("aten::") for index in (longest.gather, *longest.layers)
    )
    yield Finding(
        f"a layer after a gather ({names}) computes {longest.repeats:.2g} rows for each one "
        f"before it, {evidence.how_often(len(found))}: {format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(layers),
        "apply the layer before the gather: layer(x)[index] instead of layer(x[index]), which computes the same from "
        "fewer rows, forward and backward",
        "high",
        "the shapes of the gather and of the layer; until the rows are added up, no other tensor has as many",
        *EditRange(*map(calls.shortened, keeps)),
        event=event,
    )


def _calls_after(calls: Calls, gather: int) -> Ints:
    """Return the next calls of the step that compute, as indices, if the first of them is a layer."""
    after = calls.after(gather, _SOON)
    found: Ints = after[(calls.steps[after] == calls.steps[gather]) & (calls.took_ns[after] > 0)]
    return found if len(found) and calls.names[found[0]] == _LAYER else found[:0]


def _layers_after(calls: Calls, gather: int) -> _Gather | None:
    """Return a gather that repeats rows with the layers right after it, each on its own row; None = there are none."""
    after = _calls_after(calls, gather)
    known = arguments_of(calls, np.append(gather, after))
    if gather not in known or int(after[0]) not in known:
        return None
    source, rows = (shape_of(known[index].dims[0]) for index in (gather, int(after[0])))
    count, repeats = prod(rows[:-1]), prod(rows) / prod(source) if source else 0.0
    indices = max((prod(shape) for shape in shapes_in(known[gather].dims[1:])), default=0)
    # An index along the last dimension takes other values of the same rows.
    if source[-1:] != rows[-1:] or repeats < _MIN_REPEATS or indices < 2 or count % indices:
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
    return _Gather(gather, tuple(layers), repeats, width / rows[-1])


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
