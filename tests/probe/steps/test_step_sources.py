"""What is taken as a step where no optimizer says so, and captures by the clock."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.probe.capture import Capturer
from tuiprof.probe.events import CAPTURE, NOTE
from tuiprof.probe.requests import Request
from tuiprof.probe.sampler import RECENT, Loop, goes_over_epochs, is_script, loops_of
from tuiprof.probe.steps import loop_steps
from tuiprof.probe.steps.counting import Steps
from tuiprof.probe.steps.loop_steps import LoopSteps, _Trial, likely
from tuiprof.probe.steps.put_off import NO_CALL
from tuiprof.probe.steps.sources import BACKWARDS, BATCH, EXPLICIT, LOOP, NONE, OPTIMIZER
from tuiprof.probe.timed_captures import TimedCaptures
from tuiprof.session import log as records

needs("torch")

BY_HAND = """
import torch
model = torch.nn.Linear(4, 4)
for step in range(20):
    model(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 0.01 * p.grad
    model.zero_grad()
"""
PREFETCHING = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(torch.ones(200, 4), batch_size=2))
for step in range(5):
    for batch in [next(batches) for _ in range(20)]:
        model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCALER = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    if step % 3 == 0: loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: Ends by itself once a file of its session, given by its pattern, holds what is given.
ANY_LOOP = """
import glob, os, sys, time
import torch
model = torch.nn.Linear(64, 64)
model.eval()
x = torch.ones(8, 64)
began = time.monotonic()
files = os.environ["TUIPROF_SESSION"] + sys.argv[1]
def read(path): return open(path, "rb").read()
with torch.inference_mode():
    for count in range(10**9):
        if sys.argv[2].encode() in b"".join(map(read, glob.glob(files))) or time.monotonic() - began > 60: break
        time.sleep(0.002)
        x = model(model(x))
print(count)
"""
TRACE = ("/traces/*.gz", "\x1f")


def test_backward_passes_without_an_optimizer(run_forked: Callable[..., Run]) -> None:
    done = run_forked(BY_HAND, requests=[{"id": "a", "steps": 2, "at": 6}])
    steps = done.of(records.Step)
    assert [step.n for step in steps] == list(range(18)), "the first two passes are waited for"
    assert {"forward", "backward"} <= set(steps[-1].ph)
    (source,) = done.of(records.StepSource)
    assert (source.what, source.withdrawn, source.missed) == ("backward passes", 0, 2)
    assert done.captures("a")[-1].state == "written"


def test_the_first_step_is_not_as_long_as_those_before_it_that_were_missed(
    run_forked: Callable[..., Run],
) -> None:
    slow = "\n    end = time.monotonic() + 0.4 * (step < 2)\n    while time.monotonic() < end: pass"
    script = "import time\n" + BY_HAND.replace("range(20):", "range(20):" + slow)
    first, second, *_ = run_forked(script).of(records.Step)
    assert first.dur < 300_000_000
    assert set(first.ph) == set(second.ph)


def test_batches_fetched_in_a_row_are_no_steps(run_forked: Callable[..., Run]) -> None:
    done = run_forked(PREFETCHING, requests=[{"id": "a", "steps": 2, "at": 2}])
    assert [step.n for step in done.of(records.Step)] == list(range(5))
    assert [source.withdrawn for source in done.of(records.StepSource)] == [0]
    ended = done.captures("a")[-1]
    assert (ended.state, ended.first, ended.last) == ("written", 2, 3)


def test_steps_that_a_scaler_leaves_out_are_counted(run_forked: Callable[..., Run]) -> None:
    assert [step.n for step in run_forked(SCALER).of(records.Step)] == list(range(12))


def test_the_scripts_own_profiler_ends_a_capture_by_the_clock(run_forked: Callable[..., Run]) -> None:
    script = """
import glob, os, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = os.environ["TUIPROF_SESSION"] + "/log/rank0.jsonl"
def step():
    model(torch.ones(2, 4)).sum().backward(); optimizer.step(); time.sleep(0.01)
step()
while '"started"' not in open(log).read(): step()
with torch.profiler.profile() as theirs:
    for n in range(3): step()
print(sum(event.count for event in theirs.key_averages() if event.key == "aten::addmm"))
"""
    done = run_forked(script, requests=[{"id": "a", "seconds": 60, "after_s": 0.0}])
    assert (done.code, done.out) == (0, "3\n"), done.err
    assert "started its own profiler" in done.captures("a")[-1].why


def test_a_capture_by_the_clock_needs_no_steps(run_forked: Callable[..., Run]) -> None:
    done = run_forked(ANY_LOOP, *TRACE, requests=[{"id": "a", "steps": 1, "seconds": 0.2, "after_s": 0.0}])
    states = [capture.state for capture in done.captures("a")]
    assert states == ["armed", "started", "written"]
    assert (done.session / done.captures("a")[-1].path).stat().st_size > 1000


#: A model that is only called, and tensors alone.
PLAIN = ANY_LOOP.replace("torch.nn.Linear(64, 64)", "torch.nn.Linear(512, 512)").replace("model.eval()\n", "")
PLAIN = PLAIN.replace("torch.ones(8, 64)", "torch.ones(256, 512)")
MARKED = ANY_LOOP.replace("model.eval()", "import tuiprof").replace("model(model(x))", "x; tuiprof.step()")
TENSORS = """
import torch
x = torch.ones(8, 64)
for count in range(100): x = x @ torch.ones(64, 64)
"""


@pytest.mark.parametrize("script", [PLAIN, MARKED], ids=["plain", "marked"])
def test_a_capture_by_the_clock_begins_once_a_model_is_called_or_a_step_has_ended(
    run_forked: Callable[..., Run], script: str
) -> None:
    done = run_forked(script, *TRACE, requests=[{"id": "a", "steps": 1, "seconds": 0.2, "after_s": 0.0}])
    assert [capture.state for capture in done.captures("a")] == ["armed", "started", "written"]


@pytest.mark.parametrize(
    ("after_s", "why"), [(0.0, "not seen to call a model"), (1000.0, "the script ended within 1000 s")]
)
def test_a_capture_by_the_clock_that_is_not_made_has_a_reason(
    run_forked: Callable[..., Run], after_s: float, why: str
) -> None:
    done = run_forked(TENSORS, requests=[{"id": "a", "steps": 1, "seconds": 0.2, "after_s": after_s}])
    (log,) = done.logs.values()
    ended = [record for record in log if isinstance(record, records.Capture)][-1]
    assert ended.state == "failed"
    assert why in str(ended.why)


IMPORTING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
part = compile("end = clock() + 700_000_000\\nwhile clock() < end: pass", "part.py", "exec")
names = {"__name__": "torch.part", "clock": time.monotonic_ns}
exec(part, names)
imported = names["end"]
"""


def test_a_capture_by_the_clock_waits_until_a_framework_is_imported(run_forked: Callable[..., Run]) -> None:
    """The profiler imports parts of PyTorch, which are incomplete meanwhile."""
    script = ANY_LOOP.replace("model.eval()", IMPORTING + "model.eval()").replace(
        "print(count)", "print(imported)"
    )
    done = run_forked(script, *TRACE, requests=[{"id": "a", "steps": 1, "seconds": 0.2, "after_s": 0.0}])
    _, started, written = done.captures("a")
    assert started.at >= int(done.out)
    assert written.state == "written"


def test_a_script_whose_loop_is_no_longer_counted_is_captured_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TimedCaptures, "_do", lambda self, what: None)
    runtime = MagicMock()
    runtime.steps.source, runtime.steps.floor = LOOP, NONE
    captures = TimedCaptures(runtime)
    captures._born -= 60 * 10**9
    captures.look()
    assert captures._request is None, "it has steps"
    runtime.steps.source = NONE
    captures.look()
    assert captures._request is not None


