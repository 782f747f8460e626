"""The verb that shows the dashboard in a browser: serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, ladder_or_none, say, session_or_none

if TYPE_CHECKING:
    from tuiprof.tui.start import Start


@click.command(short_help="Serve the dashboard, a session or a trace to a browser.")
@click.argument("target", required=False, metavar="[SESSION|FILE]", shell_complete=completing.targets)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 = a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--token",
    envvar="TUIPROF_TOKEN",
    help="Token that a browser must present (default: random). The process list shows it; set TUIPROF_TOKEN "
    "instead to keep it private.",
)
@click.pass_obj
def serve(invocation: Invocation, target: str | None, port: int, host: str, token: str | None) -> int:
    """Show the dashboard, a SESSION, a measured LADDER or a trace FILE in a browser.

    It is reachable only from this machine, and only with the token in the address. From elsewhere: ssh -L
    8000:127.0.0.1:8000 HOST, then open the address there. Ctrl+C stops the server; runs keep going.
    """
    start = _start(invocation, target)
    try:
        from tuiprof.web.server import DashboardServer, is_loopback
        from tuiprof.web.server import serve as serve_until_interrupted
    except ImportError as error:
        from tuiprof.errors import UsageProblem

        raise UsageProblem(
            f"serve needs textual-serve ({error.name} is not installed)", "pip install 'tuiprof[serve]'"
        ) from error
    server = DashboardServer(start, host=host, port=port, token=token)
    if not is_loopback(host):
        say(
            f"tuiprof: warning: {host} can be reached from other machines. Anyone with the token can run scripts "
            "here as you, and the connection is not encrypted: prefer 127.0.0.1 and an SSH tunnel."
        )

    def ready() -> None:
        click.echo(server.address)
        say("Ctrl+C stops it")

    serve_until_interrupted(server, ready)
    return 0


def _start(invocation: Invocation, target: str | None) -> Start:
    """Return what a page shows first, after a look whether it can be."""
    from tuiprof.tui.start import Start

    if target is None:
        return Start.library(
            sessions=invocation.sessions and invocation.sessions.absolute(),
            scenarios=tuple(folder.absolute() for folder in invocation.scenarios),
        )
    ladder = ladder_or_none(invocation, target)
    if ladder is not None:
        return Start.ladder(
            ladder.absolute(), sessions=invocation.sessions and invocation.sessions.absolute()
        )
    session = session_or_none(invocation, target)
    if session is not None:
        return Start.live(session.path.absolute())
    from tuiprof.formats import sniff

    sniff(Path(target))
    return Start.trace(Path(target).absolute())
