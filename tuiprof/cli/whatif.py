"""The verb that asks the replayed step: whatif."""

from __future__ import annotations

import sys

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, Positive, convert_option, session_or_none, trace_options, traces_at


@click.command(
    short_help="Say what a step would take with a change.",
    epilog="Without an option every finding of the advice is answered. For example: tuiprof whatif last --without "
    "item-each-step --scale gemm=0.5",
)
@click.argument("target", shell_complete=completing.targets)
@click.option(
    "--without",
    multiple=True,
    metavar="RULE[@N]",
    help="Deal with a finding of the advice (its N-th); may be given more than once.",
)
@click.option("--loader-workers", type=click.IntRange(min=0), metavar="N", help="Batches made by N workers.")
@click.option(
    "--scale", multiple=True, metavar="KERNEL=F", help="Kernels with this in their name take F times as long."
)
@click.option(
    "--host", type=Positive(), metavar="F", help="Host time outside of waits takes F times as long."
)
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(["text", "json", "csv", "md", "html"]),
    default="text",
    show_default=True,
)
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
    """Say what a step of a trace FILE, a DIRECTORY of them, a URL or a SESSION would take with a change."""
    from tuiprof.advice.question import answer, changes
    from tuiprof.report import render, stdout_style

    session = session_or_none(invocation, target)
    trace = traces_at(target if session is None else session.path / "traces", run_, rank, convert).open(rank)
    asked = changes(trace, without=without, loader_workers=loader_workers, scale=scale, host=host)
    sys.stdout.write(render(answer(trace, asked), format_, trust=trace.trust.text, style=stdout_style()))
    return 0
