"""The probe under real PyTorch on the CPU."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.advice import priorities
from tuiprof.formats import open_trace
from tuiprof.probe.frameworks.model_calls import ModelCalls
from tuiprof.session import log as records

needs("torch")

MODEL = """
import sys, time, torch, warnings
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 16), torch.randn(320, 1))
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(loader, after=lambda loss: None):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(loss)
"""


def model_calls(run: Run) -> list[str]:
    """Return the names of the calls of models in a capture; those of parts of models end with a line."""
    events = run.events(run.captures("a")[-1])
    return [e["name"] for e in events if e.get("cat") == "user_annotation" and ", at " not in e["name"]]


def test_steps_and_phases_are_found_and_workers_stay_silent(run: Callable[..., Run]) -> None:
    script = """
train(DataLoader(data, batch_size=64))
time.sleep(0.02)
train(DataLoader(data, batch_size=64, num_workers=2))
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=8): model(x)
other = torch.optim.Adam(model.parameters())
model(x).sum().backward(); other.step()
model(x).sum().backward(); optimizer.step()
"""
    done = run(MODEL + script)
    assert (done.code, done.err) == (0, "")
    assert set(done.logs) == {"rank0"}, "a data loader's worker made a log"
    steps = done.of(records.Step)
    assert [step.n for step in steps] == list(range(11)), (
        "5 + 5 of training, 1 at the end; evaluation is no step"
    )
    assert {tuple(sorted(step.ph)) for step in steps} == {("backward", "data", "forward", "optimizer")}
    for step in steps[:10]:
        assert min(step.ph.values()) > 0
        assert sum(step.ph.values()) <= step.dur
    assert steps[5].dur > 20e6, "the pause between two epochs belongs to the step after it"
    assert "torch" in done.of(records.Head)[0].versions
    assert not done.of(records.Note)
    assert not done.of(records.DeviceStep)


def test_workers_that_a_loader_starts_again_are_timed(run_forked: Callable[..., Run]) -> None:
    script = """
class WithoutHash(DataLoader): __hash__ = None
again, kept = WithoutHash(data, 64, num_workers=2), DataLoader(data, 64, num_workers=2, persistent_workers=True)
for _ in range(4): train(again)
for _ in range(3): train(kept)
for x, y in again: break
"""
    done = run_forked(MODEL + script)
    assert (done.code, done.err) == (0, "")
    starts = done.of(records.WorkersStarted)
    assert [(start.n, start.workers, start.starts) for start in starts] == [
        *((5, 2, 1), (10, 2, 2), (15, 2, 3)),
        (35, 2, 4),
    ], "neither the first start of a loader, nor workers that stay"
    assert all(later.ns > start.ns > 0 for start, later in pairwise(starts))
    assert all(later.waited_ns > start.waited_ns > 0 for start, later in pairwise(starts))
    steps = done.of(records.Step)
    data_ns = sum(steps[number].ph["data"] for number in (5, 10, 15))
    assert starts[2].ns + starts[2].waited_ns <= data_ns, "it is a part of the wait for data"


def test_workers_of_a_loader_stop_with_an_iterator_that_is_not_used(run_forked: Callable[..., Run]) -> None:
    script = """
import multiprocessing
loader = DataLoader(data, batch_size=64, num_workers=1)
for _ in range(3):
    iterator = iter(loader)
    print(len(multiprocessing.active_children()))
    del iterator
    print(len(multiprocessing.active_children()))
"""
    assert run_forked(MODEL + script).out == 3 * "1\n0\n"


def test_explicit_steps_phases_and_a_capture_under_w_error(run: Callable[..., Run]) -> None:
    script = """
import tuiprof
def after(loss):
    with tuiprof.phase("metrics"): time.sleep(0.002)
    tuiprof.step(loss=loss.detach())