def capturing(monkeypatch: pytest.MonkeyPatch, profiler: Any) -> tuple[Steps, Capturer]:
    """Return steps, and what captures them with a profiler."""
    steps = Steps(lambda: None)
    capture = Capturer("", steps)
    steps.on_withdrawn = capture.withdrawn
    monkeypatch.setattr(capture, "make_profiler", lambda request: profiler)
    return steps, capture


def in_state(steps: Steps, state: str) -> list[str]:
    """Return the captures that were recorded to be in a state, in order."""
    return [item[1]["id"] for item in steps.out if item[0] == CAPTURE and item[1]["state"] == state]


def test_a_capture_by_the_clock_may_end_at_a_boundary_in_another_thread() -> None:
    steps = Steps(lambda: None)
    capture = Capturer("", steps)
    begun: list[int] = []

    def ends() -> None:
        capture.timed = None

    capture.timed = SimpleNamespace(step_ended=ends, step_begins=begun.append)
    capture.boundary(3)
    assert begun == [3]


def test_a_capture_waits_for_its_step_among_those_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the training, the script evaluates more batches than it has to train to reach the step."""
    begun: list[int] = []
    profiler = SimpleNamespace(prepare=lambda: None, start=lambda: None, step_begins=begun.append)
    steps, capture = capturing(monkeypatch, profiler)
    steps.optimizer_made = True
    capture.offer(Request("a", at=20))
    for t in range(100):
        steps.end(BATCH, t)
    for t in range(100, 120):
        assert not begun
        steps.end(OPTIMIZER, t)
    assert begun == [20]


@pytest.mark.parametrize(
    ("ended", "more", "so_far"),
    [(4, False, 2), (6, False, 3), (5, True, 2), (6, True, 3)],
    ids=["running", "written", "running-on", "written-later"],
)
@pytest.mark.parametrize(
    ("cause", "forked", "again"), [("", False, ["a-again"]), ("slow", False, []), ("", True, [])]
)
def test_only_what_was_asked_of_this_process_is_captured_again(
    monkeypatch: pytest.MonkeyPatch,
    ended: int,
    more: bool,
    so_far: int,
    cause: str,
    forked: bool,
    again: list[str],
) -> None:
    profiler = MagicMock(finish=lambda: "a.json", start_follow_up=lambda: more)
    steps, capture = capturing(monkeypatch, profiler)
    capture.offer(Request("a", steps=2, at=3, cause=cause))
    for t in range(ended):
        steps.end(OPTIMIZER, t)
    capture.wait(60)
    states = [fields["state"] for kind, fields in steps.out if kind == CAPTURE]
    assert states == ["armed", "started", "written"][:so_far]
    if forked:
        capture.after_fork()
    steps.out.clear()
    steps.end(EXPLICIT, ended)
    steps.end(EXPLICIT, ended + 1)
    assert in_state(steps, "armed") == again


def test_a_capture_of_a_loop_that_is_no_longer_counted_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no later step at which it could end."""
    profiler = MagicMock(start_follow_up=lambda: False)
    steps, capture = capturing(monkeypatch, profiler)
    capture.offer(Request("a", steps=10**6, at=4))
    for t in range(10):
        steps.end(LOOP, t * 10**9)
    assert profiler.start.called
    assert not profiler.abort.called
    for t in range(5000):
        steps.end(LOOP, 10**10 + t)
    assert profiler.abort.called
    assert in_state(steps, "armed") == ["a", "a-again"], "other steps may be found"


