"""The verb that says what a step of a run is, and changes it while the run goes on."""

from __future__ import annotations

import sys

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, say


@click.command(short_help="Say what a step of a run is, or change it while it runs.")
@click.argument("session", default=None, required=False, shell_complete=completing.sessions)
@click.option(
    "--at", metavar="FILE:LINE", help="A step ends each time this line is reached (Python 3.12 and newer)."
)
@click.option("--function", metavar="MODULE:NAME", help="A step ends each time this function returns.")
@click.option(
    "--by",
    type=click.Choice(["optimizer", "backward", "loader", "jit"]),
    help="Steps of an optimizer, backward passes, batches of a DataLoader, or calls of a jitted function.",
)
@click.pass_obj
def steps(
    invocation: Invocation, session: str | None, at: str | None, function: str | None, by: str | None
) -> int:
    """Say what ends a step of a run and how many there were; with an option, let something else end them.

    SESSION is a name, a path or a prefix (default: the last one). Steps are numbered from 0 again, and those counted
    before are withdrawn. The script is not touched; it goes on meanwhile. MODULE of the script itself is __main__.
    """
    from tuiprof.report.sanitize import sanitize
    from tuiprof.session.attaching.change_steps import change_request, change_steps, said
    from tuiprof.session.live.summary import read_fold
    from tuiprof.session.store.folders import find_session, sessions_root

    found = find_session(sessions_root(invocation.sessions), session or "last")
    if not (at or function or by):
        ranks = read_fold(found).ranks
        if not ranks:
            sys.stdout.write("no step seen yet\n")
        for rank in ranks:
            sys.stdout.write(sanitize(f"{rank.label}: steps: {said(rank)}") + "\n")
        return 0
    answers = change_steps(found, change_request(found, at, function, by))
    for answer in answers:
        what = f"not changed: {answer.text}" if answer.refused else f"steps: {answer.text}"
        sys.stdout.write(sanitize(f"{answer.process}: {what}") + "\n")
    if not answers:
        say("asked for; no process has come there yet. tuiprof steps says what a step is")
    return 1 if any(answer.refused for answer in answers) else 0
