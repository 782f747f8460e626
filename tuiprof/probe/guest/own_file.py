"""Files of the session that the probe keeps open while the script closes descriptors that it does not know.

A script that becomes a daemon closes all descriptors, and its next file gets one of the free numbers. So before each
use the descriptor is checked; if it is no longer our file, the file is reopened, and the number belongs to the script.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_HIGH = 200  # scripts keep getting the lowest free numbers, as without the probe
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)


class ClosedByScript(OSError):
    """The script has closed the file, and it cannot be opened again."""


class _Held:
    """A file that stays open, whatever the script closes.

    It is opened non-blocking, which has no effect on files and distinguishes it from the script's (see :meth:`fd`).
    """

    def __init__(self, path: str, flags: int, making: int = 0) -> None:
        self._path = path
        self._flags = flags | _NON_BLOCKING | getattr(os, "O_CLOEXEC", 0)
        self._fd = _out_of_the_way(os.open(path, self._flags | making, 0o644))
        self._identity = _identity(self._fd)

    def fd(self) -> int:
        """Return the descriptor, for the very next call.

        Raises:
            ClosedByScript: It was closed and deleted.
        """
        while not self._is_ours():
            self._open_again()
        return self._fd

    def close(self) -> None:
        """Close it, unless the script has done so."""
        if self._is_ours():
            os.close(self._fd)
        self._fd = -1

    def _is_ours(self) -> bool:
        if self._fd < 0:
            return False
        try:
            if _identity(self._fd) != self._identity:
                return False
            # fstat() releases the GIL, so the script's threads may close the file and open another. This call does
            # not, and a file that reuses the number is unlikely to be non-blocking.
            return not _NON_BLOCKING or not os.get_blocking(self._fd)
        except OSError:
            return False

    def _open_again(self) -> None:
        self._fd = -1  # the descriptor belongs to another file now
        try:
            fd = _out_of_the_way(os.open(self._path, self._flags))
        except OSError as error:
            raise ClosedByScript(*error.args) from error
        if _identity(fd) != self._identity:
            os.close(fd)
            raise ClosedByScript(f"{self._path} was replaced by another file")
        self._fd = fd


class OwnFile(_Held):
    """A new file for appending.

    Args:
        path: Where it is to be; the folder must exist.

    Raises:
        FileExistsError: It exists.
        OSError: It cannot be made.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_WRONLY | os.O_APPEND, os.O_CREAT | os.O_EXCL)

    def append(self, data: bytes) -> None:
        """Write at the end.

        Raises:
            ClosedByScript: It was closed and deleted.
            OSError: It cannot be written.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd(), view) :]


def pieces(path: str, size: int) -> Iterator[bytes]:
    """Read a file piece by piece.

    Raises:
        OSError: It cannot be read.
    """
    file = _Held(path, os.O_RDONLY)
    try:
        offset = 0
        while piece := os.pread(file.fd(), size, offset):
            offset += len(piece)
            yield piece
    finally:
        file.close()


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _out_of_the_way(fd: int) -> int:
    """Give a descriptor a high number, where the system has one."""
    try:
        import fcntl

        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except (ImportError, OSError):  # Windows; the limit of descriptors is low
        return fd
    os.close(fd)
    return high
