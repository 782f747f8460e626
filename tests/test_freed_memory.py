"""Giving memory back, as a screen does that is open for hours."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import pytest

from tuiprof.session.live.tail import BLOCK, LogFile
from tuiprof.system.own_process import return_freed


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


_C_LIBRARY = """
import ctypes

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
"""
_BLOCKS = """
from tuiprof.system.own_process import keep_freed, map_arrays, return_freed

for number, prepare in enumerate((keep_freed, return_freed, keep_freed, map_arrays)):
    prepare()
    before = libc.mallinfo2().hblks
    block = libc.malloc(ctypes.c_size_t(1 << 20 + number))  # larger than the hole that the one before left
    print(libc.mallinfo2().hblks - before)
    libc.free(ctypes.c_void_p(block))
"""


_COLUMNS = """
import numpy as np
from tuiprof.session.live.series import Series
from tuiprof.system.own_process import map_arrays

map_arrays()
series = Series(1 << 16, {"t_ns": (np.int64, 0)})
masks = [np.zeros(60_000, np.bool_) for _ in range(100)]  # smaller than what is mapped
kept_above = np.zeros(60_000, np.bool_)
del masks
before = libc.mallinfo2().uordblks
for _ in range(20):
    series.extend(1 << 14)
print(libc.mallinfo2().uordblks - before)
"""


def _run(script: str) -> list[int]:
    """Run a script with the C library's figures in a process of its own; return what it prints."""
    command = [sys.executable, "-c", _C_LIBRARY + script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs the GNU C library"
)


@needs_glibc
def test_arrays_are_mapped_for_a_screen_and_on_the_heap_for_an_analysis() -> None:
    assert _run(_BLOCKS) == [0, 1, 0, 1]


@needs_glibc
def test_columns_that_are_kept_do_not_move_into_holes_of_the_heap() -> None:
    [grown] = _run(_COLUMNS)
    assert grown < 100_000  # a column is 655 kB
