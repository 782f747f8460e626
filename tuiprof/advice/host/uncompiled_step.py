"""JAX runs the operations of a step one by one, because no jit encloses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding, times
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, total, union
from tuiprof.whatif.edit import Edit

#: How JAX's tracer names the call of a compiled function; outside of a jit each operation is one.
_CALL: Final = r"^PjitFunction\("
#: What differentiates a function, by the frame's name (jax/_src/api.py): outside of a jit it traces it anew each time.
_DIFFERENTIATES: Final = (
    r"\bapi\.py\(\d+\): (value_and_grad_f|grad_f|jacfun|vjp|jvp|linearize|_?vjp\w*_bwd|__call__)$"
)
#: A compiled step is a few calls; so many of them are operations.
LEAST_CALLS: Final = 16
#: What happens in fewer of the steps is what the script does now and then.
_LEAST_SHARE: Final = 0.75
#: Of the host's time so much stays on top of what the operations compute: likely, at least, at most helpful.
_STAYS: Final = (0.05, 0.3, 0.0)
#: What a compiled step computes, of what its operations compute one by one: it needs fewer passes over memory.
_FUSED: Final = (0.8, 1.0, 0.5)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for many operations a step that are called from Python, where the processor computes them."""
    # On a device, where the host runs ahead, launch-bound says what it costs.
    if not evidence.is_jax or not evidence.stepped or len(trace.device_work):
        return
    called = np.flatnonzero(trace.named(_CALL) & trace.on_host)
    called = called[outermost(trace, called)]
    step_of = trace.steps.step_of[called]
    called, step_of = called[step_of >= 0], step_of[step_of >= 0]
    per_step = np.bincount(step_of, minlength=len(trace.steps))
    if np.mean(per_step >= LEAST_CALLS) < _LEAST_SHARE:
        return
    differentiated = np.flatnonzero(trace.named(_DIFFERENTIATES) & trace.on_host)
    rows = np.union1d(called, differentiated)
    rows = rows[outermost(trace, rows)]
    host_ns = float(trace.lengths(rows).sum())
    computed = np.flatnonzero(trace.is_category("cpu_op") & ~trace.named(_CALL))
    computed_ns = float(total(*union(trace.starts[computed], trace.ends[computed])))
    # The host's time is priced without what the profiler adds to it, and what is computed has nothing of that.
    part = min(computed_ns / (host_ns * evidence.host_part), 1.0)
    likely, least, most = (
        Edit(host=evidence.host_time(rows, min(part * fused + stays, 1.0)))
        for stays, fused in zip(_STAYS, _FUSED, strict=True)
    )
    yield Finding(
        f"JAX runs {times(len(called) / len(trace.steps), len(called)).replace(' times', ' operations')} one by one "
        "from Python, because no jit encloses them",
        _function(trace, rows),
        "put jax.jit around the function that makes a step, with weights and optimizer state as arguments and results",
        "high",
        "calls of single operations from Python, and gradients that are traced anew in every step",
        likely,
        least,
        most,
        proof="giou-kernel:jax,jax-jit",
        event=int(rows[np.argmax(trace.lengths(rows))]),
    )


def _function(trace: Trace, rows: Ints) -> str:
    """Return the user's function that most of the time of some events is spent in; empty = no frames."""
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
    return _frames.function_label(max(ns, key=ns.__getitem__)) if ns else ""


RULE = AdviceRule("uncompiled-step", find)
