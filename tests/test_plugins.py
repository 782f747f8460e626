"""What third parties add through entry points."""

from __future__ import annotations

import pkgutil
from collections import Counter
from importlib import import_module
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from tuiprof import plugins

THEIRS = SimpleNamespace(name="theirs")
SHADOWING = SimpleNamespace(name="steps")


def test_theirs_are_added_the_broken_left_out_and_ours_stay_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "tuiprof.analyses"
    found = [
        EntryPoint("gone", "no_such_module:ANALYSIS", group),
        EntryPoint("nameless", "math:pi", group),
        EntryPoint("theirs", f"{__name__}:THEIRS", group),
        EntryPoint("steps", f"{__name__}:SHADOWING", group),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    analyses, failed = plugins.discover("analyses")
    assert list(failed) == ["gone", "nameless"]
    assert failed["gone"].startswith(
        "it cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert analyses["theirs"] is THEIRS
    assert analyses["steps"] is not SHADOWING
    assert "advice" in analyses


@pytest.mark.parametrize("package", plugins.ATTRIBUTES)
def test_no_file_of_ours_takes_the_name_of_another(package: str) -> None:
    modules = pkgutil.walk_packages(import_module(f"tuiprof.{package}").__path__, f"tuiprof.{package}.")
    items = (
        getattr(import_module(module.name), plugins.ATTRIBUTES[package], None)
        for module in modules
        if not module.name.endswith("__main__")
    )
    names = Counter(item.name for item in items if item is not None)
    assert names
    assert not {name for name, count in names.items() if count > 1}
