"""A file of the session that the probe keeps open while the script closes descriptors that it does not know.

A script that becomes a daemon closes all descriptors there are, and the next file that it opens gets one of the
numbers that were free then. So before each use it is looked at what lies behind the number; where it is not our file
any more, that is opened again, and the number is the script's.
"""

from __future__ import annotations

import os

_HIGH = 200  # scripts that look at their descriptors get the lowest free numbers, as without the probe


class ClosedByScript(OSError):
    """The script has closed the file, and it cannot be opened again."""


class OwnFile:
    """A file that is appended to.

    Args:
        path: Where it is to be; the folder must exist.

    Raises:
        FileExistsError: It exists.
        OSError: It cannot be made.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd = _out_of_the_way(os.open(path, self._flags | os.O_CREAT | os.O_EXCL, 0o644))
        self._identity = _identity(self._fd)

    def append(self, data: bytes) -> None:
        """Write at the end.

        Raises:
            ClosedByScript: It is not open any more, and gone.
            OSError: It cannot be written.
        """
        view = memoryview(data)
        while view:
            if not self._is_ours():
                self._open_again()
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close it, unless the script has done so."""
        if self._is_ours():
            os.close(self._fd)
        self._fd = -1

    def _is_ours(self) -> bool:
        try:
            return self._fd >= 0 and _identity(self._fd) == self._identity
        except OSError:
            return False

    def _open_again(self) -> None:
        self._fd = -1  # the number is somebody else's
        try:
            fd = _out_of_the_way(os.open(self.path, self._flags))
        except OSError as error:
            raise ClosedByScript(*error.args) from error
        if _identity(fd) != self._identity:
            os.close(fd)
            raise ClosedByScript(f"{self.path} is another file now")
        self._fd = fd


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
