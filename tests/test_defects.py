"""If a part fails or cannot be loaded, only it is missing, with the reason, wherever it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests import real_traces
from tuiprof import advice, analyses, formats, plugins, report, telemetry
from tuiprof.advice.waits import nan_check
from tuiprof.analyses import device_idle, kernels
from tuiprof.cli import main
from tuiprof.cli.machine import examine
from tuiprof.errors import TraceError
from tuiprof.formats import open_trace, registry
from tuiprof.formats.registry import Format
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.report import render_all
from tuiprof.resources import shipped
from tuiprof.telemetry import Absent, find_hardware, host

SAMPLE = shipped("traces") / "planted-syncs.pt.trace.json.gz"
PARTS = (
    analyses.available,
    analyses.find,
    advice.available,
    advice.unavailable,
    formats.available,
    report.formats,
)
pytestmark = pytest.mark.defects


def find_anew() -> None:
    for part in PARTS:
        part.cache_clear()


@pytest.fixture(autouse=True)
def _found_anew() -> Iterator[None]:
    find_anew()
    yield
    find_anew()


@pytest.fixture
def trace() -> Trace:
    return open_trace(SAMPLE)


@pytest.fixture(params=["raises", "returns nothing", "cannot be loaded"])
def broken_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Break the analysis of kernels; return what is to be said of it."""
    if request.param == "cannot be loaded":
        _unload(monkeypatch, kernels)
        return "it cannot be loaded: ModuleNotFoundError"
    if request.param == "returns nothing":
        monkeypatch.setattr(kernels, "ANALYSIS", replace(kernels.ANALYSIS, run=lambda *_: None))
        return "it failed: TypeError: it returned NoneType, not Report or Unavailable (__init__.py:"
    monkeypatch.setattr(kernels, "ANALYSIS", replace(kernels.ANALYSIS, run=_divide))
    return "it failed: ZeroDivisionError: division by zero (test_defects.py:"


def _divide(*_: object) -> Report:
    return 1 / 0  # type: ignore[return-value]


def _unload(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    package, _, name = module.__name__.rpartition(".")
    monkeypatch.setitem(sys.modules, module.__name__, None)
    monkeypatch.delattr(import_module(package), name)


@pytest.mark.parametrize("format_", ["text", "json", "csv", "md", "html"])
def test_a_report_has_all_but_the_analysis_that_failed(
    format_: str, broken_kernels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(real_traces.SMALL), "all", "-f", format_]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert broken_kernels.split("(")[0] in said.replace("\\_", "_").replace("&#x27;", "'")
    assert "aggregation.py" in said or "planted" in said or "syncs" in said
    if format_ == "json":
        answers = {one["analysis"]: one for one in json.loads(said)["reports"]}
        missing = {name for name, one in answers.items() if not one["available"]}
        assert missing == {
            "kernels",
            "data_loading",
            "compile",
            "ranks",
        }  # the others have nothing to say of it
        assert "please report" in answers["kernels"]["remedy"]
        assert answers["advice"]["available"]


def test_a_check_is_unknown_only_where_it_needs_what_failed(
    broken_kernels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(real_traces.SMALL), "--max", "syncs_per_step=1000"]) == 0
    assert main(["check", str(real_traces.SMALL), "--max", "kernel_ns_per_step=1"]) == 2
    assert broken_kernels.split("(")[0] in capsys.readouterr().out


def test_a_comparison_has_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_idle, "ANALYSIS", replace(device_idle.ANALYSIS, run=_divide))
    assert main(["compare", str(real_traces.SMALL), str(real_traces.SMALL)]) == 0
    said = capsys.readouterr().out
    assert "launches a step" in said
    assert "device idle a step" not in said


def test_the_screens_show_it_in_its_place(trace: Trace, broken_kernels: str) -> None:
    from tuiprof.tui.trace.work import Results

    results = Results(trace, list(analyses.available()))
    assert "kernels" in results.names
    answer = results.compute("kernels", Window())
    assert isinstance(answer, Unavailable)
    assert answer.failed
    assert answer.reason.startswith(broken_kernels)
    assert isinstance(results.compute("steps", Window()), Report)


@pytest.mark.parametrize("how", ["raises", "cannot be loaded"])
def test_a_rule_that_fails_leaves_the_others_advice(
    how: str, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = analyses.run("advice", open_trace(SAMPLE))
    if how == "raises":
        monkeypatch.setattr(nan_check, "RULE", replace(nan_check.RULE, find=_divide))
    else:
        _unload(monkeypatch, nan_check)
    find_anew()
    answer = analyses.run("advice", trace)
    assert isinstance(before, Report)
    assert isinstance(answer, Report)
    assert answer.table("findings").rows.equals(before.table("findings").rows)
    (note,) = set(answer.notes) - set(before.notes)
    assert note.startswith("The rule nan")
    assert "is unavailable: it " in note


def test_the_doctor_names_what_cannot_be_loaded(broken_kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _unload(monkeypatch, nan_check)
    found = examine()
    rows = {
        (row["part"], row["name"]): row["title"] for row in found.table("parts").rows.iter_rows(named=True)
    }
    assert rows["rule", "nan_check"].startswith("unavailable: it cannot be loaded")
    if "loaded" in broken_kernels:
        assert rows["analysis", "kernels"].startswith("unavailable: it cannot be loaded")
    assert "kineto" not in rows["analysis", "sync_events"]


@pytest.mark.parametrize("how", ["raises", "cannot be loaded"])
def test_a_backend_that_fails_is_absent(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "raises":
        monkeypatch.setattr(host, "BACKEND", replace(host.BACKEND, open=_divide))
    else:
        _unload(monkeypatch, host)
    assert isinstance(telemetry.backends()["host"].open(None), Absent)
    hardware = find_hardware()
    assert "it " in hardware.absent["host"].reason
    assert "nvidia" in hardware.absent


def test_a_format_that_cannot_be_loaded_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuiprof.errors import TraceError
    from tuiprof.formats import kineto, xplane

    _unload(monkeypatch, xplane)
    assert len(open_trace(SAMPLE, cache=False))
    with pytest.raises(TraceError, match=r"its format is unavailable \(xplane: it cannot be loaded"):
        open_trace(shipped("traces") / "jax-async.xplane.pb.gz")
    assert kineto.FORMAT.name in formats.available()


def test_an_output_format_that_cannot_be_loaded_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.errors import UsageProblem
    from tuiprof.report import md

    _unload(monkeypatch, md)
    assert render_all([Unavailable("x", "y")], "json")
    with pytest.raises(UsageProblem, match="cannot be loaded"):
        render_all([Unavailable("x", "y")], "md")


def test_every_part_of_ours_loads() -> None:
    for package in plugins.ATTRIBUTES:
        assert not plugins.discover(package).failed


def test_a_format_that_fails_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Format("broken", "Broken", _divide, _divide, order=0)
    monkeypatch.setattr(registry, "available", lambda: {"broken": broken} | formats.available())
    assert open_trace(SAMPLE).info.format == "kineto"
    unknown = tmp_path / "notes.txt"
    unknown.write_text("not a trace")
    with pytest.raises(
        TraceError, match=r"unavailable \(broken: it failed: ZeroDivisionError: division by zero"
    ):
        open_trace(unknown)
