"""A Python number is copied to the device in every step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.analyses._wait_kinds import PAGEABLE_TO_DEVICE, TO_DEVICE
from tuiprof.model import Trace

#: A copy of at most so many bytes is a scalar or a handful of them.
SMALL_BYTES = 64


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for blocking copies of a few bytes to the device."""
    for row in evidence.rows("sync_events", "groups").iter_rows(named=True):
        if row["kind"] not in (TO_DEVICE, PAGEABLE_TO_DEVICE) or not evidence.often(row) or not row["count"]:
            continue
        size = (row["bytes"] or 0) / row["count"]
        if 0 < size <= SMALL_BYTES:
            metric = "torchmetrics/" in f"{row['where']} {row['stack']}"
            yield Finding(
                f"{size:.0f} bytes are copied to the device {evidence.rhythm(row)}, and the host waits",
                evidence.place(row),
                "pass a tensor that is on the device already (for example weight=torch.ones_like(loss)), or make the "
                "tensor there: torch.full((), x, device=…) needs no copy",
                evidence.cost(row, "can_win_ns"),
                "high" if row["found"] == "line" else "medium",
                "a copy from pageable memory of a scalar's size",
                "metrics:naive,explicit-weight"
                if metric
                else "metrics:step-time-on-device-float,step-time-on-device-tensor",
                row["event"],
            )


RULE = AdviceRule("small-copy", find)
