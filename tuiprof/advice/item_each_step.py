"""A value is read from the device in every step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.analyses._wait_kinds import READ_KINDS
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for `.item()`-like reads that happen in every step."""
    for row in evidence.rows("sync_events", "groups").iter_rows(named=True):
        if (
            row["kind"] not in READ_KINDS
            or not evidence.often(row)
            or "aggregation.py" in f"{row['where']} {row['stack']}"
        ):
            continue
        how = (
            "a branch on a tensor (if, bool())"
            if row["kind"] == "bool"
            else "a comparison of whole tensors (equal, allclose)"
            if row["kind"] == "equal"
            else ".item(), float() or a print"
        )
        yield Finding(
            f"{how} reads a value from the device {evidence.rhythm(row)}",
            evidence.place(row),
            "keep the value on the device and read it every N steps (sum on the device, one .item() when logging), "
            "or copy it with non_blocking=True to pinned memory and read it a step later",
            evidence.cost(row, "can_win_ns"),
            "high" if row["found"] == "line" else "medium",
            f"{row['through']} waits for the device",
            "metrics:naive,no-nan-check" if row["kind"] == "bool" else "",
            row["event"],
        )


RULE = AdviceRule("item-each-step", find)
