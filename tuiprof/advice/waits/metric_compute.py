"""A metric is computed, and thereby read, in the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace

_LIBRARY: Final = "torchmetrics/"
#: Share of what runs between the first and the last wait of a line that remains, as it also updates the metrics:
#: likely, and where computing them is most of it. Where it helps least, only the waits disappear.
_KEEP: Final = (0.5, 0.2)


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits inside ``Metric.compute``; those that one line of the script causes are one finding."""
    of_line: dict[str, list[WaitLocation]] = defaultdict(list)
    for row in evidence.waits():
        if _LIBRARY in row.stack:
            of_line[row.called_from or row.where].append(row)
    for rows in of_line.values():
        computing = [
            row
            for row in rows
            if any(_LIBRARY in frame and "compute" in frame for frame in row.stack.splitlines()[:4])
        ]
        if not computing:
            continue
        reads, waiting = (
            np.unique(np.concatenate([evidence.operators_of(row) for row in those]))
            for those in (computing, rows)
        )
        least = evidence.without_operators(reads)
        likely, most = (least | evidence.shortened(waiting, keep) for keep in _KEEP)
        yield Finding(
            "metrics are computed and read every step",
            evidence.location(computing[0]),
            "call compute() every N steps, or at the end of the epoch; update() alone needs no read",
            "medium",
            "every step waits inside a metric's compute()",
            likely,
            least,
            most,
            proof="metrics:naive,off",
            event=computing[0].event,
        )


RULE = AdviceRule("metric-compute", find, needs=("sync_events",))
