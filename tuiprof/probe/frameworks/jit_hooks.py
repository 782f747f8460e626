"""Flax NNX and Equinox: the calls of their jitted functions, of which the one that comes again and again is the step.

Their ``jit`` returns an object of a Python class, unlike ``jax.jit``, whose objects call nothing in Python.
"""

from __future__ import annotations

import functools
import threading
from time import monotonic_ns
from typing import Any

from ..guest.exceptions import leave_out
from ..runtime import Runtime
from ..steps import JITTED

_CLASSES = ("JitWrapped", "SimpleJitWrapped", "SimpleJitPartialWrapped", "_JitWrapper")
#: The first function that is called so often is the step; after so many calls of others without it, one of those.
_QUIET, _OF_OTHERS = 3, 32


def install(runtime: Runtime, module: Any) -> None:
    """Wrap the calls of jitted functions."""
    calls = _Calls(runtime)
    for name in _CLASSES:
        kind = getattr(module, name, None)
        if kind is not None and "__call__" in vars(kind) and not getattr(kind.__call__, "_tuiprof", False):
            _wrap(kind, calls)


class _Calls:
    """Counts the calls of each jitted function."""

    def __init__(self, runtime: Runtime) -> None:
        self._hook = runtime.hook("jitted functions")
        self._steps = runtime.steps
        self._counts: dict[int, tuple[int, Any]] = {}  # the functions are kept, so that no two share a number
        self._chosen = 0
        self._others = 0
        self.inside = threading.local()

    def returned(self, function: Any, t: int) -> None:
        """See whether a call was a step."""
        if not self._hook.on or self._steps.source > JITTED:
            return
        try:
            key = id(function)
            if key != self._chosen and not self._choose(key, function, t):
                return
            self._others = 0
            self._steps.end(JITTED, t)
        except Exception:
            self._hook.failed()

    def _choose(self, key: int, function: Any, t: int) -> bool:
        """Return whether a function is the step from now on."""
        count = self._counts.get(key, (0, None))[0] + 1
        if len(self._counts) < 256 or key in self._counts:
            self._counts[key] = count, function
        self._others += bool(self._chosen)
        if count < _QUIET or (self._chosen and self._others <= _OF_OTHERS):
            return False
        if self._chosen:
            self._steps.withdraw(JITTED, t)
        self._steps.missed = count - 1
        self._chosen = key
        return True


def _wrap(kind: Any, calls: _Calls) -> None:
    original = kind.__call__
    inside = calls.inside

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if getattr(inside, "on", False):  # called while another one is traced
            return original(self, *args, **kwargs)
        inside.on = True
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            inside.on = False
        calls.returned(self, monotonic_ns())
        return result

    __call__._tuiprof = True  # type: ignore[attr-defined]
    kind.__call__ = __call__
