"""JAX's Trace Event JSON says what its XPlane says, though its arguments are text and no event has a category."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import xspace

from tests import real_traces
from tuiprof.advice import Evidence
from tuiprof.analyses import run
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace

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
        answer = run("kernel_launches", trace)
        assert isinstance(answer, Report)
        assert answer.fact("launches_per_step") == 4


def test_a_run_on_a_cpu_misses_no_device() -> None:
    for name in ("selfgen-jax0102-cpu.trace.json.gz", "selfgen-jax0102-cpu.perfetto_trace.json.gz"):
        trace = open_trace(real_traces.path(name))
        assert trace.info.framework == "JAX"
        assert trace.steps.numbers.tolist() == [0, 1, 2, 3, 4]
        assert "no-device-work" not in {remark.code for remark in trace.trust.remarks}
