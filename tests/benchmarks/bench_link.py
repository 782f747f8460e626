"""A slow link: what a key costs and how soon the screen answers through 64 kB/s and 200 ms, and CPU beside btop.

``pytest -m bench -s tests/benchmarks/bench_link.py``

The link stands between the program and a terminal emulator: no more
than 64 kB/s are taken from the program, which has to wait then, and keys and screens are under way for 100 ms each. A
key's answer is the time from pressing it to the first byte that it caused, and to the last. The way alone takes 200 ms.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from terminals import InTerminal, in_terminal

from tuiprof.resources import shipped

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

BYTES_PER_S = 64_000
ONE_WAY_S = 0.1
#: A key may turn the whole page over: so many bytes for each of its cells, and a few for what is small.
BYTES_A_CELL, BYTES_BESIDE = 2.5, 4_000
TRACE = shipped("traces") / "metrics-naive.pt.trace.json.gz"
SYNTHETIC = Path(__file__).parents[1] / "tui" / "synthetic.py"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a key did."""

    first_s: float  # from the key to the first change that is seen
    last_s: float  # from the key to the last byte that it caused
    size: int  # bytes that it caused


def answer(terminal: InTerminal, key: str, quiet_s: float = 0.5, most_s: float = 4.0) -> Answer:
    """Press a key and wait until nothing more comes of it."""
    pressed = time.monotonic()
    time.sleep(ONE_WAY_S)  # the key is on its way
    before = len(terminal.received)
    terminal.press(key)
    first = last = 0.0
    size, silent_since = 0, time.monotonic()
    while time.monotonic() - silent_since < quiet_s and time.monotonic() - pressed < most_s:
        terminal.pump(0.01)
        if len(terminal.received) - before > size:
            size = len(terminal.received) - before
            last = silent_since = time.monotonic()
            first = first or last
    way_back = ONE_WAY_S - pressed
    return Answer(
        first + way_back if first else float("nan"), last + way_back if last else float("nan"), size
    )


def measure(
    name: str, terminal: InTerminal, keys: Sequence[tuple[str, str]], rounds: int = 3
) -> list[Answer]:
    """Press keys several times and print what they cost."""
    terminal.bytes_per_s = BYTES_PER_S
    answers: list[Answer] = []
    print(f"\n{name:<10} {'key':<12} {'first seen':>11} {'all there':>10} {'bytes':>8}")
    for label, key in keys:
        found = [answer(terminal, key) for _ in range(rounds)]
        seen = [one for one in found if one.size]
        if not seen:
            print(f"{'':<10} {label:<12} {'nothing':>11}")
            continue
        answers += seen
        first, last = (statistics.median(getattr(a, part) for a in seen) for part in ("first_s", "last_s"))
        size = statistics.median(a.size for a in seen)
        print(f"{'':<10} {label:<12} {first * 1e3:>8.0f} ms {last * 1e3:>7.0f} ms {size:>8.0f}")
    return answers


def dashboard(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "tuiprof", *map(str, args)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run that goes on in a process of its own."""
    command = [sys.executable, str(SYNTHETIC), str(tmp_path / "s"), "--seconds", "120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Path(process.stdout.readline().strip())
        process.terminate()


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_keys_over_a_slow_link(run: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    columns, lines = size
    state = {"XDG_STATE_HOME": str(tmp_path)}
    (tmp_path / "tuiprof").mkdir()
    (tmp_path / "tuiprof" / "tour-shown").touch()
    esc_help = [("help", "?"), ("esc", "\x1b")]
    moves = [("down", "\x1b[B"), ("up", "\x1b[A"), ("tab", "\t")]
    times = [("tab 4", "4"), ("tab 1", "1"), ("zoom in", "+"), ("zoom out", "-"), ("next sync", "n")]
    screens = {
        "library": (dashboard("--sessions", tmp_path / "s"), "metrics", moves),
        "trace": (dashboard("open", TRACE), "Syncs by location", [*times, moves[0], *esc_help]),
        "live": (dashboard("open", run), "median", [("zoom", "z"), ("log", "l"), ("pause", " "), *esc_help]),
    }
    print(f"\n{columns}×{lines}")
    for name, (command, ready, keys) in screens.items():
        with in_terminal(command, columns, lines, **state) as terminal:
            terminal.until_shown(ready, seconds=60)
            terminal.pump(2.0)
            if name == "live":
                before = len(terminal.received)
                terminal.pump(5.0)
                rate = (len(terminal.received) - before) / 5
                print(f"live, no key pressed: {rate:.0f} bytes/s, {rate / BYTES_PER_S:.1%} of the link")
                assert rate < BYTES_PER_S / 4
            answers = measure(name, terminal, keys)
        assert answers
        assert statistics.median(one.size for one in answers) < BYTES_A_CELL * columns * lines + BYTES_BESIDE


def cpu_share(command: list[str], seconds: float, ready_s: float, **env: str) -> tuple[float, float]:
    """Return the CPU share and bytes a second of a program on a terminal, once it stands."""
    with in_terminal(command, 120, 36, **env) as terminal:
        terminal.pump(ready_s)
        process = psutil.Process(terminal.pid)

        def spent() -> float:
            times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
            return sum(t.user + t.system for t in times)

        before, sent = spent(), len(terminal.received)
        terminal.pump(seconds)
        return (spent() - before) / seconds, (len(terminal.received) - sent) / seconds


def test_cpu_share_beside_btop_and_nvitop(run: Path, tmp_path: Path) -> None:
    """Each at its own default pace, on the same machine; nvitop only where there is a GPU."""
    programs = {"tuiprof live": dashboard("open", run)}
    for name in ("btop", "nvitop"):
        if found := shutil.which(name):
            programs[name] = [found, *(["--utf-force"] if name == "btop" else [])]
    if "nvitop" in programs and not os.path.exists("/dev/nvidia0"):
        del programs["nvitop"]
    print(f"\n{'':<14} {'CPU of a core':>14} {'bytes/s':>9}")
    for name, command in programs.items():
        share, rate = cpu_share(command, 10.0, 6.0, HOME=str(tmp_path))
        print(f"{name:<14} {share:>13.1%} {rate:>9.0f}")
        if name == "tuiprof live":
            assert share < 0.5
