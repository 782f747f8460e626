"""A normalization is written out as elementwise operators and reductions."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import OPERATOR_NS, find_regions, fused
from tuiprof.model import Trace


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for sequences of means, a root and a division."""
    calls = evidence.calls
    found = find_regions(trace).norms
    if not found:
        return
    names = " → ".join(name.removeprefix("aten::") for name in calls.names_of(found[0].busy))
    event = int(calls.rows[found[0].busy[0]])
    yield Finding(
        f"a normalisation is written out as {len(found[0].busy)} operators, "
        f"{evidence.how_often(len(found))}: {names}",
        evidence.function_of(event),
        "torch.nn.LayerNorm, RMSNorm or torch.nn.functional.layer_norm, each a single kernel; or "
        "torch.compile",
        "high",
        "a mean, a root and a scaling with only elementwise operators in between",
        *fused(calls, found, OPERATOR_NS, evidence.host_part),
        event=event,
    )


RULE = AdviceRule("unfused-norm", find)
