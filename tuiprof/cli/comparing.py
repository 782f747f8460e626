"""The verb that compares two runs: compare."""

from __future__ import annotations

import sys

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, open_screen


@click.command(
    short_help="Say what changed between two runs, and how sure that is.",
    epilog="BEFORE and AFTER are trace files, directories, URLs, sessions (name, path, `last`, `last~1` the one "
    "before) or rungs of a measured ladder (LADDER:VARIANT, else the newest session of that scenario). "
    "After a change: tuiprof compare last~1 last",
)
@click.argument("before", shell_complete=completing.targets)
@click.argument("after", shell_complete=completing.targets)
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(["text", "json", "csv", "md", "html"]),
    default="text",
    show_default=True,
)
@click.option("--tui", is_flag=True, help="Show them side by side on the screen.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of distributed runs (default: the lowest).")
@click.pass_obj
def compare(
    invocation: Invocation, before: str, after: str, format_: str, tui: bool, rank: int | None
) -> int:
    """Say what changed from BEFORE to AFTER: step time, kernels, launches, syncs."""
    if tui:
        from tuiprof.tui.start import Start

        return open_screen(Start.compare(before, after, sessions=invocation.sessions))
    from dataclasses import replace

    from tuiprof.analyses.compare.step_pair import KEY as STEP_PAIR
    from tuiprof.cli.common import open_with_progress
    from tuiprof.comparison.sides import compare_targets
    from tuiprof.report import render, stdout_style

    report = compare_targets(before, after, root=invocation.sessions, opener=open_with_progress, rank=rank)
    tables = report.tables
    if format_ in (
        "text",
        "md",
        "html",
    ):  # on a CPU neither side has syncs, launches or kernels: a note says so
        tables = tuple(table for table in tables if not table.rows.is_empty())
        # The verdict says it, in the notation of ratios.
        report = replace(
            report, facts=tuple(fact for fact in report.facts if fact.key != "step_change_share")
        )
    if format_ in ("text", "md"):  # a column of step times adds nothing to the chart
        tables = tuple(table for table in tables if table.key != STEP_PAIR)
    report = replace(report, tables=tables)
    sys.stdout.write(render(report, format_, style=replace(stdout_style(), details=True)))
    return 0
