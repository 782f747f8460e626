"""Ending with the terminal, the server or the process that tuiprof serves, and going on under ``nohup``.

SIGHUP announces that a terminal is gone, but it may be ignored; nothing announces that a parent was killed. Either
way the other end of a descriptor is closed, and ``poll`` reports that without reading from it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

#: So long a process that has to end may take to end in order.
GRACE_S: Final = 2.0
_GONE: Final = select.POLLHUP | select.POLLERR
#: Signals ignored when this process was started, as SIGHUP is by ``nohup``; those left out Python ignores itself.
IGNORED: Final = frozenset(
    number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
) - {signal.SIGPIPE, signal.SIGXFSZ}


def on_hang_up(descriptor: int, call: Callable[[], object]) -> None:
    """Call a function once the other end of a terminal, pipe or socket is closed.

    Args:
        descriptor: This end. Where it is none of these, or the system cannot tell, the function is never called.
        call: The function; it runs in a thread of its own.
    """
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups are reported without being asked for

    def wait() -> None:
        with contextlib.suppress(OSError):
            if any(events & _GONE for _, events in poll.poll()):
                call()

    threading.Thread(target=wait, name="hang-up", daemon=True).start()


def exit_within(seconds: float, status: int) -> None:
    """End this process when it has not ended by itself in time, whatever its threads are doing."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True  # or Python would wait for it at the end of a process that ends in time
    timer.start()


def exit_with_parent() -> None:
    """End this process immediately when its parent, which holds the other end of its standard input, ends."""
    on_hang_up(0, lambda: os._exit(128 + signal.SIGHUP))


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Give a standard input for children that call :func:`exit_with_parent`; it is hung up after the block."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


@contextlib.contextmanager
def signals_kept(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP instead of being ended by them; SIGHUP stays ignored under ``nohup``."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - (IGNORED & {signal.SIGHUP})
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
