"""Keeps the probe's threads, files and errors apart from the script's.

*Threads* are started below :mod:`threading`, which counts and lists only the script's threads, as scripts wait for
``threading.active_count() == 1``. All signals are blocked in them, because a signal that the script blocks in its own
threads, for ``sigwait``, would otherwise be delivered here and end the process. Code that runs in such a thread must
not call ``threading.current_thread``: that would list it.

*Files.* A script that becomes a daemon closes all descriptors, and its next file gets one of the free numbers. So
before each use the descriptor is checked; if it is no longer our file, the file is reopened, and the number belongs to
the script.

*Exceptions.* Python runs a signal handler between any two instructions of the main thread, so also between those of a
hook. An exception of the handler (for example a timeout) is meant for the script, and must reach it. And tracebacks of
framework errors inside our wrappers stay the same as without them.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Callable

#: Beginning of the path of every file of the probe.
OWN_FILES = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LAST_S = 0.1  # wait for the end of a thread
_HIGH = 200  # scripts keep getting the lowest free numbers, as without the probe
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)
_VARARGS = 0x04  # inspect.CO_VARARGS


class ProbeThread:
    """A thread that ends with the interpreter, unless it has ended before."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._ident = self._native_id = -1
        self._running = _thread.allocate_lock()

    def start(self) -> None:
        """Begin, once.

        A handler of the script may run here and raise an exception, when signals are delivered again: the thread
        has begun then.

        Raises:
            RuntimeError: The system has no thread to give.
        """
        with signals_blocked():  # which a new thread inherits
            self._running.acquire()
            try:
                self._ident = _thread.start_new_thread(self._bootstrap, ())
            except RuntimeError:
                self._running.release()
                raise

    def start_or_run(self) -> None:
        """Begin; where the system has no thread to give, do the work here."""
        try:
            self.start()
        except RuntimeError:
            if self._ident != -1:  # it has begun: the error is that of a handler of the script
                raise
            self._run()

    def _bootstrap(self) -> None:
        self._native_id = _thread.get_native_id()
        run = self._run
        del self._run  # and all that it holds, such as a profiler with its events
        try:
            run()
        except BaseException as error:  # otherwise it would go unnoticed
            sys.stderr.write(f"tuiprof: a thread of the probe failed: {error!r}\n")
        finally:
            self._running.release()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return _thread.get_ident() == self._ident

    @property
    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._running.locked()

    def join(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        if not self._running.acquire(timeout=seconds):
            return False
        self._running.release()
        # What is left of it is some microseconds in the system, in which a fork would be warned about.
        deadline = time.monotonic() + _LAST_S
        while os.path.exists(f"/proc/self/task/{self._native_id}") and time.monotonic() < deadline:
            time.sleep(0.0001)
        return True


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals to this thread; pending ones are delivered afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # A handler may raise an exception here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_of_python(ident: int) -> bool:
    """Whether a thread was begun by Python: the main one, or one that :mod:`threading` started.

    The others belong to C++ (autograd for a GPU, runtime callbacks), which calls into Python.
    """
    dummy = getattr(threading, "_DummyThread", None)
    known = getattr(threading, "_active", {}).get(ident)
    return known is not None and (dummy is None or not isinstance(known, dummy))


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
        """Return the descriptor, for the very next call; raises ClosedByScript if it was closed and deleted."""
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
    """A new file for appending, in a folder that exists.

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


def write_file(path: str, data: bytes) -> None:
    """Write a new file.

    Raises:
        FileExistsError: It exists.
        OSError: It cannot be written.
    """
    file = OwnFile(path)
    try:
        file.append(data)
    finally:
        file.close()


def pieces(path: str, size: int) -> Iterator[bytes]:
    """Read a file piece by piece; raises OSError if it cannot be read."""
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


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether an exception went through a signal handler written in Python.

    Python gives a handler the frame that it interrupts, which is that of its caller, or one that the import system
    has taken out of the traceback. Other functions are given no frame, or one further out.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        called = entry.tb_next.tb_frame
        if any(_is_below(argument, entry.tb_frame) for argument in _arguments(called)):
            return True
        entry = entry.tb_next
    return False


@contextlib.contextmanager
def own_errors_reported(report: Callable[[Exception], object]) -> Iterator[None]:
    """Pass an error to ``report`` instead of raising it, unless it is the script's."""
    try:
        yield
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        report(error)


def own_errors_dropped() -> contextlib.AbstractContextManager[None]:
    """Suppress all errors except the script's."""
    return own_errors_reported(lambda error: None)


def leave_out(error: BaseException) -> None:
    """Remove the caller's frame, a wrapper of the probe, from an exception that it is about to re-raise.

    Up to Python 3.10 it remains in the printed traceback.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _arguments(frame: FrameType) -> list[Any]:
    """Return what a function was called with."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & _VARARGS:
        values += frame.f_locals.get(code.co_varnames[count], ())
    return values


def _is_below(value: Any, frame: FrameType) -> bool:
    """Whether something is a frame, or one that was called from it."""
    below = value if isinstance(value, FrameType) else None
    while below is not None and below is not frame:
        below = below.f_back
    return below is not None
