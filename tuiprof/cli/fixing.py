"""The verb that tries what advice says: fix."""

from __future__ import annotations

import sys

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tuiprof.advice.shared.pricing import Priced


@click.command(
    short_help="Try what can be changed without an edit.",
    epilog="No file is changed. For example: tuiprof fix last --try fp32-matmul --trials 5",
)
@click.argument("target", shell_complete=completing.targets)
@click.option(
    "--try", "tried", metavar="RULE", help="Run the session's command with and without it, in turns."
)
@click.option(
    "--trials", type=click.IntRange(min=2), default=3, show_default=True, help="Runs with it, and without it."
)
@click.pass_obj
def fix(invocation: Invocation, target: str, tried: str | None, trials: int) -> int:
    """List what of the advice on a SESSION can be changed without an edit of the script, or try one of it.

    \b
    By environment variables: blocking launches, JAX's precision, the allocator, threads on a CPU.
    By the probe, in the trials alone: TF32 (set_float32_matmul_precision), nan_strategy of
    torchmetrics, DataLoader(num_workers, pin_memory), fused optimizers.
    """
    from tuiprof.advice import priorities
    from tuiprof.cli.common import session_or_none, traces_at
    from tuiprof.errors import UsageProblem
    from tuiprof.ladder.fixing import VARIABLE, attempt
    from tuiprof.model.units import format_ns, format_share
    from tuiprof.report.sanitize import sanitize

    session = session_or_none(invocation, target)
    if session is None:
        raise UsageProblem(f"{target} is no session", "a trace alone does not say what command to run")
    trace = traces_at(session.path / "traces", None, None, None).open(None)
    able: dict[str, tuple[Priced, dict[str, str]]] = {}
    for item in priorities(trace).findings:
        switch = {VARIABLE: item.finding.switch} if item.finding.switch else {}
        if item.finding.environment or switch:
            able.setdefault(item.rule, (item, {**item.finding.environment, **switch}))
    if tried is None:
        if not able:
            sys.stdout.write(
                "nothing that can be changed without an edit of the script: see tuiprof report advice\n"
            )
        for rule, (item, environment) in able.items():
            variables = " ".join(f"{name}={value}" for name, value in environment.items())
            if item.finding.switch:
                variables += f" (in the trials alone; in the script: {item.finding.instead})"
            wins = f": about {format_ns(item.win.ns)} a step to win" if item.win is not None else ""
            sys.stdout.write(f"{rule}{wins}\n  {variables}\n  tuiprof fix {target} --try {rule}\n")
        return 0
    if tried not in able:
        known = f"there are {', '.join(able)}" if able else "there are none"
        raise UsageProblem(f"no finding {tried!r} that can be changed without an edit of the script", known)
    item, environment = able[tried]
    result = attempt(
        session,
        environment,
        trials,
        on_trial=lambda trial: say(
            f"{trial.session.id}: {'with' if trial.changed else 'without'} it {format_ns(trial.step_ns)} a step"
        ),
        root=invocation.sessions,
    )
    with_it = [trial for trial in result.trials if trial.changed]
    if item.finding.switch and not all(trial.switched for trial in with_it):
        sys.stdout.write(
            f"{tried}: nothing was switched: the script makes nothing that {item.finding.switch} applies to, or says "
            "otherwise itself\n"
        )
        return 1
    measured = "undecided"
    if result.ratio is not None:
        measured = (
            f"{result.word}: a step takes {format_share(result.ratio.value)} of what it did "
            f"(95 %: {format_share(result.ratio.low)} to {format_share(result.ratio.high)}, {trials} runs each)"
        )
    if item.win is not None:
        measured += f"; predicted {format_ns(item.win.ns)} a step less"
    sys.stdout.write(f"{tried}: {measured}\n")
    for switched in dict.fromkeys(name for trial in with_it for name in trial.switched):
        sys.stdout.write(f"  switched: {sanitize(switched)}\n")
    for name, (before, after) in result.differing.items():
        sys.stdout.write(f"  {name} is another: {before:.6g} without it, {after:.6g} with it\n")
    if not result.differing:
        logged = bool(result.trials[0].numbers)
        sys.stdout.write(
            "  what the script logs is the same with it\n"
            if logged
            else "  numbers not compared: the script logs none (tuiprof.step(loss=…))\n"
        )
    return 1 if result.differing else 0
