"""Converts SVG to PNG with an available renderer: CairoSVG, else headless Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tuiprof.errors import TuiprofError

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NEEDED: Final = "pip install 'tuiprof[snapshot]', or install Chromium; -o shot.svg needs neither"
_PATIENCE_S: Final = 60
#: CairoSVG takes no other font for what the first one lacks.
_BRAILLE: Final = re.compile("[\u2800-\u28ff]+")


def to_png(svg: str) -> bytes:
    """Draw an SVG.

    Args:
        svg: The drawing, with a ``viewBox``.

    Returns:
        The picture as PNG.

    Raises:
        TuiprofError: Nothing here can draw it, or drawing failed.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is not None:  # its text is the better one: it knows fonts for braille and symbols
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
        raise TuiprofError("the drawing has no size")
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
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TuiprofError(f"{browser} did not draw: {error}", _NEEDED) from error
        if not picture.exists():
            said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise TuiprofError(f"{browser} did not draw: {said}", _NEEDED)
        return picture.read_bytes()
