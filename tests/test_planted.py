"""Planted host waits of an NVIDIA GPU's trace: each found with its kind and count, and none invented.

The script says in comments ``# sync: KIND xN`` which of its lines wait for the device, why, and how often a step.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tuiprof.analyses import run
from tuiprof.formats import open_trace
from tuiprof.model import Report

SCRIPT = Path(__file__).parent / "gpu" / "planted_syncs.py"
TRACE = Path(__file__).parents[1] / "traces" / "planted-syncs.pt.trace.json.gz"
_COMMENT = re.compile(r"#\s*sync: (?P<kind>[a-z_ ]+) x(?P<count>\d+)")

#: One wait: function, line, kind.
Wait = tuple[str, int, str]


def planted() -> Counter[Wait]:
    """Return how often a step makes each wait, as the script's comments say."""
    functions = [node for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.FunctionDef)]
    found: Counter[Wait] = Counter()
    for number, text in enumerate(SCRIPT.read_text().splitlines(), 1):
        for match in _COMMENT.finditer(text):
            function = next(f.name for f in functions if f.lineno <= number <= (f.end_lineno or 0))
            found[function, number, match["kind"]] += int(match["count"])
    return found


@cache
def report() -> Report:
    if not TRACE.is_file():
        pytest.skip("the recorded trace traces/planted-syncs.pt.trace.json.gz is not here")
    answer = run("sync_events", open_trace(TRACE))
    assert isinstance(answer, Report), answer
    return answer


def seen() -> list[tuple[str, Wait, float]]:
    """Return what was found: the file, the wait (line 0 = only its function is known) and how often a step."""
    rows = report().table("groups").rows
    lines = rows["where"].str.extract(r":(\d+)$").cast(int).fill_null(0)
    waits = zip(rows["in"], lines, rows["kind"], strict=True)
    return list(zip(rows["where"], waits, rows["per_step"], strict=True))


def by_function(waits: dict[Wait, float]) -> dict[tuple[str, str], float]:
    total: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (function, _, kind), count in waits.items():
        total[function, kind] += count
    return total


def found() -> dict[Wait, float]:
    total: defaultdict[Wait, float] = defaultdict(float)
    for _, wait, per_step in seen():
        total[wait] += per_step
    return total


def test_at_least_twelve_kinds_of_lines_are_planted() -> None:
    assert len(planted()) >= 22
    assert len({kind for _, _, kind in planted()}) >= 14


def test_every_planted_wait_is_found_with_its_kind_and_count_and_none_is_invented() -> None:
    assert by_function(found()) == by_function(planted())
    assert all(SCRIPT.name in where for where, _, _ in seen())


def test_every_line_is_right_where_the_line_is_known() -> None:
    exact = {wait: count for wait, count in found().items() if wait[1]}
    wrong = {wait: count for wait, count in exact.items() if planted()[wait] != count}
    assert not wrong
    assert exact.keys() == planted().keys()


def test_nothing_else_stands_in_the_way() -> None:
    assert report().fact("sites_unjoined") == 0
    assert report().fact("syncs_per_step") == planted().total()
    assert report().table("apart").rows["apart"].unique().to_list() in ([], ["made by the profiler"])
