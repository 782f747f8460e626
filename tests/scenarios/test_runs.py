"""The shipped ladders run, their checks catch wrong numbers, and what cannot run here says exactly why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest
from forked import ForkedPython

from tuiprof.ladder.availability import Missing, availability
from tuiprof.ladder.scenarios import command, find
from tuiprof.resources import shipped
from tuiprof.session.run import interpreter

SCENARIOS = shipped("scenarios")

pytestmark = pytest.mark.timeout(600)


class Run(Protocol):
    def __call__(
        self, variant: str, *flags: str, script: Path | None = None
    ) -> subprocess.CompletedProcess[str]: ...


#: Variants that start as a user starts them: one of PyTorch, and those that need something else, or processes.
_FRESH = (":naive", ":numpy", ":pallas", ":triton", ":ipex", ":ddp-numa")


@pytest.fixture
def run(forked: ForkedPython, tmp_path: Path) -> Run:
    """Runs a variant, or a script in place of its own, at its small size; most in a fork (`make smoke`: none)."""

    def start(variant: str, *flags: str, script: Path | None = None) -> subprocess.CompletedProcess[str]:
        shipped_script, *arguments = command(find(variant), preset="smoke", flags=flags)
        path = script or Path(shipped_script)
        # One thread: two would wait for each other by spinning wherever something else needs the cores too.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if variant.endswith(_FRESH):
            argv = [sys.executable, str(path), *arguments]
            return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        done = forked.run(path, *arguments, env=environment, cwd=tmp_path)
        return subprocess.CompletedProcess(arguments, *done)

    return start


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["tuiprof_result"]
    return found


def test_metrics_run_prints_metrics_and_ends_with_the_result(run: Run) -> None:
    done = run("metrics:naive", "--steps", "12", "--price", "3.6", "--check")
    assert done.returncode == 0, done.stderr
    assert "step 10: loss " in done.stdout
    assert "accuracy" in done.stdout
    summary = result(done)
    assert summary["check"]["ok"]
    assert (summary["variant"], summary["preset"], summary["device"]) == ("naive", "smoke", "cpu")
    assert summary["steps"] + summary["warmup"] == 12
    assert summary["step_ms"] > 0
    assert summary["samples_per_usd"] == pytest.approx(summary["samples_per_s"] * 1000, rel=1e-3)
    assert summary["peak_memory_bytes"] > 50e6


@pytest.mark.parametrize(
    ("variant", "package", "device"),
    [
        ("nms:numpy", "numpy", "cpu"),
        ("nms:pallas", "jax", "cpu (interpreted)"),
        ("giou-kernel:triton", "triton", "cpu (interpreted)"),
    ],
)
def test_kernel_is_checked_and_timed(run: Run, variant: str, package: str, device: str) -> None:
    pytest.importorskip(package)
    done = run(variant, "--check", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = result(done)
    assert summary["check"]["ok"]
    assert summary["device"] == device
    kernel = summary["kernel"]
    assert 0 < kernel["warm_ms"]["low"] <= kernel["warm_ms"]["median"] <= kernel["warm_ms"]["high"]
    assert summary["step_ms"] == kernel["warm_ms"]["median"]
    assert kernel["moved_bytes"] > 1000
    assert kernel["operations"] >= kernel["moved_bytes"]
    assert "GB/s" in done.stdout


def test_a_loss_is_timed_alone_with_and_without_its_gradient(run: Run) -> None:
    done = run("giou-loss:padded", "--preset", "loss", "--batch", "16", "--steps", "3", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = result(done)
    assert summary["check"]["ok"]
    assert set(summary["ranges_ms"]) == {"calc loss", "calc loss and gradient"}
    assert min(summary["ranges_ms"].values()) > 0
    assert summary["kernel"]["operations"] < 16 * 256 * 37  # only boxes that count


def test_the_parts_of_a_step_are_timed(run: Run) -> None:
    summary = result(run("giou-loss:padded", "--steps", "4"))
    parts = summary["ranges_ms"]
    assert set(parts) == {"copy data", "forward", "calc loss", "backward", "optimizer"}
    assert min(parts.values()) > 0


def test_attention_variant_computes_what_its_baseline_does(run: Run) -> None:
    done = run("attention:sdpa-math", "--check", "--steps", "0")
    assert done.returncode == 0, done.stderr
    compared = {line["what"]: line["relative_error"] for line in result(done)["check"]["compared"]}
    assert compared.keys() == {"output", "gradient of q", "gradient of k", "gradient of v", "losses"}
    assert 0 < max(compared.values()) < 1e-3  # not the same kernel, but the same function


def test_compiled_attention_is_told_apart_by_its_kernel(forked: ForkedPython, tmp_path: Path) -> None:
    """What torch.compile traces must name the kernel: its cache would else give one variant the graph of another."""
    script = tmp_path / "compiles.py"
    script.write_text("""
