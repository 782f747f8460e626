"""The files that docs/adding.md shows, run as a third party's."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from analyses.made import Made

import tuiprof
from tuiprof import advice, formats, plugins, telemetry
from tuiprof.cli.machine import examine
from tuiprof.model import Report
from tuiprof.resources import shipped
from tuiprof.telemetry import figures

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
BLOCKS = dict(re.findall(r'```python title="(\S+)"\n(.*?)```', PAGE.read_text(), flags=re.S))
TESTS = re.findall(r"```python\n(def test_.*?)```", PAGE.read_text(), flags=re.S)
CACHES = (tuiprof.analyses.available, advice.available, formats.available, figures.declared)


def load(folder: Path, path: str) -> ModuleType:
    """Write a file of the page and import it."""
    name = f"adding_{Path(path).stem}"
    file = folder / f"{name}.py"
    file.write_text(BLOCKS[path])
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_tabs_keep_the_digits_that_people_know() -> None:
    first = ["sync_events", "kernel_launches", "device_idle", "kernels", "steps", "data_loading"]
    assert [*tuiprof.analyses.available()][:9] == [*first, "memory", "compile", "advice"]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything on the page, declared by entry points."""
    found = []
    for path in BLOCKS:
        package = path.split("/")[1]
        module = load(tmp_path, path)
        found.append(
            EntryPoint(
                module.__name__, f"{module.__name__}:{plugins.ATTRIBUTES[package]}", f"tuiprof.{package}"
            )
        )
    monkeypatch.setattr(plugins, "entry_points", lambda group: [one for one in found if one.group == group])
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


def test_one_of_each_is_shown() -> None:
    assert sorted(path.split("/")[1] for path in BLOCKS) == sorted(plugins.ATTRIBUTES.keys() - {"report"})


@pytest.mark.usefixtures("added")
def test_each_is_found_and_answers(tmp_path: Path) -> None:
    trace = tuiprof.open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    report = tuiprof.analyses.run("small_kernels", trace)
    assert isinstance(report, Report)
    share = report.fact("small_kernel_share")
    assert isinstance(share, float)
    assert 0.1 < share < 0.9
    rule = advice.available()["fill-kernels"]
    (found,) = rule.find(trace, advice.Evidence(trace, {}))
    assert "kernels a step only fill memory" in found.what
    assert not advice.priorities(trace).missing
    lines = tmp_path / "run.txt"
    lines.write_text("# ns lines\n0 100 main forward\n10 50 main inner\n200 30 loader next\n")
    read = tuiprof.open_trace(lines)
    assert read.info.format == "lines"
    assert read.events["dur"].to_list() == [100, 50, 30]
    source = telemetry.backends()["load"].open(None)
    assert not isinstance(source, telemetry.Absent)
    assert source.sample()[0].values["load_5m"] >= 0
    assert source.devices()[0].kind == "host", "any other kind counts as an accelerator"
    assert figures.figure("load_5m").label == "5 min"
    assert figures.figure("load_15m").help == "", "declared by no backend"


@pytest.mark.usefixtures("added")
def test_its_test_passes() -> None:
    (test,) = TESTS
    made = {"Made": Made, "Report": Report, "run": tuiprof.analyses.run}
    exec(test, made)
    made["test_half_of_the_kernels_are_short"]()


@pytest.mark.usefixtures("added")
def test_the_doctor_lists_each() -> None:
    parts = examine().table("parts").rows
    listed = set(zip(parts["part"], parts["name"], strict=True))
    assert listed >= {
        ("analysis", "small_kernels"),
        ("rule", "fill-kernels"),
        ("format", "lines"),
        ("telemetry", "load"),
    }
