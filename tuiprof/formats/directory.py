"""Finds the traces in a directory, and groups them into runs: TensorBoard and xprof log directories, sessions.

The search is bounded in depth, entries and opened files, so that a directory of thousands of other files costs little.

Ranks come from file names (``rank3``), else from the file header (``distributedInfo``), else from the order of names
that differ only in numbers. Other files are separate runs.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.errors import TraceError, UsageProblem
from tuiprof.formats.registry import available, first_bytes, sniff
from tuiprof.formats.source import open_source
from tuiprof.model.traceset import RankFile, RankSource, TraceSet

if TYPE_CHECKING:
    from tuiprof.model import Trace


#: Maximum depth and entries of the search, and maximum number of files with an unknown name to open.
_MAX_DEPTH, _MAX_ENTRIES, _MAX_OPENED = 6, 200_000, 200
#: Names that profilers give to traces.
_TRACE_NAME: Final = re.compile(
    r"(\.pt\.trace\.json(\.gz)?|\.xplane\.pb(\.gz)?|\.trace\.json(\.gz)?|rank[-_. ]?\d+.*\.json(\.gz)?)$",
    re.IGNORECASE,
)
_CANDIDATE_NAME: Final = re.compile(r"\.(json|json\.gz|zip|pb|pb\.gz)$", re.IGNORECASE)
_EVENT: Final = re.compile(rb'"traceEvents"|"ph"')
#: Path components of traces from xprof and sessions.
_LAYOUT: Final = re.compile(r"(^|/)(plugins/profile|traces)(?=/|$)")
#: Maximum number of file headers to read for ranks.
_MAX_HEADERS: Final = 256
_RANK_IN_NAME: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d+)", re.IGNORECASE)
_RANK_IN_HEADER: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d+)')
#: The time in ms or ns that torch.profiler's TensorBoard handler puts before the suffix.
_TIME: Final = re.compile(r"\.(\d{9,})(?=\.)")
_EARLIEST_S: Final = 1e9  # of the year 2001: no profiler is older
_ENDING: Final = re.compile(r"(\.pt)?(\.trace)?\.(json|json\.gz|zip)$|\.xplane\.pb(\.gz)?$", re.IGNORECASE)
_PLANE = ".xplane.pb"


@dataclass(frozen=True, slots=True)
class Run:
    """Files that belong together."""

    name: str  # its name in its folder; empty = that of the folder
    files: tuple[RankFile, ...]  # one a rank, by rank
    written: tuple[float, float]  # when the newest of them was, Unix time in s: by its name, and as modified


def group(paths: Iterable[Path]) -> list[Run]:
    """Sort the traces of one folder into runs, the newest last; a rank may have written several in a row."""
    files = list(paths)
    if any(_PLANE in path.name for path in files):
        return _with_planes(files)
    named: defaultdict[str, list[Path]] = defaultdict(list)
    unnamed: list[Path] = []
    for path in files:
        if rank_in_name(path.name) is None:
            unnamed.append(path)
        else:
            named[_without_rank(path.name)].append(path)
    runs: list[Run] = []
    for stem, members in named.items():
        runs += _by_capture(stem, [(rank_in_name(path.name) or 0, path) for path in members], "name")
    runs += _unnamed(unnamed)
    if len({run.name for run in runs}) == 1 == len(runs):
        runs = [Run("", runs[0].files, runs[0].written)]
    return sorted(runs, key=lambda run: (run.written, _natural(run.name)))


def _with_planes(files: list[Path]) -> list[Run]:
    """Sort files among which are XPlanes."""
    names = {path.name for path in files}
    planes = [path for path in files if _PLANE in path.name]
    # A compressed copy next to its original counts once.
    planes = [path for path in planes if not (path.suffix == ".gz" and path.stem in names)]
    # xprof keeps the same events in several files next to the plane.
    copies = {f"{path.name.partition(_PLANE)[0]}.trace.json.gz" for path in planes}
    rest = [path for path in files if _PLANE not in path.name and path.name not in copies]
    rest = [path for path in rest if "perfetto" not in path.name]
    # In xprof's layout a folder is a run, and each host has its plane. Among other traces, planes are hosts' only if
    # they are named alike.
    if not rest or all(alike(plane.name, planes[0].name) for plane in planes):
        runs = [_run("", dict(enumerate(_sorted(planes))), "order")]
    else:
        runs = [_run(_ENDING.sub("", plane.name), {0: plane}, "order") for plane in _sorted(planes)]
    others = [replace(run, name=run.name or _without_rank(run.files[0].path.name)) for run in group(rest)]
    return [*runs, *others]


def rank_in_name(name: str) -> int | None:
    """Return the rank in a file name; None = none."""
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


def alike(one: str, other: str) -> bool:
    """Return whether two names differ only in numbers."""
    return re.sub(r"\d+", "#", one) == re.sub(r"\d+", "#", other)


def _unnamed(files: list[Path]) -> list[Run]:
    """Group files without a rank in their names."""
    if len(files) > 1:
        ranks = _ranks_in_files(files[:_MAX_HEADERS])
        if len(ranks) == len(files) and len(set(ranks.values())) > 1:
            return _by_capture("", [(rank, path) for path, rank in ranks.items()], "content")
        stamped = any(_TIME.search(path.name) for path in files)
        if not stamped and all(alike(path.name, files[0].name) for path in files):
            return [_run("", dict(enumerate(_sorted(files))), "order")]
    return [_run(_ENDING.sub("", path.name), {0: path}, "order") for path in files]


def _by_capture(name: str, files: Iterable[tuple[int, Path]], rank_from: RankSource) -> list[Run]:
    """Split the files of each rank by the order in which it wrote them."""
    by_rank: defaultdict[int, list[Path]] = defaultdict(list)
    for rank, path in files:
        by_rank[rank].append(path)
    for members in by_rank.values():
        members.sort(key=lambda path: (_time(path.name), _size_and_time(path)[1], _natural(path.name)))
    captures = max(len(members) for members in by_rank.values())
    return [
        _run(
            name if captures == 1 else f"{name or 'capture'}#{capture + 1}",
            {rank: members[capture] for rank, members in by_rank.items() if capture < len(members)},
            rank_from,
        )
        for capture in range(captures)
    ]


def _run(name: str, files: Mapping[int, Path], rank_from: RankSource) -> Run:
    ordered = tuple(
        RankFile(rank, path, rank_from, *_size_and_time(path)) for rank, path in sorted(files.items())
    )
    return Run(name, ordered, max(_written(file) for file in ordered))


def _ranks_in_files(files: Iterable[Path]) -> dict[Path, int]:
    """Return the ranks from file headers, as far as they have them."""
    found: dict[Path, int] = {}
    for path in files:
        try:
            match = None if path.is_dir() else _RANK_IN_HEADER.search(first_bytes(open_source(path)))
        except TraceError:
            match = None
        if match is None:
            break  # one without a rank is enough: skip the rest
        found[path] = int(match[1])
    return found


def _without_rank(name: str) -> str:
    """Return the common name of the files of a run, without rank, time and suffix."""
    return _ENDING.sub("", _RANK_IN_NAME.sub("", _TIME.sub("", name))).strip("-_. ")


def _time(name: str) -> int:
    match = _TIME.search(name)
    return int(match[1]) if match else 0


def _written(file: RankFile) -> tuple[float, float]:
    """Return when a file was written, Unix time in s: by the time in its name, which copies keep, and as modified."""
    stamp = _time(file.path.name)
    named = (stamp / unit for unit in (1e9, 1e6, 1e3) if stamp / unit >= _EARLIEST_S)
    return next(named, file.modified), file.modified


def _size_and_time(path: Path) -> tuple[int, float]:
    """Return the size of a file in bytes and its modification time in s; zeros if it was removed."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0.0
    return status.st_size, status.st_mtime


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: _natural(path.name))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which ``host10`` comes after ``host9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, slots=True)
class _Candidate:
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
    found, notes = _search(path)
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
    found = [one for one in sets if one.run == run] or [one for one in sets if one.run.startswith(run)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} runs begin with {run!r}" if found else f"there is no run {run!r}"
    known = (
        f"there are {', '.join(one.run for one in sets[-8:])}"
        if len(sets) > 1
        else "there is one run: omit --run"
    )
    raise UsageProblem(problem, known)


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
    return bool(_CANDIDATE_NAME.search(own)) and not own.startswith(".")


