"""Reports as Markdown, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tuiprof.model import Column, Report, Table, Unavailable
from tuiprof.report import Renderer, Style
from tuiprof.report.charts import is_line, text_chart
from tuiprof.report.sanitize import sanitize

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")
#: Somebody whom GitHub or GitLab would notify: written as code.
_MENTION = re.compile(r"(?<![\w`])(@[\w-]+(?:/[\w-]+)?)")
_SIGNS = {"good": "✓", "info": "·", "warn": "⚠", "bad": "✗"}


def escape(text: str) -> str:
    """Return text that Markdown shows as it is."""
    parts = _MENTION.split(" ⏎ ".join(sanitize(line) for line in text.split("\n")))
    return "".join(f"`{part}`" if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def _table(table: Table, style: Style) -> list[str]:
    columns = [column for column in table.columns if not column.hidden]
    lines = [f"### {escape(table.title)}", "", *fenced(text_chart(table, style))]
    if table.rows.is_empty():
        return [*lines, f"{escape(table.empty)}", ""]
    rows = table.rows if style.rows is None else table.rows.head(style.rows)
    lines.append("| " + " | ".join(escape(column.label) for column in columns) + " |")
    lines.append("|" + "|".join("--:" if column.right_aligned else "---" for column in columns) + "|")
    lines += [
        "| " + " | ".join(_cell(v, c) for v, c in zip(row, columns, strict=True)) + " |"
        for row in rows.select([column.key for column in columns]).iter_rows()
    ]
    lines.append("")
    if len(rows) < len(table.rows):
        lines += [f"… {len(table.rows) - len(rows)} more rows", ""]
    if table.note:
        lines += [escape(table.note), ""]
    return lines


def fenced(picture: Sequence[str]) -> list[str]:
    """Return lines of a chart as a block of code; names in them may hold backticks."""
    fence = "`" * max(3, 1 + max((len(run) for line in picture for run in re.findall("`+", line)), default=0))
    return [f"{fence}text", *picture, fence, ""] if picture else []


def _cell(value: Any, column: Column) -> str:
    text = column.text(value)
    return code(sanitize(text)) if column.code and text else escape(text)


def code(text: str) -> str:
    """Return a line of a program; the fence is longer than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if text.startswith(("`", " ")) or text.endswith("`") else ""
    return f"{fence}{room}{text}{room}{fence}".replace("|", r"\|")


def report_lines(report: Report | Unavailable, style: Style) -> list[str]:
    """Return a report as lines of Markdown."""
    if isinstance(report, Unavailable):
        remedy = f" — {report.remedy}" if report.remedy else ""
        return [f"## {escape(report.analysis)}", "", f"Unavailable: {escape(report.reason + remedy)}", ""]
    lines = [f"## {escape(report.title)}", ""]
    lines += [f"**{_SIGNS[report.verdict.level]} {escape(report.verdict.sentence)}**", ""]
    lines += [f"- {escape(note)}" for note in report.notes]
    lines += [""] if report.notes else []
    facts = [fact for fact in report.facts if fact.value is not None]
    if facts:
        lines += ["| figure | value |", "|---|--:|"]
        lines += [f"| {escape(f.label)} | {escape(f.text)} |" for f in facts]
        lines.append("")
    for table in report.tables:
        lines += _table(table, style)
    if report.rules and style.rules:
        lines += ["<details><summary>Definitions and thresholds</summary>", ""]
        lines += [f"- **{escape(rule.name)}**: {escape(rule.text)}" for rule in report.rules]
        lines += ["", "</details>", ""]
    return lines


def pictures(tables: Sequence[Table], style: Style) -> list[str]:
    """Return tables as charts alone; without its chart a series is left out, others are tables."""
    lines: list[str] = []
    for table in tables:
        picture = fenced(text_chart(table, style))
        if not picture and is_line(table):
            continue
        note = [escape(table.note), ""] if picture and table.note else []
        lines += [*(picture or _table(table, style)), *note]
    return lines


def _render(reports: Sequence[Report | Unavailable], trust: str, style: Style) -> str:
    lines = [escape(trust), ""] if trust else []
    for report in reports:
        lines += report_lines(report, style)
    return "\n".join(lines).rstrip("\n") + "\n"


RENDERER = Renderer("md", _render)
