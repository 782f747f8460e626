"""The verb that shows where the threads of a run are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation

if TYPE_CHECKING:
    from tuiprof.model import Report
    from tuiprof.session.store.folders import Session


@click.command(short_help="Show where every thread of a run is.")
@click.argument("session", default=None, required=False, shell_complete=completing.sessions)
@click.option(
    "--pid", type=click.IntRange(min=1), help="A Python process that tuiprof did not start (needs py-spy)."
)
@click.option("--children", is_flag=True, help="With --pid: the processes it has started as well.")
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(["text", "json", "csv", "md", "html"]),
    default="text",
    show_default=True,
)
@click.pass_obj
def stacks(invocation: Invocation, session: str | None, pid: int | None, children: bool, format_: str) -> int:
    """Show the Python stacks of all threads of all ranks, grouped by where they are.

    SESSION is a name, a path or a prefix (default: the last one). While it runs its processes are asked; of one that
    is over, or has died, the stacks that were kept last are shown. The processes go on meanwhile.
    """
    from tuiprof.report import render_all

    if pid is not None and session is not None:
        raise click.UsageError("a session or --pid, not both")
    if children and pid is None:
        raise click.UsageError("--children goes with --pid")
    if pid is not None:
        found = _of_process(pid, children)
    else:
        from tuiprof.session.store.folders import find_session, sessions_root

        found = of_session(find_session(sessions_root(invocation.sessions), session or "last"))
    sys.stdout.write(render_all([found], format_))
    return 0


def _of_process(pid: int, children: bool) -> Report:
    from tuiprof.blackbox import Process, stacks_report
    from tuiprof.session.attaching import spy

    threads = spy.stacks_of(pid, children=children)
    processes = [Process(f"process {number}", found) for number, found in threads.items()]
    return stacks_report(processes, title=f"Stacks of process {pid}")


def of_session(session: Session) -> Report:
    """Return where the threads of a session are, or were when that was written last.

    Raises:
        SessionError: It cannot be asked, and nothing was kept.
    """
    from tuiprof.blackbox.session import asked, kept
    from tuiprof.errors import SessionError
    from tuiprof.session.live.summary import read_fold

    if session.status().state == "running":
        return asked(session)
    report = kept(session, read_fold(session))
    if report is None:
        raise SessionError(
            f"{session.id} is over, and no stacks were kept",
            "they are kept where steps stop coming, or while it runs: tuiprof stacks",
        )
    return report
