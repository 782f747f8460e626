"""What a script says of its planted waits, and what tuiprof finds of them in a recording.

    python tests/gpu/plants.py tests/gpu/planted_kinds.py RECORDED.pt.trace.json.gz

prints both side by side and ends with status 1 where they differ.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from tuiprof.analyses import run
from tuiprof.formats import open_trace
from tuiprof.model import Report

_COMMENT = re.compile(r"#\s*sync: (?P<kind>[a-z_ ]+) x(?P<count>\d+)")

#: One wait: function, line (0 = not known), kind.
Wait = tuple[str, int, str]


def planted(script: Path) -> Counter[Wait]:
    """Return how often a step makes each wait, as the script's comments say."""
    text = script.read_text()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    waits: Counter[Wait] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        for match in _COMMENT.finditer(line):
            function = next(f.name for f in functions if f.lineno <= number <= (f.end_lineno or 0))
            waits[function, number, match["kind"]] += int(match["count"])
    return waits


def report_of(trace: Path) -> Report:
    """Return the sync view of a recording."""
    answer = run("sync_events", open_trace(trace))
    if not isinstance(answer, Report):
        raise ValueError(f"{trace}: {answer.reason}")
    return answer


def found(report: Report) -> dict[Wait, float]:
    """Return how often a step makes each wait, as tuiprof finds it."""
    rows = report.table("groups").rows
    lines = rows["where"].str.extract(r":(\d+)$").cast(int).fill_null(0)
    waits: dict[Wait, float] = {}
    for function, line, kind, count in zip(rows["in"], lines, rows["kind"], rows["per_step"], strict=True):
        waits[function, line, kind] = waits.get((function, line, kind), 0.0) + count
    return waits


def _main(script: Path, trace: Path) -> int:
    report = report_of(trace)
    wanted, seen = planted(script), found(report)
    for wait in sorted({*wanted, *seen}, key=lambda wait: wait[1]):
        mark = "ok   " if wanted[wait] == seen.get(wait, 0) else "WRONG"
        function, line, kind = wait
        print(
            f"{mark} {script.name}:{line:<4} {function:10} {kind:24} planted {wanted[wait]} found {seen.get(wait, 0):g}"
        )
    apart = report.table("apart").rows.select("apart", "calls", "where").unique().rows()
    print(f"apart: {apart}; source lines that met no sync: {report.fact('sites_unjoined')}")
    print(
        f"{len(wanted)} lines, {len({kind for _, _, kind in wanted})} kinds, {wanted.total()} syncs a step planted"
    )
    return int(any(wanted[wait] != seen.get(wait, 0) for wait in {*wanted, *seen}))


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), Path(sys.argv[2])))
