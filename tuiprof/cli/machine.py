"""Verbs about this machine: doctor, completion."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation

_ACTIVATE = {
    "bash": 'eval "$(tuiprof completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(tuiprof completion zsh)"   # in ~/.zshrc',
    "fish": "tuiprof completion fish > ~/.config/fish/completions/tuiprof.fish",
}


@click.command()
@click.argument("ladder", required=False, shell_complete=completing.ladders)
@click.option(
    "--verbose", "-v", is_flag=True, help="Also list what each variant needs, and every part of tuiprof."
)
@click.option("--python", "python_", type=click.Path(path_type=Path), help="Interpreter to examine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(
    invocation: Invocation, ladder: str | None, verbose: bool, python_: Path | None, as_json: bool
) -> int:
    """Show what is installed and what is missing.

    Lists devices, frameworks and versions, how much of each ladder can run, and what the terminal supports. With
    LADDER: what its variants need, and how to get it.
    """
    from tuiprof.cli.examination import examine, present

    found = examine(python_, scenarios=invocation.scenarios, sessions=invocation.sessions)
    sys.stdout.write(present(found, "json" if as_json else "text", ladder=ladder, verbose=verbose))
    return 0


@click.command(epilog="\b\n" + "\n".join(f"{shell:<6}{line}" for shell, line in _ACTIVATE.items()))
@click.argument("shell", type=click.Choice(list(_ACTIVATE)))
def completion(shell: str) -> int:
    """Print the completion script for a shell."""
    from tuiprof.cli.completing import script

    sys.stdout.write(script(shell, click.get_current_context().find_root().command) + "\n")
    return 0