filters = list(warnings.filters)
for _ in range(4): train(DataLoader(data, batch_size=64), after)
assert warnings.filters == filters
"""
    done = run(MODEL + script, flags=["-W", "error"], requests=[{"id": "a", "steps": 2, "at": 3}])
    steps = done.of(records.Step)
    assert [step.n for step in steps] == list(range(20)), (
        "the step the optimizer ended is completed, not doubled"
    )
    assert all(step.v["loss"] > 0 for step in steps), "a tensor on the CPU may be read"
    assert all(step.ph["metrics"] >= 2e6 for step in steps)
    assert {"data", "forward", "backward", "optimizer"} <= set(steps[5].ph)
    assert done.of(records.Note) == []
    assert [source.withdrawn for source in done.of(records.StepSource)] == [0, 0]
    assert [state.state for state in done.captures("a")] == ["armed", "started", "written"]
    assert [step.n for step in steps if step.cap] == [2, 3, 4]


def test_captures(run_forked: Callable[..., Run]) -> None:
    requests = [
        {"id": "first", "steps": 3, "at": 4, "stack": True, "memory": True},
        {"id": "never", "steps": 1, "at": 900},
        {"id": "past", "steps": 1, "at": 0},
        {"id": "soon", "steps": 1},
        {"id": "tail", "steps": 100, "at": 13},
        {"id": "zero", "steps": 0},
    ]
    script = MODEL + "for _ in range(3): train(DataLoader(data, batch_size=64))"
    done = run_forked(script, requests=requests)
    ends = {request["id"]: done.captures(request["id"])[-1] for request in requests}
    assert {name: end.state for name, end in ends.items()} == {
        "first": "written",
        "never": "failed",
        "past": "failed",
        "soon": "written",
        "tail": "written",
        "zero": "failed",
    }
    assert ends["never"].why == (
        "the script ended at step 14, before step 900; capture earlier steps: tuiprof record --capture 1@7"
    )
    assert "step 0 cannot be captured" in ends["past"].why
    assert "at least 1" in ends["zero"].why
    assert "after 2 of 100 steps" in ends["tail"].why
    assert (ends["tail"].first, ends["tail"].last) == (13, 14)
    first = ends["first"]
    assert (first.first, first.last) == (4, 6)
    assert first.ns > 0

    events = done.events(first)
    marks = {e["name"]: e for e in events if e.get("name", "").startswith("ProfilerStep#")}
    assert sorted(marks) == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
    logged = {step.n: step.dur for step in done.of(records.Step)}
    # On a busy machine one of them may have been interrupted between the two looks at the clock.
    apart_ns = sorted(abs(marks[f"ProfilerStep#{n}"]["dur"] * 1e3 - logged[n]) for n in (4, 5, 6))
    assert apart_ns[1] < 1e6 + 0.2 * min(logged[n] for n in (4, 5, 6))
    for n in (4, 5, 6):
        mark = marks[f"ProfilerStep#{n}"]
        inside = [
            e["name"]
            for e in events
            if e.get("tid") == mark["tid"]
            and mark["ts"] <= e["ts"]
            and e["ts"] + e.get("dur", 0) <= mark["ts"] + mark["dur"]
        ]
        assert "Optimizer.step#SGD.step" in inside, "the step encloses its optimizer"
        assert any("DataLoader" in name for name in inside)
    assert any(e.get("cat") == "python_function" and "script.py" in e["name"] for e in events)
    for name in ("first", "soon"):  # on a CPU it is not asked for
        assert any("Input Dims" in e.get("args", {}) for e in done.events(ends[name]))
    assert not list(done.session.glob("traces/.*")), "nothing temporary is left"
    assert not list(done.session.glob("traces/*.syncs.jsonl")), "without CUDA no sync sites were looked for"
    assert len(list(done.session.glob("traces/rank0.*.pt.trace.json.gz"))) == 3


@pytest.mark.parametrize(
    ("seconds", "world", "first"),
    [
        (0, {}, 7),
        (0, {"RANK": "1", "WORLD_SIZE": "1"}, 7),
        (0, {"RANK": "0", "WORLD_SIZE": "2"}, None),
        (3600, {}, None),
    ],
)
def test_a_process_alone_does_not_wait_for_a_late_step(
    run_forked: Callable[..., Run], seconds: int, world: dict[str, str], first: int | None
) -> None:
    script = MODEL + "for _ in range(3): train(DataLoader(data, batch_size=64))"
    done = run_forked(script, requests=[{"id": "a", "steps": 3, "at": 30, "or_after_s": seconds}], **world)
    rank = f"rank{world.get('RANK', 0)}"
    planned, *_, last = [record for record in done.of(records.Capture, rank) if record.id == "a"]
    assert (planned.state, planned.first) == ("armed", 30 if world.get("WORLD_SIZE") == "2" else None)
    if first is None:
        assert (last.state, last.first) == ("failed", 30)
        assert "before step 30" in last.why
    else:
        assert (last.state, last.first, last.last) == ("written", first, first + 2)
        assert [step.n for step in done.of(records.Step, rank) if step.cap] == [6, 7, 8, 9]


def test_a_late_step_is_waited_for_as_long_as_asked(run_forked: Callable[..., Run]) -> None:
    script = (
        MODEL + "for _ in range(8): train(DataLoader(data, batch_size=64), lambda loss: time.sleep(0.02))"
    )
    done = run_forked(script, requests=[{"id": "a", "steps": 3, "at": 39, "or_after_s": 0.3}])
    written = done.captures("a")[-1]
    assert written.state == "written"
    began = next(step.at for step in done.of(records.Step) if step.n == 0)
    assert written.first is not None
    assert next(step.at for step in done.of(records.Step) if step.n == written.first - 1) - began >= 0.3e9


def test_garbage_collections_are_ranges_of_a_capture(run_forked: Callable[..., Run]) -> None:
    script = """
import gc
kept, seen = [{i: [i]} for i in range(20_000)], []
def collect(loss):
    seen.append(list(gc.callbacks))
    gc.collect()
