"""The verbs that compare runs, two or many: compare, trend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from tuiprof.cli import completing
from tuiprof.cli.checking import junit
from tuiprof.cli.common import Invocation, chart_option, format_option, open_screen, say, session_or_none
from tuiprof.cli.fleet import executor, fleet_options, progress_of

if TYPE_CHECKING:
    from tuiprof.comparison.trend import By

#: Rows of a table on the page that `tuiprof compare` prints without `-v`.
_ROWS: Final = 6


@click.command(
    short_help="Show what changed between two runs, and how certain it is.",
    epilog="BEFORE and AFTER are trace files, directories, URLs, sessions (name, path, `last`, `last~1` the one "
    "before) or rungs of a measured ladder (LADDER:VARIANT, else the newest session of that scenario). "
    "After a change: tuiprof compare last~1 last",
)
@click.argument("before", shell_complete=completing.targets)
@click.argument("after", shell_complete=completing.targets)
@format_option()
@click.option(
    "--verbose", "-v", is_flag=True, help="Also operators and launches, and longer tables (text, md)."
)
@click.option("--rules", is_flag=True, help="Also explain what counts as a change (text, md).")
@click.option("--tui", is_flag=True, help="Show both side by side on a screen.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of distributed runs (default: the lowest).")
@click.pass_obj
def compare(
    invocation: Invocation,
    before: str,
    after: str,
    format_: str,
    verbose: bool,
    rules: bool,
    tui: bool,
    rank: int | None,
) -> int:
    """Show what changed from BEFORE to AFTER: step time, kernels, launches, syncs.

    One page by default; `-v` has all tables.
    """
    if tui:
        from tuiprof.tui.start import Start

        return open_screen(Start.compare(before, after, sessions=invocation.sessions))
    from dataclasses import replace

    from tuiprof.analyses.shared.changes import STEP_PAIR
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
    style = replace(stdout_style(), details=True)
    if format_ in ("text", "md"):  # a column of step times adds nothing to the chart
        left_out = {STEP_PAIR} if verbose else {STEP_PAIR, "operators", "launches"}
        tables = tuple(table for table in tables if table.key not in left_out)
        style = replace(style, rules=rules, rows=style.rows if verbose else _ROWS)
    sys.stdout.write(render(replace(report, tables=tables), format_, style=style))
    if format_ == "text" and not verbose:
        sys.stdout.write("\nall tables: -v   what counts as a change: --rules\n")
    return 0


@click.command(
    short_help="Show step time, syncs and memory across runs.",
    epilog="Exit status with --check: 0 within limits, 1 outside, 2 too few runs.",
)
@click.argument("targets", nargs=-1, shell_complete=completing.targets)
@click.option(
    "--by",
    type=click.Choice(["run", "commit", "day"]),
    default="run",
    show_default=True,
    help="One point per run, or the median per commit or day.",
)
@click.option(
    "--check", is_flag=True, help="Fail if the newest run is outside the range of the runs before it."
)
@format_option("junit")
@click.option("--rules", is_flag=True, help="Also explain how changes and limits are found.")
@chart_option
@fleet_options
@click.pass_obj
def trend(
    invocation: Invocation,
    targets: tuple[str, ...],
    by: str,
    check: bool,
    format_: str,
    rules: bool,
    no_chart: bool,
    on: str | None,
    dask_workers: int | None,
) -> int:
    """Show step time, syncs, launches and memory across runs, and where they changed.

    TARGETS are sessions, folders of sessions, or folders of traces (default: all recorded sessions). Change points
    need ruptures: pip install 'tuiprof[trend]'.
    """
    from contextlib import ExitStack
    from dataclasses import replace

    from tuiprof.comparison.trend import FIGURES, course, grouped, history, report
    from tuiprof.report import render_all, stdout_style
    from tuiprof.session.store.folders import sessions_root

    paths = [
        session.path if (session := session_or_none(invocation, target)) is not None else Path(target)
        for target in targets
    ] or [sessions_root(invocation.sessions)]
    with ExitStack() as opened:
        points, problems = history(
            paths,
            lambda files: opened.enter_context(executor(on, dask_workers, files)),
            opened.enter_context(progress_of("reading captures")),
        )
    for problem in problems:
        say(f"tuiprof: left out: {problem}")
    unit = cast("By", by)
    members = grouped(points, unit)
    results = [found.result for key in FIGURES if (found := course(members, key)) is not None]
    if format_ == "junit":
        sys.stdout.write(junit("tuiprof trend", results, problems))
    else:
        style = replace(stdout_style(), rules=rules, rows=None if format_ == "md" else 12)
        style = replace(style, charts=style.charts and not no_chart, title="Trend")
        sys.stdout.write(render_all(report(points, unit), format_, style=style))
    outcomes = {result.outcome for result in results}
    if not check:
        return 0
    return 1 if "failed" in outcomes else 0 if "passed" in outcomes else 2
