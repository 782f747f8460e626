"""Reports as CSV, for spreadsheets: every table up to 10 000 rows, hidden columns included, plain numbers.

Each table begins with a comment line ``# analysis: title`` and is followed by an empty line. A text that a
spreadsheet would run as a formula is preceded by an apostrophe, also behind a semicolon, which some take for the end
of a cell, and behind a comma of a comment line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from tuiprof.model import Report, Unavailable
from tuiprof.report import MAX_ROWS, Renderer, Style
from tuiprof.report.sanitize import sanitize

#: Begins a formula: at the start of a cell, blanks and a quote before it or not, full width or not.
_FORMULA = re.compile(r"((?:^|;)[\s\"]*)(?=[=+\-@＝＋－＠])")
_FORMULA_IN_COMMENT = re.compile(r"([,;][\s\"]*)(?=[=+\-@＝＋－＠])")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = "⏎".join(sanitize(line) for line in value.split("\n"))
        return _FORMULA.sub(r"\1'", text)
    return value


def _comment(text: str) -> str:
    # A quote behind a comma would begin a cell that goes on over the lines below, and turn theirs inside out.
    said = sanitize(text).replace('"', "'")
    return "# " + _FORMULA_IN_COMMENT.sub(r"\1'", said) + "\n"


def _render(reports: Sequence[Report | Unavailable], trust: str, _style: Style) -> str:
    out = io.StringIO()
    if trust:
        out.write(_comment(trust) + "\n")
    writer = csv.writer(out, lineterminator="\n")
    for report in reports:
        if isinstance(report, Unavailable):
            out.write(_comment(f"{report.analysis}: unavailable: {report.reason}") + "\n")
            continue
        out.write(_comment(f"{report.analysis}: {report.verdict.sentence}"))
        writer.writerow(["fact", "value", "kind"])
        writer.writerows([[_cell(fact.key), _cell(fact.value), fact.kind] for fact in report.facts])
        out.write("\n")
        for table in report.tables:
            keys = [column.key for column in table.columns]
            out.write(_comment(f"{report.analysis}.{table.key}: {table.title}"))
            writer.writerow(map(_cell, keys))
            rows = table.rows.select(keys).head(MAX_ROWS)
            writer.writerows([_cell(v) for v in row] for row in rows.iter_rows())
            if left := len(table.rows) - len(rows):
                out.write(f"# {left} more rows are left out\n")
            out.write("\n")
    return out.getvalue()


RENDERER = Renderer("csv", _render)
