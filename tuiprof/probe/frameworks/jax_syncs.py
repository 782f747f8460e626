"""Lines that made the host wait for JAX devices: blocking calls are wrapped during a capture.

XLA's Python tracer records the first line of a function, not the executing one. All reads of array values (``float``,
``int``, ``bool``, ``print``, ``jax.device_get``) goes through ``Array._value``; on a CPU NumPy reads the array's
memory without it. Not every runtime notes a call of ``block_until_ready``, so each is marked in the trace under the
name that the user would call it. XPlane files have no system thread ids, so each waiting thread leaves a mark in the
trace with the interpreter's id. Consecutive threads may share it, and a line of the trace.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from typing import Any, Callable

from ..guest.exceptions import own_errors_dropped
from ..sites import SiteWatch

#: Public calls that wait; ``tuiprof/analyses/shared/waits.py`` knows these names.
AWAITS = ("jax.Array.block_until_ready", "jax.block_until_ready")
#: Name of the mark and of the field with the thread's id; ``tuiprof/formats/xplane/words.py`` knows them.
THREAD_MARK, THREAD_ID = "tuiprof.thread", "tuiprof_tid"


class JaxSyncWatch(SiteWatch):
    """Collects host waits between :meth:`start` and :meth:`stop`."""

    _thread_id = staticmethod(threading.get_ident)

    def start(self) -> None:
        """Start collecting; functions missing in this version of JAX are skipped."""
        modules = sys.modules
        array = getattr(modules.get("jax._src.array"), "ArrayImpl", None)
        if array is None:
            return
        value = vars(array).get("_value")
        if isinstance(value, property) and value.fget is not None:
            self._put(array, "_value", property(self._timed(value.fget, "jax.Array._value", _is_cached)))
        self._watch(array, "block_until_ready", AWAITS[0])
        self._watch(modules["jax._src.array"].xc, "batched_block_until_ready", AWAITS[1])
        for name in ("asarray", "array"):
            self._watch(modules["numpy"], name, f"numpy.{name}", lambda value: type(value) is not array)

    def _watch(self, owner: Any, name: str, what: str, skip: Callable[[Any], bool] | None = None) -> None:
        """Wrap a function where there is one."""
        if (original := getattr(owner, name, None)) is not None:
            self._put(owner, name, self._timed(original, what, skip))

    def _put(self, owner: Any, name: str, wrapper: Any) -> None:
        """Install a wrapper, unless this version of JAX does not allow it."""
        with contextlib.suppress(TypeError, AttributeError):
            self._replace(owner, name, wrapper)

    def _timed(self, original: Any, what: str, skip: Callable[[Any], bool] | None) -> Any:
        """Return a function that notes its calls with their length."""
        inside = self._inside
        mark = sys.modules["jax.profiler"].TraceAnnotation if what in AWAITS else _no_mark

        def call(*args: Any, **kwargs: Any) -> Any:
            # One of them calls another: that is one wait.
            if getattr(inside, "on", False) or (skip is not None and (not args or skip(args[0]))):
                return original(*args, **kwargs)
            inside.on = True
            began_ns = time.time_ns()
            try:
                with mark(what):
                    return original(*args, **kwargs)
            finally:
                inside.on = False
                with own_errors_dropped():
                    self._mark_thread()
                    self._saw(what, sys._getframe(1), began_ns)

        with contextlib.suppress(TypeError):  # a method of the extension has no text for a name
            functools.update_wrapper(call, original)
        return call

    def _mark_thread(self) -> None:
        """Mark the thread in the trace, once."""
        if not getattr(self._inside, "marked", False):
            self._inside.marked = True
            with sys.modules["jax.profiler"].TraceAnnotation(THREAD_MARK, **{THREAD_ID: self._thread_id()}):
                pass


def _no_mark(_what: str) -> contextlib.AbstractContextManager[None]:
    """Leave no mark: the runtime itself records array reads."""
    return contextlib.nullcontext()


def _is_cached(array: Any) -> bool:
    """Whether an array's values were read before."""
    return getattr(array, "_npy_value", None) is not None
