"""A metric is computed, and thereby read, in the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import Edit

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
        likely, most = (least | _shortened(evidence, waiting, keep) for keep in _KEEP)
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


def _shortened(evidence: Evidence, waiting: Ints, keep: float) -> Edit:
    """Return the edit in which calls from the first to the last of these operators, in each step, take less time."""
    calls = evidence.calls
    inside = calls.inside(waiting)
    inside = inside[inside >= 0]
    of_step = calls.steps[inside] * (int(calls.tracks.max(initial=0)) + 1) + calls.tracks[inside]
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for one in np.unique(of_step):
        mine = inside[of_step == one]
        between = np.arange(mine.min(), mine.max() + 1)
        chosen[between[calls.tracks[between] == calls.tracks[mine[0]]]] = True
    return replace(calls.edit(chosen, keep, keep), waits=waiting[:0])


RULE = AdviceRule("metric-compute", find, needs=("sync_events",))
