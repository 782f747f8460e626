"""Targets of verbs: sessions, ladders and traces, found and opened; what is said meanwhile goes to stderr."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuiprof.cli.options import Invocation
from tuiprof.errors import TraceError, UsageProblem

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from tuiprof.model import Trace, Window
    from tuiprof.model.traceset import TraceSet
    from tuiprof.session.store.folders import Session
    from tuiprof.tui import Start


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of a target is meant."""

    rank: int | None = None  # None = the lowest
    run: str | None = None  # of several in a directory; None = the newest
    step: int | None = None  # number of the only step to analyse; None = all
    convert: bool | None = None  # a raw capture; None = ask where there is somebody to ask


def say(text: str) -> None:
    """Write narration to standard error: text of others in it is shown, never obeyed."""
    from tuiprof.report.sanitize import for_log, sanitize_lines

    click.echo(for_log(sanitize_lines(text)), err=True)


def open_screen(start: Start) -> int:
    """Open the dashboard; without a terminal say what to use instead. Returns the exit status."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "the dashboard needs a terminal on stdin and stdout. "
            "Without one: tuiprof record …, tuiprof report …, tuiprof list."
        )
    from tuiprof.tui.app.app import run_app

    return run_app(start)


def session_of(invocation: Invocation, text: str) -> Session:
    """Return a session by its name, path, prefix, or ``last``; raises UsageProblem if there is none."""
    from tuiprof.session.store.folders import find_session, sessions_root

    return find_session(sessions_root(invocation.sessions), text)


def session_or_none(invocation: Invocation, text: str) -> Session | None:
    """Return the session a user means, or None when the text names a file that is no session.

    Raises:
        UsageProblem: It is neither a file nor a session.
    """
    from tuiprof.formats.remote import is_url
    from tuiprof.session.store.folders import find_session, sessions_root

    if is_url(text):
        return None
    path = Path(text)
    if os.path.exists(path) and not (path / "session.json").exists():
        return None
    try:
        return find_session(sessions_root(invocation.sessions), text)
    except UsageProblem:
        from tuiprof.ladder.scenarios import ladders
        from tuiprof.system.files import similar

        if any(text == ladder.name for ladder in ladders(invocation.scenarios)):
            raise UsageProblem(
                f"the ladder {text!r} has not been measured here", f"measure it: tuiprof ladder {text}"
            ) from None
        if os.path.exists(path) or not ("/" in text or path.suffix):
            raise
        remedy = similar(path) or "`tuiprof list` shows recorded sessions"
        raise UsageProblem(f"there is no file or session {text!r}", remedy) from None


def ladder_or_none(invocation: Invocation, text: str) -> Path | None:
    """Return the folder of the measured ladder a user means; None if it is not a ladder, or a session is meant."""
    from tuiprof.formats.remote import is_url
    from tuiprof.ladder.state import find_run
    from tuiprof.session.store.folders import LADDER_FILE, find_session, sessions_root

    path = Path(text)
    if is_url(text) or (os.path.exists(path) and not (path / LADDER_FILE).exists()):
        return None
    root = sessions_root(invocation.sessions)
    try:
        find_session(root, text)
    except UsageProblem:
        try:
            return find_run(root, text).path
        except UsageProblem:
            return None
    return None


def traces_at(target: str | Path, wanted: Selection, *, several: bool = False) -> TraceSet:
    """Return the traces that a target names, and say on stderr which one is taken of several.

    ``several``: all ranks are taken.

    Raises:
        TraceError: There is no trace.
        UsageProblem: There is no such run or rank.
    """
    from tuiprof.formats import open_set
    from tuiprof.formats.remote import fetch, is_url

    if is_url(target):
        with progress_bar(f"copying {target}") as progress:
            path = fetch(str(target), progress=progress)
    else:
        path = Path(target)
    path = converted(path, wanted.convert)
    try:
        found = open_set(path, run=wanted.run, opener=open_with_progress)
    except TraceError:
        if (session := max(path.glob("*/session.json"), default=None)) is None:
            raise
        from tuiprof.model.characters import shell_word

        remedy = f"how the last one ran: tuiprof report {shell_word(str(session.parent))}"
        raise TraceError(f"no session in {path} has captured a trace", remedy) from None
    found.file(wanted.rank)  # reports a missing rank before anything else
    if several:
        said = [f"run {found.run}; others with --run"] if len(found.runs) > 1 else []
        if line := " · ".join((*said, *found.notes)):
            say(f"tuiprof: {line}")
    elif line := found.line(wanted.rank):
        say(f"tuiprof: {line}")
    return found


def converted(path: Path, wanted: bool | None) -> Path:
    """Return what to open for a path: of a raw capture the converted one, where the program for that is installed.

    ``wanted`` None asks, where there is somebody to ask.

    Raises:
        TraceError: Converting failed.
    """
    from tuiprof.formats.neuron import captures

    found = captures.possible(path) if wanted is not False else None
    if found is None:
        return path
    if captures.done_before(found):
        say(f"tuiprof: {path} was converted before; opening {found.out}")
        return found.out
    command = shlex.join(found.command)
    if wanted is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return path  # reading it says what to run
        say(f"{path} is {found.what}. To convert it:\n  {command}")
        if not click.confirm("Run this now?", default=False, err=True):
            return path
    else:
        say(f"tuiprof: running {command}")
    return captures.convert(found, lambda line: say(f"  {line}"))


def open_with_progress(path: Path) -> Trace:
    """Open a trace; what takes long shows its progress on a terminal's stderr."""
    from tuiprof.formats import open_trace

    with progress_bar(f"reading {path.name}") as progress:
        return open_trace(path, progress=progress)


