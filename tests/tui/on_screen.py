"""What the tests of the screens share: running the application, and reading what is on its screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.start import Start


def screen_text(app: TuiprofApp) -> str:
    """Return what the terminal shows, line by line."""
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip()
        for strip in app.screen._compositor.render_strips()
    )


async def until(pilot: Pilot[int], condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for something to become true; fail with what the screen shows when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it never came; the screen shows:\n" + screen_text(pilot.app))  # type: ignore[arg-type]
        await pilot.pause(0.05)


async def until_shown(pilot: Pilot[int], *texts: str) -> str:
    """Wait until the screen shows all texts, and return it whole."""
    app = pilot.app
    assert isinstance(app, TuiprofApp)
    await until(pilot, lambda: all(text in screen_text(app) for text in texts))
    return screen_text(app)


def live(path: Path) -> TuiprofApp:
    """Return the application as ``tuiprof attach`` opens it."""
    return TuiprofApp(Start.live(path))
