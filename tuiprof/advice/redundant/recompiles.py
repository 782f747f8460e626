"""Compiled code is compiled again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_ns, format_rough_share, plural
from tuiprof.whatif import Edit

#: What to do about it, in PyTorch and in JAX.
TORCH: Final = (
    "mark_dynamic() for sizes that change, keep Python numbers out of the graph, warm up before "
    "measuring; TORCH_LOGS=recompiles names the guard that failed"
)
JAX: Final = (
    "pad to a few sizes, pass numbers that change as arrays and not as static arguments, call jax.jit once rather than "
    "every step, warm up before measuring; "
    'jax.config.update("jax_explain_cache_misses", True) names the cause'
)
#: Of single operations of JAX, which have no jit around them.
EAGER: Final = (
    "call it inside a jax.jit: outside of one, JAX compiles an operation again for each value of a number that it "
    "takes as a constant, such as an exponent, a shape or a bound"
)
#: What calls a single operation of JAX outside of a jit.
_PRIMITIVE: Final = r"^(.*/)?dispatch\.py\(\d+\): apply_primitive$"
#: In so many captured steps in a row, it is no warm-up.
_MIN_STEPS: Final = 3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for recompiled frames and for compilation inside the window."""
    report = evidence.report("compile")
    if report is None or report.verdict.level == "good":
        return
    compiling = (trace.named(_idle.COMPILE) | trace.is_category("compile")) & trace.on_host
    rows = outermost(trace, np.flatnonzero(compiling))
    line = evidence.line_doing("compiles")
    jax = EAGER if _in_primitives(trace, rows) else JAX
    yield Finding(
        _in_each_step(trace, evidence, rows) or report.verdict.sentence,
        line.where if line is not None else "",
        jax if evidence.is_jax else TORCH,
        "high",
        "the compiler's own ranges, or the version in a region's name",
        Edit.of_host(trace, rows) if len(rows) else None,
    )


def _in_each_step(trace: Trace, evidence: Evidence, rows: Ints) -> str:
    """Return what is compiled in each captured step, and how long that takes; empty = not in each, or not known."""
    steps = trace.steps.step_of[rows]
    call = evidence.calls.inside(rows)
    if (
        len(trace.steps) < _MIN_STEPS
        or len(np.unique(steps[steps >= 0])) < len(trace.steps)
        or (call < 0).any()
    ):
        return ""
    took = trace.lengths(rows)
    per_step, share = took.sum() / len(trace.steps), took.sum() / max(trace.steps.lengths.sum(), 1)
    names = list(dict.fromkeys(map(operator_label, evidence.calls.names_of(call[np.argsort(-took)]))))
    what = names[0] if len(names) == 1 else f"{names[0]} and {plural(len(names) - 1, 'other')}"
    return (
        f"{what} {'is' if len(names) == 1 else 'are'} compiled again in each of {len(trace.steps)} captured steps, "
        f"{format_ns(per_step)} a step ({format_rough_share(share)})"
    )


def _in_primitives(trace: Trace, rows: Ints) -> bool:
    """Return whether all of it is compiled for single operations of JAX."""
    found = np.zeros(len(rows), dtype=bool)
    for level in trace.nesting.outward(rows):
        at = np.maximum(level, 0)
        found |= (level >= 0) & trace.named(_PRIMITIVE, at)
    return bool(len(rows) and found.all())


RULE = AdviceRule("recompiles", find, needs=("compile",))
