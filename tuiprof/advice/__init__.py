"""One file a rule: what was seen, what it costs, what to write instead, and the scenario that proves it.

A module here defines ``RULE = AdviceRule(name=..., find=...)`` and is found by itself. A rule reads the reports of the
analyses, and the trace where they are not enough; it does no input, no output and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses import run as run_analysis
from tuiprof.errors import REPORT_IT, describe
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.report import Level
from tuiprof.model.units import format_count, format_ns
from tuiprof.plugins import discover

Reports = Mapping[str, Report | Unavailable]
Sure = Literal["high", "medium", "low"]

#: The analyses that rules read.
NEEDS: tuple[str, ...] = (
    "sync_events",
    "kernel_launches",
    "device_idle",
    "kernels",
    "steps",
    "data_loading",
    "compile",
)
#: A finding that costs less than this share of the step is not worth a line.
LEAST_SHARE = 0.002


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change.

    Attributes:
        what: What was seen, one sentence.
        where: The place: a line, a function, a range or an operator; empty = the whole run.
        instead: What to write or set instead.
        cost_ns: What it costs a step (in all where the trace marks no steps), ns: an upper bound of what the change
            wins; None = cannot be told.
        sure: How sure it is that this is what happens.
        because: What that rests on.
        proof: ``ladder:variants`` of the scenario that shows it before and after; empty = none yet.
        event: Row of the typical event; None = none.
    """

    what: str
    where: str
    instead: str
    cost_ns: float | None
    sure: Sure
    because: str
    proof: str = ""
    event: int | None = None


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule.

    Attributes:
        name: Its name, for example ``"nan-check"``.
        find: Looks for it; yields one finding a place.
    """

    name: str
    find: Callable[[Trace, Evidence], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the analyses found, for rules.

    Attributes:
        reports: Reports by name; a rule that needs one that is unavailable finds nothing.
    """

    reports: Reports = field(default_factory=dict)

    def report(self, name: str) -> Report | None:
        """Return a report; None where the analysis could not answer.

        Args:
            name: Name of the analysis.
        """
        found = self.reports.get(name)
        return found if isinstance(found, Report) else None

    def figure(self, name: str, key: str) -> float | None:
        """Return a figure of a report; None where it cannot be told.

        Args:
            name: Name of the analysis.
            key: Key of the fact.
        """
        report = self.report(name)
        value = report.fact(key) if report is not None else None
        return float(value) if isinstance(value, (int, float)) else None

    def rows(self, name: str, table: str) -> pl.DataFrame:
        """Return the rows of a table; no rows and no columns where the report has no such table.

        Args:
            name: Name of the analysis.
            table: Key of the table.
        """
        report = self.report(name)
        found = next((item for item in report.tables if item.key == table), None) if report else None
        return found.rows if found is not None else pl.DataFrame()

    def cost(self, row: Mapping[str, object], key: str) -> float | None:
        """Return a cost of a row, per step where there are steps, else in all.

        Args:
            row: A row of a table that has ``key`` and ``key_per_step``.
            key: Name of the column without ``_per_step``.
        """
        value = row.get(f"{key}_per_step")
        value = row.get(key) if value is None else value
        return float(value) if isinstance(value, (int, float)) else None

    def place(self, row: Mapping[str, object]) -> str:
        """Return where a sync is, for a sentence: ``function, file:line``, or what else is known.

        Args:
            row: A row of the syncs by place.
        """
        return f"{row['in']}, {row['where']}" if row["found"] == "line" else str(row["where"])

    def often(self, row: Mapping[str, object]) -> bool:
        """Return whether a row happens in steady state: in most steps, or many times where there are no steps.

        Args:
            row: A row with ``per_step`` and ``count``.
        """
        per_step, count = row.get("per_step"), row.get("count")
        if isinstance(per_step, (int, float)):
            return per_step >= 0.9
        return isinstance(count, int) and count >= 5

    def rhythm(self, row: Mapping[str, object]) -> str:
        """Return how often a row happens, for a sentence: ``in every step`` or ``1 318 times``.

        Args:
            row: A row with ``per_step`` and ``count``.
        """
        count = row.get("count")
        if isinstance(row.get("per_step"), (int, float)) or not isinstance(count, int):
            return "in every step"
        return f"{format_count(count)} times"

    @property
    def step_ns(self) -> float | None:
        """What a step takes, ns (the device's time where the host runs ahead); None = the trace marks no steps."""
        return self.figure("steps", "step_period_ns")


def is_jax(trace: Trace) -> bool:
    """Return whether a trace is of JAX, where other words help than in PyTorch.

    Args:
        trace: The trace.
    """
    return trace.info.framework.startswith("JAX")


@cache
def available() -> dict[str, AdviceRule]:
    """Return every rule by name."""
    found: dict[str, AdviceRule] = discover("advice").items
    return found