def test_a_capture_is_repeated_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass over the data may look like steps at first."""
    steps, capture = capturing(monkeypatch, MagicMock(finish=lambda: "a.json", start_follow_up=lambda: False))
    capture.offer(Request("a", steps=1, at=4))
    for t in range(10):
        for _ in range(9):
            steps.end(OPTIMIZER, t)
        capture.wait(60)
        steps.withdraw(OPTIMIZER, t)
    written = in_state(steps, "written")
    assert written == ["a", "a-again", "a-again-again", "a-again-again-again"]


def test_a_time_out_while_a_capture_is_given_up_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(*_: object) -> None:
        raise TimeoutError

    profiler = SimpleNamespace(prepare=lambda: None, abort=lambda: signal.raise_signal(signal.SIGALRM))
    steps, capture = capturing(monkeypatch, profiler)
    capture.offer(Request("a", at=2))
    steps.end(OPTIMIZER, 0)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError):
            capture.interrupt("the script started its own profiler during the capture")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert steps.out[-1][1]["state"] == "failed"


def test_a_step_may_be_changed_in_another_thread_as_a_call_returns() -> None:
    steps = Steps(lambda: None)
    steps.put_off = (1, OPTIMIZER, 0, None)

    def changed() -> int:
        steps.change(BACKWARDS, 1)
        return NO_CALL

    steps.call = changed
    steps.call_returned(2)
    assert steps.n == 0, "an optimizer ends no steps now"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is there from Python 3.12 on")
def test_iterations_of_the_loop_where_nothing_else_is_found(run_forked: Callable[..., Run]) -> None:
    done = run_forked(ANY_LOOP, *TRACE, requests=[{"id": "a", "steps": 2, "at": 5}])
    steps = done.of(records.Step)
    assert 5 < len(steps) <= int(done.out)
    (source,) = done.of(records.StepSource)
    assert source.what == "iterations of a loop"
    assert source.where.endswith(":11")
    assert source.missed_ns > 1_000_000_000, "it takes two seconds to find the loop"
    assert done.captures("a")[-1].state == "written"


#: Loops inside loops: what is counted as a step says how many of them there were.
NESTED = """
import time
import torch
model = torch.nn.Linear(4, 4)
began = time.monotonic()
turns = 0
while time.monotonic() - began < 8:
    for part in range(PARTS):
        for layer in range(2):
            time.sleep(0.01)
    turns += 1
