"""The verb that takes a picture of a screen: snapshot."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, ladder_or_none, say, session_or_none

if TYPE_CHECKING:
    from tuiprof.tui.app.snapshot import Picture
    from tuiprof.tui.start import Start

_SUFFIXES: Final = (".svg", ".png", ".html", ".txt")
_LEAST, _MOST = (40, 10), (500, 200)


def _size(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    """Return columns and lines."""
    found = re.fullmatch(r"(\d+)x(\d+)", value)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (_LEAST[0] <= size[0] <= _MOST[0] and _LEAST[1] <= size[1] <= _MOST[1]):
        raise click.BadParameter(f"{value!r} is not a size such as 160x48, from 40x10 to 500x200")
    return size


@click.command(
    short_help="Save a picture of a screen, without a terminal.",
    epilog="For example: tuiprof snapshot last -o run.svg. To show a trace's operators: --screen trace --press 4.",
)
@click.argument("target", default="last", shell_complete=completing.targets)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Output file; the extension chooses the format: .svg, .png, .html or .txt.",
)
@click.option(
    "--size",
    callback=_size,
    default="160x48",
    show_default=True,
    metavar="COLSxLINES",
    help="Terminal size.",
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
        from tuiprof.errors import UsageProblem

        raise UsageProblem(f"{output} cannot be written: {error.strerror}") from error
    say(f"{output}  {size[0]}×{size[1]}")
    return 0


def _start(invocation: Invocation, target: str, screen: str | None) -> Start:
    """Return what is to be shown, after a look whether it can be."""
    from tuiprof.errors import UsageProblem
    from tuiprof.tui.start import Start

    if screen == "library":
        return Start.library(sessions=invocation.sessions, scenarios=invocation.scenarios)
    ladder = ladder_or_none(invocation, target) if screen is None else None
    if ladder is not None:
        return Start.ladder(ladder, sessions=invocation.sessions, scenarios=invocation.scenarios)
    session = session_or_none(invocation, target)
    if session is not None and screen != "trace":
        return Start.live(session.path)
    if session is not None:
        traces = session.traces()
        if not traces:
            raise UsageProblem(f"{session.id} contains no trace", "record one: tuiprof record --capture 5 …")
        return Start.trace(traces[-1])
    if screen == "live":
        raise UsageProblem(f"{target} is not a session", "give a session: tuiprof list")
    from tuiprof.formats import sniff

    sniff(Path(target))
    return Start.trace(Path(target))


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
