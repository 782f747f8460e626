"""All there is to say about one event, gathered away from the screen: the raw text may come from the disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuiprof.model.trace import Trace
from tuiprof.model.units import format_bytes, format_count, format_ns
from tuiprof.tui.timeline.state import Link, links_of

_RAW_LIMIT = 32_768
_SOURCE_LIMIT = 4_000_000
_AROUND = 4
_MOST_WORK = 200
# Kineto writes "file.py(85): function", a probe's sync site "file.py:91 function".
_LOCATION = re.compile(r"(?P<file>[^\s()'\"]+\.py)(?:\((?P<in_frame>\d+)\)|:(?P<in_site>\d+))")


@dataclass(frozen=True, slots=True)
class Location:
    """A line of source as a trace names it.

    Attributes:
        file: Path as written; untrusted.
        line: Line, from 1.
        exact: Whether it is the line that ran, rather than the first line of its function.
    """

    file: str
    line: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Source text around a line.

    Attributes:
        path: The file it was read from.
        line: The line in question.
        lines: Number and text of each line.
    """

    path: Path
    line: int
    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class EventDetail:
    """Content of the detail pane for an event; all texts are untrusted.

    Attributes:
        row: Row in the event table.
        name: Its name, whole.
        fields: Label and value of each known figure.
        launch: Row of the host call that launched it; None = not device work, or not recorded.
        links: What it is linked with: launch or work first, what a sync waited for and delayed.
        work: Rows of the device work it launched, first ones only.
        work_count: How many there are in all.
        chain: Rows that enclose the call, innermost first, Python frames left out.
        frames: Rows of the Python frames that enclose it, innermost first.
        excerpt: Source text, where the file is on this machine.
        raw: The event as written in the file; empty when the format does not keep it.
        raw_cut: How many characters of it were left out.
    """

    row: int
    name: str
    fields: tuple[tuple[str, str], ...]
    launch: int | None = None
    links: tuple[Link, ...] = ()
    work: tuple[int, ...] = ()
    work_count: int = 0
    chain: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    excerpt: Excerpt | None = None
    raw: str = ""
    raw_cut: int = 0


def describe(trace: Trace, row: int) -> EventDetail:
    """Gather everything about an event."""
    launch = int(trace.links.launch_of[row])
    work = _launched_by(trace, row)
    host = launch if launch >= 0 else row
    enclosing = trace.ancestors(host)
    python = trace.is_category("python_function")
    frames = tuple(r for r in enclosing if python[r])
    chain = tuple(r for r in enclosing if not python[r])
    raw = trace.raw_event(row)
    return EventDetail(
        row=row,
        name=trace.name(row),
        fields=tuple(_fields(trace, row, launch)),
        launch=launch if launch >= 0 else None,
        links=links_of(trace, row, patient=True),
        work=tuple(work[:_MOST_WORK].tolist()),
        work_count=len(work),
        chain=chain,
        frames=frames,
        excerpt=first_excerpt([trace.name(r) for r in frames], near=trace.info.path),
        raw=raw[:_RAW_LIMIT],
        raw_cut=max(0, len(raw) - _RAW_LIMIT),
    )


def _launched_by(trace: Trace, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the device work a call launched, in order of start."""
    launches = trace.links.launches
    index = int(np.searchsorted(launches, row))
    if index >= len(launches) or launches[index] != row:
        return np.empty(0, dtype=np.int64)
    work = trace.device_work
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = work[trace.links.launch_of[work] == row]
    return found


def _fields(trace: Trace, row: int, launch: int) -> list[tuple[str, str]]:
    start, end = int(trace.starts[row]), int(trace.ends[row])
    event = trace.events.row(row, named=True)
    fields = [
        ("category", str(event["category"])),
        ("start", format_ns(start - trace.span[0]) + " after the start of the trace"),
        ("duration", format_ns(end - start)),
        ("track", trace.tracks[event["track"]].name),
    ]
    step = int(trace.steps.step_of[row])
    if step >= 0:
        fields.append(("step", str(trace.steps.numbers[step])))
    if launch >= 0:
        latency = start - int(trace.ends[launch])
        fields.append(
            ("launch latency", f"{format_ns(latency)} from the end of the launching call to the start here")
        )
    for key, label in (("correlation", "correlation"), ("external_id", "external id")):
        if event[key] is not None and event[key] > 0:
            fields.append((label, str(event[key])))
    if event["bytes"] is not None:
        size = event["bytes"]
        rate = f", {format_bytes(size * 1e9 / (end - start))}/s" if end > start else ""
        fields.append(("moved", f"{format_bytes(size)} ({format_count(size)} bytes){rate}"))
    return fields


def locations(texts: Sequence[str]) -> list[Location]:
    """Find lines of source in texts.

    Args:
        texts: Names of frames, or cells of a table; untrusted.
    """
    found = []
    for text in texts:
        for match in _LOCATION.finditer(text[:4096]):
            line = match["in_frame"] or match["in_site"]
            if len(line) < 8:
                found.append(Location(match["file"], int(line), match["in_site"] is not None))
    return found


def first_excerpt(texts: Sequence[str], near: Path | None = None) -> Excerpt | None:
    """Return source text around the first line that is named and is on this machine.

    Args:
        texts: Names of frames, innermost first, or cells of a table; untrusted.
        near: A path relative to which names are resolved.
    """
    for location in locations(texts):
        path = _find(location.file, near)
        if path is None:
            continue
        lines = _read(path)
        if location.line <= len(lines):
            # A frame names the first line of its function: the lines after it are more useful than those before.
            before = _AROUND if location.exact else 0
            begin = max(0, location.line - 1 - before)
            around = lines[begin : location.line + 2 * _AROUND - before]
            return Excerpt(path, location.line, tuple(enumerate(around, begin + 1)))
    return None


def _find(name: str, near: Path | None) -> Path | None:
    """Return the regular file named in a trace, if it exists; relative names also relative to the trace."""
    tried = [Path(name)]
    if near is not None and not tried[0].is_absolute():
        tried.append(near.parent / name)
    for path in tried:
        try:
            if path.is_file() and path.stat().st_size <= _SOURCE_LIMIT:
                return path
        except (OSError, ValueError):  # no permission, a name too long or with a zero byte: not there for us
            continue
    return None


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # gone or unreadable since: the pane then shows no source
        return []
