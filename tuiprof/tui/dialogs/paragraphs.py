"""Reports and remarks as paragraphs to read."""

from __future__ import annotations

from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trust import Trust
from tuiprof.model.units import format_count
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.tui.dialogs.reading import Paragraph
from tuiprof.tui.terminal.glyphs import MARKS


def answer_paragraphs(answer: Report | Unavailable | None, question: str) -> list[Paragraph]:
    """Say what an analysis asks, what it found, by which rules, and what each figure and column means."""
    out: list[Paragraph] = [(sanitize(question), "dim"), ("", "text")] if question else []
    if answer is None:
        return [*out, ("analysing …", "dim")]
    if isinstance(answer, Unavailable):
        out.append((f"Not available: {sanitize_lines(answer.reason)}", "strong"))
        return [*out, (f"→ {sanitize_lines(answer.remedy)}", "text")] if answer.remedy else out
    if answer.verdict.sentence:
        level = answer.verdict.level
        out += [(f"{MARKS[level]} {sanitize(answer.verdict.sentence)}", level), ("", "text")]
    for rule in answer.rules:
        out += [(sanitize(rule.name), "title"), (f"  {sanitize(rule.text)}", "text")]
    out += [("", "text")] * bool(answer.rules)
    out += [(f"note: {sanitize(note)}", "text") for note in answer.notes]
    if answer.facts:
        out += [("", "text"), ("figures", "title")]
    for fact in answer.facts:
        out.append((f"  {sanitize(fact.label)}: {sanitize(fact.text)}", "strong"))
        if fact.help:
            out.append((f"    {sanitize(fact.help)}", "dim"))
    for table in answer.tables:
        out += [("", "text"), (f"table: {sanitize(table.title)}", "title")]
        if table.note:
            out.append((f"  {sanitize(table.note)}", "text"))
        out += [
            (f"  {sanitize(column.label)}: {sanitize(column.help)}", "dim")
            for column in table.columns
            if column.help and not column.hidden
        ]
    return out


def trust_paragraphs(trust: Trust) -> list[Paragraph]:
    """Show all limitations of a trace, worst first, each with a remedy."""
    out: list[Paragraph] = [(f"{format_count(trust.events)} events read.", "dim"), ("", "text")]
    if not trust.remarks:
        out.append(("✓ Nothing is missing, odd or incomplete.", "good"))
    for remark in trust.remarks:
        out.append((f"{MARKS[remark.level]} {sanitize(remark.text)}", remark.level))
        if remark.remedy:
            out.append((f"  → {sanitize(remark.remedy)}", "text"))
        out.append(("", "text"))
    return out
