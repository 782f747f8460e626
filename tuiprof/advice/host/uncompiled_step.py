"""JAX runs the operations of a step one by one, because they are outside any jit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding, times
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, total
from tuiprof.whatif import Edit, EditRange

#: The name of a call of a compiled function in JAX traces; outside a jit each operation is one.
_CALL: Final = r"^PjitFunction\("
#: Frames that differentiate a function (jax/_src/api.py); outside a jit they trace it again on each call.
_DIFFERENTIATES: Final = (
    r"\bapi\.py\(\d+\): (value_and_grad_f|grad_f|jacfun|vjp|jvp|linearize|_?vjp\w*_bwd|__call__)$"
)
#: A compiled step has a few calls; from this number on they are single operations.
MIN_CALLS: Final = 16
#: Events in a smaller share of the steps are occasional work of the script.
_MIN_SHARE: Final = 0.75
#: Share of the host time that remains besides the computation: likely, least, most helpful.
_STAYS: Final = (0.05, 0.3, 0.0)
#: Computation time of a compiled step relative to single operations: it needs fewer passes over memory.
_FUSED: Final = (0.8, 1.0, 0.5)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for many operations per step that are called from Python and computed on the CPU."""
    # On a device, where the host runs ahead, the rule launch-bound covers this.
    if not evidence.is_jax or not evidence.stepped or len(trace.device_work):
        return
    called = outermost(trace, trace.host_events(_CALL))
    step_of = trace.steps.step_of[called]
    called, step_of = called[step_of >= 0], step_of[step_of >= 0]
    per_step = np.bincount(step_of, minlength=len(trace.steps))
    if np.mean(per_step >= MIN_CALLS) < _MIN_SHARE:
        return
    rows = outermost(trace, np.union1d(called, trace.host_events(_DIFFERENTIATES)))
    host_ns = float(trace.lengths(rows).sum())
    computed = np.flatnonzero(trace.is_category("cpu_op") & ~trace.named(_CALL))
    computed_ns = float(total(*trace.union(computed)))
    # Host time is priced without the overhead of the profiler, which computation does not have.
    part = min(computed_ns / (host_ns * evidence.host_part), 1.0)
    keep = (min(part * fused + stays, 1.0) for stays, fused in zip(_STAYS, _FUSED, strict=True))
    edits = EditRange(*(Edit.of_host(trace, rows, one) for one in keep))
    yield Finding(
        f"JAX runs {times(len(called) / len(trace.steps), len(called)).replace(' times', ' operations')} one by one "
        "from Python, because no jit encloses them",
        _function(trace, rows),
        "put jax.jit around the function that makes a step, with weights and optimizer state as arguments and results",
        "high",
        "calls of single operations from Python, and gradients that are traced anew in every step",
        *edits,
        proof="giou-kernel:jax,jax-jit",
        event=trace.longest(rows),
    )


def _function(trace: Trace, rows: Ints) -> str:
    """Return the user function with most of the time of the given events; empty = no frames."""
    ns: Counter[str] = Counter()
    todo, lengths = np.arange(len(rows)), trace.lengths(rows)
    for level in trace.nesting.outward(rows):
        at = level[todo]
        names = [trace.name(row) if row >= 0 else "" for row in at.tolist()]
        users = np.array([_frames.is_user(name, jax=True) for name in names], dtype=bool)
        for index in np.flatnonzero(users).tolist():
            ns[names[index]] += int(lengths[todo[index]])
        todo = todo[~users & (at >= 0)]
        if not len(todo):
            break
    most = max(ns, key=ns.__getitem__, default="")
    return _frames.function_label(most, _frames.running_at_start(trace))


RULE = AdviceRule("uncompiled-step", find)
