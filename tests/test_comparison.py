"""Comparing files, sessions and rungs of a ladder, as the command line and the screens do."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from ladder.made_ladders import ladder_meta
from session.session_logs import line, step, written

from tuiprof.cli import main
from tuiprof.comparison import sides
from tuiprof.comparison.sides import compare_sides, compare_targets, open_side, with_distinct_names
from tuiprof.errors import UsageProblem
from tuiprof.ladder.state import Figures, LadderMeta, Rung, Trial, create
from tuiprof.model import Report
from tuiprof.report import Style, render
from tuiprof.resources import shipped
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import Scenario

NAIVE = shipped("traces") / "metrics-naive.pt.trace.json.gz"
FIXED = shipped("traces") / "metrics-no-nan-check.pt.trace.json.gz"


@cache
def compared() -> Report:
    return compare_targets(NAIVE, FIXED)


def recorded(
    root: Path, variant: str, step_ns: int, *, spread: float = 0.01, trace: Path | None = None
) -> Session:
    """Make a session of sixty steps around a step time, the captured ones ten times as long."""
    rng = random.Random(step_ns)
    times = [round(step_ns * (1 + rng.uniform(-spread, spread))) for _ in range(60)]
    steps = [step(n, dur) for n, dur in enumerate(times)]
    steps += [step(60 + n, step_ns * 10, cap=True) for n in range(3)]
    session = written(
        root, *steps, name=f"toy-{variant}", scenario=Scenario("toy", variant, "fit"), host="box"
    )
    if trace is not None:
        shutil.copy(trace, session.path / "traces")
    return session


def test_what_is_within_the_noise_is_last_and_grey() -> None:
    report = compared()
    for key in ("metrics", "kernels", "operators", "launches"):
        table = report.table(key)
        noise = table.rows[table.faint].to_list()
        assert noise == sorted(noise)
    kernels = report.table("kernels").rows
    for row in kernels.iter_rows(named=True):
        same = row["before_count"] == row["after_count"]
        little = abs(row["change_ns"]) <= 0.01 * max(row["before_ns"], row["after_ns"])
        assert row["within_noise"] == (same and little)
    assert kernels["within_noise"].any()
    assert not kernels["within_noise"].all()
    style = Style(width=100, colour=True, rows=None)
    text = render(replace(report, tables=(report.table("kernels"),)), style=style)
    assert sum(line.startswith("\x1b[2m") for line in text.splitlines()) > kernels["within_noise"].sum()


def test_two_files_are_compared_by_their_traces() -> None:
    report = compared()
    assert report.verdict.level == "good"
    assert report.verdict.sentence.startswith("under the profiler, a step is 1.12× faster: 28.4 ms before")
    assert report.fact("uncaptured_change") == "1.064× faster, 27.1 ms → 25.5 ms"
    assert (report.fact("before"), report.fact("after")) == (NAIVE.name, FIXED.name)
    syncs = report.table("syncs").rows
    assert syncs.select("before_count", "after_count").rows() == [(2.0, 0.0)]
    assert syncs["name"][0].startswith("torchmetrics/aggregation.py:93")
    changes = report.table("launches").rows["change_ns"].abs().to_list()
    clear = len(changes) - int(report.table("launches").rows["within_noise"].sum())
    assert changes[:clear] == sorted(changes[:clear], reverse=True)
    ranked = [table for table in report.tables if "change_ns" in table.rows.columns]
    for table in ranked:
        column = next(column for column in table.columns if column.key == "change_ns")
        for change in table.rows["change_ns"]:
            assert column.text(change)[0] == ("+" if change > 0 else "−" if change < 0 else "0")


def test_a_session_compared_with_itself_is_said_to_be(tmp_path: Path) -> None:
    recorded(tmp_path, "slow", 1_000_000, trace=NAIVE)
    report = compare_targets("toy:slow", "toy:slow", root=tmp_path)
    assert report.fact("sure") == "no: both are the same session"


def test_two_runs_of_a_script_and_two_files_of_one_name_are_with_distinct_names(tmp_path: Path) -> None:
    both = [recorded(tmp_path, "slow", 10_000_000), recorded(tmp_path, "slow", 9_000_000)]
    report = compare_targets(both[0].path, both[1].path)
    assert both[0].id != both[1].id
    assert (report.fact("before"), report.fact("after")) == (both[0].id, both[1].id)
    assert [note for note in report.notes if "no trace" in note] == [
        f"{session.id}: no trace was captured" for session in both
    ]
    files = []
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        files.append(shutil.copy(NAIVE, tmp_path / folder / "rank0.pt.trace.json.gz"))
    names = [side.name for side in with_distinct_names(*map(open_side, files))]
    assert names == ["before/rank0.pt.trace.json.gz", "after/rank0.pt.trace.json.gz"]


def test_two_sessions_are_compared_by_their_unprofiled_steps(tmp_path: Path) -> None:
    recorded(tmp_path, "slow", 1_000_000, trace=NAIVE)
    recorded(tmp_path, "fast", 800_000, trace=FIXED)
    before, after = open_side("toy:slow", root=tmp_path), open_side("toy:fast", root=tmp_path)
    assert len(before.step_ns) == 60  # those under the profiler are left out
    assert before.trace is not None
    report = compare_sides(before, after)
    assert "60 and 60 steps" in report.verdict.sentence
    assert report.fact("sure") == "yes"
    share = report.fact("step_change_share")
    assert isinstance(share, float)
    assert share == pytest.approx(-0.2, abs=0.01)
    assert report.table("setup").rows.rows() == [("variant", "slow", "fast")]
    recorded_rows = report.table("recorded").rows
    assert recorded_rows["key"].to_list()[:2] == ["step_recorded_median_ns", "step_recorded_p95_ns"]


def test_where_the_host_runs_ahead_the_steps_of_the_device_are_compared(tmp_path: Path) -> None:
    for name, device_ns in (("before", 20_000_000), ("after", 10_000_000)):
        times = (line("dev", n=n, dur=device_ns + n % 3 * 1_000) for n in range(60))
        written(tmp_path, *(step(n, 1_000_000) for n in range(60)), *times, name=name)
    report = compare_targets("before", "after", root=tmp_path)
    assert report.verdict.sentence.startswith("a step is 2.00× faster: 20.0 ms before, 10.0 ms after")


def test_a_session_without_a_trace_says_so_and_is_compared_by_its_steps(tmp_path: Path) -> None:
    recorded(tmp_path, "slow", 1_000_000, trace=NAIVE)
    recorded(tmp_path, "fast", 990_000, spread=0.4)
    report = compare_targets("toy:slow", "toy:fast", root=tmp_path)
    assert str(report.fact("sure")).startswith("no")
    assert report.verdict.level == "info"
    assert "toy:fast: no trace was captured" in report.notes
    assert report.table("metrics").rows.is_empty()


def test_a_broken_trace_of_a_session_does_not_hide_its_steps(tmp_path: Path) -> None:
    session = recorded(tmp_path, "slow", 1_000_000)
    (session.path / "traces" / "rank0.1.pt.trace.json").write_text("no trace at all")
    side = open_side(session.path, root=tmp_path)
    assert side.trace is None
    assert side.why_no_trace.startswith("its trace cannot be read")
    assert len(side.step_ns) == 60


def ladder(root: Path, rounds: dict[str, list[int]]) -> LadderMeta:
    trials = [
        Trial("timing", number, name, "", "done", figures=Figures(float(ns), 20))
        for name, times in rounds.items()
        for number, ns in enumerate(times, 1)
    ]
    meta = ladder_meta(*(Rung(name, "naive") for name in rounds), rounds=5, host="box", trials=trials)
    create(root, meta)
    return meta


def test_rungs_of_a_ladder_are_compared_by_paired_trials(tmp_path: Path) -> None:
    # Each round is slower than the one before: the pairs tell what the medians do not.
    ladder(tmp_path, {"naive": [100, 150, 200, 300, 400], "fixed": [90, 136, 179, 271, 359]})
    report = compare_targets("toy:naive", "toy:fixed", root=tmp_path)
    assert "5 paired trials" in report.verdict.sentence
    assert "1.11× faster" in report.verdict.sentence
    assert report.fact("sure") == "yes"
    with pytest.raises(UsageProblem, match=r"no variant 'other'.*there are naive, fixed"):
        open_side("toy:other", root=tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    recorded(tmp_path, "slow", 1_000_000)
    with pytest.raises(UsageProblem, match="no session 'toy:none'"):
        open_side("toy:none", root=tmp_path)
    with pytest.raises(UsageProblem, match=r"no file or session .*none\.json"):
        open_side(tmp_path / "none.json", root=tmp_path)


def test_the_steps_of_both_are_drawn_in_one_chart(tmp_path: Path) -> None:
    recorded(tmp_path, "slow", 27_000_000, spread=0.1)
    steps = [step(n, 25_000_000 + n * 1000) for n in range(300)]
    written(tmp_path, *steps, name="toy-fast", scenario=Scenario("toy", "fast", "fit"), host="box")
    report = compare_targets("toy:slow", "toy:fast", root=tmp_path)
    rows = report.table("step_pair").rows
    assert len(rows) <= 240  # however long the runs are
    last = rows["before_ns"].is_not_null().sum()
    assert last == pytest.approx(len(rows) * 60 / 300, abs=1)
    assert rows["before_ns"].tail(len(rows) - last).null_count() == len(rows) - last
    assert rows["after_lowest_ns"].min() == 25_000_000
    assert rows["after_highest_ns"].max() == 25_000_000 + 299_000
    page = render(report, "html")
    assert page.count('<figure class="series pair">') == 1
    points = {}
    for side in "ab":
        (line,) = re.findall(rf'<path class="line {side}" d="M([^"H]*)"/>', page)
        points[side] = [tuple(map(float, point.split())) for point in line.split("L")]
    assert (len(points["a"]), len(points["b"])) == (last, len(rows))
    assert all(0 <= y <= 100 for line in points.values() for _, y in line)
    # The faster run stands below the slower one.
    assert sum(y for _, y in points["b"]) / len(rows) > sum(y for _, y in points["a"]) / last


@pytest.mark.parametrize("format_", ["text", "json", "csv", "md", "html"])
def test_the_verb_writes_every_format(
    format_: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(sides, "compare_targets", lambda *two, **_: (asked.append(two), compared())[1])
    assert main(["compare", str(NAIVE), str(FIXED), "--format", format_]) == 0
    assert asked == [(str(NAIVE), str(FIXED))]
    out = capsys.readouterr().out
    if format_ == "json":
        document = json.loads(out)["reports"][0]
        keys = {table["key"]: table for table in document["tables"]}
        assert set(keys) == {
            "metrics",
            "kernels",
            "operators",
            "launches",
            "syncs",
            "setup",
            "step_pair",
            "proof",
        }
        syncs = next(row for row in keys["metrics"]["rows"] if row["key"] == "syncs_per_step")
        assert (syncs["before_value"], syncs["after_value"]) == (2.0, 0.0)
    else:
        assert "aggregation.py:93" in out.replace("\\", "")
        assert "faster" in out or format_ == "csv"


def test_a_page_of_what_changed_and_all_of_it_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(NAIVE), str(FIXED)]) == 0
    page = capsys.readouterr().out
    assert len(page.splitlines()) < 50
    assert "Operators by host time" not in page
    assert "\nrules\n" not in page
    assert main(["compare", str(NAIVE), str(FIXED), "-v", "--rules"]) == 0
    full = capsys.readouterr().out
    assert "Operators by host time" in full
    assert "\nrules\n" in full
    assert len(full.splitlines()) > 1.5 * len(page.splitlines())


def test_what_a_step_was_freed_of_is_new_in_the_other_direction() -> None:
    there, back = compared(), compare_targets(FIXED, NAIVE)
    (fixed,), (new,) = (report.table("proof").rows.to_dicts() for report in (there, back))
    assert (fixed["change"], new["change"]) == ("fixed", "new")
    assert fixed["finding"] == new["finding"] == "nan-check"
    assert fixed["predicted_low_ns"] <= fixed["predicted_ns"] <= fixed["predicted_high_ns"]
    assert new["predicted_low_ns"] <= new["predicted_ns"] <= new["predicted_high_ns"] < 0
    assert "predicted −" in str(there.fact("proof"))
    assert "predicted +" in str(back.fact("new_findings"))
    assert [table.key for table in there.tables][:2] == ["metrics", "proof"], "nothing was measured beside it"


def test_host_time_that_a_wait_hid_is_neither_new_nor_fixed(tmp_path: Path) -> None:
    """Python that ran while nobody waited for it costs something once the wait before it has gone."""
    waits, alone = (kineto_steps(tmp_path / f"{waits}.json", waits=waits) for waits in (True, False))
    for before, after in ((waits, alone), (alone, waits)):
        report = compare_targets(before, after)
        assert not any("python-time" in str(fact.value) for fact in report.facts)


def kineto_steps(path: Path, *, waits: bool) -> Path:
    """A trace of five steps of a kernel of 1.3 ms, for which the host waits or not, or of 0.3 ms."""
    events: list[dict[str, object]] = []
    period, kernel_us = (1900, 1300) if waits else (1400, 300)
    for n in range(5):
        at = n * period
        made = [
            ("user_annotation", f"ProfilerStep#{n}", 1, at, period - 10, {}),
            ("cpu_op", "aten::mm", 1, at + 10, 50, {}),
            ("cuda_runtime", "cudaLaunchKernel", 1, at + 20, 20, {"correlation": n + 1}),
            ("kernel", "gemm", 7, at + 200, kernel_us, {"device": 0, "stream": 7, "correlation": n + 1}),
        ]
        if waits:
            made.append(("cuda_runtime", "cudaDeviceSynchronize", 1, at + 100, 1400, {"correlation": 90 + n}))
        events += [
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": int(tid == 1),
                "tid": tid,
                "ts": ts,
                "dur": dur,
                "args": args,
            }
            for cat, name, tid, ts, dur, args in made
        ]
    properties = [{"id": 0, "name": "NVIDIA H200"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}))
    return path
