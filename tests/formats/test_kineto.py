"""What the reader makes of the kinds of events, pairs, lanes and properties; JAX's JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import xspace
from analyses.made import report

from tests import real_traces
from tuiprof.advice import Evidence
from tuiprof.formats import kineto, open_trace
from tuiprof.formats.kineto import categories
from tuiprof.formats.kineto.assemble import match
from tuiprof.model import Trace


def read(folder: Path, events: list[dict[str, Any]], **properties: Any) -> Trace:
    path = folder / "worker0.1700000000000.pt.trace.json"
    path.write_text(json.dumps({**properties, "traceEvents": events}))
    return open_trace(path)


def test_properties_tell_devices_rank_and_clock(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5.5, "dur": 1}],
        schemaVersion=1,
        deviceProperties=[
            {"id": 1, "name": "H200", "totalGlobalMem": 150, "numSms": 132},
            {"id": 0, "name": "H100"},
        ],
        distributedInfo={"rank": 3, "world_size": 8},
        baseTimeNanoseconds=1_700_000_000_000_000_000,
        host_name="vm",
    )
    assert [(d.index, d.name, d.memory_bytes) for d in trace.info.devices] == [
        (0, "H100", None),
        (1, "H200", 150),
    ]
    assert trace.info.devices[1].properties["numSms"] == 132
    assert (trace.info.rank, trace.info.world_size, trace.info.host) == (3, 8, "vm")
    assert trace.info.origin_unix_ns == 1_700_000_000_000_005_500


def test_lanes_are_named_and_placed(tmp_path: Path) -> None:
    meta = [
        {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 10, "args": {"name": "thread 10 (python)"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    ]
    span = {"ph": "X", "name": "n", "ts": 1, "dur": 1}
    trace = read(
        tmp_path,
        [
            {**span, "cat": "cpu_op", "pid": 9, "tid": "10"},
            {**span, "cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}},
            {**span, "cat": "gpu_user_annotation", "pid": 0, "tid": 7},
            {**span, "cat": "Trace", "pid": "Spans", "tid": "PyTorch Profiler"},
            {**span, "cat": "overhead", "pid": -1, "tid": 0},
            *meta,
        ],
    )
    tracks = {(t.pid, t.tid): (t.kind, t.name, t.device) for t in trace.tracks}
    assert tracks[9, 10] == ("thread", "thread 10 (python)", None)
    assert tracks[0, 7] == ("stream", "stream 7", 0)
    assert tracks["Spans", "PyTorch Profiler"][0] == "other"
    assert tracks[-1, 0][0] == "other"
    rows = trace.events.sort("ordinal").select("category", "device", "stream").rows()
    assert rows[:3] == [("cpu_op", None, None), ("kernel", 0, 7), ("device_annotation", 0, 7)]


def test_memory_instants_and_counters(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 2, "dur": 1},
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 3,
             "args": {"Bytes": -512, "Addr": 140000000000000, "Total Allocated": 1 << 33, "Device Id": 0}},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9},
            {"ph": "C", "name": "power", "pid": 0, "tid": 0, "ts": 4, "args": {"W": 300.5, "text": "no"}},
        ],
    )  # fmt: skip
    assert trace.instants is not None
    first = trace.instants.row(0, named=True)
    assert (first["ts"], first["bytes"], first["address"], first["total_allocated"]) == (
        1000,
        -512,
        140000000000000,
        1 << 33,
    )
    assert trace.instants["bytes"].to_list() == [-512, None]
    assert trace.counters is not None
    assert trace.counters.select("ts", "name", "series", "value").rows() == [(2000, "power", "W", 300.5)]


def test_asynchronous_ranges(tmp_path: Path) -> None:
    common = {"cat": "net", "pid": 1, "tid": 1}
    trace = read(
        tmp_path,
        [
            {"ph": "b", "name": "outer", "id": "0x1", "ts": 1, **common},
            {"ph": "b", "name": "other", "id": "0x2", "ts": 2, **common},
            {"ph": "b", "name": "inner", "id": "0x1", "ts": 3, **common},
            {"ph": "e", "name": "inner", "id": "0x1", "ts": 4, **common},
            {"ph": "e", "name": "outer", "id": "0x1", "ts": 6, **common},
            {"ph": "e", "name": "lost", "id": "0x9", "ts": 6, **common},
        ],
    )
    spans = trace.events.select("name", "ts", "dur").rows()
    assert [(str(n), ts, dur) for n, ts, dur in spans] == [
        ("outer", 0, 5000),
        ("other", 1000, 4000),
        ("inner", 2000, 1000),
    ]
    assert trace.tracks[int(trace.ints("track")[0])].kind == "other"
    assert json.loads(trace.raw_event(0))["name"] == "outer"
    assert {r.code for r in trace.stats.remarks} == {"unbegun", "unended"}


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        ([("B", "a", 0), ("B", "b", 1), ("E", "b", 2), ("E", "a", 3)], {("a", 0, 3), ("b", 1, 2)}),
        ([("B", "a", 0), ("B", "b", 1), ("E", "a", 2), ("E", "b", 3)], {("a", 0, 2), ("b", 1, 3)}),
        ([("B", "a", 0), ("E", "", 3)], {("a", 0, 3)}),
        ([("B", "long name", 0), ("E", "short", 3)], {("long name", 0, 3)}),
        ([("E", "a", 2), ("B", "a", 2)], {("a", 2, 2)}),
        ([("B", "a", 5), ("E", "a", 9), ("B", "b", 1), ("E", "b", 12)], {("a", 5, 9), ("b", 1, 12)}),
        ([("B", "a", 5)], {("a", 5, 20)}),
        ([("E", "a", 5)], set()),
    ],
)
def test_begin_and_end(events: list[tuple[str, str, int]], spans: set[tuple[str, int, int]]) -> None:
    import numpy as np

    ts = np.array([e[2] for e in events], dtype=np.int64)
    phases = np.frombuffer("".join(e[0] for e in events).encode(), dtype=np.uint8)
    names = [e[1] for e in events]
    found = match(ts, phases, [0] * len(events), names, 20)
    rows = found.begins.tolist()
    assert {(names[r], int(ts[r]), end) for r, end in zip(rows, found.ends_ns.tolist(), strict=True)} == spans


@pytest.mark.parametrize(
    ("word", "category"),
    [
        ("cpu_op", "cpu_op"), ("Operator", "cpu_op"), ("user_annotation", "annotation"), ("Kernel", "kernel"),
        ("cuda_runtime", "runtime"), ("hip_runtime", "runtime"), ("mtia_runtime", "runtime"), ("xpu_driver", "driver"),
        ("privateuse1_runtime", "runtime"), ("gpu_memcpy", "memcpy"), ("Memset", "memset"), ("cuda_sync", "sync"),
        ("xpu_sync", "sync"), ("overhead", "overhead"), ("collective_comm", "collective"), ("ac2g", "other"),
        ("", None),
    ],
)  # fmt: skip
def test_words_of_the_tools(word: str, category: str | None) -> None:
    assert categories.category(word) == category


def test_more_categories_than_codes_change_no_known_one(tmp_path: Path) -> None:
    """Codes of categories fill two bytes; the word with the code 65536 must not be read as the first one."""
    spans = [("kernel", 0), *((f"word {index}", 1 + index) for index in range(65_600))]
    path = tmp_path / "many.pt.trace.json"
    path.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {"ph": "X", "cat": cat, "name": "x", "pid": 0, "tid": 7, "ts": ts, "dur": 1}
                    for cat, ts in spans
                ]
            }
        )
    )
    trace = open_trace(path)
    assert int(trace.is_category("kernel").sum()) == 1


def test_partial_traces_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_FIRST_PARTIAL_S", 0.0)
    path = tmp_path / "t.json"
    events = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": i, "dur": 1} for i in range(60000)]
    path.write_text(json.dumps(events))
    seen: list[Trace] = []
    whole = open_trace(path, partial=seen.append, workers=0)
    assert seen
    assert len(seen[0]) < len(whole) == 60000
    assert [len(trace) for trace in seen] == sorted(len(trace) for trace in seen)
    assert "still reading" in seen[0].trust.line
    assert seen[0].starts.tolist() == whole.starts[: len(seen[0])].tolist()


def _many(path: Path) -> Path:
    """Write a trace of several stretches; gzipped when it is called so."""
    events = [
        {
            "ph": "X",
            "name": f"n{i % 50}",
            "pid": 1,
            "tid": i % 3,
            "ts": i,
            "dur": 1,
            "args": {"x": [{"a": 1}] * 9, "correlation": i},
        }
        for i in range(30000)
    ]
    text = json.dumps({"traceEvents": events, "z": 1}).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_workers_read_the_same(tmp_path: Path, name: str) -> None:
    path = _many(tmp_path / name)
    alone, together = open_trace(path, workers=0), open_trace(path, workers=2)
    assert together.events.equals(alone.events)
    assert together.tracks == alone.tracks
    assert together.stats == alone.stats
    assert together.raw_event(29999) == alone.raw_event(29999)


def test_a_worker_that_is_killed_takes_nothing_along(tmp_path: Path) -> None:
    path = _many(tmp_path / "t.json")
    before = set(psutil.Process().children())
    killed: list[int] = []

    def kill(done: int, size: int) -> None:
        for worker in set(psutil.Process().children()) - before if not killed else ():
            killed.append(worker.pid)
            worker.kill()

    trace = open_trace(path, workers=1, progress=kill)
    assert killed
    assert trace.events.equals(open_trace(path, workers=0).events)


def test_the_sidecar_of_the_probe(tmp_path: Path) -> None:
    site = {"unix_ns": 5, "tid": 7, "what": "item", "frames": ["train.py:3 step", "train.py:9 <module>"]}
    damaged = [site | {"unix_ns": 10**20}, site | {"tid": -(10**30)}]
    lines = [json.dumps(line) for line in (damaged[0], site, damaged[1])]
    (tmp_path / "worker0.1700000000000.syncs.jsonl").write_text("\n".join(lines) + '\n{"unix_ns": 6, "ti')
    trace = read(tmp_path, [])
    assert trace.sync_sites is not None
    assert trace.sync_sites.rows(named=True) == [site | {"dur_ns": None}]


def matched(
    text: str, names: list[str] | None = None, lanes: list[int] | None = None
) -> list[tuple[int, int, str]]:
    """Return (begin, end, name) of each span of events such as ``BBEE``, one ns apart."""
    names = names or ["f"] * len(text)
    found = match(
        np.arange(len(text), dtype=np.int64),
        np.frombuffer(text.encode(), dtype=np.uint8),
        lanes or [0] * len(text),
        names,
        len(text),
    )
    return sorted(
        (int(begin), int(end), names[begin]) for begin, end in zip(found.begins, found.ends_ns, strict=True)
    )


def test_an_end_closes_the_innermost_of_several_begins_of_its_name() -> None:
    assert matched("BBEE") == [(0, 3, "f"), (1, 2, "f")]
    assert matched("BBBEEE") == [(0, 5, "f"), (1, 4, "f"), (2, 3, "f")]


def test_an_end_with_the_name_of_an_outer_one_closes_that_one() -> None:
    assert matched("BBEE", ["outer", "inner", "outer", "inner"]) == [(0, 2, "outer"), (1, 3, "inner")]


def test_an_end_without_a_name_closes_the_innermost() -> None:
    assert matched("BBEE", ["outer", "inner", "", ""]) == [(0, 3, "outer"), (1, 2, "inner")]


def test_lanes_do_not_close_each_other() -> None:
    assert matched("BBEE", lanes=[0, 1, 0, 1]) == [(0, 2, "f"), (1, 3, "f")]


def test_what_has_no_end_lasts_to_the_end_of_the_trace() -> None:
    assert matched("BB") == [(0, 2, "f"), (1, 2, "f")]


def counted(text: str, times: list[int]) -> tuple[int, int, int]:
    """Return how many spans there are, how many begins without end, and how many ends without begin."""
    phases = np.frombuffer(text.encode(), dtype=np.uint8)
    found = match(np.array(times), phases, [0] * len(text), ["f"] * len(text), 100)
    return len(found.begins), found.unended, found.unbegun


def test_an_end_waits_for_a_begin_of_the_same_instant_and_what_belongs_to_none_is_counted() -> None:
    assert counted("EB", [5, 5]) == (1, 0, 0)
    assert counted("EEB", [5, 5, 5]) == (1, 0, 1)
    assert counted("EB", [5, 6]) == (1, 1, 1)
    assert counted("EE", [5, 6]) == (0, 0, 2)


#: As XLA's profiler writes it of a GPU: a kernel that takes a semaphore, and waits for nothing.
DELAY = "stream_executor::gpu::DelayKernel(stream_executor::gpu::GpuSemaphoreState*, int)"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """The same run as XPlane and as JSON."""
    host, gpu = xspace.Plane("/host:CPU"), xspace.Plane("/device:GPU:0")
    python, stream, copies = (
        host.line("python"),
        gpu.line("Stream #13(Compute)"),
        gpu.line("Stream #14(MemcpyD2H)", 0, 2),
    )
    listed: list[dict[str, Any]] = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "tid": 1, "name": "thread_name", "args": {"name": "python"}},
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "Stream #13(Compute)"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "Stream #14(MemcpyD2H)"}},
    ]

    def event(line: xspace.Line, pid: int, name: str, start: int, dur: int, **stats: int | str) -> None:
        line.event(name, start * 1_000_000, dur * 1_000_000, **stats)
        args = {key: str(value) for key, value in stats.items()}
        listed.append(
            {"ph": "X", "pid": pid, "tid": line.id, "name": name, "ts": start, "dur": dur, "args": args}
        )

    for step in range(4):
        at, number = step * 1000, step * 10
        event(python, 701, "train", at, 900, step_num=step)
        event(python, 701, "PjitFunction(step)", at + 10, 300)
        for k, name in enumerate((DELAY, "loop_copy_fusion", "gemm_fusion_dot")):
            event(python, 701, "cuLaunchKernel", at + 20 + 30 * k, 10, correlation_id=number + k + 1)
            event(stream, 1, name, at + 60 + 100 * k, 90, correlation_id=number + k + 1)
        event(python, 701, "command_buffer", at + 150, 10, correlation_id=number + 9)
        event(copies, 1, "MemcpyD2H", at + 400, 50, correlation_id=number + 9)
    folder = tmp_path_factory.mktemp("jax")
    (folder / "vm.xplane.pb").write_bytes(xspace.encode(host, gpu))
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*listed, {}]}
    (folder / "vm.trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    return open_trace(folder / "vm.xplane.pb"), open_trace(folder / "vm.trace.json.gz")


def test_correlations_are_read_although_they_are_text(both: tuple[Trace, Trace]) -> None:
    plane, text = both
    for trace in both:
        assert len(trace.device_work) == 16
        assert trace.links.unmatched_work == 0
    names = [[trace.name(row) for row in trace.links.launches] for trace in both]
    assert names[0] == names[1] == [*["cuLaunchKernel"] * 3, "command_buffer"] * 4
    assert plane.device_indices == text.device_indices == (0,)


def test_steps_are_those_that_step_num_marks(both: tuple[Trace, Trace]) -> None:
    for trace in both:
        assert trace.steps.numbers.tolist() == [0, 1, 2, 3]
        assert (trace.steps.ends - trace.steps.starts).tolist() == [900_000] * 4
        assert trace.steps.step_of[trace.device_work].tolist() == sorted([0, 1, 2, 3] * 4)


def test_a_kernel_that_takes_a_semaphore_is_a_kernel(both: tuple[Trace, Trace]) -> None:
    for trace in both:
        kinds = dict(trace.events.select("name", "category").cast(str).iter_rows())
        assert kinds[DELAY] == kinds["loop_copy_fusion"] == "kernel"
        assert kinds["MemcpyD2H"] == "memcpy"


def test_it_is_said_to_be_jax_and_advised_as_such(both: tuple[Trace, Trace]) -> None:
    for trace in both:
        assert trace.info.framework == "JAX"
        assert Evidence(trace, {}).is_jax
        answer = report("kernel_launches", trace)
        assert answer.fact("launches_per_step") == 4


def test_a_run_on_a_cpu_misses_no_device() -> None:
    for name in ("selfgen-jax0102-cpu.trace.json.gz", "selfgen-jax0102-cpu.perfetto_trace.json.gz"):
        trace = open_trace(real_traces.path(name))
        assert trace.info.framework == "JAX"
        assert trace.steps.numbers.tolist() == [0, 1, 2, 3, 4]
        assert "no-device-work" not in {remark.code for remark in trace.trust.remarks}
