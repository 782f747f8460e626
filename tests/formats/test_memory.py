"""What a compressed file takes is bounded by what is in it, and by limits that are named when they are met."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tuiprof.errors import TraceError
from tuiprof.formats import open_trace
from tuiprof.formats.kineto import reader
from tuiprof.formats.source import open_source
from tuiprof.resources import shipped

GiB = 1 << 30
EVENT = b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":2,"ts":1,"dur":1}'
SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from tuiprof.errors import TraceError
from tuiprof.formats import open_trace
try:
    trace = open_trace(sys.argv[2], workers=0, cache=False)
    print("read", len(trace), trace.trust.text)
except TraceError as error:
    print("refused", error)
"""


def open_within(address_space: int, path: Path) -> str:
    """Open a trace in a process that may take so much; return what came of it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(address_space), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def packed(path: Path, *parts: bytes | tuple[bytes, int]) -> Path:
    """Write gzip members: bytes, or (bytes, how many MiB of them)."""
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(gzip.compress(part))
            else:
                text, mebibytes = part
                member = gzip.compress(text * ((1 << 20) // len(text)))
                file.write(member * mebibytes)
    return path


def test_a_small_compressed_xplane_asks_for_little() -> None:
    assert open_within(2 * GiB, shipped("traces") / "jax-waits.xplane.pb.gz").startswith("read 2551 ")


@pytest.mark.parametrize(
    ("name", "parts", "said"),
    [
        (
            "a.json.gz",
            (b'{"traceEvents":[', (b" ", 2048), EVENT + b"]}"),
            "no event ends within 64 MiB",
        ),
        ("b.json.gz", ((b" ", 2048), b"[" + EVENT + b"]"), "only whitespace"),
        (
            "c.json.gz",
            (b'{"traceEvents":[{"ph":"X","name":"', (b"n", 1024), b'"}]}'),
            "no event ends within 64 MiB",
        ),
        (
            "d.json.gz",
            (b'{"traceName":"', (b"n", 1024), b'","traceEvents":[]}'),
            "no list of events in its first 64 MiB",
        ),
        ("e.json.gz", (b'{"instruction":[', (b" ", 2048), b"]}"), "is larger than 536,870,912 bytes"),
        (
            "f.xplane.pb.gz",
            (b"\n\x80\x80\x80\x80\x08\x12\x09/host:CPU", (b"\0", 2048)),
            "is larger than 536,870,912",
        ),
        ("g.json.gz", (b'{"neuron_runtime_data":[', (b" ", 2048)), "no readable report of neuron-monitor"),
    ],
)
def test_bombs_are_refused_with_the_limit_named(
    name: str, parts: tuple[bytes | tuple[bytes, int], ...], said: str, tmp_path: Path
) -> None:
    path = packed(tmp_path / name, *parts)
    assert path.stat().st_size < 16 << 20
    # 2.5 GiB of addresses: Polars and NumPy reserve half a GiB that they never touch.
    answer = open_within(5 * GiB // 2, path)
    assert answer.startswith("refused")
    assert said in answer


@pytest.mark.parametrize("plain", [False, True])
def test_what_came_before_an_endless_event_is_kept(tmp_path: Path, plain: bool) -> None:
    path = packed(
        tmp_path / "t.json.gz", b"[" + EVENT + b"," + EVENT + b',{"name":"', (b"n", 70), b'"},' + EVENT + b"]"
    )
    if plain:
        data = gzip.decompress(path.read_bytes())
        path = tmp_path / "t.json"
        path.write_bytes(data)
    trace = open_trace(path, workers=0)
    assert len(trace) == 2
    assert trace.stats.truncated
    assert "no event ends within 64 MiB" in trace.trust.line
    assert trace.raw_event(1)


def test_an_event_of_many_stretches_is_read_once_it_is_whole(tmp_path: Path) -> None:
    inner = b'{"a": 1},' * 800_000  # each seems to be the end of an event
    path = tmp_path / "t.json"
    path.write_bytes(b"[" + EVENT + b"," + EVENT[:-1] + b',"args":{"x":[' + inner + b"{}]}}," + EVENT + b"]")
    for workers in (0, 1):
        trace = open_trace(path, workers=workers)
        assert (len(trace), trace.stats.events, trace.stats.malformed) == (3, 3, 0)
        assert not trace.stats.truncated


def test_a_long_tail_costs_its_properties_alone(tmp_path: Path) -> None:
    path = packed(
        tmp_path / "t.json.gz", b'{"traceEvents":[' + EVENT + b'],"rank":1,"log":"', (b"x", 70), b'"}'
    )
    trace = open_trace(path)
    assert (len(trace), trace.stats.truncated) == (1, False)
    assert "long-tail" in {remark.code for remark in trace.trust.remarks}


def test_one_variable_replaces_both_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "p.json"
    profile.write_bytes(b'{"instruction": [{"timestamp": 1, "duration": 2}]' + b" " * 5000 + b"}")
    assert len(open_trace(profile)) == 1
    with pytest.raises(TraceError, match="TUIPROF_MAX_INFLATED_BYTES"):
        open_trace(profile, limit=4000)
    monkeypatch.setenv("TUIPROF_MAX_INFLATED_BYTES", "4000")
    with pytest.raises(TraceError, match="is larger than 4,000 bytes"):
        open_trace(profile)
    assert open_source(profile).limit == 4000


def test_reading_stops_while_there_is_memory_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"[" + b",".join([EVENT] * 40_000) + b"]")
    monkeypatch.setattr(reader, "_LOOK_EVERY", 1000)
    assert len(open_trace(path, workers=0)) == 40_000
    monkeypatch.setattr(reader, "available_bytes", lambda: 1 << 20)
    with pytest.raises(TraceError, match="does not fit into memory"):
        open_trace(path, workers=0)
