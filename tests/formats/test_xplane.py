"""XSpace files: real ones against figures read by another decoder, and what only a made one shows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xspace
from analyses.made import report
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tuiprof import analyses
from tuiprof.analyses.shared.replay import opening
from tuiprof.comparison.headline import headline
from tuiprof.errors import TraceError
from tuiprof.formats import open_trace, sniff
from tuiprof.formats.xplane.protobuf import PADDING, Buffer
from tuiprof.formats.xplane.space import decode
from tuiprof.model import Trace, Unavailable
from tuiprof.model.intervals import total, union
from tuiprof.model.steps import Uncaptured

REAL = (
    "selfgen-jax0102-cpu.xplane.pb",
    "tracelens-jax-te-fused-attn.xplane.pb",
    "tracelens-jax08-mi300-gemm.xplane.pb",
    "xprof-tpu-inference.xplane.pb",
)
MS = 1_000_000_000  # ps


def reference(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = real_traces.figures(name)
    return figures


@pytest.mark.parametrize("name", REAL)
def test_every_line_agrees_with_the_reference(name: str) -> None:
    space = decode(real_traces.path(name).read_bytes() + PADDING)
    expected = real_traces.figures(name)
    assert len(space) == expected["events_total"]
    assert not space.bad.any()
    assert [plane.name for plane in space.planes] == expected["plane_names"]
    names = [metadata.name for plane in space.planes for metadata in plane.events.values()]
    assert names
    for index, plane in enumerate(expected["planes"]):
        lines = [line for line in space.lines if line.plane == index]
        for line, figures in zip(lines, plane["lines"], strict=True):
            assert (line.name, line.count) == (figures["name"], figures["events"])
            rows = slice(line.first, line.first + line.count)
            # The reference rounds starts and lengths of picoseconds down to ns, each by itself.
            start = line.timestamp_ns + space.offset_ps[rows] // 1000
            length = space.duration_ps[rows] // 1000
            if line.count:
                assert int(start.min()) == figures["first_ns"]
                assert int((start + length).max()) == figures["last_ns"]
            assert int(length.sum()) == figures["total_ns"]
            assert total(*union(start, start + length)) == figures["union_ns"]
            assert len(np.unique(space.metadata[rows])) >= figures["distinct_names"]
            for top in figures["top"]:
                mine = [i for i, m in space.planes[index].events.items() if m.name[:120] == top["name"]]
                hit = np.isin(space.metadata[rows], mine)
                assert (int(hit.sum()), int(length[hit].sum())) == (top["count"], top["total_ns"])
        for key, value in plane["stats"].items():
            found = space.planes[index].values[key]
            if not isinstance(found, bytes):  # the reference shows bytes as text
                assert found == value, key


@pytest.mark.parametrize("name", REAL)
def test_real_files_open_and_keep_every_event(name: str) -> None:
    path = real_traces.path(name)
    assert sniff(path) == "xplane"
    trace = open_trace(path)
    instants = 0 if trace.instants is None else len(trace.instants)
    assert len(trace) + instants == trace.stats.events == real_traces.figures(name)["events_total"]
    assert (np.diff(trace.starts) >= 0).all()
    assert trace.links.unmatched_work == 0
    row = len(trace) // 2
    raw = json.loads(trace.raw_event(row))
    assert raw["plane"] == trace.tracks[int(trace.events["track"][row])].pid
    assert (
        raw["duration_ps"] // 1000 == pytest.approx(int(trace.events["dur"][row]), abs=1)
        or "Await" in raw["name"]
    )


def test_gpu_kernels_are_busy_for_as_long_as_the_reference_says() -> None:
    trace = open_trace(real_traces.path("tracelens-jax-te-fused-attn.xplane.pb"))
    assert total(*trace.busy(0)) == 12_133_127
    assert len(trace.links.launches) == 150
    launched = trace.events[trace.links.launch_of[trace.device_work]]["name"].unique().to_list()
    assert set(launched) == {
        "hipModuleLaunchKernel",
        "hipLaunchKernel",
        "hipMemsetAsync",
        "hipExtModuleLaunchKernel",
    }
    assert trace.info.devices[0].memory_bytes == 309220868096


def test_tpu_operations_belong_to_the_program_that_runs_them() -> None:
    trace = open_trace(real_traces.path("xprof-tpu-inference.xplane.pb"))
    assert trace.device_indices == (0, 1, 2, 3)
    launches = trace.events[trace.links.launches]
    assert launches["name"].unique().to_list() == ["DoEnqueueProgram"]
    work = trace.events[trace.device_work]
    assert work.filter(pl.col("name").cast(pl.String).str.starts_with("all-reduce"))[
        "category"
    ].unique().to_list() == ["collective"]
    assert work.filter(pl.col("name").cast(pl.String).str.starts_with("copy-done"))[
        "category"
    ].unique().to_list() == ["memcpy"]
    assert "clock-contradiction" in {remark.code for remark in trace.trust.remarks}


def test_jax_on_a_cpu() -> None:
    trace = open_trace(real_traces.path("selfgen-jax0102-cpu.xplane.pb"))
    assert trace.info.framework == "JAX 0.10.2"
    assert trace.info.origin_unix_ns == 1795241996944754377
    assert trace.steps.numbers.tolist() == [0, 1, 2, 3, 4]
    waits = trace.events.filter(
        (pl.col("name") == "CommonPjRtBuffer::Await") & (pl.col("category") == "runtime")
    )
    assert len(waits) == 5
    assert waits["dur"].min() > 100_000  # the marks themselves are half a µs long
    assert trace.trust.level == "info"
    frames = trace.events.filter(pl.col("category") == "python_function")["name"].to_list()
    assert "profiler.py(385): __init__" in frames


# -- made files ---------------------------------------------------------------------------------------------


def tpu(tmp_path: Path, shift_ps: int = 0) -> Trace:
    """Two programs on a TPU whose clock is ``shift_ps`` behind the host's."""
    device, host = xspace.Plane("/device:TPU:0"), xspace.Plane("/host:CPU")
    device.values = {"device_type_string": "TPU v6 Lite"}
    modules, ops, beside = (
        device.line(n, line_id=i) for i, n in ((2, "XLA Modules"), (3, "XLA Ops"), (4, "Async XLA Ops"))
    )
    counters = device.line("_counters_", line_id=9)
    main, worker = host.line("python"), host.line("futex-default-SDomainT/7")
    device.shared = {"%fusion.1 = f32[8]{0} fusion(f32[8]{0} %p)": {"hlo_category": "loop fusion"}}
    for run in (1, 2):
        t = run * 10 * MS
        main.event("train", t, 9 * MS, _r=1, step_num=run)
        main.event("forward", t + 1000, 5 * MS)
        main.event("TpuLoadedExecutable::ExecuteLaunch", t + 2000, 2 * MS)
        main.event("inner thing", t + 3000, 1000)
        main.event("DoEnqueueProgram", t + MS, MS // 2, run_id=run, device_ordinal=0)
        start = t + 2 * MS - shift_ps
        modules.event("jit_step(77)", start, 4 * MS + 500, run_id=run)
        ops.event("%fusion.1 = f32[8]{0} fusion(f32[8]{0} %p)", start, MS + 499)
        ops.event("%all-reduce.3 = f32[8]{0} all-reduce(f32[8]{0} %x)", start + MS + 499, MS)
        beside.event("%copy-start = (f32[8]{0}) copy-start(f32[8]{0} %y)", start, 3 * MS)
        counters.event("MXU", start, 0, **{"% util": 72.5})
        worker.event("CompleteCallbacks", t + 7 * MS, MS, run_id=run, device_ordinal=0)
        main.event("CommonPjRtBuffer::Await", t + 3 * MS, 500, _pt=0, _p=run)
        main.event("CommonPjRtBuffer::Await", t + 8 * MS, 700, _ct=0, _c=run)
    main.event("MemoryAllocation", 5 * MS, 0, allocation_bytes=4096, addr=1 << 40, bytes_allocated=8192)
    main.event("MemoryDeallocation", 6 * MS, 0, allocation_bytes=4096, addr=1 << 40, bytes_allocated=4096)
    environment = xspace.Plane("Task Environment", values={"profile_start_time": 1_790_000_000_000_000_000})
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(xspace.encode(device, host, environment))
    return open_trace(path)


def test_steps_that_are_counted_anew_are_all_there(tmp_path: Path) -> None:
    host = xspace.Plane("/host:CPU")
    main, python = host.line("main", line_id=1), host.line("python", line_id=2)
    for at, number in enumerate((0, 1, 2, 0, 1, 2)):
        main.event("train", at * 10 * MS, 9 * MS, _r=1, step_num=number)
        python.event(
            "train", at * 10 * MS + 1000, 9 * MS - 2000, _r=1, step_num=number
        )  # the same, seen there too
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(xspace.encode(host))
    trace = open_trace(path)
    assert trace.steps.numbers.tolist() == [0, 1, 2, 0, 1, 2]
    assert trace.steps.starts.tolist() == [at * 10 * MS // 1000 for at in range(6)]
    assert "3 of 6 steps repeat an earlier number" in trace.trust.text


def cpu_runs(tmp_path: Path, calls: int, first_us: int = 100) -> Trace:
    """Three steps whose program runs after the last mark, ``calls`` of them with the call that handed it over."""
    host = xspace.Plane("/host:CPU")
    python, pool = host.line("python"), host.line("tf_XLAPjRtCpuClient/7", line_id=7)
    us = 1_000_000
    for n in range(3):
        python.event("train", n * 20 * us, 10 * us, step_num=n)
        if n < calls:
            python.event("PjitFunction(<lambda>)", (n * 20 + 1) * us, 8 * us)
            python.event("PjitFunction(<lambda>)", (n * 20 + 2) * us, 6 * us)
            python.event("CommonPjRtLoadedExecutable::ExecuteHelper", (n * 20 + 3) * us, 4 * us)
        stats = {"hlo_op": "fusion", "hlo_module": "jit__lambda", "program_id": 4, "run_id": 900 + n}
        pool.event("fusion", (first_us + n * 50) * us, 40 * us, **stats)
    path = tmp_path / "made.xplane.pb"
    path.write_bytes(xspace.encode(host))
    return open_trace(path)


def test_what_runs_behind_a_call_belongs_to_the_step_of_the_call(tmp_path: Path) -> None:
    trace = cpu_runs(tmp_path, calls=3)
    work = np.flatnonzero(trace.named("^fusion$"))
    assert trace.steps.step_of[work].tolist() == [0, 1, 2]
    steps, kernels = report("steps", trace), report("kernels", trace)
    assert (steps.fact("step_median_ns"), steps.fact("step_period_ns")) == (10_000, 50_000)
    assert kernels.table("operators").rows.row(0, named=True)["per_step_ns"] == 40_000
    assert not kernels.notes


def test_the_host_of_a_cpu_program_that_runs_behind_it_is_not_taken_for_the_step(tmp_path: Path) -> None:
    trace = cpu_runs(tmp_path, calls=3)
    trace.uncaptured = Uncaptured(40, 8_000.0, 7_900.0, 8_100.0)  # the host launches a step and goes on
    page = opening(trace, "made")
    assert (page.step_ns, page.captured_step_ns) == (50_000, None)
    assert "slowed a step" not in page.trust
    assert headline(trace).analysis == "kernels", "not the table of syncs, which is empty"


@pytest.mark.parametrize(
    ("calls", "first_us"), [(2, 100), (3, 1)], ids=["a call is missing", "before its call"]
)
def test_runs_that_do_not_fit_the_calls_are_not_guessed_at_and_it_is_said(
    tmp_path: Path, calls: int, first_us: int
) -> None:
    trace = cpu_runs(tmp_path, calls, first_us)
    assert trace.dispatched is None
    kernels = report("kernels", trace)
    assert any("outside the steps" in note for note in kernels.notes)
    assert kernels.fact("self_ns_per_step") is None


def test_tpu_program(tmp_path: Path) -> None:
    trace = tpu(tmp_path)
    assert trace.info.devices[0].name == "TPU v6 Lite"
    assert trace.info.origin_unix_ns == 1_790_000_000_000_000_000
    assert trace.steps.numbers.tolist() == [1, 2]
    work = trace.events[trace.device_work]
    assert work["category"].to_list() == ["memcpy", "kernel", "collective"] * 2
    assert work["name"].to_list() == ["copy-start", "fusion.1", "all-reduce.3"] * 2
    assert trace.events[trace.links.launch_of[trace.device_work]]["name"].unique().to_list() == [
        "DoEnqueueProgram"
    ]
    # A device event belongs to the step of its launch.
    assert trace.steps.step_of[trace.device_work].tolist() == [0, 0, 0, 1, 1, 1]
    waits = trace.events.filter(
        pl.col("name").cast(pl.String).str.ends_with("Await") & (pl.col("category") == "runtime")
    )
    # From the first mark's start to the second one's end.
    assert waits["dur"].to_list() == [5 * MS // 1000] * 2
    assert trace.events.filter(pl.col("name") == "forward")["category"].unique().to_list() == ["annotation"]
    assert trace.events.filter(pl.col("name") == "inner thing")["category"].unique().to_list() == ["other"]
    assert trace.counters is not None
    assert trace.counters["value"].to_list() == [72.5, 72.5]
    assert trace.instants is not None
    assert trace.instants["bytes"].to_list() == [4096, -4096]
    assert "clock-shift" not in {remark.code for remark in trace.trust.remarks}


@pytest.mark.parametrize("name", ["logical_not", "tuiprof_waits_for_devices"])
def test_what_the_probe_has_a_tpu_compute_is_no_work(tmp_path: Path, name: str) -> None:
    device, host = xspace.Plane("/device:TPU:0"), xspace.Plane("/host:CPU")
    modules, ops = device.line("XLA Modules", line_id=2), device.line("XLA Ops", line_id=3)
    main, worker = host.line("python"), host.line("w/7", line_id=7)
    for run, program in ((1, "jit_step"), (2, f"jit_{name}(7)")):
        at = run * 10 * MS
        if run == 1:
            main.event("train", at, 9 * MS, _r=1, step_num=1)
        else:
            main.event("$jax_hooks.py:128 tuiprof_waits_for_devices", at, 9 * MS)
        enqueues = worker if name.startswith("tuiprof") else main
        enqueues.event("DoEnqueueProgram", at + MS, MS // 2, run_id=run, device_ordinal=0)
        modules.event(program, at + 2 * MS, 4 * MS, run_id=run)
        ops.event("%fusion.1 = x" if run == 1 else "%not.1 = x", at + 2 * MS, MS)
        worker.event("CompleteCallbacks", at + 7 * MS, MS, run_id=run, device_ordinal=0)
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(xspace.encode(device, host))
    trace = open_trace(path)
    assert [trace.name(row) for row in trace.device_work.tolist()] == ["fusion.1"]


@pytest.mark.parametrize(
    ("executes", "busy", "joined"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_calls_of_a_device_belong_to_the_thread_that_makes_them(
    tmp_path: Path, executes: bool, busy: bool, joined: bool
) -> None:
    """ROCm writes them to a line of their own."""
    device, host = xspace.Plane("/device:GPU:0"), xspace.Plane("/host:CPU")
    stream = device.line("Stream #2", line_id=2)
    calls, main, other = (
        host.line(name, line_id=number)
        for number, name in ((7, "Host Threads/7"), (99, "python3"), (98, "worker/98"))
    )
    for run in range(1, 4):
        at = run * 10 * MS
        main.event("GpuExecutable::ExecuteThunks" if executes else "wrapped", at, 4 * MS)
        if busy:
            other.event("PJRT_Buffer_Copy", at, 4 * MS)
        calls.event("hipModuleLaunchKernel", at + MS, MS // 2, correlation_id=run)
        stream.event("fusion.kd", at + 2 * MS, MS, correlation_id=run)
    path = tmp_path / "rocm.xplane.pb"
    path.write_bytes(xspace.encode(device, host))
    trace = open_trace(path)
    launches = trace.links.launches
    assert len(launches) == 3
    names = {trace.tracks[track].name for track in trace.track_codes[launches].tolist()}
    assert names == {"python3" if joined else "Host Threads/7"}


def test_touching_events_still_touch_in_whole_nanoseconds(tmp_path: Path) -> None:
    work = tpu(tmp_path).events.filter(pl.col("name").is_in(["fusion.1", "all-reduce.3"]))
    first, second = work.row(0, named=True), work.row(1, named=True)
    assert first["ts"] + first["dur"] == second["ts"]


def test_a_device_clock_that_lags_is_moved_and_said(tmp_path: Path) -> None:
    trace = tpu(tmp_path, shift_ps=3 * MS)
    work = trace.device_work
    latency = trace.starts[work] - trace.starts[trace.links.launch_of[work]]
    assert (latency >= 0).all()
    (remark,) = (remark for remark in trace.trust.remarks if remark.code == "clock-shift")
    assert "2.00 ms" in remark.text


def test_unix_time_in_lines(tmp_path: Path) -> None:
    host = xspace.Plane("/host:CPU")
    late = 1_700_000_000_000_000_000
    host.line("python", timestamp_ns=late + 5_000).event("a", 1_000, 2_000)
    host.line("worker/1", timestamp_ns=late).event("b", 0, 1_000)
    path = tmp_path / "old.xplane.pb"
    path.write_bytes(xspace.encode(host))
    trace = open_trace(path)
    assert trace.info.origin_unix_ns == late
    assert trace.events.select("name", "ts").rows() == [("b", 0), ("a", 5_001)]


def test_gzipped_file(tmp_path: Path) -> None:
    path = tmp_path / "copy.bin.gz"
    path.write_bytes(gzip.compress(real_traces.path(REAL[0]).read_bytes()))
    assert len(open_trace(path)) == 675


def test_memory_belongs_to_the_device_of_its_allocator() -> None:
    gpu = report("memory", open_trace(real_traces.path("tracelens-jax08-mi300-gemm.xplane.pb")))
    peaks = dict(gpu.table("places").rows.select("place", "peak").iter_rows())
    assert peaks == {"device 0": 482345216, "CPU": 256}  # GPU_0_bfc, and xla_gpu_host_bfc
    tpu = report("memory", open_trace(real_traces.path("xprof-tpu-inference.xplane.pb")))
    rows = tpu.table("places").rows
    # As libtpu says in `peak_bytes_in_use`, which it writes beside every allocation.
    assert dict(rows.select("place", "peak").iter_rows()) == {
        "device 0": 16106341504,
        **dict.fromkeys(("device 1", "device 2", "device 3"), 10737555584),
    }
    assert rows["n"].sum() == 453


def test_an_event_that_stands_for_many_is_no_memory_event(tmp_path: Path) -> None:
    host = xspace.Plane("/host:CPU")
    line = host.line("python").event("a", 0, 1000)
    line.events.append(xspace.number(1, host.event_id("many")) + xspace.number(5, 12))
    path = tmp_path / "one.xplane.pb"
    path.write_bytes(xspace.encode(host))
    assert isinstance(analyses.run("memory", open_trace(path)), Unavailable)


def test_a_file_that_went_through_a_text_tool() -> None:
    with pytest.raises(TraceError, match="processed as text") as caught:
        open_trace(real_traces.path("odd/odd-xplane-mangled-utf8-replaced.xplane.pb"))
    assert caught.value.remedy


def test_a_damaged_event_costs_only_itself(tmp_path: Path) -> None:
    host = xspace.Plane("/host:CPU")
    line = host.line("python").event("a", 0, 1000).event("b", 1000, 1000).event("c", 2000, 1000)
    line.events[1] = line.events[1][:-1] + b"\xff"  # a number without an end
    path = tmp_path / "one.xplane.pb"
    path.write_bytes(xspace.encode(host))
    trace = open_trace(path)
    assert trace.events["name"].to_list() == ["a", "c"]
    assert trace.stats.malformed == 1
    assert "malformed" in {remark.code for remark in trace.trust.remarks}


def test_cut_off_and_garbled_files_fail_cleanly(tmp_path: Path) -> None:
    whole = real_traces.path("selfgen-jax0102-cpu.xplane.pb").read_bytes()
    path = tmp_path / "x.xplane.pb"
    chance = random.Random(7)
    failures = 0
    for attempt in range(150):
        data = bytearray(whole)
        if attempt % 3 == 0:
            del data[chance.randrange(1, len(data)) :]
        else:
            for _ in range(chance.choice((1, 5, 50))):
                data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            trace = open_trace(path)
        except TraceError:
            failures += 1
        else:
            for row in range(0, len(trace), 97):
                trace.raw_event(row)
            assert trace.trust.line
    assert 30 < failures < 150


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**56 - 1, 2**56, 2**63, 2**64 - 1]),
        min_size=1,
    )
)
def test_varints_in_columns_are_those_read_one_by_one(values: list[int]) -> None:
    encoded = [xspace.varint(value) for value in values]
    at = np.cumsum([0, *(len(part) for part in encoded[:-1])])
    found, length = Buffer(b"".join(encoded) + PADDING).varints(at.astype(np.int64))
    assert found.tolist() == values
    assert length.tolist() == [len(part) for part in encoded]


def test_a_varint_without_end_has_an_impossible_length() -> None:
    _, length = Buffer(b"\xff" * 12 + PADDING).varints(np.array([0]))
    assert length.tolist() == [11]
