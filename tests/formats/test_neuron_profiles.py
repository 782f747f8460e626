"""Neuron profiles: real JSON exports against reference figures, and Parquet directories as Explorer lays them out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import real_traces
from tests.analyses.made import report
from tuiprof.analyses import run
from tuiprof.errors import TraceError
from tuiprof.formats import open_trace, sniff
from tuiprof.model import Unavailable
from tuiprof.model.intervals import total, union

REAL = ("neuron-profile-fused-fp32-s512.json.gz", "neuron-profile-baseline-bf16-s512.json.gz")
ORIGIN = 1_790_000_000_000_000_000


@pytest.mark.parametrize("name", REAL)
def test_older_json_agrees_with_the_reference(name: str) -> None:
    path = real_traces.path(name)
    figures = real_traces.figures(name)
    assert sniff(path) == "neuron"
    trace = open_trace(path)
    tracks = np.array([track.name for track in trace.tracks])[trace.ints("track")]
    names = np.array(trace.names)[trace.name_codes]
    dur = trace.ints("dur")
    instruction = ~np.char.startswith(names.astype(str), "DMA ") | (names == "DMA_DIRECT2D")
    want = figures["instructions"]
    assert (int(instruction.sum()), int(dur[instruction].sum())) == (want["count"], want["total_duration_ns"])
    assert int(trace.starts[instruction].min()) == want["first_ns"]
    assert int(trace.ends[instruction].max()) == want["last_ns"]
    for engine, expected in want["by_engine"].items():
        mine = instruction & np.char.startswith(tracks.astype(str), engine)
        assert (int(mine.sum()), int(dur[mine].sum())) == (expected["count"], expected["total_ns"]), engine
        assert total(*union(trace.starts[mine], trace.ends[mine])) == expected["union_ns"]
    for opcode, expected in want["opcodes"].items():
        mine = instruction & (names == opcode)
        assert (int(mine.sum()), int(dur[mine].sum())) == (expected["count"], expected["total_ns"]), opcode
    for queue, expected in figures["dma"]["by_queue_type"].items():
        mine = names == f"DMA {queue}"
        assert (int(mine.sum()), int(dur[mine].sum())) == (expected["count"], expected["total_ns"]), queue
        assert int(trace.ints("bytes")[mine].sum()) == expected["bytes"]
        assert total(*union(trace.starts[mine], trace.ends[mine])) == expected["union_ns"]
    assert trace.instants is not None
    assert (
        trace.instants.filter(pl.col("category_text") == "semaphore").height == figures["semaphore_updates"]
    )
    assert trace.info.properties["summary"] == figures["summary"]
    assert trace.info.properties["metadata"] == figures["metadata"]
    said = [remark.text for remark in trace.trust.remarks if remark.code == "neuron-warning"]
    assert said == [f"Neuron says: {text}" for text in figures["warnings"]]
    assert trace.is_category("memcpy").sum() == figures["dma"]["count"]


def test_raw_rows_are_untouched() -> None:
    trace = open_trace(real_traces.path(REAL[0]))
    for row in (0, len(trace) // 2, len(trace) - 1):
        raw = json.loads(trace.raw_event(row))
        assert raw["timestamp"] == int(trace.starts[row])
        assert raw["duration"] == int(trace.events["dur"][row])


def test_monitor_recording() -> None:
    trace = open_trace(real_traces.path("neuron-monitor-wandb-3docs.ndjson"))
    assert len(trace) == 0
    assert trace.counters is not None
    used = trace.counters.filter((pl.col("name") == "neuron") & (pl.col("series") == "mem_used_bytes"))
    assert used["value"].max() == 102298328
    assert len(trace.info.devices) == 2
    assert "telemetry-only" in {remark.code for remark in trace.trust.remarks}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("neuron-fused-fp32-s512.ntff", ["view -n", "fused-fp32-s512.neff -s", "--output-format parquet"]),
        ("neuron-fused-fp32-s512.neff", ["not a trace", "view -n"]),
        ("neuron-inspect-ntrace.pb", ["view -d", "--output-format parquet"]),
        ("neuron-inspect-trace_info.pb", ["view -d"]),
        ("odd/odd-nsys-nvtx-not-neuron.parquet", ["Parquet table, not a trace"]),
    ],
)
def test_captures_say_what_to_run(name: str, words: list[str]) -> None:
    with pytest.raises(TraceError) as caught:
        open_trace(real_traces.path(name))
    assert all(word in str(caught.value) for word in words), str(caught.value)


# -- Parquet directories ------------------------------------------------------------------------------------


def write(folder: Path, table: str, rows: list[dict[str, Any]], parts: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    size = -(-len(frame) // parts)
    for part in range(parts):
        name = table if parts == 1 else f"{table}_{part}"
        frame[part * size : (part + 1) * size].write_parquet(folder / f"{name}.parquet")


def device_profile(folder: Path, version: str = "7.4.0", cores: int = 2) -> Path:
    rows = []
    for k in range(30):
        for core in range(cores):
            for engine, opcode in (("Tensor", "MATMUL"), ("sync", "EVENT_SEMAPHORE"), ("Pool", "IOTA")):
                start = k * 1500
                times = {"start_ts": start, "end_ts": start + 900, "duration_ns": 900}
                rows.append(times | {"engine": engine, "opcode": opcode, "pcore_idx": core, "id": len(rows)})
    write(folder, "Instruction", rows, parts=2)
    transfers = [{"start_ts": k * 3000, "end_ts": k * 3000 + 700, "duration_ns": 700, "queue_name": "qSyncIO0",
                  "queue_type": "input", "transfer_bytes": 4096} for k in range(10)]  # fmt: skip
    write(folder, "DmaPacketAggregated", transfers)
    write(folder, "DmaPacket", transfers * 4)  # the same bytes once more, packet by packet
    write(folder, "PendingDma", [{"timestamp": k * 1000, "value": k % 4, "pcore_idx": 0} for k in range(20)])
    collective = {"operation": "AllReduce", "stream_id": 1, "input_size": 1 << 20}
    write(folder, "CcOp", [{"start_ts": 100, "end_ts": 400, "duration_ns": 300} | collective])
    write(
        folder,
        "Metadata",
        [{"profile_schema_version": version, "is_simulation": False, "instance_type": "trn2.48xlarge"}],
    )
    return folder


def test_device_profile(tmp_path: Path) -> None:
    folder = device_profile(tmp_path / "dev_nc0@latest")
    for path in (folder, tmp_path, folder / "Instruction_1.parquet"):
        trace = open_trace(path)
        assert len(trace) == 30 * 2 * 3 + 10 + 1
    counts = dict(trace.events["category"].cast(pl.String).value_counts().rows())
    assert counts == {"kernel": 120, "sync": 60, "memcpy": 10, "collective": 1}
    assert {track.name for track in trace.tracks} >= {
        "Tensor 0",
        "Tensor 1",
        "Sync 0",
        "GpSimd 1",
        "DMA qSyncIO0",
    }
    assert trace.events.filter(pl.col("category") == "memcpy")["bytes"].sum() == 40960
    assert trace.counters is not None
    assert trace.counters["value"].to_list() == [float(k % 4) for k in range(20)]
    assert "trn2.48xlarge" in trace.info.devices[0].name
    assert "schema" not in {remark.code for remark in trace.trust.remarks}
    raw = json.loads(trace.raw_event(len(trace) - 1))
    assert raw["start_ts"] == int(trace.starts[-1])


def test_another_schema_is_read_by_its_names_and_said(tmp_path: Path) -> None:
    folder = device_profile(tmp_path / "p@latest", "13.0.0")
    frame = pl.concat(pl.read_parquet(folder / f"Instruction_{part}.parquet") for part in range(2))
    for part in range(2):
        (folder / f"Instruction_{part}.parquet").unlink()
    # A column is gone, one has become text, one has become 32 bits wide.
    frame.drop("duration_ns").with_columns(
        pl.col("start_ts").cast(pl.String), pl.col("end_ts").cast(pl.Int32)
    ).write_parquet(folder / "Instruction.parquet")
    trace = open_trace(folder)
    assert trace.events.filter(pl.col("name") == "MATMUL")["dur"].unique().to_list() == [900]
    (remark,) = (remark for remark in trace.trust.remarks if remark.code == "schema")
    assert "13.0.0" in remark.text


def test_damaged_and_missing_tables(tmp_path: Path) -> None:
    folder = device_profile(tmp_path / "p@latest")
    (folder / "CcOp.parquet").unlink()
    assert not open_trace(folder).is_category("collective").any()
    path = folder / "Instruction_1.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(TraceError, match="is a damaged Parquet"):
        open_trace(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="contains no trace"):
        open_trace(tmp_path / "empty")


def system_profile(folder: Path) -> Path:
    rows: list[dict[str, Any]] = []

    def event(name: str, start: int, end: int, source: str = "neuron_rt", **more: Any) -> None:
        row = {"id": 2**53 + len(rows), "name": name, "start_ts": ORIGIN + start, "end_ts": ORIGIN + end,
               "duration_ns": end - start, "trace_event_source": source, "instance_id": "i-0", "process_id": 41,
               "thread_id": 41, "nc_idx": None,
               "pcore_idx": None, "flow_id": None, "extra_attributes_json": None}  # fmt: skip
        rows.append(row | more)

    for step in range(4):
        t, flow = step * 10_000_000, [str(1000 + step)]
        event(f"ProfilerStep#{step}", t, t + 9_900_000, "framework", flow_id=flow)
        event("train.py(41): step", t, t + 9_600_000, "framework", flow_id=flow)
        event("nrt_tensor_write", t + 50_000, t + 420_000, extra_attributes_json='{"size": 4194304}')
        event("dmem_buf_copyin", t + 90_000, t + 400_000, extra_attributes_json='{"size": "4194304"}')
        launch = "nrta_execute_schedule" if step == 3 else "nrt_execute"
        event(launch, t + 500_000, t + 8_500_000, flow_id=flow)
        event("kbl_exec_wait", t + 615_000, t + 8_400_000)
        for core in (0, 1):
            event(
                "nc_exec_running",
                t + 620_000 + core * 900,
                t + 8_300_000,
                "neuron_hw",
                nc_idx=0,
                pcore_idx=core,
                flow_id=flow,
            )
        event("cc_running", t + 3_000_000, t + 3_400_000, "neuron_hw", nc_idx=0, pcore_idx=0)
    event("nrt_load", 40_000_000, 90_000_000)
    event("something_new", 90_000_000, 90_000_100)
    write(folder, "SystemProfileEvents", rows)
    write(
        folder,
        "CpuUsage",
        [{"timestamp": ORIGIN + 5, "util_percent": 20.0, "cpu_id": "average", "instance_id": "i-0"}],
    )
    return folder


def test_system_profile(tmp_path: Path) -> None:
    trace = open_trace(system_profile(tmp_path / "profiles/global/sys@latest"))
    assert trace.info.origin_unix_ns == ORIGIN
    assert trace.steps.numbers.tolist() == [0, 1, 2, 3]
    kernels = np.flatnonzero(trace.is_category("kernel"))
    assert len(kernels) == 8
    launches = trace.events[trace.links.launch_of[kernels]]["name"].cast(pl.String).to_list()
    assert launches == ["nrt_execute"] * 6 + ["nrta_execute_schedule"] * 2
    assert trace.steps.step_of[kernels].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    # Two physical cores work at the same time: the union, not the sum.
    starts, ends = trace.busy(0)
    assert total(starts, ends) == 4 * (8_300_000 - 620_000)
    assert trace.ints("bytes")[trace.ints("bytes") > 0].tolist() == [4194304] * 4  # named twice, moved once
    category = dict(
        zip(trace.events["name"].cast(pl.String), trace.events["category"].cast(pl.String), strict=True)
    )
    assert category["kbl_exec_wait"] == "runtime"
    assert category["nrt_load"] == "compile"
    assert category["train.py(41): step"] == "python_function"
    assert category["something_new"] == "runtime"
    assert trace.counters is not None
    assert trace.counters.select("ts", "value").row(0) == (5, 20.0)


def test_several_profiles_are_named(tmp_path: Path) -> None:
    system_profile(tmp_path / "profiles/global/sys@latest")
    device_profile(tmp_path / "profiles/global/dev_nc0@latest")
    with pytest.raises(TraceError, match="2 Neuron profiles") as caught:
        open_trace(tmp_path)
    assert "profiles/global/dev_nc0@latest" in caught.value.remedy


def test_older_system_json(tmp_path: Path) -> None:
    event = {
        "name": "nrt_execute",
        "timestamp": ORIGIN,
        "duration": 500,
        "group": "nrt-nc-000",
        "process_id": "41",
        "thread_id": 7,
    }
    running = event | {"name": "nc_exec_running", "timestamp": ORIGIN + 100, "exec_id": "3", "nc_idx": 0}
    for key in ("trace_event", "trace_events"):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({key: [event | {"exec_id": "3", "nc_idx": 0}, running], "mem_usage": []}))
        trace = open_trace(path)
        assert trace.events["category"].cast(pl.String).to_list() == ["runtime", "kernel"]
        assert trace.links.launch_of.tolist() == [-1, 0]


def test_summary_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(
        json.dumps({"n_427efdc00a1c": {"total_time": 5.4e-05, "mfu_estimated_percent": 0.1, "nc_idx": 4}})
    )
    trace = open_trace(path)
    assert len(trace) == 0
    assert trace.info.properties["summary"]["n_427efdc00a1c"]["nc_idx"] == 4  # type: ignore[index]
    assert "summary-only" in {remark.code for remark in trace.trust.remarks}


def test_damaged_json(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"instruction": [{"timestamp": 1, "dur')
    with pytest.raises(TraceError, match="damaged"):
        open_trace(path)


def test_kineto_files_are_not_taken_for_neuron() -> None:
    for path in real_traces.paths("*.json*"):
        if not path.name.startswith(("neuron", "reference", "figures")):
            assert sniff(path) == "kineto", path


def test_rows_that_lack_a_time(tmp_path: Path) -> None:
    def event(name: str, **times: int | None) -> dict[str, Any]:
        nowhere = dict.fromkeys(("start_ts", "end_ts", "duration_ns"))
        return {"name": name, "trace_event_source": "neuron_rt", "process_id": 1, **nowhere, **times}

    folder = tmp_path / "sys@latest"
    rows = [
        event("whole", start_ts=ORIGIN + 10, end_ts=ORIGIN + 30, duration_ns=20),
        event("no length", start_ts=ORIGIN + 40, end_ts=ORIGIN + 70),
        event("no end either", start_ts=ORIGIN + 80),
        event("nowhere", end_ts=ORIGIN + 90),
    ]
    write(folder, "SystemProfileEvents", rows)
    trace = open_trace(folder)
    assert trace.events.select(pl.col("name").cast(pl.String), "ts", "dur").rows() == [
        ("whole", 0, 20),
        ("no length", 30, 30),
        ("no end either", 70, 0),
    ]
    assert (trace.info.origin_unix_ns, trace.stats.malformed) == (ORIGIN + 10, 1)


@pytest.mark.parametrize(
    ("column", "change", "kept"),
    [
        ("opcode", pl.col("opcode").cast(pl.Binary), 60),  # of no kind that is text: all are nameless
        ("start_ts", pl.lit("no number"), 0),
        ("start_ts", pl.lit(float("nan")), 0),
        ("start_ts", pl.lit(1 << 62, dtype=pl.Int64), 0),
        ("end_ts", pl.concat_list("end_ts", "end_ts"), 60),
        ("duration_ns", pl.lit(-(1 << 63), dtype=pl.Int64), 60),  # then the end tells
        ("duration_ns", pl.lit((1 << 63) - 1, dtype=pl.Int64), 0),
        ("pcore_idx", pl.struct("pcore_idx", "engine"), 60),
        ("engine", pl.col("engine").cast(pl.Categorical), 60),
        ("opcode", pl.lit(None), 60),
    ],
)
def test_a_column_of_another_type_costs_no_more_than_it_must(
    column: str, change: pl.Expr, kept: int, tmp_path: Path
) -> None:
    folder = device_profile(tmp_path / "p@latest", cores=2)
    for part in range(2):
        path = folder / f"Instruction_{part}.parquet"
        frame = pl.read_parquet(path)
        if part == 0:
            frame = frame.with_columns(change.alias(column))
        frame.write_parquet(path)
    trace = open_trace(folder)
    count = int((~trace.is_category("memcpy", "collective")).sum())
    assert count == 90 + {60: 90, 0: 0}[kept]
    assert trace.stats.malformed == (0 if kept else 90)
    assert all(trace.raw_event(row) for row in range(0, len(trace), 10))


def test_mixed_values_of_json_are_read_one_by_one(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "duration": 5, "opcode": "A"},
        {"timestamp": "10", "duration": 5.0, "opcode": 7},
        {"timestamp": [20, 21], "duration": "5", "opcode": ["B"]},
        {"timestamp": {"a": 1}, "duration": 5, "opcode": "lost"},
        {"timestamp": 1 << 64, "duration": 5, "opcode": "lost"},
        {"timestamp": 30, "duration": None, "opcode": None},
        {"timestamp": 40, "duration": 5, "opcode": {"x": 1}},
    ]
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"instruction": rows}))
    trace = open_trace(path)
    assert trace.events.select(pl.col("name").cast(pl.String), "ts", "dur").rows() == [
        ("A", 0, 5),
        ("7", 10, 5),
        ("B", 20, 5),
        ("", 30, 0),
        ("", 40, 5),
    ]
    assert trace.stats.malformed == 2


def test_json_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b'{"instruction": [{"timestamp": 1, "opcode": "\xfa\xfb"}]}')
    with pytest.raises(TraceError, match="is damaged") as caught:
        open_trace(path)
    assert caught.value.remedy


def test_tables_without_rows_and_damaged_properties(tmp_path: Path) -> None:
    folder = system_profile(tmp_path / "sys@latest")
    events = folder / "SystemProfileEvents.parquet"
    pl.read_parquet(events).head(0).write_parquet(events)
    assert len(open_trace(folder)) == 0
    (folder / "Metadata.parquet").write_bytes(b"PAR1 this is none")
    with pytest.raises(TraceError, match=r"Metadata\.parquet is a damaged Parquet file"):
        open_trace(folder)


def test_a_folder_with_brackets_in_its_name(tmp_path: Path) -> None:
    assert len(open_trace(device_profile(tmp_path / "run[1]=*" / "p@latest"))) == 191


# -- neuron-monitor -----------------------------------------------------------------------------------------


def monitored(util: float, **more: Any) -> dict[str, Any]:
    cores = {"0": {"neuroncore_utilization": util}, "5": {"neuroncore_utilization": util / 2}}
    counters = {"neuroncore_counters": {"period": 2.0, "neuroncores_in_use": cores}}
    hardware = {"neuron_device_type": "trainium2", "neuron_device_count": 1, "neuroncore_per_device_count": 8}
    runtimes = [{"pid": 1, "report": counters}]
    return {"neuron_runtime_data": runtimes, "neuron_hardware_info": hardware, **more}


def recorded(path: Path, *documents: Any) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def test_utilisation_is_reported(tmp_path: Path) -> None:
    trace = open_trace(recorded(tmp_path / "m.ndjson", monitored(40.0), monitored(80.0)))
    assert not any("CPU-only" in remark.text for remark in trace.trust.remarks)
    answer = report("device_idle", trace)
    assert answer.fact("reported_util_mean") == pytest.approx(0.45)
    assert answer.fact("reported_util_max") == pytest.approx(0.8)
    assert answer.fact("idle_share") == pytest.approx(0.55)
    devices = answer.table("devices").rows
    assert devices["device"].to_list() == ["nc0", "nc5"]
    assert devices["util_mean"].to_list() == pytest.approx([0.6, 0.3])
    assert "the other 6 of 8 are not in use" in answer.verdict.sentence
    for name in ("sync_events", "kernels", "steps", "advice"):
        other = run(name, trace)
        assert isinstance(other, Unavailable)
        assert "neuron-monitor" in other.reason
        assert "device_idle" in other.remedy


def test_reports_that_somebody_numbered_lose_no_core(tmp_path: Path) -> None:
    numbered = open_trace(
        recorded(tmp_path / "m.json", {"1": monitored(40.0)}, {"2": monitored(80.0), "x": 3})
    )
    plain = open_trace(recorded(tmp_path / "n.json", monitored(40.0), monitored(80.0)))
    assert numbered.counters is not None
    assert plain.counters is not None
    assert numbered.counters.equals(plain.counters)
    by_process = monitored(40.0)
    by_process["neuron_runtime_data"] = {"1": by_process["neuron_runtime_data"][0]}
    assert open_trace(recorded(tmp_path / "p.json", by_process)).info.devices == plain.info.devices


def test_compressed_and_damaged_recordings(tmp_path: Path) -> None:
    path = recorded(tmp_path / "m.ndjson", monitored(40.0), monitored(80.0), monitored(20.0))
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data))
    assert open_trace(path).stats.events == 3
    path.write_bytes(data[:-40])
    cut = open_trace(path)
    assert (cut.stats.events, cut.stats.malformed) == (2, 1)
    path.write_bytes(gzip.compress(data * 3000)[:-300])
    broken = open_trace(path)
    assert broken.stats.truncated
    assert 1000 < broken.stats.events < 9000
    path.write_text('{"other": 1}\n{"neuron_runtime_data": nonsense}\n')
    with pytest.raises(TraceError, match="contains no readable report of neuron-monitor"):
        open_trace(path)


@pytest.mark.parametrize(
    "more",
    [
        {"neuron_hardware_info": {"neuron_device_count": 1e9, "neuroncore_per_device_count": 1e9}},
        {"neuron_hardware_info": {"neuron_device_count": float("inf"), "neuroncore_per_device_count": float("nan")}},
        {"neuron_hardware_info": {"neuron_device_count": 2, "neuroncore_per_device_count": 0.5,
                                  "neuron_device_memory_size": 1 << 36}},
        {"system_data": {"vcpu_usage": {"period": 1e300}}},
        {"neuron_runtime_data": [{"pid": float("nan"), "report": {"neuroncore_counters": {"neuroncores_in_use": {
            "²": {"neuroncore_utilization": 1}, "9" * 30: {}, "0": {"v3d": {"x.9999999": {}}}}}}}]},
    ],
)  # fmt: skip
def test_figures_that_cannot_be_true_are_none(more: dict[str, Any], tmp_path: Path) -> None:
    trace = open_trace(recorded(tmp_path / "m.ndjson", monitored(40.0), monitored(40.0, **more)))
    assert len(trace.info.devices) <= 8
    assert trace.stats.events == 2
