"""JAX on a real NVIDIA GPU: a capture holds the work of its own steps, and names the line of every wait."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from probe_runs import Run
from test_probe_frameworks import python_with_jax

from tuiprof.analyses import run as run_analysis
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace
from tuiprof.session import records

pytestmark = pytest.mark.gpu


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found = python_with_jax()
    asked = subprocess.run(
        [found, "-c", "import jax; print(jax.default_backend())"], capture_output=True, text=True, check=False
    )
    if asked.stdout.strip() != "gpu":
        pytest.skip("JAX sees no GPU here")
    return found


def captured(run: Callable[..., Run], python: str, script: str) -> Trace:
    done = run(script, python=python, requests=[{"id": "a", "steps": 3, "at": 6}])
    assert done.code == 0, done.err
    written = done.captures("a")[-1]
    assert written.state == "written", written.why
    assert len(done.of(records.Step)) == 12
    return open_trace(done.session / written.path)


DROPPED = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((8000, 8000))
for n in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        step(x)  # nobody keeps the result, and nobody waits for it
"""


def test_work_whose_results_are_dropped_is_captured_and_what_waited_for_it_is_not(
    run: Callable[..., Run], python: str
) -> None:
    trace = captured(run, python, DROPPED)
    long = np.flatnonzero(trace.is_category("kernel") & (trace.ends - trace.starts > 500_000))
    assert len(long) == 3, "each of the three steps multiplies once"
    kernels = run_analysis("kernels", trace)
    assert isinstance(kernels, Report)
    assert kernels.table("kernels").rows["count"].sum() % 3 == 0, "the fence's own kernel counts"
    waits = run_analysis("sync_events", trace)
    assert isinstance(waits, Report)
    assert waits.fact("syncs") == 0


WAITS = """
import jax, jax.numpy as jnp, numpy as np
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((4000, 4000))
def train():
    float(step(x).sum())  # A
    step(x).block_until_ready()  # B
    jax.block_until_ready([step(x), step(x + 1)])  # C
    jax.device_get(step(x))  # D
    np.asarray(step(x))  # E
    step(x).sum().item()  # F
for n in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        train()
"""


def test_waits_are_told_by_their_lines(run: Callable[..., Run], python: str) -> None:
    waits = run_analysis("sync_events", captured(run, python, WAITS))
    assert isinstance(waits, Report)
    rows = waits.table("groups").rows
    found = {row["where"].rpartition(":")[2]: row["count"] for row in rows.rows(named=True)}
    lines = WAITS.splitlines()
    wanted = {str(i): 3 for i, line in enumerate(lines, 1) if "  # " in line}
    assert found == wanted
    assert waits.fact("lines_known") == waits.fact("syncs") == 18
