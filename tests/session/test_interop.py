"""TensorBoard's profiler plug-ins read what is recorded here, and where they are known to err our figures are right.

The plug-ins are asked in the interpreter that TUIPROF_INTEROP_PYTHON names (this one if it is not set); what is not
installed there is skipped. TUIPROF_JAX_PYTHON names one with JAX.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from analyses.made import report
from installed import needs

from tuiprof.formats import open_set, open_trace
from tuiprof.model import Trace
from tuiprof.resources import shipped
from tuiprof.session.store.folders import Session

pytestmark = pytest.mark.slow

PLUGINS = os.environ.get("TUIPROF_INTEROP_PYTHON", sys.executable)
JAX = os.environ.get("TUIPROF_JAX_PYTHON", sys.executable)

#: Every batch takes 30 ms to load in the process itself, every step 20 ms more: the loader's share is known.
_LOADING = """
import time
import torch
torch.set_num_threads(1)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.randn(64)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
waited, began = [], time.perf_counter()
batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=1))
for number in range(12):
    start = time.perf_counter()
    batch = next(batches)
    loaded = time.perf_counter()
    loss = model(batch).square().mean()
    time.sleep(0.02)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    waited.append((loaded - start, time.perf_counter() - start))
print(waited)
"""

_TENSORBOARD = """
import json, sys
from torch_tb_profiler.io.cache import Cache
from torch_tb_profiler.profiler import RunLoader
folder = sys.argv[1]
run = RunLoader("run", folder, Cache(folder)).load()
(profile,) = run.profiles.values()
steps = profile.overview["steps"]
print(json.dumps({
    "workers": sorted(run.workers),
    "steps": [row[0] for row in steps["rows"]],
    "average": {row["name"]: row["value"] for row in profile.overview["performance"][0]["children"]},
    "step_us": float(profile.overview["performance"][0]["value"]),
}, default=str))
"""

_XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
data, kind = raw_to_tool_data.xspace_to_tool_data(sys.argv[1:], "trace_viewer@", {})
text = data.decode() if isinstance(data, bytes) else data
events = json.loads(text)["traceEvents"]
print(json.dumps({"names": sorted({event.get("name", "") for event in events})}))
"""

_JAX = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
x = jnp.ones((256, 256))
for number in range(10):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
"""


def _has(python: str, module: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", code], check=False).returncode:
        pytest.skip(f"{module} is not installed in {python}")


def _ask(script: str, *arguments: Path) -> dict[str, Any]:
    done = subprocess.run(
        [PLUGINS, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _record(folder: Path, body: str, capture: str, python: str = sys.executable) -> Session:
    script = folder / "train.py"
    script.write_text(body)
    environment = {**os.environ, "TUIPROF_SESSIONS": str(folder / "sessions"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tuiprof", "record", "--capture", capture, "--", python, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "sessions").iterdir()
    return Session(path)


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Session:
    needs("torch")
    return _record(tmp_path_factory.mktemp("loading"), _LOADING, "4@5")


def _trace(session: Session) -> Trace:
    return open_set(session.path).open()


def test_the_share_of_the_loader_is_what_the_script_measured(loading: Session) -> None:
    trace = _trace(loading)
    steps = trace.steps.numbers.tolist()
    measured: list[tuple[float, float]] = json.loads(
        loading.stdout.read_text().replace("(", "[").replace(")", "]")
    )
    # A step ends with the optimizer's: the batch of the next one is loaded after it.
    known = sum(wait for wait, _ in measured[5:9]) / sum(whole for _, whole in measured[5:9])
    found = report("data_loading", trace)
    share = found.fact("data_wait_share")
    assert isinstance(share, float)
    assert len(steps) == 4
    assert share == pytest.approx(known, abs=0.08)
    assert 0.4 < share < 0.8


def test_tensorboards_plugin_reads_a_session(loading: Session) -> None:
    _has(PLUGINS, "torch_tb_profiler")
    told = _ask(_TENSORBOARD, loading.path / "traces")
    trace = _trace(loading)
    assert told["workers"] == ["rank0"]
    assert told["steps"] == [str(number) for number in trace.steps.numbers.tolist()]
    ours = report("steps", trace).fact("step_mean_ns")
    assert isinstance(ours, float)
    assert told["step_us"] == pytest.approx(ours / 1e3, rel=0.02)
    # It passes over the loader's range, which is an annotation since PyTorch moved it there.
    theirs = float(told["average"]["DataLoader"]) / told["step_us"]
    share = report("data_loading", trace).fact("data_wait_share")
    assert isinstance(share, float)
    assert theirs < 0.01 < 0.4 < share


_FIGURES = """
import json, sys
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
profile = RunGenerator("w", "s", RunProfileData.parse("w", "s", sys.argv[1], sys.argv[2])).generate_run_profile()
names = [column["name"] for column in profile.kernel_table["data"]["columns"]]
rows = [dict(zip(names, row)) for row in profile.kernel_table["data"]["rows"]]
print(json.dumps({
    "kernels": {row["Name"]: (row["Calls"], row["Total Duration (us)"]) for row in rows},
    "step_us": profile.overview["performance"][0]["value"],
}))
"""


@pytest.mark.parametrize("name", ["metrics-naive", "attention-native"])
def test_kernels_and_steps_are_those_of_tensorboards_plugin(name: str, tmp_path: Path) -> None:
    """The table of docs/from-tensorboard.md."""
    path = shipped("traces") / f"{name}.pt.trace.json.gz"
    told = _ask(_FIGURES, path, tmp_path)
    trace = open_trace(path)
    kernels = trace.events.filter(pl.col("category") == "kernel")
    ours = kernels.group_by(pl.col("name").cast(pl.String)).agg(pl.len(), pl.col("dur").sum())
    assert {kernel: calls for kernel, calls, _ in ours.iter_rows()} == {
        kernel: calls for kernel, (calls, _) in told["kernels"].items()
    }
    for kernel, calls, dur_ns in ours.iter_rows():
        assert told["kernels"][kernel][1] == pytest.approx(dur_ns / 1e3, abs=0.5 * calls + 1)
    assert told["step_us"] == pytest.approx(report("steps", trace).fact("step_mean_ns") / 1e3, abs=1)  # type: ignore[operator]


def test_xprof_reads_a_session(tmp_path: Path) -> None:
    _has(PLUGINS, "xprof")
    _has(JAX, "jax")
    session = _record(tmp_path, _JAX, "4@4", JAX)
    found = open_set(session.path)
    (plane,) = [file.path for file in found.files]
    assert plane.parent.parent.name == "profile"  # where xprof looks: plugins/profile/<run>/<host>.xplane.pb
    told = _ask(_XPROF, plane)
    ours = found.open()
    assert "CommonPjRtBuffer::Await" in told["names"]
    assert "CommonPjRtBuffer::Await" in ours.names
    assert report("steps", ours).fact("steps") == 4
