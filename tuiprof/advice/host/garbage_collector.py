"""Python collects garbage in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.host.python_time import IN_MEAN, own_collections, rare_collections_ns
from tuiprof.analyses.shared.idle import GARBAGE
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.whatif import Edit


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for the ranges of the garbage collector, except in code that makes what is collected."""
    rows = outermost(trace, trace.host_events(GARBAGE))
    rows = rows[~own_collections(trace, rows)]
    if not len(rows):
        return
    rare_ns = rare_collections_ns(trace, rows)
    yield Finding(
        f"Python's garbage collector runs {'once' if len(rows) == 1 else f'{len(rows)} times'}"
        + (f" in {evidence.step_count} steps" if evidence.stepped else ""),
        "",
        "gc.freeze() after building the model, gc.disable() in the loop and gc.collect() every N steps",
        "high",
        "its own ranges fall inside the steps" + (IN_MEAN if any(rare_ns) else ""),
        Edit.of_host(trace, rows),
        rare_ns=rare_ns,
        event=trace.longest(rows),
    )


RULE = AdviceRule("garbage-collector", find, shown_by="steps")
