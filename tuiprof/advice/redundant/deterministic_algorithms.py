"""Deterministic algorithms are on: new memory is filled before it is used, and additions by index sort."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import index_of_outer
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import EditRange

_FILL: Final = r"^aten::fill_$"
#: These allocate. In the default mode, none of them fills what it allocates.
_ALLOCATES: Final = r"^aten::((new_)?empty(_like|_strided|_permuted)?|resize_|resize_as_)$"
#: Operators that are atomic by default. Deterministic ones call index_put_, which sorts the indices.
_ATOMIC: Final = r"^aten::(index_add|scatter_add|index_copy|scatter)_?$"
_SORTED: Final = r"^aten::index_put_$"
#: Shares of host time and device work of a sorted addition that remain, likely and where it helps most. Atomic ones
#: need one launch instead of two dozen, but take about as long for many long rows: docs/results/predictions.md.
_KEEP_HOST: Final = 0.1
_KEEP_WORK: Final = (1.0, 0.3)
_OFF: Final = "torch.use_deterministic_algorithms(False), the default,"
_WITHOUT_FILLS: Final = (
    "; if they may not, torch.utils.deterministic.fill_uninitialized_memory = False removes the fills alone"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for fills inside operators that only allocate, and for sorts inside additions that are atomic by default."""
    fills = np.flatnonzero(trace.named(_FILL))
    fills = fills[trace.nesting.directly_in(trace.named(_ALLOCATES), fills)] if len(fills) else fills
    additions = _sorted_additions(trace)
    if not len(fills) and not len(additions):
        return
    instead = f"{evidence.write('nondeterministic', _OFF)} if the last bits may differ between runs"
    seen, because = [], []
    if len(fills):
        seen.append(f"new memory is filled before it is used, {evidence.how_often(len(fills))}")
        instead += _WITHOUT_FILLS
        because.append("operators that only allocate launch fills")
    if len(additions):
        seen.append(f"additions by index sort, {evidence.how_often(len(additions))}")
        because.append("index_add, scatter_add or index_copy, which are atomic by default, call index_put")
    unfilled = evidence.without_operators(fills)
    atomic = (evidence.without_operators(additions, _KEEP_HOST, keep) for keep in _KEEP_WORK)
    likely, most = (unfilled | edit for edit in atomic)
    yield Finding(
        "deterministic algorithms are on: " + "; ".join(seen),
        "",
        instead,
        "high",
        "; ".join(because),
        *EditRange(likely, unfilled, most),
        event=int([*fills, *additions][0]),
    )


def _sorted_additions(trace: Trace) -> Ints:
    """Return the operators that are atomic by default, but call one that sorts."""
    sorts = np.flatnonzero(trace.named(_SORTED))
    if not len(sorts):
        return sorts
    atomic = np.sort(outermost(trace, np.flatnonzero(trace.named(_ATOMIC))))
    inside = index_of_outer(trace, atomic, sorts)
    return atomic[np.unique(inside[inside >= 0])]


RULE = AdviceRule("deterministic-algorithms", find)
