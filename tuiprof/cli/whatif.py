"""The verbs that say what a change wins, and try it: whatif, fix."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.common import (
    Invocation,
    Positive,
    convert_option,
    format_option,
    say,
    session_or_none,
    trace_options,
    traces_at,
)

if TYPE_CHECKING:
    from tuiprof.advice import Priced


@click.command(
    short_help="Predict how long a step would take after a change.",
    epilog="Without options, every finding is answered. For example: tuiprof whatif last --without "
    "item-each-step --scale gemm=0.5",
)
@click.argument("target", shell_complete=completing.targets)
@click.option(
    "--without",
    multiple=True,
    metavar="RULE[@N]",
    help="With this finding fixed (@N: the N-th of the rule; repeatable).",
)
@click.option("--loader-workers", type=click.IntRange(min=0), metavar="N", help="With N DataLoader workers.")
@click.option(
    "--scale",
    multiple=True,
    metavar="KERNEL=F",
    help="With kernels whose name contains KERNEL taking F times as long.",
)
@click.option(
    "--host", type=Positive(), metavar="F", help="With host time outside waits taking F times as long."
)
@format_option()
@trace_options
@convert_option
@click.pass_obj
def whatif(
    invocation: Invocation,
    target: str,
    without: tuple[str, ...],
    loader_workers: int | None,
    scale: tuple[str, ...],
    host: float | None,
    format_: str,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
) -> int:
    """Predict how long a step of a trace FILE, a DIRECTORY of traces, a URL or a SESSION would take after a change."""
    from tuiprof.advice.question import answer, changes
    from tuiprof.analyses.shared.replay import trust
    from tuiprof.report import render, stdout_style

    session = session_or_none(invocation, target)
    trace = traces_at(target if session is None else session.path / "traces", run_, rank, convert).open(rank)
    asked = changes(trace, without=without, loader_workers=loader_workers, scale=scale, host=host)
    sys.stdout.write(render(answer(trace, asked), format_, trust=trust(trace).text, style=stdout_style()))
    return 0


@click.command(
    short_help="Try fixes that need no edit of the script.",
    epilog="No file is changed. For example: tuiprof fix last --try fp32-matmul --trials 5",
)
@click.argument("target", shell_complete=completing.targets)
@click.option(
    "--try", "tried", metavar="RULE", help="Run the session's command with and without this fix, alternating."
)
@click.option(
    "--trials",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Number of runs with the fix, and without.",
)
@click.pass_obj
def fix(invocation: Invocation, target: str, tried: str | None, trials: int) -> int:
    """List the advice on a SESSION that can be tried without editing the script, or try one item.

    \b
    By environment variables: blocking launches, JAX's precision, the allocator, threads on a CPU.
    By the probe, in the trials alone: TF32 (set_float32_matmul_precision), nan_strategy of
    torchmetrics, DataLoader(num_workers, pin_memory), fused optimizers.
    """
    from tuiprof.advice import priorities
    from tuiprof.cli.common import session_or_none, traces_at
    from tuiprof.errors import UsageProblem
    from tuiprof.ladder.fixing import VARIABLE, attempt
    from tuiprof.model.characters import shell_word
    from tuiprof.model.units import format_ns, format_share
    from tuiprof.report.sanitize import sanitize

    session = session_or_none(invocation, target)
    if session is None:
        raise UsageProblem(f"{target} is not a session", "a trace does not record the command to run")
    trace = traces_at(session.path / "traces", None, None, None).open(None)
    able: dict[str, tuple[Priced, dict[str, str]]] = {}
    for item in priorities(trace).findings:
        switch = {VARIABLE: item.finding.switch} if item.finding.switch else {}
        if item.finding.environment or switch:
            able.setdefault(item.rule, (item, {**item.finding.environment, **switch}))
    if tried is None:
        if not able:
            sys.stdout.write("no advice can be tried without editing the script: see tuiprof report advice\n")
        for rule, (item, environment) in able.items():
            variables = " ".join(f"{name}={value}" for name, value in environment.items())
            if item.finding.switch:
                variables += f" (only in the trials; in the script: {item.finding.instead})"
            saves = f": saves about {format_ns(item.win.ns)} a step" if item.win is not None else ""
            sys.stdout.write(
                f"{rule}{saves}\n  {variables}\n  tuiprof fix {shell_word(target)} --try {rule}\n"
            )
        return 0
    if tried not in able:
        known = f"there are {', '.join(able)}" if able else "there are none"
        raise UsageProblem(f"no finding {tried!r} that can be tried without editing the script", known)
    item, environment = able[tried]
    result = attempt(
        session,
        environment,
        trials,
        on_trial=lambda trial: say(
            f"{trial.session.id}: {'with' if trial.changed else 'without'} the fix {format_ns(trial.step_ns)} a step"
        ),
        root=invocation.sessions,
    )
    with_it = [trial for trial in result.trials if trial.changed]
    if item.finding.switch and not all(trial.switched for trial in with_it):
        sys.stdout.write(
            f"{tried}: not applied: the script creates nothing that {item.finding.switch} applies to, or sets it "
            "itself\n"
        )
        return 1
    measured = "undecided"
    if result.ratio is not None:
        measured = (
            f"{result.word}: a step takes {format_share(result.ratio.value)} of the time without it (95 % interval: "
            f"{format_share(result.ratio.low)} to {format_share(result.ratio.high)}, {trials} runs each)"
        )
    if item.win is not None:
        measured += f"; predicted: {format_ns(item.win.ns)} less per step"
    sys.stdout.write(f"{tried}: {measured}\n")
    for switched in dict.fromkeys(name for trial in with_it for name in trial.switched):
        sys.stdout.write(f"  applied: {sanitize(switched)}\n")
    for name, (before, after) in result.differing.items():
        sys.stdout.write(f"  {name} differs: {before:.6g} without the fix, {after:.6g} with it\n")
    if not result.differing:
        logged = bool(result.trials[0].numbers)
        sys.stdout.write(
            "  the logged metrics are the same with the fix\n"
            if logged
            else "  metrics not compared: the script logs none (tuiprof.step(loss=…))\n"
        )
    return 1 if result.differing else 0
