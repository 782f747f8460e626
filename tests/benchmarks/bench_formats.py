"""How fast a Kineto trace is opened and explained, beside HolisticTraceAnalysis and torch-tb-profiler.

One command prints all tables; each peer needs an environment of its own::

    python -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis==0.5.0
    python -m venv /tmp/tb && /tmp/tb/bin/pip install torch-tb-profiler==0.4.3 setuptools
    TUIPROF_BENCH_HTA_PYTHON=/tmp/hta/bin/python TUIPROF_BENCH_TB_PYTHON=/tmp/tb/bin/python \\
        pytest -m bench -s tests/benchmarks/bench_formats.py

Every measurement is a process of its own on the same file; the programs take turns, and medians over all rounds are
printed. "Whole process" is what a user waits: from the start of Python to its end, imports included; "open" is the
call that reads the file (tuiprof loads Polars in that call). At a gigabyte each peer runs once, and is stopped when it
takes far longer than its time at 119 MB lets expect, or most of the memory.

Goals in MB/s and in seconds were set on a machine where msgspec alone decodes 450 MB/s on one core. Each run therefore
also times msgspec alone (and the standard library's decoder, at 119 MB) on the same file, and states such goals twice:
as they are, and relative to what msgspec takes here, which is what the run is judged by.

``TUIPROF_BENCH_TRACE`` names the real trace to scale (default: the largest in ``../shared/traces``, else in
``traces/``), ``TUIPROF_BENCH_ROUNDS`` the rounds (3), ``TUIPROF_BENCH_MEGABYTES`` the two sizes (``119,1065``).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from isal import igzip

from tests.benchmarks.calibration import GOALS_MSGSPEC_MB_S
from tests.benchmarks.make_trace import make

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("TUIPROF_BENCH_ROUNDS", "3"))
SMALL, LARGE = (float(size) for size in os.environ.get("TUIPROF_BENCH_MEGABYTES", "119,1065").split(","))
ROOT = Path(__file__).resolve().parents[2]
#: A peer at a gigabyte is given this many times what its time at 119 MB lets expect, but no more than so many seconds,
#: and this share of the memory that is free.
PATIENCE, PATIENCE_S, MEMORY_SHARE = 4.0, 2400.0, 0.8
#: Seconds a megabyte that each peer took at 119 MB.
PACES: dict[str, float] = {}
GOAL_MB_S, GOAL_CACHE_S, GOAL_BYTES_AN_EVENT = 250, 0.4, 120

# Peak memory is VmHWM: what getrusage says is inherited from the process that started this one. Of helper
# processes the largest counts; tuiprof's are gone once the trace is open, so they add nothing to what comes later.
PEAK = """
import re, resource
def own():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
def peak():
    return own() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
"""
OURS = (
    PEAK
    + """
import json, sys, time
import tuiprof
began = time.perf_counter()
trace = tuiprof.open_trace(sys.argv[1])
opened = time.perf_counter() - began
opening = peak()
from tuiprof import analyses
analyses.run_all([name for name in sys.argv[2].split(",") if name], trace)
total = time.perf_counter() - began
print("RESULT", json.dumps({"open": opened, "total": total, "rss": max(opening, own()),
      "events": trace.stats.events, "rows": len(trace)}))
"""
)
FIRST = """
import json, sys, time
import tuiprof
from tuiprof.formats import Cancelled, open_trace
began, first = time.perf_counter(), []
def seen(trace):
    if len(trace): first.append((time.perf_counter() - began, len(trace)))
try:
    open_trace(sys.argv[1], partial=seen, cancelled=lambda: bool(first))
except Cancelled:
    pass
print("RESULT", json.dumps({"first": first[0][0], "rows": first[0][1]}))
"""
HTA = (
    PEAK
    + """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
began = time.perf_counter()
TraceAnalysis(trace_files={0: sys.argv[1]})
print("RESULT", json.dumps({"total": time.perf_counter() - began, "rss": peak()}))
"""
)
TB = (
    PEAK
    + """
