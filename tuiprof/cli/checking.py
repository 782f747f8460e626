"""The verb for CI: check."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click

from tuiprof.cli import completing
from tuiprof.cli.common import Invocation, trace_options

if TYPE_CHECKING:
    from tuiprof.comparison.limits import Limit, Result
    from tuiprof.model import Report, Unavailable

_MARK = {"passed": "✓", "failed": "✗", "unknown": "?"}


@click.command(
    epilog="Metrics are the facts in `tuiprof report -f json`. Times may be given in us, ms or s: "
    "--max device_empty_ms_per_step=0.5. Against an earlier run: "
    "--baseline last~1 --max step_median_ms=+5%. Exit status: 0 all passed, 1 one failed, 2 one is unknown."
)
@click.argument("target", shell_complete=completing.targets)
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
@trace_options
@click.pass_obj
def check(
    invocation: Invocation,
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
    before = reports_for(invocation, baseline, wanted, rank, None) if baseline else None
    now = reports_for(invocation, target, wanted, rank, run_)
    results = limits.check(wanted, now, before)
    notes = [*_notes(now), *(f"baseline: {note}" for note in _notes(before or ()))]
    sys.stdout.write(_WRITERS[format_](target, results, notes))
    outcomes = {result.outcome for result in results}
    return 1 if "failed" in outcomes else 2 if "unknown" in outcomes else 0


def reports_for(
    invocation: Invocation, target: str, wanted: Sequence[Limit], rank: int | None, run: str | None
) -> list[Report | Unavailable]:
    """Run the usual analyses, and all of them where a limit is on a figure of another."""
    from tuiprof.cli.common import open_rank, session_or_none, traces_at
    from tuiprof.cli.reading import run_analyses, session_reports
    from tuiprof.comparison import limits

    session = session_or_none(invocation, target)
    trace = None if session is not None else open_rank(traces_at(target, run, rank), rank)
    reports: list[Report | Unavailable] = []
    for names in ((), ("all",)):
        if session is not None:
            reports = session_reports(session, names, None, rank, run)[0]
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
