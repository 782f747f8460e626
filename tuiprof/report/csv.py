"""Reports as CSV, for spreadsheets: every table up to 10 000 rows, hidden columns included, plain numbers.

Each table begins with a comment line ``# analysis: title`` and is followed by an empty line. A text that a
spreadsheet would run as a formula is preceded by an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from tuiprof.model import Report, Unavailable
from tuiprof.report import MOST_ROWS, Renderer, Style
from tuiprof.report.sanitize import sanitize

_FORMULA = ("=", "+", "-", "@")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = "⏎".join(sanitize(line) for line in value.split("\n"))
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def _render(reports: Sequence[Report | Unavailable], trust: str, _style: Style) -> str:
    out = io.StringIO()
    if trust:
        out.write(f"# {sanitize(trust)}\n\n")
    writer = csv.writer(out, lineterminator="\n")
    for report in reports:
        if isinstance(report, Unavailable):
            out.write(f"# {report.analysis}: unavailable: {sanitize(report.reason)}\n\n")
            continue
        out.write(f"# {report.analysis}: {sanitize(report.verdict.sentence)}\n")
        writer.writerow(["fact", "value", "kind"])
        writer.writerows([[fact.key, _cell(fact.value), fact.kind] for fact in report.facts])
        out.write("\n")
        for table in report.tables:
            keys = [column.key for column in table.columns]
            out.write(f"# {report.analysis}.{table.key}: {sanitize(table.title)}\n")
            writer.writerow(keys)
            rows = table.rows.select(keys).head(MOST_ROWS)
            writer.writerows([_cell(v) for v in row] for row in rows.iter_rows())
            if left := len(table.rows) - len(rows):
                out.write(f"# {left} more rows are left out\n")
            out.write("\n")
    return out.getvalue()


RENDERER = Renderer("csv", _render)
