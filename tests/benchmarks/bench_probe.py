"""What the probe costs a step, beside traceml-ai 0.5.0 in the same run.

Each measurement is a process of its own that compares steps without and with the tool; medians over all
rounds are printed. The peer needs an environment of its own::

    python -m venv /tmp/traceml && /tmp/traceml/bin/pip install traceml-ai==0.5.0 torch==2.13.0 numpy
    TUIPROF_BENCH_TRACEML_PYTHON=/tmp/traceml/bin/python pytest -m bench -s tests/benchmarks/bench_probe.py

Without it the table says so and only our own limits are checked.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROUNDS = 3
#: Of what traceml-ai adds to a step of 571 µs, the share that 10 µs are on the machine the limits were set on.
REFERENCE = 10 / 89
INJECT = Path(__file__).resolve().parents[2] / "tuiprof" / "probe" / "inject"

# A step of nothing but two phases, in pure Python: all of it is the probe. Blocks of 20 steps take turns.
MARKS = """
import json
from time import perf_counter_ns as clock
import tuiprof
class Nothing:
    def __enter__(self): pass
    def __exit__(self, *exc_info): pass
def bare(phase=lambda name: Nothing(), step=lambda: None):
    for _ in range(20):
        with phase("a"): pass
        with phase("b"): pass
        step()
def ours():
    for _ in range(20):
        with tuiprof.phase("a"): pass
        with tuiprof.phase("b"): pass
        tuiprof.step()
ours()
times = [], []
for block in range(4000):
    for steps, kept in zip((bare, ours), times):
        began = clock(); steps(); kept.append((clock() - began) / 20)
print("RESULT", json.dumps({"bare": times[0], "tuiprof": times[1]}))
"""

# A real training step of about the wanted length, padded with matrix products. Steps without and with the
# tool are compared inside one process, because two processes of one machine differ by more than what is
# measured. Ours takes turns every 5 steps (its wrappers know what they wrap) with no hooks and with hooks that do
# nothing: the floor of all that is written in Python. The peer cannot be undone, so its steps follow the bare ones.
# All four phases are found by themselves; the peer's users mark the step, so it gets its mark.
TRAIN = """
import contextlib, itertools, json, statistics, sys
from time import perf_counter_ns as clock
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
kind, pad, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
batches = [(torch.randn(16, 32), torch.randn(16, 1)) for _ in range(200)]
loader = torch.utils.data.DataLoader(batches, batch_size=None)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
a = torch.randn(64, 64, device=device)
mark = contextlib.nullcontext
places = [
    (torch.autograd, "backward"),
    (torch.optim.SGD, "step"),
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
]
hooked = [getattr(*place) for place in places]
def idle(function):
    def hook(*args, **kwargs):
        return function(*args, **kwargs)
    return hook
functions = {"bare": hooked}
if kind == "tuiprof":
    bare = [function.__wrapped__ for function in hooked]
    functions = {"bare": bare, "idle": [idle(function) for function in bare], "tuiprof": hooked}
