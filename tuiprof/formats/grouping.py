"""Groups the files of a directory into runs, and determines their ranks.

Ranks come from file names (``rank3``), else from the file header (``distributedInfo``), else from the order of names
that differ only in numbers. Other files are separate runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tuiprof.errors import TraceError
from tuiprof.model.traceset import RankFile, RankSource

#: Maximum number of file headers to read for ranks.
MOST_HEADS: Final = 256
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d+)", re.IGNORECASE)
_SAID: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d+)')
#: The time in ms or ns that torch.profiler's TensorBoard handler puts before the suffix.
_TIME: Final = re.compile(r"\.(\d{9,})(?=\.)")
_ENDING: Final = re.compile(r"(\.pt)?(\.trace)?\.(json|json\.gz|zip)$|\.xplane\.pb(\.gz)?$", re.IGNORECASE)
_PLANE = ".xplane.pb"


@dataclass(frozen=True, slots=True)
class Run:
    """Files that belong together."""

    name: str  # its name in its folder; empty = that of the folder
    files: tuple[RankFile, ...]  # one a rank, by rank
    modified: float  # when the newest of them was written, Unix time in s


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
        runs += _turns(stem, [(rank_in_name(path.name) or 0, path) for path in members], "name")
    runs += _unnamed(unnamed)
    if len({run.name for run in runs}) == 1 == len(runs):
        runs = [Run("", runs[0].files, runs[0].modified)]
    return sorted(runs, key=lambda run: (run.modified, _natural(run.name)))


def _with_planes(files: list[Path]) -> list[Run]:
    """Sort files among which are XPlanes."""
    names = {path.name for path in files}
    planes = [path for path in files if _PLANE in path.name]
    # A compressed copy next to its original counts once.
    planes = [path for path in planes if not (path.suffix == ".gz" and path.stem in names)]
    # xprof keeps the same events in several files beside the plane.
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
    match = _RANK.search(name)
    return int(match[1]) if match else None


def alike(one: str, other: str) -> bool:
    """Return whether two names differ only in numbers."""
    return _without_numbers(one) == _without_numbers(other)


def _unnamed(files: list[Path]) -> list[Run]:
    """Group files without a rank in their names."""
    if len(files) > 1:
        said = _ranks_in_files(files[:MOST_HEADS])
        if len(files) <= MOST_HEADS and len(said) == len(files) and len(set(said.values())) > 1:
            return _turns("", [(rank, path) for path, rank in said.items()], "content")
        stamped = any(_TIME.search(path.name) for path in files)
        if not stamped and all(alike(path.name, files[0].name) for path in files):
            return [_run("", dict(enumerate(_sorted(files))), "order")]
    return [_run(_ENDING.sub("", path.name), {0: path}, "order") for path in files]


def _turns(name: str, files: Iterable[tuple[int, Path]], rank_from: RankSource) -> list[Run]:
    """Split the files of each rank by the order in which it wrote them."""
    by_rank: defaultdict[int, list[Path]] = defaultdict(list)
    for rank, path in files:
        by_rank[rank].append(path)
    for members in by_rank.values():
        members.sort(key=lambda path: (_time(path.name), _modified(path), _natural(path.name)))
    turns = max(len(members) for members in by_rank.values())
    if turns == 1:
        return [_run(name, {rank: members[0] for rank, members in by_rank.items()}, rank_from)]
    label = name or "capture"
    return [
        _run(
            f"{label}#{turn + 1}",
            {rank: members[turn] for rank, members in by_rank.items() if turn < len(members)},
            rank_from,
        )
        for turn in range(turns)
    ]


def _run(name: str, files: Mapping[int, Path], rank_from: RankSource) -> Run:
    ordered = tuple(RankFile(rank, files[rank], rank_from, _size(files[rank])) for rank in sorted(files))
    return Run(name, ordered, max(_modified(path) for path in files.values()))


def _ranks_in_files(files: Iterable[Path]) -> dict[Path, int]:
    """Return the ranks from file headers, as far as they have them."""
    from tuiprof.formats.registry import first_bytes
    from tuiprof.formats.source import open_source

    found: dict[Path, int] = {}
    for path in files:
        try:
            match = None if path.is_dir() else _SAID.search(first_bytes(open_source(path)))
        except TraceError:
            match = None
        if match is None:
            break  # one without a rank is enough: skip the rest
        found[path] = int(match[1])
    return found


def _without_rank(name: str) -> str:
    """Return the common name of the files of a run, without rank, time and suffix."""
    return _ENDING.sub("", _RANK.sub("", _TIME.sub("", name))).strip("-_. ")


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _time(name: str) -> int:
    match = _TIME.search(name)
    return int(match[1]) if match else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: _natural(path.name))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which ``host10`` comes after ``host9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
