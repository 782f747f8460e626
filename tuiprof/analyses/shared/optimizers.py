"""Steps of optimizers: where each updates parameters, apart from the closure that it may run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuiprof.analyses.shared.calls import BACKWARD, index_of_outer
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.trace import Trace, cached_on_trace

_STEP = r"^Optimizer\.step#"
#: Ranges in which an optimizer clears gradients.
CLEARS = r"^Optimizer\.zero_grad#"


@dataclass(frozen=True, slots=True)
class Updates:
    """The outermost optimizer steps that PyTorch marks; arrays of shape ``(steps,)``."""

    trace: Trace
    rows: Ints
    #: When each begins to update parameters, ns: after its closure, in which Lightning runs forward and backward
    starts: Ints
    ends: Ints

    def hold(self, rows: Ints) -> Mask:
        """Return which host events begin while an optimizer updates parameters."""
        at = index_of_outer(self.trace, self.rows, rows)
        result: Mask = at >= 0
        result[result] = self.trace.starts[rows[result]] >= self.starts[at[result]]
        return result


@cached_on_trace
def updates(trace: Trace) -> Updates:
    """Return where the optimizers of a trace update parameters."""
    rows = outermost(trace, trace.host_events(_STEP))
    return Updates(trace, rows, np.maximum(trace.starts[rows], closures(trace, rows)[1]), trace.ends[rows])


def closures(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Return when the backward pass of a closure begins and ends in those host events that are steps of optimizers.

    0 for other events, and for steps without a closure.
    """
    backward = backward_nodes(trace)
    starts, ends = trace.starts[backward], trace.ends[backward]
    first, last = np.zeros((2, len(rows)), dtype=np.int64)
    for i in np.flatnonzero(trace.named(_STEP, rows)).tolist():
        high = trace.ends[rows[i]]
        low, until = np.searchsorted(starts, (trace.starts[rows[i]], high))
        inside = low + np.flatnonzero(ends[low:until] <= high)
        if len(inside):
            first[i], last[i] = starts[inside[0]], ends[inside].max()
    return first, last


def backward_nodes(trace: Trace) -> Ints:
    """Return the operators of the backward pass."""
    return trace.operators(f"^{BACKWARD}")