for _ in range(2): train(DataLoader(data, batch_size=64), collect)
before, during, after = seen[2], seen[4], gc.callbacks
assert (len(before), len(during)) == (1, 2), (before, during)
assert after == before, after
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 3, "at": 4}])
    ranges = [e for e in done.events(done.captures("a")[-1]) if e.get("name") == "Python GC"]
    assert len(ranges) >= 3
    assert all(e["dur"] > 0 for e in ranges)


def test_calls_of_models_are_ranges_of_a_capture(run_forked: Callable[..., Run]) -> None:
    script = """
other = torch.nn.Linear(16, 1).eval()
def evaluate(loss):
    with torch.no_grad(): model(torch.randn(4, 16)); other(torch.randn(4, 16))
for _ in range(2): train(DataLoader(data, batch_size=64), evaluate)
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    events = done.events(done.captures("a")[-1])
    called = {e["name"] for e in events if e.get("cat") == "user_annotation" and " #" in e["name"]}
    assert called == {"Sequential #1", "Sequential #1, no gradients", "Linear #2, no gradients"}


def test_a_capture_that_ends_in_another_thread_does_not_harm_the_call_of_a_model(
    run_forked: Callable[..., Run],
) -> None:
    script = """
import contextlib
steps = type(model).__call__._tuiprof.steps
names = []
def mark(name):
    steps.range = None  # the capture ends here
    names.append(name)
    return contextlib.nullcontext()
steps.range = mark
print(model(torch.ones(4, 16)).shape[0], names)
"""
    assert run_forked(MODEL + script).out.strip().endswith("4 ['forward', 'Sequential #1']")


def test_a_capture_tells_calls_on_the_same_inputs_from_others(run_forked: Callable[..., Run]) -> None:
    script = """
dropped = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
same = torch.randn(4, 16)
class Named(torch.nn.Linear):
    def forward(self, x, name=None, more=()): return super().forward(x)
named = Named(16, 1).eval()
class Both(torch.nn.Linear):
    def forward(self, x, y): return super().forward(x) + y
both, first = Both(16, 1).eval(), torch.ones(1)
dropping = Both(16, 1).train()
dropping.drop = 0.1
class Partly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = torch.nn.Linear(16, 16).requires_grad_(False), torch.nn.Linear(16, 1)
    def forward(self, x, y): return self.head(self.encoder(x)) + y
partly = Partly().eval()
def evaluate(loss):
    with torch.no_grad():
        for _ in range(2): model(torch.randn(4, 16)); dropped(same); named(same, name="a"); named(same, more=[])
        dropped.eval()
        for _ in range(2): dropped(same)
        dropped.train()
        changed = same.clone()
        named(changed); changed.add_(1); named(changed); named(changed, name="b"); named(changed)
        named.weight.add_(1); named(changed)
        both(same, first); both(same, torch.ones(1)); both(same.clone(), first); both(same, torch.ones(3, 4, 1))
        for _ in range(2): dropping(same, torch.ones(1))
        both.weight.add_(1); both(same, torch.ones(1))
    for weight in (partly.head.weight, partly.encoder.weight):
        partly(same, torch.ones(1))
        with torch.no_grad(): weight.add_(1)
    partly(same, torch.ones(1))
    with torch.no_grad():
        partly(same, torch.ones(1)); partly.head.weight.add_(1); partly(same, torch.ones(1))
for _ in range(2): train(DataLoader(data, batch_size=64), evaluate)
"""
    calls = model_calls(run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}]))
    again = [name for name in calls if name.endswith("same inputs")]
    assert sorted(again) == sorted(
        2 * (["Named #3, no gradients, same inputs"] * 2 + ["Sequential #2, no gradients, same inputs"])
    )
    both = [name for name in calls if name.startswith("Both")]
    marked = ["Both #4, no gradients, same largest input"] * 2
    assert [name for name in both if "largest" in name] == marked, (
        "others draw random numbers, have two large inputs, or have changed"
    )
    assert len(both) == 2 * 7
    partly = [name.partition("#")[2][1:] for name in calls if name.startswith("Partly")]
    largest, frozen = ", same largest input", ", no gradients"
    expected = ["", largest, "", frozen + largest, frozen]
    assert partly == 2 * expected, "as long as what computes it is the same"


def test_a_capture_marks_calls_without_gradients_on_the_inputs_that_were_trained_on(
    run_forked: Callable[..., Run],
) -> None:
    script = """
class Metric(torch.nn.Linear): pass
class Eval(torch.nn.Linear): pass
class Dropped(torch.nn.Linear): drop = 0.0
class Written(torch.nn.Linear): pass
class Fresh(torch.nn.Linear): pass
class Other(torch.nn.Linear):
    def forward(self, x, scale=1): return super().forward(x) * scale
kinds = Metric, Eval, Dropped, Written, Fresh, Other
nets = [kind(16, 1) for kind in kinds]
nets[2].drop = 0.5
sgd = torch.optim.SGD([weight for net in nets for weight in net.parameters()], 0.01)
def again(loss):
    x, given = torch.randn(4, 16), []
    for net in nets:
        given.append(x.clone())
        net(given[-1]).sum().backward()
    sgd.step()
    with torch.no_grad():
        nets[0](given[0])
        nets[1].eval()(given[1]); nets[1].train()
        nets[2](given[2])
        given[3].add_(1); nets[3](given[3])
        nets[4](given[4].clone())
        nets[5](given[5], scale=2)
