"""What may be imported where, seen from a clean interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("textual", "torch", "jax", "polars", "numpy", "rich", "psutil", "msgspec")


def _imported(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(out.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import tuiprof", _HEAVY),
        ("import tuiprof; tuiprof.step(); tuiprof.phase('load')", _HEAVY),
        ("from tuiprof.cli import main; main(['--help'])", _HEAVY),
        ("import tuiprof.analyses, tuiprof.report, tuiprof.formats", ("textual", "torch", "jax")),
        ("from tuiprof.analyses import available; available()", ("textual", "torch", "jax")),
        ("import tuiprof.session.run.supervisor", ("textual", "torch", "jax", "polars")),
        ("import tuiprof.tui.app.app", ("torch", "jax", "polars")),
    ],
)
def test_clean_interpreter(statement: str, forbidden: tuple[str, ...]) -> None:
    assert not _imported(statement) & set(forbidden)
