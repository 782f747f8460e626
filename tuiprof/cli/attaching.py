"""Verbs for running sessions and processes, here or on other hosts: attach, detach, collect, stacks, steps."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tuiprof.cli.options import Invocation, Positive, complete_sessions, format_option
from tuiprof.cli.targets import open_screen, say, session_of
from tuiprof.errors import UsageProblem
from tuiprof.system.own_process import signals_kept

if TYPE_CHECKING:
    from tuiprof.model import Report, Unavailable
    from tuiprof.session.attach import Candidate
    from tuiprof.session.store.folders import Session

#: ``--pid`` without a number: choose from a list.
_CHOOSE: Final = "choose"
#: Where sockets of ssh lie: their path has 104 characters at most, of which ssh takes 60.
_SOCKETS: Final = "/tmp" if Path("/tmp").is_dir() else None


class _Pid(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A process number, or nothing: then the processes are listed."""

    name = "PID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; 0 = choose."""
        if value == _CHOOSE:
            return 0
        if not str(value).isdecimal() or not int(str(value)):
            self.fail(f"{value} is not a process number.", param, ctx)
        return int(str(value))


@click.command(short_help="Watch a running session, or attach to a running process.")
@click.argument("session", default=None, required=False, shell_complete=complete_sessions)
@click.option(
    "--pid",
    "pids",
    type=_Pid(),
    multiple=True,
    is_flag=False,
    flag_value=_CHOOSE,
    help="Attach to this Python process, started without tuiprof; without a number, choose from a list. "
    "Repeatable, for the ranks of one run.",
)
@click.option("--name", default="", help="Name of the session (with --pid; default: that of the script).")
@click.option(
    "--watch-nan",
    is_flag=True,
    help="Check loss and gradients for NaN once per step, without stalling (with --pid).",
)
@click.pass_obj
def attach(
    invocation: Invocation, session: str | None, pids: tuple[int, ...], name: str, watch_nan: bool
) -> int:
    """Watch a running session.

    SESSION is a name, a path or a prefix (default: `last`; `last~1` is the one before). For a multi-host run all
    ranks are shown if the hosts' folders are side by side: see `tuiprof collect`.

    With --pid, tuiprof attaches to a Python process that was started without it; steps, phases and captures then
    work as if tuiprof had launched it. This needs ptrace and, below Python 3.14, `pip install 'tuiprof[attach]'`.
    `tuiprof detach` leaves the process as it was. Without a terminal, it attaches and returns.
    """
    from tuiprof.tui import Start

    if not pids:
        if name or watch_nan:
            raise click.UsageError("--name and --watch-nan require --pid")
        found = session_of(invocation, session or "last")
        return open_screen(Start("live", found.path))
    if session is not None:
        raise click.UsageError("give a session or --pid, not both")
    path = _enter([pid or _chosen() for pid in pids], invocation.sessions, name, watch_nan)
    if sys.stdin.isatty() and sys.stdout.isatty():
        return open_screen(Start("live", path, launched=True))
    click.echo(path.name)
    return 0


def _enter(pids: list[int], root: Path | None, name: str, watch_nan: bool) -> Path:
    from tuiprof.session.attach import attach as enter
    from tuiprof.session.attach import describe

    session, answers = enter(list(dict.fromkeys(pids)), name=name, root=root, watch_nan=watch_nan)
    for answer in answers:
        version = ".".join(map(str, answer.python))
        say(f"tuiprof: in process {answer.pid} (Python {version}): {describe(answer)}")
    say(f"         detach: tuiprof detach {session.id}")
    return session.path


def _chosen() -> int:
    """Let the user choose from the Python processes that have loaded a framework."""
    from tuiprof.session.attach import candidates

    found = candidates()
    if not found:
        raise UsageProblem(
            "no Python process that tuiprof may inspect has loaded PyTorch or JAX",
            "processes of other users need sudo; or give one: tuiprof attach --pid N",
        )
    say("\n".join(map(_line, found)))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageProblem("several processes could be meant", "tuiprof attach --pid N")
    # By its own number and without a default: nobody enters a process by a key too many.
    numbers = [str(one.pid) for one in found]
    answer = click.prompt("process", type=click.Choice(numbers), show_choices=False, err=True)
    return int(answer)


def _line(one: Candidate) -> str:
    from tuiprof.model.units import format_bytes, format_ns

    where = "on a device" if one.on_device else "on the CPU"
    what = f"Python {one.python[0]}.{one.python[1]}, {' and '.join(one.frameworks)}, {where}"
    since = f"{one.user}, since {format_ns(int(one.age_s) * 1_000_000_000)}, {format_bytes(one.rss_bytes)}"
    return f"{one.pid:>8}  {what}  ({since})\n          {one.command[:120]}"


@click.command(short_help="Detach from a process.")
@click.argument("session", default="last", shell_complete=complete_sessions)
@click.pass_obj
def detach(invocation: Invocation, session: str) -> int:
    """Detach from a process that `tuiprof attach --pid` attached to; it keeps running as before."""
    from tuiprof.session.attach import detach as leave

    found = session_of(invocation, session)
    leave(found)
    say(f"tuiprof: {found.id} {found.status()}")
    return 0


