"""How fast a Kineto trace is opened and explained, beside HolisticTraceAnalysis and torch-tb-profiler.

Every measurement is a process of its own on the same file; the programs take turns, and medians over all
rounds are printed. "Whole process" is what a user waits: from the start of Python to its end, imports included;
"open" is the call that reads the file, once the program is imported (tuiprof loads Polars in that call).
Each peer needs an environment of its own::

    python -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis==0.5.0
    python -m venv /tmp/tb && /tmp/tb/bin/pip install torch-tb-profiler==0.4.3 setuptools
    TUIPROF_BENCH_HTA_PYTHON=/tmp/hta/bin/python TUIPROF_BENCH_TB_PYTHON=/tmp/tb/bin/python \\
        pytest -m bench -s tests/benchmarks/bench_formats.py

``TUIPROF_BENCH_TRACE`` names the real trace to scale (default: the largest in ``../shared/traces``, else in
``traces/``), ``TUIPROF_BENCH_MEGABYTES`` the size (default 119; 1000 takes some ten minutes with the peers).
Without a peer the table says so, and only our own limits are checked.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.make_trace import make

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("TUIPROF_BENCH_ROUNDS", "3"))
MEGABYTES = float(os.environ.get("TUIPROF_BENCH_MEGABYTES", "119"))
ROOT = Path(__file__).resolve().parents[2]

# Peak memory is VmHWM: what getrusage says is inherited from the process that started this one.
PEAK = """
def peak():
    import re
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
"""
OURS = (
    PEAK
    + """
import json, os, sys, threading, time
import tuiprof
workers, done = [0], threading.Event()
def watch():  # costs time of its own, so it has a run of its own
    import psutil
    while not done.wait(0.05):
        alive = psutil.Process().children()
        workers[0] = max(workers[0], sum(child.memory_info().rss for child in alive))
watcher = threading.Thread(target=watch, daemon=True)
if sys.argv[3:]: watcher.start()
began = time.perf_counter()
trace = tuiprof.open_trace(sys.argv[1])
opened = time.perf_counter() - began
from tuiprof import analyses
for name in sys.argv[2].split(","):
    if name: analyses.run(name, trace)
total = time.perf_counter() - began
done.set()
print("RESULT", json.dumps({"open": opened, "total": total, "rss": peak(), "worker": workers[0],
      "events": trace.stats.events, "rows": len(trace)}))
"""
)
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
PEERS = {
    "HolisticTraceAnalysis 0.5.0, load": ("TUIPROF_BENCH_HTA_PYTHON", HTA),
    "torch-tb-profiler 0.4.3, load": ("TUIPROF_BENCH_TB_PYTHON", TB),
}
FIVE = "steps,sync_events,kernel_launches,device_idle,kernels"
THREE = "sync_events,kernel_launches,device_idle"


def run(python: str, code: str, *arguments: str) -> dict[str, float]:
    """Run one measurement; ``process`` is how long the whole process took, s."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TUIPROF_TRACE_CACHE": "off"}
    began = time.perf_counter()
    done = subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    took = time.perf_counter() - began
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-2000:]
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


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def test_open_and_analyse(tmp_path: Path) -> None:
    plain = make(source(), tmp_path / "big.json", MEGABYTES)
    zipped = tmp_path / "big.json.gz"
    with zipped.open("wb") as out:
        subprocess.run(["gzip", "-4", "-c", str(plain)], stdout=out, check=True)
    size = plain.stat().st_size
    large = MEGABYTES >= 900
    analyses = THREE if large else FIVE
    measured: dict[str, list[dict[str, float]]] = {"tuiprof, plain": [], "tuiprof, gzip": []}
    for _ in range(ROUNDS):
        measured["tuiprof, plain"].append(run(sys.executable, OURS, str(plain), analyses))
        measured["tuiprof, gzip"].append(run(sys.executable, OURS, str(zipped), analyses))
        for name, (variable, code) in PEERS.items():
            if python := os.environ.get(variable):
                measured.setdefault(name, []).append(run(python, code, str(plain)))
    ours = measured["tuiprof, plain"]
    events, rows = ours[0]["events"], ours[0]["rows"]
    print(f"\n{size / 1e6:.0f} MB of JSON, {events:.0f} events, {rows:.0f} spans; {os.cpu_count()} cores,")
    print(f"load {os.getloadavg()[0]:.1f}; medians of {ROUNDS}; tuiprof runs {analyses}")
    heads = f"{'open s':>9}{'MB/s':>7}{'+ analyses':>12}{'whole process':>15}{'RSS MB':>8}{'× size':>8}{'slower':>8}"
    print(f"{'':36}{heads}")
    for name, results in measured.items():
        total, rss = median(results, "total"), median(results, "rss")
        opened = median(results, "open") if "open" in results[0] else total
        process, rate = median(results, "process"), size / opened / 1e6
        print(
            f"{name:36}{opened:9.2f}{rate:7.0f}{total:12.2f}{process:15.2f}{rss / 1e6:8.0f}{rss / size:8.2f}"
            f"{process / median(ours, 'process'):7.1f}×"
        )
    for name, (variable, _) in PEERS.items():
        if name not in measured:
            print(f"{name:36} not measured: name its Python in {variable}")
    watched = run(sys.executable, OURS, str(plain), analyses, "watch")
    both = watched["rss"] + watched["worker"]
    print(f"tuiprof with its workers: {both / 1e6:.0f} MB, {both / size:.2f}× the file")
    if MEGABYTES >= 100:  # below, Python and Polars themselves are larger than the file
        assert both < size * (1.2 if large else 2.0)
    for peer, (small_factor, large_factor) in zip(PEERS, ((10, 20), (20, 40)), strict=True):
        if peer in measured:
            ratio = median(measured[peer], "process") / median(ours, "process")
            assert ratio >= (large_factor if large else small_factor), f"{peer}: only {ratio:.1f}×"


def test_cost_grows_linearly(tmp_path: Path) -> None:
    sizes = [MEGABYTES / 4, MEGABYTES, MEGABYTES * 4]
    print(f"\n{'':10}{'MB':>7}{'events':>11}{'open s':>9}{'RSS MB':>9}")
    results = []
    for factor, megabytes in zip((1, 4, 16), sizes, strict=True):
        path = make(source(), tmp_path / "t.json", megabytes)
        rounds = [run(sys.executable, OURS, str(path), "") for _ in range(ROUNDS)]
        result = {key: median(rounds, key) for key in rounds[0]}
        results.append(result)
        size, rss = path.stat().st_size / 1e6, result["rss"] / 1e6
        print(f"{factor:8}× {size:7.0f}{result['events']:11.0f}{result['open']:9.2f}{rss:9.0f}")
    grown = (results[-1]["rss"] - results[0]["rss"]) / (results[-1]["events"] - results[0]["events"])
    print(f"peak memory grows by {grown:.0f} bytes an event")
    assert grown <= 120
    assert results[-1]["open"] <= results[0]["open"] * 16 * 1.3
