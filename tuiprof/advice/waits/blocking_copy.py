"""Batches are copied from pinned memory, but the host still waits for the copy."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.waits.small_copy import SMALL_BYTES, sizes
from tuiprof.analyses.shared.waits import TO_DEVICE
from tuiprof.model import Trace


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for blocking copies from pinned memory to the device."""
    for row in evidence.waits(TO_DEVICE):
        size = (row.bytes or 0) / max(row.count, 1)
        copies = evidence.work_in(evidence.operators_of(row))[0]
        if size > SMALL_BYTES and trace.named("Pinned", copies).any():
            yield Finding(
                f"{sizes(trace, copies, size)} are copied to the device {evidence.rhythm(row)}, and the host "
                "waits for the copy",
                evidence.location(row),
                f"{evidence.write_for(row, 'non-blocking', '.to(device, non_blocking=True)')}: the memory is pinned, "
                "so the host need not wait",
                "high",
                "a copy from pinned memory, then a synchronise",
                evidence.without_waiting(row),
                event=row.event,
            )


RULE = AdviceRule("blocking-copy", find, needs=("sync_events",))
