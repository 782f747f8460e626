"""A library of one small ladder, and sessions of it, for the tests of the library."""

from __future__ import annotations

import sys
from pathlib import Path

from synthetic import Synthetic

from tuiprof.session.store.meta import Scenario
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.widgets.choices import Choices

SCENARIO = """# /// script
# requires-python = ">=3.9"
# dependencies = []
#
# [tool.tuiprof]
# name = "tiny"
# title = "a loop"
# story = "It sleeps [red]and[/red] steps."
# baseline = "slow"
#
# [tool.tuiprof.presets.smoke]
# note = "small"
#
# [[tool.tuiprof.variants]]
# name = "slow"
# note = "Sleeps long."
# published = [{ text = "20 ms" }]
#
# [[tool.tuiprof.variants]]
# name = "fast"
# note = "Sleeps less."
#
# [[tool.tuiprof.variants]]
# name = "impossible"
# note = "Cannot run."
# needs = { packages = ["no-such-package-anywhere>=1.0"] }
# ///
import time
import tuiprof
for step in range(6000):
    time.sleep(0.02)
    tuiprof.step()
"""


def tiny_start(folder: Path) -> Start:
    """Return a start with a ladder ``tiny`` of its own, and a folder for sessions."""
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    (scenarios / "tiny.py").write_text(SCENARIO)
    return Start(sessions=folder / "sessions", scenarios=(scenarios,), python=Path(sys.executable))


def ended(root: Path, scenario: Scenario | None, step_ms: float, code: int = 0) -> Synthetic:
    import platform

    from tuiprof.session.store.meta import write_meta

    made = Synthetic(root, step_ms=step_ms, scenario=scenario, name="tiny", slow=())
    made.session.meta.host = platform.node()
    write_meta(made.session.path, made.session.meta)
    return made.ran(5, code=code)


def sidebar(app: TuiprofApp) -> Choices:
    return app.screen.query_one("#items", Choices)


async def choose(app: TuiprofApp, key: str) -> None:
    items = sidebar(app)
    items.move_to(key)
    items.focus()