found = {name: [] for name in functions}
stream = itertools.chain.from_iterable(itertools.repeat(loader))
def block(name):
    for (owner, attribute), function in zip(places, functions[name]):
        setattr(owner, attribute, function)
    times = []
    last = clock()
    for i in range(5):
        x, y = next(stream)
        with mark():
            for _ in range(pad): a.mm(a)
            loss = (model(x.to(device, non_blocking=True)) - y.to(device, non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        times.append(clock() - last)
        if device == "cuda":  # outside of the time taken: behind a full launch queue every call would wait
            torch.cuda.synchronize()
        last = clock()
    found[name].append(statistics.median(times[1:]))  # the first step after a switch has both in it
turns = 800 if kind == "tuiprof" else 200
for turn in range(turns):
    for name in list(functions)[:: 1 if turn % 2 else -1]: block(name)
if kind == "traceml":
    import traceml_ai as traceml
    traceml.init(mode="auto")
    mark = lambda: traceml.trace_step(model)
    hooked = [getattr(*place) for place in places]
    functions, found["traceml"] = {"traceml": hooked}, []
    for turn in range(turns): block("traceml")
print("RESULT", json.dumps({name: blocks[10:] for name, blocks in found.items()}))
"""


# The same three hooks and that of a model's calls, timed in the midst of such steps: the time of each call less the
# time of what it wraps, and the same of a call without a hook in blocks that take turns. Far less disturbed by other
# processes than whole steps are, but blind to what a hook does to the caches of the code after it.
HOOKS = """
import json, statistics
from time import perf_counter_ns as clock
import torch
torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)  # PyTorch wraps the step of a class at its first use
places = [
    (torch.autograd, "backward"),
    (torch.optim.SGD, "step"),
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
]
on, keep, inside = True, False, [0] * 4
found = {which: [[] for _ in inside] for which in (True, False)}
def timed(index, hooked, wrapped):
    def inner(*args, **kwargs):
        began = clock()
        result = wrapped(*args, **kwargs)
        inside[index] = clock() - began
        return result
    def outer(*args, **kwargs):
        call = hooked if on else inner
        began = clock()
        result = call(*args, **kwargs)
        took = clock() - began
        if keep: found[on][index].append(took - inside[index])
        return result
    outer.hooked = outer._tuiprof = True  # neither PyTorch nor the probe wraps it again
    return inner, outer
for index, (owner, name) in enumerate(places):
    hooked = getattr(owner, name)
    wrapped = hooked.__wrapped__
    inner, outer = timed(index, hooked, wrapped)
    for cell in hooked.__closure__:
        if cell.cell_contents is wrapped: cell.cell_contents = inner
    setattr(owner, name, outer)
loader = torch.utils.data.DataLoader([(torch.randn(16, 32), torch.randn(16, 1)) for _ in range(12)], batch_size=None)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).train()
# The hook of a model's calls looks up those of its base class each time.
base, kind = torch.nn.Module, type(model)
base.__call__, kind.__call__ = timed(len(places), kind.__call__, base.__call__)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for block in range(120):
    on = block % 2 == 0
    for i, (x, y) in enumerate(loader):
        keep = i > 2
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
medians = [[statistics.median(times) for times in found[which]] for which in (False, True)]
print("RESULT", json.dumps({"bare": medians[0], "tuiprof": medians[1]}))
"""

# One of the products that make a step longer.
PRODUCT = """
import json
from time import perf_counter_ns as clock
import torch
torch.set_num_threads(1)
a = torch.randn(64, 64)
times = []
for block in range(200):
    began = clock()
    for _ in range(20): a.mm(a)
    times.append((clock() - began) / 20)
