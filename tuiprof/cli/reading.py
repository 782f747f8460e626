"""Verbs that read what was recorded: open, report, list."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuiprof.cli import completing
from tuiprof.cli.answering import black_box_reports, page, write_page_of_trace
from tuiprof.cli.common import (
    Invocation,
    chart_option,
    convert_option,
    format_option,
    ladder_or_none,
    open_rank,
    open_screen,
    say,
    session_or_none,
    step_window,
    trace_options,
    traces_at,
)
from tuiprof.cli.fleet import fleet_options, gathered, is_job, is_view, report_fleet, split_targets

if TYPE_CHECKING:
    from tuiprof.model import Report, Trace, Unavailable
    from tuiprof.report import Style
    from tuiprof.session.store.folders import Session

#: What `tuiprof report` shows when no analysis is named; the rest is a name away.
DEFAULT_ANALYSES = ("sync_events", "kernel_launches", "device_idle", "steps", "kernels", "advice")


@click.command("open", short_help="Open a trace, a directory, a URL, a session or a ladder.")
@click.argument("target", shell_complete=completing.targets)
@trace_options
@convert_option
@click.option("--against", metavar="OTHER", help="Compare with this earlier trace or session.")
@click.option(
    "--ranks", is_flag=True, help="Show all ranks of a DIRECTORY: which come late, and in which steps."
)
@click.pass_obj
def open_(
    invocation: Invocation,
    target: str,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
    against: str | None,
    ranks: bool,
) -> int:
    """Open a trace FILE, a DIRECTORY of traces, a URL, a SESSION or a measured LADDER."""
    from tuiprof.tui.start import Start

    if against is not None:
        return open_screen(Start.compare(against, target, sessions=invocation.sessions))
    ladder = ladder_or_none(invocation, target)
    if ladder is not None:
        return open_screen(Start.ladder(ladder, sessions=invocation.sessions, scenarios=invocation.scenarios))
    session = session_or_none(invocation, target)
    if ranks:
        return open_screen(Start.fleet(_folder_of_ranks(session, target, run_)))
    if session is not None and rank is None and run_ is None:
        return open_screen(Start.live(session.path))
    from tuiprof.blackbox.dumps import is_pickle
    from tuiprof.errors import UsageProblem
    from tuiprof.formats import sniff
    from tuiprof.formats.neuron.captures import refuse
    from tuiprof.model.characters import shell_word

    if session is None and Path(target).is_file() and is_pickle(Path(target)):
        raise UsageProblem(
            f"{target} is a pickle, which the screens cannot show",
            f"if it is a snapshot of PyTorch's allocator: tuiprof report {shell_word(target)}",
        )
    place = session.with_traces(rank).path / "traces" if session is not None else Path(target)
    found = traces_at(place if session is not None else target, run_, rank, convert)
    path = found.file(rank).path
    # What is no trace is said here, before the screen changes.
    sniff(path)
    refuse(path)
    return open_screen(Start.trace(path, directory=place if place in path.parents else None))


def _folder_of_ranks(session: Session | None, target: str, run: str | None) -> Path:
    """Return the folder in which the ranks of a job lie.

    Raises:
        TraceError: It contains no trace.
        UsageProblem: It holds one rank.
    """
    from tuiprof.errors import UsageProblem
    from tuiprof.model.characters import shell_word

    if session is not None and session.others:
        raise UsageProblem(
            f"the captures of {session.id} are in one folder per host, which the map cannot open together",
            f"tuiprof report {shell_word(session.id)} stragglers heat -f html > job.html",
        )
    place = session.path / "traces" if session is not None else Path(target)
    found = traces_at(place if session is not None else target, run, several=True)
    if len(found) < 2:
        raise UsageProblem(
            f"{target} contains the trace of a single rank", f"tuiprof open {shell_word(target)}"
        )
    folders = {file.path.parent for file in found.files}
    return folders.pop() if len(folders) == 1 else place


@click.command(short_help="Print a report on a trace, a directory of traces or a session.")
@click.argument("target", shell_complete=completing.targets)
@click.argument("analyses", nargs=-1, shell_complete=completing.analyses)
@format_option()
@click.option("--step", type=int, help="Analyse only this step.")
@click.option("--verbose", "-v", is_flag=True, help="Every analysis with its tables (text, md).")
@click.option(
    "--rules", is_flag=True, help="Also print how each figure is defined, and its thresholds (text, md)."
)
@click.option(
    "--brief", is_flag=True, help="With -f json: a short summary, as printed by `tuiprof why --json`."
)
@chart_option
@trace_options
@convert_option
@fleet_options
@click.pass_obj
def report(
    invocation: Invocation,
    target: str,
    analyses: tuple[str, ...],
    format_: str,
    step: int | None,
    verbose: bool,
    rules: bool,
    brief: bool,
    no_chart: bool,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
    on: str | None,
    dask_workers: int | None,
) -> int:
    """Print a report on a trace FILE, a DIRECTORY of traces, a URL or a SESSION.

    One page by default: what to change first, what that saves, and one line per analysis; `-v` adds the tables.
    ANALYSES selects analyses to print in full, for example `sync_events kernel_launches`; `all` prints every one.

    For a DIRECTORY with the ranks of a job (or several targets): which ranks and hosts the others wait for, in
    which steps and collectives, how those ranks differ, and what a change saves the job; `--rank N` prints a single
    rank instead. `stragglers job hosts slow_steps slow_kernels differences heat files` select parts of that; `heat
    -f csv` is a table of ranks and steps. Results are kept, so an interrupted report resumes where it stopped.

    `--format html` writes a self-contained page: tuiprof report last -f html > report.html

    FILE may also be a memory snapshot of PyTorch's allocator (`torch.cuda.memory._dump_snapshot`).
    """
    from dataclasses import replace

    from tuiprof.analyses.shared.replay import trust
    from tuiprof.model.characters import shell_word
    from tuiprof.report import render_all, stdout_style

    targets, analyses = split_targets(target, analyses)
    views = tuple(name for name in analyses if is_view(name))
    session = session_or_none(invocation, target)
    whole = session is None and not analyses and rank is None and step is None and not brief
    if on or dask_workers or views or len(targets) > 1 or (whole and is_job(target, run_)):
        _only_of_one_trace(rank, step, brief, tuple(name for name in analyses if name not in views))
        job = gathered(invocation, targets, run_, on, dask_workers)
        title = session.title if session is not None else " ".join(Path(one).name or one for one in targets)
        return report_fleet(job, views, format_, title, verbose, rules, not no_chart)
    style = replace(stdout_style(), rules=rules)
    style = replace(style, charts=style.charts and not no_chart)
    if session is None and (snapshot := _snapshot_of(target)) is not None:
        sys.stdout.write(render_all([snapshot], format_, style=style))
        return 0
    if not analyses and session is None and format_ == "text" and not (verbose or brief):
        write_page_of_trace(target, style, rank, run_, step, convert)
        return 0
    if not analyses and ((format_ in ("text", "md") and not verbose) or brief):
        sys.stdout.write(
            page(session, target, "json" if brief else format_, style, rank, run_, step, convert)
        )
        return 0
    trace: Trace | None = None
    if session is not None:
        reports, said = session_reports(session, analyses, step, rank, run_)
        title = f"{session.title} · {session.id}"
        if format_ == "html" and session.all_traces():
            trace = open_rank(traces_at(session.with_traces(rank).path / "traces", run_, rank), rank)
    else:
        found = traces_at(target, run_, rank, convert)
        if len(found) > 1 and "ranks" not in analyses and sys.stderr.isatty():
            say(f"tuiprof: how the ranks differ: tuiprof report {shell_word(target)} ranks")
        trace = open_rank(found, rank)
        title = trace.info.path.name if trace.info.path is not None else target
        reports, said = run_analyses(trace, analyses, step), trust(trace).text
    style = replace(style, title=title)
    if format_ == "html" and not analyses and trace is not None:
        sys.stdout.write(_html_page(trace, step, reports, said, style))
        return 0
    sys.stdout.write(render_all(reports, format_, trust=said, style=style))
    return 0


def _only_of_one_trace(rank: int | None, step: int | None, brief: bool, analyses: tuple[str, ...]) -> None:
    """Refuse what a report of many ranks has no use for.

    Raises:
        UsageProblem: One of them was given.
    """
    from tuiprof.errors import UsageProblem
    from tuiprof.fleet.views import NAMES

    if analyses:
        raise UsageProblem(
            f"{analyses[0]} is not a view of many ranks",
            f"there are {', '.join(NAMES)}; for one rank: tuiprof report FILE {analyses[0]}",
        )
    for option, given in (("--rank", rank is not None), ("--step", step is not None), ("--brief", brief)):
        if given:
            raise UsageProblem(
                f"{option} is only for the report of a single trace", f"omit {option}, or give a single FILE"
            )


def _snapshot_of(target: str) -> Report | None:
    """Return the report of an allocator's snapshot; None = the target is something else."""
    from tuiprof.blackbox.dumps import is_pickle, snapshot_report

    path = Path(target)
    return snapshot_report(path) if path.is_file() and is_pickle(path) else None


