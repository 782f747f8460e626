"""Types of msgspec that several threads decode.

msgspec describes a Struct when it is decoded for the first time, and lets other threads see the description before it
is complete: two threads that decode a type for the first time at once end the process with SIGSEGV (0.22). Decoders
that a module makes as it is imported are safe, as other threads wait for the import.
"""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import msgspec

_T = TypeVar("_T")
_lock = Lock()
_known: set[object] = set()


def described(kind: type[_T]) -> type[_T]:
    """Return a type once msgspec has its description, and those of the types of its fields."""
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
