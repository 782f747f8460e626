"""Results that several analyses share, kept for as long as their trace lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any, TypeVar

from tuiprof.model import Trace

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """What was made for one trace, and a lock for each thing, so that of several threads one makes it."""

    values: dict[str, Any] = field(default_factory=dict)
    locks: dict[str, RLock] = field(default_factory=dict)


#: Attribute of a trace. What is kept may refer to its trace, and a table of traces, weak or not, would then keep both.
_ATTRIBUTE = "_kept_by_analyses"
_guard = Lock()


def remember(trace: Trace, key: str, make: Callable[[], T]) -> T:
    """Return what was made for this trace under this key, making it the first time.

    Another thread that asks for it meanwhile waits until it is made.

    Args:
        trace: The trace; a trace never changes, so what is derived from it stays right.
        key: A name of the module that calls.
        make: Makes it.
    """
    with _guard:
        kept: _Kept = vars(trace).setdefault(_ATTRIBUTE, _Kept())
        lock = kept.locks.setdefault(key, RLock())
    if key not in kept.values:
        with lock:
            if key not in kept.values:
                kept.values[key] = make()
    value: T = kept.values[key]
    return value


def is_remembered(trace: Trace, key: str) -> bool:
    """Return whether something was made for this trace under this key already.

    Args:
        trace: The trace.
        key: A name of the module that calls.
    """
    kept: _Kept | None = vars(trace).get(_ATTRIBUTE)
    return kept is not None and key in kept.values