for _ in range(2): train(DataLoader(data, batch_size=64), again)
"""
    calls = model_calls(run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}]))
    marked = [name for name in calls if "inputs trained on" in name]
    expected = [
        "Metric #1, no gradients, inputs trained on",
        "Eval #2, no gradients, inputs trained on in another mode",
    ]
    assert marked == expected * (len(marked) // 2), (
        "not with dropout, or on inputs that were changed, copied or given other options"
    )
    assert marked


def test_calls_of_a_model_that_has_changed_are_not_on_the_same_inputs(run_forked: Callable[..., Run]) -> None:
    script = """
same = torch.randn(4, 16)
class Kept(torch.nn.Linear):
    def forward(self, x): self.kept = super().forward(x); return self.kept
class Buffered(torch.nn.Linear):
    def __init__(self, *args): super().__init__(*args); self.register_buffer("kept", torch.zeros(1))
    def forward(self, x): self.kept = super().forward(x); return self.kept
class Normed(torch.nn.BatchNorm1d): pass
class Frozen(torch.nn.Sequential): pass
class Assigned(torch.nn.Linear): pass
class Swapped(torch.nn.Linear): pass
class Attacked(torch.nn.Linear): pass
class Chosen(torch.nn.Linear):
    def forward(self, x, left=0, right=0, both=0): return super().forward(x)