print(turns)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is there from Python 3.12 on")
@pytest.mark.parametrize(("parts", "line"), [("4", 7), ("40", 8)])
def test_a_loop_that_is_soon_left_goes_over_the_parts_of_a_step(
    run_forked: Callable[..., Run], parts: str, line: int
) -> None:
    done = run_forked(NESTED.replace("PARTS", parts))
    source = done.of(records.StepSource)[-1]
    assert source.where.endswith(f":{line}")
    assert source.withdrawn, "iterations of the loop inside were counted until it was known"
    steps = len(done.of(records.Step)) - sum(one.withdrawn for one in done.of(records.StepSource))
    turns = int(done.out) * (1 if line == 7 else int(parts))
    assert turns // 4 < steps <= turns


#: Four batches an epoch.
EPOCHS = """
import time
import torch
model = torch.nn.Linear(4, 4)
began = time.monotonic()
for epoch in range(1000):
    for batch in range(4):
        time.sleep(0.02)
    if time.monotonic() - began > 8: break
print(epoch + 1)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is there from Python 3.12 on")
def test_a_short_loop_in_one_over_epochs_goes_over_batches(run: Callable[..., Run]) -> None:
    done = run(EPOCHS)
    (source,) = done.of(records.StepSource)
    assert source.where.endswith(":7")
    assert int(done.out) * 2 < len(done.of(records.Step)) <= int(done.out) * 4


async def without_loops(path: str) -> None:
    try:
        await asyncio.sleep(0)
    except OSError:
        path = ""
    with open(path) as file:
        print(file)
    print("done")


async def with_loops(path: str) -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(0)
        except OSError:
            continue
        with open(path) as file:
            while file.read():
                print("read")
        print("next")
    try:
        print("done")
    except OSError:
        for _ in range(3):
            print("failed")


def test_handlers_of_exceptions_and_waits_of_coroutines_are_no_loops() -> None:
    assert loops_of(without_loops.__code__) == []
    first = with_loops.__code__.co_firstlineno
    assert [loop.line - first for loop in loops_of(with_loops.__code__)] == [1, 7, 13]


def test_loops_over_epochs_are_known_by_their_variable() -> None:
    def loops(items: Any) -> None:
        for _epoch in items:
            for item in items:
                print(item)
        for number, this_epoch in items:
            print(number, this_epoch)
        for number, (_a, _b) in items:
            epoch = number
            print(epoch)

    found = [loop.over_epochs for loop in loops_of(loops.__code__)]
    assert found == [True, False, True, False]


def test_a_loop_holds_its_share_of_the_loop_around_it() -> None:
    """Samples from before the loops began do not make the outer one the step."""
    around = Loop(test_a_loop_holds_its_share_of_the_loop_around_it.__code__, 10, 50, 1)
    called = Loop(train_epoch.__code__, 20, 40, 2)
    assert likely([()] * 3 + [(around, called)] * 17) == [around, called]
    assert likely([(around,)] * 3 + [(around, called)] * 17) == [around]
    assert likely([()] * 6 + [(around, called)] * 14) == []


def train_epoch(items: Any) -> None:
    for item in items:
        for part in item:
            print(part)


def test_a_loop_in_a_function_of_an_epoch_goes_over_batches() -> None:
    def loops(items: Any) -> None:
        for _ in range(3):
            train_epoch(items)

    (around,), (batches, parts) = loops_of(loops.__code__), loops_of(train_epoch.__code__)
    assert goes_over_epochs(around, batches)
    assert not goes_over_epochs(batches, parts), "both are in it"


@pytest.mark.parametrize(
    ("runs", "judged"),
    [
        ([3, 4, 4], [False]),  # the first was not seen from its beginning
        ([3, 4], []),
        ([3, 0, 4, 0, 4], [False]),  # a run without an iteration tells nothing
        ([9, 16, 17], [True]),
        ([17], [True]),
    ],
)
def test_a_loop_is_on_trial_until_it_has_gone_around_often(runs: list[int], judged: list[bool]) -> None:
    code = test_a_loop_is_on_trial_until_it_has_gone_around_often.__code__
    found: list[bool] = []
    counted: list[int] = []
    trial = _Trial(
        Loop(code, 20, 40, 2),
        Loop(code, 10, 50, 1),
        lambda _code, _at, to: counted.append(to),
        found.append,
        "disabled",
    )
    for iterations in runs:
        for _ in range(iterations):
            trial.jumped(code, 40, 20)
        trial.jumped(code, 50, 10)
    assert found[:1] == judged, "the first word ends the trial"
    assert counted == [20] * sum(runs)


def test_other_loops_beside_the_one_on_trial_are_not_watched() -> None:
    code = test_loops_over_epochs_are_known_by_their_variable.__code__
    function = test_other_loops_beside_the_one_on_trial_are_not_watched.__code__
    trial = _Trial(Loop(function, 20, 40, 2), Loop(code, 10, 50, 1), MagicMock(), MagicMock(), "disabled")
    assert trial.jumped(code, 50, 10) is None
    assert trial.jumped(code, 30, 25) == "disabled"


def test_the_loop_that_is_named_is_the_last_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's thread, which begins as the first loop is named, finds a better one before that is written."""
    code = test_the_loop_that_is_named_is_the_last_one_found.__code__
    outer, inner = Loop(code, 10, 50, 1), Loop(code, 20, 40, 2)
    sampler = SimpleNamespace(recent=[(outer,)] * RECENT, stop_loops=lambda: None)
    out: list[Any] = []
    steps = SimpleNamespace(
        n=0,
        source=0,
        floor=0,
        optimizer_made=False,
        torch_works=True,
        out=out,
        loop=SimpleNamespace(on_trial=False, is_too_short=False),
    )
    found: LoopSteps

    def record() -> None:
        if not isinstance(sampler.recent[0], list):
            sampler.recent = [[outer, inner]] * RECENT
            found.look()

    runtime: Any = SimpleNamespace(
        hook=lambda name: SimpleNamespace(on=True, call=lambda function, *args: function(*args)),
        steps=steps,
        sampler=sampler,
        record=record,
    )
    monkeypatch.setattr(sys, "monitoring", None, raising=False)
    found = LoopSteps(runtime)
    found._began -= 60 * 10**9
    found.look()
    assert [item[1]["where"].rpartition(":")[2] for item in out] == ["1", "2"]


