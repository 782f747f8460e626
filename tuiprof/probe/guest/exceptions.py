"""Exceptions of the script that pass through the probe.

Python runs a signal handler between any two instructions of the main thread, so also between those of a hook. An
exception of the handler (for example a timeout) is meant for the script, and must reach it. And tracebacks of
framework errors inside our wrappers stay the same as without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_VARARGS = 0x04  # inspect.CO_VARARGS


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


@contextmanager
def own_errors_dropped() -> Iterator[None]:
    """Suppress all errors except the script's."""
    try:
        yield
    except Exception as error:
        if raised_by_signal_handler(error):
            raise


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
