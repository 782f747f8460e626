"""Traces behind URLs: a local server, fsspec's memory file system, and what can go wrong."""

from __future__ import annotations

import builtins
import errno
import gzip
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuiprof.cli import main
from tuiprof.errors import TraceError
from tuiprof.formats import Cancelled, remote
from tuiprof.formats.remote import FOLDER_VARIABLE, LIMIT_VARIABLE, TIMEOUT_VARIABLE, fetch, is_url
from tuiprof.resources import shipped

SAMPLE = shipped("traces") / "metrics-naive.pt.trace.json.gz"
fsspec = pytest.importorskip("fsspec", reason="pip install 'tuiprof[remote]'")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class _Handler(http.server.BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        content = self.files.get(path)
        self.send_response(403 if path.startswith("/secret") else 404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("ETag", f'"{hash(content)}"')
        self.end_headers()
        if body and content is not None and not path.startswith("/secret"):
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Handler]]]:
    pytest.importorskip("aiohttp", reason="fsspec reads http with it: pip install 'tuiprof[remote]'")
    handler = type(
        "Handler", (_Handler,), {"files": {"/t/metrics.pt.trace.json.gz": SAMPLE.read_bytes()}, "asked": []}
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/key")
    assert is_url("https://host/x.json")
    assert not is_url("C:/x.json")
    assert not is_url("metrics:naive")
    assert not is_url("/tmp/x.json")


def test_a_file_over_http_is_copied_once_and_again_when_it_changed(
    server: tuple[str, type[_Handler]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, handler = server
    url = f"{base}/t/metrics.pt.trace.json.gz?signature=abc"
    progress: list[tuple[int, int]] = []
    path = fetch(url, progress=lambda done, total: progress.append((done, total)))
    assert path.name == "metrics.pt.trace.json.gz"
    assert path.read_bytes() == SAMPLE.read_bytes()
    assert progress[-1] == (SAMPLE.stat().st_size, SAMPLE.stat().st_size)
    assert "abc" not in str(path)
    loaded = sum("json.gz" in asked for asked in handler.asked)
    assert fetch(url) == path
    assert sum("json.gz" in asked for asked in handler.asked) == loaded  # only asked whether it changed
    handler.files["/t/metrics.pt.trace.json.gz"] = gzip.compress(b'{"traceEvents": []}')
    assert fetch(url) != path
    assert main(["report", f"{base}/t/metrics.pt.trace.json.gz", "kernels"]) in (0, 3)
    capsys.readouterr()


def test_a_large_file_comes_as_one_stream_from_a_server_that_gives_no_parts(
    server: tuple[str, type[_Handler]],
) -> None:
    base, handler = server
    handler.files["/large.json"] = b"{" + b" " * (11 << 20)
    assert fetch(f"{base}/large.json").stat().st_size == (11 << 20) + 1
    assert handler.asked.count("/large.json") == 1


def test_a_copy_that_ends_early_is_refused(memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/short.json", b"x" * 1000)
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path: {**info(self, path), "size": 2000})
    with pytest.raises(TraceError, match="ended after 1,000 of 2,000 bytes"):
        fetch("memory://short.json")
    assert list(cache.iterdir()) == []


def test_http_errors_say_what_to_do(server: tuple[str, type[_Handler]]) -> None:
    base, _ = server
    with pytest.raises(TraceError, match=r"http://127.0.0.1:.*/none.json does not exist"):
        fetch(f"{base}/none.json")
    with pytest.raises(TraceError, match=r"no permission to read .* \(status 403\).*sign"):
        fetch(f"{base}/secret.json?token=xyz")


def test_nobody_answers(server: tuple[str, type[_Handler]]) -> None:
    with pytest.raises(TraceError, match=r"http://127.0.0.1:1/x.json cannot be read|does not exist"):
        fetch("http://127.0.0.1:1/x.json")


@pytest.mark.parametrize("silent", ["info", "open"])
def test_a_library_that_waits_for_ever_is_given_up(
    silent: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As aiohttp does, once in a few hundred times, after a chunk that is none."""
    for_ever = threading.Event()

    class Web:
        protocol = ("http", "https")

        def info(self, path: str) -> dict[str, Any]:
            if silent == "info":
                for_ever.wait()
            return {"name": path, "type": "file", "size": None}

        def open(self, *_: object, **__: object) -> Any:
            for_ever.wait()

    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.05")
    monkeypatch.setattr(remote, "_connect", lambda url: (Web(), url))
    with pytest.raises(TraceError, match="the server stopped responding"):
        fetch("http://silent/t.json")
    for_ever.set()
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize(
    "raised",
    [OSError("500, url='http://me:pw@host/x?sig=abc'"), ValueError("no http://me:pw@host/x?sig=abc")],
)
def test_passwords_and_signatures_are_not_repeated(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise raised

    files = type("Files", (), {"info": staticmethod(fails)})
    connect = fails if isinstance(raised, ValueError) else lambda _url, **_: (files, "")
    monkeypatch.setattr(fsspec.core, "url_to_fs", connect)
    with pytest.raises(TraceError) as caught:
        fetch("http://me:pw@host/x.json?sig=abc")
    assert "http://host/x" in str(caught.value)
    assert "me:pw" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_no_space_for_a_copy_names_the_place(
    memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    memory.pipe("/x.json", b"{}")
    monkeypatch.setattr(type(memory), "open", full)
    with pytest.raises(TraceError, match=f"no space left for a copy of memory://x.json in {cache}"):
        fetch("memory://x.json")


def test_a_copy_that_another_process_is_making_stays(
    memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / ".new-beside" / "copy").mkdir(parents=True)
    (cache / ".new-beside" / "copy" / "x.json").write_bytes(b"x" * 1000)
    monkeypatch.setenv(LIMIT_VARIABLE, "10")
    memory.pipe("/y.json", b"{}")
    fetch("memory://y.json")
    assert (cache / ".new-beside" / "copy" / "x.json").exists()


def test_a_report_of_a_file_and_a_directory_in_memory(
    memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = SAMPLE.with_name("metrics-naive.syncs.jsonl").read_bytes()
    for rank in range(2):
        memory.pipe(f"/job/run1/rank{rank}.syncs.jsonl", sites)
        memory.pipe(f"/job/run1/rank{rank}.pt.trace.json.gz", SAMPLE.read_bytes())
    memory.pipe("/job/run1/weights.bin", b"\0" * 1000)
    assert (
        main(["report", "memory://job/run1/rank0.pt.trace.json.gz", "sync_events", "--format", "json"]) == 0
    )
    assert "aggregation.py:93" in capsys.readouterr().out
    assert main(["report", "memory://job", "sync_events", "--rank", "1"]) == 0
    said = capsys.readouterr()
    assert "rank 1 of 2 (from its file name)" in said.err
    folder = fetch("memory://job")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "rank0.pt.trace.json.gz",
        "rank0.syncs.jsonl",
        "rank1.pt.trace.json.gz",
        "rank1.syncs.jsonl",
    ]
    with pytest.raises(TraceError, match=r"memory://.* does not exist"):
        fetch("memory://job/run9/x.json")


def test_a_copy_that_was_stopped_leaves_nothing(memory: Any, cache: Path) -> None:
    memory.pipe("/big.json", b"{" + b" " * (9 << 20))
    with pytest.raises(Cancelled):
        fetch("memory://big.json", cancelled=lambda: True)
    assert list(cache.iterdir()) == []


def test_the_longest_unused_copies_go_first(
    memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setenv(LIMIT_VARIABLE, "2500")
    kept = []
    for number in range(3):
        memory.pipe(f"/{number}.json", b"x" * 1000)
        kept.append(fetch(f"memory://{number}.json"))
        os.utime(kept[-1].parent, (1_000 + number, 1_000 + number))
    assert [path.exists() for path in kept] == [False, True, True]
    monkeypatch.setenv(LIMIT_VARIABLE, "10")  # the one just asked for stays
    memory.pipe("/3.json", b"x" * 1000)
    assert fetch("memory://3.json").exists()
    assert len(list(cache.iterdir())) == 1


def test_names_that_lead_out_of_the_copy_are_refused(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.pipe("/job/a.json", b"{}")
    find = type(memory).find

    def hostile(self: Any, path: str, **options: Any) -> Any:
        info = dict(find(self, path, **options))
        (entry,) = info.values()
        return {"/job/../../../evil.json": {**entry, "name": "/job/../../../evil.json"}}

    monkeypatch.setattr(type(memory), "find", hostile)
    with pytest.raises(TraceError, match="not a path below"):
        fetch("memory://job")
    assert not list(tmp_path.rglob("evil.json"))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.split(".")[0] == "fsspec":
            raise ImportError("No module named 'fsspec'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TraceError, match=r"fsspec is not installed — pip install 'tuiprof\[remote\]'"):
        fetch("s3://bucket/rank0.json")


def test_a_protocol_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str, **_options: object) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(TraceError, match=r"s3:// requires a package.*tuiprof\[remote\]' s3fs"):
        fetch("s3://bucket/rank0.json")
    monkeypatch.undo()
    with pytest.raises(TraceError, match=r"not known|are read"):
        fetch("nonsense://bucket/rank0.json")
