"""Content of the stacks window."""

from __future__ import annotations

from tuiprof.errors import TuiprofError
from tuiprof.model import Report
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.fold import Fold
from tuiprof.session.store.folders import Session
from tuiprof.tui.terminal import glyphs

Paragraphs = list[tuple[str, str]]


def read(session: Session, fold: Fold, *, running: bool) -> tuple[str, Paragraphs]:
    """Return title and text of the window; asks the processes of a running session, which may take seconds."""
    from tuiprof.blackbox.session import asked, kept

    try:
        report = asked(session) if running else kept(session, fold)
    except TuiprofError as error:
        return "stacks", [(sanitize(f"{error.message}: {error.remedy}"), "bad")]
    if report is None:
        return "stacks", [("no stacks were recorded for this run", "text")]
    return sanitize(report.title), paragraphs(report)


def paragraphs(report: Report) -> Paragraphs:
    """Return a report of stacks as paragraphs: an overview, then each stack."""
    level = report.verdict.level
    out: Paragraphs = [
        (f"{glyphs.FLAG} {sanitize(report.verdict.sentence)}", "text" if level == "info" else level)
    ]
    out += [(f"  {sanitize(note)}", "text") for note in report.notes]
    for table in report.tables:
        if not table.key.startswith("stack_"):
            continue
        out += [("", "text"), (sanitize(table.title), "title")]
        lines = table.rows.select("line", "function").iter_rows()
        out += [(f"    {sanitize(line)}  {sanitize(function)}", "text") for line, function in lines]
        if table.note:
            out.append((f"    {sanitize(table.note)}", "dim"))
    return out
