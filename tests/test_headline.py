"""The one line that stands for a trace: what asks for action comes first."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from analyses.made import Made, report
from tui.synthetic import recorded

from tests import real_traces
from tuiprof.comparison.headline import ask, headline
from tuiprof.formats import open_trace
from tuiprof.model.units import format_ns, format_rough_share
from tuiprof.resources import shipped

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(("wait_us", "analysis"), [(60, "advice"), (1, "kernels")])
def test_of_a_cpu_trace_the_wait_for_data_comes_before_the_largest_operator(
    wait_us: int, analysis: str
) -> None:
    made = Made()
    for _, at in made.steps(100):
        made.op(LOADER, at, at + wait_us).op("aten::mm", at + 70, at + 95)
    found = headline(made.trace())
    assert found.analysis == analysis
    assert ("batches are loaded in the training process" in found.line) == (analysis == "advice")


def test_without_a_finding_the_line_says_what_may_be_tried() -> None:
    made, free = Made(), 20.0
    for number, at in made.steps(30):
        for index, (operator, kernel) in enumerate(
            (("mm", "sm90_xmma_gemm_bf16"), ("layer_norm", "layer_norm_kernel"))
        ):
            key, begin = 2 * number + index + 1, at + 5 + 10 * index
            made.op(f"aten::{operator}", begin, begin + 8, sequence=key)
            made.launch(kernel, (begin + 2, begin + 5), (free, free + 200), key)
            free += 200
    assert "torch.compile(model)" in headline(made.trace()).line


@pytest.mark.parametrize(
    "name", ["metrics-naive.pt.trace.json.gz", "planted-syncs.pt.trace.json.gz", "jax-waits.xplane.pb.gz"]
)
def test_the_line_is_the_first_advice(name: str) -> None:
    trace = open_trace(shipped("traces") / name)
    advice = report("advice", trace)
    first = advice.table("findings").rows.row(0, named=True)
    found = headline(trace)
    assert found.analysis == "advice"
    assert first["what"] in found.line
    step_ns = advice.fact("step_ns")
    assert isinstance(step_ns, float)
    assert f" of {format_ns(step_ns)} ({format_rough_share(first['share'])})" in found.line


def test_of_several_screens_one_has_a_trace_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    python = tmp_path / "python"  # tells of each process that is started
    python.write_text(f'#!/bin/sh\necho one >> "{started}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache" / "traces"))
    trace = real_traces.SMALL
    with ThreadPoolExecutor(3) as screens:
        first, *others = screens.map(ask, [trace] * 3)
    assert first.line
    assert others == [first, first]
    assert ask(trace) == first
    assert started.read_text().split() == ["one"]
    assert not list(tmp_path.rglob("*.lock"))


def test_after_the_end_of_a_run_its_trace_is_worked_out_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last steps of a run say more of a capture than those before it."""
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache" / "traces"))
    made = recorded(tmp_path, 1.0)
    trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
    trace.write_bytes(real_traces.SMALL.read_bytes())

    def kept() -> int:
        assert ask(trace).line
        return len([*(tmp_path / "cache").rglob("*.json")])

    assert (kept(), kept()) == (1, 1)
    made.end(0)
    assert (kept(), kept()) == (2, 2)


def test_a_trace_is_read_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "file" / "traces"))
    assert ask(tmp_path / "gone.pt.trace.json").problem
    (tmp_path / "empty.pt.trace.json").touch()
    assert ask(tmp_path / "empty.pt.trace.json").problem


def test_who_leaves_does_not_wait_for_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = tmp_path / "pid"
    python = tmp_path / "python"  # reads for ever
    python.write_text(f'#!/bin/sh\necho $$ > "{number}"\nexec sleep 600\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache" / "traces"))
    trace = tmp_path / "large.pt.trace.json"
    trace.touch()

    def begun() -> bool:
        return number.exists() and number.read_text().strip() != ""

    assert ask(trace, begun).problem
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    assert not list((tmp_path / "cache").rglob("*.json"))  # the next who asks has it read
