"""Verbs that print what was recorded: report, of one trace, a session or the many ranks of a job, and list."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tuiprof.cli import options
from tuiprof.cli.answering import page, refused, run_reports, write_page_of_trace
from tuiprof.cli.targets import Selection, bar, say, session_or_none, step_window, title_of, traces_at
from tuiprof.errors import TuiprofError, UsageProblem

if TYPE_CHECKING:
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.fleet.gather import Executor, File, Progress
    from tuiprof.model import Report, Trace, Unavailable
    from tuiprof.report import Style
    from tuiprof.session.store.folders import Session

#: Where stderr is no terminal, a line of progress is written so often, s.
_LINE_EVERY_S: Final = 10.0
#: Rows of a table on the page of a job.
_ROWS: Final = 8


@click.command(short_help="Print a report on a trace, a directory of traces or a session.")
@click.argument("target", shell_complete=options.complete_targets)
@click.argument("analyses", nargs=-1, shell_complete=options.complete_analyses)
@options.format_option()
@click.option("--step", type=int, help="Analyse only this step.")
@click.option("--verbose", "-v", is_flag=True, help="Every analysis with its tables (text, md).")
@click.option(
    "--rules", is_flag=True, help="Also print how each figure is defined, and its thresholds (text, md)."
)
@click.option(
    "--brief", is_flag=True, help="With -f json: a short summary, as printed by `tuiprof why --json`."
)
@options.chart_option
@options.trace_options
@options.convert_option
@options.fleet_options
@click.pass_obj
def report(
    invocation: options.Invocation,
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
    from tuiprof.analyses.shared.replay import trust
    from tuiprof.model.characters import shell_word
    from tuiprof.report import render_all, stdout_style

    wanted = Selection(rank, run_, step, convert)
    targets, analyses = split_targets(target, analyses)
    views = tuple(name for name in analyses if is_view(name))
    session = session_or_none(invocation, target)
    whole = session is None and not analyses and rank is None and step is None and not brief
    if on or dask_workers or views or len(targets) > 1 or (whole and is_job(target, run_)):
        _only_of_one_trace(wanted, brief, tuple(name for name in analyses if name not in views))
        job = gathered(invocation, targets, run_, on, dask_workers)
        title = session.title if session is not None else " ".join(Path(one).name or one for one in targets)
        return report_fleet(job, views, format_, title, verbose, rules, not no_chart)
    style = replace(stdout_style(), rules=rules)
    style = replace(style, charts=style.charts and not no_chart)
    if session is None and (snapshot := _snapshot_of(target)) is not None:
        sys.stdout.write(render_all([snapshot], format_, style=style))
        return 0
    if not analyses and session is None and format_ == "text" and not (verbose or brief):
        write_page_of_trace(target, style, wanted)
        return 0
    if not analyses and ((format_ in ("text", "md") and not verbose) or brief):
        sys.stdout.write(page(session, target, "json" if brief else format_, style, wanted))
        return 0
    if session is not None:
        reports, trace = session_reports(session, analyses, wanted)
        title = f"{session.title} · {session.id}"
    else:
        found = traces_at(target, wanted)
        if len(found) > 1 and "ranks" not in analyses and sys.stderr.isatty():
            say(f"tuiprof: how the ranks differ: tuiprof report {shell_word(target)} ranks")
        trace = found.open(rank)
        title = title_of(trace, target)
        reports = run_analyses(trace, analyses, step)
    said = trust(trace).text if trace is not None else ""
    style = replace(style, title=title)
    if format_ == "html" and not analyses and trace is not None:
        sys.stdout.write(_html_page(trace, step, reports, said, style))
        return 0
    sys.stdout.write(render_all(reports, format_, trust=said, style=style))
    return 0


def _only_of_one_trace(wanted: Selection, brief: bool, analyses: tuple[str, ...]) -> None:
    """Refuse what a report of many ranks has no use for; raises UsageProblem if one of them was given."""
    from tuiprof.fleet.views import NAMES

    if analyses:
        raise UsageProblem(
            f"{analyses[0]} is not a view of many ranks",
            f"there are {', '.join(NAMES)}; for one rank: tuiprof report FILE {analyses[0]}",
        )
    for option, given in (("--rank", wanted.rank), ("--step", wanted.step), ("--brief", brief or None)):
        if given is not None:
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

    window = step_window(trace, step)
    return document(reports, trust, style, answer(trace, style.title, window), picture(trace, window))


def session_reports(
    session: Session, names: tuple[str, ...], wanted: Selection
) -> tuple[list[Report | Unavailable], Trace | None]:
    """Report a session: how it ran, then the default or named analyses of each capture (or one run's) of a rank.

    The second value is the last trace, None without one.
    """
    from tuiprof.analyses import find
    from tuiprof.formats import open_set
    from tuiprof.model import Unavailable
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.live.step_source import by_path, refusal

    fold = read_fold(session)
    refusals = by_path(fold, refusal)
    summary, wrong = run_reports(session, fold)
    reports: list[Report | Unavailable] = [summary, *wrong]
    if not session.all_traces():
        for name in names:
            if name != "all":
                find(name)
        reports += [
            Unavailable(
                name, "no trace was captured in this session", "capture one: tuiprof record --capture 5 …"
            )
            for name in names
        ]
        return reports, None
    folder = session.with_traces(wanted.rank).path / "traces"
    newest = traces_at(folder, wanted)
    for capture in (newest.run,) if wanted.run is not None else newest.runs:
        found = newest if capture == newest.run else open_set(folder, run=capture)
        trace = found.open(wanted.rank)
        answers = run_analyses(trace, names, wanted.step)
        path = trace.info.path
        why = refusals.get(os.path.relpath(path, session.path), "") if path is not None else ""
        why, cleared = refused(trace, why)
        summary = replace(summary, notes=tuple(note for note in summary.notes if note != cleared))
        if why:  # what it shows is there to be looked at, but nothing is advised because of it
            answers = [
                Unavailable("advice", why, "capture other steps") if answer.analysis == "advice" else answer
                for answer in answers
            ]
        reports.extend(answers)
    reports[0] = summary
    return reports, trace


def run_analyses(trace: Trace, names: tuple[str, ...], step: int | None) -> list[Report | Unavailable]:
    """Run analyses by name on one trace, or on one step of it; no names = those of the page, ``all`` = every one.

    Raises:
        UsageProblem: An analysis or the step does not exist.
    """
    from tuiprof.advice.answer import ANALYSES
    from tuiprof.analyses import available, run_all
    from tuiprof.model import Unavailable

    if "all" in names:
        names = tuple(available())
    answers = run_all(names or (*ANALYSES, "advice"), trace, step_window(trace, step))
    # What is unavailable comes last: on a CPU-only trace that is half of them.
    return sorted(answers, key=lambda answer: isinstance(answer, Unavailable))


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_obj
def list_(invocation: options.Invocation, as_json: bool) -> int:
    """List recorded sessions, newest first."""
    from tuiprof.session.live.listing import list_sessions
    from tuiprof.session.live.summary import listing
    from tuiprof.session.store.folders import sessions_root

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
    from tuiprof.ladder.state import list_runs

    ladders = list_runs(root)
    if not summaries and not ladders:
        say(f"no sessions in {root}; record one: tuiprof record -- python train.py")
        return 0

    from tuiprof.report import render_all, stdout_style

    reports = [listing(root, summaries)] if summaries else []
    if ladders:
        from tuiprof.ladder import report as ladder_report

        reports.append(ladder_report.listing(ladders, root))
    sys.stdout.write(render_all(reports, style=replace(stdout_style(), rows=None)))
    return 0


def split_targets(target: str, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Part what was typed after the first target into further targets and names of analyses or views."""
    from tuiprof.formats.remote import is_url

    def is_target(word: str) -> bool:
        return is_url(word) or (os.path.exists(word) and ("/" in word or "." in word or os.path.isdir(word)))

    return (target, *filter(is_target, names)), tuple(name for name in names if not is_target(name))


def is_view(name: str) -> bool:
    """Whether a name is that of a view of many ranks."""
    from tuiprof.fleet.views import NAMES

    return name in NAMES


def is_job(target: str, run: str | None) -> bool:
    """Whether a target is a folder that holds two ranks of a run or more; what it is not is said elsewhere."""
    from tuiprof.formats import open_set

    if not os.path.isdir(target):
        return False
    try:
        return len(open_set(target, run=run)) > 1
    except TuiprofError:
        return False


def files_of(invocation: options.Invocation, targets: Sequence[str], run: str | None) -> list[File]:
    """Return the files that targets stand for: all ranks of the newest run of each folder, or of the run named.

    Raises:
        TraceError: A target holds no trace.
        UsageProblem: There is no such run.
    """
    from tuiprof.fleet.gather import File
    from tuiprof.system.files import size_of

    found: list[tuple[Path, int, int]] = []
    for target in targets:
        session = session_or_none(invocation, target)
        for folder in [target] if session is None else _trace_folders(session):
            known = traces_at(folder, Selection(run=run), several=True)
            found += [(file.path, file.rank, file.size_bytes) for file in known.files]
    ranks = [rank for _, rank, _ in found]
    if len(set(ranks)) < len(ranks):
        say("tuiprof: several files have the same rank: they are numbered in the order given")
        found = [(path, number, size) for number, (path, _, size) in enumerate(found)]
    return [
        File(number, str(path.absolute()), rank, size or size_of(path))
        for number, (path, rank, size) in enumerate(found)
    ]


def _trace_folders(session: Session) -> list[Path]:
    """Return where the traces of a session lie: of a run of several hosts, those of each that has some."""
    folders = [part.path / "traces" for part in session.parts if part.traces()]
    return folders or [session.path / "traces"]


def gathered(
    invocation: options.Invocation,
    targets: Sequence[str],
    run: str | None,
    on: str | None,
    dask_workers: int | None,
) -> Fleet:
    """Read all ranks of some targets.

    Raises:
        TuiprofError: There is no trace, or what reads them is lost.
        UsageProblem: ``on`` says nothing that is known.
    """
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.fleet.gather import gather
    from tuiprof.model.units import plural

    files = files_of(invocation, targets, run)
    with (
        executor(on, dask_workers, files) as works,
        progress_of(f"reading {plural(len(files), 'file')} on {works.name}") as progress,
    ):
        return Fleet(gather(files, works, progress))


def report_fleet(
    fleet: Fleet, views: Sequence[str], format_: str, title: str, verbose: bool, rules: bool, charts: bool
) -> int:
    """Print what many ranks say of their job: some views in full, or the page; the status 3 = nothing read."""
    from tuiprof.fleet.views import NAMES, reports
    from tuiprof.model import Unavailable
    from tuiprof.report import render_all, stdout_style

    style = stdout_style()
    style = replace(style, rules=rules, charts=style.charts and charts, title=title, details=verbose)
    named = tuple(views) or NAMES
    if not views and not verbose and format_ in ("text", "md"):
        style = replace(style, rows=_ROWS)
        named = tuple(name for name in NAMES if name != "files" or len(fleet.unread))
    answers = sorted(reports(fleet, named), key=lambda answer: isinstance(answer, Unavailable))
    sys.stdout.write(render_all(answers, format_, style=style))
    return 0 if len(fleet.read) else 3


@contextlib.contextmanager
def executor(on: str | None, dask_workers: int | None, files: Sequence[File]) -> Iterator[Executor]:
    """Open what reads the files.

    Raises:
        UsageProblem: ``on`` says nothing that is known, or contradicts ``dask_workers``.
        TuiprofError: Dask is not installed, or its scheduler does not answer.
    """
    where, _, rest = (on or "").partition(":")
    if on is not None and dask_workers is not None and where != "ssh":
        raise UsageProblem("--on and --dask-workers cannot be used together", "omit one of them")
    if where in ("", "processes") and dask_workers is None:
        from tuiprof.fleet.gather import Processes, affordable

        if rest and not (rest.isdecimal() and int(rest)):
            raise UsageProblem(
                f"--on {on}: {rest!r} is not a number of processes", "for example --on processes:4"
            )
        workers = int(rest) if rest else affordable(max((file.size for file in files), default=0))
        yield Processes(max(1, min(workers, len(files))))
        return
    if where not in ("", "dask", "ssh"):
        raise UsageProblem(
            f"--on {on} is unknown", "use processes, processes:N, dask://HOST:PORT or ssh://HOST,HOST"
        )
    from tuiprof.fleet.dask_ import Dask

    address = f"tcp:{rest}" if rest.startswith("//") else f"tcp://{rest}"
    if on is not None and not rest.strip("/"):
        raise UsageProblem(
            "--on dask needs the address of a scheduler", "dask://HOST:8786, or --dask-workers N"
        )
    if where == "ssh":
        hosts = [host for host in rest.removeprefix("//").split(",") if host]
        if not hosts:
            raise UsageProblem("--on ssh needs hosts", "for example --on ssh://node1,me@node2:2222")
        works = Dask(hosts=hosts, workers=dask_workers or 1)
    else:
        works = Dask(address) if dask_workers is None else Dask(workers=dask_workers)
    try:
        yield works
    finally:
        works.close()


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[Callable[[Progress], None]]:
    """Show on stderr how far reading is and how long it still takes: a bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        from rich.progress import BarColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), "{task.fields[files]}", TimeRemainingColumn())
        with bar(what, *columns, files="") as (_, update):
            yield lambda now: update(
                completed=now.bytes, total=now.bytes_in_all or None, files=f"{now.files}/{now.files_in_all}"
            )
        return
    began = said = time.monotonic()

    def line(now: Any) -> None:
        nonlocal said
        at = time.monotonic()
        if at - said < _LINE_EVERY_S or now.files == now.files_in_all:
            return
        said = at
        share = now.bytes / now.bytes_in_all if now.bytes_in_all else now.files / now.files_in_all
        left = (at - began) * (1 - share) / share if share else 0.0
        failed = f", {now.failed} cannot be read" if now.failed else ""
        say(f"tuiprof: {what}: {now.files} done{failed}, about {left:.0f} s left")

    yield line
