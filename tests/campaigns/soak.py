"""A long run with its live screen attached, and the log of a whole day replayed: what grows, and how fast.

``--cases`` is the length of the long run in minutes (in full 120). Slopes are of what follows a third of it, at most 30
minutes: until then caches fill up, and so do the steps and readings that a screen keeps (65 536 steps, and of each
figure a quarter of an hour). They are the slope of Theil and Sen, the median of the slopes between any two samples, so
that a sample that falls into a moment of work does not count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import psutil

from tests.campaigns._recorded import SCRIPT, alive, recorded
from tests.campaigns.campaign import Options, Outcome
from tests.terminals import InTerminal
from tests.waiting import until
from tuiprof.session.log import (
    SCHEMA_VERSION,
    Cost,
    End,
    Head,
    Memory,
    Printed,
    Record,
    Step,
    Telemetry,
)
from tuiprof.session.store.folders import create
from tuiprof.session.store.meta import SessionMeta, write_meta
from tuiprof.system import process

PROMISE = (
    "A screen that watches a run for hours, the recorder and the probe take no more memory, descriptors or threads "
    "with time, and lose no step; the log of a day opens in seconds"
)

#: Steps of a millisecond, a line of output each thousand.
_SCRIPT: Final = SCRIPT.format(
    setup="import tuiprof\ndue = time.monotonic()",
    step="due = max(due + 0.001, time.monotonic() - 0.1); time.sleep(max(0.0, due - time.monotonic())); "
    "tuiprof.step(loss=1 / (n + 1))",
).replace('print("step", n)', 'n % 1000 or print("step", n)')
#: A process may grow by so much an hour after the first part of the run …
_MB_AN_HOUR: Final = 1.0
#: … which in a run of minutes only says that nothing runs away.
_MB_IN_ALL: Final = 40.0
#: Threads of asyncio's pool, which starts one where none is idle: its number of processors and four, at most.
_POOL: Final = 4
#: Runs shorter than this many minutes are judged by what they grew in all.
_LONG_MIN: Final = 20
_DAY_S: Final = 86_400
#: The first picture of the log of a day, seconds, and the memory of its screen.
_OPENS_S, _OPENED_MB = 20.0, 400.0


def run(options: Options) -> Outcome:
    """Watch a run for some minutes, then replay a day."""
    outcome = Outcome()
    minutes = float(options.cases) if options.cases is not None else 0.05 if options.short else 120.0
    _watch(options.folder / "long", minutes, outcome)
    _replay(options.folder / "day", 600 if options.short else _DAY_S, outcome)
    return outcome


# -- a long run ------------------------------------------------------------------------------------------------


def _watch(folder: Path, minutes: float, outcome: Outcome) -> None:
    outcome.cases += 1
    with recorded(folder, _SCRIPT) as run:
        until(lambda: run.steps > 100, "100 steps")
        supervisor, script, writer = run.supervisor, run.script, run.writer
        attach = [sys.executable, "-m", "tuiprof", "attach", str(run.session.path)]
        with _shown(attach, run.env) as terminal:
            until(lambda: b"step time" in terminal.received, "the live screen")
            watched = {
                "viewer": psutil.Process(terminal.pid),
                "recorder": supervisor,
                "output writer": writer,
                "script": script,
            }
            began_s, began_bytes, drawn = time.monotonic(), _bytes(run.session.path), terminal.count
            samples = _sample(watched, minutes * 60)
            hours = (time.monotonic() - began_s) / 3600
            outcome.failures += [f"{name} has ended" for name, one in watched.items() if not alive(one)]
            _judge(samples, minutes, outcome)
            figures = outcome.figures
            figures["watched"] = f"{minutes:g} min, {run.steps:,} steps"
            figures["on disk"] = f"{(_bytes(run.session.path) - began_bytes) / hours / 1e6:.0f} MB an hour"
            figures["to the terminal"] = f"{(terminal.count - drawn) / hours / 1e6:.1f} MB an hour"
            terminal.press("q")
            until(lambda: not alive(watched["viewer"]), "the end of the screen")
        run.go()
        until(lambda: not alive(script), "the end of the script")
        if code := run.command.wait(60):
            outcome.failures.append(f"record ended with {code}")
        if lost := run.lost_steps():
            outcome.failures.append(f"{lost} of {run.steps} steps lost")
        outcome.failures += [f"cannot be read: {what}" for what in run.unreadable()]


class _Drained(InTerminal):
    """A terminal that is read and not looked at: an emulator would take more of the machine than the screen does."""

    def __init__(self, command: list[str], **env: str) -> None:
        super().__init__(command, 160, 48, **env)
        self.count = 0

    def drain(self) -> None:
        """Read until the program ends."""
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.count += len(data)
            self.received = (self.received + data)[-(1 << 16) :]


@contextlib.contextmanager
def _shown(command: list[str], env: dict[str, str]) -> Iterator[_Drained]:
    names = [name for name in env if name.startswith(("TUIPROF_", "XDG_CACHE"))]
    terminal = _Drained(command, **{name: env[name] for name in names})
    thread = threading.Thread(target=terminal.drain, daemon=True)
    thread.start()
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(terminal.pid, signal.SIGKILL)
        thread.join()
        terminal.close()


Sample = tuple[float, dict[str, tuple[float, int, int, float]]]


def _sample(watched: dict[str, psutil.Process], seconds: float) -> list[Sample]:
    """Return time, and of each process memory (MB), descriptors, threads and CPU seconds, again and again."""
    began_s = time.monotonic()
    every_s = min(10.0, seconds / 6)
    samples: list[Sample] = []
    while (at_s := time.monotonic() - began_s) < seconds:
        row = {}
        for name, one in watched.items():
            with contextlib.suppress(psutil.Error), one.oneshot():
                cpu = one.cpu_times()
                row[name] = (
                    one.memory_info().rss / 1e6,
                    one.num_fds(),
                    one.num_threads(),
                    cpu.user + cpu.system,
                )
        samples.append((at_s, row))
        time.sleep(min(every_s, max(0.0, seconds - at_s)))
    return samples


def _judge(samples: list[Sample], minutes: float, outcome: Outcome) -> None:
    """Take note of what grew, and say what grew too much."""
    after_s = min(1800.0, samples[-1][0] / 3)
    settled = [sample for sample in samples if sample[0] >= after_s]
    for name in settled[-1][1]:
        rows = [(at_s, row[name]) for at_s, row in settled if name in row]
        points = [(at_s, row[0]) for at_s, row in rows]
        slope, (memory, *_, cpu_s) = _slope_an_hour(points), rows[-1][1]
        share = (cpu_s - rows[0][1][3]) / max(rows[-1][0] - rows[0][0], 1e-9)
        text = f"{memory:.0f} MB, {100 * share:.1f} % of a core"
        if minutes >= _LONG_MIN:
            text = f"{memory:.0f} MB ({slope:+.2f} MB an hour), {100 * share:.1f} % of a core"
            if slope > _MB_AN_HOUR:
                outcome.failures.append(f"the {name} grows by {slope:.2f} MB an hour")
        elif (grown := points[-1][1] - points[0][1]) > _MB_IN_ALL:
            outcome.failures.append(f"the {name} has grown by {grown:.0f} MB")
        for what, index in (("descriptors", 1), ("threads", 2)):
            first, last = (median([row[1][index] for row in part]) for part in (rows[:3], rows[-3:]))
            starts = what == "threads" and minutes < _LONG_MIN  # those of a pool, as they are needed
            if last > first + starts * _POOL:
                outcome.failures.append(f"the {name} has {last:.0f} {what}, {first:.0f} before")
        outcome.figures[name] = text


def _slope_an_hour(points: list[tuple[float, float]]) -> float:
    """Return the median of the slopes between any two points, an hour."""
    some = points[:: max(1, len(points) // 300)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(some, 2) if b[0] > a[0]]
    return 3600 * median(slopes) if slopes else 0.0


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# -- the log of a day ------------------------------------------------------------------------------------------


def _replay(folder: Path, seconds: int, outcome: Outcome) -> None:
    """Make the log of a run that lasted so long, open it, and play it at the highest speed."""
    outcome.cases += 1
    session, size = _made(folder, seconds)
    speed = seconds / 10
    replay = [sys.executable, "-m", "tuiprof", "replay", str(session), "--speed", f"{min(speed, 10_000):.0f}"]
    opened = [sys.executable, "-m", "tuiprof", "open", str(session)]
    figures = outcome.figures
    screens = [("replayed", replay, b"replay")]
    if seconds == _DAY_S:
        screens.insert(0, ("opened", opened, b"finished"))
    for name, command, shown in screens:
        began_s = time.monotonic()
        with _shown(command, dict(os.environ)) as terminal:
            until(lambda shown=shown, terminal=terminal: shown in terminal.received, f"the screen, {name}")  # type: ignore[misc]
            first_s = time.monotonic() - began_s
            peak = 0.0
            viewer = psutil.Process(terminal.pid)
            while time.monotonic() - began_s < first_s + (12 if seconds == _DAY_S else 1):
                peak = max(peak, viewer.memory_info().rss / 1e6)
                time.sleep(0.2)
            if not alive(viewer):
                outcome.failures.append(f"the screen ended when a log of {size / 1e6:.0f} MB was {name}")
        figures[f"{name}: {seconds / 3600:.2g} h, {size / 1e6:.0f} MB"] = f"{first_s:.1f} s, {peak:.0f} MB"
        if first_s > _OPENS_S:
            outcome.failures.append(f"{name}: the first picture took {first_s:.0f} s")
        if peak > _OPENED_MB:
            outcome.failures.append(f"{name}: {peak:.0f} MB of memory")


def _made(folder: Path, seconds: int) -> tuple[Path, int]:
    """Write what a run of 100 ms a step leaves behind; return the session and the size of its logs."""
    mono_ns, unix_ns = 10**12, 1_780_000_000 * 10**9
    meta = SessionMeta(
        SCHEMA_VERSION, "day", ["python", "train.py"], "/", unix_ns, mono_ns, process.boot_id()
    )
    session = create(folder, meta)
    write_meta(session.path, meta)
    encode = msgspec.json.Encoder().encode

    def steps() -> Iterator[Record]:
        yield Head(
            SCHEMA_VERSION, "rank0", 1, unix_ns, mono_ns, 0, 1, "3.12.0", {"torch": "2.13.0"}, meta.boot
        )
        for n in range(seconds * 10):
            at, dur = mono_ns + (n + 1) * 100_000_000, 100_000_000 + (n * 7919) % 3_000_000
            yield Step(n, at, dur, {"forward": 40_000_000, "backward": 50_000_000}, {"loss": 1 / (n + 1)})
            if n % 10 == 0:
                yield Memory(at, 0, 10**9 + n, 2 * 10**9, 2 * 10**9)
                yield Cost(at, n + 1, n * 9000, n * 1000)

    def readings() -> Iterator[Record]:
        yield Head(SCHEMA_VERSION, "recorder", 2, unix_ns, mono_ns, python="3.12.0", boot=meta.boot)
        cores = {f"core{core}_util": 0.5 for core in range(16)}
        for n in range(seconds * 2):
            at = mono_ns + (n + 1) * 500_000_000
            yield Telemetry(at, "host", {"util": 0.5, "tree_cpu": 1.2, "tree_rss_bytes": 3e9 + n, **cores})
            yield Telemetry(
                at, "gpu0", {"util": 0.9, "mem_used_bytes": 8e9, "power_w": 300.0, "temp_c": 60.0}
            )
            yield Printed(at, n * 40, 0)
        yield End(mono_ns + seconds * 10**9, 0)

    for writer, records in (("rank0", steps()), ("recorder", readings())):
        with open(session.log / f"{writer}.jsonl", "wb", buffering=1 << 20) as file:
            for record in records:
                file.write(encode(record) + b"\n")
    session.stdout.write_bytes(b"".join(b"%039d\n" % n for n in range(min(seconds * 2, 200_000))))
    session.stderr.touch()
    return session.path, _bytes(session.log)
