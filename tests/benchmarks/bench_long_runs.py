"""What a long run costs its viewer: memory of a day's run, time to the first picture of ten million steps.

    pytest -m bench tests/benchmarks/bench_long_runs.py -s

The logs are made here as probe and recorder write them: a day of steps of 27 ms with six phases and readings of a GPU
and of 16 cores twice a second (about 1 GB); then ten million steps. The dashboard opens them in a real terminal.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest
from bench_live import SCREEN, say, terminal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tui"))
from synthetic import Synthetic

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

DAY_S, STEP_S = 86_400, 0.027
#: So long is waited for the whole of a log to be read.
PATIENCE_S = 400.0


def write_steps(made: Synthetic, count: int, step_s: float) -> None:
    """Append steps as the probe writes them."""
    step_ns = int(step_s * 1e9)
    phases = json.dumps(
        {name: int(step_ns * share) for name, share in made.phases.items()}, separators=(",", ":")
    )
    with open(made.session.log / "rank0.jsonl", "a") as file:
        for first in range(0, count, 100_000):
            file.writelines(
                f'{{"t":"step","n":{n},"at":{made.mono_ns + (n + 1) * step_ns},"dur":{step_ns + (n * 7919) % 400_000},'
                f'"ph":{phases},"v":{{"loss":{7 / (1 + n / 3000):.4f}}}}}\n'
                for n in range(first, min(first + 100_000, count))
            )


def write_readings(made: Synthetic, seconds: int) -> None:
    """Append readings as the recorder writes them: the same few, at ever later times."""
    made.t_ns = 0
    kinds = [b"", b""]
    import msgspec

    kinds = [msgspec.json.encode(record) for record in made._readings()]
    with open(made.session.log / "recorder.jsonl", "ab") as file:
        for half in range(seconds * 2):
            at = str(made.mono_ns + half * 500_000_000).encode()
            for kind in kinds:
                start = kind.index(b'"at":') + 5
                file.write(kind[:start] + at + kind[kind.index(b",", start) :] + b"\n")


def ended(root: Path, count: int, step_s: float, readings_s: int) -> Path:
    made = Synthetic(root, scenario=None, name="long")
    made.start(running=False)
    write_steps(made, count, step_s)
    write_readings(made, readings_s)
    made.t_ns = int(count * step_s * 1e9)
    made.end()
    return made.session.path


def test_a_day_fits_into_memory(tmp_path: Path) -> None:
    path = ended(tmp_path, int(DAY_S / STEP_S), STEP_S, DAY_S)
    size = sum(file.stat().st_size for file in (path / "log").iterdir())
    with terminal("-c", SCREEN, "live", str(path)) as shown:
        _, first_s = shown.read(30, b"finished")
        peak, began = 0, time.monotonic()
        quiet = 0
        while time.monotonic() - began < PATIENCE_S and quiet < 3:
            before = shown.cpu_s()
            shown.read(3.0)
            peak = max(peak, psutil.Process(shown.pid).memory_info().rss)
            quiet = quiet + 1 if shown.cpu_s() - before < 0.1 else 0
        took = time.monotonic() - began
        rss = psutil.Process(shown.pid).memory_info().rss
    print(f"\na day's run, {size / 1e6:.0f} MB of log, {DAY_S / STEP_S / 1e6:.1f} M steps:")
    say("first picture", f"{first_s:.2f} s", "")
    say("all of it read after", f"{took:.0f} s", "")
    say("resident memory when read", f"{rss / 1e6:.0f} MB", "limit 150 MB")
    say("at most while reading", f"{peak / 1e6:.0f} MB", "")
    assert quiet >= 3
    assert rss <= 150e6


def test_ten_million_steps_open_at_once(tmp_path: Path) -> None:
    path = ended(tmp_path, 10_000_000, 0.001, 600)
    small = ended(tmp_path / "small", 2_000, 0.001, 10)
    size = sum(file.stat().st_size for file in (path / "log").iterdir())
    found: dict[Path, list[tuple[float, float]]] = {path: [], small: []}
    for _ in range(5):  # taking turns, so that both meet the same machine
        for session, times in found.items():
            with terminal("-c", SCREEN, "live", str(session)) as shown:
                out, first_s = shown.read(60, b"median")
                assert b"median" in out
                times.append((first_s, shown.cpu_s()))
    (first_s, cpu_s), (small_s, small_cpu_s) = (
        (statistics.median(one[0] for one in times), statistics.median(one[1] for one in times))
        for times in found.values()
    )
    print(f"\nten million steps, {size / 1e6:.0f} MB of log, medians of 5 (load {os.getloadavg()[0]:.1f}):")
    say("first picture with step times", f"{first_s:.2f} s", "limit 1 s")
    say("the same of two thousand steps", f"{small_s:.2f} s", "")
    say("ratio", f"{first_s / small_s:.2f}", "")
    say("CPU until then", f"{cpu_s:.2f} s", "")
    say("the same of two thousand steps", f"{small_cpu_s:.2f} s", "")
    assert first_s <= max(1.0, 1.5 * small_s)
