"""The shipped samples are the tour: each opens, and says what its README says."""

from __future__ import annotations

import pytest
from analyses.made import report

from tuiprof.advice.answer import answer
from tuiprof.analyses import run
from tuiprof.cli.reading import run_analyses
from tuiprof.formats import open_trace
from tuiprof.model import Report
from tuiprof.resources import shipped
from tuiprof.session.live.summary import summarise
from tuiprof.session.store.folders import Session

SAMPLES = shipped("traces")


def syncs(name: str) -> Report:
    return report("sync_events", open_trace(SAMPLES / f"{name}.pt.trace.json.gz"))


def test_the_readme_names_every_sample() -> None:
    text = (SAMPLES / "README.md").read_text()
    for path in SAMPLES.iterdir():
        assert path.name == "README.md" or path.name in text or path.name.endswith(".syncs.jsonl")


def test_the_naive_metrics_wait_twice_a_step_on_one_line_of_torchmetrics() -> None:
    report = syncs("metrics-naive")
    assert report.fact("syncs_per_step") == 2
    assert report.table("groups").rows["where"].to_list() == ["torchmetrics/aggregation.py:93"]
    assert "torchmetrics/aggregation.py:93" in report.verdict.sentence


def test_without_the_nan_check_nothing_waits() -> None:
    assert syncs("metrics-no-nan-check").fact("syncs_per_step") == 0


@pytest.mark.parametrize("name", ["attention-native", "attention-sdpa-flash"])
def test_the_attention_samples_have_steps_and_kernels(name: str) -> None:
    trace = open_trace(SAMPLES / f"{name}.pt.trace.json.gz")
    assert len(trace.steps) == 2
    assert isinstance(run("kernels", trace), Report)


def test_the_session_replays_to_its_end() -> None:
    session = Session(SAMPLES / "session-metrics-naive")
    report = summarise(session)
    assert report.fact("exit_code") == 0
    assert report.fact("steps") == 61
    assert [path.name for path in session.traces()] == ["rank0.1795252887389.pt.trace.json.gz"]


def test_the_full_report_has_every_analysis_that_the_page_has_a_line_of() -> None:
    trace = open_trace(SAMPLES / "metrics-naive.pt.trace.json.gz")
    lines = {line.analysis for line in answer(trace, "").lines}
    assert "data_loading" in lines
    assert lines <= {found.analysis for found in run_analyses(trace, (), None)}
