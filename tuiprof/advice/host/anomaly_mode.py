"""Autograd's anomaly mode is on: every node keeps its Python stack, and every gradient is checked for NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import BACKWARD
from tuiprof.model import Trace
from tuiprof.whatif import Edit, HostTime

#: The check of a gradient, called by the engine itself and not by the function of the node.
_CHECK: Final = r"^aten::(isnan|any|_is_any_true|item|is_nonzero)$"
_ACCUMULATES: Final = r"AccumulateGrad$"
#: Operators that compute nothing, so their extra time in the forward pass is the recording of the stack.
_VIEWS: Final = r"^aten::(view|t|transpose|permute|expand|select|slice|unsqueeze|squeeze)$"
#: The share of that time that the operator itself takes.
_KEEP: Final = 0.05
#: Minimum share of checked nodes, and their minimum number.
MIN_SHARE, MIN_NODES = 0.5, 5
_OFF: Final = "torch.autograd.set_detect_anomaly(False), or no detect_anomaly() around the step"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a backward pass in which most nodes are checked for NaN."""
    is_node = trace.named("^" + BACKWARD) & ~trace.named(_ACCUMULATES)
    nodes = np.count_nonzero(is_node)
    if nodes < MIN_NODES:
        return
    checks = np.flatnonzero(trace.named(_CHECK))
    checks = checks[trace.nesting.directly_in(is_node, checks)]
    nan_checks = checks[trace.named(r"^aten::isnan$", checks)]
    checked = np.unique(trace.nesting.parent[nan_checks])
    if len(checked) < MIN_SHARE * nodes:
        return
    yield Finding(
        "autograd anomaly mode is on: gradients are checked for NaN "
        f"{evidence.how_often(len(nan_checks))}, and every forward operator records its Python stack",
        "",
        f"{evidence.write('no-anomaly', _OFF)}; turn it on only to hunt a NaN",
        "high",
        f"isnan inside {len(checked)} of {nodes} backward nodes, called by the autograd engine itself",
        evidence.without_operators(checks) | Edit(host=_stacks(trace, evidence)),
        event=int(nan_checks[0]),
    )


def _stacks(trace: Trace, evidence: Evidence) -> HostTime:
    """Return the time in which forward operators record their stacks, which is the first thing they do.

    For an operator with children it is the time before the first child, for a view all of its time, and for others
    the median time of a view.
    """
    calls = evidence.calls
    rows = trace.operators()
    at = calls.inside(rows)
    rows = rows[(at >= 0) & calls.differentiated[at] & ~calls.backward[at]]
    parent = trace.nesting.parent[rows]
    is_view, first = np.zeros(len(trace), dtype=bool), np.full(len(trace), np.iinfo(np.int64).max)
    is_view[rows] = trace.named(_VIEWS, rows)
    np.minimum.at(first, parent[parent >= 0], trace.starts[rows[parent >= 0]])
    rows = rows[~trace.nesting.directly_in(is_view, rows)]
    ends = np.where(is_view[rows], trace.ends[rows], np.minimum(first[rows], trace.ends[rows]))
    views = (ends - trace.starts[rows])[is_view[rows]]
    leaf = ~is_view[rows] & (first[rows] >= trace.ends[rows])
    ends[leaf] = np.minimum(ends, trace.starts[rows] + (np.median(views) if len(views) else 0))[leaf]
    return HostTime(
        trace.track_codes[rows].astype(np.int64), trace.starts[rows], ends, np.full(len(rows), _KEEP)
    )


RULE = AdviceRule("anomaly-mode", find)
