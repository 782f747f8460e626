"""Shell completion besides commands and options: scenarios, sessions, analyses and files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import BashComplete, CompletionItem

    from tuiprof.ladder.scenarios import Ladder

# Bash ends words at a colon, so what it is given back must begin behind the one of metrics:naive. As in click's own
# script, files are left to bash itself.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' kind value response line="${COMP_LINE:0:COMP_POINT}" cut=""
    local word="${line##*[[:space:]]}"
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && cut="${word%%:*}:"
    response=$(env COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r kind value <<< "$completion"
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$cut"}") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


def scenarios(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``LADDER:VARIANT``: the ladders, and the variants of the one that is meant."""
    found = [ladder for ladder in _ladders(ctx) if ladder.name.startswith(incomplete.partition(":")[0])]
    if ":" not in incomplete and len(found) > 1:
        return _items((ladder.name for ladder in found), incomplete)
    return _items((f"{ladder.name}:{key.name}" for ladder in found for key in ladder.variants), incomplete)


def ladders(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a ladder."""
    return _items((ladder.name for ladder in _ladders(ctx)), incomplete)


def sessions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a session: ``last``, or its id, the newest first."""
    from tuiprof.session.store.folders import session_dirs, sessions_root

    root = sessions_root(ctx.find_root().params.get("sessions"))
    return _items(("last", *(path.name for path in session_dirs(root))), incomplete)


def targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete what can be opened: a session, or a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file"), *sessions(ctx, parameter, incomplete)]


def analyses(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an analysis."""
    from tuiprof.analyses import available

    return _items(available(), incomplete)


def script(shell: str, cli: click.Command) -> str:
    """Return what a shell must read to complete ``tuiprof``."""
    from click.shell_completion import get_completion_class

    register()
    kind = get_completion_class(shell)
    assert kind is not None, f"no completion for {shell}"
    return kind(cli, {}, "tuiprof", "_TUIPROF_COMPLETE").source()


def register() -> None:
    """Let click complete for bash by the whole line; called before it completes anything."""
    from click.shell_completion import add_completion_class

    add_completion_class(_bash())


def _bash() -> type[BashComplete]:
    from click.shell_completion import BashComplete, CompletionItem, split_arg_string

    class Bash(BashComplete):
        source_template = _BASH

        def get_completion_args(self) -> tuple[list[str], str]:
            line = os.environ["COMP_LINE"]
            words = split_arg_string(line)
            incomplete = "" if line[-1:].isspace() or not words else words.pop()
            return words[1:], incomplete

        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            if "--" in args:  # the user's own command
                return [CompletionItem(incomplete, type="file")]
            return super().get_completions(args, incomplete)

    return Bash


def _ladders(ctx: click.Context) -> tuple[Ladder, ...]:
    from tuiprof.config import scenario_folders
    from tuiprof.ladder.scenarios import scan

    given: tuple[Path, ...] = ctx.find_root().params.get("scenarios") or ()
    return scan((*given, *scenario_folders())).ladders


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    # A name with other characters would be read by the shell as something else.
    plain = re.compile(r"\w[\w.:~+-]*", re.ASCII)
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and plain.fullmatch(name)]
