"""Reads the bytes of a trace from a plain file, a gzip file (also with several members), or a zip archive.

Gzip is decompressed with ISA-L. Memory is allocated as bytes arrive, never ahead of them. Two limits protect against
decompression bombs: one on the decompressed size of a file that is read in blocks, and a lower one on the size of a
file that a format reads as a whole. One environment variable replaces both.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tuiprof.errors import TraceError
from tuiprof.system.files import similar

#: Environment variable that replaces both limits below, in bytes.
LIMIT_VARIABLE = "TUIPROF_MAX_INFLATED_BYTES"
DEFAULT_LIMIT = 8 << 30
#: For formats that are read as a whole: XSpace, the JSON of neuron-profile.
DEFAULT_WHOLE_LIMIT = 512 << 20
_BLOCK = 1 << 20
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_MAX_NESTED_GZIP = 3

Wrapping = Literal["plain", "gzip", "zip"]


class Damaged(Exception):
    """The compressed stream is truncated or corrupt; the bytes before the error are valid."""


@dataclass(frozen=True, slots=True)
class Source:
    """A readable file and its compression."""

    path: Path  # the file
    size: int  # its size on disk, bytes
    wrapping: Wrapping  # its compression, the outermost if there are several
    limit: int = DEFAULT_LIMIT  # maximum decompressed size, bytes
    whole_limit: int = DEFAULT_WHOLE_LIMIT  # maximum size of :meth:`whole`, bytes
    member: str = ""  # the entry of a zip archive

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the decompressed bytes, from the beginning."""
        with self.path.open("rb", buffering=0) as file:
            if self.wrapping == "zip":
                from zipfile import ZipFile

                with _zip_errors(self.path):
                    archive = ZipFile(file)
                with archive:
                    with _zip_errors(self.path):
                        entry = archive.open(self.member)
                    with entry:
                        yield Stream(self, file, _decompressed(entry))
            elif self.wrapping == "gzip":
                yield Stream(self, file, _decompressed(_gunzip(file)))
            else:
                yield Stream(self, file, file)

    def whole(self, padding: bytes = b"") -> bytearray:
        """Return all decompressed bytes followed by ``padding``, for formats that cannot be read in blocks.

        Raises:
            Damaged: The compressed stream is truncated or corrupt.
            TraceError: There are more than ``whole_limit`` bytes, or the file cannot be read.
        """
        data = bytearray()
        with self.stream() as stream:
            while part := stream.read_some(_BLOCK):
                data += part
                if len(data) > self.whole_limit:
                    raise TraceError(
                        f"{self.path} is larger than {self.whole_limit:,} bytes, the limit for formats that are read "
                        "into memory as a whole",
                        f"if it fits into memory, raise the limit with {LIMIT_VARIABLE}=<bytes>",
                    )
        data += padding
        return data

    def extract(self, offset: int, length: int) -> bytes:
        """Return a range of the decompressed bytes; shorter at the end."""
        with self.stream() as stream:
            stream.skip(offset)
            return stream.read(length)


class Stream:
    """The decompressed bytes of a source, in order."""

    def __init__(self, source: Source, file: IO[bytes], content: IO[bytes]) -> None:
        self._source = source
        self._file = file
        self._content = content
        self.at = 0  # number of bytes read so far

    @property
    def consumed(self) -> int:
        """Number of bytes of the file on disk that were read, for progress."""
        return self._file.tell()

    def fileno(self) -> int:
        """Return the descriptor of the file on disk."""
        return self._file.fileno()

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; raises as :meth:`read_some` does."""
        parts: list[bytes] = []
        missing = size
        while missing:
            part = self.read_some(missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; empty only at the end.

        Raises:
            Damaged: The compressed stream is truncated or corrupt at this position.
            TraceError: The file decompresses to more than the limit, or it cannot be read.
        """
        try:
            part: bytes = self._content.read(size)
        except _decompression_errors() as error:
            raise Damaged(str(error)) from error
        except OSError as error:
            raise TraceError(f"{self._source.path}: {error.strerror or error}") from error
        self.at += len(part)
        if self._source.wrapping != "plain" and self.at > self._source.limit:
            raise TraceError(
                f"{self._source.path} decompresses to more than {self._source.limit:,} bytes",
                f"if you trust it, raise the limit with {LIMIT_VARIABLE}=<bytes>",
            )
        return part

    def skip(self, size: int) -> None:
        """Skip the next ``size`` bytes, fewer at the end."""
        if self._content is self._file:
            self._file.seek(size, os.SEEK_CUR)
            self.at += size
            return
        while size:
            part = self.read_some(min(size, 1 << 20))
            if not part:
                return
            size -= len(part)


