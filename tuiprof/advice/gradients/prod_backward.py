"""The gradient of a product along a dimension is computed by scans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

#: Operators of the node that remain: the gradient of a product of the parts is a product.
_STAYS = "^aten::mul$"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for backward nodes of prod() that call cumprod."""
    nodes = np.flatnonzero(trace.named(r"^ProdBackward\d$"))
    if not len(nodes):
        return
    operators = trace.operators()
    node_of = next(trace.nesting.outward(operators), None)  # the parent of each, -1 = none
    if node_of is None:
        return
    scans = trace.named("^aten::cumprod$", operators)
    nodes = np.intersect1d(nodes, node_of[scans])
    if not len(nodes):
        return
    goes = np.isin(node_of, nodes) & ~trace.named(_STAYS, operators)
    event = int(nodes[0])
    yield Finding(
        f"the gradient of prod() along a dimension runs scans, {evidence.how_often(len(nodes))}",
        evidence.function_of(event),
        "for a product of a few elements, write it out: x[..., 0] * x[..., 1] for x.prod(-1)",
        "medium",
        "it cannot divide by an element that may be zero: it reads from the device whether one is, and "
        "runs cumprod() both ways",
        evidence.without_operators(operators[goes]),
        event=event,
    )


RULE = AdviceRule("prod-backward", find)
