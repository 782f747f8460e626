"""Giving memory back, as a screen does that is open for hours."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path

from tuiprof.session.live.tail import BLOCK, LogFile
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


def test_a_log_with_a_few_new_lines_is_read_into_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "rank0.jsonl"
    file = LogFile(log)
    with log.open("ab", buffering=0) as writer:
        for n in range(3):
            writer.write(b'{"t":"note","at":%d,"level":"info","text":"x"}\n' % n)
            tracemalloc.start()
            assert len(file.read()) == 1
            assert tracemalloc.get_traced_memory()[1] < BLOCK / 20
            tracemalloc.stop()
    file.close()
