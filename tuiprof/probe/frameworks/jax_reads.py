"""JAX before Python 3.12: the iterations of a loop, by an array that each of them reads.

Nothing calls back at the jumps of a loop there (see :mod:`..steps.loop_steps`). But the methods that read an array of
JAX, or wait for it, are Python functions: ``float(loss)`` and ``loss.block_until_ready()`` call one. So are
``jax.block_until_ready`` and ``jax.device_get``. If the loop itself
makes such a call, where no iteration can pass it by, it ends a step.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import Any, Callable

from ..isolation import OWN_FILES, leave_out, own_errors_dropped
from ..sampler import Loop, is_always_run

_READS = (
    "__float__",
    "__int__",
    "__bool__",
    "__format__",
    "__array__",
    "item",
    "tolist",
    "block_until_ready",
)
#: Functions of ``jax`` that read the arrays given to them, or wait for them.
_FUNCTIONS = ("block_until_ready", "device_get")


class JaxReads:
    """Calls ``ended`` where an iteration of a loop of the main thread reads an array, until :meth:`stop`."""

    def __init__(self, loop: Loop, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._main = threading.main_thread().ident
        self._site: Any = None  # the call that ends steps; None = it was not seen yet
        self._passed_by: set[Any] = set()
        # Python 3.11 takes a call for made at one or the other of its instructions, as it learns what is called.
        positions = getattr(loop.code, "co_positions", None)
        self._places: list[Any] = list(positions()) if positions is not None else []
        self._ending = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # of what, name, before, and by what
        self._array: Any = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
        for of, names in ((self._array, _READS), (sys.modules.get("jax"), _FUNCTIONS)):
            for name in names:
                original = vars(of).get(name) if of is not None else None
                if callable(original):
                    noticed = self._noticed(original)
                    self._replaced.append((of, name, original, noticed))
                    setattr(of, name, noticed)

    def stop(self) -> None:
        """Restore the methods and functions, unless something else has replaced them since."""
        for of, name, original, noticed in self._replaced:
            if vars(of).get(name) is noticed:
                setattr(of, name, original)
        self._replaced.clear()

    def _noticed(self, original: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            with own_errors_dropped():
                frame = sys._getframe(1)
                while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FILES):
                    frame = frame.f_back  # those of a capture
                if frame.f_code is self._loop.code and threading.get_ident() == self._main:
                    self._read_at(frame.f_lasti)
            return result

        with contextlib.suppress(TypeError):  # a method of the extension has no text for a name
            functools.update_wrapper(read, original)
        return read

    def _read_at(self, at: int) -> None:
        site = self._places[at // 2] if self._places else at
        if self._site is None and site not in self._passed_by:
            if is_always_run(self._loop, at):
                self._site = site
            else:
                self._passed_by.add(site)
        if site == self._site and not self._ending:
            self._ending = True  # a capture that begins or ends there waits for arrays itself
            try:
                self._ended()
            finally:
                self._ending = False
