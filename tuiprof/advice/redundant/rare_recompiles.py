"""Code is compiled again in rare steps, none of which was captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.redundant.recompiles import JAX, TORCH
from tuiprof.analyses.shared.idle import COMPILE
from tuiprof.analyses.shared.replay import are_long
from tuiprof.model import Trace
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import NOISE_OF_WIN

#: Minimum number of long steps in the second half of a session, and of their share of its time.
_MIN_LONG, _MIN_OF_TIME = 2, 0.1
#: Code is compiled in long steps if at least this share of what they take was sampled while something was compiled.
_MIN_SAMPLED: Final = 0.5


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long steps of the session in which something is compiled."""
    seen, line = trace.uncaptured, evidence.line_doing("compiles")
    captured = (trace.named(COMPILE) | trace.is_category("compile")) & trace.on_host
    if seen is None or line is None or captured.any():
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
        JAX if evidence.is_jax else TORCH,
        "high" if line.share >= (1 - NOISE_OF_WIN) * share else "medium",
        f"{format_share(line.share)} of the session's samples of this thread are at this line while it compiles; no "
        "such step was captured, and the saving is averaged over all steps",
        Edit(),
        rare_ns=(likely, min(line.share / share, 1 - NOISE_OF_WIN) * likely, (1 + NOISE_OF_WIN) * likely),
    )


RULE = AdviceRule("rare-recompiles", find, shown_by="steps")
