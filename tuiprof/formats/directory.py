"""Finds the traces in a directory: one file per rank, TensorBoard and xprof log directories, sessions.

The search is bounded in depth, entries and opened files, so that a directory of thousands of other files costs little.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.errors import TraceError, UsageProblem
from tuiprof.formats.grouping import Run, alike, group, rank_in_name
from tuiprof.formats.registry import available, first_bytes, sniff
from tuiprof.model.traceset import RankFile, TraceSet

if TYPE_CHECKING:
    from tuiprof.model import Trace

#: Maximum depth and entries of the search, and maximum number of files with an unknown name to open.
_DEPTH, _ENTRIES, _LOOKS = 6, 200_000, 200
#: Names that profilers give to traces.
_TELLING: Final = re.compile(
    r"(\.pt\.trace\.json(\.gz)?|\.xplane\.pb(\.gz)?|\.trace\.json(\.gz)?|rank[-_. ]?\d+.*\.json(\.gz)?)$",
    re.IGNORECASE,
)
_PERHAPS: Final = re.compile(r"\.(json|json\.gz|zip|pb|pb\.gz)$", re.IGNORECASE)
_EVENT: Final = re.compile(rb'"traceEvents"|"ph"')
#: Path components of traces from xprof and sessions.
_LAYOUT: Final = re.compile(r"(^|/)(plugins/profile|traces)(?=/|$)")


@dataclass(frozen=True, slots=True)
class _Found:
    """A file or directory that may be a trace."""

    path: Path  # where it is
    folder: str  # its folder, relative to where the search began
    sure: bool  # its name identifies it as one


def sets_in(path: Path, opener: Callable[[Path], Trace]) -> tuple[TraceSet, ...]:
    """Find the traces of all runs at a path, newest last, without reading them.

    Raises:
        TraceError: The path does not exist, or contains no trace.
    """
    if not os.path.isdir(path) or _is_one(path):
        return (TraceSet("", (RankFile(rank_in_name(path.name) or 0, path),), opener),)
    found, notes = _look(path)
    runs = _runs(found)
    if not runs:
        said = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{path} contains no trace{said}", "give the trace file, or its folder")
    names = tuple(runs)
    return tuple(TraceSet(name, run.files, opener, names, tuple(notes)) for name, run in runs.items())


def chosen(sets: tuple[TraceSet, ...], run: str | None) -> TraceSet:
    """Return the set whose run begins with this name; None = the newest, which is last.

    Raises:
        UsageProblem: There is no such run.
    """
    if run is None:
        return sets[-1]
    if not sets[-1].runs:
        raise UsageProblem(f"{sets[-1].files[0].path} is one trace and has no runs", "omit --run")
    names = [one.run for one in sets]
    return sets[names.index(_choose(names, run))]


def siblings(path: Path, opener: Callable[[Path], Trace]) -> TraceSet | None:
    """Return the ranks of the run of a trace, including itself; None if its name has no rank."""
    if rank_in_name(path.name) is None:
        return None
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in entries if alike(entry.name, path.name) and _is_file(entry)]
    except OSError:
        return None
    for run in group(path.with_name(name) for name in names):
        if len(run.files) > 1 and any(file.path == path for file in run.files):
            return TraceSet(run.name, run.files, opener)
    return None


def is_trace_name(name: str) -> bool:
    """Whether a file's name is one that traces have."""
    own = name.rpartition("/")[2]
    return bool(_PERHAPS.search(own)) and not own.startswith(".")


def _is_one(path: Path) -> bool:
    """Whether a directory is one trace of a format that writes several files."""
    return any(one.directory is not None and one.directory(path) for one in available().values())


def _look(top: Path) -> tuple[list[_Found], list[str]]:
    """Walk a directory; return the traces, and what was skipped."""
    found: list[_Found] = []
    notes: list[str] = []
    folders, seen = [(top, "", 0)], 0
    while folders and seen <= _ENTRIES:
        folder, relative, depth = folders.pop()
        if depth and _is_one(folder):
            found.append(_Found(folder, relative.rpartition("/")[0], True))
            continue
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"{folder} cannot be read: {error.strerror}")
            continue
        for entry in listed:
            seen += 1
            if seen > _ENTRIES:
                notes.append(f"only the first {_ENTRIES} entries of {top} were read")
                break
            if entry.name.startswith("."):
                continue  # being written by the probe, or configuration
            # Links to files are followed, links to folders are not, as they could form a cycle.
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEPTH:
                    folders.append((Path(entry.path), f"{relative}/{entry.name}".lstrip("/"), depth + 1))
            elif _PERHAPS.search(entry.name) and _is_file(entry):
                found.append(_Found(Path(entry.path), relative, bool(_TELLING.search(entry.name))))
    return _believed(found, notes), notes


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself, or into a folder that may not be entered
        return False


def _believed(found: list[_Found], notes: list[str]) -> list[_Found]:
    """Keep files whose name or content is that of a trace."""
    from tuiprof.formats.source import open_source

    sure = [one for one in found if one.sure]
    if sure:  # other files beside them are configuration, metrics and the like
        return sure
    kept = []
    for one in found[:_LOOKS]:
        try:
            # Any JSON may be a trace with a long preamble; without a known name, it has to look like one.
            if sniff(one.path) != "kineto" or _EVENT.search(first_bytes(open_source(one.path))):
                kept.append(one)
        except TraceError:
            continue
    if len(found) > _LOOKS:
        notes.append(f"{len(found) - _LOOKS} of {len(found)} files not named like a trace were not opened")
    return kept


def _runs(found: list[_Found]) -> dict[str, Run]:
    """Group the candidates into runs by name, newest last."""
    folders: defaultdict[str, list[Path]] = defaultdict(list)
    for one in found:
        folders[one.folder].append(one.path)
    runs: list[tuple[str, Run]] = []
    for folder, paths in folders.items():
        place = _LAYOUT.sub("", folder).strip("/")
        runs += [("/".join(filter(None, (place, run.name))), run) for run in group(paths)]
    runs.sort(key=lambda item: item[1].modified)
    named: dict[str, Run] = {}
    for name, run in runs:
        name = name or "."
        if name in named:  # by the whole name of a file, then by a number
            name = run.files[0].path.name
        again = 2
        unique = name
        while unique in named:
            unique, again = f"{name}#{again}", again + 1
        named[unique] = run
    return named


def _choose(names: list[str], run: str) -> str:
    if run in names:
        return run
    beginning = [name for name in names if name.startswith(run)]
    if len(beginning) == 1:
        return beginning[0]
    problem = f"{len(beginning)} runs begin with {run!r}" if beginning else f"there is no run {run!r}"
    raise UsageProblem(problem, f"there are {', '.join(names[-8:])}")
