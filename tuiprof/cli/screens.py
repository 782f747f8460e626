"""Verbs that show a screen: open, replay, serve (in a browser), snapshot (a picture)."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tuiprof.cli.options import Invocation, complete_sessions, complete_targets, convert_option, trace_options
from tuiprof.cli.targets import (
    Selection,
    ladder_or_none,
    open_screen,
    say,
    session_of,
    session_or_none,
    traces_at,
)
from tuiprof.errors import UsageProblem

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session
    from tuiprof.tui import Start
    from tuiprof.tui.app.snapshot import Picture

_SUFFIXES: Final = (".svg", ".png", ".html", ".txt")
_MIN_SIZE, _MAX_SIZE = (40, 10), (500, 200)


@click.command("open", short_help="Open a trace, a directory, a URL, a session or a ladder.")
@click.argument("target", shell_complete=complete_targets)
@trace_options
@convert_option
@click.option("--against", metavar="OTHER", help="Compare with this earlier trace or session.")
@click.option(
    "--ranks", is_flag=True, help="Show all ranks of a DIRECTORY: which come late, and in which steps."
)
@click.pass_obj
def open_(
    invocation: Invocation,
    target: str,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
    against: str | None,
    ranks: bool,
) -> int:
    """Open a trace FILE, a DIRECTORY of traces, a URL, a SESSION or a measured LADDER."""
    from tuiprof.tui import Start

    if against is not None:
        return open_screen(Start("compare", compared=(against, target), sessions=invocation.sessions))
    ladder = ladder_or_none(invocation, target)
    if ladder is not None:
        return open_screen(
            Start("ladder", ladder, sessions=invocation.sessions, scenarios=invocation.scenarios)
        )
    session = session_or_none(invocation, target)
    if ranks:
        return open_screen(Start("fleet", _folder_of_ranks(session, target, run_)))
    if session is not None and rank is None and run_ is None:
        return open_screen(Start("live", session.path))
    from tuiprof.blackbox.dumps import is_pickle
    from tuiprof.formats import sniff
    from tuiprof.formats.neuron.captures import refuse
    from tuiprof.model.characters import shell_word

    if session is None and Path(target).is_file() and is_pickle(Path(target)):
        raise UsageProblem(
            f"{target} is a pickle, which the screens cannot show",
            f"if it is a snapshot of PyTorch's allocator: tuiprof report {shell_word(target)}",
        )
    place = session.with_traces(rank).path / "traces" if session is not None else Path(target)
    wanted = Selection(rank, run_, convert=convert)
    found = traces_at(place if session is not None else target, wanted)
    path = found.file(rank).path
    # What is no trace is said here, before the screen changes.
    sniff(path)
    refuse(path)
    return open_screen(Start("trace", path, directory=place if place in path.parents else None))


def _folder_of_ranks(session: Session | None, target: str, run: str | None) -> Path:
    """Return the folder in which the ranks of a job lie.

    Raises:
        TraceError: It contains no trace.
        UsageProblem: It holds one rank.
    """
    from tuiprof.model.characters import shell_word

    if session is not None and session.others:
        raise UsageProblem(
            f"the captures of {session.id} are in one folder per host, which the map cannot open together",
            f"tuiprof report {shell_word(session.id)} stragglers heat -f html > job.html",
        )
    place = session.path / "traces" if session is not None else Path(target)
    found = traces_at(place if session is not None else target, Selection(run=run), several=True)
    if len(found) < 2:
        raise UsageProblem(
            f"{target} contains the trace of a single rank", f"tuiprof open {shell_word(target)}"
        )
    folders = {file.path.parent for file in found.files}
    return folders.pop() if len(folders) == 1 else place


@click.command()
@click.argument("session", default="last", shell_complete=complete_sessions)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01, max=10_000),
    default=1.0,
    show_default=True,
    help="Playback speed, in session seconds per second.",
)
@click.pass_obj
def replay(invocation: Invocation, session: str, speed: float) -> int:
    """Replay a recorded SESSION on the live screen."""
    from tuiprof.tui import Start

    return open_screen(Start("replay", session_of(invocation, session).path, speed=speed))


@click.command(short_help="Serve the dashboard, a session or a trace to a browser.")
@click.argument("target", required=False, metavar="[SESSION|FILE]", shell_complete=complete_targets)
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
    start = _start(invocation, target or "", None if target else "library")
    start = replace(  # the process of a page may run in another folder
        start,
        path=start.path and start.path.absolute(),
        sessions=start.sessions and start.sessions.absolute(),
        scenarios=tuple(folder.absolute() for folder in start.scenarios),
    )
    try:
        from tuiprof.web.server import DashboardServer, is_loopback
        from tuiprof.web.server import serve as serve_until_interrupted
    except ImportError as error:
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


def _size(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", value)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (_MIN_SIZE[0] <= size[0] <= _MAX_SIZE[0] and _MIN_SIZE[1] <= size[1] <= _MAX_SIZE[1]):
        raise click.BadParameter(f"{value!r} is not a size such as 160x48, from 40x10 to 500x200")
    return size


@click.command(
    short_help="Save a picture of a screen, without a terminal.",
    epilog="For example: tuiprof snapshot last -o run.svg. To show a trace's operators: --screen trace --press 4.",
)
@click.argument("target", default="last", shell_complete=complete_targets)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Output file; the extension chooses the format: .svg, .png, .html or .txt.",
)
@click.option(
    "--size", callback=_size, default="160x48", show_default=True, metavar="COLSxLINES", help="Terminal size."
)
@click.option(
    "--screen",
    type=click.Choice(["live", "trace", "library"]),
    help="Which screen (default: live for a session, trace for a file). A session's trace is its last one.",
)
@click.option("--step", type=int, help="Show this step.")
@click.option(
    "--at", "at_s", type=float, metavar="SECONDS", help="Point in time of the session (default: its end)."
)
@click.option("--press", multiple=True, metavar="KEY", help="Press this key first (repeatable).")
@click.pass_obj
def snapshot(
    invocation: Invocation,
    target: str,
    output: Path,
    size: tuple[int, int],
    screen: str | None,
    step: int | None,
    at_s: float | None,
    press: tuple[str, ...],
) -> int:
    """Save a picture of the screen of a SESSION, a measured LADDER or a trace FILE, without a terminal.

    PNG needs CairoSVG (extra `snapshot`) or Chromium; the other formats need nothing.
    """
    if output.suffix not in _SUFFIXES:
        raise click.UsageError(f"{output.name!r}: the extension must be one of {', '.join(_SUFFIXES)}")
    start = _start(invocation, target, screen)
    from tuiprof.tui.app.snapshot import Shot, take

    picture = take(Shot(start, size[0], size[1], step, at_s, press))
    try:
        output.write_bytes(_encoded(picture, output.suffix))
    except OSError as error:
        raise UsageProblem(f"{output} cannot be written: {error.strerror}") from error
    say(f"{output}  {size[0]}×{size[1]}")
    return 0


def _start(invocation: Invocation, target: str, screen: str | None) -> Start:
    """Return what is to be shown, after a look whether it can be."""
    from tuiprof.tui import Start

    if screen == "library":
        return Start(sessions=invocation.sessions, scenarios=invocation.scenarios)
    ladder = ladder_or_none(invocation, target) if screen is None else None
    if ladder is not None:
        return Start("ladder", ladder, sessions=invocation.sessions, scenarios=invocation.scenarios)
    session = session_or_none(invocation, target)
    if session is not None and screen != "trace":
        return Start("live", session.path)
    if session is not None:
        traces = session.traces()
        if not traces:
            raise UsageProblem(f"{session.id} contains no trace", "record one: tuiprof record --capture 5 …")
        return Start("trace", traces[-1])
    if screen == "live":
        raise UsageProblem(f"{target} is not a session", "give a session: tuiprof list")
    from tuiprof.formats import sniff

    sniff(Path(target))
    return Start("trace", Path(target))


def _encoded(picture: Picture, suffix: str) -> bytes:
    if suffix == ".txt":
        return picture.text.encode()
    if suffix == ".svg":
        return picture.svg.encode()
    if suffix == ".png":
        from tuiprof.tui.app.snapshot import to_png

        return to_png(picture.svg)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tuiprof</title>\n'
        "<style>body { margin: 0; background: #0f1216; } svg { display: block; width: 100%; height: auto; "
        "max-height: 100vh; }</style></head>\n"
        f'<body><div role="img" aria-label="{html.escape(picture.text.splitlines()[0].strip())}">\n'
        f"{picture.svg}\n</div></body></html>\n"
    ).encode()
