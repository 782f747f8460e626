"""Verbs that launch a script: run, record. Without a screen, progress goes to stderr and signals are passed on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tuiprof.cli.answering import page
from tuiprof.cli.options import Invocation, complete_scenarios, python_option, together
from tuiprof.cli.reading import session_reports
from tuiprof.cli.targets import Selection, bar, open_screen, say
from tuiprof.errors import TuiprofError
from tuiprof.system import own_process

if TYPE_CHECKING:
    from tuiprof.session.live.fold import Fold
    from tuiprof.session.run.launch import LaunchSpec
    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.meta import TriggerRequest
    from tuiprof.session.store.status import Status

_EXAMPLES = "A scenario: metrics:naive. A script of yours, with its arguments: -- python train.py --lr 1e-3."
_SIZES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    f"{letter}ib": 1 << 10 * power for power, letter in enumerate("kmgt", 1)
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([^\W\d]*)\s*")
_POLL_S: Final = 0.1
#: Without a terminal a line of progress is written this often.
_PLAIN_EVERY_S: Final = 10.0


#: The options that ``run`` and ``record`` share.
launch_options = together(
    click.argument(
        "target", required=False, metavar="SCENARIO[:VARIANT] | -- COMMAND", shell_complete=complete_scenarios
    ),
    click.option(
        "--preset",
        metavar="NAME",
        default="fit",
        show_default=True,
        help="Size of a scenario: paper (as published), smoke (small), fit (what this machine can run), or "
        "one of its own.",
    ),
    click.option("--steps", type=click.IntRange(min=1), help="Number of steps to run (scenarios)."),
    python_option("Interpreter that runs the script (default: the active environment's)."),
    click.option("--name", help="Session name (default: the script's name)."),
    click.option(
        "--capture",
        metavar="N[@STEP]",
        help="Profile N steps starting at STEP (default: 3 steps from step 30, or after 20 s of longer steps). "
        "3s@20s: 3 seconds starting after 20 seconds, for scripts without steps.",
    ),
    click.option("--no-capture", is_flag=True, help="Record step times and devices only."),
    click.option(
        "--stack", is_flag=True, help="Capture Python stacks: finds source lines, but slows the capture."
    ),
    click.option(
        "--shapes",
        is_flag=True,
        help="Capture operator shapes in all captured steps, not only in the one after; on a CPU they always are.",
    ),
    click.option(
        "--memory",
        is_flag=True,
        help="Capture allocator events, and keep every allocation's stack in case memory runs out.",
    ),
    click.option(
        "--watch-nan", is_flag=True, help="Check loss and gradients for NaN once per step, without stalling."
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
    # Triggered captures.
    click.option(
        "--capture-slower",
        metavar="1.5x|40ms",
        help="When a step takes longer than this (1.5x: 1.5 times the median), profile the steps after it. At "
        "most every 30 s; not in the first 10 steps.",
    ),
    click.option(
        "--capture-every",
        type=click.IntRange(min=1),
        metavar="STEPS",
        help="Profile every STEPS steps, at most every 10 s.",
    ),
    click.option(
        "--capture-budget",
        metavar="SIZE",
        help="Skip triggered captures that would take the session's traces above SIZE (default: 500MB).",
    ),
)


@click.command(epilog=_EXAMPLES)
@launch_options
@click.option("--inline", is_flag=True, help="Show a few lines below the prompt instead of a full screen.")
@click.pass_obj
def run(invocation: Invocation, /, target: str | None, inline: bool, **options: Any) -> int:
    """Launch a scenario or script and watch it live.

    Quitting the screen (or Ctrl+C with `--inline`) leaves the script running; return with `tuiprof attach`.
    """
    from tuiprof.session.run.launch import start
    from tuiprof.tui import Start

    spec = launch_spec(invocation, target, **options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("run draws a live screen and needs a terminal; without one: tuiprof record …")
    session = start(spec)
    if inline and (outcome := _watch_inline(session)) is not None:
        return outcome
    return open_screen(Start("live", session.path, launched=True))


def _watch_inline(session: Session) -> int | None:
    """Watch a run in a few lines; return the exit status, None where the whole screen is wanted."""
    from tuiprof.tui.app.inline import farewell, watch

    outcome = watch(session)
    if outcome == "dashboard":
        return None
    if outcome == "left":
        say(farewell(session))
        return 0

    from tuiprof.comparison.headline import ask
    from tuiprof.report import render_all
    from tuiprof.report.sanitize import for_log, sanitize
    from tuiprof.session.live.summary import summarise

    report = summarise(session)
    # Where a step went and the verdict; the devices and the rest are a verb away.
    tables = tuple(table for table in report.tables if table.key in ("phases", "ranks"))
    click.echo()
    sys.stdout.write(render_all([replace(report, tables=tables, rules=())]))
    if traces := session.traces():
        headline = ask(traces[-1])
        click.echo(for_log(sanitize(f"trace: {headline.line or headline.problem}")))
    say(f"\nsee it:  tuiprof open {session.id}")
    status = session.status()
    return status.code if status.code is not None else 1


@click.command(epilog=_EXAMPLES)
@launch_options
@click.option("--tee", is_flag=True, help="Also pass the script's output through.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
@click.pass_obj
def record(
    invocation: Invocation, /, target: str | None, as_json: bool, quiet: bool, tee: bool, **options: Any
) -> int:
    """Record without a screen, then print the report.

    Progress goes to stderr, the report to stdout; the exit status is the script's. Standard input is passed to the
    script.

    For a multi-host run (torchrun --nnodes, srun), record on every host; sessions in a shared folder, or gathered
    by `tuiprof collect`, are shown as one run.
    """
    from tuiprof.report import render_all, stdout_style
    from tuiprof.report.sanitize import sanitize_lines
    from tuiprof.session.run.launch import start

    spec = replace(launch_spec(invocation, target, **options), stdin=True)
    asked: list[int] = []
    # Around the launch, too: the script has a session of its own and would not hear of a Ctrl-C that ends this process
    # just when it has been started.
    with own_process.signals_kept(lambda number, frame: asked.append(number)):
        session = start(spec)
        status = _follow(session, asked, tee=tee, quiet=quiet)
    if not status.over:  # the terminal went away; the run goes on
        return 0
    code = status.code if status.code is not None else 1
    try:
        session.reload()  # the recorder has recorded the devices since
        if as_json:
            from tuiprof.analyses.shared.replay import trust

            reports, trace = session_reports(session, (), Selection())
            text = render_all(reports, "json", trust=trust(trace).text if trace is not None else "")
        else:
            text = page(session, "", "text", stdout_style(), Selection())
    except TuiprofError as error:  # the exit status stays the script's
        click.echo(f"tuiprof: the report failed: {sanitize_lines(str(error))}", err=True)
        return code
    if tee:
        sys.stdout.flush()
    sys.stdout.write(text)
    if not quiet:
        say(f"\nsee it:  tuiprof open {session.id}")
    return code


def launch_spec(
    invocation: Invocation,
    target: str | None,
    *,
    preset: str,
    steps: int | None,
    python_: Path | None,
    name: str | None,
    capture: str | None,
    no_capture: bool,
    no_source: bool,
    watch_nan: bool,
    capture_slower: str | None,
    capture_every: int | None,
    capture_budget: str | None,
    step_at: str | None,
    step_function: str | None,
    **detail: bool,
) -> LaunchSpec:
    """Turn what was typed, as the options of ``run`` and ``record`` take it, into what to launch.

    ``detail`` is what captures hold beyond times: stack, shapes, memory.

    Raises:
        UsageError: The options for captures contradict each other or cannot be read.
        UsageProblem: There is no such scenario or variant, or ``--capture`` cannot be read.
    """
    from tuiprof.session.run.launch import DEFAULT_CAPTURE, LaunchSpec, parse_capture, step_environment

    if no_capture:
        if capture or any(detail.values()) or capture_slower or capture_every:
            raise click.UsageError(
                "--no-capture cannot be used with --capture…, --stack, --shapes or --memory"
            )
        request = None
    else:
        request = parse_capture(capture or f"{DEFAULT_CAPTURE.steps}", **detail)
    steps_each = (request or DEFAULT_CAPTURE).steps
    armed = triggers(capture_slower, capture_every, capture_budget, steps=steps_each, **detail)
    spec = LaunchSpec(
        (),
        name or "",
        python=python_,
        capture=request,
        triggers=armed,
        root=invocation.sessions,
        keep_source=not no_source,
        env=step_environment(step_at, step_function),
        watch_nan=watch_nan,
    )
    command = invocation.command
    if target is None:
        if not command:
            raise click.UsageError(
                "nothing to run: give a scenario (tuiprof doctor lists them), or give a command after --"
            )
        if steps is not None:
            raise click.UsageError("--steps is for scenarios; give your script its own arguments after --")
        return replace(spec, argv=command)
    if target.endswith(".py") or os.path.isfile(target):
        return replace(spec, argv=("python", target, *(command or ())))
    return _scenario_spec(
        invocation, spec, target, preset, steps, command or (), may_be_earlier="@" not in (capture or "")
    )


def _scenario_spec(
    invocation: Invocation,
    spec: LaunchSpec,
    target: str,
    preset: str,
    steps: int | None,
    extra: tuple[str, ...],
    *,
    may_be_earlier: bool,
) -> LaunchSpec:
    from tuiprof.ladder import scenarios
    from tuiprof.session.run.launch import fit_capture
    from tuiprof.session.store.meta import Scenario

    variant = scenarios.find(target, invocation.scenarios)
    argv = scenarios.command(variant, preset=preset, steps=steps)
    if spec.capture is not None and may_be_earlier:
        spec = replace(spec, capture=fit_capture(spec.capture, scenarios.least_steps(variant, preset, steps)))
    return replace(spec, argv=(*argv, *extra), scenario=Scenario(variant.ladder, variant.name, preset))


def triggers(
    slower: str | None, every: int | None, budget: str | None, **options: Any
) -> tuple[TriggerRequest, ...]:
    """Return what ``--capture-slower``, ``--capture-every`` and ``--capture-budget`` arm; ``options`` of the captures.

    Raises:
        UsageError: One of them cannot be read, or there is a budget for nothing.
    """
    from tuiprof.session.run.control import parse_slower, trigger_requests
    from tuiprof.session.store.meta import DEFAULT_BUDGET

    if budget is not None and slower is None and every is None:
        raise click.UsageError("--capture-budget requires --capture-slower or --capture-every")
    size = DEFAULT_BUDGET if budget is None else parse_size(budget)
    try:
        above_ns, times = parse_slower(slower) if slower is not None else (None, None)
    except ValueError as error:
        raise click.UsageError(f"--capture-slower {error}") from error
    return trigger_requests(above_ns=above_ns, times=times, every=every, budget_bytes=size, **options)


def parse_size(text: str) -> int:
    """Read ``500MB`` or ``2GiB`` as bytes; raises UsageError if it is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SIZES or float(match[1]) <= 0:
        raise click.UsageError(f"--capture-budget {text!r} is not a size; for example 500MB or 2GB")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def _follow(session: Session, asked: Sequence[int], *, tee: bool, quiet: bool) -> Status:
    """Wait for the end of a run and return how it ended; a status that is not ``over`` when the terminal went away.

    SIGINT and SIGTERM stop the script politely; a second one kills it. SIGHUP (the terminal went away) leaves it
    running.
    """
    from tuiprof.session.live.replay import Live
    from tuiprof.session.run.control import stop_unless_over
    from tuiprof.session.store.output import Tee, recording_problem

    stopped = 0
    look_s, problem = 0.0, ""
    with contextlib.ExitStack() as opened:
        feed = opened.enter_context(contextlib.closing(Live(session)))
        feed.advance()  # its logs are open from now on: how the run ends is known even if the session is deleted
        passed_on = Tee(session, sys.stdout.buffer, sys.stderr.buffer) if tee else None
        if passed_on is not None:
            opened.callback(passed_on.close)
        show = opened.enter_context(_progress(session, quiet or tee))
        while True:
            status = feed.status()  # before the last read: what was written until then is read below
            feed.advance()
            if passed_on is not None:
                passed_on.pump()
            if time.monotonic() >= look_s:
                look_s, problem = time.monotonic() + 1.0, recording_problem(session)
            # Where progress goes may be a terminal that is gone, under nohup, or a file on a full disk.
            with contextlib.suppress(OSError):
                show(feed.fold, problem)
            if (status.over and not feed.behind) or signal.SIGHUP in asked:
                return status
            if len(asked) > stopped and not status.over:
                stopped = len(asked)
                stop_unless_over(session, sig=asked[-1], firm=stopped > 1, known=feed.processes())
                with contextlib.suppress(OSError):
                    say(
                        "stopping the script; press again to kill it"
                        if stopped == 1
                        else "killing the script"
                    )
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _progress(session: Session, quiet: bool) -> Iterator[Callable[[Fold, str], None]]:
    """Yield what shows progress: a bar on a terminal, a line now and then elsewhere, nothing if quiet."""
    if quiet:
        yield lambda fold, problem: None
        return
    if sys.stderr.isatty():
        from rich.progress import SpinnerColumn, TimeElapsedColumn

        from tuiprof.report.sanitize import sanitize

        columns = (SpinnerColumn(), "{task.description}", TimeElapsedColumn(), "{task.fields[told]}")
        with bar(f"recording {sanitize(session.title)}", *columns, told="starting") as (_, update):
            yield lambda fold, problem: update(told=_told(fold, problem))
        return
    say(f"recording {session.title} into {session.path}")
    next_s = time.monotonic() + _PLAIN_EVERY_S

    def line(fold: Fold, problem: str) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            from tuiprof.model.units import format_ns

            next_s += _PLAIN_EVERY_S
            say(f"{format_ns(fold.now_ns)} · {_told(fold, problem)}")

    yield line


_PROGRESS: Final = {
    "armed": "capture to come",
    "started": "capturing",
    "written": "captured",
    "failed": "capture failed",
}


def _told(fold: Fold, problem: str) -> str:
    """Return progress in a few words, or what keeps it from being recorded."""
    from tuiprof.model.units import format_count, format_ns
    from tuiprof.report.sanitize import sanitize

    if problem:
        return sanitize(problem)
    lead = fold.lead
    if lead is None or not len(lead.steps):
        return "no step yet"
    stats = lead.steps.stats(lead.steps.since(10_000_000_000))
    words = [f"step {format_count(lead.steps.last_n)}"]
    if stats.count:
        words.append(f"{format_ns(stats.median_ns)} a step")
    words += [
        _PROGRESS.get(capture.state, capture.state) + (f" ({capture.why})" if capture.why else "")
        for capture in fold.captures.values()
    ]
    return sanitize(" · ".join(words))