@pytest.mark.parametrize(
    ("times_us", "counted"),
    [
        ([20] * 5000, False),
        ([1000] * 5000, True),
        ([20] * 1000 + [1000] * 4000, True),
        ([2000, 2] * 5000, True),
    ],
    ids=["short", "long", "behind a queue of launches", "long and short"],
)
def test_a_loop_whose_iterations_are_too_short_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, times_us: list[int], counted: bool
) -> None:
    """To count an iteration takes as long as 1 µs, and as long again to write it."""
    now = 0
    steps = Steps(lambda: None)
    runtime: Any = SimpleNamespace(
        hook=lambda name: SimpleNamespace(on=True, call=lambda function, *args: function(*args)),
        steps=steps,
        sampler=SimpleNamespace(recent=[], wants_loops=False, stop_loops=lambda: None),
    )
    monkeypatch.setattr(loop_steps, "monotonic_ns", lambda: now)
    code = test_a_loop_whose_iterations_are_too_short_is_not_counted.__code__
    loop = Loop(code, 10, 50, 1)
    found = LoopSteps(runtime)
    found._monitoring, found._tool = MagicMock(DISABLE="disabled"), 4
    jumped = found._callback(loop, begun=False)
    jumped(code, 50, 10)
    for time_us in times_us:
        now += 1000 * time_us
        if jumped(code, 50, 10) is not None:
            break
    found._armed = loop
    found.look()
    assert (steps.source, steps.n) == ((LOOP, len(times_us)) if counted else (NONE, 0))
    notes = [item[3] for item in steps.out if item[0] == NOTE]
    assert (found._armed is loop, len(notes), runtime.sampler.wants_loops) == (
        counted,
        not counted,
        not counted,
    )


def test_reads_of_a_loop_that_is_too_short_end_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(loop_steps, "monotonic_ns", lambda: now)
    steps = Steps(lambda: None)
    hook = SimpleNamespace(on=True)
    runtime: Any = SimpleNamespace(hook=lambda name: hook, steps=steps, note=lambda level, text: None)
    code = test_reads_of_a_loop_that_is_too_short_end_no_steps.__code__
    ended = LoopSteps(runtime)._once_each(Loop(code, 10, 50, 1))
    for _ in range(5000):
        now += 20_000
        ended()
    assert (steps.source, steps.n) == (NONE, 0)


#: Batches of 10 µs, as in a pass over the data, and of 10 ms, for which nothing else is a step.
TWO_PASSES = """
import time
from torch.utils.data import DataLoader, IterableDataset
class Items(IterableDataset):
    def __init__(self, count, seconds): self.count, self.seconds = count, seconds
    def __iter__(self):
        for number in range(self.count):
            if self.seconds: time.sleep(self.seconds)
            yield number
for count, seconds in ((20_000, 0), (40, 0.01)):
    for item in DataLoader(Items(count, seconds), batch_size=None): pass
"""


