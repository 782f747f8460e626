"""What the live screen costs in a real terminal of 200×50: CPU, bytes to the terminal, time to the first picture.

    pytest -m bench tests/benchmarks/bench_live.py -s

The session is synthetic and grows at 32 steps a second whose times vary as those of a real run on an H200 did: by 7 %,
and one step in a hundred takes longer by a third and more. The screen shows its step-time chart and the histories
of a GPU (utilisation, memory, power) and of the host. A trivial Textual application runs in the same minute:
what it costs is the floor, and on a busy machine the ratio to it says more than a limit. Figures are medians.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

COLUMNS, ROWS = 200, 50
SETTLE_S, WINDOW_S, ROUNDS = 8.0, 20.0, 3
STEPS = ("--step-ms", "30", "--jitter", "0.07", "--outliers", "0.01")
SYNTHETIC = Path(__file__).resolve().parents[1] / "tui" / "synthetic.py"

TRIVIAL = """
from textual.app import App
from textual.widgets import Static
class Trivial(App):
    def compose(self): yield Static("tuiprof")
Trivial().run()
"""
SCREEN = """
import sys
from pathlib import Path
from tuiprof.tui.app.app import run_app
from tuiprof.tui import Start
path = Path(sys.argv[2])
run_app(Start(sessions=path) if sys.argv[1] == "library" else Start(sys.argv[1], path))
"""


@dataclass
class Terminal:
    """A program in a pseudo-terminal."""

    pid: int
    fd: int
    began: float

    def read(self, seconds: float, until: bytes | None = None) -> tuple[bytes, float]:
        """Take what it writes for some seconds, or until a text; return it and the time that passed since."""
        out = b""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.fd], [], [], min(left, 0.02))[0]:
                out += os.read(self.fd, 1 << 16)
                if until is not None and until in out:
                    break
        return out, time.perf_counter() - self.began

    def cpu_s(self) -> float:
        """CPU time so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    began = time.perf_counter()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(sys.executable, [sys.executable, *command])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    try:
        yield Terminal(pid, fd, began)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)


def cost(*command: str) -> tuple[float, float]:
    """Return the share of a core and the bytes a second of a program that has settled."""
    with terminal(*command) as shown:
        shown.read(SETTLE_S)
        before, began = shown.cpu_s(), time.perf_counter()
        out, _ = shown.read(WINDOW_S)
        passed = time.perf_counter() - began
        return (shown.cpu_s() - before) / passed, len(out) / passed


def first_paint(text: str, *command: str) -> float:
    """Return the seconds from the start of the process until a text is on the screen."""
    with terminal(*command) as shown:
        out, passed = shown.read(30, text.encode())
        assert text.encode() in out
        return passed


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """A session that grows while the test runs."""
    command = [sys.executable, str(SYNTHETIC), str(tmp_path), "--seconds", "600", *STEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        yield Path(made.stdout.readline().strip())
        made.kill()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A session that has ended."""
    command = [sys.executable, str(SYNTHETIC), str(tmp_path / "done"), "--seconds", "0.1", "--exit", "0"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(made.stdout.strip())


def say(name: str, value: str, limit: str) -> None:
    print(f"  {name:<44}{value:>14}   {limit}")


def test_live_screen(growing: Path, finished: Path) -> None:
    print(f"\nlive screen, {COLUMNS}×{ROWS}, medians of {ROUNDS} (load {os.getloadavg()[0]:.1f}):")
    running = [cost("-c", SCREEN, "live", str(growing)) for _ in range(ROUNDS)]
    still = [cost("-c", SCREEN, "live", str(finished)) for _ in range(ROUNDS)]
    cpu, sent = (statistics.median(values) for values in zip(*running, strict=True))
    still_cpu, still_sent = (statistics.median(values) for values in zip(*still, strict=True))
    say("running: CPU", f"{cpu:.1%}", "limit 4 % of one core")
    say("running: to the terminal", f"{sent / 1e3:.1f} kB/s", "limit 30 kB/s")
    say("nothing changes: CPU", f"{still_cpu:.2%}", "limit 0.5 %")
    say("nothing changes: to the terminal", f"{still_sent:.0f} B/s", "limit ≈ 0")
    assert sent <= 30_000
    assert still_sent <= 10
    if os.getloadavg()[0] < 1.5 * (os.cpu_count() or 1):  # CPU time is not comparable on a crowded machine
        assert cpu <= 0.04
        assert still_cpu <= 0.005


def test_first_paint(tmp_path: Path) -> None:
    trivial, ours = [], []
    for _ in range(7):  # taking turns, so that both meet the same machine
        trivial.append(first_paint("tuiprof", "-c", TRIVIAL))
        ours.append(first_paint("tuiprof", "-c", SCREEN, "library", str(tmp_path)))
    floor, dashboard = statistics.median(trivial), statistics.median(ours)
    print(f"\nfirst paint, medians of {len(ours)} (load {os.getloadavg()[0]:.1f}):")
    say("trivial Textual application", f"{floor * 1e3:.0f} ms", "")
    say("dashboard", f"{dashboard * 1e3:.0f} ms", "limit 350 ms")
    say("ratio", f"{dashboard / floor:.2f}", "")
    assert dashboard <= max(0.35, 2.2 * floor)