kept, buffered, assigned, swapped = (kind(16, 1) for kind in (Kept, Buffered, Assigned, Swapped))
chosen, attacked, normed = Chosen(16, 1), Attacked(16, 1), Normed(16)
frozen = Frozen(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
attack = same.clone().requires_grad_()
for each in (kept, buffered, assigned, swapped, attacked, normed, frozen, chosen): each.train()
def evaluate(loss):
    for number in range(3):
        kept(same); buffered(same); assigned(same); frozen(same); attacked(attack)
        if number < 2: normed(same)
        weights = {name: value + 1 for name, value in swapped.state_dict().items()}
        torch.func.functional_call(swapped, weights, (same,))
        chosen(same, **{("left", "right", "both")[number]: 1})
        with torch.no_grad(): frozen[1].weight.add_(1)
        assigned.weight.data = assigned.weight.data + 1
        attack.data.add_(1)
for _ in range(2): train(DataLoader(data, batch_size=64), evaluate)
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    again = [name.split()[0] for name in model_calls(done) if name.endswith("same inputs")]
    assert again == ["Normed", "Normed"], "running statistics do not change the result in training"


def test_a_capture_marks_inputs_that_are_longer_by_one(run_forked: Callable[..., Run]) -> None:
    """A text to which words are added; not with a cache, nor a batch that is larger, nor one of the next step."""
    script = """
class Words(torch.nn.Embedding):
    def forward(self, ids, attention_mask=None, more=None): return super().forward(ids)
class Series(torch.nn.Linear):
    def forward(self, x, past=None): return super().forward(x)
words, cached, masked, series, stored, batches, learned = (
    (Words if words else Series)(16, 4).eval() for words in (True, True, True, False, False, False, True))
def write(loss):
    with torch.no_grad():
        ids = torch.ones(2, 5, dtype=torch.long)
        x = torch.ones(3, 7, 16)
        for _ in range(3):
            words(ids, more=torch.ones(1000))
            cached(ids=ids[:, -1:], attention_mask=torch.ones_like(ids))
            masked(ids[:, -1:], torch.ones_like(ids))
            series(x)
            stored(x[:, -1:], x)
            ids, x = torch.cat([ids, ids[:, -1:]], 1), torch.cat([x, x[:, -1:]], 1)
        for size in (3, 5, 9): batches(torch.ones(size, 16))
    for length in (5, 6): learned(torch.ones(2, length, dtype=torch.long))
for _ in range(2): train(DataLoader(data, batch_size=64), write)
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    events = done.events(done.captures("a")[-1])
    calls = [event for event in events if event.get("cat") == "user_annotation"]
    calls.sort(key=lambda event: event["ts"])
    names = [event["name"] for event in calls]
    marked = [
        (name, names[at + 1].partition(" #")[0])
        for at, name in enumerate(names)
        if name.startswith("tuiprof.longer")
    ]
    one = [("6x2", "Words"), ("8x3", "Series"), ("7x2", "Words"), ("9x3", "Series")]
    assert marked == 2 * [(f"tuiprof.longer {shape}", name) for shape, name in one]


def test_the_error_of_a_signal_handler_goes_through_the_name_of_a_call() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def modules(self) -> Any:
            signal.raise_signal(signal.SIGALRM)

    def handler(_: int, __: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError):
            ModelCalls(torch).name(Model(2, 2), (torch.ones(1, 2),), {}, True, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_capture_of_fake_tensors_warns_of_nothing(run_forked: Callable[..., Run]) -> None:
    script = """
from torch._subclasses.fake_tensor import FakeTensorMode
mode = FakeTensorMode()
with mode: fake, inputs = torch.nn.Linear(16, 1).eval(), torch.randn(4, 16)
def plan(loss):
    with mode: fake(inputs); fake(inputs)
for _ in range(2): train(DataLoader(data, batch_size=64), plan)
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    assert "data pointer" not in done.err
    assert not any("same inputs" in e.get("name", "") for e in done.events(done.captures("a")[-1]))


def test_what_the_profiler_warns_of_is_not_said_to_the_script(run_forked: Callable[..., Run]) -> None:
    """PyTorch 2.10 to 2.12 warn at each start that events are cleared."""
    script = """
import torch.profiler.profiler as module
warnings.simplefilter("error")
warn_once, prepare = module._warn_once, module._KinetoProfile.prepare_trace
def prepare_trace(self):
    module._warn_once("Profiler clears events at the end of each cycle.")
    return prepare(self)
module._KinetoProfile.prepare_trace = prepare_trace
for _ in range(2): train(DataLoader(data, batch_size=64))
assert module.warn is warnings.warn and module._warn_once is warn_once
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    assert "clears events" not in done.err
    assert done.captures("a")[-1].state == "written"


def test_a_time_out_in_the_profiler_leaves_its_warnings_as_they_are(run_forked: Callable[..., Run]) -> None:
    script = """
import signal
import torch.profiler.profiler as module
def handler(*_): raise TimeoutError
signal.signal(signal.SIGALRM, handler)
prepare = module._KinetoProfile.prepare_trace
def prepare_trace(self):
    module._KinetoProfile.prepare_trace = prepare
    signal.raise_signal(signal.SIGALRM)
module._KinetoProfile.prepare_trace = prepare_trace
before = module.warn, module._warn_once
for _ in range(3):
    try: train(DataLoader(data, batch_size=64))
    except TimeoutError: print("raised")
assert (module.warn, module._warn_once) == before
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    assert (done.code, done.out) == (0, "raised\n"), done.err


@pytest.mark.parametrize("calls", [["start_trace"], ["export_chrome_trace"], ["start_trace", "stop_trace"]])
def test_a_time_out_in_a_capture_by_the_clock_reaches_the_script(
    run_forked: Callable[..., Run], calls: list[str]
) -> None:
    """Also a second one, while the capture is given up because of the first."""
    script = (
        f"""
import signal
from torch.profiler import profile
from torch.profiler.profiler import _KinetoProfile
def handler(*_): raise TimeoutError
signal.signal(signal.SIGALRM, handler)
def interrupt(call):
    original = getattr(_KinetoProfile, call)
    def interrupted(self, *args):
        setattr(_KinetoProfile, call, original)
        original(self, *args)
        signal.raise_signal(signal.SIGALRM)
    setattr(_KinetoProfile, call, interrupted)
for call in {calls}: interrupt(call)  # the capture may begin as soon as there is an optimizer
try:
"""
        + textwrap.indent(MODEL, "    ")
        + """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline: train(DataLoader(data, batch_size=64))
except TimeoutError: print("raised")
print(torch.autograd._profiler_enabled())
with profile() as own: model(data[0][0])
print(len(own.events()) > 0)
"""
    )
    done = run_forked(script, requests=[{"id": "a", "seconds": 0.2, "after_s": 0.0}])
    assert (done.code, done.out) == (0, "raised\nFalse\nTrue\n"), done.err
    assert done.captures("a")[-1].state == "failed"


def test_the_events_of_a_capture_are_released(run_forked: Callable[..., Run]) -> None:
    script = """
import gc
def kept(): return [it for it in gc.get_objects() if type(it).__name__ == "_KinetoProfile"]
seen = []
for _ in range(2): train(DataLoader(data, batch_size=64), lambda loss: seen.append(len(kept())))
deadline = time.monotonic() + 60
while kept() and time.monotonic() < deadline: pass
print(max(seen), len(kept()))
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    assert (done.code, done.out) == (0, "1 0\n"), done.err
    assert done.captures("a")[-1].state == "written"


def test_a_child_that_is_forked_in_a_capture_records_nothing(run_forked: Callable[..., Run]) -> None:
    script = """
import gc, os
def pages(): return int(open("/proc/self/statm").read().split()[1])
def fork(loss):
    pid = os.fork()
    if pid == 0:
        x, before = torch.ones(8), pages()
        for _ in range(50_000): x.add_(1)
        grown = (pages() - before) * os.sysconf("SC_PAGE_SIZE")
        print(grown < 20e6, sys.getprofile(), len(gc.callbacks), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
train(DataLoader(data, batch_size=64))
train(DataLoader(data, batch_size=160), fork)
train(DataLoader(data, batch_size=64))
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 3, "at": 4, "stack": True}])
    assert (done.code, done.out) == (0, 2 * "True None 0\n"), done.err
    assert done.captures("a")[-1].state == "written"


