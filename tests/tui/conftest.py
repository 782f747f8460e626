"""Fixtures of the tests of the screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import textual.app
import textual.pilot
from on_screen import at_rest, handled
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from trace_app import FOUND

from tuiprof import analyses
from tuiprof.errors import describe

textual.app.wait_for_idle = textual.pilot.wait_for_idle = at_rest
textual.pilot.Pilot._wait_for_screen = handled

_parse = Stylesheet._parse_rules
_parsed: dict[Any, list[RuleSet]] = {}


def _parse_once(sheet: Stylesheet, *args: Any, **kwargs: Any) -> list[RuleSet]:
    """Parse each style sheet once for all tests, which open some 500 applications."""
    key = (*args, *kwargs.items(), *sorted(sheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse(sheet, *args, **kwargs)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]


@pytest.fixture
def made_analyses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Analyses of known answers, so that these tests are about the screen alone."""
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setattr(analyses, "available", lambda: FOUND)
    monkeypatch.setattr(analyses, "describe", describe)  # one of them fails on purpose