def test_batches_that_are_too_short_are_not_counted(run_forked: Callable[..., Run]) -> None:
    done = run_forked(TWO_PASSES, requests=[{"id": "a", "steps": 2, "at": 5}])
    [written] = [one for one in done.of(records.Capture) if one.state == "written"]
    first, none, second = done.of(records.StepSource)
    assert (first.what, none.what, second.what) == ("batches of a DataLoader", "", "batches of a DataLoader")
    assert 0 < none.withdrawn < 10_000
    assert [step.n for step in done.of(records.Step) if step.at > second.at] == list(range(38))
    assert written.at > second.at, "only what is long enough is captured"


@pytest.mark.parametrize(
    ("times_us", "source", "settled"),
    [
        ([1000] * 17, BATCH, True),
        ([1000] * 15, BATCH, False),  # too few to tell
        ([20_000, *[10] * 29], BATCH, False),  # the first one takes long
        ([10, 10, 10, 50_000] * 8, LOOP, False),  # some are interrupted
        ([2000, 2] * 10, LOOP, True),
        ([10] * 30, OPTIMIZER, True),
    ],
)
def test_what_seems_long_enough_is_captured(times_us: list[int], source: int, settled: bool) -> None:
    steps, now = Steps(lambda: None), 0
    steps.source = source
    for us in times_us:
        steps.n, now = steps.n + 1, now + 1000 * us
        is_settled = steps.settled(now)
    assert is_settled == settled


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on the loop is counted")
def test_below_python_3_12_the_loop_is_named(run_forked: Callable[..., Run]) -> None:
    done = run_forked(ANY_LOOP, "/log/*", '"likely"')
    (log,) = done.logs
    assert done.of(records.LikelyStep, log)[-1].where.endswith("/script.py:11")


SERVER = """
import glob, os, queue, threading, time
import torch
model = torch.nn.Linear(64, 64)
model.eval()
requests = queue.Queue()
log = os.environ["TUIPROF_SESSION"] + "/log/*"
def client():
    began = time.monotonic()
    while not any('"likely"' in open(path).read() for path in glob.glob(log)) and time.monotonic() - began < 60:
        time.sleep(0.3)
        requests.put(torch.ones(8, 64))
    requests.put(None)
threading.Thread(target=client).start()
@torch.inference_mode()
def serve():
    while True:
        x = requests.get()
        if x is None: break
        for _ in range(5): x = model(x)
serve()
"""


def test_the_loop_of_a_server_that_waits_for_requests_is_named(run_forked: Callable[..., Run]) -> None:
    done = run_forked(SERVER)
    (log,) = done.logs
    assert done.of(records.LikelyStep, log)[-1].where.endswith("/script.py:17")
    assert not done.of(records.Step, log)


MODELS = """
import io, pickle, time
import torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
    def forward(self, x):
        time.sleep(0.004)
        return self.inner(x)

model = Slow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    time.sleep(0.004)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 4:
        model.eval()
        with torch.no_grad(): model(torch.ones(2, 4))
        model.train()
        torch.save(model.state_dict(), io.BytesIO())
model.eval()
with torch.no_grad(): model(torch.ones(2, 4))
torch.save(model.state_dict(), io.BytesIO())
print(pickle.loads(pickle.dumps(torch.save)) is torch.save, len(list(torch.fx.symbolic_trace(model.inner).graph.nodes)))
"""


def test_forward_is_the_outermost_call_of_the_model(run_forked: Callable[..., Run]) -> None:
    done = run_forked(MODELS)
    assert (done.code, done.out) == (0, "True 4\n"), done.err
    steps = done.of(records.Step)
    for step in steps[1:]:
        assert step.ph["forward"] >= 4e6
        rest = step.dur - sum(step.ph.values())
        assert rest >= 4e6, "what lies before the model is not forward"
    assert [step.n for step in steps if "evaluation" in step.ph] == [5], "it belongs to the step that follows"
    assert steps[5].ph["evaluation"] >= 4e6
    assert steps[5].ph["checkpoint"] > 0
    ended = done.of(records.End)[-1]
    assert ended.ph["evaluation"] >= 4e6, "after the last step there is none that it could belong to"
    assert ended.ph["checkpoint"] > 0


