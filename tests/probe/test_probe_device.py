"""Device events and sync sites with a stand-in for CUDA, whose clock the test owns; the real one is in test_gpu."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from probe_runs import Run

from tuiprof.probe.events import DEVICE, USES
from tuiprof.probe.frameworks.torch_device import TorchDevice
from tuiprof.probe.log import line
from tuiprof.probe.runtime import Hook
from tuiprof.probe.steps.counting import Steps
from tuiprof.probe.steps.sources import EXPLICIT
from tuiprof.session.log import Record, Uses

Made = tuple["FakeCuda", TorchDevice, Steps, list[str]]


class FakeCuda:
    """A device that reaches events when told to; asking for a wait is an error."""

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.capturing = False
        self.made = self.recorded = 0
        self.now_ns = 0  # the host's clock as the probe reads it
        self.event_ns = 1_000  # what it costs the host to record an event
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                cuda.made += 1
                self.at = -1.0

            def record(self, stream: str) -> None:
                assert stream == "current"
                assert not cuda.capturing, "the event would become part of the graph"
                self.at = cuda.host
                cuda.recorded += 1
                cuda.now_ns += cuda.event_ns

            def query(self) -> bool:
                assert not cuda.capturing, "a query breaks the capture"
                return self.at <= cuda.device

            def elapsed_time(self, other: Any) -> float:
                assert self.query()
                assert other.query(), "this would be an error"
                return float(other.at - self.at)

        self.Event = Event

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> str:
        return "current"

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device_count(self) -> int:
        return 2

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        used = {"current": 100, "peak": 300} if not index else {"current": 0, "peak": 0}
        return {"allocated_bytes": {"all": used}, "reserved_bytes": {"all": {**used, "current": 200}}}

    def get_device_properties(self, index: int) -> Any:
        if index == 1:
            return SimpleNamespace()  # a PyTorch from before it told
        return SimpleNamespace(uuid=f"uuid-of-{index}", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeCuda, TorchDevice, Steps, list[str]]:
    cuda = FakeCuda()
    failures: list[str] = []
    steps = Steps(lambda: None)

    def hook(name: str) -> Any:
        return Hook(name, SimpleNamespace(note=lambda level, text: failures.append(name)))  # type: ignore[arg-type]

    runtime: Any = SimpleNamespace(hook=hook, steps=steps)
    monkeypatch.setattr("tuiprof.probe.frameworks.torch_device.monotonic_ns", lambda: cuda.now_ns)
    native = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 7, _cuda_getDevice=lambda: 0)
    return cuda, TorchDevice(runtime, SimpleNamespace(cuda=cuda, _C=native)), steps, failures


def read(steps: Steps) -> list[tuple[int, int]]:
    return [(item[1], item[2]) for item in steps.out if item[0] == DEVICE]


def train(cuda: FakeCuda, device: TorchDevice, steps: range, step_ns: int, due: int) -> int:
    """Let steps of a length go by; the device keeps up with the host. Returns the next step that is wanted."""
    for n in steps:
        cuda.now_ns += step_ns
        cuda.host = cuda.device = (n + 1) * step_ns / 1e6
        if n >= due:
            due = device.boundary(n)
    return due


def test_device_steps_are_read_late_and_never_waited_for(make: Made) -> None:
    cuda, device, steps, failures = make
    for n in range(100):
        cuda.now_ns += 2_000_000
        cuda.host = n * 2.0  # ms
        cuda.device = max(0.0, (n - 10) * 2.0)
        assert device.boundary(n) == n + 1
    known = read(steps)
    assert known == [(n, 2_000_000) for n in range(1, len(known) + 1)]
    assert 80 <= len(known) < 90, "ten are on the device, and a few have not been looked at"
    cuda.device = 1e9
    device.read()
    assert read(steps) == [(n, 2_000_000) for n in range(1, 100)]
    assert cuda.made < 40, "events are used again"
    assert cuda.recorded == 100, "one event a step: its end is the start of the next"
    assert not failures


def test_dear_events_are_recorded_less_often_and_the_log_says_so(make: Made) -> None:
    cuda, device, steps, failures = make
    cuda.event_ns = 53_000
    due = train(cuda, device, range(3000), 456_000, 0)
    spread = [(item[1], item[3]) for item in steps.out if item[0] == DEVICE]
    assert {every for _, every in spread} == {1, 64}, "from a first look straight to what the budget allows"
    settled = [n for n, every in spread if every == 64]
    assert fmean(later - n for n, later in pairwise(settled)) == pytest.approx(64, rel=0.1)
    recorded = cuda.recorded
    due = train(cuda, device, range(3000, 4600), 456_000, due)
    cost_ns = (cuda.recorded - recorded) * cuda.event_ns / 1600
    assert cost_ns <= 2_000, "a step pays no more than the budget"
    assert {round(dur, -3) for _, dur in read(steps)} == {456_000}, "no step's time has another one in it"

    cuda.event_ns = 500  # for example when another process has left the machine
    train(cuda, device, range(4600, 7000), 456_000, due)
    assert device.every == 1
    assert not failures


@pytest.mark.parametrize("period", [2, 8, 16])
def test_steps_are_timed_at_each_place_of_an_inner_loop(make: Made, period: int) -> None:
    cuda, device, steps, _ = make
    cuda.event_ns = 13_000
    train(cuda, device, range(200 * period), 456_000, 0)
    assert device.every == 16
    assert {n % period for n, every in ((item[1], item[3]) for item in steps.out) if every == 16} == set(
        range(period)
    )


def test_a_long_step_may_pay_a_thousandth(make: Made) -> None:
    cuda, device, steps, _ = make
    cuda.event_ns = 53_000
    train(cuda, device, range(500), 60_000_000, 0)
    assert device.every == 1
    assert len(read(steps)) > 480


def test_what_a_step_may_pay_is_told_from_steps_and_not_from_pauses_between_them(make: Made) -> None:
    cuda, device, _, _ = make
    cuda.event_ns = 53_000
    due = 0
    for n in range(0, 2000, 5):
        cuda.now_ns += 500_000_000  # an evaluation, or a checkpoint that is written
        due = train(cuda, device, range(n, n + 5), 456_000, due)
    assert device.every == 64


def test_standing_before_a_full_launch_queue_is_no_cost(make: Made) -> None:
    cuda, device, _, _ = make
    cuda.event_ns = 900_000
    train(cuda, device, range(500), 1_000_000, 0)
    assert (device.every, device.cost_ns) == (1, 0)


def test_the_default_stream_is_not_asked_whether_it_captures(make: Made) -> None:
    cuda, device, steps, failures = make
    device._raw_stream = lambda index: 0
    device._capturing = pytest.fail
    train(cuda, device, range(50), 2_000_000, 0)
    assert len(read(steps)) > 30
    assert not failures


def test_a_graph_capture_sees_no_event_and_breaks_the_chain(make: Made) -> None:
    cuda, device, steps, failures = make
    for n in range(10):
        cuda.host = cuda.device = n * 2.0
        cuda.capturing = n in (4, 5)
        device.boundary(n)
        device.break_chain() if n == 8 else None
    device.read()
    assert [n for n, _ in read(steps)] == [1, 2, 3, 7, 8, 9]
    assert not failures


def test_steps_on_two_streams_are_read_in_order(make: Made) -> None:
    cuda, device, steps, failures = make
    streams = {0: "current", 1: "side"}
    cuda.current_stream = lambda: streams[n // 7 % 2]  # type: ignore[method-assign]
    native = device._raw_stream
    assert native is not None
    device._raw_stream = lambda index: n // 7 % 2
    late = {"side": 0.0}

    class Event(cuda.Event):  # type: ignore[name-defined,misc]
        def record(self, stream: str) -> None:
            super().record("current")
            self.late = late.get(stream, 0.0)

        def query(self) -> bool:
            return bool(self.at + self.late <= cuda.device)

    cuda.Event = Event  # type: ignore[misc]
    late["side"] = 30.0  # what was put on the side stream is done that much later
    for n in range(60):
        cuda.host = cuda.device = float(n)
        device.boundary(n)
    cuda.device = 1e9
    device.read()
    assert [number for number, _ in read(steps)] == list(range(1, 60))
    assert not failures, "a time was asked for that was not known yet"


def test_a_device_that_comes_late_is_timed(make: Made) -> None:
    cuda, device, steps, _ = make
    for t in range(1, 20):
        if t == 5:
            steps.time_on(device)  # torch was imported after steps had been marked
        cuda.host = cuda.device = float(t)
        steps.end(EXPLICIT, t * 1_000_000)
    device.read()
    assert [n for n, _ in read(steps)] == list(range(5, 19))


def test_memory_of_the_devices_in_use(make: Made) -> None:
    _, device, _, _ = make
    assert device.memory() == [(0, 100, 200, 300)]


def test_a_device_in_use_is_named_once_by_what_monitors_call_it(make: Made) -> None:
    _, device, _, failures = make
    assert device.names([0]) == [(0, "uuid-of-0", "0000:1b:00")]
    assert device.names([0, 1]) == [(1, "", "")], "named once; this PyTorch tells nothing of the second"
    device.forget()  # a forked child has a log of its own
    named = device.names([0])
    written = msgspec.json.decode(line((USES, 7, *named[0])), type=Record)
    assert written == Uses(7, 0, "uuid-of-0", "0000:1b:00")
    assert not failures


def test_without_the_properties_memory_is_still_told(make: Made) -> None:
    cuda, device, _, failures = make
    cuda.get_device_properties = None  # type: ignore[assignment, method-assign]
    assert device.names([0]) == []
    assert failures == ["torch.cuda.get_device_properties"]
    assert device.memory() == [(0, 100, 200, 300)]


SYNCS = """
import sys, threading, types, warnings
import _tuiprof_probe.frameworks.syncs as syncs
sys.path.insert(0, ".")

