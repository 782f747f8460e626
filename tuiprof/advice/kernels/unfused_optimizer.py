"""The optimizer updates its parameters in several multi-tensor passes instead of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.kernels.single_tensor_optimizer import MIN_OPTIMIZERS, fused, steps_in_a_row
from tuiprof.model import Trace
from tuiprof.whatif import EditRange

#: Share of the device work of multi-tensor passes that one fused pass takes: tensors read and written per
#: parameter, fused divided by unfused. Adam reads gradient, parameter and two moments and writes three of them, 7;
#: its passes (torch/optim/adam.py, mul, lerp, mul, addcmul, sqrt, div, add, div, addcdiv) touch 23. SGD with
#: momentum: 5 over 9. Likely, least helpful, most helpful.
_KEEP: Final = {"Adam": (7 / 23, 0.5, 0.22), "SGD": (5 / 9, 0.8, 0.45)}
#: With fewer different kernels, there are no more passes than in a fused step.
MIN_PASSES: Final = 3
_CREATED: Final = "fused=True when creating the optimizer"
#: Share of the host time that remains.
_KEEP_HOST: Final = 0.4


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for optimizer steps with multi-tensor kernels and no fused kernel."""
    rows = evidence.updates.rows
    name = trace.name(int(rows[0])) if len(rows) else ""
    parts = next((parts for kind, parts in _KEEP.items() if kind in name), None)
    if parts is None or steps_in_a_row(evidence, rows) >= MIN_OPTIMIZERS:
        return
    work = evidence.update_work
    passes = work[trace.named("multi_tensor_apply", work)]
    if len(np.unique(trace.name_codes[passes])) < MIN_PASSES or trace.named("[Ff]used", work).any():
        return
    yield Finding(
        f"the optimizer goes over its parameters in {len(passes) / len(rows):.0f} multi-tensor kernels a step",
        name,
        f"{fused(evidence, name, _CREATED)}: one pass reads and writes each parameter once",
        "high",
        "Optimizer.step launches multi-tensor kernels but no fused one",
        *EditRange(*(evidence.without_updates(_KEEP_HOST, part) for part in parts)),
        event=int(rows[0]),
        switch="fused_optimizer=1",
    )


RULE = AdviceRule("unfused-optimizer", find)
