"""JAX on an NVIDIA GPU: a capture holds the work of its own steps, and names the line of every wait.

Of the sample traces, and with ``-m gpu`` of new ones of the same scripts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from analyses.made import report
from probe_runs import Run
from test_probe_frameworks import python_with_jax

from tuiprof.formats import open_trace
from tuiprof.model import Trace
from tuiprof.resources import shipped
from tuiprof.session import log as records

SCRIPTS = Path(__file__).resolve().parents[1] / "gpu"


@pytest.fixture(params=["sample", pytest.param("new", marks=pytest.mark.gpu)])
def trace_of(
    request: pytest.FixtureRequest, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Trace]:
    """``trace_of(script)``: three captured steps of a script in ``tests/gpu``."""

    def record(script: str) -> Trace:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        python = python_with_jax()
        asked = subprocess.run(
            [python, "-c", "import jax; print(jax.default_backend())"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() != "gpu":
            pytest.skip("JAX sees no GPU here")
        code = (SCRIPTS / f"{script}.py").read_text()
        done = run(code, python=python, requests=[{"id": "a", "steps": 3, "at": 6}])
        written = done.captures("a")[-1]
        assert written.state == "written", written.why
        assert len(done.of(records.Step)) == 12
        return open_trace(done.session / written.path)

    if request.param == "new":
        return record
    return lambda script: open_trace(shipped("traces") / f"{script.replace('_', '-')}.xplane.pb.gz")


def test_work_whose_results_nobody_keeps_is_captured_and_what_waited_for_it_is_left_out(
    trace_of: Callable[[str], Trace],
) -> None:
    trace = trace_of("jax_async")
    long = np.flatnonzero(trace.is_category("kernel") & (trace.ends - trace.starts > 500_000))
    assert len(long) == 3, "each of the three steps multiplies once"
    kernels = report("kernels", trace).table("kernels").rows
    assert set(kernels["per_step"]) == {1.0}, "what the probe launched is no work of the script's"
    launches = report("kernel_launches", trace).table("by_operator").rows["operator"].to_list()
    assert not any("logical_not" in operator for operator in launches)
    assert report("sync_events", trace).fact("syncs") == 0
    steps = report("steps", trace)
    assert steps.fact("step_period_ns") == steps.fact("device_step_median_ns"), "the host runs ahead"


def test_waits_are_told_by_their_lines(trace_of: Callable[[str], Trace]) -> None:
    trace = trace_of("jax_waits")
    waits = report("sync_events", trace)
    rows = list(waits.table("groups").rows.rows(named=True))
    lines = (SCRIPTS / "jax_waits.py").read_text().splitlines()
    wanted = {str(i): 3 for i, line in enumerate(lines, 1) if "  # planted" in line}
    assert {row["where"].rpartition(":")[2]: row["count"] for row in rows} == wanted
    assert waits.fact("lines_known") == waits.fact("syncs") == 18
    # Two lines bring 64 MB to the host: with the memory that must be found for them, they are nearly the whole step.
    costs = {row["where"].rpartition(":")[2]: row["saves_ns_per_step"] for row in rows}
    large = [str(i) for i, line in enumerate(lines, 1) if line.endswith(("device_get", "NumPy"))]
    assert sorted(sorted(costs, key=lambda line: -costs[line])[:2]) == sorted(large)
    step_ns = float(report("steps", trace).fact("step_period_ns") or 0)
    assert 0.5 * step_ns < sum(costs[line] for line in large) < step_ns
    causes = dict(
        report("device_idle", trace).table("causes").rows.select("cause", "share_of_idle").iter_rows()
    )
    assert causes.get("profiler", 0.0) < 0.001, (
        "that the runtime lets go of arrays is no work of the profiler's"
    )
    lost = waits.table("syncs").rows.select(pl.col("empty_ns") + pl.col("refill_ns")).sum().item()
    idle = report("device_idle", trace).fact("idle_ns_per_step")
    assert lost <= float(idle or 0) * 3 * 1.01
