"""Caches decoded traces in the user's cache directory, so that opening them again is immediate.

An entry is a directory named after the identity of the file (its path, size, modification time, and a digest of its
beginning and end) and the version of tuiprof. It is written under a temporary name and renamed atomically; a reader
keeps its files open, so deleting an entry does not disturb it. Nothing is ever written beside the user's file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tuiprof import __version__
from tuiprof.formats.source import Source

if TYPE_CHECKING:
    import polars as pl

    from tuiprof.model import RawSource, Trace

#: Increment when an entry of an older version would be misread.
_LAYOUT = 7
#: ``off`` = no cache; a path = its directory.
FOLDER_VARIABLE = "TUIPROF_TRACE_CACHE"
#: Maximum total size of all entries, bytes; the least recently used are deleted first.
LIMIT_VARIABLE = "TUIPROF_TRACE_CACHE_BYTES"
_DEFAULT_LIMIT = 4 << 30
#: Smaller files, bytes on disk, are not cached, as reading them is as fast.
WORTH_KEEPING = 4 << 20
#: Prefix of entries being written, and the age from which their writer is assumed dead.
UNFINISHED = ".new-"
_GIVEN_UP_NS = 86_400 * 10**9
#: Bytes at each end of a file that tell its versions apart, beside its times.
_ENDS = 1 << 16
#: The parts of a trace that are not tables.
_REST = "trace.json"
_TABLES = ("events", "instants", "counters", "communications", "event_waits", "step_markers")


def root() -> Path | None:
    """Return the directory of the cache; None if the user disabled it."""
    return directory(FOLDER_VARIABLE, "traces")


def directory(variable: str, name: str) -> Path | None:
    """Return the directory that an environment variable names, else ``name`` in the user's cache; None = off."""
    value = os.environ.get(variable, "")
    if value.lower() in ("off", "0", "no", "false"):
        return None
    if value:
        return Path(value).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("tuiprof", appauthor=False) / name


def size_limit(variable: str, default: int) -> int:
    """Return the number of bytes that an environment variable gives; the default if it is not set, or not a number."""
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        return default


def find(
    source: Source, restore: Callable[[Source, bytes], RawSource], sites: pl.DataFrame | None
) -> Trace | None:
    """Return a trace from the cache; None if it is not cached."""
    entry = _path_of(source)
    if entry is None or not entry.is_dir():
        return None
    import polars as pl

    from tuiprof.model import ReadStats, Trace, TraceInfo, Track

    try:
        tables = {
            name: pl.read_ipc(entry / f"{name}.arrow")
            for name in _TABLES
            if (entry / f"{name}.arrow").exists()
        }
        info, tracks, stats, raw = msgspec.json.decode(
            (entry / _REST).read_bytes(), type=tuple[TraceInfo, tuple[Track, ...], ReadStats, bytes]
        )
        info = replace(info, path=source.path)
        trace = Trace(
            tables.pop("events"), tracks, info, stats, sync_sites=sites, raw=restore(source, raw), **tables
        )
        os.utime(entry)  # mark as recently used
    except (OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError):
        # Evicted in the meantime, or damaged: read the file itself.
        shutil.rmtree(entry, ignore_errors=True)
        return None
    return trace


def keep(source: Source, trace: Trace, raw: bytes) -> threading.Thread | None:
    """Write a trace to the cache in a background thread; None if there is nothing to do."""
    entry = _path_of(source)
    if entry is None or source.size < WORTH_KEEPING or entry.exists():
        return None
    thread = threading.Thread(target=_write, args=(entry, trace, raw), name="tuiprof-cache")
    thread.start()
    return thread


def _write(entry: Path, trace: Trace, raw: bytes) -> None:
    # A full disk, missing permissions, properties that JSON cannot represent: the trace is not cached.
    with contextlib.suppress(OSError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=entry.parent, prefix=UNFINISHED, ignore_cleanup_errors=True
        ) as folder:
            new = Path(folder) / "entry"
            new.mkdir()
            tables = (
                *(trace.events, trace.instants, trace.counters),
                *(trace.communications, trace.event_waits, trace.given_step_markers),
            )
            for name, table in zip(_TABLES, tables, strict=True):
                if table is not None:
                    # A separate handle: a table is locked while it is written, and others may read this one.
                    table.clone().write_ipc(new / f"{name}.arrow", compression="uncompressed")
            rest = (replace(trace.info, path=None), trace.tracks, trace.stats, raw)
            (new / _REST).write_bytes(msgspec.json.encode(rest))
            os.rename(new, entry)  # fails if another process was faster; its entry is equivalent
        evict(entry.parent.iterdir(), LIMIT_VARIABLE, _DEFAULT_LIMIT, newest=entry)


def _path_of(source: Source) -> Path | None:
    """Return the path of a file's entry; None if there is no cache or the file was removed."""
    folder = root()
    if folder is None:
        return None
    try:
        status, ends = status_and_ends(source.path)
    except OSError:
        return None
    identity = (
        __version__,
        _LAYOUT,
        str(source.path.resolve()),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
    )
    return folder / hashlib.blake2b(repr(identity).encode() + ends, digest_size=16).hexdigest()


def status_and_ends(path: Path) -> tuple[os.stat_result, bytes]:
    """Return what tells versions of a file apart: its status, and its first and last bytes."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        head = file.read(_ENDS)
        file.seek(max(0, status.st_size - _ENDS))
        return status, head + file.read(_ENDS)


def evict(entries: Iterable[Path], variable: str, default: int, newest: Path | None = None) -> None:
    """Delete the least recently used entries, files or directories, until the rest fits :func:`size_limit`."""
    limit, found = size_limit(variable, default), []
    for entry in entries:
        with contextlib.suppress(OSError):  # another process may evict it too
            status = entry.stat()
            files = entry.rglob("*") if stat.S_ISDIR(status.st_mode) else (entry,)
            size = sum(file.stat().st_size for file in files if file.is_file())
            if not entry.name.startswith(UNFINISHED) or time.time_ns() - status.st_mtime_ns > _GIVEN_UP_NS:
                found.append((entry == newest, status.st_mtime_ns, size, entry))
    total = sum(size for _, _, size, _ in found)
    for is_newest, _, size, entry in sorted(found):
        if total <= limit or is_newest:
            return
        with contextlib.suppress(OSError):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        total -= size
