"""Conversions and copies of large tensors, and the stretches in which their memory is given back."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from analyses.made import Made, in_session
from host_ahead import Steps

from tuiprof.advice import advise
from tuiprof.model import Trace
from tuiprof.model.steps import SampledLine

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
COPY_KERNEL = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>"
MS = 1000


def advice(trace: Trace) -> dict[str, dict[str, Any]]:
    """Return the first row of each rule's findings."""
    report = advise(trace)
    assert not [note for note in report.notes if "unavailable" in note], report.notes
    rows = report.table("findings").rows.reverse()
    return {row["rule"]: row for row in rows.iter_rows(named=True)}


def served(
    *,
    copying: str = "aten::to",
    converts: str = "aten::_to_copy",
    copy_ms: float = 10,
    gap_ms: float = 2,
    copies: int = 4,
    around: str = "",
    frame_at_ms: float | None = None,
    backward: str = "",
) -> Trace:
    """Four steps of 20 ms and more on a CPU, in which a copy is read by a product, with a gap after that.

    Args:
        copying: The operator that copies.
        converts: The one in it.
        copy_ms: What it takes.
        gap_ms: The time after the product.
        copies: How many steps have it.
        around: A range around the copy.
        frame_at_ms: When Python calls something, after the begin of the gap.
        backward: ``"of it"`` = a backward pass through the copy, ``"other"`` = through the first operator.
    """
    made, length = Made(), (16 + copy_ms + gap_ms) * MS
    for number, at in made.steps(length):
        made.op("aten::addmm", at + 100, at + 8 * MS, sequence=100 * number)
        begin, end = at + 8 * MS + 100, at + (8 + copy_ms) * MS
        if around:
            made.add("annotation", around, begin - 10, end + 10)
        if number < copies:
            made.op(copying, begin, end, sequence=100 * number + 1).op(converts, begin + 5, end - 5)
            made.op("aten::copy_", begin + 10, end - 10)
        made.op("aten::numpy_T", end + 20, end + 30)
        used = end + 2 * MS
        made.op("aten::mm", end + 40, used, sequence=100 * number + 2)
        made.op("aten::select", used + gap_ms * MS, used + gap_ms * MS + 10)
        if frame_at_ms is not None:
            made.add("python_function", "serve.py(3): rank", used + frame_at_ms * MS, used + gap_ms * MS - 5)
        begin = used + gap_ms * MS + 20
        if backward:
            made.op(BACKWARD, begin, begin + MS, sequence=100 * number + (backward == "of it"))
            begin += MS
        made.op("aten::sum", begin, at + length - 20)
    return made.trace()


def test_a_conversion_of_a_large_tensor_is_told_with_the_time_to_give_its_memory_back() -> None:
    lines = (SampledLine("serve.py:9", 0.5, ""), SampledLine("model.py:2", 0.4, "forward"))
    found = advice(in_session(served(), lines=lines))
    row = found["copy-each-step"]
    assert row["what"] == "a large tensor is converted to another type or layout every step, for 9.89 ms"
    assert row["where"] == "serve.py:9"
    assert "convert it once" in row["instead"]
    assert row["sure"] == "medium"
    assert row["wins_ns"] == pytest.approx(11.9e6, rel=0.01)
    assert row["wins_low_ns"] == 0, "it may be another tensor each time"
    assert "python-time" not in found


@pytest.mark.parametrize(
    ("changed", "saved_ms"),
    [
        ({"gap_ms": 6}, 9.9),  # longer than it takes to give memory back
        ({"frame_at_ms": 0.5}, 9.9),  # Python runs
        ({"copying": "aten::linear"}, 9.9 + 2),  # under autocast
        ({"backward": "other"}, 9.9 + 2),
        ({"copying": "aten::clone", "converts": "aten::empty_like"}, 9.9 + 2),
        ({"copying": "aten::linear", "converts": "aten::clone"}, None),  # part of an operator
        ({"backward": "of it"}, None),  # weights, which change
        ({"copying": BACKWARD}, None),
        ({"around": "Optimizer.step#Mine.step"}, None),
        ({"around": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}, None),
        ({"copy_ms": 1.5}, None),
        ({"copies": 2}, None),
    ],
)
def test_which_copies_are_told(changed: dict[str, Any], saved_ms: float | None) -> None:
    row = advice(served(**changed)).get("copy-each-step")
    assert (row is not None) == (saved_ms is not None)
    if row is not None and saved_ms is not None:
        assert row["wins_ns"] == pytest.approx(saved_ms * 1e6, rel=0.02)
        assert row["sure"] == ("low" if changed.get("backward") else "medium")
        assert row["what"].startswith("a large tensor is copied") == ("clone" in changed.get("copying", ""))


@pytest.mark.parametrize(
    ("changed", "is_python"),
    [
        ({}, False),
        ({"frame_at_ms": 0.5}, True),
        ({"gap_ms": 6}, True),
        ({"gap_ms": 0.9, "copy_ms": 20}, True),  # too short for that
        ({"copies": 0}, True),
    ],
)
def test_giving_memory_back_is_no_python(changed: dict[str, Any], is_python: bool) -> None:
    row = advice(served(**{"gap_ms": 2.0} | changed)).get("python-time")
    assert (row is not None) == is_python
    if row is not None:
        assert "thread" in row["instead"]
        assert "loader" not in row["instead"], "nothing is trained"
        trained = advice(served(**{"gap_ms": 2.0, "backward": "other"} | changed))["python-time"]
        assert "to a loader worker" in trained["instead"]


@pytest.mark.parametrize(
    ("kernel", "us", "advised"),
    [
        (COPY_KERNEL, 300, True),
        (COPY_KERNEL, 60, False),
        ("Memcpy DtoD (Device -> Device)", 300, True),
        ("Memcpy HtoD (Pageable -> Device)", 300, False),  # a batch
    ],
)
def test_on_a_device_kernels_that_copy_count(kernel: str, us: float, advised: bool) -> None:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::to", ((kernel, us),), inside="aten::_to_copy")
        steps.op("aten::mm", (("sm90_xmma_gemm_bf16bf16_bf16f32", 1000),))
    row = advice(steps.trace()).get("copy-each-step")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(us * 1000, rel=0.05)
        assert row["where"] == "_to_copy"


def test_places_with_python_frames_are_findings_of_their_own() -> None:
    trace = served()
    rows = trace.events.to_dicts()
    made = Made()
    made.rows = [row | {"name": str(row["name"]), "category": str(row["category"])} for row in rows]
    for number in range(4):
        at = number * 28 * MS
        made.add("python_function", "serve.py(3): rank", at + 8 * MS + 50, at + 20 * MS + 1)
    report = advise(made.trace()).table("findings").rows.filter(pl.col("rule") == "copy-each-step")
    assert report["where"].to_list() == ["serve.py rank() from line 3"]
