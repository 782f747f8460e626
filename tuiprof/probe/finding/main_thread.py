"""Runs a function on the main thread, between two instructions of whatever it executes there."""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import suppress
from typing import Any, Callable

_CALLED: deque[Any] = deque(maxlen=16)  # the interpreter may still hold what it has called


def call_on_main_thread(function: Callable[[], None]) -> bool:
    """Let the main thread call a function as soon as it executes Python, as it does with signal handlers.

    Args:
        function: Must not raise.

    Returns:
        Whether that will happen; False = too many calls wait already, or this Python cannot.
    """

    def pending(_: Any) -> int:
        with suppress(Exception):  # it would be the script's
            function()
        return 0

    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(pending)
    _CALLED.append(call)
    add = getattr(ctypes.pythonapi, "Py_AddPendingCall", None)
    return add is not None and add(call, None) == 0
