"""Verbs that run a script or look at one that runs: run, record, attach, replay."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, launch_options, open_screen, say
from tuiprof.cli.triggers import trigger_options, triggers

if TYPE_CHECKING:
    from tuiprof.session.run.launch import LaunchSpec
    from tuiprof.session.store.folders import Session

_EXAMPLES = "A scenario: metrics:naive. A script of yours: -- python train.py --lr 1e-3."


@click.command(epilog=_EXAMPLES)
@click.argument(
    "target", required=False, metavar="SCENARIO[:VARIANT] | -- COMMAND", shell_complete=completing.scenarios
)
@launch_options
@trigger_options
@click.option("--inline", is_flag=True, help="Show a few lines below the prompt instead of a full screen.")
@click.pass_obj
def run(invocation: Invocation, /, target: str | None, inline: bool, **options: Any) -> int:
    """Launch a scenario or script and watch it live.

    Quitting the screen (or Ctrl+C with `--inline`) leaves the script running; return with `tuiprof attach`.
    """
    from tuiprof.session.run.launch import start
    from tuiprof.tui.start import Start

    spec = launch_spec(invocation, target, **options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("run draws a live screen and needs a terminal; without one: tuiprof record …")
    session = start(spec)
    if inline and (outcome := _watch_inline(session)) is not None:
        return outcome
    return open_screen(Start.live(session.path, launched=True))


def _watch_inline(session: Session) -> int | None:
    """Watch a run in a few lines; return the exit status, None where the whole screen is wanted."""
    from tuiprof.tui.app.inline import farewell, watch

    outcome = watch(session)
    if outcome == "dashboard":
        return None
    if outcome == "left":
        say(farewell(session))
        return 0
    from dataclasses import replace

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
@click.argument(
    "target", required=False, metavar="SCENARIO[:VARIANT] | -- COMMAND", shell_complete=completing.scenarios
)
@launch_options
@trigger_options
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
    from dataclasses import replace

    from tuiprof.cli.answering import page
    from tuiprof.cli.foreground import follow, signals_kept
    from tuiprof.cli.reading import session_reports
    from tuiprof.errors import TuiprofError
    from tuiprof.report import render_all, stdout_style
    from tuiprof.report.sanitize import sanitize_lines
    from tuiprof.session.run.launch import start

    spec = replace(launch_spec(invocation, target, **options), stdin=True)
    with signals_kept() as asked:
        session = start(spec)
        status = follow(session, asked, tee=tee, quiet=quiet)
    if not status.over:  # the terminal went away; the run goes on
        return 0
    code = status.code if status.code is not None else 1
    try:
        session.reload()  # the recorder has recorded the devices since
        reports, trust = session_reports(session, ()) if as_json else ([], "")
        text = (
            render_all(reports, "json", trust=trust) if as_json else page(session, "", "text", stdout_style())
        )
    except TuiprofError as error:  # the exit status stays the script's
        click.echo(f"tuiprof: the report failed: {sanitize_lines(str(error))}", err=True)
        return code
    if tee:
        sys.stdout.flush()
    sys.stdout.write(text)
    if not quiet:
        say(f"\nsee it:  tuiprof open {session.id}")
    return code


@click.command()
@click.argument("session", default="last", shell_complete=completing.sessions)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01, max=10_000),
    default=1.0,
    show_default=True,
    help="Playback speed, in session seconds per second.",
)
@click.pass_obj
def replay(invocation: Invocation, session: str, speed: float) -> int:
    """Replay a recorded SESSION on the live screen."""
    from tuiprof.tui.start import Start

    return open_screen(Start.replay(_find(invocation, session).path, speed=speed))


def _find(invocation: Invocation, text: str) -> Session:
    from tuiprof.session.store.folders import find_session, sessions_root

    return find_session(sessions_root(invocation.sessions), text)


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
    stack: bool,
    shapes: bool,
    memory: bool,
    no_source: bool = False,
    watch_nan: bool = False,
    capture_slower: str | None = None,
    capture_every: int | None = None,
    capture_budget: str | None = None,
    step_at: str | None = None,
    step_function: str | None = None,
) -> LaunchSpec:
    """Turn what was typed, as the options of ``run`` and ``record`` take it, into what to launch.

    Raises:
        UsageError: The options for captures contradict each other or cannot be read.
        UsageProblem: There is no such scenario or variant, or ``--capture`` cannot be read.
    """
    from dataclasses import replace

    from tuiprof.session.run.launch import DEFAULT_CAPTURE, LaunchSpec, parse_capture, step_environment

    if no_capture:
        if capture or stack or shapes or memory or capture_slower or capture_every:
            raise click.UsageError(
                "--no-capture cannot be used with --capture…, --stack, --shapes or --memory"
            )
        request = None
    else:
        text = capture or f"{DEFAULT_CAPTURE.steps}"
        request = parse_capture(text, stack=stack, shapes=shapes, memory=memory)
    armed = triggers(
        capture_slower,
        capture_every,
        capture_budget,
        steps=(request or DEFAULT_CAPTURE).steps,
        stack=stack,
        shapes=shapes,
        memory=memory,
    )
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
    from dataclasses import replace

    from tuiprof.ladder import scenarios
    from tuiprof.session.run.launch import in_time
    from tuiprof.session.store.meta import Scenario

    variant = scenarios.find(target, invocation.scenarios)
    argv = scenarios.command(variant, preset=preset, steps=steps)
    if spec.capture is not None and may_be_earlier:
        spec = replace(spec, capture=in_time(spec.capture, scenarios.least_steps(variant, preset, steps)))
    return replace(spec, argv=(*argv, *extra), scenario=Scenario(variant.ladder, variant.name, preset))
