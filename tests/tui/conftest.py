"""Fixtures of the tests of the screens."""

from __future__ import annotations

from pathlib import Path

import pytest
import textual.app
import textual.pilot
from on_screen import at_rest
from trace_app import FOUND

from tuiprof import analyses
from tuiprof.errors import describe

textual.app.wait_for_idle = textual.pilot.wait_for_idle = at_rest


@pytest.fixture
def made_analyses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Analyses of known answers, so that these tests are about the screen alone."""
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setattr(analyses, "available", lambda: FOUND)
    monkeypatch.setattr(analyses, "describe", describe)  # one of them fails on purpose
