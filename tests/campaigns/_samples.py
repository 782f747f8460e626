"""Sound files of every kind that is read, small enough to be damaged and read a thousand times."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import real_traces
from tests.formats import xspace
from tests.formats.test_neuron_profiles import ORIGIN, device_profile, system_profile
from tuiprof.resources import shipped


def in_lines(event: dict[str, Any]) -> str:
    """Lay an event out as libkineto does, which has a reader of its own."""

    def pairs(values: dict[str, Any]) -> str:
        return ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())

    head = pairs({key: event[key] for key in ("ph", "cat", "name", "pid", "tid")})
    times = pairs({key: event[key] for key in ("ts", "dur") if key in event})
    args = pairs(dict(event["args"]))
    return f'\n  {{\n    {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def as_kineto(document: Any) -> str:
    """Lay a trace out as libkineto does, as far as its events are still like libkineto's."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return json.dumps(document)
    events = []
    for event in document["traceEvents"]:
        try:
            events.append(in_lines(event))
        except (KeyError, TypeError, ValueError):
            events.append(json.dumps(event))
    around = json.dumps({key: value for key, value in document.items() if key != "traceEvents"})
    return f'{around[:-1]}, "traceEvents": [{",".join(events)}\n  ]\n}}'


# -- Kineto ---------------------------------------------------------------------------------------------------


@functools.cache
def kineto_documents() -> tuple[dict[str, Any], ...]:
    """Return traces of PyTorch: two steps of a shipped sample each, and small real ones of other vendors."""
    names = (
        "hta-cpu-only-rank34.pt.trace.json.gz",
        "hta-event-sync-a100.json.gz",
        "hta-mi250-rocm62-train.json.gz",
        "tracelens-mi300-compile-triton.json.gz",
        "aiter-mi308x.json",
        "xpu-kineto-fixture.json",
    )
    return *(_excerpt(name) for name in ("planted-syncs", "metrics-naive")), *_real(names)


def _real(names: Sequence[str]) -> list[Any]:
    return [_load(path) for name in names for path in real_traces.paths(name)]