import json, sys, tempfile, time
from torch_tb_profiler.profiler.data import RunProfileData
with tempfile.TemporaryDirectory() as cache:
    began = time.perf_counter()
    RunProfileData.parse("worker0", None, sys.argv[1], cache).process()
    total = time.perf_counter() - began
print("RESULT", json.dumps({"total": total, "rss": peak()}))
"""
)
FIVE = "steps,sync_events,kernel_launches,device_idle,kernels"
THREE = "sync_events,kernel_launches,device_idle"


@dataclass(frozen=True)
class Peer:
    """Another program that loads the trace; how many times slower it is asked to be, small and large."""

    name: str
    variable: str
    code: str
    small: float
    large: float

    @property
    def python(self) -> str | None:
        return os.environ.get(self.variable)


PEERS = (
    Peer("HolisticTraceAnalysis 0.5.0, load", "TUIPROF_BENCH_HTA_PYTHON", HTA, 10, 20),
    Peer("torch-tb-profiler 0.4.3, load", "TUIPROF_BENCH_TB_PYTHON", TB, 20, 40),
)


@dataclass
class Row:
    """Measurements of one program; ``stopped`` says why there is none."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    stopped: str = ""
    at_least_s: float = 0.0

    def median(self, key: str) -> float:
        if not self.rounds:
            return self.at_least_s
        return statistics.median(result[key if key in result else "total"] for result in self.rounds)


@dataclass(frozen=True)
class Goal:
    """What a figure is asked to be; one that is only printed stands beside another that is judged."""

    what: str
    got: float
    asked: float
    above: bool = True
    judged: bool = True

    @property
    def met(self) -> bool:
        return self.got >= self.asked if self.above else self.got <= self.asked


def run(
    python: str, code: str, *arguments: str, cache: str = "off", patience_s: float = PATIENCE_S
) -> dict[str, float]:
    """Run one measurement; ``process`` is how long the whole process took, s.

    Raises:
        TimeoutError: It took too long.
        MemoryError: It took most of the memory.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TUIPROF_TRACE_CACHE": cache}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # an installed package is compiled once, not at every start
    most = psutil.virtual_memory().available * MEMORY_SHARE
    began = time.perf_counter()
    with subprocess.Popen(
        [python, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        watched = psutil.Process(process.pid)
        while True:
            try:
                out, err = process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                late = time.perf_counter() - began > patience_s
                if late or watched.memory_info().rss > most:
                    process.kill()
                    process.communicate()
                    raise (TimeoutError if late else MemoryError) from None
    took = time.perf_counter() - began
    line = next((line for line in out.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, err[-2000:]
    result: dict[str, float] = json.loads(line.removeprefix("RESULT "))
    return {**result, "process": took}


def source() -> Path:
    """Return the real trace to scale."""
    named = os.environ.get("TUIPROF_BENCH_TRACE")
    if named:
        return Path(named)
    folders = [ROOT.parent / "shared" / "traces", ROOT / "traces"]
    traces = [path for folder in folders for path in sorted(folder.glob("*.json.gz"))]
    preferred = [path for path in traces if path.name == "sam-a100-sync-heavy.json.gz"]
    if not traces:
        pytest.skip("no recorded trace here: name one with TUIPROF_BENCH_TRACE")
    return (preferred or traces)[0]


def zipped(path: Path) -> Path:
    target = path.with_name(path.name + ".gz")
    with path.open("rb") as plain, igzip.open(target, "wb", compresslevel=2) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    return target


def calibrated(path: Path) -> float:
    """Print what decoders alone take, and return msgspec's MB/s."""
    code = "from tests.benchmarks.calibration import main; main()"
    rounds = [run(sys.executable, code, str(path)) for _ in range(ROUNDS)]
    size = path.stat().st_size / 1e6
    speed = size / statistics.median(taken["msgspec"] for taken in rounds)
    text = f"msgspec alone {speed:.0f} MB/s on one core ({GOALS_MSGSPEC_MB_S:.0f} where the goals were set)"
    if "json" in rounds[0]:
        text += f", json.loads {size / statistics.median(taken['json'] for taken in rounds):.0f} MB/s"
    print(f"\ncalibration: {text}")
    return speed


