"""What is planted in a job is found: the right ranks, of the right size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from analyses.made import Made
from made_job import STRAGGLER, STRAGGLER_NS, SYNCED, SYNCED_NS, THROTTLED_SHARE, Job, Plan, Sample, files_in

from tuiprof.cli import main
from tuiprof.fleet.fleet import Fleet
from tuiprof.fleet.gather import FOLDER_VARIABLE, run_batch
from tuiprof.fleet.meeting import always_late, held, wins_as_median
from tuiprof.fleet.summary import MAX_BYTES, table
from tuiprof.fleet.views import NAMES, reports
from tuiprof.model import Report, Table
from tuiprof.report import formats, render_all


@pytest.fixture(scope="module")
def summaries(of_all_workers: Path) -> Path:
    return of_all_workers / "summaries"


@pytest.fixture(scope="module")
def fleet(folder: Path, summaries: Path) -> Fleet:
    with pytest.MonkeyPatch.context() as here:
        here.setenv(FOLDER_VARIABLE, str(summaries))
        return Fleet(run_batch(tuple(files_in(folder))))


@pytest.fixture(autouse=True)
def one_cache(summaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests here read the same files."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(summaries))


@pytest.fixture
def said(fleet: Fleet) -> dict[str, Report]:
    return {report.analysis: report for report in reports(fleet) if isinstance(report, Report)}


def rows(table: Table, key: str) -> dict[object, dict[str, object]]:
    return {row[key]: row for row in table.rows.iter_rows(named=True)}


def test_a_summary_is_bounded(fleet: Fleet) -> None:
    assert fleet.summary.nbytes <= 12 * MAX_BYTES


def test_the_straggler_is_found_with_its_size(said: dict[str, Report]) -> None:
    report = said["stragglers"]
    found = rows(report.table("ranks"), "rank")
    late = found[STRAGGLER]["late_ns"]
    assert late == pytest.approx(STRAGGLER_NS, rel=0.05)
    assert report.fact("first_straggler") == STRAGGLER
    assert f"rank {STRAGGLER} arrives" in report.verdict.sentence
    assert found[STRAGGLER]["because"] == "before collective 2 of 2"
    assert report.table("collectives").rows.row(0, named=True)["rank"] == STRAGGLER


def test_the_rank_with_one_more_sync_is_found(said: dict[str, Report]) -> None:
    found = rows(said["differences"].table("ranks"), "rank")
    assert list(found) == [SYNCED]
    assert found[SYNCED]["own"] - found[SYNCED]["others"] == 1  # type: ignore[operator]
    assert found[SYNCED]["late_ns"] == pytest.approx(SYNCED_NS, rel=0.05)
    assert found[SYNCED]["what"] == "1 more sync a step"


def test_the_throttled_host_is_found(said: dict[str, Report]) -> None:
    slow = said["slow_kernels"].table("ranks").rows
    assert sorted(slow["rank"].to_list()) == [4, 5, 6, 7]
    assert slow["factor"].to_list() == pytest.approx([1 + THROTTLED_SHARE] * 4, rel=0.02)
    assert set(slow["cause"]) == {"all kernels: clock or throttling"}
    assert said["hosts"].fact("late_hosts") == 1
    assert "node01" in said["hosts"].verdict.sentence
    assert "node01 (4 ranks)" in said["stragglers"].verdict.sentence


def test_slack_is_what_was_planted(said: dict[str, Report], made: Job) -> None:
    found = said["stragglers"].table("ranks").rows.sort("rank")
    planted = made.waits_per_step()
    # On a throttled host a kernel that runs beside a collective makes that longer, too.
    others = [rank for rank in range(12) if rank not in (4, 5, 6, 7)]
    slack = found["slack_ns"].to_numpy()
    assert (slack - slack.min())[others] == pytest.approx((planted - planted.min())[others], abs=20_000)


def test_clocks_of_hosts_are_estimated(said: dict[str, Report], made: Job) -> None:
    found = said["stragglers"].table("ranks").rows.sort("rank")["clock_ns"].to_numpy()
    planted = made.clock[made.host]
    assert found - found[0] == pytest.approx(planted - planted[0], abs=100_000)


def test_no_step_is_slow_and_none_is_a_straggler_in_an_even_job(sample: Sample, tmp_path: Path) -> None:
    Job(sample, Plan(4, 2, 5_000, clocks_ns=0)).write(tmp_path)
    fleet = Fleet(run_batch(tuple(files_in(tmp_path))))
    said = {report.analysis: report for report in reports(fleet) if isinstance(report, Report)}
    assert said["stragglers"].verdict.level == "good"
    assert said["stragglers"].fact("stragglers") == 0
    assert said["differences"].verdict.level == "good"
    assert said["slow_kernels"].verdict.level == "good"


@pytest.mark.parametrize("late", [(1, 1, 1), (0, 1, 1)])
def test_ranks_that_wait_irregularly_are_said_to_wait_for_one_or_for_each_other(
    late: tuple[int, ...], sample: Sample, tmp_path: Path
) -> None:
    Job(sample, Plan(2, 2, 5_000, clocks_ns=0)).write(tmp_path)
    summary = Fleet(run_batch(tuple(files_in(tmp_path)))).summary
    steps = summary.steps["step"].unique().sort().to_list()[: len(late)]
    files = dict(summary.files.select("rank", "file").iter_rows())
    wait = pl.lit(0)
    for number, (step, rank) in enumerate(zip(steps, late, strict=True)):
        waits = (pl.col("step") == step) & (pl.col("file") == files[1 - rank])
        wait = pl.when(waits).then((4_000_000, 9_000_000, 20_000_000)[number]).otherwise(wait)
    few = pl.col("step").is_in(steps)
    changed = replace(
        summary,
        steps=summary.steps.filter(few),
        collectives=summary.collectives.filter(few).with_columns(pl.col("dur") + wait),
    )
    report = next(one for one in reports(Fleet(changed), ["stragglers"]) if isinstance(one, Report))
    assert report.fact("stragglers") == 0
    assert ("mostly for rank 1" in report.verdict.sentence) == (sum(late) == 3)
    assert ("not for the same one each time" in report.verdict.sentence) == (sum(late) < 3)


@pytest.mark.parametrize("rank", [None, 9])
def test_a_slow_step_is_the_steps_or_a_ranks(fleet: Fleet, rank: int | None) -> None:
    """A step is long on all ranks alike, or because of one, which all others wait for."""
    summary = fleet.summary
    slow = summary.steps["step"].unique().sort()[1]
    file = summary.files.filter(pl.col("rank") == (rank or 0))["file"].item()
    waits = (pl.col("step") == slow) & (pl.col("place") == 0) & (pl.col("file") != file) & (rank is not None)
    changed = replace(
        summary,
        steps=summary.steps.with_columns(
            pl.col("period_ns") + pl.when(pl.col("step") == slow).then(6_000_000).otherwise(0)
        ),
        collectives=summary.collectives.with_columns(
            pl.col("dur") + pl.when(waits).then(6_000_000).otherwise(0)
        ),
    )
    report = next(one for one in reports(Fleet(changed), ["slow_steps"]) if isinstance(one, Report))
    assert report.table("steps").rows.select("step", "because").rows() == [(slow, rank)]
    assert ("on all ranks" in report.verdict.sentence) == (rank is None)


def test_a_rank_that_runs_other_collectives_is_left_out_and_said(fleet: Fleet) -> None:
    odd = pl.when(pl.col("file") == 3).then(7).otherwise(pl.col("sequence")).cast(pl.UInt64).alias("sequence")
    changed = replace(fleet.summary, collectives=fleet.summary.collectives.with_columns(odd))
    report = next(one for one in reports(Fleet(changed), ["stragglers"]) if isinstance(one, Report))
    assert 3 not in report.table("ranks").rows["rank"].to_list()
    assert any("1 rank share no collective" in note for note in report.notes)


def test_what_a_change_wins_is_the_jobs(fleet: Fleet, said: dict[str, Report]) -> None:
    """A change on every rank wins about what it wins on each; on a rank that waits for others it wins nothing."""
    assert fleet.job.fits
    everywhere = np.full(12, 100_000.0)
    assert fleet.job.wins_ns(everywhere) == pytest.approx(100_000, rel=0.35)
    early = np.where(np.arange(12) == 0, 100_000.0, 0.0)
    assert fleet.job.wins_ns(early) == pytest.approx(0, abs=5_000)
    table = said["job"].table("findings").rows
    assert (table["wins_ns"] <= table["rank_ns"] + 1).all()
    assert (table["ranks"] == 12).any()


def test_a_general_change_comes_after_the_specific_one_that_ranks_have_before_it(fleet: Fleet) -> None:
    """Alone, the order would be that of the savings; so it is if the ranks have them in that order."""
    summary = fleet.summary
    files = summary.files["file"].to_list()

    def order(*found: tuple[str, float]) -> list[str]:
        rows = [{"file": file, "rule": rule, "wins_ns": ns} for file in files for rule, ns in found]
        findings = table("findings", rows).with_columns(pl.col("what", "where", "instead").fill_null(""))
        changed = Fleet(replace(summary, findings=findings))
        [report] = (one for one in reports(changed, ["job"]) if isinstance(one, Report))
        shown = report.table("findings").rows
        assert (
            shown.filter(rule="launch-bound")["wins_ns"].item()
            > shown.filter(rule="kernel-loop")["wins_ns"].item()
        )
        return list(shown["rule"])

    few, some, many = ("small-copy", 50_000.0), ("kernel-loop", 200_000.0), ("launch-bound", 300_000.0)
    assert order(some, many, few) == ["kernel-loop", "launch-bound", "small-copy"]
    assert order(many, some, few) == ["launch-bound", "kernel-loop", "small-copy"]


def test_who_came_last_pays_for_all() -> None:
    wait = np.array([[0.0, 30.0], [10.0, 0.0], [20.0, 20.0]])
    found = held(wait, 1)
    assert found.last.tolist() == [1, 1, 0]
    assert found.waited.tolist() == [15.0, 25.0, 0.0]
    assert found.lead.tolist() == [10.0, 20.0, 0.0]
    assert held(wait[:2], 1).late.tolist() == [-20.0, 20.0]  # two ranks: one against the other
    assert wins_as_median(wait, np.array([True, False, False]), 1) == 10.0
    assert wins_as_median(wait, np.array([False, False, True]), 1) == 0.0


@pytest.mark.parametrize("name", sorted(formats()))
def test_every_format_prints_every_view(fleet: Fleet, name: str) -> None:
    text = render_all(reports(fleet, NAMES), name)
    assert "node01" in text


def test_the_heat_map_has_a_line_a_rank_and_a_column_a_step(
    folder: Path, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder), "heat", "-f", "json"]) == 0
    table = json.loads(capsys.readouterr().out)["reports"][0]["tables"][0]
    assert len(table["rows"]) == 12
    assert sum(column["key"].startswith("step_") for column in table["columns"]) == sample.step_count
    assert main(["report", str(folder), "heat", "-f", "html"]) == 0
    assert 'class="heat"' in capsys.readouterr().out


def test_a_folder_of_ranks_is_read_as_a_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    assert "node01 (4 ranks) arrives" in capsys.readouterr().out
    assert main(["report", str(folder), "--rank", "2"]) == 0
    assert "(4 ranks) arrives" not in capsys.readouterr().out
    assert main(["report", str(folder), "heat", "--rank", "2"]) == 2
    assert "--rank is only for the report of a single trace" in capsys.readouterr().err


def test_several_targets_are_one_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [str(path) for path in sorted(folder.iterdir())[:2]]
    assert main(["report", *two, "stragglers", "-f", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)["reports"][0]["facts"]
    assert facts["ranks"] == 2


def test_a_long_trace_keeps_to_the_bound() -> None:
    """Of 3 000 steps with 4 collectives each, every 4th step and its collectives of every 16th are kept."""
    from tuiprof.fleet.summary import summarise

    made = Made()
    for number, at in made.steps(100, 3_000):
        for n in range(4):
            name = f"ncclDevKernel_AllReduce_Sum_f32_{n}"
            made.launch(
                name, (at + 2 * n, at + 2 * n + 1), (at + 20 * n + 5, at + 20 * n + 15), number * 10 + n + 1
            )
    summary = summarise(made.trace(), 0, 0, 1)
    assert summary.nbytes <= MAX_BYTES
    assert summary.steps["step"].to_list() == list(range(0, 3_000, 4))
    kept = summary.collectives
    assert set(kept["step"]) == set(range(0, 3_000, 16))
    assert set(kept["place"]) == {0, 1, 2, 3}


def test_a_rank_that_is_late_in_every_step_is_a_straggler_though_its_steps_differ() -> None:
    late = np.array([60.0, 42.0, 80.0, 77.0, 55.0, 68.0])
    assert always_late(np.stack([late, -late]), 0.4).tolist() == [True, False]


def test_a_rank_that_is_held_up_once_is_none() -> None:
    late = np.array([0.2, -0.1, 0.3, 500.0, -0.2, 0.1])
    assert always_late(np.stack([late, -late]), 0.4).tolist() == [False, False]


def test_ranks_that_take_turns_are_none() -> None:
    late = np.array([30.0, -25.0, 28.0, -31.0, 27.0, -26.0])
    assert always_late(np.stack([late, -late]), 0.4).tolist() == [False, False]


def test_no_rank_is_told_to_get_faster_than_the_others_are_by_themselves(fleet: Fleet) -> None:
    """Ranks whose host sets the pace wait on the device all the same; without the late ones they are no faster."""
    files = fleet.summary.files.with_columns(pl.lit(1.0).alias("own_share"))
    busy = Fleet(replace(fleet.summary, files=files))
    assert busy.late.tolist() == fleet.late.tolist()
    assert busy.wins_ns(busy.late) < 0.01 * fleet.wins_ns(fleet.late)
    assert (busy.alone_ns <= fleet.alone_ns).all()
    report = next(one for one in reports(busy, ["stragglers"]) if isinstance(one, Report))
    assert "by themselves" in report.verdict.sentence
    assert report.verdict.level == "info"
