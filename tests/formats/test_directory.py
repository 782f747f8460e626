"""Directories of traces: ranks, runs, TensorBoard's and xprof's layouts, sessions, a thousand files."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from tests import real_traces
from tests.session.session_logs import new_session
from tuiprof.cli import main
from tuiprof.errors import TraceError, UsageProblem
from tuiprof.formats import open_set, open_trace
from tuiprof.formats.directory import siblings
from tuiprof.model import Trace
from tuiprof.resources import shipped


def write(path: Path, rank: int | None = None, at: float | None = None) -> Path:
    """Write a small trace; at = when it was modified."""
    head = {} if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 9.0,
    }
    op = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{rank}", "pid": 1, "tid": 1, "ts": 2.0, "dur": 5.0}
    text = json.dumps({"schemaVersion": 1, **head, "traceEvents": [step, op]}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    if at is not None:
        os.utime(path, (at, at))
    return path


def unread(path: Path) -> Trace:
    raise AssertionError(f"{path} was read")


def shape(folder: Path, run: str | None = None) -> list[tuple[int, str, str]]:
    """Return rank, name and how it was told, of the set of a folder; no trace is read."""
    found = open_set(folder, run=run, opener=unread)
    return [(file.rank, file.path.name, file.rank_from) for file in found.files]


def test_ranks_by_name_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write(tmp_path / f"trace_rank{rank}.json")
    assert shape(tmp_path) == [(rank, f"trace_rank{rank}.json", "name") for rank in (0, 2, 10)]


def test_a_run_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path / "one" / "rank0.json")
    with pytest.raises(UsageProblem) as alone:
        open_set(tmp_path / "one", run="other", opener=unread)
    assert alone.value.remedy == "there is one run: omit --run"
    for name in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        write(tmp_path / "two" / "plugins" / "profile" / name / "host.trace.json")
    with pytest.raises(UsageProblem) as several:
        open_set(tmp_path / "two", run="other", opener=unread)
    assert "2026_01_01_00_00_00, 2026_01_02_00_00_00" in several.value.remedy


@pytest.mark.parametrize("unit", [1, 10**6])
def test_the_newest_capture_is_that_of_its_name_in_a_copy_too(tmp_path: Path, unit: int) -> None:
    early, late = (1_795_296_535_410 * unit, 1_795_296_595_410 * unit)
    write(tmp_path / f"rank0.{late}.pt.trace.json.gz", at=100)
    write(tmp_path / f"rank0.{early}.pt.trace.json.gz", at=200)
    assert shape(tmp_path) == [(0, f"rank0.{late}.pt.trace.json.gz", "name")]


def test_ranks_as_the_files_say_where_names_do_not(tmp_path: Path) -> None:
    write(tmp_path / "node-b_71.1795296535410.pt.trace.json.gz", rank=0)
    write(tmp_path / "node-a_93.1795296535412.pt.trace.json.gz", rank=1)
    assert shape(tmp_path) == [
        (0, "node-b_71.1795296535410.pt.trace.json.gz", "content"),
        (1, "node-a_93.1795296535412.pt.trace.json.gz", "content"),
    ]


def test_ranks_by_order_where_names_differ_in_numbers_alone(tmp_path: Path) -> None:
    for number in (9, 10, 8):
        write(tmp_path / f"trace.{number}.json")
    assert shape(tmp_path) == [(i, f"trace.{number}.json", "order") for i, number in enumerate((8, 9, 10))]


def test_files_that_nothing_joins_are_runs_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "naive.pt.trace.json", at=2_000)
    write(tmp_path / "fixed.pt.trace.json", at=1_000)
    found = open_set(tmp_path)
    assert (found.run, found.runs) == ("naive", ("fixed", "naive"))  # the newest
    assert shape(tmp_path, run="fix") == [(0, "fixed.pt.trace.json", "order")]
    with pytest.raises(UsageProblem, match=r"no run 'other'.*fixed, naive"):
        open_set(tmp_path, run="other")


def test_later_captures_of_the_same_ranks_are_runs(tmp_path: Path) -> None:
    for at, stamp in ((1_000, 1795296530000), (2_000, 1795296590000)):
        for rank in range(2):
            write(tmp_path / "traces" / f"rank{rank}.{stamp + rank}.pt.trace.json.gz", rank, at)
    found = open_set(tmp_path)
    assert found.runs == ("capture#1", "capture#2")
    assert shape(tmp_path) == [(r, f"rank{r}.{1795296590000 + r}.pt.trace.json.gz", "name") for r in range(2)]


def test_tensorboards_log_directory(tmp_path: Path) -> None:
    for at, run in ((1_000, "resnet/bs32"), (2_000, "resnet/bs64")):
        write(tmp_path / run / "host_1.1795296530000.pt.trace.json", at=at)
    (tmp_path / "resnet" / "bs64" / "events.out.tfevents.1").write_bytes(b"\0" * 100)
    (tmp_path / "resnet" / "hparams.json").write_text("{}")
    found = open_set(tmp_path)
    assert found.runs == ("resnet/bs32", "resnet/bs64")
    assert shape(tmp_path, "resnet/bs32") == [(0, "host_1.1795296530000.pt.trace.json", "order")]


def test_xprofs_layout_takes_the_planes_and_not_their_copies(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_11_21_09_30_00"
    run.mkdir(parents=True)
    for host in ("vm-b", "vm-a"):
        shutil.copy(real_traces.path("selfgen-jax0102-cpu.xplane.pb"), run / f"{host}.xplane.pb")
        write(run / f"{host}.trace.json.gz")
    write(run / "perfetto_trace.json.gz")
    found = open_set(tmp_path)
    assert found.run == "2026_11_21_09_30_00"
    assert shape(tmp_path) == [(0, "vm-a.xplane.pb", "order"), (1, "vm-b.xplane.pb", "order")]
    assert found.open(1).info.format == "xplane"


def test_planes_among_other_traces_are_runs_of_their_own(tmp_path: Path) -> None:
    plane = real_traces.path("selfgen-jax0102-cpu.xplane.pb").read_bytes()
    for name in ("steps", "waits"):
        (tmp_path / f"{name}.xplane.pb.gz").write_bytes(gzip.compress(plane))
        write(tmp_path / f"{name}.trace.json.gz")
    write(tmp_path / "resnet.pt.trace.json.gz")
    assert sorted(open_set(tmp_path).runs) == ["resnet", "steps", "waits"]
    assert shape(tmp_path, "waits") == [(0, "waits.xplane.pb.gz", "order")]
    assert open_set(tmp_path, run="waits").open(0).info.format == "xplane"


def test_nothing_is_lost_where_names_are_equal_and_a_compressed_copy_is_no_host(tmp_path: Path) -> None:
    plane = real_traces.path("selfgen-jax0102-cpu.xplane.pb").read_bytes()
    for name in ("a", "b"):
        (tmp_path / f"{name}.xplane.pb").write_bytes(plane)
        (tmp_path / f"{name}.xplane.pb.gz").write_bytes(gzip.compress(plane))
    write(tmp_path / "a.pt.trace.json")
    assert sorted(open_set(tmp_path).runs) == ["a", "a.pt.trace.json", "b"]
    (tmp_path / "a.xplane.pb").unlink()
    (tmp_path / "a.xplane.pb.gz").unlink()
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json")
    runs = open_set(tmp_path).runs
    assert {len(open_set(tmp_path, run=run)) for run in runs} == {1, 2}, runs


def test_a_session_and_a_single_file(tmp_path: Path) -> None:
    session = open_set(shipped("traces") / "session-metrics-naive")
    assert [file.rank for file in session.files] == [0]
    assert session.line() == ""
    alone = open_set(write(tmp_path / "a.json"))
    assert len(alone) == 1
    with pytest.raises(UsageProblem, match="has no runs"):
        open_set(tmp_path / "a.json", run="x")


def test_a_thousand_files_cost_little(tmp_path: Path) -> None:
    for rank in range(1000):
        (tmp_path / f"rank{rank:04}.pt.trace.json").write_bytes(b"{")
    found = open_set(tmp_path, opener=unread)
    assert len(found) == 1000
    assert found.line() == "rank 0 of 1000 (from its file name); others with --rank: 1, 2, 3, 4, 5, 6 … 999"


def test_a_thousand_other_files_are_not_all_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.formats import directory

    looked: list[Path] = []
    sniff = directory.sniff
    monkeypatch.setattr(directory, "sniff", lambda path: (looked.append(path), sniff(path))[1])
    for number in range(1000):
        (tmp_path / f"annotation{number}.json").write_text('{"boxes": []}')
    with pytest.raises(TraceError, match=r"contains no trace \(800 of 1000 files not named like a trace"):
        open_set(tmp_path)
    assert len(looked) == 200


def test_folders_that_lead_in_a_circle_and_that_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path / "run" / "rank0.json")
    (tmp_path / "run" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert shape(tmp_path) == [(0, "rank0.json", "name")]
    with pytest.raises(TraceError, match="contains no trace"):
        open_set(write(tmp_path / "empty" / "note.txt").parent)


def test_a_trace_knows_the_ranks_beside_it(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"job-rank{rank}.json", rank)
    write(tmp_path / "other-rank0.json", 0)
    beside = open_trace(tmp_path / "job-rank1.json").siblings
    assert beside is not None
    assert beside.ranks == (0, 1, 2)
    assert beside.open(2).info.rank == 2
    assert siblings(tmp_path / "other-rank0.json", open_trace) is None


def test_the_verbs_choose_rank_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("one", "two"):
        for rank in range(2):
            write(tmp_path / run / f"rank{rank}.json", rank, at=1_000 if run == "one" else 2_000)
    assert main(["report", str(tmp_path), "kernels", "--rank", "1", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert "op1" in said.out
    assert "op0" not in said.out
    assert said.err == (
        "tuiprof: run two; others with --run: one · rank 1 of 2 (from its file name); others with --rank: 0\n"
    )
    assert main(["check", str(tmp_path), "--run", "one", "--max", "steps=1"]) == 0
    assert "run one; others with --run: two" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--rank", "7"]) == 2
    assert "there are ranks 0, 1" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["html", "json", "text"])
def test_the_report_of_a_session_names_the_shown_rank_once(
    format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = new_session(tmp_path)
    for rank in range(2):
        write(session.path / "traces" / f"rank{rank}.1.pt.trace.json", rank)
    assert main(["report", str(session.path), "--format", format_]) == 0
    said = capsys.readouterr()
    assert said.err.count("rank 0 of 2") == 1
    assert "trust" in said.out


def test_a_limit_on_a_figure_of_any_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(real_traces.path("astrasim-megatron-tp8-rank0.json.gz"))
    assert main(["check", trace, "--max", "straggler_share=0.5", "--max", "syncs_per_step=1000"]) == 0
    assert main(["check", trace, "--max", "straggler_share=0.1"]) == 1
    assert "straggler_share is 40.3 %, allowed ≤ 10.0 %" in capsys.readouterr().out


def test_a_pipe_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for verb in (["report"], ["open"], ["check", "--max", "syncs_per_step=0"]):
        assert main([*verb, str(pipe)]) == 3
        assert "is not a regular file" in capsys.readouterr().err
    write(tmp_path / "rank0.json")
    assert shape(tmp_path) == [(0, "rank0.json", "name")]  # and it is passed over in a directory
