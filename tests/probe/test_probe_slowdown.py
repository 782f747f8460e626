"""The probe says in its log that steps take longer since a capture, with a stand-in for a GPU and its profiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from probe_runs import Run

from tuiprof.session import log as records

SCRIPT = """
import os, pathlib, sys, time, tuiprof
class Gpu:
    is_used, cost_ns = True, 0
    def boundary(self, n): return 1 << 62
    def memory(self): return []
    def names(self, indices): return []
    def read(self): pass
class Profiler:
    def start_follow_up(self): return False
    def __init__(self, request, capturer): pass
    def prepare(self): pass
    def start(self): pass
    def step_begins(self, n): pass
    def step_ended(self): pass
    def stop(self): pass
    def finish(self): return "traces/x"
    def abort(self): pass
tuiprof.phase("load")
runtime = sys.modules["_tuiprof_probe.runtime"].RUNTIME
runtime.steps.time_on(Gpu())
runtime.capture.torch = Profiler
now = time.monotonic_ns()
for name in ("runtime", "steps.counting", "capture"):
    sys.modules["_tuiprof_probe." + name].monotonic_ns = lambda: now
log = pathlib.Path(os.environ["TUIPROF_SESSION"], "log", "rank0.jsonl")
for n in range(60 + 3 + 120):
    now += 3_000_000 if n < 60 else int(sys.argv[1])
    tuiprof.step()
    while n == 63 and '"written"' not in log.read_text(): time.sleep(.005)
"""


@pytest.mark.parametrize("after_ns", [6_000_000, 3_000_000])
def test_what_a_capture_left_behind_is_noted(run: Callable[..., Run], after_ns: int) -> None:
    done = run(SCRIPT, str(after_ns), requests=[{"id": "a", "steps": 3, "at": 60}])
    assert (done.code, done.err) == (0, "")
    assert done.captures("a")[-1].state == "written"
    notes = [note for note in done.of(records.Note) if "slower since" in note.text]
    told = done.of(records.Slower)
    if after_ns == 3_000_000:
        assert (notes, told) == ([], [])
        return
    (note,) = notes
    assert note.level == "info", "who reads the log warns by the steps themselves"
    assert "slower since the capture of steps 59 to 62" in note.text
    assert (told[-1].first, told[-1].last) == (59, 62)
    assert told[-1].after > 1.5 * told[-1].before
    assert told[-1] == done.logs["rank0"][-3] or told[-1] in done.logs["rank0"][-6:], (
        "the end of the log tells it"
    )