def test_a_model_that_runs_twice_is_advised_and_its_copy_is_not(run_forked: Callable[..., Run]) -> None:
    """Its layers are large, so that running them is a part of the step that counts on a busy machine too."""
    script = (
        MODEL
        + """
import copy
widths = 16, *[512] * 6, 1
model = torch.nn.Sequential(*map(torch.nn.Linear, widths, widths[1:]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
reference = copy.deepcopy(model).eval()
def again(loss):
    with torch.no_grad(): (model if TWICE else reference)(data.tensors[0][:64])
for _ in range(2): train(DataLoader(data, batch_size=64), again)
"""
    )
    advised = []
    for twice in ("True", "False"):
        done = run_forked(script.replace("TWICE", twice), requests=[{"id": "a", "steps": 3, "at": 4}])
        trace = open_trace(done.session / done.captures("a")[-1].path)
        advised.append("repeated-forward" in {found.rule for found in priorities(trace).findings})
    assert advised == [True, False]


def test_a_new_model_has_a_new_number_even_where_an_old_one_was(run_forked: Callable[..., Run]) -> None:
    script = """
def learners(loss):
    for _ in range(3):
        learner = torch.nn.Linear(16, 1)
        learner(data.tensors[0][:4]).sum().backward()
        del learner
torch.nn.Linear(16, 1).eval()
for _ in range(2): train(DataLoader(data, batch_size=64), learners)
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 4}])
    events = done.events(done.captures("a")[-1])
    called = [
        e["name"] for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("Linear #")
    ]
    assert len(called) == len(set(called)) >= 3


def test_the_scripts_own_profiler_has_the_right_of_way(run_forked: Callable[..., Run]) -> None:
    script = """
from torch.profiler import profile, schedule
loader = DataLoader(data, batch_size=64)
ready = lambda profiler: print(len(profiler.events()) > 0)
with profile(schedule=schedule(wait=0, warmup=3, active=2), on_trace_ready=ready) as theirs:
    train(loader, lambda loss: theirs.step())                             # 0 to 4: a warm-up counts too
train(loader)                                                             # 5 to 9
def start(loss):
    global other
    other = profile(); other.start()
train(torch.utils.data.DataLoader(data, batch_size=320), start)           # 10, and the window of 'late' begins
other.stop()
print(len(other.events()) > 0)
train(loader)
"""
    requests = [
        {"id": "taken", "steps": 1, "at": 2},
        {"id": "free", "steps": 1, "at": 7},
        {"id": "late", "steps": 5, "at": 10},
        {"id": "after", "steps": 1, "at": 14},
    ]
    done = run_forked(MODEL + script, requests=requests)
    assert (done.code, done.out) == (0, "True\nTrue\n"), done.err
    ends = {request["id"]: done.captures(request["id"])[-1] for request in requests}
    assert ends["taken"].state == "failed"
    assert "torch.profiler itself" in ends["taken"].why
    assert ends["free"].state == "written"
    assert ends["late"].state == "failed"
    assert "started its own profiler" in ends["late"].why
    assert ends["after"].state == "written"


@pytest.mark.parametrize("first", [0, 4], ids=["before", "meanwhile"])
def test_a_capture_with_stacks_leaves_the_scripts_profiler_in_place(
    run_forked: Callable[..., Run], first: int
) -> None:
    script = f"""
import cProfile, sys
profile = cProfile.Profile()
for n in range(8):
    if n == {first}: profile.enable()
    train(DataLoader(data, batch_size=len(data)))
profile.disable()
print([entry.callcount for entry in profile.getstats() if getattr(entry.code, "co_name", "") == "train"])
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 3, "at": 3, "stack": True}])
    assert (done.code, done.out) == (0, f"[{8 - first}]\n"), done.err
    assert done.captures("a")[-1].state == "written"


@pytest.mark.parametrize("own", [False, True])
def test_a_refused_capture_leaves_the_profiler_to_what_the_script_emits_and_to_later_ones(
    run_forked: Callable[..., Run], own: bool
) -> None:
    """PyTorch 2.11 prepares no second profiler while a prepared one has not run; others do."""
    import torch

    if not torch.profiler.itt.is_available():
        pytest.skip("PyTorch is built without ITT")
    script = (
        MODEL
        + f"""
import torch.autograd.profiler as module
prepare, start, prepared = module._prepare_profiler, module.profile._start_trace, []
def prepare_profiler(*args, **kwargs):
    if prepared: raise RuntimeError("Can't disable Kineto profiler when it's not running")
    prepared.append(args)
    prepare(*args, **kwargs)
def start_trace(self):
    prepared.clear()
    start(self)
module._prepare_profiler, module.profile._start_trace = prepare_profiler, start_trace
theirs = module.emit_itt()
seen = []
def emit(loss):
    if not seen: theirs.__enter__()
    seen.append(torch.autograd._profiler_enabled())
train(DataLoader(data, batch_size=64))
train(DataLoader(data, batch_size=64), emit)                              # in 6, as 'a' is prepared
theirs.__exit__(None, None, None)
print(seen)
if {own}:
    with torch.profiler.profile() as profiled: model(data[0][0])
    print(len(profiled.events()) > 0)
train(DataLoader(data, batch_size=64))
"""
    )
    requests = [{"id": "a", "steps": 2, "at": 7}, {"id": "after", "steps": 2, "at": 12}]
    done = run_forked(script, requests=requests)
    assert (done.code, done.out) == (0, f"{5 * [True]}\n" + own * "True\n"), done.err
    assert "torch.profiler itself" in done.captures("a")[-1].why
    after = done.captures("after")[-1]
    assert after.state == "written", after.why


