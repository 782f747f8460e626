"""The verb that brings the sessions of other hosts here: collect."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Final

import click

from tuiprof.cli.common import Invocation, Positive, say

#: The path of a socket has 104 characters at most, of which ssh takes 60.
_SOCKETS: Final = "/tmp" if Path("/tmp").is_dir() else None


@click.command(short_help="Bring the running sessions of other hosts here, over ssh.")
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST[:FOLDER]...")
@click.option("--name", default="", help="Name of the run (default: what began last on each host).")
@click.option("--every", type=Positive(), default=2.0, show_default=True, help="Seconds between two copies.")
@click.option("--once", is_flag=True, help="Copy what there is now, and end.")
@click.option(
    "--ssh",
    default="ssh",
    show_default=True,
    metavar="COMMAND",
    help="The ssh to use, for example 'ssh -p 2222'.",
)
@click.pass_obj
def collect(
    invocation: Invocation, hosts: tuple[str, ...], name: str, every: float, once: bool, ssh: str
) -> int:
    """Bring the running sessions of other hosts here, again and again, until they are over.

    On every host `tuiprof run` or `tuiprof record` was started, for example with `-- torchrun --nnodes 2 …`. What
    belongs to one run is shown as one: `tuiprof attach`, `list`, `report` and `replay` show all ranks of all hosts.
    Leave this running beside `tuiprof attach`: it takes captures that are asked for there to the hosts. Where the hosts
    share a file system, none of this is needed: let them record into one folder (TUIPROF_SESSIONS).

    FOLDER is where the host keeps its sessions; without it what TUIPROF_SESSIONS says there, or the user data
    directory. It needs rsync here and there, and keys, as nobody is asked for a password. Copies go into the folder of
    sessions here; what is removed there stays here.
    """
    from tuiprof.session.collecting.collect import Collector
    from tuiprof.session.collecting.remote import Remote
    from tuiprof.session.store.folders import sessions_root
    from tuiprof.system import hangup

    root = sessions_root(invocation.sessions)
    with tempfile.TemporaryDirectory(prefix="tuiprof-", dir=_SOCKETS) as sockets:
        remotes = [Remote.parse(host, ssh, Path(sockets)) for host in dict.fromkeys(hosts)]
        collector = Collector(
            remotes, root, lambda line: say(f"tuiprof: {line}"), name=name, every_s=every, once=once
        )
        asked: list[int] = []

        def stop(number: int, frame: object) -> None:
            asked.append(number)
            collector.stop()

        with hangup.signals_kept(stop):
            collector.run()
    nothing = [host for host, copies in collector.copies.items() if not copies]
    if nothing:
        say(f"tuiprof: nothing was collected of {', '.join(nothing)}")
    return 1 if nothing else 130 if signal.SIGTERM in asked else 0
