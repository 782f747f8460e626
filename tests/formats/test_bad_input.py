"""Damaged, odd and hostile files: a stated result, nothing lost beside the damage, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from analyses.made import report

from tests import real_traces
from tuiprof.analyses import run
from tuiprof.errors import TraceError
from tuiprof.formats import Cancelled, open_set, open_trace
from tuiprof.formats.kineto import columns
from tuiprof.formats.open import open_file
from tuiprof.model import Trace, Unavailable


def event(name: str, ts: float, dur: float = 1, **fields: object) -> str:
    return json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, **fields}
    )


GOOD = [event(f"op{i}", 10 * i) for i in range(3)]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def read_(text: str | bytes, name: str = "t.json", **options: object) -> Trace:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return open_trace(path, **options)  # type: ignore[arg-type]

    return read_


def listed(*events: str | bytes) -> bytes:
    return (
        b'{"traceEvents": [' + b",\n ".join(e.encode() if isinstance(e, str) else e for e in events) + b"]}"
    )


def names(trace: Trace) -> list[str]:
    return sorted(trace.events["name"].cast(str).to_list())


BROKEN = {
    "invalid UTF-8": (
        GOOD[0].replace("op0", "bad\udcff").encode("utf-8", "surrogateescape"),
        "bad\ufffd",
        1,
        0,
    ),
    "NaN in arguments": (event("bad", 5, args={"x": float("nan")}), "bad", 1, 0),
    "NaN as time": (event("bad", float("nan")), None, 1, 1),
    "infinity as length": (event("bad", 5, dur=float("inf")), "bad", 2, 0),
    "raw control characters": (event("bad", 5).replace("bad", "b\x01a\x02d"), "b\x01a\x02d", 1, 0),
    "duplicate keys": (
        '{"ph":"X","name":"first","name":"bad","ts":1,"ts":5,"dur":1,"pid":1,"tid":2}',
        "bad",
        0,
        0,
    ),
    "integer above 2**63": (event("bad", 5, args={"correlation": 1 << 63, "x": 1 << 80}), "bad", 0, 0),
    "thread above 2**63": (event("bad", 5, tid=(1 << 64) - 1), "bad", 0, 0),
    "time as text": (event("bad", 5).replace('"ts": 5', '"ts": "5.25"'), "bad", 0, 0),
    "length as text": (event("bad", 5).replace('"dur": 1', '"dur": "1.5"'), "bad", 0, 0),
    "no length": (event("bad", 5).replace(', "dur": 1', ""), "bad", 1, 0),
    "negative length": (event("bad", 5, dur=-3), "bad", 1, 0),
    "no time": (event("bad", 5).replace(', "ts": 5', ""), None, 0, 1),
    "time as list": (event("bad", 5).replace('"ts": 5', '"ts": [5]'), None, 1, 1),
    "arguments as list": (event("bad", 5, args=[1, 2]), "bad", 1, 0),
    "arguments as text": (event("bad", 5, args="x"), "bad", 1, 0),
    "no arguments": (event("bad", 5, args=None), "bad", 0, 0),
    "correlation as text": (event("bad", 5, args={"correlation": "77"}), "bad", 0, 0),
    "correlation as list": (event("bad", 5, args={"correlation": [77]}), "bad", 1, 0),
    "name as number": (event("bad", 5).replace('"bad"', "7"), "7", 0, 0),
    "name as list": (event("bad", 5).replace('"bad"', "[7]"), "[7]", 1, 0),
    "half a surrogate pair": (event("bad", 5).replace("bad", "bad\\ud83d"), "bad?", 1, 0),
    "time beyond all clocks": (event("bad", 1e300), None, 0, 1),
    "a huge integer": (event("bad", 5, args={"x": 0}).replace('"x": 0', '"x": ' + "9" * 5000), "bad", 0, 0),
    "nested 10,000 deep": (
        event("bad", 5, args={"x": 0}).replace("0}", "[" * 10000 + "]" * 10000 + "}"),
        "bad",
        1,
        0,
    ),
    "event that is no object": ("17", None, 0, 1),
    "broken syntax": ('{"ph": "X", "name": oops, "ts": 5}', None, 0, 1),
    "quote is missing": (event("bad", 5).replace('bad"', "bad"), None, 0, 1),
    "bracket is missing": (event("bad", 5, args={"x": [1]}).replace("]", ""), None, 0, 1),
    "brace is missing": (event("bad", 5, args={"x": 1})[:-1], None, 0, 1),
    "a list between events": ("[1, {}]", None, 0, 1),
    "list of events inside": (event("bad", 5, args={"x": [json.loads(g) for g in GOOD]}), "bad", 0, 0),
    "boundaries inside a string": (event('bad "},\n {"ph":"X"}, {"', 5), 'bad "},\n {"ph":"X"}, {"', 0, 0),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_neighbours_of_a_broken_event_are_kept(case: str, place: int, read: Callable[..., Trace]) -> None:
    text, name, repaired, malformed = BROKEN[case]
    events: list[str | bytes] = [*GOOD]
    events.insert(place, text)
    trace = read(listed(*events))
    assert names(trace) == sorted(["op0", "op1", "op2", *([name] if name is not None else [])])
    assert (trace.stats.repaired > 0) == (repaired > 0), trace.stats
    assert trace.stats.malformed == malformed, trace.stats
    assert not trace.stats.truncated
    for row in range(len(trace)):
        assert trace.raw_event(row)


def test_times_written_as_text_are_exact(read: Callable[..., Trace]) -> None:
    trace = read(
        listed(event("a", 0).replace('"ts": 0', '"ts": "1700000000000000.125"'), event("b", 1700000000000001))
    )
    assert trace.starts.tolist() == [0, 875]
    assert trace.info.origin_unix_ns == 1700000000000000125


@pytest.mark.parametrize(
    ("text", "kept", "truncated"),
    [
        (listed(*GOOD)[:-2], 3, True),
        (listed(*GOOD)[:-5], 2, True),
        (b"[" + ",".join(GOOD).encode() + b",", 3, True),
        (b"[" + ",".join(GOOD).encode() + b"]", 3, False),
        (b"\xef\xbb\xbf" + listed(*GOOD), 3, False),
        (b'{"traceName": "x"' + b', "traceEvents": [' + GOOD[0].encode() + b"]", 1, True),
        (listed(), 0, False),
        (b"[]", 0, False),
        (b'{"a": [1, {"b": 2}], "traceEvents": [' + GOOD[0].encode() + b'], "z": {"y": "}, {"}}', 1, False),
        (listed("{}", GOOD[0], "{}"), 1, False),
        (b'{"traceEvents":[,' + GOOD[0].encode() + b",,]}", 1, False),
    ],
)
def test_ends_and_beginnings(text: bytes, kept: int, truncated: bool, read: Callable[..., Trace]) -> None:
    trace = read(text)
    assert (len(trace), trace.stats.truncated) == (kept, truncated)
    if truncated:
        assert any(remark.code == "truncated" for remark in trace.trust.remarks)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"   \n ", "only whitespace"),
        (b"hello there", "not JSON"),
        (b"<!DOCTYPE html><html>404</html>", "web page"),
        (b"PAR1\0\0\0", "Parquet"),
        (b"\x7fELF\0\1\2", "binary"),
        (b"\xff\xfe" + '{"traceEvents": []}'.encode("utf-16-le"), "UTF-16"),
        ('{"traceEvents": []}'.encode("utf-16-be"), "UTF-16"),
        (b"SQLite format 3\0", "SQLite"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b'{"a": 1}', "without traceEvents"),
        (b'{"traceEvents": 3}', "without traceEvents"),
        (b"[1, 2, 3]", "not a list of events"),
        (b'{"traceEv', "without traceEvents"),
        (b"\x1f\x8b\x08\x00rubbish that is no deflate stream", "damaged gzip"),
        (b"PK\x03\x04 no zip", "damaged zip"),
    ],
)
def test_what_is_no_trace_is_named(content: bytes, said: str, read: Callable[..., Trace]) -> None:
    with pytest.raises(TraceError) as caught:
        read(content)
    assert said in str(caught.value)
    assert "t.json" in str(caught.value)


def test_compressed(read: Callable[..., Trace], tmp_path: Path) -> None:
    plain = listed(*GOOD)
    once = gzip.compress(plain)
    for data in (once, gzip.compress(once), gzip.compress(plain[:20]) + gzip.compress(plain[20:])):
        trace = read(data)
        assert len(trace) == 3
        assert json.loads(trace.raw_event(1)) == json.loads(GOOD[1])
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/rank0.pt.trace.json", plain)
        archive.writestr("readme.txt", "x")
    trace = open_trace(tmp_path / "t.zip")
    assert len(trace) == 3
    assert json.loads(trace.raw_event(2)) == json.loads(GOOD[2])
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("folder/rank1.pt.trace.json", plain)
    with pytest.raises(TraceError, match="contains 2 files"):
        open_trace(tmp_path / "t.zip")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.replace(b"\x08\0", b"\x63\0"), "an unsupported kind of zip archive: .* method"),
        (
            lambda data: data.replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xff"),
            "an unsupported kind",
        ),
        (lambda data: data[:30] + b"\0" + data[31:], "damaged zip archive"),
        (lambda data: data[: len(data) // 2], "damaged zip archive"),
    ],
)
def test_zips_that_cannot_be_unpacked(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.json", listed(*GOOD))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TraceError, match=said) as caught:
        open_trace(path)
    assert caught.value.remedy


def test_a_link_to_itself_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(listed(*GOOD))
    (tmp_path / "rank1.json").write_bytes(listed(*GOOD))
    for name in ("loop.json", "rank2.json"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "gone.pt.trace.json").symlink_to("nowhere")
    found = open_set(tmp_path)
    assert [file.path.name for file in found.files] == ["rank0.json", "rank1.json"]
    trace = open_trace(tmp_path / "rank0.json")
    assert trace.siblings is not None
    assert len(trace.siblings) == 2
    with pytest.raises(TraceError, match="Too many levels of symbolic links"):
        open_trace(tmp_path / "loop.json")


WITHOUT_RIGHTS = """
import ctypes, struct, sys
# Root without its capabilities is held to permissions like anybody else.
header, nothing = struct.pack("<Ii", 0x20080522, 0), bytes(24)
assert ctypes.CDLL(None).capset(header, nothing) == 0
from tuiprof.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_folder_that_may_not_be_entered(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "t.json").write_bytes(listed(*GOOD))
    closed.chmod(0)
    try:
        for verb, *targets in (
            ("report", closed),
            ("report", closed / "t.json"),
            ("report", tmp_path),
            ("compare", closed, closed / "t.json"),
            ("check", closed / "t.json", "--max", "syncs_per_step=0"),
        ):
            command = [sys.executable, "-c", WITHOUT_RIGHTS, verb, *map(str, targets)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode in (2, 3, 4), done.stderr
            assert "Traceback" not in done.stderr
            assert "ermission denied" in done.stderr
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("number", ["9" * 31, "9" * 5000, "1" * 19])
def test_a_step_number_without_end_marks_no_step(number: str, read: Callable[..., Trace]) -> None:
    name = f"ProfilerStep#{number}"
    trace = read(
        listed(
            event(name, 0, 5, cat="user_annotation"),
            *GOOD,
            event("ProfilerStep#7", 50, 5, cat="user_annotation"),
        )
    )
    assert trace.steps.numbers.tolist() == [7]
    assert name in names(trace)


def test_times_that_cannot_be_true_cost_their_events_alone(read: Callable[..., Trace]) -> None:
    year = 365 * 86_400 * 1_000_000
    far = [event("early", -140 * year), event("late", 140 * year), event("long", 20, 140 * year)]
    trace = read(listed(*GOOD, *far))
    assert names(trace) == ["op0", "op1", "op2"]
    assert trace.stats.malformed == 3
    assert int(trace.ends.max()) == 21_000
    both_clocks = read(listed(event("zero", 0), event("unix", 54 * year)))
    assert names(both_clocks) == ["unix", "zero"]


@pytest.mark.parametrize("late_us", [1_700_000_000_000_000, 4_500_000_000_000_000])
def test_figures_hold_where_no_float_is_exact(late_us: int, read: Callable[..., Trace]) -> None:
    texts = [event("zero", 0)]
    for i in range(5):
        call = event("cudaLaunchKernel", 0, cat="cuda_runtime", args={"correlation": i + 1})
        work = event("k", 0, cat="kernel", tid=7, args={"correlation": i + 1, "stream": 7, "device": 0})
        texts += [call.replace('"ts": 0', f'"ts": {late_us + 10 * i}.125')]
        texts += [work.replace('"ts": 0', f'"ts": {late_us + 10 * i + 3}.25')]
    answer = report("kernel_launches", read(listed(*texts)))
    depth = answer.table("queue_depth").rows
    assert depth["highest"].max() == 1
    assert depth["start_ns"].min() == late_us * 1000 + 3250
    assert answer.fact("latency_median_ns") == 2125


def test_a_truncated_trace_is_not_called_a_cpu_only_one(read: Callable[..., Trace]) -> None:
    trace = read(listed(*GOOD)[:-30])
    assert trace.stats.truncated
    assert not any("CPU-only" in remark.text for remark in trace.trust.remarks)
    assert "no device activity in the part that could be read" in trace.trust.text
    answer = run("device_idle", trace)
    assert isinstance(answer, Unavailable)
    assert "CPU-only" not in answer.reason
    whole = read(listed(*GOOD))
    assert "CPU-only" in whole.trust.text


def test_metadata_costs_no_array_operation_an_event(
    read: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    convert = columns.ns_from_text
    monkeypatch.setattr(columns, "ns_from_text", lambda texts: calls.append(len(texts)) or convert(texts))
    marks = [
        json.dumps({"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "ts": i, "args": {"name": f"t{i}"}})
        for i in range(30_000)
    ]
    trace = read(listed(*marks, *GOOD), workers=0)
    assert trace.stats.phases == {"M": 30_000, "X": 3}
    assert len(calls) < 10  # a few for each stretch of 2 MiB


def test_broken_compression_keeps_what_came_before(read: Callable[..., Trace]) -> None:
    data = gzip.compress(listed(*(event(f"op{i}", i) for i in range(20000))))
    for broken in (data[: len(data) // 2], data[: len(data) // 2] + b"\0" * 99, data[:-6]):
        trace = read(broken)
        assert len(trace) > 1000
        assert trace.stats.truncated
        assert trace.trust.level == "bad"
        assert "gzip" in trace.trust.line


def test_a_gzip_bomb_is_bounded(read: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b"[" + b" " * 5_000_000 + GOOD[0].encode() + b"]")
    with pytest.raises(TraceError, match="TUIPROF_MAX_INFLATED_BYTES"):
        read(bomb, limit=1_000_000)
    monkeypatch.setenv("TUIPROF_MAX_INFLATED_BYTES", "2000000")
    with pytest.raises(TraceError, match="2,000,000 bytes"):
        read(bomb)
    monkeypatch.setenv("TUIPROF_MAX_INFLATED_BYTES", "6000000")
    assert len(read(bomb)) == 1


def test_one_string_of_fifty_megabytes(read: Callable[..., Trace]) -> None:
    trace = read(
        listed(GOOD[0], event("long", 5, args={"x": "x" * 50_000_000 + "y}, {" * 1000}), *GOOD[1:]), workers=0
    )
    assert names(trace) == ["long", "op0", "op1", "op2"]
    assert not trace.stats.malformed


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "worker0.pt.trace.json").write_bytes(listed(*GOOD))
    with pytest.raises(TraceError, match=r"did you mean .*worker0\.pt\.trace\.json"):
        open_trace(tmp_path / "worker0.trace.json")
    with pytest.raises(TraceError) as raised:  # only what all traces have in common is similar
        open_trace(tmp_path / "nope.pt.trace.json")
    assert "did you mean" not in str(raised.value)
    with pytest.raises(TraceError, match="does not exist either"):
        open_trace(tmp_path / "nowhere" / "x.json")
    assert open_trace(tmp_path).info.path == tmp_path / "worker0.pt.trace.json"
    with pytest.raises(TraceError, match=r"is a directory.*1 traces"):
        open_file(tmp_path)
    for i in range(1000):
        (tmp_path / f"rank{i}.json").touch()
    with pytest.raises(TraceError, match="1001 traces"):
        open_file(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TraceError, match="not a regular file"):
        open_trace(tmp_path / "fifo")
    secret = tmp_path / "secret.json"
    secret.write_bytes(listed(*GOOD))
    secret.chmod(0)
    if os.geteuid():
        with pytest.raises(TraceError, match="permission"):
            open_trace(secret)


def test_progress_and_cancel(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(listed(*(event(f"op{i}", i) for i in range(40000))))
    seen: list[tuple[int, int]] = []
    open_trace(path, progress=lambda done, size: seen.append((done, size)), workers=1)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert sorted(seen) == seen
    with pytest.raises(Cancelled):
        open_trace(path, cancelled=lambda: True, workers=1)


ODD_FILES = real_traces.paths("odd/*")


@pytest.mark.parametrize("path", ODD_FILES, ids=[p.name for p in ODD_FILES])
def test_odd_files_give_a_stated_result(path: Path) -> None:
    if path.suffix in (".json", ".gz"):
        assert open_trace(path).trust.line.startswith("trust:")
    else:
        with pytest.raises(TraceError) as caught:
            open_trace(path)
        assert path.name in caught.value.message
        assert caught.value.remedy


def test_a_damaged_log_beside_a_trace_costs_its_lines(tmp_path: Path) -> None:
    session = tmp_path / "session"
    for folder in ("traces", "log"):
        (session / folder).mkdir(parents=True)
    trace = session / "traces" / "rank0.pt.trace.json"
    trace.write_bytes(listed(*GOOD))
    lines = [
        b'{"t":"step","n":%d,"dur":%d,"cap":%s}' % (n, 10 + n, b"true" if n == 20 else b"false")
        for n in range(30)
    ]
    odd = [
        b'{"t":"step","n":1,"dur":%d}' % 10**30,
        b'{"t":"step","x":"\xff"}',
        b'{"t":"step","x":' + b"[" * 9999,
        b"\xfe",
    ]
    (session / "log" / "rank0.jsonl").write_bytes(b"\n".join([*odd, *lines[:15], *odd, *lines[15:]]))
    os.mkfifo(session / "session.json")
    uncaptured = open_trace(trace).uncaptured
    assert uncaptured is not None
    assert uncaptured.steps == 10