def test_batches_are_the_steps_of_an_inference_loop(run_forked: Callable[..., Run]) -> None:
    script = """
with torch.inference_mode():
    for x, y in DataLoader(data, batch_size=32): model(x)
train(DataLoader(data, batch_size=64))
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 3}])
    steps = done.of(records.Step)
    # Of 10 batches the first 2 are waited for, then one step each; those are withdrawn when the optimizer's 5 come.
    assert [step.n for step in steps] in ([*range(8), *range(5)], [*range(5)])
    assert set(steps[-1].ph) == {"data", "forward", "backward", "optimizer"}
    batches, optimizer = done.of(records.StepSource)
    assert (batches.what, batches.withdrawn) == ("batches of a DataLoader", 0)
    assert (optimizer.what, optimizer.withdrawn) == ("optimizer steps", 8)
    assert optimizer.where.startswith(str(done.session.parent / "script.py:"))
    (note,) = done.of(records.Note)
    assert "8 counted by batches of a DataLoader before" in note.text
    written = done.captures("a")[-1]
    assert written.state == "written"
    ranges = {event["name"] for event in done.events(written) if event.get("cat") == "user_annotation"}
    assert ranges & {"forward", "evaluation"} == {"forward"}, "it is the work of an inference loop"


def test_training_in_a_thread_after_an_evaluation_on_the_main_one(run_forked: Callable[..., Run]) -> None:
    script = """
import threading
with torch.inference_mode():
    for x, y in DataLoader(data, batch_size=32): model(x)
thread = threading.Thread(target=train, args=(DataLoader(data, batch_size=16),))
thread.start()
thread.join()
"""
    done = run_forked(MODEL + script, requests=[{"id": "a", "steps": 2, "at": 12}])
    steps = done.of(records.Step)[-20:]
    assert [step.n for step in steps] == list(range(20))
    assert {tuple(sorted(step.ph)) for step in steps[1:]} == {("backward", "data", "forward", "optimizer")}
    assert done.captures("a")[-1].state == "written"


def test_captures_of_what_were_no_steps_are_repeated(run_forked: Callable[..., Run]) -> None:
    script = (
        """
import time, torch
for x in torch.utils.data.DataLoader(torch.ones(10, 4)): time.sleep(0.12)  # long enough for a step
"""
        + MODEL
        + "train(DataLoader(data, batch_size=16))"
    )
    requests = [{"id": "done", "steps": 2, "at": 4}, {"id": "running", "steps": 4, "at": 7}]
    done = run_forked(script, requests=requests)
    assert [source.withdrawn for source in done.of(records.StepSource)] == [0, 8]
    assert done.captures("done")[-1].state == "written"
    stopped = done.captures("running")[-1]
    assert stopped.why == "what was being captured turned out not to be training steps"
    for name, numbers in (("done", (4, 5)), ("running", (7, 10))):
        again = done.captures(f"{name}-again")[-1]
        assert (again.state, again.first, again.last) == ("written", *numbers)
        assert any(event.get("name") == "Optimizer.step#SGD.step" for event in done.events(again))


def test_every_rank_under_torchrun_has_its_log(run: Callable[..., Run], tmp_path: Path) -> None:
    script = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2): train(DataLoader(data, batch_size=64))
dist.destroy_process_group()
"""
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(tmp_path / "script.py"),
    ]
    done = run(MODEL + script, how=launcher, requests=[{"id": "a", "steps": 1, "at": 5}])
    assert set(done.logs) == {"rank0", "rank1"}, "torchrun's agent made a log, or a rank none"
    for rank in range(2):
        writer = f"rank{rank}"
        head = done.of(records.Head, writer)[0]
        assert (head.rank, head.world) == (rank, 2)
        assert len(done.of(records.Step, writer)) == 10
        written = done.of(records.Capture, writer)[-1]
        assert written.state == "written"
        assert Path(written.path).name.startswith(f"{writer}.")


