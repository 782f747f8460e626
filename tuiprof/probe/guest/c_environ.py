"""An environment variable that only C code of this process sees, temporarily.

``os.environ`` is a copy that Python makes when it starts, so it does not change. The variable is put into a second
array of pointers, which becomes the process's ``environ``: unlike ``setenv``, which may free the old array, this is
safe for threads that read the environment at the same time.

A process started by another thread in that time inherits the variable.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Iterator
from typing import Any

# Another thread may still read a replaced array, so arrays are never freed.
_READ: deque[Any] = deque(maxlen=64)
_IN_USE: list[Any] = []


@contextlib.contextmanager
def visible_to_c(name: str, value: str) -> Iterator[None]:
    """Make ``getenv`` find a variable that is not set.

    Raises:
        ValueError: This C library has no ``environ``.
    """
    library = ctypes.CDLL(None)
    variable = ctypes.c_void_p.in_dll(library, "environ")
    text = ctypes.create_string_buffer(f"{name}={value}".encode())
    before = variable.value
    entries = _entries(before)
    array = (ctypes.c_void_p * (len(entries) + 2))(ctypes.addressof(text), *entries, None)
    _READ.append((text, array))
    variable.value = ours = ctypes.addressof(array)
    try:
        yield
    finally:
        if variable.value == ours and _entries(ours)[1:] == entries == _entries(before):
            variable.value = before
        else:  # the script has set a variable in the meantime: keep its array
            library.unsetenv(name.encode())
            _IN_USE.append((text, array))


def _entries(address: int | None) -> list[int]:
    """Return the pointers of an environment."""
    found: list[int] = []
    if address:
        array = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
        while entry := array[len(found)]:
            found.append(entry)
    return found
