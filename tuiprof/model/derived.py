"""What is derived from a trace: computed once, on first use, and kept for as long as the trace lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    derived = cached_property  # type checkers know this one by name
else:

    class derived(cached_property):  # noqa: N801 - a decorator, as the one it extends
        """A cached property that one thread computes while all others that ask wait for it.

        Python up to 3.11 did this for every cached property; what takes as long as the links of a million events should
        not be computed twice at the same time in later versions either.
        """

        def __init__(self, make) -> None:
            super().__init__(make)
            self._guard = RLock()

        def __get__(self, instance, owner=None):
            """Return it, computed if need be."""
            with self._guard:
                return super().__get__(instance, owner)


_MISSING: Final = object()
_guard = Lock()


@dataclass(slots=True)
class Derivation:
    """One cached result, and the lock that makes one thread compute it while the others wait."""

    value: Any = _MISSING
    lock: RLock = field(default_factory=RLock)


class cached_on_trace(Generic[P, T]):  # noqa: N801 - a decorator, as functools.cache
    """Decorator for a pure function of a trace: each trace keeps what the function returned, by its arguments.

    The arguments after the trace are positional and hashable. The result may refer to the trace. It is held by the
    trace alone, so both are freed together; a global cache, even one with weak keys, would keep them alive. A trace
    never changes, so a result never expires. An error is not kept.
    """

    def __init__(self, make: Callable[Concatenate[Trace, P], T]) -> None:
        self._make = make
        update_wrapper(self, make)

    def __call__(self, trace: Trace, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result for these arguments, computed the first time."""
        if kwargs:
            raise TypeError("pass the arguments of a function that is cached on a trace by position")
        with _guard:
            kept = trace.derivations.setdefault((self, args), Derivation())
        if kept.value is _MISSING:
            with kept.lock:
                if kept.value is _MISSING:
                    kept.value = self._make(trace, *args, **kwargs)
        value: T = kept.value
        return value

    def is_cached(self, trace: Trace, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return whether the result for these arguments is known, so that calling returns at once."""
        kept = trace.derivations.get((self, args))
        return kept is not None and kept.value is not _MISSING
