"""Collectives run while nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.intervals import intersection, total, union

_COLLECTIVE = r"(?i)nccl|rccl|hccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for communication that no computation hides, device by device."""
    exposed, last = 0, -1
    collective = trace.named(_COLLECTIVE) | trace.is_category("collective")
    if not collective[trace.device_work].any():
        return
    for device in trace.device_indices:
        work = trace.work_of(device)
        rows, others = work[collective[work]], work[~collective[work]]
        busy = union(trace.starts[rows], trace.ends[rows])
        hidden = intersection(*busy, *union(trace.starts[others], trace.ends[others]))
        exposed += total(*busy) - total(*hidden)
        last = int(rows[np.argmax(trace.ends[rows] - trace.starts[rows])]) if len(rows) else last
    count = len(trace.steps) or 1
    yield Finding(
        "communication runs while the device computes nothing",
        trace.name(last),
        "overlap it: larger DDP buckets, FSDP prefetch, gradient accumulation with no_sync(); a rank that comes late "
        "makes all others wait here",
        exposed / count if evidence.step_ns else float(exposed),
        "medium",
        "time of collectives minus what other work overlaps",
        "",
        last,
    )


RULE = AdviceRule("exposed-collectives", find)
