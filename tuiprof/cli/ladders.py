"""The verb that measures a ladder: every variant, checked, interleaved, with verdicts."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from tuiprof.cli.options import FORMATS, Invocation, Positive, chart_option, complete_ladders, python_option
from tuiprof.cli.targets import bar, say
from tuiprof.errors import SessionError, UsageProblem
from tuiprof.system.own_process import signals_kept

if TYPE_CHECKING:
    from tuiprof.ladder.runner import Progress
    from tuiprof.ladder.scenarios import Ladder
    from tuiprof.ladder.state import LadderRun
    from tuiprof.model import Report
    from tuiprof.telemetry import Device

#: Devices that telemetry alone knows of; an interpreter is asked about the others.
_ASKED_OF_INTERPRETER: Final = ("", "cpu", "cuda")
_NOTHING_CAN_RUN: Final = 5


@click.command(
    short_help="Measure a ladder: every variant, checked and timed in turns.",
    epilog="Ctrl-C stops after the current trial, a second one at once; --resume continues. The exit status is 1 if "
    "a variant is wrong or failed, 130 if stopped, 5 if nothing can run here.",
)
@click.argument("name", required=False, shell_complete=complete_ladders)
@click.option("--variants", metavar="A,B,…", help="Only these variants and their baselines (default: all).")
@click.option("--trials", type=click.IntRange(min=1), help="Timing trials per variant (default: 5).")
@click.option(
    "--once",
    is_flag=True,
    help="One process per variant does the check, the capture and the timing: for small sizes, where starting "
    "processes takes most of the time. Speeds get no verdict.",
)
@click.option("--preset", help="Size: fit (default), paper, smoke, or another of the ladder's.")
@click.option("--steps", type=click.IntRange(min=2), help="Steps per trial (default: the preset's).")
@python_option("Interpreter that runs the scripts (default: the active environment's).")
@click.option("--price", type=Positive(), help="Price of the machine, in dollars per hour.")
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(FORMATS),
    help="Default: text, or as the name of FILE says.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to FILE instead of printing it.",
)
@click.option(
    "--checks",
    "checks_at_once",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Check N variants at the same time (default: 1). Timing trials always run alone.",
)
@click.option(
    "--limit",
    "limit_s",
    type=Positive(),
    metavar="SECONDS",
    help="Stop trials that take longer; the variant then counts as failed (default: no limit).",
)
@click.option("--resume", metavar="LADDER", help="Resume a stopped ladder: its name, or `last`.")
@click.option(
    "--show", metavar="LADDER", help="Show a measured ladder without running anything: its name, or `last`."
)
@click.option(
    "--trust",
    is_flag=True,
    help="Also resume a ladder that you did not start on this machine: it decides which commands run.",
)
@chart_option
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
@click.pass_obj
def ladder(
    invocation: Invocation,
    name: str | None,
    variants: str | None,
    trials: int | None,
    once: bool,
    preset: str | None,
    steps: int | None,
    python_: Path | None,
    price: float | None,
    format_: str | None,
    output: Path | None,
    checks_at_once: int,
    limit_s: float | None,
    resume: str | None,
    show: str | None,
    trust: bool,
    no_chart: bool,
    quiet: bool,
) -> int:
    """Measure a ladder: check every variant, then time them interleaved.

    Each trial is a fresh process. First every variant's results are compared with the reference's and some of its
    steps are captured; then the variants are timed in turns (A B C A B C …), without a capture. Variants that
    cannot run here are listed with the reason.
    """
    from tuiprof.ladder.plan import pending, plan
    from tuiprof.ladder.report import report
    from tuiprof.ladder.state import LadderRun, create, find_run
    from tuiprof.session.store.folders import sessions_root

    root = sessions_root(invocation.sessions)
    if resume is not None and show is not None:
        raise click.UsageError("--resume and --show cannot be used together")
    if (known := resume or show) is not None:
        if once or any(option is not None for option in (variants, trials, preset, steps, python_, price)):
            raise click.UsageError(
                "--resume and --show cannot be used with --variants, --trials, …: a started ladder keeps its plan"
            )
        measured = find_run(root, known)
        if name is not None and name != measured.meta.ladder:
            raise click.UsageError(f"{measured.id} is a ladder {measured.meta.ladder!r}, not {name!r}")
    else:
        if once and trials is not None:
            raise click.UsageError("--once and --trials cannot be used together")
        found, devices = _wanted(invocation, name)
        from tuiprof.session.run.interpreter import facts

        meta = plan(
            found,
            facts(python_),
            devices,
            variants=[part.strip() for part in variants.split(",") if part.strip()] if variants else (),
            rounds=trials or 5,
            preset=preset or "fit",
            steps=steps,
            price=price,
            once=once,
        )
        # Where nothing can be run there is nothing to keep either; the reasons are printed.
        measured = create(root, meta) if pending(meta) else LadderRun(root, meta)
    stopped = False
    if show is None and pending(measured.meta):
        if not trust:
            _trusted(measured)
        stopped = _run(measured, quiet, checks_at_once, limit_s)
    fmt = format_ or _format_of(output)
    answer = report(measured, brief=fmt == "text")
    _write(answer, fmt, output, charts=not no_chart)
    if output is not None and not quiet:
        say(f"wrote {output.absolute()}")
    if not measured.meta.trials and not stopped:
        return _NOTHING_CAN_RUN
    if not quiet:
        _afterwards(measured, answer, stopped)
    if stopped:
        return 130
    return 1 if any(answer.fact(word) for word in ("wrong", "failed")) else 0


def _wanted(invocation: Invocation, name: str | None) -> tuple[Ladder, list[Device]]:
    """Return the ladder, and what telemetry sees if one of its variants is about that."""
    from tuiprof.ladder.scenarios import SameName, find_ladder, scan

    scanned = scan(invocation.scenarios)
    if name is None:
        known = ", ".join(ladder.name for ladder in scanned.ladders)
        raise click.UsageError(f"no ladder given; there are {known}")
    for problem in scanned.problems:
        if isinstance(problem, SameName) and problem.name == name:
            say(f"skipped: {problem}")
    found = find_ladder(name, invocation.scenarios)
    if all(variant.needs.device in _ASKED_OF_INTERPRETER for variant in found.variants):
        return found, []
    from tuiprof.telemetry import find_hardware

    return found, find_hardware().all


def _trusted(measured: LadderRun) -> None:
    """Show the commands of a ladder that may come from somebody else, before any of them is run."""
    from tuiprof.ladder.resuming import must_be_own

    try:
        must_be_own(measured)
    except SessionError as problem:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        meta = measured.meta
        say(f"{problem.message}. In {meta.cwd} it would run:")
        for rung in meta.rungs:
            say(f"  {shlex.join((meta.python or 'python', *rung.command))}")
        if not click.confirm("Run these?", default=False, err=True):
            raise


def _run(measured: LadderRun, quiet: bool, checks_at_once: int, limit_s: float | None) -> bool:
    """Run what is still to be run; return whether the user stopped it."""
    from tuiprof.ladder.plan import pending
    from tuiprof.ladder.runner import run

    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if number != signal.SIGHUP:  # then there is no terminal to say it on
            running = sum(trial.state == "running" for trial in measured.meta.trials)
            what, them = ("this trial", "it") if running < 2 else (f"these {running} trials", "them")
            said = f"after {what}; press Ctrl+C again to stop {them} now" if len(asked) == 1 else "now"
            with suppress(OSError):  # see below
                os.write(2, f"\nstopping {said}\n".encode())  # a handler may interrupt a print

    with signals_kept(on_signal), _progress(measured, quiet) as show:
        for progress in run(measured, lambda: len(asked), checks_at_once=checks_at_once, limit_s=limit_s):
            with suppress(
                OSError
            ):  # a closed terminal under nohup, a log on a full disk: the ladder continues
                show(progress)
    return bool(asked) and bool(pending(measured.meta))


def _format_of(output: Path | None) -> str:
    """Return the format that the name of a file asks for; text without one."""
    suffix = output.suffix.lstrip(".") if output is not None else ""
    return suffix if suffix in FORMATS else "text"


def _write(answer: Report, fmt: str, output: Path | None, *, charts: bool) -> None:
    from tuiprof.report import Style, render, stdout_style

    style = Style() if output is not None else stdout_style()
    text = render(answer, fmt, style=replace(style, rows=None, details=True, charts=style.charts and charts))
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"cannot write {output}: {error.strerror}", "use another --output") from error


def _afterwards(measured: LadderRun, answer: Report, stopped: bool) -> None:
    """Print what can be done next."""
    from tuiprof.model.characters import shell_word

    if stopped:
        say(f"\nresume:  tuiprof ladder --resume {shell_word(measured.id)}")
        return
    say(f"\nshow it again:  tuiprof ladder --show {shell_word(measured.id)}")
    traces = [path for path in answer.table("rungs").rows["trace"].to_list() if path]
    if traces:
        say(f"see a trace:   tuiprof open {shell_word(traces[-1])}")


@contextmanager
def _progress(measured: LadderRun, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows progress: a bar on a terminal, a line a trial elsewhere, nothing if quiet."""
    from tuiprof.ladder.report import activity, time_left
    from tuiprof.report.sanitize import sanitize

    rounds = measured.meta.rounds
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn

        columns = ("{task.description}", BarColumn(bar_width=20), MofNCompleteColumn(), "{task.fields[left]}")
        with bar("starting", *columns, left="") as (shown, update):

            def show(progress: Progress) -> None:
                told, left = sanitize(activity(progress.trial, rounds)), time_left(progress.left_s)
                update(description=told, completed=progress.done, total=progress.total, left=left)
                if progress.ended:
                    said = f"{told}: {sanitize(_outcome(progress))}"
                    shown.console.print(said, markup=False, soft_wrap=True)

            yield show
    else:
        say(f"measuring {measured.meta.ladder} into {measured.path}")

        def line(progress: Progress) -> None:
            if progress.ended:
                parts = [
                    f"{activity(progress.trial, rounds)}: {_outcome(progress)}",
                    time_left(progress.left_s),
                ]
                text = " · ".join(filter(None, parts if progress.done < progress.total else parts[:1]))
                say(f"{progress.done}/{progress.total} {text}")

        yield line


def _outcome(progress: Progress) -> str:
    from tuiprof.model.units import format_ns

    trial = progress.trial
    if trial.kind == "check" and trial.state == "done":
        return "equal" if trial.equal else trial.why or "its results were not compared"
    if trial.state == "done":
        timed = f"{format_ns(trial.figures.median_ns)} a step" if trial.figures else ""
        if trial.kind == "once":
            return ", ".join(filter(None, ("equal" if trial.equal else "", timed, trial.why)))
        return trial.why or (timed if trial.kind == "timing" else "captured")
    return ": ".join(filter(None, (trial.state, trial.why)))
