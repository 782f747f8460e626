"""Flax NNX and Equinox: calls of their jitted functions; the one that repeats is the step.

Their ``jit`` returns an object of a Python class, unlike ``jax.jit``, whose objects call nothing in Python.
"""

from __future__ import annotations

import functools
import sys
import threading
from time import monotonic_ns
from typing import Any

from ..finding.nested_loops import AROUND, Site, relation, script_sites
from ..guest.exceptions import leave_out
from ..runtime import Runtime
from ..steps import JITTED

_CLASSES = ("JitWrapped", "SimpleJitWrapped", "SimpleJitPartialWrapped", "_JitWrapper")
#: The first function with this many calls is the step, or the first that trains; after this many calls of others
#: without it, one of those with more calls than it, which excludes occasional evaluations.
_QUIET, _OF_OTHERS = 3, 32
#: A function called in a loop inside another's loop is part of the other's step, up to this many calls.
_MOST_PARTS = 256
#: Types of which a returned object is not the given one.
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, list)


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
        self._training: set[int] = set()  # functions that train, by what they take and return
        self._sites: list[Site] = []  # where that was called first
        self._looked_at: set[int] = set()  # others known not to contain it
        self._others = self._row = self._longest_row = 0
        self.inside = threading.local()

    def returned(self, function: Any, args: tuple[Any, ...], result: Any, t: int) -> None:
        """See whether a call was a step."""
        if not self._hook.on or self._steps.source > JITTED:
            return
        try:
            key = id(function)
            if key != self._chosen:
                if key not in self._counts and updates(args, result):
                    self._training.add(key)
                if not self._choose(key, function, t):
                    return
            self._others = 0
            self._row += 1
            self._longest_row = max(self._longest_row, self._row)
            self._steps.end(JITTED, t)
        except Exception:
            self._hook.failed()

    def _choose(self, key: int, function: Any, t: int) -> bool:
        """Return whether a function becomes the step."""
        count = self._counts.get(key, (0, None))[0] + 1
        if len(self._counts) < 256 or key in self._counts:
            self._counts[key] = count, function
        self._others += bool(self._chosen)
        self._row = 0
        better = (key in self._training) - (self._chosen in self._training)
        around = self._chosen and key not in self._looked_at and self._is_around(key)
        if (not around and count < _QUIET) or (self._chosen and better < 0):
            return False
        oftener = self._others > _OF_OTHERS and count > self._steps.n
        if self._chosen and not (around or better or oftener):
            return False
        self._steps.missed = count - 1
        if self._chosen:
            self._steps.withdraw(JITTED, t)
        self._chosen, self._sites = key, script_sites(sys._getframe(2))
        self._looked_at.clear()
        self._row = self._longest_row = 0
        return True

    def _is_around(self, key: int) -> bool:
        """Whether the step is called in a loop inside the loop in which another function is called now."""
        if self._longest_row < 2 and self._steps.n <= _OF_OTHERS:
            return False  # as often as the other, as far as known
        self._looked_at.add(key)
        few = self._longest_row >= 2 and self._steps.n <= _MOST_PARTS
        return few and relation(self._sites, script_sites(sys._getframe(3))) == AROUND


def updates(args: tuple[Any, ...], result: Any) -> bool:
    """Whether a call trains: it returns something that it was given in a new version, or was given an optimizer."""
    given = [one for one in args if not isinstance(one, _PLAIN) and not hasattr(one, "dtype")]
    returned = result if isinstance(result, (tuple, list)) else (result,)
    return any("optimizer" in type(one).__name__.lower() for one in given) or any(
        type(one) is type(new) and (not isinstance(one, dict) or list(one) == list(new))
        for one in given
        for new in returned
    )


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
        calls.returned(self, args, result, monotonic_ns())
        return result

    __call__._tuiprof = True  # type: ignore[attr-defined]
    kind.__call__ = __call__
