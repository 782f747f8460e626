"""A script away from its folders, and under ``uv run``: it says what it lacks, and its header says what it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPython
from installed import needs
from scripts import PACKAGES, SCENARIOS

from tuiprof.ladder.scenarios import ladders, read_header

LADDERS = {ladder.name: ladder for ladder in ladders()}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=known)


@pytest.mark.parametrize("name", LADDERS)
def test_a_script_copied_alone_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    copy = shutil.copy(LADDERS[name].script, tmp_path)
    done = run(sys.executable, copy, "--help")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{copy} was copied without the folder common, ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in ("common", "varlen")])
def test_a_script_copied_without_its_parts_names_their_folder(
    name: str, tmp_path: Path, forked: ForkedPython
) -> None:
    needs("torch")
    needs("jax")
    shutil.copytree(SCENARIOS / "common", tmp_path / "common")
    copy = shutil.copy(SCENARIOS / f"{name}.py", tmp_path)
    ladder = read_header(Path(copy))
    assert ladder is not None
    variant = {"giou_loss": "padded", "nms": "torch", "matmul_int8": "torch-bf16"}.get(name, ladder.baseline)
    arguments = ("--variant", variant, "--preset", "smoke", "--steps", "2", "--warmup", "0")
    code, out, err = forked.run(Path(copy), *arguments, env=os.environ, cwd=tmp_path)
    assert code == 77, err
    assert f"{name}.py was copied without the folder {name}" in err
    assert json.loads(out.splitlines()[-1])["tuiprof_result"]["unavailable"]


@pytest.mark.parametrize("name", LADDERS)
def test_the_header_names_what_the_default_variant_needs(name: str) -> None:
    """``uv run`` installs the dependencies of the header and nothing else."""
    (baseline,) = (each for each in LADDERS[name].variants if each.name == LADDERS[name].baseline)
    if baseline.needs.device == "neuron":
        pytest.skip("its software is on no index that uv knows")
    assert not baseline.needs.packages
    assert not baseline.needs.without


@pytest.mark.slow
def test_uv_runs_a_script_with_its_header_alone(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    done = run(
        uv, "run", "--no-project", "--python", sys.executable, SCENARIOS / "nms.py", "--preset", "smoke", "--check",
        UV_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tuiprof_result"]["check"]["ok"]
