"""A metric is computed, and thereby read, in the step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits inside ``Metric.compute``."""
    for row in evidence.waits():
        inner = row.stack.splitlines()[:4]
        if any("torchmetrics/" in frame and "compute" in frame for frame in inner):
            yield Finding(
                "metrics are computed and read every step",
                evidence.location(row),
                "call compute() every N steps, or at the end of the epoch; update() alone needs no read",
                "medium",
                "every step waits inside a metric's compute()",
                evidence.without_reading(row),
                proof="metrics:naive,off",
                event=row.event,
            )


RULE = AdviceRule("metric-compute", find, needs=("sync_events",))
