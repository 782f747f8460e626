"""Muon multiplies along the longer side of matrices, or scales and adds the products in separate operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import products_of
from tuiprof.analyses.shared.calls import Calls, loops
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange

_PRODUCTS: Final = r"^aten::(matmul|mm|bmm|addmm|baddbmm)$"
#: What a product can do with its result, and the share of its time that remains, as the product reads what it adds:
#: likely, least and most helpful. Estimates.
_ADDS: Final = r"^aten::(mul|add|sub|div)_?$"
_KEEP_OTHERS: Final = (0.25, 0.6, 0.1)
#: Products of an iteration: of a matrix with its transpose, that one's square, and the polynomial times the matrix.
_IN_ITERATION: Final = 3
#: Calls of an iteration at most, and iterations of a matrix at least.
_MAX_CALLS, _MIN_ITERATIONS = 24, 3
#: The square takes a multiple of what the others take: the sides' ratio, if it is of the longer one, and at most as
#: long otherwise. Not much above 1 it may be of either.
_MIN_RATIO: Final = 1.4
#: Operators between the products take at least this share of the longest of them, if they are of the square as well.
_OF_SQUARE: Final = 0.5
#: Minimum share of the time of all operators.
_MIN_SHARE: Final = 0.01
#: Small products keep a processor less busy: the exponent of what the sides' ratio promises, likely, least and most.
_GAINS: Final = (0.9, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The iterations on one matrix, as indices of calls."""

    products: Ints  # of shape ``(iterations, 3)``
    square: Ints  # operators on matrices of the size of the square
    others: Ints  # all operators that scale and add
    ratio: float  # longer side by shorter side
    known: bool  # by the shapes of the products


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for Newton-Schulz iterations in an optimizer, of the longer side or with operators between the products."""
    matrices = list(_matrices(evidence.calls, evidence))
    if not matrices:
        return
    yield from _of_longer_side(trace, evidence, [one for one in matrices if one.ratio >= _MIN_RATIO])
    yield from _between_products(trace, evidence, matrices)


def _of_longer_side(trace: Trace, evidence: Evidence, matrices: list[_Matrix]) -> Iterator[Finding]:
    """Look for iterations that multiply matrices of the longer side with each other."""
    calls = evidence.calls
    if not matrices:
        return
    keeps = [np.ones(len(calls.rows)) for _ in _GAINS]
    for one in matrices:
        for keep, gain in zip(keeps, _GAINS, strict=True):
            keep[one.products[:, [0, 2]]] = one.ratio**-gain
            keep[one.products[:, 1]] = one.ratio ** (-3 * gain)
            keep[one.square] = one.ratio ** (-2 * gain)
    which, took_ns = keeps[0] < 1, calls.took_ns
    share = calls.share_of_time(which)
    if share < _MIN_SHARE:
        return
    longest = max(matrices, key=lambda one: int(took_ns[one.products].sum()))
    event = int(calls.rows[longest.products[0, 0]])
    known = all(one.known for one in matrices)
    ratio = f"{longest.ratio:.1f} times"
    yield Finding(
        f"Newton-Schulz iterations of {_count(evidence, matrices)} multiply along the longer side, "
        f"{'' if known else 'about '}{ratio} the shorter one: {format_rough_share(share)} of the time of all operators",
        evidence.function_of(event)
        or evidence.place_by_share(which)
        or trace.name(int(evidence.updates.rows[0])),
        "transpose matrices with more rows than columns before the Newton-Schulz iterations (X = X.mT), and the result "
        "back: equal up to rounding; torch.optim.Muon does so",
        "high" if known else "medium",
        "the shapes of the products"
        if known
        else "in iterations of three products, the square of the first takes longer than the others, as it can only "
        "with products of the longer side",
        *EditRange(*map(calls.shortened, keeps)),
        event=event,
    )


def _between_products(trace: Trace, evidence: Evidence, matrices: list[_Matrix]) -> Iterator[Finding]:
    """Look for scaling and additions that the products could do."""
    calls, took_ns = evidence.calls, evidence.calls.took_ns
    which = calls.mask(*(one.others for one in matrices)) & (took_ns > 0)
    share = calls.share_of_time(which)
    if share < _MIN_SHARE or not which.any():
        return
    event = int(calls.rows[np.argmax(which)])
    yield Finding(
        f"Newton-Schulz iterations of {_count(evidence, matrices)} scale and add the results of their products: "
        f"{format_rough_share(share)} of the time of all operators",
        evidence.function_of(event)
        or evidence.place_by_share(which)
        or trace.name(int(evidence.updates.rows[0])),
        "torch.addmm(A, A, A, beta=b, alpha=c) for b * A + c * (A @ A), and torch.addmm(X, B, X, beta=a) for a * X + "
        "B @ X; for matrices of the same shape one torch.baddbmm of all",
        "medium",
        "operators between the products of an iteration, each a pass over a matrix",
        *EditRange(
            *(calls.edit(which, 0.0 if len(trace.device_work) else keep, keep) for keep in _KEEP_OTHERS)
        ),
        event=event,
    )


def _count(evidence: Evidence, matrices: list[_Matrix]) -> str:
    a_step = round(len(matrices) / evidence.step_count)
    return f"{a_step} parameters" if a_step > 1 else "a parameter"


def _matrices(calls: Calls, evidence: Evidence) -> Iterator[_Matrix]:
    """Yield the iterations of three products in updates, one after the other."""
    inside = np.flatnonzero(evidence.updates.hold(calls.rows))
    product = calls.trace.named(_PRODUCTS, calls.rows)
    if product[inside].sum() < _IN_ITERATION * _MIN_ITERATIONS:
        return
    for update in np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1):
        words, alone = calls.codes[update], np.zeros(len(update), dtype=bool)  # three products are no loop
        for start, period, times in loops(words, _MAX_CALLS, _MIN_ITERATIONS, alone=alone):
            mine = update[start : start + period * times].reshape(times, period)
            which = np.flatnonzero(product[mine[0]])
            if len(which) == _IN_ITERATION:
                yield _matrix(calls, mine, which)


def _matrix(calls: Calls, mine: Ints, which: Ints) -> _Matrix:
    """Return the iterations whose calls are ``mine``, of shape ``(iterations, calls)``, with products at ``which``."""
    took = np.median(calls.took_ns[mine], axis=0)
    first, square, last = took[which].tolist()
    ratio, shaped = square / max(first, last, 1.0), products_of(calls, mine[1, which])
    given = shaped.get(int(mine[1, which[0]]))
    if given is not None:
        ratio = given.rows / given.inner
    between = np.arange(which[0] + 1, which[2])
    between = between[~np.isin(between, which)]
    others: Floats = took[between]
    between = between[others >= _OF_SQUARE * others.max(initial=0.0)]
    adds = calls.trace.named(_ADDS, calls.rows[mine[0]])
    return _Matrix(mine[:, which], mine[:, between].ravel(), mine[:, adds].ravel(), ratio, given is not None)


RULE = AdviceRule("newton-schulz", find)