print("RESULT", json.dumps({"bare": times[10:]}))
"""


def measure(script: str, kind: str, folder: Path, *args: str) -> dict[str, list[float]]:
    """Return times in µs by what was hooked; the probe's own figures are in the log under ``folder``."""
    folder.mkdir()
    path = folder / "step.py"
    path.write_text(script)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TUIPROF_")}
    command = [sys.executable, str(path), kind, *args]
    if kind == "tuiprof":
        for name in ("log", "traces", "control"):
            (folder / name).mkdir()
        env |= {"TUIPROF_SESSION": str(folder), "PYTHONPATH": str(INJECT)}
    elif kind == "traceml":
        python = Path(os.environ["TUIPROF_BENCH_TRACEML_PYTHON"])
        options = ["--logs-dir", str(folder), "--run-name", "bench", "--mode", "summary"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            options += ["--aggregator-port", str(free.getsockname()[1])]
        command = [str(python.parent / "traceml"), "run", *options, str(path), "--args", kind, *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    results = [line for line in done.stdout.splitlines() if "RESULT " in line]
    assert done.returncode == 0, done.stderr
    assert results, done.stdout
    if kind == "tuiprof":
        assert (folder / "log" / "rank0.jsonl").stat().st_size > 10_000, "the probe was not there"
    found = json.loads(results[-1].split("RESULT ", 1)[1])
    return {name: [ns / 1e3 for ns in times] for name, times in found.items()}


def own_us(folder: Path) -> tuple[float, float]:
    """Return what the probe says of itself, µs a step: of its hooks, and CPU time of its writing thread."""
    lines = (folder / "log" / "rank0.jsonl").read_text().splitlines()
    last = [record for record in map(json.loads, lines) if record["t"] == "cost"][-1]
    return last["ns"] / last["steps"] / 1e3, last["flush_ns"] / last["steps"] / 1e3


def added_us(found: dict[str, list[float]], name: str) -> float:
    """Return what hooks add to a step, µs: the larger of median and trimmed mean of what neighbouring blocks differ by.

    Neighbours meet the same machine; a mean sees what is done in few steps only.
    """
    differences = sorted(b - a for a, b in zip(found["bare"], found[name], strict=True))
    tenth = len(differences) // 10
    return max(
        statistics.median(differences), statistics.fmean(differences[tenth : len(differences) - tenth])
    )


def cost_us(script: str, folder: Path, *args: str) -> dict[str, float]:
    """Return the median bare step, and what each kind of hook adds to it, µs, medians over rounds."""
    rounds = []
    for turn in range(ROUNDS):
        found = measure(script, "tuiprof", folder / f"tuiprof{turn}", *args)
        added = {name: added_us(found, name) for name in found if name != "bare"}
        rounds.append({"bare": statistics.median(found["bare"]), **added})
        said = ", ".join(f"{name} {value:+.1f} µs" for name, value in added.items())
        print(f"\n  round {turn}: {said}, bare {rounds[-1]['bare']:.0f} µs", end="")
    own, writing = own_us(folder / f"tuiprof{ROUNDS - 1}")
    print(
        f"\n  by its own figures: {own:.1f} µs in hooks, {writing:.1f} µs of the writing thread beside",
        end="",
    )
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def peer_us(folder: Path, *args: str) -> float:
    """Return what traceml-ai adds to a step, µs, median over rounds."""
    rounds = [measure(TRAIN, "traceml", folder / f"traceml{turn}", *args) for turn in range(ROUNDS)]
    return statistics.median(
        statistics.median(found["traceml"]) - statistics.median(found["bare"]) for found in rounds
    )


def test_marks(tmp_path: Path) -> None:
    """Two phases and a step: at most 5 µs."""
    cost = cost_us(MARKS, tmp_path)["tuiprof"]
    print(f"\ntwo phases and a step, no work: {cost:.2f} µs a step (limit 5 µs)")
    assert cost <= 5.0


@pytest.mark.timeout(600)
def test_hooks_in_real_steps(tmp_path: Path) -> None:
    """What the hooks of a step take, timed in real steps: at most 10 µs, and what the probe itself says."""
    pytest.importorskip("torch")
    rounds = [measure(HOOKS, "tuiprof", tmp_path / str(turn)) for turn in range(ROUNDS)]
    costs = [
        [with_hook - bare for bare, with_hook in zip(found["bare"], found["tuiprof"], strict=True)]
        for found in rounds
    ]
    backward, optimizer, loader, model = (statistics.median(times) for times in zip(*costs, strict=True))
    total = statistics.median(sum(times) for times in costs)
    own = statistics.median(own_us(tmp_path / str(turn))[0] for turn in range(ROUNDS))
    print(
        f"\nhooks in real steps: {total:.1f} µs a step (limit 10 µs): "
        f"loader {loader:.1f}, model {model:.1f}, backward {backward:.1f}, optimizer {optimizer:.1f}; "
        f"by its own figures {own:.1f} µs"
    )
    assert total <= 10.0
    assert 0.5 <= own / total <= 2.0, "what a report says of the probe is not what it costs"


@pytest.mark.timeout(1200)  # each start of the peer takes half a minute
@pytest.mark.parametrize(("name", "target_us"), [("trivial", 0), ("571 µs", 571), ("1 ms", 1000)])
def test_training_step(name: str, target_us: float, tmp_path: Path) -> None:
    """A real training step: at most 1 % of 1 ms, or less of the peer's cost than where the limit was set."""
    pytest.importorskip("torch")
    pad = _padding(target_us, tmp_path)
    found = cost_us(TRAIN, tmp_path, str(pad), "cpu")
    ours = found["tuiprof"]
    print(
        f"\n{name} step: hooks that do nothing add {found['idle']:.1f} µs to {found['bare']:.0f} µs: the floor"
    )
    print(f"{name} step: tuiprof adds {ours:.1f} µs (limit 10 µs): {'met' if ours <= 10 else 'missed'} here")
    if not os.environ.get("TUIPROF_BENCH_TRACEML_PYTHON"):
        print(f"{name} step: traceml not measured: {(__doc__ or '').split('::')[1].strip()}")
        assert ours <= 10.0
        return
    theirs = peer_us(tmp_path, str(pad), "cpu")
    ratio = ours / theirs
    print(
        f"{name} step: traceml adds {theirs:.0f} µs; ours / traceml {ratio:.3f} (where the limits were set "
        f"10 / 89 = {REFERENCE:.3f}): {'met' if ratio <= REFERENCE else 'missed'} as a ratio"
    )
    assert ratio <= REFERENCE


def test_training_step_with_device_events(tmp_path: Path) -> None:
    """A step on a GPU, with its events: at most 15 µs."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = cost_us(TRAIN, tmp_path, "0", "cuda")
    print(
        f"\nstep on a GPU: hooks that do nothing add {found['idle']:.1f} µs, tuiprof {found['tuiprof']:.1f} µs "
        f"to {found['bare']:.0f} µs with device events (limit 15 µs)"
    )
    assert found["tuiprof"] <= 15.0


def _padding(target_us: float, folder: Path) -> int:
    """Return how many matrix products bring a bare step to the wanted length on this machine."""
    if not target_us:
        return 0
    empty = statistics.median(measure(TRAIN, "bare", folder / "empty", "0", "cpu")["bare"])
    product = statistics.median(measure(PRODUCT, "bare", folder / "product")["bare"])
    return max(0, round((target_us - empty) / product))