def open_source(path: Path, limit: int | None = None) -> Source:
    """Check that a file can be read, and detect its compression.

    Raises:
        TraceError: The file does not exist, cannot be read, is empty, or is not a regular file.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}", similar(path)) from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise TraceError(f"{path} is a directory", _traces_in(path))
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(f"{path} is not a regular file", "save the trace to a file first")
    if not status.st_size:
        raise TraceError(f"{path} is empty", "let the profiler finish writing before opening its trace")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    limits = _limits(limit)
    if magic.startswith(_GZIP):
        return Source(path, status.st_size, "gzip", *limits)
    if magic == _ZIP:
        return Source(path, status.st_size, "zip", *limits, _entry(path))
    return Source(path, status.st_size, "plain", *limits)


def _limits(limit: int | None) -> tuple[int, int]:
    """Return the maximum decompressed size of a file, and the maximum size of a file that is read as a whole."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if limit is None and not text:
        return DEFAULT_LIMIT, DEFAULT_WHOLE_LIMIT
    try:
        limit = int(text) if limit is None else limit
    except ValueError:
        raise TraceError(f"{LIMIT_VARIABLE}={text!r} is not a number", "give a number of bytes") from None
    return limit, limit


def _decompression_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that decompressors raise for a truncated or corrupt stream."""
    from gzip import BadGzipFile
    from lzma import LZMAError
    from zipfile import BadZipFile

    from isal import isal_zlib

    isal_error: Any = isal_zlib.error
    return EOFError, BadGzipFile, BadZipFile, LZMAError, zlib.error, isal_error


def _gunzip(file: IO[bytes]) -> IO[bytes]:
    from isal import igzip

    opened: IO[bytes] = igzip.open(file, "rb")  # type: ignore[no-untyped-call]
    return opened


def _decompressed(stream: IO[bytes]) -> IO[bytes]:
    """Decompress gzip inside gzip or zip, for example a file that a browser or a script compressed again."""
    unreadable: tuple[type[Exception], ...] = (*_decompression_errors(), OSError)
    for _ in range(_MAX_NESTED_GZIP):
        buffered = io.BufferedReader(stream, 1 << 17)  # type: ignore[type-var]
        try:
            if not buffered.peek(2).startswith(_GZIP):
                return buffered
        except unreadable:
            return buffered  # the caller gets and reports the same error
        stream = _gunzip(buffered)
    return stream


@contextmanager
def _zip_errors(path: Path) -> Iterator[None]:
    """Convert the exceptions of ``zipfile`` for an unreadable archive to a TraceError."""
    import struct
    import zipfile

    try:
        yield
    except NotImplementedError as error:  # the compression method or the version
        raise TraceError(
            f"{path} is an unsupported kind of zip archive: {error}", "unpack it first"
        ) from error
    except RuntimeError as error:
        raise TraceError(f"{path} cannot be unpacked: {error}", "unpack it first") from error
    except (zipfile.BadZipFile, struct.error, KeyError, ValueError, EOFError, OSError) as error:
        raise TraceError(f"{path} is a damaged zip archive: {error}", "copy or record it again") from error


def _entry(path: Path) -> str:
    """Return the name of the entry of a zip archive that is the trace."""
    from zipfile import ZipFile

    with _zip_errors(path), ZipFile(path) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
    traces = [info for info in files if info.filename.endswith((".json", ".json.gz"))] or files
    if len(traces) != 1:
        names = ", ".join(info.filename for info in traces[:5]) or "nothing"
        raise TraceError(
            f"{path} contains {len(traces)} files that could be the trace ({names})", "unpack it and open one"
        )
    if traces[0].flag_bits & 1:
        raise TraceError(f"{path} is encrypted", "unpack it first")
    return traces[0].filename


def _traces_in(path: Path) -> str:
    try:
        names = sorted(e.name for e in os.scandir(path) if e.name.endswith((".json", ".json.gz", ".pb")))
    except OSError:
        return "give a file"
    if not names:
        return "it contains no trace; give a file"
    return f"give one of its {len(names)} traces, for example {path / names[0]}"
