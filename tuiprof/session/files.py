"""Writing files that are either whole or not there, and reading the end of files that may be huge."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tuiprof.errors import SessionError

T = TypeVar("T")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees either the old content, or all of the new.

    Args:
        path: The file.
        data: Its content.

    Raises:
        SessionError: It cannot be written; an older file at this path is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the error that matters is the first one
            temporary.unlink()
        raise explain(error, path, "write") from error


def read_end(path: Path, size: int) -> bytes:
    """Return the last bytes of a file.

    Args:
        path: The file.
        size: How many bytes at most.

    Returns:
        Whole lines: the line cut by the start of the block is left out. Empty if there is no such file.
    """
    try:
        with open(path, "rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            block = file.read(size)
    except OSError:
        return b""
    return block if length <= size else block[block.find(b"\n") + 1 :]


def read_versioned(file: Path, kind: type[T], *, what: str, version: int, remedy: str) -> T:
    """Read a JSON file whose ``v`` says which schema wrote it.

    Args:
        file: The file.
        kind: The msgspec struct to read it as.
        what: What the directory around it is, in words: ``"session"``, ``"ladder"``.
        version: The newest schema that can be read.
        remedy: What to do about a damaged file.

    Raises:
        SessionError: There is none, it is not one, or a newer tuiprof wrote it.
    """
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SessionError(f"{file.parent} is not a tuiprof {what} (it has no {file.name})") from error
    except OSError as error:
        raise explain(error, file, "read") from error
    try:
        content: Any = msgspec.json.decode(data)
        found = content["v"]
        if isinstance(found, int) and found > version:
            message = f"{file.parent} was written by a newer tuiprof ({what} schema {found}, this one reads "
            raise SessionError(f"{message}{version})", "upgrade tuiprof: pip install -U tuiprof")
        return msgspec.convert(content, kind)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise SessionError(f"{file} is damaged: {error}", remedy) from error


def explain(error: OSError, path: Path, verb: str) -> SessionError:
    """Return what an operating-system error means for a session.

    Args:
        error: The error.
        path: What was touched.
        verb: What was tried: ``"write"``, ``"create"``, ``"read"``.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free some space, or choose another place with --sessions or TUIPROF_SESSIONS"
        return SessionError(f"no space left to {verb} {path}", remedy)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "choose a directory of your own with --sessions or TUIPROF_SESSIONS"
        return SessionError(f"no permission to {verb} {path}", remedy)
    return SessionError(f"cannot {verb} {path}: {error.strerror or error}")
