"""The probe says in its log that steps take longer since a capture, with a stand-in for a GPU and its profiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from probe_runs import Run

from tuiprof.session import records

SCRIPT = """
import sys, time, tuiprof
class Gpu:
    is_used, cost_ns = True, 0
    def boundary(self, n): return 1 << 62
    def memory(self): return []
    def names(self, indices): return []
    def read(self): pass
class Profiler:
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
for n in range(60 + 3 + 120):
    time.sleep(.003 if n < 60 else float(sys.argv[1]))
    tuiprof.step()
"""


@pytest.mark.parametrize("after_s", [0.006, 0.003])
def test_what_a_capture_left_behind_is_noted(run: Callable[..., Run], after_s: float) -> None:
    done = run(SCRIPT, str(after_s), requests=[{"id": "a", "steps": 3, "at": 60}])
    assert (done.code, done.err) == (0, "")
    assert done.captures("a")[-1].state == "written"
    notes = [note for note in done.of(records.Note) if "slower since" in note.text]
    told = done.of(records.Slower)
    if after_s == 0.003:
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
