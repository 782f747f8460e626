"""What may be imported where, seen from a clean interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("textual", "torch", "jax", "polars", "numpy", "rich", "psutil", "msgspec")


def _imported(statement: str) -> list[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return out.splitlines()[-1].split()


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
        (
            "import tuiprof.tui.app.app, tuiprof.tui.library.screen",
            ("torch", "jax", "polars", "numpy", "pynvml"),
        ),
        ("import tuiprof.tui.library.view, tuiprof.tui.library.data", ("textual",)),
        ("import tuiprof.tui.live.moment, tuiprof.tui.live.captures, tuiprof.tui.live.view", ("textual",)),
        ("import tuiprof.tui.ladder.view", ("textual",)),
    ],
)
def test_clean_interpreter(statement: str, forbidden: tuple[str, ...]) -> None:
    assert not {name.partition(".")[0] for name in _imported(statement)} & set(forbidden)


def test_reading_sessions_loads_only_what_it_shares_with_the_probe() -> None:
    found = _imported("import tuiprof.session.live.listing, tuiprof.session.live.summary")
    of_the_probe = [
        name.removeprefix("tuiprof.probe.") for name in found if name.startswith("tuiprof.probe.")
    ]
    assert of_the_probe == ["api", "assembly", "garbage", "slowdown"]
