"""Keeps summaries in the user's cache directory, so that an interrupted report resumes where it stopped.

An entry is named after the version of tuiprof and the content of the file: its size, time of change, and a digest of
its first and last 64 KiB. A digest of the whole file would cost about as much as reading the trace; a change in the
middle of the same size changes the modification time. The path is not included, so a folder may be moved or copied
with its times. Workers on other hosts write into the cache of their host; ``TUIPROF_FLEET_CACHE`` may name a shared
one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof import __version__
from tuiprof.formats.cache import UNFINISHED, directory

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary
    from tuiprof.fleet.task import File

#: ``off`` = no cache; a path = its directory.
FOLDER_VARIABLE: Final = "TUIPROF_FLEET_CACHE"
#: Maximum total size of all summaries, bytes; the least recently used are deleted first.
LIMIT_VARIABLE: Final = "TUIPROF_FLEET_CACHE_BYTES"
_DEFAULT_LIMIT: Final = 2 << 30
#: Increment if the content of summaries changes within a version.
_LAYOUT: Final = 3
_ENDS: Final = 1 << 16
#: Files read in less time are not cached.
WORTH_KEEPING_S: Final = 0.02


def cache_folder() -> Path | None:
    """Return the directory of the cache; None if the user disabled it."""
    return directory(FOLDER_VARIABLE, "fleet")


def entry_of(path: Path) -> Path | None:
    """Return the path of the cached summary of a file; None = no cache, or the trace is a directory.

    Raises:
        OSError: The file cannot be read.
    """
    folder = cache_folder()
    if folder is None or path.is_dir():
        return None
    from tuiprof.formats.session_files import sidecar_name

    digest = hashlib.blake2b(f"{__version__} {_LAYOUT}".encode(), digest_size=16)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest.update(f" {status.st_size} {status.st_mtime_ns} ".encode())
        digest.update(file.read(_ENDS))
        file.seek(max(0, status.st_size - _ENDS))
        digest.update(file.read(_ENDS))
    with contextlib.suppress(OSError):  # source lines that the probe wrote beside the trace
        beside = path.with_name(sidecar_name(path.name)).stat()
        digest.update(f" {beside.st_size} {beside.st_mtime_ns}".encode())
    name = digest.hexdigest()
    return folder / name[:2] / name


def find(entry: Path, file: File) -> Summary | None:
    """Return the cached summary of a file; None = there is none."""
    import polars as pl

    from tuiprof.fleet.summary import TABLES, Summary, decode

    try:
        kept = decode(entry.read_bytes())
        os.utime(entry)  # mark as recently used
    except (OSError, ValueError):
        return None
    number = pl.lit(file.number, pl.UInt32).alias("file")
    renamed = {name: getattr(kept, name) for name in TABLES}
    for name in TABLES:
        if name != "names":
            renamed[name] = renamed[name].with_columns(number)
    renamed["files"] = renamed["files"].with_columns(
        pl.lit(file.path).alias("path"), pl.lit(file.rank, pl.Int64).alias("rank")
    )
    return Summary(**renamed)


def keep(entry: Path, summary: Summary, took_s: float) -> None:
    """Cache the summary of a file if creating it took long enough; on a full disk it is not cached."""
    if took_s < WORTH_KEEPING_S:
        return
    from tuiprof.fleet.summary import encode

    with contextlib.suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = entry.with_name(f"{UNFINISHED}{os.getpid()}-{entry.name}")
        try:
            new.write_bytes(encode(summary))
            os.replace(new, entry)
        finally:
            new.unlink(missing_ok=True)


def tidy() -> None:
    """Delete the least recently used summaries until the rest fits the limit."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        limit = int(os.environ.get(LIMIT_VARIABLE, _DEFAULT_LIMIT))
    except ValueError:
        limit = _DEFAULT_LIMIT
    entries = []
    for entry in folder.glob("??/*"):
        with contextlib.suppress(OSError):  # another process may delete it too
            status = entry.stat()
            entries.append((status.st_mtime_ns, status.st_size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= limit:
            return
        entry.unlink(missing_ok=True)
        total -= size
