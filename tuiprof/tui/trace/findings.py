"""Findings of the advice, as rows of its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tuiprof.model.report import Report

#: From this share of a step on a finding is bad.
_BAD_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Shown:
    """A finding as the head shows it; texts are untrusted.

    Attributes:
        rule: Name of its rule.
        what: What was seen.
        where: The place; empty = the whole step.
        fix: What to write instead.
        prove: A command that shows it before and after; empty = none.
        saves_ns: Time it saves per step; None = unknown.
        low_ns: At least.
        high_ns: At most.
        share: ``saves_ns`` as a share of the step.
        step_ns: A step without the profiler; None = unknown.
        captured_ns: A step while it is captured; None = unknown.
        event: Row of the typical event; None = none.
    """

    rule: str
    what: str
    where: str
    fix: str
    prove: str
    saves_ns: float | None
    low_ns: float | None
    high_ns: float | None
    share: float | None
    step_ns: float | None
    captured_ns: float | None
    event: int | None


def _figure(report: Report, key: str) -> float | None:
    value = next((fact.value for fact in report.facts if fact.key == key), None)
    return float(value) if isinstance(value, (int, float)) else None


def step_times_of(advice: object) -> tuple[float | None, float | None]:
    """Return what a step takes without the profiler and while it is captured, ns, as the advice reckons with it."""
    if not isinstance(advice, Report):
        return None, None
    return _figure(advice, "step_ns"), _figure(advice, "captured_step_ns")


def is_bad(found: Shown) -> bool:
    """Return whether a finding is a bad one, or one to look at."""
    return found.saves_ns is None or (found.share or 0.0) >= _BAD_SHARE


def findings_of(advice: object) -> list[Shown]:
    """Return the findings, largest saving first; nothing until they are computed."""
    if not isinstance(advice, Report):
        return []
    table = next((table for table in advice.tables if table.key == "findings"), None)
    if table is None:
        return []
    step, captured = step_times_of(advice)
    return [
        Shown(
            row["rule"],
            row["what"],
            row["where"],
            row["instead"],
            row["proof"],
            row["wins_ns"],
            row["wins_low_ns"],
            row["wins_high_ns"],
            row["share"],
            step,
            captured,
            row["event"],
        )
        for row in table.rows.iter_rows(named=True)
    ]
