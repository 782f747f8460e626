"""Gradients are averaged by many small collectives."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE, index_of_outer
from tuiprof.analyses.shared.collectives import peer_waits, sizes_of
from tuiprof.model import Trace
from tuiprof.model.units import format_bytes, format_count
from tuiprof.whatif import Edit

#: DistributedDataParallel's default, bytes.
BUCKET: Final = 25 << 20
#: Minimum number of collectives per bucket of that size, and per step.
MIN_PER_BUCKET: Final = 4
MIN_PER_STEP: Final = 16


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for gradients that are averaged in far more collectives than their size requires."""
    calls = evidence.calls
    starting = trace.operators(r"^c10d::_?(allreduce|reduce_scatter)")
    node = calls.inside(starting)
    starting = starting[(node >= 0) & trace.named(ACCUMULATE, calls.rows[node])]
    collectives = peer_waits(trace).rows
    launch = trace.links.launch_of[collectives]
    started_by = np.where(launch >= 0, index_of_outer(trace, starting, launch), -1)
    sizes = sizes_of(trace, collectives)[started_by >= 0]
    count, size = len(starting) / evidence.step_count, float(sizes.sum()) / evidence.step_count
    buckets = ceil(size / BUCKET)
    if not evidence.stepped or not sizes.all() or count < max(MIN_PER_STEP, MIN_PER_BUCKET * buckets):
        return
    keep = buckets / count
    yield Finding(
        f"gradients of {format_bytes(size)} are averaged by {format_count(round(count))} collectives a step",
        evidence.function_of(int(starting[0])),
        f"larger buckets: leave {evidence.write('bucket-size', 'bucket_cap_mb of DistributedDataParallel')} at 25 or "
        "raise it, so that fewer collectives are started",
        "high",
        f"host time of starting collectives; buckets of {format_bytes(BUCKET)} need {buckets} a step",
        Edit.of_host(trace, starting, keep),
        Edit.of_host(trace, starting, (1 + keep) / 2),
        event=int(starting[0]),
    )


RULE = AdviceRule("small-buckets", find)