mode = 0
def set_mode(value):
    global mode
    mode = value
def synchronize():
    if mode: warnings.warn("called a synchronizing CUDA operation (Triggered internally at x.cpp:1.)", stacklevel=2)
class Event:
    def synchronize(self): pass
class Stream:
    def synchronize(self): synchronize()
class Memory:
    def __init__(self, is_cuda, pinned=False): self.is_cuda, self.pinned = is_cuda, pinned
    def is_pinned(self): return self.pinned
    def to(self, where, non_blocking=False): return Memory(where == "cuda")
    def cuda(self, device=None, non_blocking=False): return Memory(True)
    def copy_(self, other, non_blocking=False): return self
class Tensor(Memory): pass
class Sparse(Tensor):
    def is_pinned(self): raise NotImplementedError
history = []
def record(enabled, **options): history.append((enabled, options))
def entry(action, frames): return {"action": action, "time_us": 4 * 10**15, "frames": frames}  # in 2096
here = [{"filename": "train.py", "line": 9, "name": "grow"}]
memory = types.SimpleNamespace(_record_memory_history=record, _snapshot=lambda: {"device_traces": [
    [entry("alloc", here), entry("segment_alloc", here), entry("segment_alloc", [])]]})
cuda = types.SimpleNamespace(synchronize=lambda: None, Event=Event, Stream=Stream, empty_cache=lambda: None,
    memory=memory, get_sync_debug_mode=lambda: mode, set_sync_debug_mode=set_mode)
