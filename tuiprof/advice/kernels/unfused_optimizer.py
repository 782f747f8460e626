"""The optimizer updates its parameters in several multi-tensor passes instead of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: Share of the device work of multi-tensor passes that one fused pass takes: tensors read and written per
#: parameter, fused divided by unfused. Adam reads gradient, parameter and two moments and writes three of them, 7;
#: its passes (torch/optim/adam.py, mul, lerp, mul, addcmul, sqrt, div, add, div, addcdiv) touch 23. SGD with
#: momentum: 5 over 9. Likely, least helpful, most helpful.
_KEEP: Final = {"Adam": (7 / 23, 0.5, 0.22), "SGD": (5 / 9, 0.8, 0.45)}
#: With fewer different kernels, there are no more passes than in a fused step.
LEAST_PASSES: Final = 3
#: Share of the host time that remains.
_KEEP_HOST: Final = 0.4


def optimizer_steps(trace: Trace) -> Ints:
    """Return the rows of the outermost optimizer step ranges that PyTorch marks."""
    rows = np.flatnonzero(trace.named(r"^Optimizer\.step#") & trace.on_host)
    return rows[outermost(trace, rows)]


#: Optimizers of torch.optim that support ``fused=True``, and those that support only ``foreach=True``.
_FUSED: Final = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
_FOREACH: Final = frozenset(("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"))


def fewer_calls(step: str) -> tuple[str, bool]:
    """Return the option that reduces the calls of an optimizer step, by its range, and whether it is ``fused=True``."""
    kind = step.partition("#")[2].partition(".")[0]
    if kind in _FUSED:
        return "fused=True (or foreach=True) when creating the optimizer", True
    if kind in _FOREACH:
        return "foreach=True when making the optimizer", False
    if kind == "LBFGS":
        return "a smaller history_size: each iteration goes over all of it", False
    return "torch._foreach_* functions in the optimizer, over all parameters at once", False


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for optimizer steps with multi-tensor kernels and no fused kernel."""
    rows = optimizer_steps(trace)
    name = trace.name(int(rows[0])) if len(rows) else ""
    parts = next((parts for kind, parts in _KEEP.items() if kind in name), None)
    if parts is None:
        return
    work, _ = evidence.work_in(rows)
    passes = work[trace.named("multi_tensor_apply", work)]
    if len(np.unique(trace.name_codes[passes])) < LEAST_PASSES or trace.named("[Ff]used", work).any():
        return
    likely, least, most = (evidence.without_operators(rows, _KEEP_HOST, part) for part in parts)
    yield Finding(
        f"the optimizer goes over its parameters in {len(passes) / len(rows):.0f} multi-tensor kernels a step",
        name,
        "fused=True when creating the optimizer: one pass reads and writes each parameter once",
        "high",
        "Optimizer.step launches multi-tensor kernels but no fused one",
        likely,
        least,
        most,
        event=int(rows[0]),
        switch="fused_optimizer=1",
    )


RULE = AdviceRule("unfused-optimizer", find)
