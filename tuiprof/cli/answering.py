"""The page of a trace or session, and the verb that prints nothing else: why."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.common import (
    Invocation,
    convert_option,
    open_rank,
    session_or_none,
    step_window,
    trace_options,
    traces_at,
)

if TYPE_CHECKING:
    from tuiprof.model import Report
    from tuiprof.model.answer import Answer
    from tuiprof.report import Style
    from tuiprof.session.store.folders import Session

#: What `why` prints at most, so that it fits into a chat, a commit message or the context of an agent.
_MOST_BYTES = 2000
#: What the page of a session draws of its run.
_DRAWN = ("step_time", "phases", "ranks")


@click.command(short_help="Say in a few lines what to change first.")
@click.argument("target", default="last", shell_complete=completing.targets)
@click.option("--json", "as_json", is_flag=True, help="For machines: stable keys, 2 kB at most.")
@click.option("--step", type=int, help="Look at this step alone.")
@trace_options
@convert_option
@click.pass_obj
def why(
    invocation: Invocation,
    target: str,
    as_json: bool,
    step: int | None,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
) -> int:
    """Say in a few lines what to change first in a trace FILE, a DIRECTORY of them, a URL or a SESSION.

    What saves most, by how much, which line, what to write instead, and how to prove it: 2 kB at most. Without TARGET,
    of the last session.
    """
    from tuiprof.report import stdout_style
    from tuiprof.report.answer import to_json, to_text

    session = session_or_none(invocation, target)
    if session is not None:
        found = session_answer(session, rank, run_, step)
    else:
        found = trace_answer(target, rank, run_, step, convert)
    if as_json:
        sys.stdout.write(to_json(found, _MOST_BYTES))
        return 0
    style = stdout_style()
    text = to_text(found, style)
    lines = found.lines
    while len(text.encode()) > _MOST_BYTES and (lines or len(found.changes) > 1):
        lines, changes = lines[:-1], found.changes if lines else found.changes[:-1]
        found = replace(found, lines=lines, changes=changes)
        text = to_text(found, style)
    sys.stdout.write(text)
    return 0


def trace_answer(
    target: str, rank: int | None, run: str | None, step: int | None, convert: bool | None = None
) -> Answer:
    """Return the page of a trace.

    Args:
        target: A file, a directory, or a URL.
        rank: The rank; None = the lowest.
        run: Name of the run; None = the newest.
        step: Number of the step to look at alone; None = the whole trace.
        convert: Whether a raw capture is converted first; None = ask.
    """
    from tuiprof.advice.answer import answer

    trace = open_rank(traces_at(target, run, rank, convert), rank)
    title = trace.info.path.name if trace.info.path is not None else target
    return answer(trace, title, step_window(trace, step) if step is not None else None)


def session_answer(
    session: Session, rank: int | None = None, run: str | None = None, step: int | None = None
) -> Answer:
    """Return the page of a session: how it ran, and what its newest capture says.

    Args:
        session: The session.
        rank: The rank; None = the lowest.
        run: Name of the capture; None = the newest.
        step: Number of the step to look at alone; None = the whole trace.
    """
    from tuiprof.model.answer import Answer, Line
    from tuiprof.session.live.summary import summarise

    summary = summarise(session)
    line = Line(summary.analysis, summary.title, summary.verdict.level, summary.verdict.sentence)
    if not session.traces():
        nothing = "no trace was captured; capture one: tuiprof record --capture 5 …"
        return Answer(
            session.title,
            "",
            0,
            _step_ns(summary),
            None,
            None,
            None,
            nothing,
            False,
            (),
            (),
            summary.notes,
            line,
        )
    found = trace_answer(str(session.path / "traces"), rank, run, step)
    return replace(found, title=session.title, run=line, notes=(*summary.notes, *found.notes))


def _step_ns(summary: Report) -> float | None:
    value = next((fact.value for fact in summary.facts if fact.key == "step_median_ns"), None)
    return float(value) if isinstance(value, (int, float)) else None


def page(
    session: Session | None,
    target: str,
    fmt: str,
    style: Style,
    rank: int | None = None,
    run: str | None = None,
    step: int | None = None,
    convert: bool | None = None,
) -> str:
    """Return a trace or session on one page; of a session also where its steps go.

    Args:
        session: The session; None = the target is a trace.
        target: A trace file, a directory, or a URL.
        fmt: ``text``, ``md`` or ``json``.
        style: How to print.
        rank: The rank; None = the lowest.
        run: Name of the capture; None = the newest.
        step: Number of the step to look at alone; None = the whole trace.
        convert: Whether a raw capture is converted first; None = ask.
    """
    from tuiprof.report import md, text
    from tuiprof.report.answer import to_json, to_markdown, to_text
    from tuiprof.session.live.summary import summarise

    if fmt == "json":
        found = (
            trace_answer(target, rank, run, step, convert)
            if session is None
            else session_answer(session, rank, run, step)
        )
        return to_json(found)
    head = ""
    if session is not None:
        summary = summarise(session)
        drawn = [table for key in _DRAWN for table in summary.tables if table.key == key]
        bare = replace(summary, facts=(), tables=(), rules=())
        if fmt == "text":
            head = text.document([text.report_lines(bare, style) + text.pictures(drawn, style)], style)
        else:
            head = "\n".join(md.report_lines(bare, style) + md.pictures(drawn, style)).rstrip("\n") + "\n"
        if not session.traces():
            return head
        target, head = str(session.path / "traces"), f"{head}\n"
    found = trace_answer(target, rank, run, step, convert)
    return head + (to_text(found, style) if fmt == "text" else to_markdown(found))
