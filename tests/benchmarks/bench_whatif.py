"""What a prediction costs beside opening a trace: the replayed step, and all rules of the advice.

::

    pytest -m bench -s tests/benchmarks/bench_whatif.py

Time is processor time, because the machine may be shared, in processes of their own; medians of several rounds. The
limits were set on a machine on which msgspec alone decodes 450 MB/s, so the ratio to that is printed and judged.
Memory is by how much the peak of the process grows beyond that of opening, after a small trace has been through all of
it; decoding takes more than all that follows, so that it is also measured opened from the cache, which takes less.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import pytest

from tests.benchmarks.bench_formats import PEAK, ROOT, run, source
from tests.benchmarks.calibration import GOALS_MSGSPEC_MB_S
from tests.benchmarks.make_trace import make

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("TUIPROF_BENCH_ROUNDS", "3"))
MEGABYTES = 119.0
#: For the replay and all rules, with the analyses that they read: processor time, s, and memory beyond opening, bytes.
LIMIT_S, LIMIT_BYTES = 1.0, 100

OURS = (
    PEAK
    + """
import json, sys, time
from tuiprof.advice import available, priorities
from tuiprof.analyses import run
from tuiprof.analyses.shared.replay import replayed
from tuiprof.formats import open_trace

priorities(open_trace(sys.argv[2]))  # imports everything
at = [time.process_time()]
def passed():
    at.append(time.process_time())
    return at[-1] - at[-2]
at[0] = time.process_time()
trace = open_trace(sys.argv[1])
said = {"open_s": passed(), "events": len(trace)}
before = own()
step = replayed(trace)
assert not isinstance(step, str), step
said |= {"replay_s": passed(), "nodes": len(step.graph)}
for name in dict.fromkeys(need for rule in available().values() for need in rule.needs):
    run(name, trace)
said["analyses_s"] = passed()
found = priorities(trace)
assert not found.missing, found.missing
said |= {"rules_s": passed(), "bytes": own() - before, "findings": len(found.findings)}
print("RESULT", json.dumps(said))
"""
)


@pytest.mark.parametrize("recorded", ["steps", "no steps"])
def test_replay_and_rules(recorded: str, tmp_path: Path) -> None:
    small = ROOT / "traces" / "attention-native.pt.trace.json.gz"
    path = make(small if recorded == "steps" else source(), tmp_path / "t.json", MEGABYTES)
    rounds = [run(sys.executable, OURS, str(path), str(small)) for _ in range(ROUNDS)]
    ours = {key: statistics.median(said[key] for said in rounds) for key in rounds[0]}
    cache = str(tmp_path / "cache")
    run(sys.executable, OURS, str(path), str(small), cache=cache)
    cached = statistics.median(
        said["bytes"] / said["events"]
        for said in (run(sys.executable, OURS, str(path), str(small), cache=cache) for _ in range(ROUNDS))
    )
    code = "from tests.benchmarks.calibration import main; main()"
    alone = statistics.median(run(sys.executable, code, str(path))["msgspec"] for _ in range(ROUNDS))
    speed = path.stat().st_size / 1e6 / alone
    asked = ours["analyses_s"] + ours["replay_s"] + ours["rules_s"]
    print(
        f"\n{recorded}: {path.stat().st_size / 1e6:.0f} MB, {ours['events']:,.0f} events; processor time, medians of "
        f"{ROUNDS}; msgspec alone {alone:.2f} s ({speed:.0f} MB/s, {GOALS_MSGSPEC_MB_S:.0f} where the limits were set)"
    )
    for name, key in (
        ("open", "open_s"),
        ("replay", "replay_s"),
        ("analyses that rules read", "analyses_s"),
        ("rules and prices", "rules_s"),
    ):
        print(f"  {name:28}{ours[key]:6.2f} s{ours[key] / alone:7.2f} × msgspec")
    print(f"  {'all but opening':28}{asked:6.2f} s{asked / alone:7.2f} × msgspec; limit {LIMIT_S} s")
    print(
        f"  {'memory beyond opening':28}{ours['bytes'] / ours['events']:6.0f} B an event; limit {LIMIT_BYTES}"
    )
    print(f"  {'the same, from the cache':28}{cached:6.0f} B an event")
    print(f"  {ours['nodes']:,.0f} nodes replayed, {ours['findings']:.0f} findings")
    assert asked <= LIMIT_S * max(GOALS_MSGSPEC_MB_S / speed, 1.0)
    assert ours["bytes"] / ours["events"] <= LIMIT_BYTES
