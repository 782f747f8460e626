"""A product with one-hot vectors picks rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

_CASTS: Final = ("aten::to", "aten::_to_copy", "aten::type", "aten::reshape", "aten::view", "aten::flatten")
_PRODUCTS: Final = ("aten::matmul", "aten::mm", "aten::bmm", "aten::linear", "aten::addmm")
#: Time of looking up the rows, and of their gradient, relative to all of that: likely, least and most helpful.
_KEEP: Final = (0.05, 0.3, 0.01)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for one_hot whose result is used directly in a product."""
    calls = evidence.calls
    names = calls.names
    chosen = np.zeros(len(names), dtype=bool)
    found = []
    for first in np.flatnonzero(trace.named(r"^aten::one_hot$", calls.rows)).tolist():
        mine = first + 1 + np.flatnonzero(calls.tracks[first + 1 : first + 6] == calls.tracks[first])
        after = [index for index in mine.tolist() if names[index] not in _CASTS]
        if after and names[after[0]] in _PRODUCTS:
            chosen[[first, *mine[mine <= after[0]]]] = True
            found.append(first)
    if not found:
        return
    with_backward = calls.with_backward(chosen)
    likely, least, most = (calls.edit(with_backward, keep, keep) for keep in _KEEP)
    yield Finding(
        "one-hot vectors are multiplied by a matrix just to select its rows, "
        f"{evidence.how_often(len(found))}",
        evidence.function_of(int(calls.rows[found[0]])),
        "F.embedding(ids, table) or table[ids] (for nn.Linear: its transposed weight), without one_hot",
        "high",
        "a one_hot result is cast and multiplied right away",
        likely,
        least,
        most,
        event=int(calls.rows[found[0]]),
    )


RULE = AdviceRule("one-hot-product", find)
