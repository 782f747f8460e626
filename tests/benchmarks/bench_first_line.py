"""How soon ``tuiprof report`` says something of a 20 MB trace: its first line, and the whole page.

::

    pytest -m bench -s tests/benchmarks/bench_first_line.py

Processor time stands beside wall time, because the machine may be shared; the best of several runs is judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.make_trace import make
from tuiprof.resources import shipped

RUNS, MEGABYTES = 9, 20
FIRST_LINE_S = 0.7


def times_of(path: Path) -> tuple[float, float, float]:
    """Return when the first line and when the last came, and the processor time of all of it, s."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "tuiprof", "report", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        first = time.perf_counter() - began
        process.stdout.read()
        whole = time.perf_counter() - began
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return first, whole, used


@pytest.mark.bench
def test_the_first_line_comes_before_the_page_is_worked_out(tmp_path: Path) -> None:
    big = make(shipped("traces") / "metrics-naive.pt.trace.json.gz", tmp_path / "big.json", MEGABYTES)
    times_of(big)  # the file is in memory from now on
    first, whole, used = (min(values) for values in zip(*(times_of(big) for _ in range(RUNS)), strict=True))
    print(f"first line {first:.2f} s, whole page {whole:.2f} s, processor time {used:.2f} s")
    assert first <= FIRST_LINE_S