def _load(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _excerpt(name: str) -> dict[str, Any]:
    """Return the beginning of a sample's second step, with the launches that the work before it belongs to."""
    document = _load(shipped("traces") / f"{name}.pt.trace.json.gz")
    events = document["traceEvents"]
    steps = [
        e for e in events if e.get("name", "").startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    ]
    second = sorted(steps, key=lambda event: event["ts"])[1]
    inside = [
        e for e in events if second["ts"] - 500 <= e.get("ts", -1) <= second["ts"] + second["dur"] + 2000
    ]
    chosen = sorted((e for e in inside if e.get("cat") != "python_function"), key=lambda event: event["ts"])[
        :500
    ]
    frames = [e for e in inside if e.get("cat") == "python_function"][::12]
    marks = [e for e in events if e["ph"] == "M"]
    return {**document, "traceEvents": [*marks, *steps, *frames[:150], *chosen]}


def odd_kineto(rng: random.Random) -> bytes:
    """Return a small trace of many kinds of events, sound but odd."""
    base = rng.choice([0, 5_590_677_567_805, 1_700_000_000_000_000])
    events: list[dict[str, Any]] = []
    for i in range(rng.randrange(12)):
        phase = rng.choice("XXXXXXBEiCMsfbe")
        event: dict[str, Any] = {
            "ph": phase,
            "cat": rng.choice(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation", "odd"]),
            "name": rng.choice(["a", "ProfilerStep#3", "ü \u2028", "cudaLaunchKernel", "[memory]", '"},{"']),
            "pid": rng.choice([0, 1, "Spans", -1, 1 << 63]),
            "tid": rng.choice([7, "7", "x", 1 << 64]),
            "ts": base + rng.choice([i, i + 0.5, i + 0.125, i * 1e-6]),
            "args": rng.choice(
                [{"correlation": i, "stream": 7}, {"bytes": 3, "Bytes": 4, "Addr": 1 << 60}, {}, {"v": 1.5}]
            ),
        }
        if phase == "X":
            event["dur"] = rng.choice([0, 1, 2.5, 1e-6, 1e6])
        events.append(event)
    if rng.random() < 0.5:
        text = "[" + ",".join(in_lines(event) for event in events) + "\n]"
    else:
        text = json.dumps(events, indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        return text.encode()
    return (
        f'{{"schemaVersion": 1, "traceEvents": {text}, "traceName": "x", "baseTimeNanoseconds": 17}}'.encode()
    )


# -- Trace Event JSON of others -------------------------------------------------------------------------------


@functools.cache
def perfetto_documents() -> tuple[Any, ...]:
    """Return traces of JAX, of Perfetto's and Chrome's own tools: pairs, flows, counters, asynchronous ranges."""

    def event(ph: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": 2, **more}

    made = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]
    for i in range(40):
        made += [
            event("X", f"fusion.{i % 5}", 10 * i, dur=8, args={"correlation_id": str(i), "run_id": "3"}),
            event("X", "PjitFunction(step)", 10 * i - 5, dur=4, pid=3, args={"correlation_id": str(i)}),
            event("X", "train", 10 * i - 6, dur=9, pid=3, tid=9, args={"step_num": str(i)}),
            event("B", "outer", 10 * i, tid=5), event("E", "outer", 10 * i + 7, tid=5),
            event("b", "request", 10 * i, id=f"0x{i}", cat="rpc"),
            event("e", "request", 10 * i + 3, id=f"0x{i}", cat="rpc"),
            event("C", "memory", 10 * i, args={"used": i, "free": 1.5}),
            event("i", "mark", 10 * i, s="g"),
            event("s", "flow", 10 * i, id=i, bind_id="0x1"), event("f", "flow", 10 * i + 2, id=i, bp="e"),
        ]  # fmt: skip
    names = (
        "selfgen-jax0102-cpu.perfetto_trace.json.gz",
        "selfgen-jax0102-cpu.trace.json.gz",
        "aiter-rocprof-v1.json",
        "odd/odd-catapult-simple.json",
        "odd/odd-flow-v2-bind-ids.json",
        "odd/odd-negative-dur-viztracer.json.gz",
    )
    whole = {"displayTimeUnit": "ns", "metadata": {"a": {"b": [1]}}, "traceEvents": made}
    return whole, made, *_real(names)


# -- XLA ------------------------------------------------------------------------------------------------------


@functools.cache
def spaces() -> tuple[bytes, ...]:
    """Return XSpaces: of JAX on a CPU, and a made one of a TPU and a GPU."""
    found = [gzip.decompress((shipped("traces") / "jax-async.xplane.pb.gz").read_bytes()), _accelerators()]
    return tuple(found)


def _accelerators() -> bytes:
    host, tpu, gpu = xspace.Plane("/host:CPU"), xspace.Plane("/device:TPU:0"), xspace.Plane("/device:GPU:1")
    python, ops, modules = (
        host.line("python", 1000),
        tpu.line("XLA Ops", 900),
        tpu.line("XLA Modules", 900, 2),
    )
    steps, stream = tpu.line("Steps", 900, 3), gpu.line("Stream #13(Compute)", 1000)
    tpu.values |= {"device_type_string": "TPU v5", "peak_teraflops_per_second": 197.0, "dropped_traces": 3}
    tpu.shared["fusion.1"] = {"hlo_category": "convolution fusion", "flops": 1 << 40}
    for i in range(30):
        at = i * 1_000_000
        python.event("train", at, 900_000, step_num=i)
        python.event("TpuExecutable::EnqueueExecution", at + 1000, 50_000, run_id=i, device_ordinal=0)
        python.event("Await", at + 60_000, 10, _pt=0, _p=i)
        python.event("Await", at + 800_000, 10, _ct=0, _c=i)
        python.event("cuLaunchKernel", at + 2000, 500, correlation_id=i + 1)
        python.event(
            "MemoryAllocation", at, 0, allocation_bytes=512, addr=i, bytes_allocated=1024, index_on_host=0
        )
        modules.event("jit_step(7)", at + 70_000, 600_000, run_id=i)
        ops.event("fusion.1", at + 70_000, 300_000, flops=1 << 30)
        ops.event("%copy-start.2", at + 400_000, 200_000, bytes_accessed=4096)
        steps.event(str(i), at + 70_000, 600_000, step_num=i)
        stream.event(
            "loop_fusion", at + 90_000, 40_000, correlation_id=i + 1, kernel_details="regs:32 grid:1,1,1"
        )
        stream.event(
            "MemcpyD2H", at + 200_000, 40_000, correlation_id=i + 1, memcpy_details="kind:d2h size:4096"
        )
    return xspace.encode(host, tpu, gpu)


# -- Neuron ---------------------------------------------------------------------------------------------------


@functools.cache
def neuron_documents() -> tuple[Any, ...]:
    """Return exports of neuron-profile as JSON: of a core, of the system, a summary."""
    instructions = [
        {"timestamp": 1500 * k, "duration": 900, "subgroup": ("pe", "act", "sp")[k % 3], "opcode": "MATMUL",
         "label": "q", "subgraph": k % 2, "evt_wait_time": 3}
        for k in range(60)
    ]  # fmt: skip
    device = {
        "instruction": instructions,
        "dma": [{"timestamp": 3000 * k, "duration": 700, "transfer_size": 4096, "queue_name": "qSyncIO0",
                 "queue_type": "input", "dma_engine": 3} for k in range(20)],
        "semaphore_update": [{"timestamp": k, "id": k % 3, "value": k, "update_source": "pe"} for k in range(9)],
        "pending_dma": [{"timestamp": 1000 * k, "value": k % 4} for k in range(20)],
        "cc_op": [{"timestamp": 100, "duration": 300, "operation": "AllReduce", "stream_id": 1, "input_size": 4096}],
        "warnings": [{"message": "dropped"}],
        "metadata": [{"profile_schema_version": "7.4.0", "instance_type": "trn2.48xlarge", "is_simulation": False}],
        "summary": [{"total_time": 5.4e-05, "instance_type": "trn2"}],
    }  # fmt: skip
    system = {
        "trace_event": [
            {"name": name, "timestamp": ORIGIN + 1000 * k, "duration": 500, "group": "nrt-nc-000", "process_id": "41",
             "thread_id": 7, "exec_id": str(k), "nc_idx": 0, "lnc_idx": 0, "flow_id": [str(k)], "size": 4096}
            for k in range(20) for name in ("ProfilerStep#1", "nrt_execute", "nc_exec_running", "dmem_buf_copyin")
        ],
        "cpu_util": [{"timestamp": ORIGIN + k, "util": 20.5, "cpu_id": "average"} for k in range(5)],
        "mem_usage": [{"timestamp": ORIGIN + k, "usage": 1 << 30, "instance_id": "i-0"} for k in range(5)],
    }  # fmt: skip
    summary = {"n_427efdc00a1c": {"total_time": 5.4e-05, "mfu_estimated_percent": 0.1, "nc_idx": 4}}
    return device, system, summary


def write_neuron_tables(folder: Path, rng: random.Random) -> None:
    """Write a directory of Parquet tables as Neuron Explorer does."""
    if rng.random() < 0.5:
        device_profile(folder)
    else:
        system_profile(folder)


@functools.cache
def monitor_documents() -> tuple[list[Any], ...]:
    """Return recordings of neuron-monitor, each as its documents."""
    core = {"neuroncore_utilization": 71.5, "flops": 38_211_000_000_000,
            "v3d": {f"nc_v3.{k}": {"neuroncore_utilization": 71.0 + k} for k in range(2)}}  # fmt: skip
    used = {"host": 1 << 20, "neuron_device": 1 << 30,
            "usage_breakdown": {"neuroncore_memory_usage": {"0": {"constants": 5, "tensors": 1 << 29}}}}  # fmt: skip
    stats = {"period": 2.0, "error": "", "error_summary": {"generic": 2}, "execution_summary": {"completed": 96},
             "latency_stats": {"total_latency": {"p50": 0.0102, "p99": 0.0131}, "device_latency": None}}  # fmt: skip
    report = {
        "neuroncore_counters": {"period": 1.0, "neuroncores_in_use": {"0": core, "1": core}, "error": ""},
        "memory_used": {"period": 1.0, "neuron_runtime_used_bytes": used, "error": ""},
        "execution_stats": stats,
    }
    document = {
        "neuron_runtime_data": [{"pid": 41, "error": "", "report": report}],
        "system_data": {
            "vcpu_usage": {"period": 1.0, "average_usage": {"user": 1.0, "idle": 95.5, "io_wait": 0.5}, "error": ""},
            "neuron_hw_counters": {"neuron_devices": [{"mem_ecc_corrected": 1, "sram_ecc_uncorrected": 0}]},
        },
        "instance_info": {"instance_type": "trn2.48xlarge", "error": ""},
        "neuron_hardware_info": {"neuron_device_type": "trainium2", "neuron_device_count": 2,
                                 "neuroncore_per_device_count": 8, "neuron_device_memory_size": 96 << 30, "error": ""},
    }  # fmt: skip
    return (
        [document] * 4,
        [{"1": document}] * 2,
        *(
            [json.loads(line) for line in path.read_bytes().splitlines()]
            for path in real_traces.paths("neuron-monitor-*.ndjson")
        ),
    )
