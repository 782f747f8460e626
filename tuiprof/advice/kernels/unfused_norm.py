"""A normalization is written out as elementwise operators and reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import OPERATOR_NS, Region, find_regions, fused
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.launch_shapes import ELEMENTWISE, REDUCTION, row_length
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints

#: What layer and RMS norms take of each row; ``torch.nn.functional.normalize``, which has no kernel, takes none.
_CENTRES: Final = frozenset({"mean", "var", "std", "var_mean", "std_mean", "sum"})
#: PyTorch's kernels take longer for rows of fewer values than this, in inverse proportion, and compiled ones for rows
#: shorter than the second; these are the better ones up to the third. Measured in docs/results/predictions.md.
_FUSED_SLOWER, _COMPILED_SLOWER, _COMPILED_BETTER = 140, 70, 64
#: Norms whose reductions take as long, within this factor, have rows of the same length.
_ALIKE: Final = 1.15


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for sequences of means, a root and a division."""
    calls = evidence.calls
    found = find_regions(trace).norms
    if not found:
        return
    operators = [name.removeprefix("aten::") for name in calls.names_of(found[0].busy)]
    event = int(calls.rows[found[0].busy[0]])
    of_vectors = not _CENTRES.intersection(operators)
    lengths = _row_lengths(calls, found)
    short = (lengths > 0) & (lengths <= _COMPILED_BETTER)
    mostly_short = 2 * np.count_nonzero(short) > len(found)
    yield Finding(
        f"{'vectors are divided by their norm in' if of_vectors else 'a normalisation is written out as'} "
        f"{len(operators)} operators, {evidence.how_often(len(found))}: {' → '.join(operators)}",
        evidence.function_of(event),
        "torch.compile the function that divides by the norm: one kernel instead of one for each operator"
        if of_vectors
        else f"torch.compile the normalisation: for rows of {int(np.median(lengths[short]))} values, PyTorch's own "
        "RMSNorm and LayerNorm kernels are slower"
        if mostly_short
        else "torch.nn.LayerNorm, RMSNorm or torch.nn.functional.layer_norm, each a single kernel; or torch.compile",
        "high",
        "a norm or a mean, a root and a scaling with only elementwise operators in between",
        *fused(calls, found, OPERATOR_NS, evidence.host_part, _slower(lengths)),
        event=event,
    )


def _slower(lengths: Ints) -> tuple[Floats, Floats, float]:
    """Return what kernels for rows of such lengths take longer than for long ones: likely, at most and at least."""
    rows = np.where(lengths > 0, lengths, _FUSED_SLOWER)
    fused_slower = np.maximum(_FUSED_SLOWER / rows, 1.0)
    compiled_slower = np.maximum(_COMPILED_SLOWER / rows, 1.0)
    return np.where(rows <= _COMPILED_BETTER, compiled_slower, fused_slower), fused_slower, 1.0


def _row_lengths(calls: Calls, norms: Sequence[Region]) -> Ints:
    """Return how many values each norm's rows have, by the kernels of one of those that take as long; 0 = unknown."""
    trace, work = calls.trace, calls.trace.device_work
    region_of = np.full(len(calls.rows) + 1, -1)  # the last entry is that of work of no call
    for number, norm in enumerate(norms):
        region_of[norm.busy] = number
    region = region_of[calls.call_of_work]
    lengths = np.zeros(len(norms), dtype=np.int64)
    first = [
        dict(zip(region[rows[::-1]].tolist(), work[rows[::-1]].tolist(), strict=True))
        for rows in (
            np.flatnonzero((region >= 0) & trace.named(name, work)) for name in (REDUCTION, ELEMENTWISE)
        )
    ]
    known: dict[tuple[str, int], int] = {}
    for number in first[0].keys() & first[1].keys():
        reduction, elementwise = first[0][number], first[1][number]
        took = int(trace.ends[reduction] - trace.starts[reduction])
        alike = (trace.name(reduction), round(np.log(max(took, 1)) / np.log(_ALIKE)))
        if alike not in known:
            known[alike] = row_length(trace, reduction, elementwise)
        lengths[number] = known[alike]
    return lengths


RULE = AdviceRule("unfused-norm", find)