def patience_s(peer: Peer, size: float, folder: Path) -> float:
    """Return how long to wait for a peer, by what it takes for 119 MB, which is measured if it has not been."""
    assert peer.python is not None
    if peer.name not in PACES:
        small = make(source(), folder / "pace.json", SMALL)
        PACES[peer.name] = run(peer.python, peer.code, str(small))["process"] / SMALL
        small.unlink()
    return min(PATIENCE * PACES[peer.name] * size / 1e6, PATIENCE_S)


def head(path: Path, row: Row, what: str) -> None:
    events, rows = row.median("events"), row.median("rows")
    print(
        f"\n{what}: {path.stat().st_size / 1e6:.0f} MB of JSON, {events:.0f} events, {rows:.0f} spans;",
        end=" ",
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {len(row.rounds)}")
    heads = f"{'open s':>9}{'MB/s':>7}{'+ analyses':>12}{'whole process':>15}{'RSS MB':>8}{'× size':>8}{'slower':>9}"
    print(f"{'':36}{heads}")


def line(name: str, row: Row, size: int, ours: Row) -> None:
    if row.stopped:
        print(f"{name:36}{row.stopped}")
        return
    opened, total, rss = (row.median(key) for key in ("open", "total", "rss"))
    print(
        f"{name:36}{opened:9.2f}{size / opened / 1e6:7.0f}{total:12.2f}{row.median('process'):15.2f}{rss / 1e6:8.0f}"
        f"{rss / size:8.2f}{row.median('process') / ours.median('process'):8.1f}×"
    )


def compare(path: Path, analyses: str, *, large: bool) -> tuple[list[Goal], float]:
    """Time tuiprof and its peers on one file, and print the table.

    Returns:
        What was asked for and got; and what msgspec alone decodes here, MB/s.
    """
    gz, size = zipped(path), path.stat().st_size
    ours, packed = Row(), Row()
    peers = {peer: Row() for peer in PEERS}
    for number in range(ROUNDS):
        ours.rounds.append(run(sys.executable, OURS, str(path), analyses))
        packed.rounds.append(run(sys.executable, OURS, str(gz), analyses))
        for peer, row in peers.items():
            if peer.python is None:
                row.stopped = f"not measured: name its Python in {peer.variable}"
            elif not large:
                row.rounds.append(run(peer.python, peer.code, str(path)))
                PACES[peer.name] = row.median("process") / SMALL
            elif not number:
                patience = patience_s(peer, size, path.parent)
                try:
                    row.rounds.append(run(peer.python, peer.code, str(path), patience_s=patience))
                except TimeoutError:
                    row.stopped, row.at_least_s = f"stopped after {patience:.0f} s", patience
                except MemoryError:
                    row.stopped = "stopped: it took most of the memory"
    gz.unlink()
    alone = calibrated(path)
    head(path, ours, f"open and {analyses}")
    line("tuiprof, plain", ours, size, ours)
    line("tuiprof, gzip", packed, size, ours)
    for peer, row in peers.items():
        line(peer.name, row, size, ours)
    goals = [Goal("peak memory, × size", ours.median("rss") / size, 1.2 if large else 2.0, above=False)]
    if large:
        for name, row in (("plain", ours), ("gzip", packed)):
            got = size / row.median("open") / 1e6
            share = GOAL_MB_S / GOALS_MSGSPEC_MB_S
            goals += [
                Goal(f"{name}, MB/s, on the goals' machine", got, GOAL_MB_S, judged=False),
                Goal(f"{name}, × msgspec alone on one core", got / alone, share),
            ]
    for peer, row in peers.items():
        if row.rounds or row.at_least_s:
            ratio = row.median("process") / ours.median("process")
            goals.append(Goal(f"{peer.name}, × slower at least", ratio, peer.large if large else peer.small))
    return goals, alone


def judge(goals: list[Goal]) -> None:
    """Print which goals are met, then fail if one that is judged is not."""
    for goal in goals:
        print(f"  {goal.what}: {goal.got:.2f}, asked for {goal.asked:.3g}{'' if goal.met else '  MISSED'}")
    assert all(goal.met for goal in goals if goal.judged)


def test_119_megabytes(tmp_path: Path) -> None:
    judge(compare(make(source(), tmp_path / "small.json", SMALL), FIVE, large=False)[0])


def test_a_gigabyte(tmp_path: Path) -> None:
    path = make(source(), tmp_path / "large.json", LARGE)
    goals, alone = compare(path, THREE, large=True)
    first = Row([run(sys.executable, FIRST, str(path)) for _ in range(ROUNDS)])
    cache = str(tmp_path / "cache")
    run(sys.executable, OURS, str(path), "", cache=cache)
    kept = Row([run(sys.executable, OURS, str(path), "", cache=cache) for _ in range(ROUNDS)])
    goals += [
        Goal("first part to show after, s", first.median("first"), 1.0, above=False),
        Goal(
            "open from the cache, s, on the goals' machine",
            kept.median("open"),
            GOAL_CACHE_S,
            False,
            judged=False,
        ),
        Goal(
            "open from the cache, s × msgspec here / there",
            kept.median("open") * alone / GOALS_MSGSPEC_MB_S,
            GOAL_CACHE_S,
            above=False,
        ),
    ]
    judge(goals)


@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "no-stacks"])
def test_a_gigabyte_of_our_own(tmp_path: Path, stacks: bool) -> None:
    recorded = ROOT / "traces" / "metrics-naive.pt.trace.json.gz"
    path = make(recorded, tmp_path / "own.json", LARGE, stacks=stacks)
    row = Row([run(sys.executable, OURS, str(path), THREE) for _ in range(ROUNDS)])
    head(path, row, f"PyTorch 2.11, {'with' if stacks else 'without'} Python stacks")
    line("tuiprof, plain", row, path.stat().st_size, row)


