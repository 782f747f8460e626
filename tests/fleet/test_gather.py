"""Reading many files: on processes and on Dask, with files and workers that fail, and again where it stopped."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import polars as pl
import pytest
from made_job import files_in
from polars.testing import assert_frame_equal

from tuiprof.cli import main
from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.fleet.gather import (
    FOLDER_VARIABLE,
    LIMIT_VARIABLE,
    Batch,
    File,
    Processes,
    Progress,
    batches,
    entry_of,
    gather,
    run_batch,
    tidy_cache,
)
from tuiprof.fleet.summary import TABLES, Summary, decode, encode, merge
from tuiprof.formats.open import open_file


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "summaries"
    monkeypatch.setenv(FOLDER_VARIABLE, str(place))
    return place


def same(one: Summary, other: Summary) -> None:
    for name in TABLES:
        order = ["name"] if name == "names" else ["file"]
        frames = [getattr(summary, name).sort(order, maintain_order=True) for summary in (one, other)]
        assert_frame_equal(*frames)


def four(folder: Path) -> list[File]:
    return files_in(folder)[:4]


@pytest.fixture(scope="module")
def parts(folder: Path) -> list[Summary]:
    with pytest.MonkeyPatch.context() as without:
        without.setenv(FOLDER_VARIABLE, "off")
        return [run_batch((file,)) for file in four(folder)]


def test_ranks_beside_which_one_is_read_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "off")
    job = shutil.copytree(folder, tmp_path / "job")
    files, opened = files_in(job), list[Path]()
    monkeypatch.setattr(
        "tuiprof.formats.open.open_file",
        lambda path, options, opener=open_file: (opened.append(path), opener(path, options))[1],
    )
    run_batch(tuple(files[:3]))
    assert len(opened) <= 3 + len(files)
    os.utime(files[5].path, (1, 1))  # another file
    opened.clear()
    run_batch((files[0],))
    assert len(opened) == len(files)


def test_a_batch_ends_at_its_bytes_and_its_files() -> None:
    large = [File(i, f"{i}", i, 100 << 20) for i in range(3)]
    assert [len(batch) for batch in batches(large, 2)] == [1, 1, 1]
    small = [File(i, f"{i}", i, 1000) for i in range(100_000)]
    cut = list(batches(small, 4))
    assert max(map(len, cut)) == 256
    assert sum(map(len, cut)) == 100_000
    few = [File(i, f"{i}", i, 1000) for i in range(16)]
    assert len(list(batches(few, 4))) == 16  # all workers have something to do until the end


def test_summaries_are_merged_in_any_order(parts: list[Summary]) -> None:
    same(merge([parts[3], merge([parts[2], parts[0]]), parts[1]]), merge(parts))
    assert merge(reversed(parts)).files["file"].to_list() == [0, 1, 2, 3]


def test_what_is_encoded_is_decoded_and_damage_is_said(parts: list[Summary]) -> None:
    data = encode(parts[0])
    same(decode(data), parts[0])
    for damaged in (b"", data[: len(data) // 2], b"\x90" + data):
        with pytest.raises(ValueError, match="damaged"):
            decode(damaged)


def test_processes_give_what_one_process_gives(folder: Path, parts: list[Summary]) -> None:
    files = four(folder)
    seen: list[Progress] = []
    found = gather(files, Processes(2), seen.append)
    same(found, merge(parts))
    assert seen[-1].files == seen[-1].files_in_all == 4
    assert seen[-1].bytes == seen[-1].bytes_in_all
    assert found.files["file"].to_list() == [0, 1, 2, 3]


def test_a_file_that_cannot_be_read_is_a_row_with_its_reason(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "rank1.json"
    broken.write_text("no trace")
    gone = tmp_path / "rank2.json"
    files = [four(folder)[0], File(1, str(broken), 1, 8), File(2, str(gone), 2, 8)]
    found = gather(files, Processes(1)).files
    assert found["problem"].to_list()[0] == ""
    assert found.filter(pl.col("rank") == 1)["problem"].item()
    assert "no" in found.filter(pl.col("rank") == 2)["problem"].item().lower()


def killed_by_rank_2(batch: Batch) -> Summary:
    if any(file.rank == 2 for file in batch):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_batch(batch)


def test_a_file_that_kills_its_worker_is_a_row_and_the_others_are_read(folder: Path) -> None:
    found = gather(four(folder), Processes(2, killed_by_rank_2)).files
    assert found["rank"].to_list() == [0, 1, 2, 3]
    assert found.filter(pl.col("problem") != "")["rank"].to_list() == [2]
    assert "died" in found.filter(pl.col("rank") == 2)["problem"].item()


def test_what_was_read_is_kept_until_the_file_changes(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tuiprof.fleet.gather.WORTH_KEEPING_S", 0.0)
    copy = tmp_path / "rank7.json.gz"
    copy.write_bytes(Path(four(folder)[0].path).read_bytes())
    file = File(0, str(copy), 7, copy.stat().st_size)
    first = run_batch((file,))
    assert len(list(own_cache.glob("??/*"))) == 1
    with monkeypatch.context() as broken:
        broken.setattr("tuiprof.fleet.gather._read", lambda _: pytest.fail("it was read again"))
        same(run_batch((file,)), first)
        moved = copy.rename(tmp_path / "elsewhere.json.gz")
        again = run_batch((File(5, str(moved), 3, file.size),))
        assert again.files.select("file", "rank", "path").row(0) == (5, 3, str(moved))
        assert set(again.steps["file"]) == {5}
    data = bytearray(moved.read_bytes())
    data[len(data) // 2] ^= 0xFF  # in the middle, at the same size: the time of change tells
    moved.write_bytes(data)
    os.utime(moved, ns=(0, 0))
    read: list[File] = []
    monkeypatch.setattr("tuiprof.fleet.gather._read", lambda one: (read.append(one), first)[1])
    run_batch((File(0, str(moved), 7, file.size),))
    assert len(read) == 1


def test_a_damaged_entry_is_read_anew(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuiprof.fleet.gather.WORTH_KEEPING_S", 0.0)
    file = four(folder)[0]
    first = run_batch((file,))
    (entry,) = own_cache.glob("??/*")
    entry.write_bytes(entry.read_bytes()[:100])
    same(run_batch((file,)), first)


def test_the_cache_keeps_to_its_limit(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuiprof.fleet.gather.WORTH_KEEPING_S", 0.0)
    for file in four(folder):
        run_batch((file,))
    sizes = [entry.stat().st_size for entry in own_cache.glob("??/*")]
    monkeypatch.setenv(LIMIT_VARIABLE, str(max(sizes) * 2))
    tidy_cache()
    assert 1 <= len(list(own_cache.glob("??/*"))) <= 2


def test_nothing_is_kept_where_the_user_forbids_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "off")
    assert entry_of(Path(four(folder)[0].path)) is None


def test_where_to_read_is_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--on", "elsewhere"],
        ["--on", "processes:none"],
        ["--on", "dask:"],
        ["--on", "dask://h:1", "--dask-workers", "2"],
        ["--on", "ssh://"],
    ):
        assert main(["report", str(folder), *words]) == 2
        assert "tuiprof:" in capsys.readouterr().err


class TestDask:
    """On a cluster of this machine."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("distributed")

    def test_it_gives_what_processes_give(self, folder: Path, parts: list[Summary]) -> None:
        from tuiprof.fleet.dask_ import Dask

        works = Dask(workers=2)
        try:
            same(gather(four(folder), works), merge(parts))
            # Its sampling of stacks costs half as much again as the reading.
            sampling = works._client.run(
                lambda: __import__("dask").config.get("distributed.worker.profile.enabled")
            )
            assert list(sampling.values()) == [False, False]
        finally:
            works.close()

    def test_another_version_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tuiprof.fleet import dask_

        works = dask_.Dask(workers=1)
        try:
            monkeypatch.setattr("tuiprof.__version__", "0.0.1")
            with pytest.raises(UsageProblem, match=r"has tuiprof .*, this client has 0\.0\.1"):
                works._compare_versions()
        finally:
            works.close()

    def test_hosts_are_named_as_ssh_names_them(self) -> None:
        from tuiprof.fleet.dask_ import _connection

        assert _connection("me@node1.cluster:2222") == {"username": "me", "port": 2222}
        assert _connection("node1") == {}
        for text in ("-oProxyCommand=x", "node1;x", "node1:x", "a b", "", "me@"):
            with pytest.raises(UsageProblem, match="is not the name of a host"):
                _connection(text)

    def test_without_asyncssh_that_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tuiprof.fleet.dask_ import Dask

        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UsageProblem, match="asyncssh is not installed"):
            Dask(hosts=["node1"], workers=1)

    def test_a_scheduler_that_is_not_there_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tuiprof.fleet import dask_

        monkeypatch.setattr(dask_, "_PATIENCE_S", 0.2)
        with pytest.raises(TuiprofError, match="no Dask scheduler responds"):
            dask_.Dask("tcp://127.0.0.1:9")
