"""The verbs that ask a running script: stacks, steps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, format_option, say

if TYPE_CHECKING:
    from tuiprof.model import Report
    from tuiprof.session.store.folders import Session


@click.command(short_help="Show where every thread of a run currently is.")
@click.argument("session", default=None, required=False, shell_complete=completing.sessions)
@click.option(
    "--pid", type=click.IntRange(min=1), help="A Python process not started by tuiprof (needs py-spy)."
)
@click.option("--children", is_flag=True, help="With --pid: also its child processes.")
@format_option()
@click.pass_obj
def stacks(invocation: Invocation, session: str | None, pid: int | None, children: bool, format_: str) -> int:
    """Show the Python stacks of all threads of all ranks, grouped by where they are.

    SESSION is a name, a path or a prefix (default: the last one). A running session's processes are asked without
    stopping them; for one that has ended or died, the last stored stacks are shown.
    """
    from tuiprof.report import render_all

    if pid is not None and session is not None:
        raise click.UsageError("give a session or --pid, not both")
    if children and pid is None:
        raise click.UsageError("--children requires --pid")
    if pid is not None:
        found = _of_process(pid, children)
    else:
        from tuiprof.session.store.folders import find_session, sessions_root

        found = of_session(find_session(sessions_root(invocation.sessions), session or "last"))
    sys.stdout.write(render_all([found], format_))
    return 0


def _of_process(pid: int, children: bool) -> Report:
    from tuiprof.blackbox import Process, stacks_report
    from tuiprof.session import ptrace

    threads = ptrace.stacks_of(pid, children=children)
    processes = [Process(f"process {number}", found) for number, found in threads.items()]
    return stacks_report(processes, title=f"Stacks of process {pid}")


def of_session(session: Session) -> Report:
    """Return where the threads of a session are, or were when that was written last.

    Raises:
        SessionError: It cannot be asked, and nothing was kept.
    """
    from tuiprof.blackbox.session import asked, kept
    from tuiprof.errors import SessionError
    from tuiprof.session.live.replay import read_fold

    if session.status().state == "running":
        return asked(session)
    report = kept(session, read_fold(session))
    if report is None:
        raise SessionError(
            f"{session.id} has ended, and no stacks were recorded",
            "stacks are recorded when steps stop, or with tuiprof stacks during the run",
        )
    return report


@click.command(short_help="Show what counts as a step of a run, or change it while it runs.")
@click.argument("session", default=None, required=False, shell_complete=completing.sessions)
@click.option("--at", metavar="FILE:LINE", help="End a step each time this line is reached (Python ≥ 3.12).")
@click.option("--function", metavar="MODULE:NAME", help="End a step each time this function returns.")
@click.option(
    "--by",
    type=click.Choice(["optimizer", "backward", "loader", "jit"]),
    help="End a step at an optimizer step, backward pass, DataLoader batch, or call of a jitted function.",
)
@click.pass_obj
def steps(
    invocation: Invocation, session: str | None, at: str | None, function: str | None, by: str | None
) -> int:
    """Show what ends a step and how many there have been; with an option, choose what ends a step from now on.

    SESSION is a name, a path or a prefix (default: the last one). Steps are renumbered from 0, and those counted
    before are withdrawn. The script keeps running, unchanged. MODULE is __main__ for the script itself.
    """
    from tuiprof.report.sanitize import sanitize
    from tuiprof.session.asking import change_request, change_steps, said
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.store.folders import find_session, sessions_root

    found = find_session(sessions_root(invocation.sessions), session or "last")
    if not (at or function or by):
        ranks = read_fold(found).ranks
        if not ranks:
            sys.stdout.write("no steps yet\n")
        for rank in ranks:
            sys.stdout.write(sanitize(f"{rank.label}: steps: {said(rank)}") + "\n")
        return 0
    answers = change_steps(found, change_request(found, at, function, by))
    for answer in answers:
        what = f"not changed: {answer.text}" if answer.refused else f"steps: {answer.text}"
        sys.stdout.write(sanitize(f"{answer.process}: {what}") + "\n")
    if not answers:
        say("requested; no process has reached it yet. To check: tuiprof steps")
    return 1 if any(answer.refused for answer in answers) else 0
