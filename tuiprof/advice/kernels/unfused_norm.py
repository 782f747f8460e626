"""A normalization is written out as elementwise operators and reductions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import OPERATOR_NS, find_regions, fused
from tuiprof.model import Trace

#: What layer and RMS norms take of each row; ``torch.nn.functional.normalize``, which has no kernel, takes none.
_CENTRES: Final = frozenset({"mean", "var", "std", "var_mean", "std_mean", "sum"})


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for sequences of means, a root and a division."""
    calls = evidence.calls
    found = find_regions(trace).norms
    if not found:
        return
    operators = [name.removeprefix("aten::") for name in calls.names_of(found[0].busy)]
    event = int(calls.rows[found[0].busy[0]])
    of_vectors = not _CENTRES.intersection(operators)
    yield Finding(
        f"{'vectors are divided by their norm in' if of_vectors else 'a normalisation is written out as'} "
        f"{len(operators)} operators, {evidence.how_often(len(found))}: {' → '.join(operators)}",
        evidence.function_of(event),
        "torch.compile the function that divides by the norm: one kernel instead of one for each operator"
        if of_vectors
        else "torch.nn.LayerNorm, RMSNorm or torch.nn.functional.layer_norm, each a single kernel; or torch.compile",
        "high",
        "a norm or a mean, a root and a scaling with only elementwise operators in between",
        *fused(calls, found, OPERATOR_NS, evidence.host_part),
        event=event,
    )


RULE = AdviceRule("unfused-norm", find)
