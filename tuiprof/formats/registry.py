"""Formats: their definition, registry and detection, and descriptions of unsupported files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError, describe
from tuiprof.formats.source import Damaged, Source, open_source

if TYPE_CHECKING:
    from tuiprof.model import Trace

_HEAD = 1 << 16


class Cancelled(TraceError):
    """Reading was cancelled by the caller."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to read."""

    #: Called regularly with (bytes of the file read, size of the file), from the thread that reads.
    progress: Callable[[int, int], None] | None = None
    #: Called regularly; reading stops with :class:`Cancelled` once it returns True.
    cancelled: Callable[[], bool] | None = None
    #: Called with a trace of what has been read, from the thread that reads, while the rest is being read and only when
    #: that takes long: first after about half a second, then at doubling intervals. Each contains the events of the
    #: previous one and those after them in the file; each is self-contained, keeps no view of growing data, and its
    #: ``trust`` says that it is partial. The complete trace is only returned, never passed here. A cached trace is
    #: returned complete at once.
    partial: Callable[[Trace], None] | None = None
    workers: int | None = None  # number of worker processes; None = as many as are worth it
    #: Maximum size of a decompressed file, bytes; None = ``TUIPROF_MAX_INFLATED_BYTES``, else 8 GiB.
    limit: int | None = None
    #: Whether a large trace is kept in the user's cache directory and taken from there the next time;
    #: ``TUIPROF_TRACE_CACHE=off`` forbids it for good.
    cache: bool = True


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str  # its name, for example ``"kineto"``
    title: str  # name for display
    #: Returns from the first decompressed bytes and the path whether a file is of this format.
    sniff: Callable[[bytes, Path], bool]
    open: Callable[[Source, Options], Trace]  # reads a file
    order: int = 100  # order of detection; lower comes first
    #: Returns whether a directory is of this format, for one that writes several files; it is then opened with the
    #: directory as the path of its source. None = never.
    directory: Callable[[Path], bool] | None = None


@functools.cache
def available() -> dict[str, Format]:
    """Return every format by name, in order of detection."""
    from tuiprof.plugins import discover

    found: dict[str, Format] = discover("formats").items
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def sniff(path: str | os.PathLike[str]) -> str:
    """Return the name of a file's format, by its content.

    Raises:
        TraceError: It does not exist, cannot be read, or has an unknown format; the message says which.
    """
    return recognise(Path(path), None)[1].name


def recognise(path: Path, limit: int | None) -> tuple[Source, Format]:
    """Return the source of a trace and its format.

    Raises:
        TraceError: It does not exist, cannot be read, or has an unknown format; the message says which.
    """
    if os.path.isdir(path):
        for candidate in available().values():
            if candidate.directory is not None and candidate.directory(path):
                return Source(path, 0, "plain"), candidate
    source = open_source(path, limit)
    return source, _format_of(source)


def _format_of(source: Source) -> Format:
    head = first_bytes(source)
    broken: dict[str, str] = {}
    for candidate in available().values():
        try:
            if candidate.sniff(head, source.path):
                return candidate
        except Exception as error:  # noqa: BLE001 - a defect of one format must not hide the others
            broken[candidate.name] = f"it failed: {describe(error)}"
    from tuiprof.plugins import discover

    message, remedy = _explain(head, source)
    if failed := discover("formats").failed | broken:
        unread = "; ".join(f"{name}: {why}" for name, why in failed.items())
        message = f"{message}, or its format is unavailable ({unread})"
    raise TraceError(message, remedy)


def first_bytes(source: Source) -> bytes:
    """Return the first decompressed bytes of a file; raises TraceError if its compression is broken from the start."""
    with source.stream() as stream:
        parts: list[bytes] = []
        size = 0
        try:
            while size < _HEAD and (part := stream.read_some(_HEAD - size)):
                parts.append(part)
                size += len(part)
        except Damaged as damage:
            if not parts:
                raise TraceError(
                    f"{source.path} is a damaged {source.wrapping} file: {damage}", "copy or record it again"
                ) from damage
        return b"".join(parts)


def _explain(head: bytes, source: Source) -> tuple[str, str]:
    """Return what an unsupported file is, and a remedy."""
    path, name = source.path, source.path.name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lowered = text[:512].lower()
    if not text:
        return f"{path} contains only whitespace", "let the profiler finish writing before opening its trace"
    if lowered.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return (
            f"{path} is a web page, not a trace",
            "the download gave an error or login page: fetch the raw file",
        )
    if head.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer, not the trace", "run `git lfs pull`"
    if head.startswith(b"PAR1"):
        return (
            f"{path} is a Parquet table, not a trace that tuiprof reads",
            "Neuron Explorer writes a directory of such tables: give that directory",
        )
    if name.endswith(".xplane.pb"):
        return f"{path} is not an XSpace protobuf (xplane.pb)", "copy or record the file again"
    if head.startswith(b"SQLite format 3"):
        return (
            f"{path} is a SQLite database, possibly from Nsight Systems",
            "tuiprof reads traces of torch.profiler and jax.profiler",
        )
    if head.startswith((b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf")):
        return f"{path} uses an unsupported compression", "unpack it, or compress it with gzip"
    if _is_utf16(head):
        return (
            f"{path} is UTF-16 text; JSON must be UTF-8",
            "convert it (iconv -f UTF-16 -t UTF-8), or write it without the shell's redirection",
        )
    if head[:1] in (b"{", b"["):
        return (
            f"{path} is JSON, but not a trace",
            "a trace is a list of events, or an object with traceEvents",
        )
    if path.suffix == ".py" and _is_text(head):
        from tuiprof.model.characters import shell_word

        return (
            f"{path} is a Python script, not a trace",
            f"run it: tuiprof run -- python {shell_word(str(path))}",
        )
    if _is_text(head):
        return f"{path} is text, but not JSON", "give the .json or .json.gz that the profiler wrote"
    return (
        f"{path} is a binary file of an unknown format",
        "give the .json or .json.gz that the profiler wrote",
    )


def _is_utf16(head: bytes) -> bool:
    """Return whether text begins with a byte order mark, or every other byte is zero, as in Latin text."""
    pairs = head[:512] if len(head) % 2 == 0 or len(head) > 512 else head[:-1]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    first, second = pairs[::2], pairs[1::2]
    return len(pairs) >= 4 and ((not any(first) and all(second)) or (not any(second) and all(first)))


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and sum(byte < 9 for byte in head[:4096]) == 0
