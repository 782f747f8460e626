"""Where real traces lie: small ones under free licences in every clone, large ones in a folder beside the checkout."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "data" / "traces"
#: Megabytes that a clone does not carry. A test that needs one of them is skipped without this folder.
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"

#: Three steps of a thousand events with stacks, of which every analysis of one GPU has something to say: for tests that
#: need a trace whatever is in it. The samples of ``traces/`` take four times as long to be read and explained.
SMALL = HERE / "torchtutorial-h100-stack-steps.pt.trace.json.gz"


def path(name: str) -> Path:
    """Return where a trace lies, or skip the test that asks for it."""
    for folder in (HERE, BESIDE):
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"{name} is not in tests/data/traces, and there is no folder shared/ beside this checkout")


def paths(pattern: str) -> list[Path]:
    """Return all traces whose names match, each once."""
    return sorted({file.name: file for folder in (BESIDE, HERE) for file in folder.glob(pattern)}.values())


@functools.cache
def all_figures() -> dict[str, dict[str, Any]]:
    """Return what another program counted, by file: integer nanoseconds, from decimal arithmetic."""
    files: dict[str, Any] = json.loads((HERE / "figures.json").read_bytes())["files"]
    beside = BESIDE / "reference_counts.json"
    if beside.exists():
        files = {**json.loads(beside.read_bytes())["files"], **files}
    return {name: entry["figures"] for name, entry in files.items()}


def figures(name: str) -> dict[str, Any]:
    """Return the figures of one trace, or skip the test that asks for them."""
    path(name)
    return all_figures()[name]
