r"""Reports as JSON, for machines.

The shape is stable: keys are only ever added. A document is::

    {"tuiprof": 1,                        version of this shape
     "trust": "trust: complete ✓",        empty when unknown
     "reports": [
       {"analysis": "sync_events",
        "title": "Syncs",
        "available": true,
        "window": {"start_ns": null, "end_ns": null, "label": ""},   null = open end
        "verdict": {"sentence": "…", "level": "good|info|warn|bad"},
        "facts": {"syncs_per_step": 2.0, …},                         null = unknown
        "units": {"device_empty_ns_per_step": "ns", …},            kind of every fact
        "tables": [{"key": "groups", "title": "…", "note": "…",
                    "columns": [{"key": "empty_ns", "label": "…", "kind": "ns"}, …],
                    "rows": [{"empty_ns": 740000, …}, …],            hidden columns included; the first 10 000
                    "rows_left_out": 0}, …],                         how many more there are
        "rules": [{"name": "…", "text": "…"}, …],
        "notes": ["…", …]},
       {"analysis": "memory", "available": false, "reason": "…", "remedy": "…"}]}

Durations are ns, sizes bytes, shares 0 to 1. Names from a trace stand as they are in the trace, escaped as JSON
demands: nothing outside printable ASCII is written raw, so the document is safe to print.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tuiprof.model import Report, Table, Unavailable
from tuiprof.report import MAX_ROWS, Renderer, Style

SHAPE = 1


def document(reports: Sequence[Report | Unavailable], trust: str) -> dict[str, Any]:
    """Return the document as plain Python values."""
    return {"tuiprof": SHAPE, "trust": trust, "reports": [_report(report) for report in reports]}


def _report(report: Report | Unavailable) -> dict[str, Any]:
    if isinstance(report, Unavailable):
        return {
            "analysis": report.analysis,
            "available": False,
            "reason": report.reason,
            "remedy": report.remedy,
        }
    window = report.window
    return {
        "analysis": report.analysis,
        "title": report.title,
        "available": True,
        "window": {"start_ns": window.start_ns, "end_ns": window.end_ns, "label": window.label},
        "verdict": {"sentence": report.verdict.sentence, "level": report.verdict.level},
        "facts": {fact.key: _number(fact.value) for fact in report.facts},
        "units": {fact.key: fact.kind for fact in report.facts},
        "tables": [_table(table) for table in report.tables],
        "rules": [{"name": rule.name, "text": rule.text} for rule in report.rules],
        "notes": list(report.notes),
    }


def _table(table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    return {
        "key": table.key,
        "title": table.title,
        "note": table.note,
        "columns": [{"key": c.key, "label": c.label, "kind": c.kind} for c in table.columns],
        "rows": [
            {key: _number(value) for key, value in zip(keys, row, strict=True)}
            for row in table.rows.select(keys).head(MAX_ROWS).iter_rows()
        ],
        "rows_left_out": max(0, len(table.rows) - MAX_ROWS),
    }


def _number(value: Any) -> Any:
    """Return None for NaN and infinities, which JSON cannot hold."""
    if isinstance(value, float) and value - value != 0:
        return None
    return value


def _render(reports: Sequence[Report | Unavailable], trust: str, _style: Style) -> str:
    return json.dumps(document(reports, trust), allow_nan=False, indent=1, default=str) + "\n"


RENDERER = Renderer("json", _render)
