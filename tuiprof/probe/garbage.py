"""Python's garbage collector: how long it runs in each step, and ranges of it in a trace."""

from __future__ import annotations

import gc
from collections import deque
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import repeat
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable

#: Kinds of marks: ``kind, at, 0, thread`` (see :mod:`.assembly`).
COLLECTS, COLLECTED = 10, 11
#: The name of the range of a collection in traces.
GARBAGE_RANGE = "Python GC"
#: To time a collection takes about 2.5 µs, the work of the log's thread included. If there are more than so many in a
#: second, that would be more than 0.5 % of the time, and they are no longer timed.
MAX_PER_S = 2000


class _Callback:
    """What the collector calls where a collection begins and ends: no Python code, unless the functions have some.

    The collector may be walking along its list, on any thread. An entry that goes makes it skip the next one, which is
    the script's, so an entry that is not the last one stays, without effect.
    """

    def __init__(self, began: Callable[[Any], None], ended: Callable[[Any], None]) -> None:
        # The collector calls ``getattr(stamps, "start" or "stop", info)``; a property needs a class.
        self._on = {"start": property(began), "stop": property(ended)}
        self._stamps: Any = type("Stamps", (), dict.fromkeys(self._on))
        self._entry: Any = partial(getattr, self._stamps())

    def start(self) -> None:
        """Have it called."""
        self._set(self._on)
        if self._entry not in gc.callbacks:
            gc.callbacks.append(self._entry)

    def stop(self) -> None:
        """Have nothing called; the script may have emptied the list, or empty it meanwhile."""
        self._set(dict.fromkeys(self._on))
        with suppress(IndexError, ValueError):
            if gc.callbacks[-1] is self._entry:
                gc.callbacks.remove(self._entry)

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._stamps, name, value)


class GarbageWatch:
    """Adds a mark where a collection begins and where it ends, on any thread.

    What the collector calls runs no Python code. A signal that arrives during a collection would be handled in the
    first Python function after it, and Python drops the exceptions of what the collector calls (KeyboardInterrupt).
    """

    def __init__(self, marks: deque[Any], collected: Callable[[], Collected]) -> None:
        self._callback = _Callback(_stamp(marks, COLLECTS), _stamp(marks, COLLECTED))
        self._collected = collected
        self._looked_at = self._seen = 0

    def start(self) -> None:
        """Start watching."""
        self._looked_at, self._seen = monotonic_ns(), 0
        self._callback.start()
        self._collected().watched = True

    def stop(self) -> None:
        """Stop watching."""
        self._collected().watched = False
        self._callback.stop()

    def record(self, now: int, n: int) -> dict[str, Any] | None:
        """Return what collections took so far, for the log in which step ``n`` runs; None = nothing is known.

        Stops watching if there are too many.
        """
        collected = self._collected()
        if not collected.watched:
            return None
        seen, passed_ns = collected.seen - self._seen, now - self._looked_at
        self._seen, self._looked_at = collected.seen, now
        if seen * 1e9 > MAX_PER_S * passed_ns:
            self.stop()
        return collected.fields(now, n) if collected.steps else None


def _stamp(marks: deque[Any], kind: int) -> Callable[[Any], None]:
    """Return a function of one argument, without Python code, that adds a mark."""
    added = map(marks.append, zip(repeat(kind), iter(monotonic_ns, None), repeat(0), iter(get_ident, None)))
    return partial(next, added)


class Collected:
    """What collections on the thread that makes the steps took, by their marks."""

    __slots__ = ("_began", "_count", "_ns", "count", "ns", "seen", "squares", "steps", "watched")

    def __init__(self) -> None:
        self.watched = False  # they are timed
        self.seen = 0  # number of collections so far, on all threads
        self.forget()

    def forget(self) -> None:
        """Forget the steps so far."""
        self.steps = 0  # number of steps that were watched, without captured ones
        self.count = self.ns = 0  # number and time of the collections in these steps
        self.squares = 0.0  # sum of the squares of their time in a step, ns²
        self.drop()

    def drop(self) -> None:
        """Forget the running step: it begins here."""
        self._began = self._count = self._ns = 0

    def take(self, kind: int, at: int, is_own: bool) -> None:
        """Add a mark; ``is_own`` = the collection is on the thread that makes the steps."""
        self.seen += kind == COLLECTED
        if is_own and kind == COLLECTED and self._began:
            self._count += 1
            self._ns += at - self._began
        self._began = at if is_own and kind == COLLECTS else 0

    def end_step(self, captured: bool) -> tuple[int, int] | None:
        """Return the number and the time of the collections in the step that ends here; None = there were none."""
        count, ns = self._count, self._ns
        self._count = self._ns = 0
        if self.watched and not captured:
            self.steps += 1
            self.count += count
            self.ns += ns
            self.squares += ns * ns
        return (count, ns) if count else None

    def fields(self, now: int, n: int) -> dict[str, Any]:
        """Return the record of all steps so far."""
        sums = {"steps": self.steps, "count": self.count, "ns": self.ns, "squares": self.squares}
        return {"t": "garbage", "at": now, "n": n, **sums}


class GarbageRanges:
    """Records a range for each collection, on the collecting thread.

    Nothing of it runs outside of collections. It is Python code, unlike :class:`GarbageWatch`: what PyTorch calls for a
    range imports with the builtins of the running frame, which generated code may not have.
    """

    def __init__(self, range_of: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._range_of = range_of
        self._open: AbstractContextManager[Any] | None = None
        self._callback = _Callback(self._began, self._ended)

    def start(self) -> None:
        """Start watching."""
        self._callback.start()

    def stop(self) -> None:
        """Stop watching."""
        self._callback.stop()

    def _began(self, _stamps: Any) -> None:
        try:
            self._open = self._range_of(GARBAGE_RANGE)
            self._open.__enter__()
        except Exception:
            self.stop()  # Python would print exceptions to the script's stderr

    def _ended(self, _stamps: Any) -> None:
        opened, self._open = self._open, None
        try:
            if opened is not None:  # else it had begun before
                opened.__exit__(None, None, None)
        except Exception:
            self.stop()
