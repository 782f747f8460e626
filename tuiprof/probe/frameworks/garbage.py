"""Python's garbage collections, as ranges in a capture: a trace without Python frames does not show them."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Any, Callable

NAME = "Python GC"


class GarbageRanges:
    """Records a range for each collection, on the collecting thread.

    Nothing of it runs outside of collections.
    """

    def __init__(self, range_of: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._range_of = range_of
        self._open: AbstractContextManager[Any] | None = None
        self._callback = self._collects  # each access creates a new bound method

    def start(self) -> None:
        """Start watching."""
        gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Stop watching; the script may have emptied the list."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        try:
            if phase == "start":
                self._open = self._range_of(NAME)
                self._open.__enter__()
            elif self._open is not None:  # else it had begun before
                opened, self._open = self._open, None
                opened.__exit__(None, None, None)
        except Exception:
            self.stop()  # Python would print exceptions to the script's stderr
