"""Planted host waits of an NVIDIA GPU's traces: each found with its kind, count and line, and none invented.

The scripts say in comments ``# sync: KIND xN`` which of their lines wait for the device, why, and how often a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from gpu import plants
from gpu.plants import Wait

from tuiprof.model import Report

GPU = Path(__file__).parent / "gpu"
TRACES = Path(__file__).parents[1] / "traces"
SCRIPTS = ("planted_syncs.py", "planted_kinds.py")


@cache
def report(script: str) -> Report:
    trace = TRACES / f"{Path(script).stem.replace('_', '-')}.pt.trace.json.gz"
    if not trace.is_file():
        pytest.skip(f"no recording traces/{trace.name}: see the head of tests/gpu/{script}")
    return plants.report_of(trace)


def planted(script: str) -> Counter[Wait]:
    return plants.planted(GPU / script)


def by_function(waits: Mapping[Wait, float]) -> dict[tuple[str, str], float]:
    total: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (function, _, kind), count in waits.items():
        total[function, kind] += count
    return total


@pytest.mark.parametrize(("script", "lines", "kinds"), [(SCRIPTS[0], 22, 14), (SCRIPTS[1], 25, 16)])
def test_many_kinds_are_planted(script: str, lines: int, kinds: int) -> None:
    assert len(planted(script)) >= lines
    assert len({kind for _, _, kind in planted(script)}) >= kinds


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_planted_wait_is_found_with_its_kind_and_count_and_none_is_invented(script: str) -> None:
    found = plants.found(report(script))
    assert by_function(found) == by_function(planted(script))
    assert all(script in where for where in report(script).table("groups").rows["where"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_line_is_exact(script: str) -> None:
    assert plants.found(report(script)) == planted(script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_else_stands_in_the_way(script: str) -> None:
    found = report(script)
    assert found.fact("sites_unjoined") == 0
    assert found.fact("syncs_per_step") == planted(script).total()
    assert found.table("apart").rows["apart"].unique().to_list() in ([], ["made by the profiler"])
