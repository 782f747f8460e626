"""Files: written whole or not at all; read only if they are regular, and no further than a limit."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from tuiprof.errors import SessionError
from tuiprof.system.described import described

T = TypeVar("T")

#: What decoding may raise of what is damaged, or made to be: no JSON of this kind, not UTF-8, nested beyond sense.
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: No small file of a session comes near this.
_LARGEST_SMALL: Final = 64 << 20

#: Two threads may write the same file.
_numbers: Final = itertools.count()


def typed_path(text: str) -> Path:
    """Return a path as a user typed it; ``~`` and ``~name`` stand for a home only where there is one."""
    return Path(os.path.expanduser(text))


def similar(path: Path) -> str:
    """Return what may have been meant by a path at which there is nothing; empty = nothing similar is known."""
    from difflib import get_close_matches

    stem = path.name.partition(".")[0]
    try:
        # Files of one kind have much of their name in common: what stands before it has to be similar, too.
        close = [
            name
            for name in get_close_matches(path.name, os.listdir(path.parent), n=5)
            if get_close_matches(stem, [name.partition(".")[0]])
        ]
    except FileNotFoundError:
        return f"the folder {path.parent} does not exist either"
    except OSError as error:
        return f"{path.parent} cannot be read: {error.strerror}"
    return f"did you mean {close[0]!r}?" if close else ""


def size_of(path: Path) -> int:
    """Return the size of a file, bytes; 0 = it was deleted in the meantime."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def text_of(path: Path) -> str:
    """Return the text of a small file, such as the kernel's, without blanks around; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # there is none here, no permission, or what it told of has gone
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a session for reading; it must be a file.

    A session may come from elsewhere: a pipe in it would block its reader, and a device would never end.

    Raises:
        OSError: There is none, it may not be read, or it is something else.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - handed to the caller
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read_small(path: Path, largest: int = _LARGEST_SMALL) -> bytes:
    """Return the content of a small file.

    Raises:
        OSError: It does not exist, cannot be read, is not a regular file, or is not small.
    """
    with open_regular(path) as file:
        data = read_at_most(file, largest + 1)
    if len(data) > largest:
        raise OSError(errno.EINVAL, f"it is larger than {largest >> 20} MiB")
    return data


def read_at_most(file: BinaryIO, size: int) -> bytes:
    """Read the rest of a file up to a limit, into no more memory than that rest takes.

    ``file.read(size)`` first asks for ``size`` bytes however few there are. For a log that is read every second those
    are megabytes for some hundred bytes, and the holes they leave make the heap of a viewer grow by the hour.
    """
    rest = os.fstat(file.fileno()).st_size - file.tell()
    return file.read(min(size, rest)) if rest > 0 else b""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees either the old content, or all of the new.

    Raises:
        SessionError: It cannot be written; an older file at this path is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}.tmp")
    try:
        with _opened_new(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the error that matters is the first one
            temporary.unlink()
        raise explain(error, path, "write") from error


def _opened_new(path: Path) -> BinaryIO:
    """Open a new file; an existing one of this name is removed, as somebody may have guessed the name."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")


def write_inside(folder: Path, name: str, data: bytes) -> None:
    """Write a small file as :func:`write_atomic` does into a folder of a session, but not through a link.

    Raises:
        SessionError: It cannot be written, or the folder is a link.
    """
    if folder.is_symlink():
        raise SessionError(f"{folder} is a link: nothing is written there", "replace it with a folder")
    write_atomic(folder / name, data)


def is_own(path: Path) -> bool:
    """Return whether a file and its folder belong to this user, so that no other user controls its contents."""
    try:
        return all(os.lstat(each).st_uid == os.geteuid() for each in (path, path.parent))
    except OSError:
        return False


def file_system(path: Path) -> str:
    """Return the kind of file system that a path lies on, as the kernel calls it; empty = not known."""
    real = os.path.realpath(path)
    found = ("", "")
    for line in text_of(Path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(found[0]):
            found = point, after.split(" ")[0]
    return found[1]


def read_end(path: Path, size: int) -> bytes:
    """Return the whole lines within the last bytes of a file; empty if there is no such file."""
    try:
        with open_regular(path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            block = read_at_most(file, size)
    except OSError:
        return b""
    return block if length <= size else block[block.find(b"\n") + 1 :]


def read_small_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a small JSON file of a session; None = there is none, or it is damaged."""
    try:
        return msgspec.json.decode(read_small(path), type=described(kind))
    except (OSError, *UNDECODABLE):
        return None


def read_versioned(file: Path, kind: type[T], *, what: str, version: int, remedy: str) -> T:
    """Read a JSON file whose ``v`` says which schema wrote it.

    Raises:
        SessionError: There is none, it is not one, or a newer tuiprof wrote it.
    """
    try:
        data = read_small(file)
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
        return msgspec.convert(content, described(kind))
    except (*UNDECODABLE, KeyError, TypeError) as error:
        raise SessionError(f"{file} is damaged: {error}", remedy) from error


def explain(error: OSError, path: Path, verb: str) -> SessionError:
    """Return what an operating-system error means for a session."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free some space, or choose another folder with --sessions or TUIPROF_SESSIONS"
        return SessionError(f"no space left to {verb} {path}", remedy)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "choose a directory of your own with --sessions or TUIPROF_SESSIONS"
        return SessionError(f"no permission to {verb} {path}", remedy)
    return SessionError(f"cannot {verb} {path}: {error.strerror or error}")
