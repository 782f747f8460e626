"""Python collects garbage in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.host.python_time import IN_MEAN, own_collections, rare_collections_ns
from tuiprof.analyses.shared.idle import GARBAGE
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.steps import Collections
from tuiprof.model.units import format_count, format_ns, plural
from tuiprof.whatif import Edit

_INSTEAD = "gc.freeze() after building the model, gc.disable() in the loop and gc.collect() every N steps"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for the ranges of the garbage collector, except in code that makes what is collected, and for collections
    that the session timed outside of the capture.
    """
    rows = outermost(trace, trace.host_events(GARBAGE))
    others = rows[~own_collections(trace, rows)]
    seen = trace.uncaptured.collections if trace.uncaptured is not None and evidence.stepped else None
    if seen is not None and (len(others) or not len(rows)):
        part = (
            float(trace.lengths(others).sum()) / max(float(trace.lengths(rows).sum()), 1.0)
            if len(rows)
            else 1.0
        )
        # Of collections in the replayed steps as much disappears as the median step has.
        captured_ns = float(trace.lengths(rows).sum()) / evidence.step_count
        keep = 1 - min(seen.usual_ns / captured_ns, 1.0) if captured_ns else 0.0
        likely, least, most = (part * ns for ns in seen.rare_ns())
        yield Finding(
            _of_session(seen),
            "",
            _INSTEAD,
            "high",
            f"the session timed {plural(seen.count, 'collection')} in {plural(seen.steps, 'step')}; the saving is "
            "averaged over all steps",
            Edit.of_host(trace, others, keep),
            rare_ns=(likely, least, most),
            event=trace.longest(others) if len(others) else None,
        )
    elif len(others):
        rare_ns = rare_collections_ns(trace, others)
        yield Finding(
            f"Python's garbage collector runs {'once' if len(others) == 1 else f'{len(others)} times'}"
            + (f" in {evidence.step_count} steps" if evidence.stepped else ""),
            "",
            _INSTEAD,
            "high",
            "its own ranges fall inside the steps" + (IN_MEAN if any(rare_ns) else ""),
            Edit.of_host(trace, others),
            rare_ns=rare_ns,
            event=trace.longest(others),
        )


def _of_session(seen: Collections) -> str:
    """Return ``Python's garbage collector takes 6.4 ms a step on average: about 250 ms every 40 steps``."""
    what = f"Python's garbage collector takes {format_ns(seen.ns / seen.steps)} a step on average"
    every = round(seen.every) if seen.ns else 1
    return f"{what}: about {format_ns(seen.long_ns)} every {format_count(every)} steps" if every > 1 else what


RULE = AdviceRule("garbage-collector", find, shown_by="steps")