def _is_one(path: Path) -> bool:
    """Whether a directory is one trace of a format that writes several files."""
    return any(one.directory is not None and one.directory(path) for one in available().values())


def _search(top: Path) -> tuple[list[_Candidate], list[str]]:
    """Walk a directory; return the traces, and what was skipped."""
    found: list[_Candidate] = []
    notes: list[str] = []
    folders, seen = [(top, "", 0)], 0
    while folders and seen <= _MAX_ENTRIES:
        folder, relative, depth = folders.pop()
        if depth and _is_one(folder):
            found.append(_Candidate(folder, relative.rpartition("/")[0], True))
            continue
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"{folder} cannot be read: {error.strerror}")
            continue
        for entry in listed:
            seen += 1
            if seen > _MAX_ENTRIES:
                notes.append(f"only the first {_MAX_ENTRIES} entries of {top} were read")
                break
            if entry.name.startswith("."):
                continue  # being written by the probe, or configuration
            # Links to files are followed, links to folders are not, as they could form a cycle.
            if entry.is_dir(follow_symlinks=False):
                if depth < _MAX_DEPTH:
                    folders.append((Path(entry.path), f"{relative}/{entry.name}".lstrip("/"), depth + 1))
            elif _CANDIDATE_NAME.search(entry.name) and _is_file(entry):
                found.append(_Candidate(Path(entry.path), relative, bool(_TRACE_NAME.search(entry.name))))
    return _confirmed(found, notes), notes


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself, or into a folder that may not be entered
        return False


def _confirmed(found: list[_Candidate], notes: list[str]) -> list[_Candidate]:
    """Keep files whose name or content is that of a trace."""
    sure = [one for one in found if one.sure]
    if sure:  # other files next to them are configuration, metrics and the like
        return sure
    kept = []
    for one in found[:_MAX_OPENED]:
        try:
            # Any JSON may be a trace with a long preamble; without a known name, it has to look like one.
            if sniff(one.path) != "kineto" or _EVENT.search(first_bytes(open_source(one.path))):
                kept.append(one)
        except TraceError:
            continue
    if len(found) > _MAX_OPENED:
        notes.append(
            f"{len(found) - _MAX_OPENED} of {len(found)} files not named like a trace were not opened"
        )
    return kept


def _runs(found: list[_Candidate]) -> dict[str, Run]:
    """Group the candidates into runs by name, newest last."""
    folders: defaultdict[str, list[Path]] = defaultdict(list)
    for one in found:
        folders[one.folder].append(one.path)
    runs: list[tuple[str, Run]] = []
    for folder, paths in folders.items():
        place = _LAYOUT.sub("", folder).strip("/")
        runs += [("/".join(filter(None, (place, run.name))), run) for run in group(paths)]
    runs.sort(key=lambda item: item[1].written)
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
