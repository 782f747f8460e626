"""Compiled code is compiled again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
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


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for recompiled frames and for compilation inside the window."""
    report = evidence.report("compile")
    if report is None or report.verdict.level == "good":
        return
    compiling = (trace.named(_idle.COMPILE) | trace.is_category("compile")) & trace.on_host
    rows = outermost(trace, np.flatnonzero(compiling))
    line = evidence.line_doing("compiles")
    yield Finding(
        report.verdict.sentence,
        line.where if line is not None else "",
        JAX if evidence.is_jax else TORCH,
        "high",
        "the compiler's own ranges, or the version in a region's name",
        Edit.of_host(trace, rows) if len(rows) else None,
    )


RULE = AdviceRule("recompiles", find, needs=("compile",))
