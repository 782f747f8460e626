"""Giving memory back, as a screen does that is open for hours."""

from __future__ import annotations

import gc
import weakref

from tuiprof.system.memory import return_freed


class Ring:
    """Refers to itself, as the strips of Textual do that keep what they were cut into."""

    def __init__(self) -> None:
        self.itself = self


def test_what_refers_to_itself_is_freed_before_memory_is_given_back() -> None:
    gc.disable()
    try:
        ring = weakref.ref(Ring())
        assert ring() is not None
        return_freed()
        assert ring() is None
    finally:
        gc.enable()