def test_packages_in_a_folder_of_their_own_are_not_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target FOLDER`` and ``PYTHONPATH=FOLDER``, as on clusters."""
    installed, project = tmp_path / "cluster", tmp_path / "project"
    (installed / "framework-1.0.dist-info").mkdir(parents=True)
    (project / "project.egg-info").mkdir(parents=True)  # an editable checkout
    monkeypatch.setattr(sys, "path", [str(installed), str(project), *sys.path])
    assert not is_script(frame_of(installed / "framework/optimizer.py"))
    assert is_script(frame_of(project / "train.py"))


def test_a_file_may_be_relative_to_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert is_script(frame_of(Path("train.py")))


def frame_of(path: Path) -> FrameType:
    """Return a frame that runs the code of a file."""
    found: dict[str, Any] = {}
    exec(compile("import sys\nframe = sys._getframe()", str(path), "exec"), found)
    frame: FrameType = found["frame"]
    return frame


TWO_OPTIMIZERS = """
import torch
critic, generator = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
of_critic, of_generator = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (critic, generator))
x = torch.ones(2, 4)
def train_critic():
    critic(generator(x).detach()).sum().backward()
    of_critic.step()
def train_generator():
    critic(generator(x)).sum().backward()
    of_generator.step()
"""
CRITIC_FIRST = """
for step in range(12):
    for _ in range(3): train_critic()
    train_generator()
"""
NOW_AND_THEN = """
for step in range(12):
    train_critic()
    if step % 3 == 2: train_generator()
"""
ONCE_AN_EPOCH = """
for epoch in range(3):
    for _ in range(4): train_critic()
    train_generator()
"""


LEARNERS = """
def learn():
    learner = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(3):
        critic(generator(x).detach()).sum().backward()
        learner.step()
for step in range(12):
    for task in range(4): learn()
    train_generator()
"""
ONE_AFTER_THE_OTHER = """
for step in range(20): train_critic()
for step in range(20): train_generator()
"""
EPOCHS_IN_TURN = """
for epoch in range(3):
    for step in range(5): train_critic()
    for step in range(5): train_generator()
"""
BESIDE_EACH_OTHER = """
for step in range(12):
    for _ in range(3): train_critic()
    for _ in range(2): train_generator()
"""
IN_LOOPS_OF_ONE = """
for step in range(12):
    for train in (train_critic,): train()
    for train in (train_generator,): train()
"""
OUTSIDE_OF_THE_SCRIPT = """
exec(compile("for step in range(20): train_critic()", "<cell>", "exec"), globals())
exec(compile("for step in range(20): train_generator()", "<cell>", "exec"), globals())
"""
FITTED_FIRST = """
fit = torch.optim.LBFGS(critic.parameters(), max_iter=2)
def closure():
    loss = critic(generator(x)).square().sum()
    loss.backward()
    return loss
fit.step(closure)
for step in range(20): train_critic()
"""
LEARNERS_OF_MANY_TASKS = LEARNERS.replace("range(4)", "range(100)")


#: An optimizer for each parameter.
EACH = """
import dis, torch
looked, get = [], dis.get_instructions
dis.get_instructions = lambda code, **more: looked.append(code) or get(code, **more)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(40)))
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
stepped = []
def update(p):
    stepped.append(p)
    optimizers[p].step()
    optimizers[p].zero_grad()
if HOOKS:
    for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
for i in range(30):
    model(torch.ones(2, 2)).sum().backward()
    if HOOKS and i == 15: stepped[0].requires_grad_(False)
    if not HOOKS:
        for p in model.parameters(): update(p)
print(len(looked) - len(set(looked)))
"""


@pytest.mark.parametrize("hooks", [True, False])
def test_optimizers_of_single_parameters_step_together(run_forked: Callable[..., Run], hooks: bool) -> None:
    done = run_forked(EACH.replace("HOOKS", str(hooks)))
    assert [one.withdrawn for one in done.of(records.StepSource)] == [0]
    assert len(done.of(records.Step)) == 30
    assert int(done.out) < 100, "the code of the script is read at each step of an optimizer"


TRAINED_MODELS = """
import torch
torch.set_num_threads(1)
kept = []
def made():
    model = torch.nn.Linear(2, 2)
    kept.append((model, torch.optim.SGD(model.parameters(), lr=0.01)))
    return kept[-1]
def train(model, optimizer):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
"""
ANEW_EACH_STEP = "for i in range(90): train(*made())"
ONE_MODEL_AFTER_ANOTHER = """
for i in range(6):
    one = made()
    for step in range(15): train(*one)
"""
IN_ANY_ORDER = """
for i in range(5): made()
for i in (0, 1, 2, 1, 4, 3, 0, 4, 2):
    for step in range(10): train(*kept[i])
"""
ALL_TOGETHER = """
for i in range(5): made()
for step in range(90):
    for one in kept: train(*one)
"""
ALL_TOGETHER_AFTER_ONE = """
for i in range(5): made()
for step in range(90):
    for one in kept[: 1 if step < 20 else 5]: train(*one)
