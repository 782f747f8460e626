"""A headless browser for tests, where there is one: playwright drives the system's Chromium."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NEEDED = "needs a browser: pip install playwright, and Chromium of the system (apt install chromium)"


@contextlib.contextmanager
def open_page(*, width: int = 1280, height: int = 800) -> Iterator[Any]:
    """Open a page of a fresh browser, or skip the test with the reason.

    Args:
        width: Of the window, in pixels.
        height: The same.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(NEEDED)
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip(NEEDED)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser.new_page(viewport={"width": width, "height": height})
        finally:
            browser.close()
