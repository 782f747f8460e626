"""What several verbs share."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tuiprof.session.store import Session
    from tuiprof.tui.start import Start

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """What was given before the verb, and the user's own command after ``--``.

    Attributes:
        command: Everything after ``--``; None = there was no ``--``.
        sessions: Folder of sessions; None = the default one.
        scenarios: More folders of scenarios.
    """

    command: tuple[str, ...] | None = None
    sessions: Path | None = None
    scenarios: tuple[Path, ...] = ()


def launch_options(function: Function) -> Function:
    """Add the options that ``run`` and ``record`` share."""
    options = (
        click.option(
            "--preset",
            type=click.Choice(["paper", "fit", "smoke"]),
            default="fit",
            show_default=True,
            help="Size of a scenario: as published, by what is here, or small.",
        ),
        click.option("--steps", type=click.IntRange(min=1), help="Steps to run (scenarios)."),
        click.option(
            "--python",
            "python_",
            type=click.Path(path_type=Path),
            help="Interpreter that runs the script (default: the active environment's).",
        ),
        click.option("--name", help="Name of the session (default: that of the script)."),
        click.option(
            "--capture",
            metavar="N[@STEP]",
            help="Profile N steps from STEP on (default: 3 steps after warm-up).",
        ),
        click.option("--no-capture", is_flag=True, help="Record step times and devices only."),
        click.option("--stack", is_flag=True, help="Capture Python stacks: names source lines, costs time."),
        click.option("--shapes", is_flag=True, help="Capture operator input shapes."),
        click.option("--memory", is_flag=True, help="Capture allocator events."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def open_screen(start: Start) -> int:
    """Open the dashboard; without a terminal say what to use instead.

    Args:
        start: What to show first.

    Returns:
        The exit status.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "the dashboard needs a terminal on stdin and stdout. "
            "Without one: tuiprof record …, tuiprof report …, tuiprof list."
        )
    from tuiprof.tui.app import run_app

    return run_app(start)


def session_or_none(invocation: Invocation, text: str) -> Session | None:
    """Return the session a user means, or None when the text names a file that is no session.

    Args:
        invocation: What was given before the verb.
        text: Name, path, prefix or ``last``.

    Raises:
        UsageProblem: It is neither a file nor a session.
    """
    from tuiprof.errors import UsageProblem
    from tuiprof.session.store import find_session, sessions_root

    path = Path(text)
    if path.is_file() or (path.is_dir() and not (path / "session.json").exists()):
        return None
    try:
        return find_session(sessions_root(invocation.sessions), text)
    except UsageProblem:
        if path.exists() or not ("/" in text or path.suffix):
            raise
        raise UsageProblem(f"there is no file or session {text!r}", _similar(path)) from None


def _similar(path: Path) -> str:
    """Return what may have been meant by a file that is not there."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    near = difflib.get_close_matches(path.name, (entry.name for entry in path.parent.iterdir()), n=1)
    return (
        f"did you mean {str(path.with_name(near[0]))!r}?"
        if near
        else "`tuiprof list` shows recorded sessions"
    )
