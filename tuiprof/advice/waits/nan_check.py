"""A metric checks for NaN on the device at every update."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits inside an aggregator's NaN check."""
    for row in evidence.waits():
        text = f"{row.where} {row.stack}"
        if "_cast_and_nan_check" in text or ("is_nonzero" in row.through and "aggregation.py" in text):
            yield Finding(
                "a metric checks for NaN on the device at every update",
                evidence.location(row),
                'pass nan_strategy="disable" to the metric, or check once per epoch',
                "high" if row.at_line else "medium",
                f"the wait is {row.through} inside the NaN check ({row.found})",
                evidence.without_reading(row),
                proof="metrics:naive,no-nan-check",
                event=row.event,
                switch="nan_strategy=disable",
            )


RULE = AdviceRule("nan-check", find, needs=("sync_events",))
