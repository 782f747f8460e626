"""The second opening: the same trace, from the user's cache directory, whoever else reads and writes there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tuiprof.formats import cache, open_trace
from tuiprof.model import Trace

EVENTS = [
    {"ph": "X", "cat": "kernel", "name": f"k{i % 7}", "pid": 0, "tid": 7, "ts": i * 3.5, "dur": 2.25,
     "args": {"stream": 7, "device": 0, "correlation": i, "bytes": i}}
    for i in range(300)
] + [
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "ts": 9, "args": {"Bytes": -512}},
    {"ph": "C", "name": "power", "pid": 0, "tid": 0, "ts": 11, "args": {"W": 300.5}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1000)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "H200"}], "traceEvents": EVENTS}))
    return path


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "tuiprof-cache":
            thread.join()


def same(a: Trace, b: Trace) -> None:
    assert a.events.equals(b.events)
    assert a.events.schema == b.events.schema
    assert a.instants is not None
    assert b.instants is not None
    assert a.instants.equals(b.instants)
    assert a.counters is not None
    assert b.counters is not None
    assert a.counters.equals(b.counters)
    assert (a.tracks, a.info, a.stats, a.names) == (b.tracks, b.info, b.stats, b.names)
    assert a.raw_event(5) == b.raw_event(5)


def test_the_second_opening_is_from_the_cache(
    folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_trace(path)
    settle()
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr("tuiprof.formats.kineto.reader.EventReader.read", None)  # must not be needed
    second = open_trace(path)
    same(first, second)
    assert second.links.unmatched_work == 300
    assert sorted(p.name for p in path.parent.iterdir()) == ["cache", "t.json"]


def test_a_changed_file_is_read_again(folder: Path, path: Path) -> None:
    open_trace(path)
    settle()
    path.write_text(json.dumps({"traceEvents": EVENTS[:100]}))
    assert len(open_trace(path)) == 100
    settle()
    assert len(list(folder.iterdir())) == 2


def test_a_damaged_entry_is_replaced(folder: Path, path: Path) -> None:
    first = open_trace(path)
    settle()
    entry = next(folder.iterdir())
    for damage in ("events.arrow", "trace.json"):
        (entry / damage).write_bytes(b"damaged")
        same(first, open_trace(path))
        settle()
        same(first, open_trace(path))


def test_the_cache_can_be_off(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_trace(path, cache=False)
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", "off")
    open_trace(path)
    settle()
    assert not folder.exists()


def test_a_place_without_permission_or_space_does_no_harm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1000)
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", "/proc/nowhere")
    assert len(open_trace(path)) == 300
    settle()


def test_the_longest_unused_are_evicted(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE_BYTES", "150000")
    paths = []
    for i in range(6):
        other = path.with_name(f"t{i}.json")
        other.write_text(path.read_text())
        paths.append(other)
        open_trace(other)
        settle()
        open_trace(paths[0])  # in use all the time
        settle()
    kept = list(folder.iterdir())
    assert 1 < len(kept) < 6
    assert cache.find  # the first is still there, because it was used
    from tuiprof.formats.source import open_source

    assert cache._path_of(open_source(paths[0])) in kept


def test_many_processes_at_once(folder: Path, path: Path) -> None:
    code = (
        "import sys; from tuiprof.formats import cache, open_trace; cache.WORTH_KEEPING = 1000\n"
        "for _ in range(3): print(len(open_trace(sys.argv[1])))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out.split() == ["300"] * 3
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []
    assert len(list(folder.iterdir())) == 1
