"""What several verbs share."""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from tuiprof.model import Trace, Window
    from tuiprof.model.traceset import TraceSet
    from tuiprof.session.store.folders import Session
    from tuiprof.tui.start import Start

Function = TypeVar("Function", bound=Callable[..., Any])

#: What every report can be printed as.
FORMATS: Final = ("text", "json", "csv", "md", "html")


def say(text: str) -> None:
    """Write narration to standard error: text of others in it is shown, never obeyed."""
    from tuiprof.report.sanitize import for_log, sanitize_lines

    click.echo(for_log(sanitize_lines(text)), err=True)


class Positive(click.FloatRange):
    """A finite number above 0; click's own range check lets ``nan`` pass."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@dataclass(slots=True)
class Invocation:
    """What was given before the verb, and the user's own command after ``--``."""

    command: tuple[str, ...] | None = None  # everything after ``--``; None = there was no ``--``
    sessions: Path | None = None  # folder of sessions; None = the default one
    scenarios: tuple[Path, ...] = ()  # more folders of scenarios


def launch_options(function: Function) -> Function:
    """Add the options that ``run`` and ``record`` share."""
    options = (
        click.option(
            "--preset",
            metavar="NAME",
            default="fit",
            show_default=True,
            help="Size of a scenario: paper (as published), smoke (small), fit (what this machine can run), or "
            "one of its own.",
        ),
        click.option("--steps", type=click.IntRange(min=1), help="Number of steps to run (scenarios)."),
        click.option(
            "--python",
            "python_",
            type=click.Path(path_type=Path),
            help="Interpreter that runs the script (default: the active environment's).",
        ),
        click.option("--name", help="Session name (default: the script's name)."),
        click.option(
            "--capture",
            metavar="N[@STEP]",
            help="Profile N steps starting at STEP (default: 3 steps from step 30, earlier in short scenarios). "
            "3s@20s: 3 seconds starting after 20 seconds, for scripts without steps.",
        ),
        click.option("--no-capture", is_flag=True, help="Record step times and devices only."),
        click.option(
            "--stack", is_flag=True, help="Capture Python stacks: finds source lines, but slows the capture."
        ),
        click.option(
            "--shapes",
            is_flag=True,
            help="Capture operator input shapes, to compare kernels with the chip's peak rates.",
        ),
        click.option(
            "--memory",
            is_flag=True,
            help="Capture allocator events, and keep every allocation's stack in case memory runs out.",
        ),
        click.option(
            "--watch-nan",
            is_flag=True,
            help="Check loss and gradients for NaN once per step, without stalling.",
        ),
        click.option(
            "--step-at",
            metavar="FILE:LINE",
            help="End a step each time this line has run; for the line of a loop, at each iteration.",
        ),
        click.option(
            "--step-function",
            metavar="MODULE:NAME",
            help="End a step each time this function returns; the script itself is __main__.",
        ),
        click.option(
            "--no-source", is_flag=True, help="Do not store the script's source (it is used to compare runs)."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def open_screen(start: Start) -> int:
    """Open the dashboard; without a terminal say what to use instead. Returns the exit status."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "the dashboard needs a terminal on stdin and stdout. "
            "Without one: tuiprof record …, tuiprof report …, tuiprof list."
        )
    from tuiprof.tui.app.app import run_app

    return run_app(start)


def session_or_none(invocation: Invocation, text: str) -> Session | None:
    """Return the session a user means, or None when the text names a file that is no session.

    Raises:
        UsageProblem: It is neither a file nor a session.
    """
    from tuiprof.errors import UsageProblem
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
        if os.path.exists(path) or not ("/" in text or path.suffix):
            raise
        raise UsageProblem(f"there is no file or session {text!r}", _similar(path)) from None


def ladder_or_none(invocation: Invocation, text: str) -> Path | None:
    """Return the folder of the measured ladder a user means; None if it is not a ladder, or a session is meant."""
    from tuiprof.errors import UsageProblem
    from tuiprof.formats.remote import is_url
    from tuiprof.ladder.state import find_ladder
    from tuiprof.session.store.folders import LADDER_FILE, find_session, sessions_root

    path = Path(text)
    if is_url(text) or (os.path.exists(path) and not (path / LADDER_FILE).exists()):
        return None
    root = sessions_root(invocation.sessions)
    try:
        find_session(root, text)
    except UsageProblem:
        try:
            return find_ladder(root, text).path
        except UsageProblem:
            return None
    return None


def convert_option(function: Function) -> Function:
    """Add the option to convert raw captures without asking."""
    return click.option(
        "--convert/--no-convert",
        default=None,
        help="First convert a raw Neuron capture with neuron-explorer (default: ask, on a terminal).",
    )(function)


def chart_option(function: Function) -> Function:
    """Add the option to leave out charts."""
    return click.option("--no-chart", is_flag=True, help="Tables only, no charts (text, md).")(function)


def format_option(*more: str) -> Callable[[Function], Function]:
    """Return what adds ``--format``, the format of a report; ``more`` are the verb's own formats."""
    return click.option(
        "--format",
        "-f",
        "format_",
        type=click.Choice((*FORMATS, *more)),
        default="text",
        show_default=True,
    )


def trace_options(function: Function) -> Function:
    """Add the options that choose one trace of a directory of them."""
    options = (
        click.option(
            "--rank", type=click.IntRange(min=0), help="Rank of a distributed run (default: the lowest)."
        ),
        click.option(
            "--run",
            "run_",
            metavar="NAME",
            help="Which run, in a directory of several (default: the newest).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def traces_at(
    target: str | Path,
    run: str | None = None,
    rank: int | None = None,
    convert: bool | None = None,
    several: bool = False,
) -> TraceSet:
    """Return the traces that a target names, and say on stderr which one is taken of several.

    ``convert`` as in :func:`converted`; ``several``: all ranks are taken.

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
    path = converted(path, convert)
    found = open_set(path, run=run, opener=open_with_progress)
    found.file(rank)  # reports a missing rank before anything else
    if several:
        said = [f"run {found.run}; others with --run"] if len(found.runs) > 1 else []
        if line := " · ".join((*said, *found.notes)):
            say(f"tuiprof: {line}")
    elif line := found.line(rank):
        say(f"tuiprof: {line}")
    return found


def converted(path: Path, wanted: bool | None) -> Path:
    """Return what to open for a path: of a raw capture the converted one, where the program for that is installed.

    ``wanted`` None asks, where there is somebody to ask.

    Raises:
        TraceError: Converting failed.
    """
    import shlex

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
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr; yields what to call with (bytes done, bytes in all), None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _similar(path: Path) -> str:
    """Return a suggestion for a file that does not exist."""
    if not os.path.isdir(path.parent):
        return f"the folder {path.parent} does not exist either"
    near = difflib.get_close_matches(path.name, (entry.name for entry in path.parent.iterdir()), n=1)
    return (
        f"did you mean {str(path.with_name(near[0]))!r}?"
        if near
        else "`tuiprof list` shows recorded sessions"
    )


def open_rank(found: TraceSet, rank: int | None) -> Trace:
    """Open one rank of a set; the trace knows the others, for what compares ranks."""
    trace = found.open(rank)
    if len(found) > 1:
        trace.siblings = found
    return trace


def step_window(trace: Trace, number: int) -> Window:
    """Return the window of one step by its number."""
    from tuiprof.errors import UsageProblem

    numbers = trace.steps.numbers.tolist()
    if number not in numbers:
        known = (
            f"this trace has steps {numbers[0]} to {numbers[-1]}" if numbers else "this trace marks no steps"
        )
        raise UsageProblem(f"no step {number}", known)
    return trace.steps.window(numbers.index(number))