"""


@pytest.mark.parametrize(
    ("loop", "counted"),
    [
        (ANEW_EACH_STEP, 90),
        (ONE_MODEL_AFTER_ANOTHER, 90),
        (IN_ANY_ORDER, 90),
        (ALL_TOGETHER, 90),
        (ALL_TOGETHER_AFTER_ONE, 91),  # the first round of all is taken for two steps
    ],
)
def test_optimizers_that_step_at_one_line(run_forked: Callable[..., Run], loop: str, counted: int) -> None:
    done = run_forked(TRAINED_MODELS + loop)
    assert [one.withdrawn for one in done.of(records.StepSource)] == [0]
    assert len(done.of(records.Step)) == counted


IN_TWO_THREADS = """
import threading
class Waits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
    def forward(self):
        inside.set()
        go_on.wait()
        return self.weight.sum()
inside, go_on = threading.Event(), threading.Event()
one, other = made(), Waits()
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
thread = threading.Thread(target=optimizer.step, args=(other,))
for i in range(13):
    if i == 3:
        thread.start()
        inside.wait()
    with torch.no_grad(): one[0].eval()(torch.ones(2, 2))
    one[0].train()
    train(*one)
go_on.set()
thread.join()
"""


def test_a_model_that_runs_in_another_thread_hides_no_steps_and_no_calls(
    run_forked: Callable[..., Run],
) -> None:
    steps = run_forked(TRAINED_MODELS + IN_TWO_THREADS).of(records.Step)
    assert len(steps) == 13
    assert all("evaluation" in step.ph for step in steps[1:])


def test_generated_code_of_many_lines_is_not_searched_for_loops() -> None:
    def found(lines: int) -> int:
        body = "".join(f"        if i: print({n})\n" for n in range(lines))
        code = compile(f"if True:\n    for i in range(3):\n{body}", "train.py", "exec")
        return len(loops_of(code))

    assert [found(10), found(20_000)] == [1, 0]


@pytest.mark.parametrize(
    ("loop", "counted", "missed"),
    [
        (CRITIC_FIRST, 11, [0, 1]),
        (NOW_AND_THEN, 12, [0]),
        (ONCE_AN_EPOCH, 12, [0]),
        (LEARNERS, 11, [0, 1]),
        (CRITIC_FIRST.replace("range(3)", "range(100)"), 11, [0, 1]),
        (ONE_AFTER_THE_OTHER, 40, [0]),
        (EPOCHS_IN_TURN, 30, [0]),
        (BESIDE_EACH_OTHER, 11, [0, 1]),
        (IN_LOOPS_OF_ONE, 12, [0]),
        (FITTED_FIRST, 21, [0]),
        (OUTSIDE_OF_THE_SCRIPT, 40, [0]),
    ],
)
def test_steps_of_a_loop_inside_a_step_are_parts_of_it(
    run_forked: Callable[..., Run], loop: str, counted: int, missed: list[int]
) -> None:
    done = run_forked(TWO_OPTIMIZERS + loop)
    steps = done.of(records.Step)
    assert [step.n for step in steps][-counted:] == list(range(counted))
    assert [source.missed for source in done.of(records.StepSource)] == missed
    several = loop in (
        ONE_AFTER_THE_OTHER,
        EPOCHS_IN_TURN,
        BESIDE_EACH_OTHER,
        FITTED_FIRST,
        OUTSIDE_OF_THE_SCRIPT,
    )
    warned = [note.text for note in done.of(records.Note) if note.level == "warn"]
    assert any("loop" in text for text in warned) == several, warned


def test_equal_functions_of_two_files_are_named_apart(run_forked: Callable[..., Run], tmp_path: Path) -> None:
    fit = """
def fit(loss, optimizer):
    for step in range(20):
        loss().backward()
        optimizer.step()
"""
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(fit)
    script = """
import torch, first, second
weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
optimizers = [torch.optim.SGD([weight], lr=0.01) for weight in weights]
first.fit(lambda: weights[0].sum(), optimizers[0])
second.fit(lambda: weights[1].sum(), optimizers[1])
"""
    [note] = [note.text for note in run_forked(script).of(records.Note) if note.level == "warn"]
    assert note.startswith("the optimizer at second.py:5 steps in a separate loop from the one at first.py:5")


def test_an_optimizer_in_the_loop_around_that_is_seen_too_late_is_named(
    run_forked: Callable[..., Run],
) -> None:
    done = run_forked(TWO_OPTIMIZERS + LEARNERS_OF_MANY_TASKS)
    assert len(done.of(records.Step)) > 12 * 200, "they are steps still"
    (note,) = [note for note in done.of(records.Note) if "another optimizer" in note.text]
    assert note.level == "warn"
    assert note.text.endswith("use --step-at script.py:11"), note.text
