"""Arguments and options that several verbs have, and how shells complete them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import BashComplete, CompletionItem

    from tuiprof.ladder.scenarios import Ladder

Function = TypeVar("Function", bound=Callable[..., Any])

#: What every report can be printed as.
FORMATS: Final = ("text", "json", "csv", "md", "html")

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


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return what adds several options, in this order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


#: Converts raw captures without asking.
convert_option = click.option(
    "--convert/--no-convert",
    default=None,
    help="First convert a raw Neuron capture with neuron-explorer (default: ask, on a terminal).",
)
#: Leaves out charts.
chart_option = click.option("--no-chart", is_flag=True, help="Tables only, no charts (text, md).")


def python_option(help_: str) -> Callable[[Function], Function]:
    """Return what adds ``--python``, the interpreter for scripts."""
    return click.option("--python", "python_", type=click.Path(path_type=Path), help=help_)


def format_option(*more: str) -> Callable[[Function], Function]:
    """Return what adds ``--format``, the format of a report; ``more`` are the verb's own formats."""
    return click.option(
        "--format", "-f", "format_", type=click.Choice((*FORMATS, *more)), default="text", show_default=True
    )


#: The options that choose one trace of a directory of them.
trace_options = together(
    click.option(
        "--rank", type=click.IntRange(min=0), help="Rank of a distributed run (default: the lowest)."
    ),
    click.option(
        "--run", "run_", metavar="NAME", help="Which run, in a directory of several (default: the newest)."
    ),
)


#: The options that say on what many files are read.
fleet_options = together(
    click.option(
        "--on",
        metavar="WHERE",
        help="Where to read many files: `processes` of this machine (default; processes:N for N of them), "
        "workers of a Dask scheduler (dask://HOST:PORT), or workers started by ssh (ssh://HOST,HOST…).",
    ),
    click.option(
        "--dask-workers",
        type=click.IntRange(min=1),
        help="Read with this many Dask workers here, or on each host of ssh://.",
    ),
)


# -- completion ----------------------------------------------------------------------------------------


def complete_scenarios(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``LADDER:VARIANT``: the ladders, and the variants of the one that is meant."""
    found = [ladder for ladder in _ladders(ctx) if ladder.name.startswith(incomplete.partition(":")[0])]
    if ":" not in incomplete and len(found) > 1:
        return _items((ladder.name for ladder in found), incomplete)
    return _items((f"{ladder.name}:{key.name}" for ladder in found for key in ladder.variants), incomplete)


def complete_ladders(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a ladder."""
    return _items((ladder.name for ladder in _ladders(ctx)), incomplete)


def complete_sessions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a session: ``last``, or its id, the newest first."""
    from tuiprof.session.store.folders import session_dirs, sessions_root

    root = sessions_root(ctx.find_root().params.get("sessions"))
    return _items(("last", *(path.name for path in session_dirs(root))), incomplete)


def complete_targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete what can be opened: a session, or a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file"), *complete_sessions(ctx, parameter, incomplete)]


def complete_analyses(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an analysis."""
    from tuiprof.analyses import available

    return _items(available(), incomplete)


def completion_script(shell: str, cli: click.Command) -> str:
    """Return what a shell must read to complete ``tuiprof``."""
    from click.shell_completion import get_completion_class

    register_completion()
    kind = get_completion_class(shell)
    assert kind is not None, f"no completion for {shell}"
    return kind(cli, {}, "tuiprof", "_TUIPROF_COMPLETE").source()


def register_completion() -> None:
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