def test_cost_grows_linearly(tmp_path: Path) -> None:
    print(f"\n{'':10}{'MB':>7}{'events':>11}{'open s':>9}{'MB/s':>7}{'+ three':>9}{'RSS MB':>9}")
    results = []
    for factor, megabytes in ((1, SMALL / 4), (4, SMALL), (16, SMALL * 4)):
        path = make(source(), tmp_path / "t.json", megabytes)
        row = Row([run(sys.executable, OURS, str(path), THREE) for _ in range(ROUNDS)])
        result = {key: row.median(key) for key in ("open", "total", "rss", "events")}
        results.append(result)
        size = path.stat().st_size / 1e6
        print(
            f"{factor:8}× {size:7.0f}{result['events']:11.0f}{result['open']:9.2f}{size / result['open']:7.0f}"
            f"{result['total']:9.2f}{result['rss'] / 1e6:9.0f}"
        )
    first, last = results[0], results[-1]
    grown = (last["rss"] - first["rss"]) / (last["events"] - first["events"])
    print(f"  peak memory, analyses included, grows by {grown:.0f} bytes an event")
    only_open = [
        run(sys.executable, OURS, str(make(source(), tmp_path / "t.json", size)), "")
        for size in (SMALL / 4, SMALL * 4)
    ]
    grown = (only_open[1]["rss"] - only_open[0]["rss"]) / (only_open[1]["events"] - only_open[0]["events"])
    judge(
        [
            Goal("peak memory of opening grows by, bytes an event", grown, GOAL_BYTES_AN_EVENT, above=False),
            Goal(
                "16 times the size takes, times as long",
                last["total"] / first["total"],
                16 * 1.3,
                above=False,
            ),
        ]
    )
