"""Python collects garbage in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for collector pauses that leave the device idle."""
    rows = evidence.rows("device_idle", "causes")
    for row in rows.filter(rows["cause"] == "garbage collector").iter_rows(named=True) if len(rows) else ():
        yield Finding(
            "the device idles while Python collects garbage",
            "",
            "gc.freeze() after building the model, gc.disable() in the loop and gc.collect() every N steps",
            evidence.cost(row, "idle_ns"),
            "high",
            "the collector's own range lies in the gap",
            "",
            row["event"],
        )


RULE = AdviceRule("garbage-collector", find)
