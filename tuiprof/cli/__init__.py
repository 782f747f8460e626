"""The command line: verbs and exit codes.

Only click is imported here; what a verb needs is imported inside it, so that ``tuiprof --help`` answers at
once. Stdout is data, stderr is narration.

Exit codes:
    0 done, also if there is nothing to show · 1 an unexpected failure · 2 a wrong command line, or no such file or
    (running) session · 3 a trace that cannot be read · 4 a session that cannot be read or written · 5 a script that
    could not be started. ``run`` and ``record`` return the exit status of the script itself (128 + n when signal n
    ended it); ``check`` returns 1 when a figure is beyond its limit and 2 when it is unknown; ``ladder`` 1 when a
    variant is wrong or failed, and 130 when it was stopped.
"""

from __future__ import annotations

import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from tuiprof import __version__
from tuiprof.cli.agent import mcp
from tuiprof.cli.answering import fix, whatif, why
from tuiprof.cli.attaching import attach, collect, detach, stacks, steps
from tuiprof.cli.comparing import check, compare, trend
from tuiprof.cli.ladders import ladder
from tuiprof.cli.options import (
    Invocation,
    complete_ladders,
    completion_script,
    python_option,
    register_completion,
)
from tuiprof.cli.reading import list_, report
from tuiprof.cli.running import record, run
from tuiprof.cli.screens import open_, replay, serve, snapshot
from tuiprof.cli.targets import open_screen, say
from tuiprof.errors import TraceError, TuiprofError
from tuiprof.system.own_process import bound_threads

#: Verbs whose arguments after ``--`` are a command of the user's, not ours.
_TAKES_COMMAND = ("run", "record")
#: How a shell reads what `completion` prints.
_ACTIVATE = {
    "bash": 'eval "$(tuiprof completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(tuiprof completion zsh)"   # in ~/.zshrc',
    "fish": "tuiprof completion fish > ~/.config/fish/completions/tuiprof.fish",
}
#: Options of the program, not of a verb.
_OF_THE_PROGRAM = ("--sessions", "--scenarios", "--theme", "--ascii", "--no-ascii")
#: What a write to stdout ends with where it is a file on a disk that is full, or gone.
_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Verbs(click.Group):
    """A group that lists its verbs by what they are for, and suggests the one the user may have meant."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        cells = max(len(verb.name or "") for verbs in _VERBS.values() for verb in verbs)
        for title, verbs in _VERBS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [((verb.name or "").ljust(cells), verb.get_short_help_str(limit=100)) for verb in verbs]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if args[0].endswith(".py"):
                hint = f" To run a script: tuiprof run -- {_command_line(args)}"
            elif os.path.exists(args[0]):
                hint = f" To open a file: tuiprof open {_command_line(args[:1])}"
            raise click.UsageError(f"{error.message}{hint}", ctx) from error


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="To begin: tuiprof run -- python train.py. Without a command, the dashboard opens. `tuiprof --record …` is "
    "the same as `tuiprof record …`.",
)
@click.version_option(__version__, prog_name="tuiprof")
@click.option(
    "--sessions",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TUIPROF_SESSIONS",
    help="Folder of recorded sessions (default: the user data directory).",
)
@click.option(
    "--scenarios",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Additional folder of scenario scripts (repeatable).",
)
@click.option(
    "--theme",
    envvar="TUIPROF_THEME",
    help="Colours: dark, light, contrast, 16, mono, or a Textual theme (default: what the terminal supports).",
)
@click.option(
    "--ascii/--no-ascii",
    "plain",
    default=None,
    help="Use ASCII characters only (default: depends on locale and terminal).",
)
@python_option("Interpreter for scripts, or its environment's directory (default: the active environment's).")
@click.pass_context
def cli(
    ctx: click.Context,
    sessions: Path | None,
    scenarios: tuple[Path, ...],
    python_: Path | None,
    theme: str | None,
    plain: bool | None,
) -> None:
    """Profile model training in the terminal: live, recorded and explained.

    tuiprof launches a script, shows its step times and devices, records without a screen, and works out from a
    profiler trace which line stalls the host and whether the step is launch-bound.
    """
    invocation = ctx.find_object(Invocation) or Invocation()
    from tuiprof.config import scenario_folders

    try:
        scenarios = (*scenarios, *scenario_folders())
    except TuiprofError as problem:  # most verbs can do without
        say(f"tuiprof: {problem}")
    invocation.sessions, invocation.scenarios = sessions, scenarios
    # By the environment: the dashboard may run in a process of its own.
    if theme:
        os.environ["TUIPROF_THEME"] = theme
    if plain is not None:
        os.environ["TUIPROF_ASCII"] = str(int(plain))
    ctx.obj = invocation
    if ctx.invoked_subcommand is None:
        from tuiprof.tui import Start

        if python_ is not None:
            from tuiprof.session.run.interpreter import choose_python

            python_ = choose_python(python_)
        ctx.exit(open_screen(Start(sessions=sessions, scenarios=scenarios, python=python_)))
    elif python_ is not None:
        # What a verb says itself comes first; verbs that run nothing have no use for it.
        verbs = (name for name, verb in cli.commands.items() if any(p.name == "python_" for p in verb.params))
        ctx.default_map = {name: {"python_": str(python_)} for name in verbs}


@click.command()
@click.argument("ladder", required=False, shell_complete=complete_ladders)
@click.option(
    "--verbose", "-v", is_flag=True, help="Also list what each variant needs, and every part of tuiprof."
)
@python_option("Interpreter to examine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(
    invocation: Invocation, ladder: str | None, verbose: bool, python_: Path | None, as_json: bool
) -> int:
    """Show what is installed and what is missing.

    Lists devices, frameworks and versions, how much of each ladder can run, and what the terminal supports. With
    LADDER: what its variants need, and how to get it.
    """
    from tuiprof.cli.machine import examine, present

    found = examine(python_, scenarios=invocation.scenarios, sessions=invocation.sessions)
    sys.stdout.write(present(found, "json" if as_json else "text", ladder=ladder, verbose=verbose))
    return 0


@click.command(epilog="\b\n" + "\n".join(f"{shell:<6}{line}" for shell, line in _ACTIVATE.items()))
@click.argument("shell", type=click.Choice(list(_ACTIVATE)))
def completion(shell: str) -> int:
    """Print the completion script for a shell."""
    sys.stdout.write(completion_script(shell, click.get_current_context().find_root().command) + "\n")
    return 0


_VERBS: Final[dict[str, tuple[click.Command, ...]]] = {
    "Run a script": (run, record, attach, detach, steps, stacks, collect),
    "Read what was recorded": (why, report, open_, replay, list_, snapshot, serve),
    "Change and compare": (compare, whatif, fix, check, trend),
    "Learn and set up": (ladder, doctor, completion, mcp),
}
for _verb in (verb for verbs in _VERBS.values() for verb in verbs):
    cli.add_command(_verb)


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Part our own arguments from a user's command, and turn ``--record`` into the verb."""
    args = list(argv)
    if "--record" in args[: _first_verb(args) + 1]:
        args[args.index("--record")] = "record"
    if "--" in args and any(verb in args[: args.index("--")] for verb in _TAKES_COMMAND):
        cut = args.index("--")
        return args[:cut], tuple(args[cut + 1 :])
    return args, None


