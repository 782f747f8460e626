"""Verbs that compare figures with limits or other runs: check, compare, trend."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from xml.etree import ElementTree

import click

from tuiprof.cli import options
from tuiprof.cli.reading import executor, progress_of, run_analyses, session_reports
from tuiprof.cli.targets import Selection, open_screen, open_with_progress, say, session_or_none, trace_at

if TYPE_CHECKING:
    from tuiprof.comparison.limits import Limit, Result
    from tuiprof.comparison.trend import By
    from tuiprof.model import Report, Unavailable

_MARK = {"passed": "✓", "failed": "✗", "unknown": "?"}
#: Rows of a table on the page that `tuiprof compare` prints without `-v`.
_ROWS: Final = 6


@click.command(
    epilog="Metrics are the facts in `tuiprof report -f json`. Times may be given in us, ms or s: "
    "--max device_empty_ms_per_step=0.5. Against an earlier run: "
    "--baseline last~1 --max step_median_ms=+5%. Exit status: 0 all passed, 1 one failed, 2 one is unknown."
)
@click.argument("target", shell_complete=options.complete_targets)
@click.option("--max", "most", multiple=True, metavar="KEY=VALUE", help="Largest allowed value of a metric.")
@click.option(
    "--min", "least", multiple=True, metavar="KEY=VALUE", help="Smallest allowed value of a metric."
)
@click.option("--baseline", help="Trace or session that relative values such as +5% refer to.")
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(["text", "json", "junit", "github"]),
    default="text",
    show_default=True,
)
@options.trace_options
@click.pass_obj
def check(
    invocation: options.Invocation,
    target: str,
    most: tuple[str, ...],
    least: tuple[str, ...],
    baseline: str | None,
    format_: str,
    rank: int | None,
    run_: str | None,
) -> int:
    """Fail when a metric exceeds its limit."""
    from tuiprof.comparison import limits

    wanted = [*(limits.parse(text, "max") for text in most), *(limits.parse(text, "min") for text in least)]
    if not wanted:
        raise click.UsageError("no limit given: for example --max syncs_per_step=0")
    before = reports_for(invocation, baseline, wanted, Selection(rank)) if baseline else None
    now = reports_for(invocation, target, wanted, Selection(rank, run_))
    results = limits.check(wanted, now, before)
    notes = [*_notes(now), *(f"baseline: {note}" for note in _notes(before or ()))]
    sys.stdout.write(_WRITERS[format_](target, results, notes))
    outcomes = {result.outcome for result in results}
    return 1 if "failed" in outcomes else 2 if "unknown" in outcomes else 0


def reports_for(
    invocation: options.Invocation, target: str, wanted: Sequence[Limit], part: Selection
) -> list[Report | Unavailable]:
    """Run the usual analyses, and all of them where a limit is on a figure of another."""
    from tuiprof.comparison import limits

    session = session_or_none(invocation, target)
    trace = None if session is not None else trace_at(target, part)
    reports: list[Report | Unavailable] = []
    for names in ((), ("all",)):
        if session is not None:
            reports = session_reports(session, names, part)[0]
        elif trace is not None:
            reports = run_analyses(trace, names, None)
        if limits.known(wanted, reports):
            break
    return reports


def _notes(reports: Sequence[Report | Unavailable]) -> list[str]:
    """Return what there is to know of a recording before believing its figures: whether the machine was crowded, …"""
    from tuiprof.model import Report

    session = next((it for it in reports if isinstance(it, Report) and it.analysis == "session"), None)
    return list(session.notes) if session is not None else []


def _text(target: str, results: Sequence[Result], notes: Sequence[str]) -> str:
    from tuiprof.report.sanitize import for_log, sanitize

    lines = [f"{_MARK[result.outcome]} {result.sentence}" for result in results]
    return for_log("".join(f"{sanitize(line)}\n" for line in [*lines, *(f"! {note}" for note in notes)]))


def _json(target: str, results: Sequence[Result], notes: Sequence[str]) -> str:
    document = {"target": target, "results": [asdict(result) for result in results], "notes": list(notes)}
    return json.dumps(document, indent=2) + "\n"


def junit(target: str, results: Sequence[Result], notes: Sequence[str]) -> str:
    """JUnit XML as CI servers read it: one test case a limit."""
    from tuiprof.report.sanitize import sanitize

    failed = sum(result.outcome == "failed" for result in results)
    unknown = sum(result.outcome == "unknown" for result in results)
    suite = ElementTree.Element(
        "testsuite", name="tuiprof", tests=str(len(results)), failures=str(failed), errors=str(unknown)
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=sanitize(target), name=sanitize(result.limit.key)
        )
        if result.outcome != "passed":
            kind = "failure" if result.outcome == "failed" else "error"
            ElementTree.SubElement(case, kind, message=sanitize(result.sentence))
    if notes:
        ElementTree.SubElement(suite, "system-out").text = "\n".join(map(sanitize, notes))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _github(target: str, results: Sequence[Result], notes: Sequence[str]) -> str:
    """Workflow commands; ``%`` is escaped as GitHub's runner decodes it, and line breaks are none any more."""
    from tuiprof.report.sanitize import sanitize

    def escaped(text: str) -> str:
        return sanitize(text).replace("%", "%25")

    levels = {"passed": "notice", "failed": "error", "unknown": "warning"}
    said = [(levels[result.outcome], result.sentence) for result in results]
    said += [("warning", note) for note in notes]
    return "".join(f"::{level} title=tuiprof check::{escaped(f'{target}: {text}')}\n" for level, text in said)


_WRITERS = {"text": _text, "json": _json, "junit": junit, "github": _github}


@click.command(
    short_help="Show what changed between two runs, and how certain it is.",
    epilog="BEFORE and AFTER are trace files, directories, URLs, sessions (name, path, `last`, `last~1` the one "
    "before) or rungs of a measured ladder (LADDER:VARIANT, else the newest session of that scenario). "
    "After a change: tuiprof compare last~1 last",
)
@click.argument("before", shell_complete=options.complete_targets)
@click.argument("after", shell_complete=options.complete_targets)
@options.format_option()
@click.option(
    "--verbose", "-v", is_flag=True, help="Also operators and launches, and longer tables (text, md)."
)
@click.option("--rules", is_flag=True, help="Also explain what counts as a change (text, md).")
@click.option("--tui", is_flag=True, help="Show both side by side on a screen.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of distributed runs (default: the lowest).")
@click.pass_obj
def compare(
    invocation: options.Invocation,
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
        from tuiprof.tui import Start

        return open_screen(Start("compare", compared=(before, after), sessions=invocation.sessions))

    from tuiprof.analyses.shared.changes import STEP_PAIR
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
@click.argument("targets", nargs=-1, shell_complete=options.complete_targets)
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
@options.format_option("junit")
@click.option("--rules", is_flag=True, help="Also explain how changes and limits are found.")
@options.chart_option
@options.fleet_options
@click.pass_obj
def trend(
    invocation: options.Invocation,
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

    TARGETS are sessions, folders of sessions, or folders of traces (default: the folder of recorded sessions). Of a
    folder, the sessions of one script count, that of the newest. Change points need ruptures: pip install
    'tuiprof[trend]'.
    """
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
