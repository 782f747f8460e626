"""Measures what each fix wins, and records the step that has the cost.

    python -m tests.predictions.record OUT [CASE…] [--seconds 540]

Each case is timed with the cost and with its fix, in turns without a profiler, on a GPU in one process; then it is
recorded by tuiprof in a process of its own. Without a GPU these are the cases for a CPU, timed by the processor time
of their one thread, of which other programs take no part. ``OUT/truth.json`` gets what was measured, ``OUT/<case>``
the session.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.predictions.cases import Case, Step

ROUNDS, STEPS, WARM = 3, 30, 12
CAPTURE_AT, CAPTURED, RECORDED = 50, 4, 100


def timed(name: str) -> dict[str, Any]:
    """Return the medians of a step with and without its cost, ms, of several rounds in turns.

    On a CPU each round has a process of its own: the memory that the other variant has used would be used again.
    """
    import torch

    from tests.predictions.run import CASES

    case = CASES[name]
    all_ms: dict[str, list[float]] = {"bad": [], "good": []}
    if case.cpu:
        this = [sys.executable, "-m", "tests.predictions.record", ".", name, "--time", "--only"]
        for _ in range(ROUNDS):
            for which, found in all_ms.items():
                done = subprocess.run([*this, which], stdout=subprocess.PIPE, text=True, check=True)
                found.append(float(done.stdout.splitlines()[-1]))
    else:
        torch.manual_seed(0)
        steps = {which: case.build(which == "bad") for which in all_ms}
        for step in steps.values():
            _ms(case, step, WARM)
        for _ in range(ROUNDS):
            for which, step in steps.items():
                _ms(case, step, 3)
                all_ms[which].append(_ms(case, step, STEPS))
    on_gpu = torch.cuda.is_available() and not case.cpu
    device = torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU"
    framework = f"PyTorch {torch.__version__}"
    if case.jax:
        import jax

        framework = f"JAX {jax.__version__}"
    return compared(case, all_ms, f"{device}, {framework}, Python {platform.python_version()}")


def timed_alone(name: str, which: str) -> float:
    """Return what a step takes in this process, ms."""
    import torch

    from tests.predictions.run import CASES

    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = CASES[name].build(which == "bad")
    _ms(CASES[name], step, WARM)
    return _ms(CASES[name], step, STEPS)


def _ms(case: Case, step: Step, count: int) -> float:
    """Run some steps and return what one takes, ms; on a CPU in processor time."""
    clock = time.process_time if case.cpu else time.perf_counter
    began = clock()
    for _ in range(count):
        last = step()
    case.wait(last)
    return (clock() - began) / count * 1e3


def compared(case: Case, all_ms: dict[str, list[float]], machine: str) -> dict[str, Any]:
    """Return a case as it is written to ``truth.json``, with the ms a step of each round."""
    bad, good = statistics.median(all_ms["bad"]), statistics.median(all_ms["good"])
    return {
        "planted": case.planted,
        "fix": case.fix,
        "rules": list(case.rules),
        "may_precede": list(case.may_precede),
        "says": case.says,
        "lines": case.lines(),
        "bad_ms": bad,
        "good_ms": good,
        "gain_ms": bad - good,
        "bad_all": all_ms["bad"],
        "good_all": all_ms["good"],
        "cpu": case.cpu,
        "machine": machine,
    }


def recorded(name: str, out: Path, argv: tuple[str, ...]) -> Path:
    """Record a command; its session becomes ``out/name``, which is returned."""
    from tuiprof.session.run.launch import LaunchSpec, start, wait
    from tuiprof.session.store.meta import CaptureRequest

    spec = LaunchSpec(
        argv,
        name=name,
        python=sys.executable,
        capture=CaptureRequest("start", steps=CAPTURED, at=CAPTURE_AT),
        root=out / "sessions",
        keep_source=False,
    )
    session = start(spec)
    wait(session)
    shutil.rmtree(out / name, ignore_errors=True)
    shutil.move(session.path, out / name)
    return out / name


def main() -> None:
    """Time and record cases until the time is up; what was done before is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--time", action="store_true", help="time one case and print it as JSON")
    parser.add_argument("--only", choices=("bad", "good"), help="of that case, one variant once")
    chosen = parser.parse_args()
    if chosen.only:
        print(timed_alone(chosen.cases[0], chosen.only))
        return
    if chosen.time:
        print(json.dumps(timed(chosen.cases[0])))
        return
    this = [sys.executable, "-m", "tests.predictions.record", str(chosen.out)]
    run = (sys.executable, "-m", "tests.predictions.run")
    keep(
        chosen.out,
        chosen.cases or _names(),
        chosen.seconds,
        lambda name: [*this, name, "--time"],
        lambda name: recorded(name, chosen.out, (*run, name, "--steps", str(RECORDED))),
    )


def keep(
    out: Path,
    names: list[str],
    seconds: float,
    timing: Callable[[str], list[str]],
    record: Callable[[str], object],
) -> None:
    """Time cases by a command whose last line is what it measured, and record them, until the time is up."""
    deadline = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    truth_file = out / "truth.json"
    truth = json.loads(truth_file.read_text()) if truth_file.exists() else {"cases": {}}
    for name in names:
        if name in truth["cases"] or time.monotonic() > deadline:
            continue
        began = time.monotonic()
        done = subprocess.run(timing(name), capture_output=True, text=True)
        try:
            measured = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            print(f"{name}: not timed: {done.stderr[-400:]}", flush=True)
            continue
        record(name)
        truth["cases"][name] = measured
        truth_file.write_text(json.dumps(truth, indent=1))
        print(
            f"{name}: {measured['bad_ms']:.2f} ms, {measured['gain_ms']:.2f} to win, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def _names() -> list[str]:
    """Return every case for this machine, without importing torch here: the cases need the GPU's memory."""
    code = (
        "import torch; from tests.predictions.run import CASES; on_gpu = torch.cuda.is_available(); "
        "print(*(name for name, case in CASES.items() if case.cpu != on_gpu))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


if __name__ == "__main__":
    main()