@cache
def unavailable() -> dict[str, str]:
    """Return why a rule cannot be loaded, by its name."""
    return discover("advice").failed


def find_all(trace: Trace, evidence: Evidence) -> tuple[list[tuple[str, Finding]], dict[str, str]]:
    """Ask every rule.

    Args:
        trace: The trace.
        evidence: What the analyses found.

    Returns:
        The findings with the names of their rules, and why a rule cannot answer, by its name: it alone is missing.
    """
    findings: list[tuple[str, Finding]] = []
    missing = dict(unavailable())
    for rule in available().values():
        try:
            findings += [(rule.name, finding) for finding in rule.find(trace, evidence)]
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - as for an analysis
            missing[rule.name] = f"it failed: {describe(error)}"
    return findings, missing


def advise(trace: Trace, reports: Reports, window: Window | None = None) -> Report:
    """Turn what the analyses found into things to change, the most expensive first.

    Args:
        trace: The trace.
        reports: Answers of the analyses named in :data:`NEEDS` for the same window, by name.
        window: The window they looked at.
    """
    evidence = Evidence(reports)
    step = evidence.step_ns
    every, missing = find_all(trace, evidence)
    findings = [
        (name, finding)
        for name, finding in every
        if finding.cost_ns is None or not step or finding.cost_ns >= LEAST_SHARE * step
    ]
    # What cannot be priced (a mode, a setting) comes first: it spoils every other figure.
    findings.sort(key=lambda item: (item[1].cost_ns is not None, -(item[1].cost_ns or 0.0)))
    rows = pl.DataFrame(
        [
            {
                "rule": name,
                "cost_ns": finding.cost_ns,
                "share": min(finding.cost_ns / step, 1.0) if step and finding.cost_ns is not None else None,
                "what": finding.what,
                "where": finding.where,
                "instead": finding.instead,
                "sure": finding.sure,
                "because": finding.because,
                "proof": _command(finding.proof),
                "event": finding.event,
            }
            for name, finding in findings
        ],
        schema={
            "rule": pl.String,
            "cost_ns": pl.Float64,
            "share": pl.Float64,
            **dict.fromkeys(("what", "where", "instead", "sure", "because", "proof"), pl.String),
            "event": pl.Int64,
        },
    )
    return Report(
        "advice",
        "Advice",
        _verdict([finding for _, finding in findings], bool(step)),
        (Fact("findings", "findings", len(findings), "count"),),
        (_table(rows, evidence),),
        (
            Rule(
                "costs",
                "An upper bound of what the change wins; findings overlap, so costs are not to be added.",
            ),
            Rule(
                "sure",
                "high = the very line or setting was seen; medium = by names and times; low = one of several causes.",
            ),
        ),
        tuple(f"the rule {name} is unavailable: {why} ({REPORT_IT})" for name, why in missing.items()),
        window or Window(),
    )


def run(trace: Trace, window: Window) -> Report:
    """Ask the analyses and turn their answers into advice.

    Args:
        trace: The trace.
        window: The part to look at.
    """
    return advise(trace, {name: run_analysis(name, trace, window) for name in NEEDS}, window)


def _command(proof: str) -> str:
    """Return what to run to see a finding before and after: ``tuiprof ladder metrics --variants naive,off``."""
    ladder, _, variants = proof.partition(":")
    return f"tuiprof ladder {ladder} --variants {variants}" if proof else ""


def _verdict(findings: list[Finding], stepped: bool) -> Verdict:
    if not findings:
        return Verdict("nothing to advise: no rule applies to this trace", "good")
    first = findings[0]
    a_step = " a step" if stepped else ""
    cost = f" (up to {format_ns(first.cost_ns)}{a_step})" if first.cost_ns is not None else ""
    level: Level = "warn"
    return Verdict(f"{first.what}{cost}: {first.instead}", level)


def _table(rows: pl.DataFrame, evidence: Evidence) -> Table:
    stepped = bool(evidence.step_ns)
    steps = evidence.figure("steps", "steps")
    return Table(
        "findings",
        "What to change",
        (
            Column(
                "cost_ns", "costs/step" if stepped else "costs", "ns", "Upper bound of what the change wins."
            ),
            Column("share", "of step", "share", hidden=not stepped),
            Column("what", "what", "text"),
            Column("where", "where", "text", elide="start"),
            Column("instead", "instead", "text"),
            Column("sure", "sure", "text"),
            Column("because", "because", "text", "What that rests on."),
            Column("proof", "proof", "text", "What to run to see it before and after."),
            Column("rule", "rule", "text", hidden=True),
            Column("event", "event", "count", hidden=True),
        ),
        rows,
        f"measured on {format_count(steps)} step{'s' if steps != 1 else ''}" if stepped and steps else "",
        empty="no rule applies to this trace",
        prose=True,
    )


ANALYSIS = Analysis(
    "advice", "Advice", "What is worth changing, what does it cost, and what to write instead?", run, 90
)