def _command_line(words: Sequence[str]) -> str:
    """Return what to type for a command; for a script the interpreter comes first."""
    from tuiprof.model.characters import shell_word

    return " ".join(map(shell_word, ["python", *words] if words[0].endswith(".py") else words))


def _with_hint(error: click.ClickException, args: list[str]) -> click.ClickException:
    """Return what to show of an error.

    An option of the program given after the verb is pointed out, and so is a command without ``--`` before it.
    """
    if isinstance(error, click.NoSuchOption) and error.option_name in _OF_THE_PROGRAM:
        where = f"tuiprof {error.option_name} … {args[_first_verb(args)]} …"
        return click.UsageError(f"{error.option_name} goes before the command: {where}", error.ctx)
    at = _first_verb(args)
    meant_ours = isinstance(error, click.NoSuchOption) and difflib.get_close_matches(
        error.option_name, error.possibilities or (), cutoff=0.8
    )
    if args and args[at] in _TAKES_COMMAND and isinstance(error, click.UsageError) and not meant_ours:
        words = next((args[i:] for i in range(at + 1, len(args)) if _is_program(args[i])), [])
        if len(words) > 1:
            before = [*args[: len(args) - len(words)], "--"]
            return click.UsageError(
                f"a command comes after --: tuiprof {_command_line(before)} {_command_line(words)}", error.ctx
            )
    return error


def _is_program(word: str) -> bool:
    """Whether a word begins a command, judging by its looks."""
    return word.endswith(".py") or bool(
        re.fullmatch(r"(python[\d.]*|torchrun|accelerate|deepspeed|srun|uv)", word)
    )


def _first_verb(args: list[str]) -> int:
    """Return the index of the first argument that is a verb; the last index if none is."""
    return next((i for i, arg in enumerate(args) if arg in cli.commands), len(args) - 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status (see the module's docstring)."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the locale does not have must not end the command.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    if "_TUIPROF_COMPLETE" in os.environ:  # a shell asks
        register_completion()
    args, command = _split(sys.argv[1:] if argv is None else argv)
    try:
        result: Any = cli.main(
            args, prog_name="tuiprof", standalone_mode=False, obj=Invocation(command=command)
        )
        sys.stdout.flush()  # or a full disk would end in a traceback at exit
    except click.exceptions.Abort:
        say("tuiprof: interrupted")
        return 130
    except click.ClickException as error:
        shown = io.StringIO()
        _with_hint(error, args).show(shown)
        say(shown.getvalue())  # it quotes what was typed, or what a pattern found
        return error.exit_code
    except TuiprofError as error:
        say(f"tuiprof: {error.message}")
        if error.remedy:
            say(f"         {error.remedy}")
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe went away (`tuiprof report … | head`): not an error; keep Python from
        # reporting it once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PermissionError as error:
        from tuiprof.report.sanitize import sanitize

        # Whatever looks for a file raises this, wherever it looks.
        click.echo(
            f"tuiprof: cannot read {sanitize(str(error.filename or 'a file'))}: {error.strerror}", err=True
        )
        click.echo("         change its permissions, or use another file", err=True)
        return TraceError.exit_code
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"tuiprof: the output could not be written: {error.strerror}")
        return 1
    return result if isinstance(result, int) else 0


def _open_missing_streams() -> None:
    """Open standard streams that this process was started without: a file opened next would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def entry() -> None:
    """Run the command line and exit with its status."""
    bound_threads()
    _open_missing_streams()
    sys.exit(main())
