"""Compiled code is compiled again."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace

_TORCH = (
    "mark_dynamic() what changes its size, keep Python numbers out of the graph, warm up before measuring; "
    "TORCH_LOGS=recompiles names the guard that failed"
)
_JAX = (
    "pad to few sizes, make one jitted function and not one a step, warm up before measuring; "
    'jax.config.update("jax_explain_cache_misses", True) names what was new'
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for recompiled frames and for compiling inside the window."""
    report = evidence.report("compile")
    if report is None or report.verdict.level == "good":
        return
    compiling = evidence.figure("compile", "compile_ns_per_step") or evidence.figure("compile", "compile_ns")
    yield Finding(
        report.verdict.sentence,
        "",
        _JAX if is_jax(trace) else _TORCH,
        compiling or None,
        "high",
        "the compiler's own ranges, or the version in the region's name",
    )


RULE = AdviceRule("recompiles", find)