def _html_page(
    trace: Trace, step: int | None, reports: list[Report | Unavailable], trust: str, style: Style
) -> str:
    """Return a page that opens with what to change first, and the timeline."""
    from tuiprof.advice.answer import answer, picture
    from tuiprof.report.html import document

    window = step_window(trace, step) if step is not None else None
    return document(reports, trust, style, answer(trace, style.title, window), picture(trace, window))


def session_reports(
    session: Session,
    names: tuple[str, ...],
    step: int | None = None,
    rank: int | None = None,
    run: str | None = None,
) -> tuple[list[Report | Unavailable], str]:
    """Report a session: how it ran, then the default or named analyses of each capture (or ``run``) of one rank.

    The second value is the trust line of the last trace, empty without one.
    """
    from tuiprof.analyses.shared.replay import trust
    from tuiprof.formats import open_set
    from tuiprof.model import Unavailable
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.live.step_source import refusals
    from tuiprof.session.live.summary import summarise

    fold = read_fold(session)
    refused = refusals(fold)
    reports: list[Report | Unavailable] = [summarise(session, fold), *black_box_reports(session, fold)]
    said = ""
    if not session.all_traces():
        reports += [
            Unavailable(
                name, "no trace was captured in this session", "capture one: tuiprof record --capture 5 …"
            )
            for name in names
        ]
        return reports, said
    folder = session.with_traces(rank).path / "traces"
    newest = traces_at(folder, run, rank)
    for capture in (newest.run,) if run is not None else newest.runs:
        found = newest if capture == newest.run else open_set(folder, run=capture)
        trace = open_rank(found, rank)
        said = trust(trace).text
        answers = run_analyses(trace, names, step)
        path = trace.info.path
        why = refused.get(os.path.relpath(path, session.path), "") if path is not None else ""
        if why:  # what it shows is there to be looked at, but nothing is advised because of it
            answers = [
                Unavailable("advice", why, "capture other steps") if answer.analysis == "advice" else answer
                for answer in answers
            ]
        reports.extend(answers)
    return reports, said


