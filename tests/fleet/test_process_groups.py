"""Ranks are compared within their process groups: two ranks of tensor parallelism times four of data parallelism."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from analyses.made import report
from isal import igzip
from made_job import Job, Plan, Sample, files_in

from tuiprof.analyses import run
from tuiprof.fleet import summary
from tuiprof.fleet.fleet import Fleet
from tuiprof.fleet.gather import FOLDER_VARIABLE, run_batch
from tuiprof.fleet.views import reports
from tuiprof.formats.open import open_trace
from tuiprof.model import Report
from tuiprof.resources import shipped

LATE_NS, OTHER_NS = 600_000, 480_000
#: Position in a step of the collective of tensor parallelism, and of that of data parallelism.
TENSOR, DATA = 0, 1


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Steps between whose collectives is room for ranks that are late by so much."""
    return Sample.read(shipped("traces") / "planted-syncs.pt.trace.json.gz")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "off")
    # Two thirds of the reading of a rank are its own findings, which say nothing of groups.
    monkeypatch.setattr(summary, "_findings", lambda trace: summary.table("findings"))


def job_of(sample: Sample, folder: Path, late: dict[int, tuple[int, int]]) -> Fleet:
    Job(sample, Plan(8, 2, 5_000, tensor=2, late=late)).write(folder)
    found = run_batch(tuple(files_in(folder)))
    # Whether the hosts could keep up is another question, and the sample's could not.
    files = found.files.with_columns(pl.lit(None, pl.Float64).alias("own_share"))
    return Fleet(replace(found, files=files))


def stragglers(fleet: Fleet) -> Report:
    (found,) = reports(fleet, ["stragglers"])
    assert isinstance(found, Report)
    return found


def test_a_rank_late_to_data_parallelism_makes_that_group_wait(sample: Sample, tmp_path: Path) -> None:
    """Ranks 1, 5 and 7 wait for rank 3, and so come late to their tensor-parallel groups: they are no stragglers."""
    fleet = job_of(sample, tmp_path, {3: (DATA, LATE_NS)})
    members = {fleet.label(one): one.files.tolist() for one in fleet.groups}
    assert len(members) == 6
    assert members["data-parallel group (ranks 1, 3, 5, 7)"] == [1, 3, 5, 7]
    assert members["tensor-parallel group (ranks 2, 3)"] == [2, 3]
    assert np.flatnonzero(fleet.late).tolist() == [3]
    report = stragglers(fleet)
    assert report.verdict.sentence.startswith(
        "rank 3 makes its data-parallel group (ranks 1, 3, 5, 7) wait 60"
    )
    late = report.table("ranks").rows.sort("rank")["late_ns"].to_numpy()
    assert late[3] == pytest.approx(LATE_NS, rel=0.05)
    assert np.abs(np.delete(late, 3)).max() < 0.05 * LATE_NS
    assert fleet.wins_ns(fleet.late) == pytest.approx(LATE_NS, rel=0.05)
    assert fleet.alone_ns[3] == pytest.approx(LATE_NS, rel=0.05)
    # The other data-parallel group meets without waiting.
    waits = report.table("collectives").rows.filter(pl.col("group").str.starts_with("data"))
    by_group = dict(waits.select("group", "wait_ns").iter_rows())
    assert by_group["data-parallel (1, 3, 5, 7)"] == pytest.approx(0.75 * LATE_NS, rel=0.05)
    assert by_group["data-parallel (0, 2, 4, 6)"] < 0.05 * LATE_NS


def test_a_rank_late_to_tensor_parallelism_makes_that_group_wait(sample: Sample, tmp_path: Path) -> None:
    fleet = job_of(sample, tmp_path, {3: (TENSOR, LATE_NS)})
    assert np.flatnonzero(fleet.late).tolist() == [3]
    said = stragglers(fleet).verdict.sentence
    assert said.startswith("rank 3 makes its tensor-parallel group (ranks 2, 3) wait 59")
    trace = open_trace(tmp_path / "rank00000.pt.trace.json.gz")
    alone = report("ranks", trace)
    assert alone.fact("straggler") == 3
    assert "rank 3 holds up its tensor-parallel group (ranks 2, 3)" in alone.verdict.sentence


def test_stragglers_of_two_groups_are_told_apart_and_one_alone_wins_little(
    sample: Sample, tmp_path: Path
) -> None:
    fleet = job_of(sample, tmp_path, {3: (DATA, LATE_NS), 6: (DATA, OTHER_NS)})
    late = dict(zip(fleet.number.tolist(), fleet.held.late.tolist(), strict=True))
    assert np.flatnonzero(fleet.late).tolist() == [3, 6]
    assert (late[3], late[6]) == pytest.approx((LATE_NS, OTHER_NS), rel=0.05)
    report = stragglers(fleet)
    assert "rank 6 makes its data-parallel group (ranks 0, 2, 4, 6) wait 4" in report.verdict.sentence
    # Tensor parallelism couples the two: without rank 3 the job waits for rank 6.
    assert fleet.wins_ns(fleet.late) == pytest.approx(LATE_NS, rel=0.05)
    assert fleet.wins_ns(fleet.number == 3) == pytest.approx(LATE_NS - OTHER_NS, rel=0.2)
    assert fleet.wins_ns(fleet.number == 6) == pytest.approx(0, abs=0.02 * LATE_NS)
    found = run("ranks", open_trace(tmp_path / "rank00000.pt.trace.json.gz"))
    assert isinstance(found, Report)
    assert found.fact("straggler") == 3
    assert found.fact("straggler_group") == "data-parallel group (ranks 1, 3, 5, 7)"
    assert found.fact("straggler_share") == pytest.approx(LATE_NS / (fleet.step_ns or 0), rel=0.05)


def test_an_even_job_of_groups_has_no_straggler_and_clocks_pass_from_group_to_group(
    sample: Sample, tmp_path: Path
) -> None:
    fleet = job_of(sample, tmp_path, {})
    assert not fleet.late.any()
    assert "keep pace" in stragglers(fleet).verdict.sentence
    assert fleet.job.fits
    planted = Job(sample, Plan(8, 2, 5_000, tensor=2)).clock[np.arange(8) // 2]
    found = fleet.clocks.offset
    assert found - found[0] == pytest.approx(planted - planted[0], abs=100_000)


def test_traces_that_do_not_say_the_group_are_one_group(sample: Sample, tmp_path: Path) -> None:
    made = tmp_path / "made"
    Job(sample, Plan(8, 2, 5_000, tensor=2, late={3: (DATA, LATE_NS)}, clocks_ns=0)).write(made)
    for path in made.iterdir():
        path.write_bytes(
            igzip.compress(igzip.decompress(path.read_bytes()).replace(b'"Process Group', b'"Older'))
        )
    fleet = Fleet(run_batch(tuple(files_in(made))))
    assert [len(one.files) for one in fleet.groups] == [8]
    assert not fleet.grouped
    assert stragglers(fleet).fact("groups") is None