@contextmanager
def bar(
    what: str, *columns: str | ProgressColumn, **fields: Any
) -> Iterator[tuple[Progress, Callable[..., None]]]:
    """Show a bar of rich on stderr with these columns, texts or others; yields it, and what updates it."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    shown = (TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns)
    progress = Progress(*shown, console=Console(stderr=True, highlight=False), transient=True)
    task = progress.add_task(what, total=None, **fields)
    progress.start()
    try:
        yield progress, partial(progress.update, task)
    finally:
        with suppress(OSError):  # the terminal may be gone, under nohup
            progress.stop()


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr; yields what to call with (bytes done, bytes in all), None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TimeRemainingColumn

    with bar(what, "{task.description}", BarColumn(), TimeRemainingColumn()) as (_, update):
        yield lambda done, total: update(completed=done, total=total or None)


def trace_at(target: str | Path, wanted: Selection) -> Trace:
    """Open the trace that a target names; see :func:`traces_at`."""
    return traces_at(target, wanted).open(wanted.rank)


def trace_named(invocation: Invocation, target: str, wanted: Selection) -> Trace:
    """Open the trace that a target names; of a session it is the newest."""
    session = session_or_none(invocation, target)
    return trace_at(target, wanted) if session is None else trace_of(session, wanted)


def trace_of(session: Session, wanted: Selection) -> Trace:
    """Open the newest trace of a session; raises UsageProblem if it has none."""
    if not session.all_traces():
        from tuiprof.model.characters import shell_word

        remedy = f"tuiprof why {shell_word(session.id)} says why; capture one: tuiprof record --capture 5 …"
        raise UsageProblem(f"no trace was captured in {session.id}", remedy)
    return trace_at(session.path / "traces", wanted)


def title_of(trace: Trace, target: str) -> str:
    """Return what a page calls a trace: its session, with the rank if there are several, or its file."""
    from tuiprof.session.store.folders import trace_title

    info = trace.info
    if info.path is None:
        return target
    title = trace_title(info.path)
    several = title != info.path.name and info.rank is not None and (info.world_size or 1) > 1
    return f"{title}, rank {info.rank}" if several else title


def step_window(trace: Trace, number: int | None) -> Window | None:
    """Return the window of one step by its number; None for None."""
    if number is None:
        return None
    numbers = trace.steps.numbers.tolist()
    if number not in numbers:
        known = (
            f"this trace has steps {numbers[0]} to {numbers[-1]}" if numbers else "this trace marks no steps"
        )
        raise UsageProblem(f"no step {number}", known)
    return trace.steps.window(numbers.index(number))
