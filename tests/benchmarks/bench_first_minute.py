"""What finding and counting steps costs: an iteration of a counted loop, a named line or function, a sample.

    pytest -m bench -s tests/benchmarks/bench_first_minute.py

Each Python is a process of its own that compares the same loop without and with the probe's callback, block by block.
The least of all blocks counts: other programs only ever add.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROUNDS = 3
INJECT = Path(__file__).resolve().parents[2] / "tuiprof" / "probe" / "inject"
PYTHONS = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[2-9].*/bin/python")) or [
    Path(sys.executable)
]

SCRIPT = """
import json, sys, threading, time
from time import perf_counter_ns as clock
import tuiprof
tuiprof.step()
from _tuiprof_probe.runtime import RUNTIME
from _tuiprof_probe.sampler import loops_of
from _tuiprof_probe.steps.sources import LOOP

def looped(count):
    for i in range(count):
        j = i
def called():
    pass
def calls(count):
    for i in range(count):
        called()
def least(function, blocks=400, count=500):
    found = []
    for _ in range(blocks):
        began = clock(); function(count); found.append((clock() - began) / count)
    return min(found)
found = {}
def deep(depth, then):
    return then() if not depth else deep(depth - 1, then)
def samples():
    took = []
    done = threading.Event()
    def sampling():
        for _ in range(500):
            before = RUNTIME.sampler.cost_ns
            RUNTIME.sampler.sample()
            took.append(RUNTIME.sampler.cost_ns - before)
        done.set()
    threading.Thread(target=sampling).start()
    deep(40, done.wait)
    return sorted(took)[len(took) // 2]
found["sample while the loop is looked for"] = samples()
RUNTIME.sampler.stop_loops()
found["sample"] = samples()
if hasattr(sys, "monitoring"):
    RUNTIME.changed._set_aside()
    bare = least(looped)
    RUNTIME.steps.change(LOOP, clock())
    RUNTIME.loops._done = False
    RUNTIME.loops._count(loops_of(looped.__code__)[:1])
    looped(10)
    before = RUNTIME.steps.n
    found["iteration"] = least(looped) - bare
    assert RUNTIME.steps.n - before == 400 * 500, (before, RUNTIME.steps.n)
    RUNTIME.loops.release()
    bare = least(calls)
    RUNTIME.changed._count_returns("__main__:called")
    calls(10)
    before = RUNTIME.steps.n
    found["named function"] = least(calls) - bare
    assert RUNTIME.steps.n - before == 400 * 500, (before, RUNTIME.steps.n)
print("RESULT", json.dumps(found))
"""


def measured(python: Path, folder: Path) -> dict[str, float]:
    for name in ("log", "traces", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    script = folder / "bench.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"TUIPROF_SESSION": str(folder), "PYTHONPATH": str(INJECT)}
    done = subprocess.run(
        [str(python), str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(json.loads(done.stdout.split("RESULT ")[1]))


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_costs(python: Path, tmp_path: Path) -> None:
    rounds = [measured(python, tmp_path / str(number)) for number in range(ROUNDS)]
    best = {name: min(one[name] for one in rounds) for name in rounds[0]}
    print(f"\n{python.parts[-3]}: " + ", ".join(f"{name} {ns / 1e3:.2f} µs" for name, ns in best.items()))
    assert best["sample"] * 10 < 0.002 * 1e9, "ten samples a second take at most 0.2 % of a core"
    if "iteration" in best:
        assert best["iteration"] < 1_000
