"""Gradients are filled with zeros and added to, instead of being replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask

_ZERO: Final = r"^aten::(_foreach_zero_|zero_|fill_)$"
#: A gradient that is not added is still stored, which takes this share of the host time of adding it: of 12 µs
#: while captured, the addition was 8 µs (PyTorch 2.11, a model with 122 weights).
_HANDING_OVER: Final = 0.3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for fills in an optimizer's zero_grad, and for gradient additions in the backward pass."""
    calls = evidence.calls
    zeros = zero_fills(calls)
    accumulated = trace.named(ACCUMULATE, calls.rows)
    if trace.device_indices:
        accumulated &= calls.work_count > 0
    if not zeros.any() or not accumulated.any():
        return
    clearings = trace.host_events(CLEARS)
    # With several backward passes per step, the later ones always have to add.
    added = 1 - min(len(clearings) / max(len(list(calls.backward_passes())), 1), 1.0)
    keep = np.where(accumulated, added, 0.0)
    keep_host = np.maximum(keep, np.where(accumulated, _HANDING_OVER, 0.0))
    yield Finding(
        f"gradients are set to zero and added to, {evidence.how_often(len(clearings))}, instead of replaced",
        evidence.function_of(int(clearings[0])),
        "optimizer.zero_grad(set_to_none=True), which is the default",
        "high",
        "zero_grad launches fills, and the backward pass adds every gradient to a zero",
        calls.edit(zeros | accumulated, keep_host, keep[calls.call_of_work]),
        event=int(calls.rows[np.flatnonzero(zeros)[0]]),
    )


def zero_fills(calls: Calls) -> Mask:
    """Return which calls fill gradients with zeros in an optimizer's zero_grad."""
    return calls.trace.named(_ZERO, calls.rows) & calls.within(CLEARS)


RULE = AdviceRule("zeroed-gradients", find)