def test_a_script_without_steps_leaves_nothing_unless_asked(run_forked: Callable[..., Run]) -> None:
    script = """
import os, subprocess, sys, torch
log = os.path.join(os.environ["TUIPROF_SESSION"], "log")
if len(sys.argv) == 1:
    control = os.path.join(os.environ["TUIPROF_SESSION"], "control")
    os.rename(control, control + ".away")
    subprocess.run([sys.executable, __file__, "again"], check=True)
    os.rename(control + ".away", control)
print(os.listdir(log))
"""
    asked = run_forked(script, requests=[{"id": "a", "steps": 1}])
    assert asked.out == "[]\n[]\n", "nothing was asked of the first process to end"
    (writer,) = asked.logs
    assert writer.startswith("probe-")
    failed = asked.of(records.Capture, writer)[-1]
    assert failed.state == "failed"
    assert failed.why == "no steps were detected in the script"


def test_a_server_without_steps_keeps_few_calls_in_memory(run_forked: Callable[..., Run]) -> None:
    script = """
import sys, threading, time, torch
class Net(torch.nn.Module):
    def forward(self, x): return x
net = Net().eval()
def serve():
    for _ in range(50_000): net(None)
server = threading.Thread(target=serve)
server.start(); server.join()
marks = sys.modules["_tuiprof_probe.runtime"].RUNTIME.steps.marks
end = time.monotonic() + 1
while len(marks) > 20_000 and time.monotonic() < end: time.sleep(0.01)
print(len(marks))
"""
    assert 10_000 < int(run_forked(script).out) <= 20_000, "each takes 0.2 kB"


def test_hooks_that_break_do_not_break_training(run_forked: Callable[..., Run]) -> None:
    plant = """
import _tuiprof_probe.steps.counting as steps
def broken(*_): raise ZeroDivisionError("planted")
for name in sys.argv[1:]: setattr(steps.Steps, name, broken)
"""
    script = """
train(DataLoader(data, batch_size=64)); print(float(model(data[0][0])))
"""
    names = ["data_begins", "optimizer_ended"]
    broken = run_forked(MODEL.replace("torch.manual_seed", plant + "torch.manual_seed") + script, *names)
    assert float(broken.out)
    (writer,) = broken.logs  # without an optimizer hook there is no step, but there is something to say
    hooks = sorted(
        note.text.split("hook for ")[1].split(" failed")[0] for note in broken.of(records.Note, writer)
    )
    assert hooks == ["torch.optim.Optimizer.step", "torch.utils.data.DataLoader"]


@pytest.mark.slow
def test_compiled_training_keeps_its_graph_and_its_steps(run: Callable[..., Run]) -> None:
    script = """
model = torch.compile(model, backend="eager", fullgraph=True)
train(DataLoader(data, batch_size=64))
@torch.compile(backend="eager")  # PyTorch itself breaks the graph in there
def step(): optimizer.step()
for x, y in DataLoader(data, batch_size=64):
    optimizer.zero_grad(); model(x).sum().backward(); step()
print("compiled")
"""
    done = run(MODEL + script, flags=["-W", "ignore"])
    assert (done.code, done.out) == (0, "compiled\n"), done.err
    assert len(done.of(records.Step)) >= 5
    assert not [note for note in done.of(records.Note) if note.level == "bad"]


@pytest.mark.parametrize("given", [{"FUNCTION": "part:train_step"}, {"AT": "part.py:6"}])
def test_a_step_given_inside_of_compiled_code_breaks_no_graph(
    run_forked: Callable[..., Run], tmp_path: Path, given: dict[str, str]
) -> None:
    (tmp_path / "part.py").write_text("""
import torch
model = torch.nn.Linear(8, 8)
def train_step(x):
    loss = model(x).sum()
    loss = loss * 2
    return loss
""")
    script = """
import torch
from part import train_step
x = torch.ones(4, 8)
compiled = torch.compile(train_step, fullgraph=True, backend="eager")
print({bool(compiled(x) == train_step(x)) for _ in range(3)})
"""
    done = run_forked(script, **{f"TUIPROF_STEP_{name}": value for name, value in given.items()})
    assert (done.out, len(done.of(records.Step))) == ("{True}\n", 6), done.err


def test_reload_and_lazy_imports_work(run: Callable[..., Run]) -> None:
    script = """
import importlib, importlib.util, sys, inspect
spec = importlib.util.find_spec("torch.utils.data.dataloader")
lazy = importlib.util.LazyLoader(spec.loader)
spec.loader = lazy
import torch.utils.data.dataloader as dataloader
before = dataloader._BaseDataLoaderIter.__next__
assert before._tuiprof
importlib.reload(dataloader)
assert dataloader._BaseDataLoaderIter.__next__._tuiprof
assert "class DataLoader" in inspect.getsource(dataloader)
assert "exec_module" not in vars(dataloader.__loader__)
import torch
assert torch.autograd.backward._tuiprof
print("imported")
"""
    done = run(script)
    assert (done.code, done.out) == (0, "imported\n"), done.err


def test_frameworks_are_not_imported_by_the_probe(run: Callable[..., Run]) -> None:
    done = run("import sys, tuiprof; tuiprof.step(); print('torch' in sys.modules, 'jax' in sys.modules)")
    assert done.out == "False False\n"
