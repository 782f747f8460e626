"""Every variant that can run here runs at its small size and computes what its baseline does.

The variants of a ladder share a process, for half of each would be spent importing torch: the scripts are called as
``python scenarios/x.py --variant …`` calls them. Variants that compile are slow; their caches are kept where
``TORCHINDUCTOR_CACHE_DIR`` says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tuiprof.resources import shipped
from tuiprof.session import interpreter
from tuiprof.session.scenarios import Available, availability, find_ladder, ladders

pytestmark = pytest.mark.timeout(900)

#: What takes less than about a second each, once torch is imported.
QUICK = {
    "metrics": ["naive", "explicit-weight", "no-nan-check", "step-time-on-cpu", "step-time-on-device-tensor"],
    "nan-capture": ["off", "capture", "capture-rng", "deferred-check", "reproduce"],
    "varlen": ["pad-max-eval", "pad-longest-eval", "nested-eval"],
}
RUN = """
import contextlib, importlib, io, json, sys
from pathlib import Path
script = Path(sys.argv[1])
sys.path.insert(0, str(script.parent))
module = importlib.import_module(script.stem)
from common import scenario
entries = [module.__file__, module.train, module.check, *filter(None, [getattr(module, "launcher", None)])]
for variant in sys.argv[2:]:
    sys.argv = [script.name, "--variant", variant, "--preset", "smoke", "--check"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = scenario.main(*entries)
    print(json.dumps([variant, status, json.loads(said.getvalue().splitlines()[-1])["tuiprof_result"]]))
    if "torch._dynamo" in sys.modules:  # which gives up compiling what was compiled too often
        sys.modules["torch._dynamo"].reset()
"""


def smoke(ladder: str, variants: list[str]) -> None:
    """Run variants at their small size with their checks."""
    script = str(shipped("scenarios") / find_ladder(ladder).script.name)
    # One thread: two would wait for each other by spinning wherever something else needs the cores too.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, script, *variants]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [variant for variant, *_ in outcomes] == variants, done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]
    assert {variant: fault for variant, *rest in outcomes if (fault := _fault(*rest))} == {}


def _fault(status: int, result: dict[str, Any]) -> str:
    """Return what is wrong with a run; empty = nothing."""
    if status == 77:  # what it needs is installed, and cannot do its work here: the reason is told
        return "" if all(lack["reason"] for lack in result["unavailable"]) else "no reason"
    if status:
        return f"status {status}: {result.get('check')}"
    return (
        "" if result["check"]["ok"] and result["check"]["compared"] and result["step_ms"] > 0 else str(result)
    )


@pytest.mark.parametrize("ladder", QUICK)
def test_quick_variants_compute_what_they_should(ladder: str) -> None:
    smoke(ladder, QUICK[ladder])


@pytest.mark.slow
@pytest.mark.parametrize("ladder", [ladder.name for ladder in ladders()])
def test_every_variant_that_can_run_here_does(ladder: str) -> None:
    have = interpreter.facts(sys.executable)
    found = find_ladder(ladder).variants
    able = [variant.name for variant in found if isinstance(availability(variant, have), Available)]
    if not able:
        pytest.skip("nothing of it can run here")
    smoke(ladder, able)
