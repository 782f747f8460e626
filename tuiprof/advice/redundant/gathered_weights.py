"""A weight is copied for each row that is multiplied by it, as in a written-out mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.units import format_count, format_rough_share
from tuiprof.whatif import EditRange

_GATHERS: Final = r"^aten::(index|index_select|gather|embedding)$"
_PRODUCTS: Final = r"^aten::(bmm|baddbmm|matmul|einsum)$"
#: Maximum number of calls from the copy to the product: the other matrices are copied first, and views are made.
_LONGEST: Final = 16
#: Minimum share of device work of the copies, and how many of them are inspected, the longest first.
MIN_SHARE: Final = 0.05
_LOOKED_AT: Final = 200
#: Share of the products' time that remains, as each matrix is read once and not for each row: likely, least, most.
_KEEP: Final = (0.3, 1.0, 0.05)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for matrices that are copied by an index and multiplied as a batch, in traces with shapes."""
    calls = evidence.calls
    gathers = np.flatnonzero(trace.named(_GATHERS, calls.rows) & ~calls.backward & (calls.work_count > 0))
    whole = float(trace.lengths(trace.device_work).sum())
    if calls.work_ns[gathers].sum() < MIN_SHARE * whole:
        return
    gathers = np.sort(gathers[np.argsort(-calls.work_ns[gathers], kind="stable")][:_LOOKED_AT])
    products = {index: many for index in gathers.tolist() if (many := _products(calls, index))}
    asked = sorted({*products, *(index for many in products.values() for index in many)})
    rows = calls.rows[np.array(asked, dtype=np.int64)]
    shapes = {row: given.dims for row, given in arguments(trace, rows)}
    copies, used, sizes = [], set(), (0, 0)
    for gather, many in products.items():
        source = shapes.get(int(calls.rows[gather]), [[]])[0]
        for product in many:
            if copied := _copies(source, shapes.get(int(calls.rows[product]), [])):
                copies.append(gather)
                used.add(product)
                sizes = max(sizes, (copied, source[0]))
                break
    share = float(calls.work_ns[copies].sum()) / whole if copies else 0.0
    if share < MIN_SHARE:
        return
    copying, multiplied = (calls.with_backward(calls.mask(list(some))) for some in (copies, used))
    longest = int(calls.rows[max(copies, key=lambda index: int(calls.work_ns[index]))])
    yield Finding(
        f"{format_rough_share(share)} of device time copies {format_count(sizes[1])} weight matrices "
        f"{format_count(sizes[0])} times, once for each row that is multiplied by one",
        evidence.function_of(longest),
        "sort the rows by weight and multiply each group of them at once: torch._grouped_mm, or a loop over weights",
        "high",
        "the result of an index is multiplied as a batch of matrices, by the recorded shapes",
        *EditRange(*(calls.edit(copying) | calls.edit(multiplied, 1.0, keep) for keep in _KEEP)),
        event=longest,
    )


def _products(calls: Calls, gather: int) -> list[int]:
    """Return the batched products that follow a copy on its thread."""
    mine = calls.after(gather, _LONGEST)
    found: list[int] = mine[calls.trace.named(_PRODUCTS, calls.rows[mine])].tolist()
    return found


def _copies(source: Any, operands: list[Any]) -> int:
    """Return how many copies of the matrices in a source a product multiplies; 0 = it does not."""
    if not isinstance(source, list) or len(source) != 3 or not all(type(size) is int for size in source):
        return 0
    matrices = source[1:], source[:0:-1]
    return max(
        (
            operand[0]
            for operand in operands
            if isinstance(operand, list)
            and len(operand) == 3
            and type(operand[0]) is int
            and operand[0] > source[0]
            and operand[1:] in matrices
        ),
        default=0,
    )


RULE = AdviceRule("gathered-weights", find)