@click.command(short_help="Copy running sessions from other hosts, over ssh.")
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST[:FOLDER]...")
@click.option("--name", default="", help="Name of the run (default: the newest on each host).")
@click.option("--every", type=Positive(), default=2.0, show_default=True, help="Seconds between copies.")
@click.option("--once", is_flag=True, help="Copy once and exit.")
@click.option(
    "--ssh",
    default="ssh",
    show_default=True,
    metavar="COMMAND",
    help="The ssh command to use, for example 'ssh -p 2222'.",
)
@click.pass_obj
def collect(
    invocation: Invocation, hosts: tuple[str, ...], name: str, every: float, once: bool, ssh: str
) -> int:
    """Copy running sessions from other hosts until they end.

    Start `tuiprof run` or `tuiprof record` on every host, for example with `-- torchrun --nnodes 2 …`. Sessions of
    the same run are shown as one: `tuiprof attach`, `list`, `report` and `replay` show all ranks of all hosts. Keep
    this running next to `tuiprof attach`: it also forwards capture requests to the hosts. Hosts that share a file
    system do not need this: let them record into one folder (TUIPROF_SESSIONS).

    FOLDER is the host's sessions folder (default: its TUIPROF_SESSIONS, or the user data directory). Both sides
    need rsync, and ssh must log in by key: there is no password prompt. Copies go into the sessions folder here,
    and stay when the host removes the originals.
    """
    from tuiprof.session.collecting import Collector, Remote
    from tuiprof.session.store.folders import sessions_root

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

        with signals_kept(stop):
            collector.run()
    nothing = [host for host, copies in collector.copies.items() if not copies]
    if nothing:
        say(f"tuiprof: nothing was collected from {', '.join(nothing)}")
    return 1 if nothing else 130 if signal.SIGTERM in asked else 0


@click.command(short_help="Show where every thread of a run currently is.")
@click.argument("session", default=None, required=False, shell_complete=complete_sessions)
@click.option(
    "--pid", type=click.IntRange(min=1), help="A Python process not started by tuiprof (needs py-spy)."
)
@click.option("--children", is_flag=True, help="With --pid: also its child processes.")
@format_option()
@click.pass_obj
def stacks(invocation: Invocation, session: str | None, pid: int | None, children: bool, format_: str) -> int:
    """Show the Python stacks of all threads of all ranks, grouped by where they are.

    SESSION is a name, a path or a prefix (default: the last one). A running session's processes are asked without
    stopping them; for one that has ended or died, the last stored stacks are shown, or that there are none.
    """
    from tuiprof.report import render_all

    if pid is not None and session is not None:
        raise click.UsageError("give a session or --pid, not both")
    if children and pid is None:
        raise click.UsageError("--children requires --pid")
    found = _of_process(pid, children) if pid else _of_session(session_of(invocation, session or "last"))
    sys.stdout.write(render_all([found], format_))
    return 0


def _of_process(pid: int, children: bool) -> Report:
    from tuiprof.blackbox import Process, stacks_report
    from tuiprof.session import ptrace

    threads = ptrace.stacks_of(pid, children=children)
    processes = [Process(f"process {number}", found) for number, found in threads.items()]
    return stacks_report(processes, title=f"Stacks of process {pid}")


def _of_session(session: Session) -> Report | Unavailable:
    """Return where the threads of a session are, or were when that was stored last, if at all."""
    from tuiprof.blackbox.session import asked, kept
    from tuiprof.model import Unavailable
    from tuiprof.session.live.replay import read_fold

    status = session.status()
    if status.state == "running":
        return asked(session)
    return kept(session, read_fold(session)) or Unavailable(
        "stacks",
        f"{session.id} has ended: {status}, and no stacks were recorded",
        "stacks are recorded when steps stop, or with tuiprof stacks during the run",
    )


@click.command(short_help="Show what counts as a step of a run, or change it while it runs.")
@click.argument("session", default=None, required=False, shell_complete=complete_sessions)
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
    from tuiprof.session.asking import change_request, change_steps
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.live.step_source import counted
    from tuiprof.session.live.summary import summarise

    found = session_of(invocation, session or "last")
    if not (at or function or by):
        fold = read_fold(found)
        over = found.status().over
        none = "no steps were detected" if over else "no steps yet"
        lines = [f"{rank.label}: steps: {counted(rank) or none}" for rank in fold.ranks]
        if over and not any(counted(rank) for rank in fold.ranks):
            lines = [summarise(found, fold).verdict.sentence]  # with the option to record them
        sys.stdout.writelines(f"{sanitize(line)}\n" for line in lines or [none])
        return 0
    wanted = change_request(found, at, function, by)
    if (status := found.status()).over:
        raise UsageProblem(
            f"{found.id} has ended: {status}, and only a running script can count other steps",
            "give the line when starting a run: tuiprof record --step-at FILE:LINE",
        )
    answers = change_steps(found, wanted)
    for answer in answers:
        what = f"not changed: {answer.text}" if answer.refused else f"steps: {answer.text}"
        sys.stdout.write(sanitize(f"{answer.process}: {what}") + "\n")
    if not answers:
        say("requested; no process has reached it yet. To check: tuiprof steps")
    return 1 if any(answer.refused for answer in answers) else 0
