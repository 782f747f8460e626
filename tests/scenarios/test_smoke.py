"""Every variant that can run here runs at its small size and computes what its baseline does: ``make smoke``.

Variants of a ladder share a process, for half of each would be spent importing torch; those that compile, which takes
longest by far, have one each, so that two cores share them evenly. The scripts are called as ``python scenarios/x.py
--variant …`` calls them, and every check is made. What is compiled is kept in the user's cache folder, or where
``TORCHINDUCTOR_CACHE_DIR`` says.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tuiprof.ladder.availability import Missing, availability
from tuiprof.ladder.scenarios import Variant, ladders
from tuiprof.session.run import interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Enough for two that are measured and for what a check trains.
STEPS = "4"
#: Variants that need what pip can bring to any machine.
PACKAGES = ("jax", "torchmetrics", "transformers", "triton")
#: Variants by the test they are run in, in the order of beginning: what compiles, then the others of each ladder.
GROUPS: dict[str, list[Variant]] = {
    str(variant): [variant] for ladder in ladders() for variant in ladder.variants if variant.needs.compile
} | {
    ladder.name: [variant for variant in ladder.variants if not variant.needs.compile] for ladder in ladders()
}
RUN = """
import contextlib, importlib.util, io, json, sys, traceback
from pathlib import Path
script, steps = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(script.parent))
spec = importlib.util.spec_from_file_location(f"{script.stem}_script", script)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module  # torch.compile imports the module of what it compiles by its name
spec.loader.exec_module(module)
from common import scenario
entries = [module.__file__, module.train, module.check, *filter(None, [getattr(module, "launcher", None)])]
for variant in sys.argv[3:]:
    sys.argv = [script.name, "--variant", variant, "--preset", "smoke", "--steps", steps, "--check"]
    said, status = io.StringIO(), 1
    try:
        with contextlib.redirect_stdout(said):
            status = scenario.main(*entries)
    except Exception:
        traceback.print_exc()
    last = (said.getvalue().splitlines() or [""])[-1]
    result = json.loads(last)["tuiprof_result"] if last.startswith('{"tuiprof_result"') else None
    print(json.dumps([variant, status, result]), flush=True)
    if "torch._dynamo" in sys.modules:  # which gives up compiling what was compiled too often
        sys.modules["torch._dynamo"].reset()
"""


@functools.cache
def here() -> interpreter.Facts:
    return interpreter.facts(sys.executable)


def smoke(variants: list[Variant]) -> None:
    """Run variants of one ladder at their small size with their checks."""
    environment = {
        **os.environ,
        # One thread: two would wait for each other by spinning wherever something else needs the cores too.
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if (
        not here().gpus
    ):  # a script by itself chooses this before torch imports Triton; a ladder's second comes too late
        environment["TRITON_INTERPRET"] = "1"
    names = [variant.name for variant in variants]
    command = [sys.executable, "-c", RUN, str(variants[0].script), STEPS, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [name for name, *_ in outcomes] == names, done.stderr[-4000:]
    assert {name: fault for name, *rest in outcomes if (fault := _fault(*rest))} == {}, done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]


def _fault(status: int, result: dict[str, Any] | None) -> str:
    """Return what is wrong with a run; empty = nothing."""
    if result is None:
        return f"status {status}, and no result"
    if status == 77:  # what it needs is installed, and cannot do its work here: the reason is told
        return "" if all(lack["reason"] for lack in result["unavailable"]) else "no reason"
    if status:
        return f"status {status}: {result.get('check')}"
    return (
        "" if result["check"]["ok"] and result["check"]["compared"] and result["step_ms"] > 0 else str(result)
    )


@pytest.mark.parametrize("name", GROUPS)
def test_every_variant_that_can_run_here_does(name: str) -> None:
    answers = [(variant, availability(variant, here())) for variant in GROUPS[name]]
    able = [variant for variant, answer in answers if answer is None]
    if not able:
        lacks = [answer.reasons[0][0] for _, answer in answers if isinstance(answer, Missing)]
        pytest.skip("; ".join(dict.fromkeys(lacks)))
    smoke(able)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_variant_is_left_out_for_want_of(package: str) -> None:
    lack = f"{package} is not installed"
    without = [
        str(variant)
        for ladder in ladders()
        for variant in ladder.variants
        if isinstance(answer := availability(variant, here()), Missing)
        and [reason for reason, _ in answer.reasons] == [lack]
    ]
    if here().distribution(package) is None:
        assert without
        pytest.skip(f"{lack}: not run are {', '.join(without)}")
    assert not without
