"""Calls a function on the main thread, between two instructions."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable

from .isolation import own_errors_dropped

_CALLED: deque[Any] = deque(maxlen=16)  # the interpreter may still hold what it has called


def call_on_main_thread(function: Callable[[], None]) -> bool:
    """Let the main thread call a function as soon as it executes Python, as it does with signal handlers.

    Returns False where too many calls wait already, or this Python cannot.
    """
    call = _PendingCall(function)
    _CALLED.append(call)
    # Not before a framework has: newer versions of libffi keep the lowest free descriptor.
    import ctypes

    add = getattr(ctypes.pythonapi, "Py_AddPendingCall", None)
    # Not a callback of ctypes, which drops exceptions.
    test = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    return add is not None and add(test, ctypes.py_object(call)) == 0


class _PendingCall:
    """Calls a function when its truth is tested; 0 tells the interpreter that a pending call has succeeded."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __bool__(self) -> bool:
        with own_errors_dropped():
            self._function()
        return False
