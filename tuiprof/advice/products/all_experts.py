"""Each expert of a mixture computes all rows, although a router chooses a few experts for each row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding, Sure
from tuiprof.advice.products.shapes import LISTED, Shape, arguments_of, shape_of, shapes_in
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_count, format_rough_share
from tuiprof.whatif import Edit, EditRange

#: What chooses experts, of scores whose last dimension is as large as there are experts: so many, or one …
_TOPK: Final = "aten::topk"
_LARGEST: Final = r"^aten::(topk|argmax|max)$"
#: … or an unknown number.
_MASKS: Final = r"^aten::(masked_fill_?|where|threshold|ge|gt)$"
_PRODUCTS: Final = re.compile(r"^aten::(linear|matmul|mm|addmm)$")
_JOINS: Final = re.compile(r"^aten::(stack|cat)$")
_WEIGHTS: Final = re.compile(r"^aten::(mul_?|addcmul_?|bmm|matmul|einsum)$")
_CHOOSES: Final = re.compile(r"^aten::(gather|take_along_dim|index)$")
#: Maximum number of experts, of products in each, and of calls for each and around all of them.
_MOST_EXPERTS, _MOST_PRODUCTS, _CALLS_EACH, _CALLS_AROUND = 256, 6, 24, 40
#: Routers of either kind that are inspected.
_LOOKED_AT: Final = 80
#: Minimum share of the time of all operators, and maximum share of the experts that a row needs.
MIN_SHARE, MAX_USED = 0.02, 0.5
#: What stays, as a multiple of the share of the experts that a row needs, as rows are gathered and added up; and rows
#: of each expert whose time its weights take by themselves, on a CPU and on a device: likely, least and most helpful.
#: Two mixtures on one core of an EPYC (Zen 5), PyTorch 2.13, keep 0.31 (2 of 8 experts) and 0.6 (2 of 4).
_OF_SHARE: Final = (1.2, 1.6, 1.0)
_OF_WEIGHTS: Final = (16.0, 40.0, 4.0)
_OF_WEIGHTS_ON_DEVICE: Final = (150.0, 600.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Router:
    """A choice of experts for each row."""

    call: int  # as an index
    rows: int
    experts: int
    chosen: int  # experts of a row; 0 = unknown


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Experts that compute all rows."""

    router: _Router
    calls: Ints  # from the first product to the last, with what weights the results; as indices

    def stays(self, of_share: float, of_weights: float, unknown: float) -> float:
        """Return the share of the time that stays if experts compute only their rows."""
        chosen = self.router.chosen
        share = of_share * chosen / self.router.experts if chosen else unknown
        return min(share + of_weights / self.router.rows, 1.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for as many equal products of all rows as a router has choices, in traces with shapes."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    found = list(_mixtures(calls))
    if not found:
        return
    which = calls.with_backward(calls.mask(*(one.calls for one in found)))
    share = calls.share_of_time(which)
    if share < MIN_SHARE:
        return
    largest = max(found, key=lambda one: int(calls.took_ns[one.calls].sum()))
    router, event = largest.router, int(calls.rows[largest.calls[0]])
    sure: Sure = "high" if router.chosen else "low"
    needs = f"a row needs {router.chosen} of them" if router.chosen else "a mask leaves some of them out"
    yield Finding(
        f"each of {router.experts} experts computes all {format_count(router.rows)} rows, though {needs}, "
        f"{evidence.how_often(len(found))}: {format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(calls.mask(*(one.calls for one in found))),
        "call each expert on its rows: rows, at = torch.where(chosen == i), then out.index_add_(0, rows, "
        "expert(x[rows]) * share[rows, at, None])"
        + (
            "; torch.where waits for the device, sorting rows by expert for torch._grouped_mm does not"
            * _on_device(trace)
        ),
        sure,
        f"{calls.names[router.call].removeprefix('aten::')} over as many scores as there are equal products of all "
        "rows, whose results are weighted",
        *EditRange(*_edits(calls, found)),
        event=event,
    )


def _on_device(trace: Trace) -> bool:
    return bool(len(trace.device_work))


def _edits(calls: Calls, found: list[_Mixture]) -> Iterator[Edit]:
    """Yield the edits in which experts compute only their rows: likely, least and most."""
    of_weights = _OF_WEIGHTS_ON_DEVICE if _on_device(calls.trace) else _OF_WEIGHTS
    for at, (of_share, weights) in enumerate(zip(_OF_SHARE, of_weights, strict=True)):
        keep = np.ones(len(calls.rows))
        for one in found:
            # Where it is not known how many experts a row needs, it needs between one and all.
            few = 1 / one.router.experts
            mine = calls.with_backward(calls.mask(one.calls))
            keep[mine] = np.minimum(keep[mine], one.stays(of_share, weights, ((1 + few) / 2, 1.0, few)[at]))
        yield calls.shortened(keep)


def _mixtures(calls: Calls) -> Iterator[_Mixture]:
    """Yield mixtures of experts that compute all rows; of those with several routers, by one that tells how many."""
    seen = set[int]()
    products = np.cumsum(np.append(0, calls.trace.named(_PRODUCTS.pattern, calls.rows) & ~calls.backward))
    for router in sorted(_routers(calls), key=lambda router: (router.chosen == 0, router.call)):
        found = _mixture(calls, router, products)
        if found is not None and int(found.calls[0]) not in seen:
            seen.add(int(found.calls[0]))
            yield found


def _routers(calls: Calls) -> Iterator[_Router]:
    """Yield the calls that may choose experts."""
    trace, forward = calls.trace, ~calls.backward
    largest, masks = (
        np.flatnonzero(trace.named(pattern, calls.rows) & forward)[:_LOOKED_AT]
        for pattern in (_LARGEST, _MASKS)
    )
    for index, given in arguments_of(calls, np.concatenate((largest, masks))).items():
        scores = max(shapes_in(given.dims), key=prod, default=())
        if len(scores) < 2 or not 1 < scores[-1] <= _MOST_EXPERTS:
            continue
        chosen = int(index in largest)
        if calls.names[index] == _TOPK:
            value = str(given.values[1]) if len(given.values) > 1 else ""
            chosen = int(value) if value.isdecimal() else 0
        if chosen <= MAX_USED * scores[-1]:
            yield _Router(index, prod(scores[:-1]), scores[-1], chosen)


def _mixture(calls: Calls, router: _Router, products: Ints) -> _Mixture | None:
    """Return the experts after a router, or before it, if they compute all rows, and their results are weighted.

    ``products`` counts those before each call.
    """
    reach = _CALLS_AROUND + _CALLS_EACH * router.experts
    last = len(calls.rows) - 1
    for low, high in ((router.call, router.call + reach), (router.call - reach, router.call + _CALLS_AROUND)):
        near = np.arange(max(low, 0), min(high, last) + 1)
        if products[near[-1] + 1] - products[near[0]] < router.experts:
            continue
        near = near[(calls.tracks[near] == calls.tracks[router.call]) & ~calls.backward[near]]
        near = near[calls.steps[near] == calls.steps[router.call]]
        if (found := _experts(calls, arguments_of(calls, near), router)) is not None:
            return found
    return None


def _experts(calls: Calls, known: dict[int, Arguments], router: _Router) -> _Mixture | None:
    """Return the first experts among some calls."""
    products = [
        (index, sizes)
        for index, given in known.items()
        if _PRODUCTS.search(calls.names[index]) and (sizes := _sizes(given, router.rows))
    ]
    for period in range(1, _MOST_PRODUCTS + 1):
        count = period * router.experts
        for first in range(len(products) - count + 1):
            some = products[first : first + count]
            if any(one[1] != other[1] for one, other in zip(some, some[period:], strict=False)):
                continue
            ends = [index for index, _ in some[period::period]]
            ends += [index for index, _ in products[first + count :]][:1] or [len(calls.rows)]
            lasts = [index for index, _ in some[period - 1 :: period]]
            if end := _weighted(calls, known, lasts, ends, router):
                return _Mixture(router, calls.between(some[0][0], end))
    return None


def _sizes(given: Arguments, rows: int) -> tuple[Shape, Shape] | None:
    """Return the shapes of a product of so many rows and a weight; None = it is of others."""
    left, right = (*map(shape_of, given.dims[:2]), (), ())[:2]
    return (left, right) if len(right) == 2 and prod(left[:-1]) == rows and len(left) > 1 else None


def _weighted(
    calls: Calls, known: dict[int, Arguments], lasts: list[int], until: list[int], router: _Router
) -> int:
    """Return the call that weights the result of the last expert, as an index; 0 = something else is done with them.

    ``lasts`` are the last products of the experts, ``until`` the first of the next ones.
    """
    each = [_weights_in(calls, known, last, end, router.rows) for last, end in zip(lasts, until, strict=True)]
    if all(each):
        return each[-1]
    for index in range(lasts[-1] + 1, min(until[-1], lasts[-1] + _CALLS_EACH)):
        given = known.get(index)
        if given is None or not _JOINS.search(calls.names[index]):
            continue
        joined = list(shapes_in(given.dims))
        unlisted = not joined and router.experts > LISTED
        if unlisted or (len(joined) == router.experts and len(set(joined)) == 1):
            return _weights_in(
                calls, known, index, until[-1], router.rows * router.experts, sum(map(prod, joined))
            )
    return 0


def _weights_in(
    calls: Calls, known: dict[int, Arguments], after: int, until: int, weights: int, results: int = 0
) -> int:
    """Return the first call between two others that multiplies by so many weights, or chooses of so many results."""
    for index in range(after + 1, min(until, after + _CALLS_EACH)):
        if (given := known.get(index)) is None:
            continue
        sizes, name = [prod(shape) for shape in shapes_in(given.dims)], calls.names[index]
        if (_WEIGHTS.search(name) and weights in sizes) or (_CHOOSES.search(name) and results in sizes[:1]):
            return index
    return 0


RULE = AdviceRule("all-experts", find)
