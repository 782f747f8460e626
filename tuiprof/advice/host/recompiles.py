"""Compiled code is compiled again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared.replay import are_long
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import NOISE_OF_WIN

_TORCH = (
    "mark_dynamic() for sizes that change, keep Python numbers out of the graph, warm up before "
    "measuring; TORCH_LOGS=recompiles names the guard that failed"
)
_JAX = (
    "pad to a few sizes, pass numbers that change as arrays and not as static arguments, call jax.jit once rather than "
    "every step, warm up before measuring; "
    'jax.config.update("jax_explain_cache_misses", True) names the cause'
)
#: Minimum number of long steps in the second half of a session, and of their share of its time, if no captured step
#: compiles.
_MIN_LONG, _MIN_OF_TIME = 2, 0.1
#: Code is compiled in long steps if at least this share of what they take was sampled while something was compiled.
_MIN_SAMPLED: Final = 0.5


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for recompiled frames, for compilation inside the window, and in steps that were not captured."""
    report = evidence.report("compile")
    compiling = (trace.named(_idle.COMPILE) | trace.is_category("compile")) & trace.on_host
    rows = outermost(trace, np.flatnonzero(compiling))
    if report is None or report.verdict.level == "good":
        yield from _in_other_steps(trace, evidence, rows)
        return
    line = evidence.line_doing("compiles")
    yield Finding(
        report.verdict.sentence,
        line.where if line is not None else "",
        _JAX if evidence.is_jax else _TORCH,
        "high",
        "the compiler's own ranges, or the version in a region's name",
        Edit.of_host(trace, rows) if len(rows) else None,
    )


def _in_other_steps(trace: Trace, evidence: Evidence, captured: Ints) -> Iterator[Finding]:
    """Look for long steps of the session in which something is compiled, although none was captured."""
    seen, line = trace.uncaptured, evidence.line_doing("compiles")
    if seen is None or line is None or len(captured):
        return
    times = np.array(seen.times_ns + seen.later_ns, dtype=np.int64)
    times = times[len(times) // 2 :]  # what is compiled for the first time is so at the beginning of a run
    long = are_long(times)
    if long.sum() < _MIN_LONG:
        return
    longer_ns = float((times[long] - np.median(times)).sum())
    share = longer_ns / float(times.sum())
    if share < _MIN_OF_TIME or line.share < _MIN_SAMPLED * share:
        return
    likely = longer_ns / len(times)
    yield Finding(
        f"{format_share(float(long.mean()))} of the steps take {format_ns(float(np.median(times[long])))}, as code is "
        f"compiled again; the others take {format_ns(float(np.median(times)))}",
        line.where,
        _JAX if evidence.is_jax else _TORCH,
        "high" if line.share >= (1 - NOISE_OF_WIN) * share else "medium",
        f"{format_share(line.share)} of the session's samples of this thread are at this line while it compiles; no "
        "such step was captured, and the saving is averaged over all steps",
        Edit(),
        rare_ns=(likely, min(line.share / share, 1 - NOISE_OF_WIN) * likely, (1 + NOISE_OF_WIN) * likely),
    )


RULE = AdviceRule("recompiles", find, needs=("compile",))
