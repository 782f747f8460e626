"""What tuiprof's own threads cost a machine with many cores, and what several screens on one run cost together.

    pytest -m bench tests/benchmarks/bench_cores.py -s

NumPy's and Polars' threads are as many as the machine has cores unless they are bounded, and the more cores there are,
the more is saved: the same verbs run in turns with and without the bound of :mod:`tuiprof.system.own_process`. Figures
are processor time, user and system, of a process and all that it starts; medians.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.bench_live import growing as growing  # a fixture
from tests.benchmarks.bench_live import say, terminal
from tuiprof.resources import shipped
from tuiprof.system.own_process import cores

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

ROUNDS, WATCHED_S, SCREENS, CAPTURES = 5, 10.0, 3, 3
BOUNDED = "from tuiprof.cli import entry; entry()"
UNBOUNDED = "import sys; from tuiprof.cli import main; sys.exit(main())"
#: With few cores there is little to save; with any number nothing may be lost.
MAX_OF_UNBOUNDED = 1.1


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have nothing worked out before; calling it forgets what was since. Nobody has said how many threads."""
    for name in ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        monkeypatch.delenv(name, raising=False)
    numbers = itertools.count()

    def forget() -> None:
        monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / f"cache{next(numbers)}" / "traces"))

    forget()
    return forget


def spent(code: str, *arguments: str) -> tuple[float, float]:
    """Return the processor time and the time that a verb takes, s."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def watched(screens: int, code: str, session: Path) -> tuple[float, int, float]:
    """Attach screens to a run.

    Returns:
        The processor time that they and their children take together, s; the processes that worked a trace out; and
        the most memory that one of the screens itself took, bytes.
    """
    cpu_s: dict[int, float] = {}
    readers: set[int] = set()
    memory = 0
    with ExitStack() as stack:
        shown = [stack.enter_context(terminal("-c", code, "attach", str(session))) for _ in range(screens)]
        end = time.perf_counter() + WATCHED_S
        while time.perf_counter() < end:
            for one in shown:
                one.read(0.05 / screens)
                screen = psutil.Process(one.pid)
                memory = max(memory, screen.memory_info().rss)
                for process in (screen, *screen.children(recursive=True)):
                    try:
                        times = process.cpu_times()
                        if "tuiprof.comparison.headline" in process.cmdline():
                            readers.add(process.pid)
                    except psutil.Error:  # it has just ended
                        continue
                    cpu_s[process.pid] = times.user + times.system
    return sum(cpu_s.values()), len(readers), memory


def captured(session: Path) -> None:
    """Give a session captures."""
    (session / "traces").mkdir(exist_ok=True)
    trace = shipped("traces") / "planted-syncs.pt.trace.json.gz"
    for number in range(CAPTURES):
        shutil.copy(trace, session / "traces" / f"rank0.{number}.pt.trace.json.gz")


def test_verbs() -> None:
    trace = str(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    print(f"\n{cores()} cores, load {os.getloadavg()[0]:.1f}, medians of {ROUNDS}:")
    for verb in (("report", trace), ("compare", trace, trace)):
        bounded, unbounded = [], []
        for _ in range(ROUNDS):
            bounded.append(spent(BOUNDED, *verb))
            unbounded.append(spent(UNBOUNDED, *verb))
        (cpu_s, wall_s), (before_s, before_wall_s) = (
            [statistics.median(column) for column in zip(*rows, strict=True)] for rows in (bounded, unbounded)
        )
        say(f"{verb[0]}: processor time", f"{cpu_s:.2f} s", f"{before_s:.2f} s unbounded")
        say(f"{verb[0]}: time", f"{wall_s:.2f} s", f"{before_wall_s:.2f} s unbounded")
        say(f"{verb[0]}: ratio", f"{cpu_s / before_s:.2f}", f"limit {MAX_OF_UNBOUNDED}")
        assert cpu_s <= MAX_OF_UNBOUNDED * before_s


def test_screens(growing: Path, fresh_cache: Callable[[], None]) -> None:
    captured(growing)
    rows: dict[tuple[str, int], tuple[float, int, float]] = {}
    for name, code, screens in (
        ("bounded", BOUNDED, 1),
        ("unbounded", UNBOUNDED, 1),
        ("bounded", BOUNDED, SCREENS),
    ):
        fresh_cache()
        rows[name, screens] = watched(screens, code, growing)
    print(
        f"\n{cores()} cores, {WATCHED_S:.0f} s of a run with {CAPTURES} captures, load {os.getloadavg()[0]:.1f}:"
    )
    (cpu_s, _, memory), (before_s, _, _) = rows["bounded", 1], rows["unbounded", 1]
    together_s, readers, _ = rows["bounded", SCREENS]
    say("attach, start and trace included", f"{cpu_s:.2f} s", f"{before_s:.2f} s unbounded")
    say("attach: memory of the screen", f"{memory / 1e6:.0f} MB", "limit 110 MB")
    say(f"{SCREENS} screens together", f"{together_s:.2f} s", f"limit {SCREENS} × one")
    say(f"{SCREENS} screens: processes that read the trace", str(readers), "limit 1")
    assert readers == 1
    assert memory <= 110e6
    assert together_s <= SCREENS * cpu_s
