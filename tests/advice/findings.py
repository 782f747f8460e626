"""What the rules find in a trace."""

from __future__ import annotations

from typing import Any

from tuiprof.advice import advise
from tuiprof.model import Trace


def finding(trace: Trace, rule: str) -> dict[str, Any] | None:
    """Return the row of a rule's first finding; None = it has none."""
    report = advise(trace)
    assert not [note for note in report.notes if "unavailable" in note], report.notes
    return next(
        (row for row in report.table("findings").rows.iter_rows(named=True) if row["rule"] == rule), None
    )


def found(trace: Trace, rule: str) -> dict[str, Any]:
    """Return the row of a rule's first finding, which it has to have."""
    row = finding(trace, rule)
    assert row is not None, f"{rule} not found"
    return row
