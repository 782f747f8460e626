"""The command for a Neuron or a TPU machine names every variant that needs one, and writes its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware.__main__ import TARGETS, Ran, summary
from tuiprof.ladder.scenarios import ladders

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.hardware", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("target", TARGETS)
def test_everything_that_needs_such_a_device_is_measured(target: str) -> None:
    known = {ladder.name: ladder for ladder in ladders()}
    for name, variants in TARGETS[target].items():
        assert set(variants) <= {variant.name for variant in known[name].variants}
    for ladder in known.values():
        for variant in ladder.variants:
            if variant.needs.device == target:
                chosen = TARGETS[target][ladder.name]
                assert not chosen or variant.name in chosen, variant
    said = run(target, "--dry-run", "--price", "0.76").stdout.splitlines()
    assert len(said) == len(TARGETS[target])
    assert all(line.startswith("tuiprof ladder ") and "--trials 3 --price 0.76" in line for line in said)


def test_a_ladder_that_could_not_be_measured_is_in_the_table_with_what_it_said() -> None:
    row = {"variant": "jax", "verdict": "faster", "step_ns": 416e3, "change_interval": "−1 … −2 %", "why": ""}
    told = summary(
        "tpu",
        [
            Ran("nms", ("tuiprof", "ladder", "nms"), 0, [row], ""),
            Ran("giou-kernel", ("x",), 2, [], "no disk"),
        ],
    )
    assert "| nms | jax | faster | 0.416 ms | −1 … −2 % |  |  |" in told
    assert "| giou-kernel | – | nothing was measured | | | | no disk |" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cpu_writes_the_table_of_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "sessions"))
    done = run("tpu", "--only", "nms", "--once", "--preset", "smoke", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "| nms | jax-cpu | " in table
    assert "| nms | jax | unavailable |" in table
    assert "needs a TPU or an NVIDIA GPU" in table
    assert "$ tuiprof ladder nms --once" in (tmp_path / "out/nms.md").read_text(encoding="utf-8")
