"""A matrix is inverted only to be multiplied, or factored again for its determinant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange

_INVERSES: Final = r"^aten::(inverse|linalg_inv|linalg_inv_ex)$"
_DETERMINANTS: Final = r"^aten::(logdet|det|slogdet|linalg_det|linalg_slogdet)$"
_PRODUCTS: Final = r"^aten::(matmul|mm|mv|bmm|linear|addmm|dot|einsum)$"
#: The inverse is multiplied within so many calls; by at most this share of its own columns. By more, a solution takes
#: as long.
_SOON, _FEW = 8, 0.25
#: Minimum share of the time of all operators.
MIN_SHARE: Final = 0.03
#: Share of the time of inverses, and of their backward passes, that `torch.linalg.solve` takes: likely, least and most
#: helpful; on one core of an EPYC (Zen 5), PyTorch 2.13, matrices of 64 to 512 rows and one column: 0.2 to 0.4.
_KEEP: Final = (0.3, 0.8, 0.2)
#: Of inverses and determinants together, that one Cholesky factor and what is computed of it take (0.5 to 0.7).
_KEEP_FACTOR: Final = (0.55, 0.9, 0.45)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for inverses that are multiplied right after, alone or beside a determinant in the same step."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    inverses = np.flatnonzero(trace.named(_INVERSES, calls.rows))
    determinants = trace.named(_DETERMINANTS, calls.rows)
    columns = {at: many for at in inverses.tolist() if (many := _columns(calls, at)) is not None}
    beside = determinants & np.isin(calls.steps, calls.steps[[*columns]])
    solved = [at for at, many in columns.items() if beside.any() or many != "many"]
    if not solved:
        return
    forward = calls.mask(solved) | beside
    which = calls.with_backward(forward)
    share = calls.share_of_time(which)
    if share < MIN_SHARE:
        return
    likely, least, most = _KEEP_FACTOR if beside.any() else _KEEP
    if not beside.any() and "unknown" in columns.values():
        least = 1.0
    event = int(calls.rows[solved[0]])
    yield Finding(
        f"a matrix is inverted{' and its determinant computed apart' if beside.any() else ''}, "
        f"{evidence.how_often(len(solved))}: {format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(forward),
        "L = torch.linalg.cholesky(K) once, if K is symmetric and positive definite: torch.cholesky_solve(y, L) "
        "instead of inverse(K) @ y, and 2 * L.diagonal().log().sum() as the logarithm of the determinant"
        if beside.any()
        else "torch.linalg.solve(K, y) instead of inverse(K) @ y, which is also more exact",
        "medium",
        "the inverse is multiplied right after"
        + (", and a determinant factors a matrix again" if beside.any() else ""),
        *EditRange(*(calls.edit(which, keep, keep) for keep in (likely, least, most))),
        event=event,
    )


def _columns(calls: Calls, at: int) -> Literal["few", "many", "unknown"] | None:
    """Return by how many columns an inverse is multiplied; unknown = there are no shapes, None = by none."""
    trace = calls.trace
    after = calls.after(at, _SOON)
    after = after[calls.steps[after] == calls.steps[at]]
    products = after[trace.named(_PRODUCTS, calls.rows[after])]
    if not len(products):
        return None
    for _, given in arguments(trace, calls.rows[products[:1]]):
        sizes = [shape for shape in given.dims[:2] if isinstance(shape, list) and shape]
        if len(sizes) < 2 or not all(type(one) is int for shape in sizes for one in shape):
            break
        if min(map(len, sizes)) == 1:
            return "few"
        (*_, rows, inner), (*_, columns) = sizes
        return "few" if min(rows, columns) <= _FEW * inner else "many"
    return "unknown"


RULE = AdviceRule("matrix-inverse", find)
