"""Host waits in XLA's traces: pairs of marks, reads that enclose them, and what the runtime's own threads do."""

from __future__ import annotations

from functools import partial

import pytest
from analyses.made import BACKWARD, Made
from analyses.made import report as report_of

from tests import real_traces
from tuiprof.analyses import run
from tuiprof.formats import open_trace
from tuiprof.model import Unavailable

AWAIT = "CommonPjRtBuffer::Await"


report = partial(report_of, "sync_events")


def test_the_same_waits_in_both_formats_of_one_recording() -> None:
    waits = []
    for ending in ("xplane.pb", "trace.json.gz", "perfetto_trace.json.gz"):
        found = report(open_trace(real_traces.path(f"selfgen-jax0102-cpu.{ending}")))
        rows = found.table("syncs").rows.sort("start_ns")
        assert rows["kind"].to_list() == ["await"] * 5
        waits.append(rows["blocked_ns"].to_list())
        assert found.table("calls").rows.select("call", "count").rows() == [(AWAIT, 5)]
        assert (
            found.table("calls").rows["total_ns"][0] == sum(waits[-1]) == found.fact("host_blocked_union_ns")
        )
    for exact, *others in zip(*waits, strict=True):  # JSON rounds to ns what the plane has in ps
        assert all(abs(other - exact) <= 2 for other in others)


def test_a_tpus_read_is_the_hosts_and_not_the_transfer_of_the_runtimes_threads() -> None:
    found = report(open_trace(real_traces.path("xprof-tpu-inference.xplane.pb")))
    assert found.table("calls").rows.select("call", "count").rows() == [("np.asarray(jax.Array)", 9)]
    assert found.table("groups").rows["kind"].to_list() == ["device read"]


def test_two_marks_with_nothing_between_them_are_one_wait() -> None:
    made = Made().add("other", AWAIT, 10, 10.3).add("other", AWAIT, 80, 80.4)
    made.add("other", "PjitFunction(step)", 90, 95)
    made.add("other", AWAIT, 100, 100.3)  # the buffer was ready: one mark
    made.add("other", "PjitFunction(step)", 110, 115)
    made.add("other", AWAIT, 120, 120.3).add("other", AWAIT, 150, 150.2)
    rows = report(made.trace()).table("syncs").rows.sort("start_ns")
    assert rows["blocked_ns"].to_list() == [70_400, 300, 30_200]


def test_a_read_encloses_its_await_and_is_one_wait() -> None:
    made = Made().add("other", "np.asarray(jax.Array)", 5, 90)
    made.add("other", AWAIT, 10, 10.3).add("other", AWAIT, 80, 80.4)
    made.add("other", "CommonPjRtBuffer::ToLiteral", 120, 125)  # only starts the transfer
    rows = report(made.trace()).table("syncs").rows
    assert rows.select("kind", "blocked_ns").rows() == [("device read", 85_000)]


def test_one_device_get_is_one_wait_and_none_where_nothing_was_read() -> None:
    made = Made().add("python_function", "api.py(2555): device_get", 5, 95)
    for at in (20, 60):  # of two arrays
        made.add("other", "np.asarray(jax.Array)", at, at + 30)
    made.add("python_function", "api.py(2555): device_get", 100, 120)  # of what is on the host already
    rows = report(made.trace()).table("syncs").rows
    assert rows.select("kind", "blocked_ns").rows() == [("device read", 90_000)]


def test_idle_time_before_the_copy_that_a_read_makes_itself_is_the_reads() -> None:
    made = Made().launch("gemm", (0, 2), (3, 10))
    made.add("runtime", "np.asarray(jax.Array)", 5, 95).call("CopyRawToHost", 60, 62, correlation=2)
    made.kernel("MemcpyD2H", 70, 80, 2, category="memcpy")
    made.launch("gemm", (100, 101), (105, 120))
    row = report(made.trace()).table("syncs").rows.row(0, named=True)
    assert row["empty_ns"] == 25_000  # from the copy's end to the next product
    assert row["refill_ns"] == 60_000  # from the product's end to the copy


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("PjRtComputationClient::TransferFromDevice", "other", "device read"),
        ("TfrtTpuBuffer::AwaitReady", "runtime", "await"),
        ("$api.py:3105 block_until_ready", "python_function", "await"),
        ("jax/_src/array.py(210): block_until_ready", "python_function", "await"),
        ("jax.Array.block_until_ready", "runtime", "await"),
        ("nrt_execute", "runtime", "blocking execute"),
    ],
)
def test_names_of_awaits_and_reads(name: str, category: str, kind: str) -> None:
    found = report(Made().add(category, name, 10, 90).trace())
    assert found.table("groups").rows["kind"].to_list() == [kind]


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        # As JAX's tracer names them: without folders, outermost first.
        (("t.py(7): log", "array.py(298): __float__", "profiler.py(417): wrapper"), "t.py log() from line 7"),
        (("array.py(294): __bool__", "profiler.py(417): wrapper"), "train"),
        (("array.py(12): wait", "api.py(2479): block_until_ready"), "array.py wait() from line 12"),
    ],
)  # fmt: skip
def test_the_place_of_a_read_is_outside_of_jax(frames: tuple[str, ...], where: str) -> None:
    made = Made().add("annotation", "train", 0, 100)
    for depth, frame in enumerate(frames, 1):
        made.add("python_function", frame, depth, 100 - depth)
    made.add("annotation", "np.asarray(jax.Array)", 20, 80)
    assert report(made.trace()).table("syncs").rows["where"].to_list() == [where]


@pytest.mark.parametrize(
    "name",
    [
        "tpu::System::TransferFromDevice",
        "SlinkyThreadPool::Await",
        "await_call",
        "train.py(3): block_until_ready",
    ],
)
def test_what_only_looks_like_an_await(name: str) -> None:
    assert isinstance(
        run("sync_events", Made().add("other", name, 10, 90, track=BACKWARD).trace()), Unavailable
    )
