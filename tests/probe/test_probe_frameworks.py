"""JAX (the real one where it is installed) and PyTorch/XLA (its step marker)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from analyses.made import report
from installed import needs
from probe_runs import Run

from tuiprof.advice import advise
from tuiprof.formats import open_trace
from tuiprof.probe.frameworks.xla_hooks import XPlaneProfiler
from tuiprof.session import log as records

JAX = """
import sys, jax, jax.numpy as jnp, tuiprof
update = jax.jit(lambda w, x: w - 0.01 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
w, x = jnp.ones((64, 8)), jnp.ones((128, 64))
for i in range(12):
    if sys.argv[1] == "explicit":
        w = update(w, x).block_until_ready()
        tuiprof.step()
    else:
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            w = update(w, x).block_until_ready()
"""


def python_with_jax() -> str:
    python = os.environ.get("TUIPROF_TEST_JAX_PYTHON") or (importlib.util.find_spec("jax") and sys.executable)
    if not python:
        pytest.skip("jax is not installed; TUIPROF_TEST_JAX_PYTHON names a Python that has it")
    return python


@pytest.mark.parametrize("marks", ["annotations", "explicit"])
def test_jax_steps_and_capture(run: Callable[..., Run], marks: str) -> None:
    done = run(JAX, marks, python=python_with_jax(), requests=[{"id": "a", "steps": 3, "at": 5}])
    assert [step.n for step in done.of(records.Step)] == list(range(12))
    assert "jax" in done.of(records.Head)[0].versions
    written = done.captures("a")[-1]
    assert (written.state, written.first, written.last) == ("written", 5, 7), written.why
    assert written.path.startswith("traces/plugins/profile/"), "not where TensorBoard and xprof look"
    trace = (done.session / written.path).read_bytes()
    assert (b"train" if marks == "annotations" else b"step_num") in trace


@pytest.mark.parametrize("request_", [{"steps": 10**6, "at": 3}, {"seconds": 60, "after_s": 0.0}])
def test_the_scripts_own_jax_profiler_ends_a_capture(
    run_jax: Callable[..., Run], request_: dict[str, object]
) -> None:
    script = """
import glob, os, jax, jax.numpy as jnp
update = jax.jit(lambda w: w * 0.9)
w = jnp.ones(8)
log = os.environ["TUIPROF_SESSION"] + "/log/rank0.jsonl"
n = 0
def step():
    global w, n
    with jax.profiler.StepTraceAnnotation("train", step_num=n): w = update(w).block_until_ready()
    n += 1
def started(): return os.path.exists(log) and '"started"' in open(log).read()
while n < 5 or not started(): step()
with jax.profiler.trace("mine"): step()
jax.profiler.start_trace("again"); step(); jax.profiler.stop_trace()
print(*(len(glob.glob(f"{name}/**/*.xplane.pb", recursive=True)) for name in ("mine", "again")))
"""
    done = run_jax(script, requests=[{"id": "a", **request_}], JAX_PLATFORMS="cpu")
    assert (done.code, done.out) == (0, "1 1\n"), done.err
    assert "started its own profiler" in done.captures("a")[-1].why
    assert not list((done.session / "traces").iterdir()), "of a capture that has failed"


def test_a_jax_capture_that_fails_leaves_earlier_ones_in_place(run_jax: Callable[..., Run]) -> None:
    script = """
import time, jax, jax.numpy as jnp
update = jax.jit(lambda w: w * 0.9)
w = jnp.ones(8)
def second(): return time.strftime("%S")
for i in range(20):
    if i == 10:  # JAX names a folder by the second
        now = second()
        while second() == now: time.sleep(0.01)
    with jax.profiler.StepTraceAnnotation("train", step_num=i): w = update(w).block_until_ready()
    if i == 15: jax.profiler.start_trace("mine")
jax.profiler.stop_trace()
"""
    requests = [{"id": "a", "steps": 2, "at": 4}, {"id": "b", "steps": 9, "at": 12}]
    done = run_jax(script, requests=requests, JAX_PLATFORMS="cpu")
    first, second = done.captures("a")[-1], done.captures("b")[-1]
    assert (first.state, second.state) == ("written", "failed"), second.why
    left = [path for path in (done.session / "traces").rglob("*") if path.is_file()]
    assert done.session / first.path in left
    assert {path.parent for path in left} == {(done.session / first.path).parent}


class Writer:
    """A profiler that writes a trace when it stops, and the capturer that uses it."""

    def __init__(self, session: Path, *, alone: bool = True, others: tuple[str, ...] = ()) -> None:
        self.session = str(session)
        self._alone = alone
        self._others = others
        self.run = session / "traces" / "plugins" / "profile" / "2026_01_01"

    def alone(self) -> bool:
        return self._alone

    def put(self, *names: str) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        for name in names:
            (self.run / name).write_bytes(b"")

    def start_trace(self, folder: str) -> None:
        assert Path(folder) == self.run.parents[2]

    def stop_trace(self) -> None:
        self.put("node1.xplane.pb", "node1.trace.json.gz", *self._others)

    def left_by_abort(self, *meanwhile: str) -> set[str]:
        """Return the names of the files after a capture that failed; ``meanwhile`` = what others wrote in it."""
        profiler = XPlaneProfiler(self, "writer", self)  # type: ignore[arg-type]
        profiler.start()
        if meanwhile:
            self.put(*meanwhile)
        profiler.abort()
        return {path.name for path in Path(self.session).rglob("*") if path.is_file()}


OTHER = ("node1.foo.xplane.pb", "node1.foo.trace.json.gz")


def test_a_capture_that_fails_removes_its_own_trace_only(tmp_path: Path) -> None:
    assert Writer(tmp_path / "a").left_by_abort() == set()
    assert not list((tmp_path / "a" / "traces").iterdir()), "empty folders"
    assert Writer(tmp_path / "b").left_by_abort(*OTHER) == set(OTHER), "written before the end of the capture"
    assert Writer(tmp_path / "c", others=OTHER).left_by_abort() > set(OTHER), "which is whose?"
    mine = {"node1.xplane.pb", "node1.trace.json.gz"}
    assert Writer(tmp_path / "d", alone=False).left_by_abort() == mine, "another rank may have written it"


def test_a_trace_that_another_process_removes_first_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(path: str) -> None:
        Path(path).unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "remove", first)
    assert Writer(tmp_path).left_by_abort() == set()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_script_that_ends_in_a_jax_capture_leaves_no_trace_that_is_not_known(
    steps: int, run_jax: Callable[..., Run]
) -> None:
    script = f"""
import jax, jax.numpy as jnp
update = jax.jit(lambda w: w * 0.9)
w = jnp.ones(8)
for i in range(5 + {steps}):
    with jax.profiler.StepTraceAnnotation("train", step_num=i): w = update(w).block_until_ready()
raise SystemExit(3)
"""
    done = run_jax(script, requests=[{"id": "a", "steps": 9, "at": 5}], fails=True, JAX_PLATFORMS="cpu")
    assert done.code == 3
    ended = done.captures("a")[-1]
    assert (ended.state, ended.why) == (
        "written" if steps else "failed",
        f"the script ended after {steps} of 9 steps",
    )
    written = [done.session / ended.path] if steps else []
    assert list((done.session / "traces").rglob("*.xplane.pb")) == written


@pytest.mark.parametrize("first", [0, 6], ids=["before", "meanwhile"])
def test_a_jax_capture_leaves_the_scripts_profile_function_in_place(
    run_jax: Callable[..., Run], first: int
) -> None:
    script = f"""{JAX}
    if i == {first}: sys.setprofile(lambda *_: None); theirs = sys.getprofile()
    if i >= {first}: assert sys.getprofile() is theirs
"""
    done = run_jax(script, "explicit", requests=[{"id": "a", "steps": 3, "at": 5}])
    assert done.captures("a")[-1].state == "written"
    assert any("no Python calls" in note.text for note in done.of(records.Note)) is (first == 0)


LAZY = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((700, 700))
for n in range(9):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        x = step(x)
x.block_until_ready()
"""


def test_garbage_collections_are_ranges_of_a_jax_capture(run_jax: Callable[..., Run]) -> None:
    script = LAZY.replace("x = step(x)", "x = step(x); gc.collect()").replace(
        "import jax,", "import gc, jax,"
    )
    done = run_jax(script, requests=[{"id": "a", "steps": 3, "at": 4}])
    trace = open_trace(done.session / done.captures("a")[-1].path)
    collections = np.flatnonzero(trace.named("^Python GC$") & trace.on_host)
    assert len(collections) >= 3
    assert set(trace.steps.step_of[collections].tolist()) == {0, 1, 2}
    found = advise(trace).table("findings").rows
    assert "garbage-collector" in found["rule"].to_list()


ONE_CALL = """
import json, os, sys, threading, time, jax, jax.numpy as jnp
from jax._src import xla_bridge
def wait(x):
    time.sleep(3 * (x > 0))
    return x
train = jax.jit(lambda x: jax.pure_callback(wait, x, x))
train(jnp.float32(0)).block_until_ready()
if sys.argv[1] == "gpu":
    xla_bridge._backends["cuda"] = xla_bridge._backends["cpu"]
def ask():
    with open(os.environ["TUIPROF_SESSION"] + "/control/capture-a.json", "w") as file:
        json.dump({"id": "a", "seconds": 0.2, "after_s": 0.0}, file)
threading.Timer(0.3, ask).start()
began = time.monotonic_ns()
train(jnp.float32(1)).block_until_ready()
print("call", began, time.monotonic_ns())
"""


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_profiler_starts_beside_a_long_call_but_not_on_a_gpu(
    run_jax: Callable[..., Run], platform: str
) -> None:
    """XLA crashes a process that launches work on a GPU while its profiler is stopped."""
    done = run_jax(ONE_CALL, platform, JAX_PLATFORMS="cpu")
    assert [record.state for record in done.captures("a")][1:] == ["started", "written"]
    began, ended = map(int, done.out.split("call", 1)[1].split())
    share = (done.captures("a")[1].at - began) / (ended - began)
    assert share < 0.8 if platform == "cpu" else share > 0.95


def test_work_that_jax_steps_leave_running_is_captured_with_them(run_jax: Callable[..., Run]) -> None:
    done = run_jax(LAZY, requests=[{"id": "a", "steps": 3, "at": 4}], JAX_PLATFORMS="cpu")
    written = done.captures("a")[-1]
    assert written.state == "written", written.why
    trace = open_trace(done.session / written.path)
    names = [trace.names[code] for code in trace.name_codes[trace.is_category("cpu_op")]]
    assert sum(not name.startswith("PjitFunction") for name in names) >= 3, names
    waits = report("sync_events", trace)
    assert waits.fact("syncs") == 0, "the wait for the work is the profiler's, not the script's"
    operators = np.flatnonzero(trace.is_category("cpu_op") & ~trace.named("PjitFunction"))
    by_step = np.bincount(trace.steps.step_of[operators], minlength=3)
    assert len(set(by_step.tolist())) == 1, "each step runs the same program once"
    steps = report("steps", trace)
    assert steps.fact("step_period_ns") == steps.fact("device_step_median_ns")


MESH = """
import sys, jax
from jax.sharding import Mesh
class Fence(next(module for name, module in sys.modules.items() if name.endswith("xla_hooks")).Fence):
    _devices = staticmethod(lambda jax: jax.local_devices())
def fenced():
    fence = Fence()
    fence.prepare()
    return sum(len(array.devices()) for array in fence._started(jax))
mesh = jax.make_mesh((4,), ("x",))
counts = [fenced()]
with mesh:
    counts.append(fenced())
if hasattr(jax, "set_mesh"):
    with jax.set_mesh(mesh):
        counts.append(fenced())
    with jax.disable_jit():
        counts.append(fenced())
print("fenced", set(counts))
"""


def test_every_device_is_waited_for_whatever_mesh_the_script_has_set(run_jax: Callable[..., Run]) -> None:
    four = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert "fenced {4}" in run_jax(MESH, **four).out


WAITS = """
import jax, jax.numpy as jnp, numpy as np, pickle, threading
from jax._src.array import ArrayImpl
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((500, 500))
def touched():
    return vars(ArrayImpl)["_value"], vars(ArrayImpl)["block_until_ready"], np.asarray, np.array
before = touched()
def train():
    float(step(x).sum())  # A
    step(x).block_until_ready()  # B
    jax.block_until_ready([step(x), step(x + 1)])  # C
    jax.device_get(step(x))  # D
    np.asarray(step(x))  # E
    if step(x)[0, 0] > 1e9:  # F
        pass
    assert pickle.loads(pickle.dumps(np.asarray)) is np.asarray
def beside():
    float(step(x).sum())  # G
for n in range(9):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        train()
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
assert touched() == before
"""


def test_jax_waits_are_told_by_their_lines(run_jax: Callable[..., Run]) -> None:
    done = run_jax(WAITS, requests=[{"id": "a", "steps": 3, "at": 4}])
    written = done.captures("a")[-1]
    assert written.state == "written", written.why
    trace = open_trace(done.session / written.path)
    assert {"jax.Array.block_until_ready", "jax.block_until_ready"} <= set(trace.names), (
        "not every runtime notes them"
    )
    waits = report("sync_events", trace)
    found = {row["where"].rpartition(":")[2] for row in waits.table("groups").rows.rows(named=True)}
    lines = WAITS.splitlines()
    wanted = {str(i) for i, line in enumerate(lines, 1) if line.endswith(tuple(f"# {c}" for c in "ABCDEFG"))}
    assert found == wanted
    assert waits.fact("lines_known") == waits.fact("syncs")


def test_an_xla_step_ends_at_the_sync_after_the_optimizer(
    run_forked: Callable[..., Run], tmp_path: Path
) -> None:
    package = tmp_path / "torch_xla"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import types\n_XLAC = types.SimpleNamespace(_xla_step_marker=lambda *arguments: None)\n"
        "def sync(): _XLAC._xla_step_marker('', [], False)\n"
    )
    script = """
import torch, torch_xla
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(6):
    for micro in range(2):
        weight.sum().backward()
        torch_xla.sync()
    optimizer.step()
    torch_xla.sync()
"""
    needs("torch")
    steps = run_forked(script).of(records.Step)
    assert {"forward", "backward", "optimizer"} <= set(steps[-1].ph)
    counted = {tuple(sorted(step.ph)) for step in steps[3:]}
    assert counted == {("backward", "forward", "optimizer")}, "a sync between micro-batches ended a step"
