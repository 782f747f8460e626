"""Breaks the code on purpose, one small change at a time, and counts how often the nearest tests notice.

    python -m tests.mutate                    # 12 changes to each of the modules below, about half an hour
    python -m tests.mutate ladder --count 30  # those whose name holds a word

Each change is made in a copy of the checkout: a comparison turned, a number off by one, plus for minus, and for or. A
change that no test notices is printed; some are none (``>=`` for ``>`` where equal values do the same).
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_A = "tests/analyses"
_ALL = (f"{_A}/test_windows.py", f"{_A}/test_by_definition.py")
_IDLE = (f"{_A}/test_idle_and_launches.py", *_ALL)
_OTHER = (f"{_A}/test_other_analyses.py", *_ALL)
_SYNCS = (f"{_A}/test_sync_events.py", f"{_A}/test_xla_waits.py", *_ALL)
#: Modules whose mistakes would be figures that look right, and the tests nearest to them.
TARGETS = {
    "analyses/data_loading.py": _OTHER,
    "analyses/device_idle.py": _IDLE,
    "analyses/kernel_launches.py": _IDLE,
    "analyses/kernels.py": (*_IDLE, f"{_A}/test_kernel_names.py", "tests/ladder/test_ladder_report.py"),
    "analyses/memory.py": (*_OTHER, "tests/formats/test_xplane.py"),
    "analyses/ranks.py": (f"{_A}/test_ranks.py",),
    "analyses/shared/idle.py": (*_IDLE, f"{_A}/test_sync_events.py"),
    "analyses/shared/scope.py": (*_OTHER, _A),
    "analyses/shared/wait_table.py": _SYNCS,
    "analyses/shared/waits.py": _SYNCS,
    "analyses/steps.py": _OTHER,
    "analyses/sync_events.py": _SYNCS,
    "formats/kineto/assemble.py": ("tests/formats/test_kineto.py",),
    "ladder/statistics.py": ("tests/ladder/test_ladder_stats.py",),
    "model/intervals.py": (*_IDLE, "tests/model"),
    "model/units.py": ("tests/model/test_units.py", "tests/report"),
    "session/live/fold.py": ("tests/session/test_fold.py", "tests/session/test_summary.py"),
    "session/live/series.py": ("tests/session/test_fold.py", "tests/session/test_summary.py"),
    "session/live/hosts.py": ("tests/session/test_hosts.py",),
    "whatif/replay.py": ("tests/whatif",),
}
_TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, what is changed, the changed source) for every place that can be changed."""
    tree = ast.parse(source)
    ordering = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "order"
    }
    for node in list(ast.walk(tree)):
        if id(node) in ordering:  # where something is listed among others
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _TURNED:
            before = node.ops[0]
            node.ops[0] = _TURNED[type(before)]()
            yield node.lineno, ast.unparse(node), ast.unparse(tree)
            node.ops[0] = before
        elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _TURNED:
            was = node.op
            node.op = _TURNED[type(was)]()
            yield node.lineno, ast.unparse(node), ast.unparse(tree)
            node.op = was  # type: ignore[assignment]
        elif isinstance(node, ast.Constant) and type(node.value) is int and hasattr(node, "lineno"):
            node.value += 1
            yield node.lineno, f"{node.value} for {node.value - 1}", ast.unparse(tree)
            node.value -= 1


def noticed(copy: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests fail in a copy of the checkout."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    """Run it; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    killed = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("tuiprof", "tests", "pyproject.toml"):
            path = ROOT / name
            (shutil.copytree if path.is_dir() else shutil.copy)(path, copy / name)
        for name in ("traces", "scenarios", "docs", "README.md"):
            (copy / name).symlink_to(ROOT / name)
        for name, tests in TARGETS.items():
            if options.words and not any(word in name for word in options.words):
                continue
            file = copy / "tuiprof" / name
            source = file.read_text()
            if noticed(copy, tests):
                print(f"{name}: its tests fail without any change")
                return 1
            every = list(mutants(source))
            chosen = random.Random(f"{options.seed} {name}").sample(every, min(options.count, len(every)))
            found = 0
            for line, what, text in chosen:
                file.write_text(text)
                if noticed(copy, tests):
                    found += 1
                else:
                    print(f"  not noticed  {name}:{line}  {what[:90]}", flush=True)
            file.write_text(source)
            print(f"{name:34} {found} of {len(chosen)}", flush=True)
            killed, tried = killed + found, tried + len(chosen)
    print(f"{'all':34} {killed} of {tried}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
