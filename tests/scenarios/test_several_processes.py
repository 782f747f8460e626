"""Ladders under torchrun: two processes on this CPU, which average their gradients over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuiprof.resources import shipped

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(
    script: str, variant: str, *flags: str, ranks: int = 2, **more: str
) -> subprocess.CompletedProcess[str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    arguments = [str(shipped("scenarios") / script), "--variant", variant, "--preset", "smoke", *flags]
    command = [sys.executable, *launcher, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["tuiprof_result"]
    return found


@pytest.mark.parametrize("variant", ["naive", "step-time-on-cpu", "step-time-on-device-tensor"])
def test_metrics_of_two_processes(variant: str) -> None:
    done = run("metrics.py", variant, "--steps", "6")
    assert result(done)["batch"] == 32  # sixteen from each
    assert "accuracy" in done.stdout


def test_a_mean_kept_on_the_cpu_cannot_be_gathered_by_a_group_for_cuda() -> None:
    """The script starts its two processes itself, and the check wants the failure."""
    fails = "compute() of step_time_s fails: No backend type associated with device type cpu"
    done = run("metrics.py", "ddp-sync-on-compute", "--steps", "6", "--check", ranks=1)
    assert result(done)["check"]["ok"]
    assert fails in done.stdout
    done = run("metrics.py", "ddp", "--steps", "6", "--check", ranks=1)
    assert result(done)["check"]["ok"]
    assert "step_time_s 0." in done.stdout
    assert fails not in done.stdout


@pytest.mark.parametrize("variant", ["capture-rng", "deferred-check"])
def test_a_nan_stops_all_processes_and_is_found_in_the_batch_that_made_it(
    variant: str, tmp_path: Path
) -> None:
    done = run("nan_capture.py", variant, "--steps", "8", "--check", NAN_CHECKPOINT=str(tmp_path / "nan.pt"))
    assert result(done)["check"]["ok"]
    assert "step 8: a gradient is NaN" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan.rank0.pt", "nan.rank1.pt"]

    innocent, guilty = (
        run("nan_capture.py", "reproduce", ranks=1, NAN_CHECKPOINT=str(tmp_path / f"nan.rank{rank}.pt"))
        for rank in (0, 1)
    )
    assert innocent.returncode == 1
    assert "has no NaN this time" in innocent.stderr
    assert result(guilty)["steps"] == 1
    assert "step 8 again: loss nan, logits at most 0 from those captured" in guilty.stdout
    assert "classes that the batch lacks: 4" in guilty.stdout