torch = types.SimpleNamespace(cuda=cuda, Tensor=Tensor, compiler=types.SimpleNamespace(),
    _C=types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: False))
before = cuda.synchronize, Event.synchronize, Stream.synchronize
filters = list(warnings.filters)
watch = syncs.SyncWatch(torch, True)

block = warnings.catch_warnings(record=True)
seen = block.__enter__()
warnings.simplefilter("error")
watch.start()
synchronize()                                                           # line A
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    synchronize()                                                       # line B
try:
    warnings.warn("of the script")
except UserWarning as error:
    print("raised:", error)
warnings.simplefilter("always")
warnings.warn("kept for the script")
block.__exit__(None, None, None)
warnings.filterwarnings("error")
synchronize()                                                           # line C
cuda.synchronize()                                                      # line D
Event().synchronize()                                                   # line E
def inner(): Stream().synchronize()                                     # line F
thread = threading.Thread(target=inner); thread.start(); thread.join()
Tensor(False).to("cuda", non_blocking=True)                             # line G
Tensor(False, pinned=True).to("cuda", non_blocking=True)
Tensor(False).to("cuda")
Tensor(True).copy_(Memory(False), True)                                 # line H
cuda.empty_cache()                                                      # line I
Sparse(False).to("cuda", non_blocking=True)
Tensor(True).copy_(other=Memory(False), non_blocking=True)              # line J
watch.stop()
assert [enabled for enabled, _ in history] == ["all", None]
assert Tensor.to is Memory.to and Tensor.copy_ is Memory.copy_
assert mode == 0
assert (cuda.synchronize, Event.synchronize, Stream.synchronize) == before
assert type(warnings) is types.ModuleType
warnings.resetwarnings()
synchronize(); cuda.synchronize()
print("kept:", [str(w.message) for w in seen])
watch.write(sys.argv[1])
"""


def test_sync_sites_are_exact_and_the_scripts_warnings_its_own(
    run: Callable[..., Run], tmp_path: Any
) -> None:
    import json

    path = tmp_path / "sites.jsonl"
    done = run(SYNCS, str(path), flags=["-W", "error"])
    assert (done.code, done.err) == (0, "")
    assert done.out == "raised: of the script\nkept: ['kept for the script']\n"
    lines = SYNCS.splitlines()
    wanted = {
        letter: next(i for i, text in enumerate(lines, 1) if f"# line {letter}" in text)
        for letter in "ABCDEFGHIJ"
    }
    sites = [json.loads(line) for line in path.read_text().splitlines()]
    (allocation,) = (
        site for site in sites if site["what"] == "cudaMalloc"
    )  # stamped by the allocator, in µs
    assert allocation["unix_ns"] == 4 * 10**18
    sites.remove(allocation)
    assert allocation["frames"] == ["train.py:9 grow"]
    first = [
        site["frames"][0] if "synchronize" not in site["frames"][0] else site["frames"][1] for site in sites
    ]
    assert [frame.split(":")[1].split(" ")[0] for frame in first] == [
        str(wanted[letter]) for letter in "ABCDEFGHIJ"
    ]
    assert [site["what"] for site in sites] == [
        *["called a synchronizing CUDA operation"] * 3,
        "torch.cuda.synchronize",
        "torch.cuda.Event.synchronize",
        "torch.cuda.Stream.synchronize",
        *["copy of pageable memory"] * 2,
        "torch.cuda.empty_cache",
        "copy of pageable memory",
    ]
    assert first[5].endswith(" inner")
    assert len({site["tid"] for site in sites}) == 2
    times = [site["unix_ns"] for site in sites]
    assert times == sorted(times)
