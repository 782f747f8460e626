"""Many ranks in one report: which files, on what they are read, and how far that is."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tuiprof.cli.common import Invocation, say, session_or_none

if TYPE_CHECKING:
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.fleet.gather import Executor, File, Progress
    from tuiprof.session.store.folders import Session

Function = TypeVar("Function", bound=Callable[..., Any])

#: Where stderr is no terminal, a line of progress is written so often, s.
_LINE_EVERY_S: Final = 10.0
#: Rows of a table on the page of a job.
_ROWS: Final = 8


def fleet_options(function: Function) -> Function:
    """Add the options that say on what many files are read."""
    options = (
        click.option(
            "--on",
            metavar="WHERE",
            help="Where to read many files: `processes` of this machine (default; processes:N for N of them), "
            "workers of a Dask scheduler (dask://HOST:PORT), or workers started by ssh (ssh://HOST,HOST…).",
        ),
        click.option(
            "--dask-workers",
            type=click.IntRange(min=1),
            help="Read with this many Dask workers here, or on each host of ssh://.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


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
    from tuiprof.errors import TuiprofError
    from tuiprof.formats import open_set

    if not os.path.isdir(target):
        return False
    try:
        return len(open_set(target, run=run)) > 1
    except TuiprofError:
        return False


def files_of(invocation: Invocation, targets: Sequence[str], run: str | None) -> list[File]:
    """Return the files that targets stand for: all ranks of the newest run of each folder, or of the run named.

    Raises:
        TraceError: A target holds no trace.
        UsageProblem: There is no such run.
    """
    from tuiprof.cli.common import traces_at
    from tuiprof.fleet.gather import File

    found: list[tuple[Path, int, int]] = []
    for target in targets:
        session = session_or_none(invocation, target)
        for folder in [target] if session is None else _trace_folders(session):
            known = traces_at(folder, run, several=True)
            found += [(file.path, file.rank, file.size_bytes) for file in known.files]
    ranks = [rank for _, rank, _ in found]
    if len(set(ranks)) < len(ranks):
        say("tuiprof: several files have the same rank: they are numbered in the order given")
        found = [(path, number, size) for number, (path, _, size) in enumerate(found)]
    return [
        File(number, str(path.absolute()), rank, size or _size(path))
        for number, (path, rank, size) in enumerate(found)
    ]


def _trace_folders(session: Session) -> list[Path]:
    """Return where the traces of a session lie: of a run of several hosts, those of each that has some."""
    folders = [part.path / "traces" for part in session.parts if part.traces()]
    return folders or [session.path / "traces"]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def gathered(
    invocation: Invocation, targets: Sequence[str], run: str | None, on: str | None, dask_workers: int | None
) -> Fleet:
    """Read all ranks of some targets.

    Raises:
        TuiprofError: There is no trace, or what reads them is lost.
        UsageProblem: ``on`` says nothing that is known.
    """
    from tuiprof.analyses.shared.scope import plural
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.fleet.gather import gather

    files = files_of(invocation, targets, run)
    with (
        executor(on, dask_workers, files) as works,
        progress_of(f"reading {plural(len(files), 'file')} on {works.name}") as progress,
    ):
        return Fleet(gather(files, works, progress))


def report_fleet(
    fleet: Fleet, views: Sequence[str], format_: str, title: str, verbose: bool, rules: bool, charts: bool
) -> int:
    """Print what many ranks say of their job: some views in full, or the page. Returns the exit status: 3 = nothing
    read.
    """
    from dataclasses import replace

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
    from tuiprof.errors import UsageProblem

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
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[files]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None, files="")

            def shown(now: Any) -> None:
                bar.update(
                    task,
                    completed=now.bytes,
                    total=now.bytes_in_all or None,
                    files=f"{now.files}/{now.files_in_all}",
                )

            yield shown
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
