"""Threads of the probe, invisible to the script: it does not count them, and they receive none of its signals.

They are started below :mod:`threading`, which counts and lists only the script's threads, as scripts wait for
``threading.active_count() == 1``. All signals are blocked in them, because a signal that the script blocks in its own
threads, for ``sigwait``, would otherwise be delivered here and end the process.

Code that runs in such a thread must not call ``threading.current_thread``: that would list it.
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
from typing import Callable

_LAST_S = 0.1


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

    def _bootstrap(self) -> None:
        self._native_id = _thread.get_native_id()
        try:
            self._run()
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
        """Wait for its end.

        Returns:
            Whether it has ended.
        """
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
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