import runpy, sys, torch
sys.path.insert(0, sys.argv[1])
script = runpy.run_path(sys.argv[1] + "/attention.py")
traced = []
def keep(graph, inputs):
    traced.append(graph.code)
    return graph
q = torch.ones(1, 4, 2, 8)
for name in ("sdpa-math", "sdpa-flash"):  # a CPU has no others
    torch.compile(script["sdpa"](script["KERNELS"][name]), backend=keep, fullgraph=True)(q, q, q)
first, second = traced
print(first != second)
""")
    code, out, err = forked.run(script, str(SCENARIOS), env=os.environ, cwd=tmp_path)
    assert (code, out) == (0, "True\n"), err


def test_captured_nan_comes_back_in_the_first_step_of_a_second_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "nan.pt"
    monkeypatch.setenv("NAN_CHECKPOINT", str(checkpoint))
    first = run("nan-capture:deferred-check", "--steps", "6", "--check")
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"step 6: a gradient is NaN; weights before it, batch and more are in {checkpoint}" in first.stdout
    assert result(first)["steps"] + result(first)["warmup"] == 6  # the host learns of it after the step

    second = run("nan-capture:reproduce")
    assert second.returncode == 0, second.stderr
    assert "step 6 again: loss nan, logits at most 0 from those captured" in second.stdout
    assert "classes that the batch lacks: 4" in second.stdout
    assert result(second)["steps"] == 1


def test_a_nan_before_any_step_was_measured_is_captured_all_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAN_CHECKPOINT", str(tmp_path / "nan.pt"))
    done = run("nan-capture:capture", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "nan.pt").exists()
    assert "no step was measured" in done.stdout
    assert result(done)["steps"] == 0
    assert "step_ms" not in result(done)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "-1"], "argument --steps: '-1' is not a whole number, 0 or more"),
        (["--batch", "0"], "argument --batch: '0' is not a whole number, 1 or more"),
        (["--batch", "8"], "--batch: nms has none in the preset smoke"),
    ],
)
def test_wrong_arguments_are_told(run: Run, flags: list[str], said: str) -> None:
    done = run("nms:numpy", *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variant", "file", "right", "wrong"),
    [
        ("attention:sdpa-math", "attention.py", "attn_mask=mask)", "attn_mask=mask, scale=0.12)"),
        ("cpu-training:bf16", "cpu_training.py", "            optimizer.step()", "            pass"),
        ("nan-capture:deferred-check", "nan_capture.py", "out=self.stopped)", "out=bad)"),
        ("giou-loss:padded", "giou_loss.py", "< counts[:, None]", "<= counts[:, None]"),
        ("nms:torch", "nms/in_torch.py", "threshold * union", "1.02 * threshold * union"),
        ("giou-kernel:eager", "giou_kernel/score_torch.py", ".clamp(min=0)", ""),
        (
            "matmul-int8:torch-int8",
            "matmul_int8/in_torch.py",
            "torch._int_mm",
            "lambda *a: torch._int_mm(*a) | 1",
        ),
    ],
    ids=[
        "wrong scale",
        "no optimizer step",
        "update with NaN",
        "a box too many",
        "one box more or less",
        "areas below zero",
        "one bit",
    ],
)
def test_wrong_numbers_are_caught(
    run: Run, tmp_path: Path, variant: str, file: str, right: str, wrong: str
) -> None:
    copy = tmp_path / "scenarios"
    shutil.copytree(SCENARIOS, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert right in text
    (copy / file).write_text(text.replace(right, wrong, 1), encoding="utf-8")
    done = run(variant, "--check", "--steps", "0", script=copy / find(variant).script.name)
    assert done.returncode == 3, done.stdout + done.stderr
    assert not result(done)["check"]["ok"]
    assert "does not compute what" in done.stderr


def test_what_cannot_run_here_exits_with_77_and_the_reason(run: Run) -> None:
    facts = interpreter.facts(sys.executable)
    variant = find("cpu-training:ipex")
    answer = availability(variant, facts)
    assert isinstance(answer, Missing)
    done = run("cpu-training:ipex")
    assert done.returncode == 77
    for reason, remedy in answer.reasons:
        assert reason in done.stderr
        assert remedy in done.stderr
    assert [one["reason"] for one in result(done)["unavailable"]] == [reason for reason, _ in answer.reasons]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ({"unavailable": [{"reason": "needs 2 GPUs at this size, there are 1", "remedy": ""}]}, 77),
        ({"check": {"ok": False}}, 3),
        ({"steps": 3}, 0),
    ],
)
def test_a_launcher_loses_no_exit_status(run: Run, last: dict[str, Any], status: int) -> None:
    """The launcher ends with 1 whatever its processes ended with; their last line says it."""
    launched = f"print('[rank0]: ' + {json.dumps({'tuiprof_result': last})!r}); raise SystemExit(1)"
    ask = "import sys; from common import scenario; sys.exit(scenario.relaunch([sys.executable, '-c', sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-c", ask, launched], capture_output=True, check=False, cwd=SCENARIOS
    )
    assert done.returncode == status


def test_help_tells_the_story_without_torch(run: Run) -> None:
    script = SCENARIOS / "metrics.py"
    blocked = f"import runpy, sys; sys.modules['torch'] = None; sys.path.insert(0, {str(SCENARIOS)!r}); "
    blocked += f"sys.argv = ['metrics.py', '--help']; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "MeanMetric looks for NaN" in done.stdout
    assert "8 extra sync events" in done.stdout
    assert "they were not measured here" in " ".join(done.stdout.split())
    assert "77 cannot run here" in " ".join(done.stdout.split())


def test_wrong_usage_is_refused(run: Run) -> None:
    done = run("metrics:off", "--steps", "5", "--warmup", "5")
    assert done.returncode == 2
    assert "--warmup 5 leaves none of 5 steps to measure" in done.stderr


@pytest.mark.slow
def test_ddp_over_two_pretended_numa_nodes(run: Run, tmp_path: Path) -> None:
    """Two ranks give the gradients of one process that takes both batches; their launcher loses no exit status."""
    cpus = sorted(os.sched_getaffinity(0))
    for node in (0, 1):
        (tmp_path / f"nodes/node{node}").mkdir(parents=True)
        (tmp_path / f"nodes/node{node}/cpulist").write_text(f"{cpus[node % len(cpus)]}\n", encoding="utf-8")
    copy = tmp_path / "scenarios"
    shutil.copytree(SCENARIOS, copy)
    text = (copy / "common/needs.py").read_text(encoding="utf-8")
    assert "/sys/devices/system/node" in text
    pretended = text.replace("/sys/devices/system/node", str(tmp_path / "nodes"))
    (copy / "common/needs.py").write_text(pretended, encoding="utf-8")

    done = run("cpu-training:ddp-numa", "--check", script=copy / "cpu_training.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert result(done)["check"]["ok"]
    assert result(done)["batch"] == 32  # sixteen from each rank

    script = copy / "cpu_training.py"
    spoilt = script.read_text(encoding="utf-8").replace("            optimizer.step()", "            pass", 1)
    script.write_text(spoilt, encoding="utf-8")
    assert run("cpu-training:ddp-numa", "--check", "--steps", "0", script=script).returncode == 3