def run_analyses(trace: Trace, names: tuple[str, ...], step: int | None) -> list[Report | Unavailable]:
    """Run analyses by name on one trace, or on one step of it; no names = the default ones, ``all`` = every one.

    Raises:
        UsageProblem: An analysis or the step does not exist.
    """
    from tuiprof.analyses import available, run_all
    from tuiprof.model import Unavailable

    if "all" in names:
        names = tuple(available())
    window = step_window(trace, step) if step is not None else None
    answers = run_all(names or DEFAULT_ANALYSES, trace, window)
    # What is unavailable comes last: on a CPU-only trace that is half of them.
    return sorted(answers, key=lambda answer: isinstance(answer, Unavailable))


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_obj
def list_(invocation: Invocation, as_json: bool) -> int:
    """List recorded sessions, newest first."""
    from tuiprof.session.live.summary import listing
    from tuiprof.session.store.folders import list_sessions, sessions_root

    root = sessions_root(invocation.sessions)
    summaries = list_sessions(root)
    if as_json:
        import msgspec

        for summary in summaries:  # ASCII alone, as the reports in JSON
            fields = msgspec.to_builtins(summary)
            fields["parts"] = [part.id for part in summary.parts]
            del fields["part"]
            sys.stdout.write(json.dumps(fields, separators=(",", ":")) + "\n")
        return 0
    from tuiprof.ladder.state import list_ladders

    ladders = list_ladders(root)
    if not summaries and not ladders:
        say(f"no sessions in {root}; record one: tuiprof record metrics:naive")
        return 0
    from dataclasses import replace

    from tuiprof.report import render_all, stdout_style

    reports = [listing(root, summaries)] if summaries else []
    if ladders:
        from tuiprof.ladder import report as ladder_report

        reports.append(ladder_report.listing(ladders, root))
    sys.stdout.write(render_all(reports, style=replace(stdout_style(), rows=None)))
    return 0
