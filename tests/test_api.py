"""The library as notebooks use it: what is exported, what the examples say, what a training script pays."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

import tuiprof
import tuiprof.comparison.sides
import tuiprof.formats.open
from tuiprof.errors import TraceError, UsageProblem
from tuiprof.model import EVENT_SCHEMA, Report, Unavailable
from tuiprof.resources import shipped

SAMPLES = shipped("traces")


def test_the_exported_surface() -> None:
    assert tuiprof.__all__ == [
        "__version__", "analyses", "compare", "errors", "model", "open_trace", "phase", "step",
    ]  # fmt: skip
    assert set(tuiprof.__all__) <= set(dir(tuiprof))
    for name in tuiprof.__all__:
        assert getattr(tuiprof, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tuiprof.nothing  # noqa: B018
    assert files("tuiprof").joinpath("py.typed").is_file()


def test_the_examples_in_the_docstrings() -> None:
    found = [doctest.testmod(module) for module in (tuiprof, tuiprof.comparison.sides, tuiprof.formats.open)]
    assert sum(result.attempted for result in found) >= 10
    assert not any(result.failed for result in found)


def test_events_are_a_polars_data_frame_of_the_documented_columns() -> None:
    trace = tuiprof.open_trace(SAMPLES / "attention-native.pt.trace.json.gz")
    assert isinstance(trace.events, pl.DataFrame)
    assert set(EVENT_SCHEMA) <= set(trace.events.columns)
    assert trace.events["ts"].is_sorted()
    longest = (
        trace.events.filter(pl.col("category") == "kernel").sort("dur", descending=True).row(0, named=True)
    )
    assert longest["dur"] > 500_000  # ns


def test_every_analysis_answers_by_name() -> None:
    trace = tuiprof.open_trace(SAMPLES / "metrics-naive.pt.trace.json.gz")
    for name, analysis in tuiprof.analyses.available().items():
        assert analysis.name == name
        assert isinstance(tuiprof.analyses.run(name, trace), (Report, Unavailable))
    with pytest.raises(UsageProblem, match="no analysis 'sync'"):
        tuiprof.analyses.run("sync", trace)


def test_traces_and_paths_are_compared_alike() -> None:
    names = ("metrics-naive.pt.trace.json.gz", "metrics-no-nan-check.pt.trace.json.gz")
    by_path = tuiprof.compare(*(SAMPLES / name for name in names))
    by_trace = tuiprof.compare(*(tuiprof.open_trace(SAMPLES / name) for name in names))
    assert by_path.verdict == by_trace.verdict
    assert by_trace.fact("before") == names[0]


def test_a_directory_a_rank_and_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
        document = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [op]}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    trace = tuiprof.open_trace(tmp_path, rank=1)
    assert trace.info.rank == 1
    assert trace.siblings is not None
    assert trace.siblings.ranks == (0, 1)
    with pytest.raises(UsageProblem, match="no rank 5"):
        tuiprof.open_trace(tmp_path, rank=5)
    with pytest.raises(TraceError, match="there is no file"):
        tuiprof.open_trace(tmp_path / "none.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuiprof.open_trace("~/rank0.json").info.rank == 0


@pytest.mark.slow
def test_a_users_script_type_checks(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import polars as pl\n"
        "import tuiprof\n"
        "from tuiprof.model import Report, Trace\n"
        "trace: Trace = tuiprof.open_trace('x.json', rank=1)\n"
        "frame: pl.DataFrame = trace.events\n"
        "answer = tuiprof.analyses.run('steps', trace)\n"
        "report: Report = answer if isinstance(answer, Report) else tuiprof.compare(trace, 'y.json')\n"
        "with tuiprof.phase('load'):\n"
        "    tuiprof.step(loss=0.5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", str(script)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout
