"""Results that several analyses share, kept for as long as their trace lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tuiprof.model import Trace

T = TypeVar("T")

_kept: WeakKeyDictionary[Trace, dict[str, Any]] = WeakKeyDictionary()


def remember(trace: Trace, key: str, make: Callable[[], T]) -> T:
    """Return what was made for this trace under this key, making it the first time.

    Args:
        trace: The trace; a trace never changes, so what is derived from it stays right.
        key: A name of the module that calls.
        make: Makes it.
    """
    kept = _kept.setdefault(trace, {})
    if key not in kept:
        kept[key] = make()
    value: T = kept[key]
    return value


def is_remembered(trace: Trace, key: str) -> bool:
    """Return whether something was made for this trace under this key already.

    Args:
        trace: The trace.
        key: A name of the module that calls.
    """
    return key in _kept.get(trace, {})
