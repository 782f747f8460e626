"""Snapshots of a screen without a terminal, as SVG, text and PNG. The SVG does not load fonts from the network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from textual.pilot import Pilot

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.report.sanitize import sanitize
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.live.moment import Moment
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.opening.loading import LoadingPanel
from tuiprof.tui.trace.screen import TraceScreen

#: Timeout for the screen's workers.
_TIMEOUT_S: Final = 300.0
#: The snapshot is taken when several polls in a row show the same text or, because the screen of a running script keeps
#: changing, this long after the last worker has finished.
_MAX_UNSTABLE_S: Final = 2.0
_POLL_S: Final = 0.1
_STABLE_POLLS: Final = 3
_FONT_FACE: Final = re.compile(r"@font-face\s*{[^}]*}\s*")
_FONTS: Final = "'DejaVu Sans Mono', 'Cascadia Mono', Menlo, Consolas, 'Liberation Mono', monospace"


@dataclass(frozen=True, slots=True)
class Shot:
    """What to take a snapshot of."""

    start: Start
    columns: int = 160
    lines: int = 48
    step: int | None = None  # number of the step to select
    at_s: float | None = None  # time since the start of the session; None = its end, or now
    keys: tuple[str, ...] = ()  # keys to press before the snapshot, as Textual names them


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot of a screen."""

    svg: str
    text: str


def take(shot: Shot) -> Picture:
    """Take a snapshot; raises TuiprofError if the screen cannot be shown, or there is no such step or key."""
    return asyncio.run(_take(shot))


async def _take(shot: Shot) -> Picture:
    async with shown(shot) as pilot:
        title = f"tuiprof — {shot.start.path.name}" if shot.start.path else "tuiprof"
        return Picture(portable(pilot.app.export_screenshot(title=sanitize(title))), text_of(pilot))


@contextlib.asynccontextmanager
async def shown(shot: Shot) -> AsyncIterator[Pilot[int]]:
    """Run the dashboard without a terminal until it shows what was requested."""
    app = TuiprofApp(shot.start)
    async with app.run_test(size=(shot.columns, shot.lines)) as pilot:
        await _settle(pilot)
        if _go_to(pilot, shot):
            await _settle(pilot)
        for key in shot.keys:
            await pilot.press(key)
            await _settle(pilot)
        yield pilot


def text_of(pilot: Pilot[int]) -> str:
    """Return the top screen as text."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


def portable(svg: str) -> str:
    """Return the SVG with local fonts instead of fonts from the network."""
    return _FONT_FACE.sub("", svg).replace("Fira Code, monospace", _FONTS).replace("arial", "sans-serif")


async def _settle(pilot: Pilot[int]) -> None:
    """Wait until all workers have finished and the screen no longer changes."""
    deadline = time.monotonic() + _TIMEOUT_S
    idle_since, before, same = time.monotonic(), "", 0
    while same < _STABLE_POLLS:
        await pilot.pause(_POLL_S)
        now = time.monotonic()
        if any(not worker.is_finished for worker in pilot.app.workers):
            idle_since, same = now, 0
            if now > deadline:
                raise TuiprofError("the screen was not ready after 5 minutes")
            continue
        text = text_of(pilot)
        same = same + 1 if text == before else 0
        before = text
        if now - idle_since > _MAX_UNSTABLE_S:
            return


def _go_to(pilot: Pilot[int], shot: Shot) -> bool:
    """Go to the requested step or time; return whether one was requested."""
    screen = pilot.app.screen
    requested = shot.at_s is not None or shot.step is not None
    if isinstance(screen, TraceScreen):
        _in_trace(screen, shot)
    elif not requested:
        return False
    elif isinstance(screen, LiveScreen):
        screen.moment.go_to(_moment_ns(screen.moment, shot))
        screen.redraw_now()
    else:
        raise UsageProblem("this screen has no steps", "name a session or a trace")
    return requested


def _in_trace(screen: TraceScreen, shot: Shot) -> None:
    from tuiprof.tui.trace.widget import TraceView

    for panel in screen.query(LoadingPanel):
        raise panel.error or TuiprofError(f"{shot.start.path} was not opened")
    if shot.at_s is not None:
        raise UsageProblem("--at works only for sessions", "for a trace, use --step N")
    if shot.step is None:
        return
    view = screen.query_one(TraceView)
    steps = view.trace.steps
    numbers = steps.numbers.tolist()
    if shot.step not in numbers:
        raise UsageProblem(f"no step {shot.step}", _span(numbers))
    view.set_window(steps.window(numbers.index(shot.step)))
    view.timeline.navigation.zoom_to()


def _moment_ns(moment: Moment, shot: Shot) -> int:
    """Return the requested time of the session, or the end of the requested step."""
    if shot.at_s is not None:
        return round(shot.at_s * 1e9)
    rank = moment.rank
    numbers = rank.steps.rows["n"] if rank is not None else np.zeros(0, np.int64)
    found = np.flatnonzero(numbers == shot.step)
    if rank is None or not len(found):
        raise UsageProblem(f"no step {shot.step}", _span(numbers.tolist()))
    moment.selected = shot.step
    return int(rank.steps.rows["t_ns"][found[-1]])


def _span(numbers: list[int]) -> str:
    return f"there are steps {numbers[0]} to {numbers[-1]}" if numbers else "no steps are marked here"


# -- PNG -------------------------------------------------------------------------------------------------

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NEEDED: Final = "pip install 'tuiprof[snapshot]', or install Chromium; -o shot.svg needs neither"
_DRAW_S: Final = 60
#: CairoSVG does not fall back to another font for missing characters, such as braille.
_BRAILLE: Final = re.compile("[\u2800-\u28ff]+")


def to_png(svg: str) -> bytes:
    """Render an SVG with a ``viewBox`` by headless Chromium, else by CairoSVG.

    Raises:
        TuiprofError: There is no renderer, or rendering failed.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is not None:  # preferred, because it finds fonts for braille and symbols
        return _by_browser(browser, svg)
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: libcairo itself is missing
        raise TuiprofError(f"no renderer for PNG here: {error}", _NEEDED) from error
    drawing = _BRAILLE.sub(r"<tspan style='font-family:DejaVu Sans'>\g<0></tspan>", svg)
    return bytes(cairosvg.svg2png(bytestring=drawing.encode(), output_width=round(_size(svg)[0])))


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if found is None:
        raise TuiprofError("the SVG has no viewBox")
    return float(found[1]), float(found[2])


def _by_browser(browser: str, svg: str) -> bytes:
    width, height = (round(size) for size in _size(svg))
    with tempfile.TemporaryDirectory(prefix="tuiprof-") as folder:
        page, picture = Path(folder) / "shot.html", Path(folder) / "shot.png"
        page.write_text(
            f"<!doctype html><meta charset=utf-8><style>*{{margin:0}}svg{{display:block}}</style>{svg}"
        )
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--default-background-color=00000000",
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            page.as_uri(),
        ]
        if os.geteuid() == 0:  # its sandbox does not work for root
            command.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DRAW_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TuiprofError(f"{browser} cannot render the SVG: {error}", _NEEDED) from error
        if not picture.exists():
            reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise TuiprofError(f"{browser} cannot render the SVG: {reason}", _NEEDED)
        return picture.read_bytes()
