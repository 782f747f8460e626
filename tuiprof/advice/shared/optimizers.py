"""The optimizer steps of a trace, and the option that makes one cheaper."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: Optimizers of torch.optim that support ``fused=True``, and those that support only ``foreach=True``.
_FUSED: Final = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
_FOREACH: Final = frozenset(("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"))


def optimizer_steps(trace: Trace) -> Ints:
    """Return the rows of the outermost optimizer step ranges that PyTorch marks."""
    rows = np.flatnonzero(trace.named(r"^Optimizer\.step#") & trace.on_host)
    return rows[outermost(trace, rows)]


def fewer_calls(step: str) -> tuple[str, bool]:
    """Return the option that reduces the calls of an optimizer step, by its range, and whether it is ``fused=True``."""
    kind = step.partition("#")[2].partition(".")[0]
    if kind in _FUSED:
        return "fused=True (or foreach=True) when creating the optimizer", True
    if kind in _FOREACH:
        return "foreach=True when creating the optimizer", False
    if kind == "LBFGS":
        return "a smaller history_size: each iteration goes over all of it", False
    return "torch._foreach_* functions in the optimizer, over all parameters at once", False
