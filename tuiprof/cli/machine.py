"""Verbs about this machine: doctor, completion."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tuiprof.cli.common import Invocation

_ACTIVATE = {
    "bash": 'eval "$(tuiprof completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(tuiprof completion zsh)"   # in ~/.zshrc',
    "fish": "tuiprof completion fish > ~/.config/fish/completions/tuiprof.fish",
}


@click.command()
@click.option("--python", "python_", type=click.Path(path_type=Path), help="Interpreter to ask.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.pass_obj
def doctor(invocation: Invocation, python_: Path | None, as_json: bool) -> int:
    """Say what is here and what is missing.

    Devices, frameworks and versions, what each scenario lacks, what the terminal can do.
    """
    from tuiprof.cli.examination import examine, present

    found = examine(python_, scenarios=invocation.scenarios, sessions=invocation.sessions)
    sys.stdout.write(present(found, "json" if as_json else "text"))
    return 0


@click.command(epilog="\b\n" + "\n".join(f"{shell:<6}{line}" for shell, line in _ACTIVATE.items()))
@click.argument("shell", type=click.Choice(list(_ACTIVATE)))
def completion(shell: str) -> int:
    """Print the completion script for a shell."""
    from tuiprof.cli import cli
    from tuiprof.cli.completing import script

    sys.stdout.write(script(shell, cli) + "\n")
    return 0
