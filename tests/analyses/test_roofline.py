"""What operators need at least, and how near their kernels come to what the chip allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from analyses.made import Made, with_arguments
from formats import made_hlo
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.analyses import run
from tuiprof.analyses.shared.compiled.needs import needs_of
from tuiprof.analyses.shared.roofline import Roofline, roofline
from tuiprof.formats import open_trace
from tuiprof.formats.xplane.hlo import read_program
from tuiprof.model import DeviceInfo, Report, Trace

XLA = Path(__file__).parents[1] / "data/xla"
H100 = "NVIDIA H100 80GB HBM3"
#: Its peaks: FLOP/s in bf16 and in TF32, bytes/s.
BF16, TF32, FP32, MEMORY = 989.4e12, 494.7e12, 66.9e12, 3352e9


def traced(
    operator: str,
    kernel: str,
    took_us: float,
    dims: list[object],
    types: list[str],
    values: Sequence[object] | None = None,
    device: str = H100,
) -> Trace:
    """Return a trace of one operator that launches one kernel, with the operator's arguments."""
    trace = Made().op(operator, 0, 20).launch(kernel, (5, 10), (12, 12 + took_us), 1).trace()
    at = trace.events["ordinal"][int(trace.named("::").nonzero()[0][0])]
    given = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values or []}
    with_arguments(trace, lambda ordinal: given if ordinal == at else {})
    trace.info = replace(trace.info, devices=(DeviceInfo(0, device),))
    return trace


def found(trace: Trace) -> Roofline:
    result = roofline(trace)
    assert isinstance(result, Roofline), result
    return result


BFLOAT = "c10::BFloat16"


@pytest.mark.parametrize(
    ("operator", "kernel", "dims", "types", "values", "operations", "rate", "moved"),
    [
        (
            "aten::addmm",
            "nvjet_sm90_tst",
            [[512], [4096, 1024], [1024, 512], [], []],
            [BFLOAT] * 3 + ["Scalar"] * 2,
            [],
            2 * 4096 * 1024 * 512,
            BF16,
            2 * (512 + 4096 * 1024 + 1024 * 512 + 4096 * 512),
        ),
        (
            "aten::bmm",
            "sm80_xmma_gemm_f32f32_f32f32",
            [[8, 256, 64], [8, 64, 256]],
            ["float"] * 2,
            [],
            2 * 8 * 256 * 64 * 256,
            FP32,
            4 * (8 * 256 * 64 * 2 + 8 * 256 * 256),
        ),
        (
            "aten::mm",
            "sm90_xmma_gemm_f32f32_tf32f32_f32",
            [[256, 64], [64, 256]],
            ["float"] * 2,
            [],
            2 * 256 * 64 * 256,
            TF32,
            4 * (256 * 64 * 2 + 256 * 256),
        ),
        (
            "aten::cudnn_convolution",  # padding, stride, dilation
            "sm90_xmma_fprop_implicit_gemm",
            [[16, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], []],
            [BFLOAT] * 2 + ["ScalarList"] * 3 + ["Scalar"] * 2,
            ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False"],
            2 * 16 * 64 * 112 * 112 * 3 * 7 * 7,
            BF16,
            2 * (16 * 3 * 224 * 224 + 64 * 3 * 7 * 7 + 16 * 64 * 112 * 112),
        ),
        (
            "aten::_flash_attention_forward",  # batch, sequence, heads, width
            "flash_fwd_kernel",
            [[2, 512, 8, 64]] * 3 + [[], []],
            [BFLOAT] * 3 + ["Scalar", "Scalar"],
            ["", "", "", "0.", "True"],
            2 * 2 * 2 * 8 * 512 * 512 * 64 / 2,
            BF16,
            2 * 4 * (2 * 512 * 8 * 64),
        ),
    ],
)
def test_arithmetic_is_counted_by_shapes(
    operator: str,
    kernel: str,
    dims: list[object],
    types: list[str],
    values: list[str],
    operations: float,
    rate: float,
    moved: float,
) -> None:
    [kind] = found(traced(operator, kernel, 1000, dims, types, values)).kinds.values()
    assert kind.at_peak_ns == pytest.approx(operations / rate * 1e9)
    assert kind.at_bandwidth_ns == pytest.approx(moved / MEMORY * 1e9)
    assert kind.least_ns == pytest.approx(max(kind.at_peak_ns, kind.at_bandwidth_ns))
    assert kind.ns == 1_000_000


@pytest.mark.parametrize(
    ("operator", "kernel", "dims", "elements"),
    [
        ("aten::add", "vectorized_elementwise_kernel", [[1 << 20], [1 << 20], []], 3 << 20),
        ("aten::add_", "vectorized_elementwise_kernel", [[1 << 20], [1 << 20], []], 3 << 20),
        ("aten::copy_", "direct_copy_kernel_cuda", [[1 << 20], [1 << 20], []], 2 << 20),
        ("aten::sum", "reduce_kernel", [[1 << 20], [], []], 1 << 20),
    ],
)
def test_bytes_are_inputs_and_results(operator: str, kernel: str, dims: list[object], elements: int) -> None:
    types = ["float" if one else "Scalar" for one in dims]
    [kind] = found(traced(operator, kernel, 1000, dims, types)).kinds.values()
    assert kind.at_bandwidth_ns == pytest.approx(4 * elements / MEMORY * 1e9)
    assert kind.at_peak_ns == 0


def test_what_no_rule_counts_is_not_known_and_takes_what_it_took() -> None:
    limits = found(traced("aten::index", "index_elementwise_kernel", 100, [[1 << 20], []], ["float", ""]))
    assert limits.least_ns == limits.ns == 100_000
    [kind] = limits.kinds.values()
    assert (kind.count, kind.ns, kind.unknown_ns) == (0, 0, 100_000)


def test_a_kernel_that_a_cache_served_takes_no_less_than_it_took() -> None:
    limits = found(traced("aten::add", "vectorized_elementwise_kernel", 1, [[1 << 20]] * 2, ["float"] * 2))
    assert limits.least_ns == 1_000


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=8,
)


@given(
    st.sampled_from(
        [
            *("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution", "aten::cudnn_convolution"),
            *("aten::convolution_backward", "aten::_flash_attention_forward", "aten::add_", "aten::copy_"),
        ]
    ),
    st.lists(st.lists(st.integers(0, 1 << 62), max_size=6) | ANYTHING, max_size=6),
    st.lists(st.sampled_from(["float", BFLOAT, "Scalar", "bool", ""]), max_size=6),
    st.lists(ANYTHING | st.sampled_from(["[1, 1]", "[0]", "[99999999999999999999]", "True"]), max_size=6),
)
def test_whatever_a_trace_says_of_arguments_nothing_fails(
    operator: str, dims: list[object], types: list[str], values: list[object]
) -> None:
    limits = roofline(traced(operator, "some_kernel", 10, dims, types, values))
    assert isinstance(limits, str) or 0 <= limits.least_ns <= limits.ns == 10_000


def test_without_shapes_the_remedy_is_told() -> None:
    trace = traced("aten::add", "vectorized_elementwise_kernel", 1, [], [])
    report = run("kernels", trace)
    assert isinstance(report, Report)
    table = report.table("roofline")
    assert table.rows.is_empty()
    assert "--shapes" in table.empty


def test_a_chip_that_is_not_known_is_named() -> None:
    said = roofline(traced("aten::add", "elementwise_kernel", 1, [[8]], ["float"], device="Voodoo 2"))
    assert isinstance(said, str)
    assert "Voodoo 2" in said


def test_a_recorded_step_of_resnet_50(shared: Path) -> None:
    from tuiprof.formats import open_trace

    trace = open_trace(shared / "traces" / "kineto-resnet50-v100-torch19-steps.pt.trace.json.gz")
    report = run("kernels", trace)
    assert isinstance(report, Report)
    rows = {row["kind"]: row for row in report.table("roofline").rows.iter_rows(named=True)}
    # Batch norms and activations of a V100 are bound by its memory, convolutions by its arithmetic.
    assert rows["elementwise"]["bandwidth_share"] > 0.8
    assert rows["convolution"]["arithmetic_share"] > 0.5
    assert rows["convolution"]["bandwidth_share"] < 0.3
    assert all((row["arithmetic_share"] or 0) <= 1 and row["known"] <= 1 for row in rows.values())
    advice = run("advice", trace)
    assert isinstance(advice, Report)
    floor, limit = advice.fact("floor_ns"), advice.fact("roofline_ns")
    assert isinstance(floor, float)
    assert isinstance(limit, float)
    assert 0.3 * floor < limit < floor


@pytest.mark.parametrize("name", ["gru", "word-vectors"])
def test_kernels_of_a_compiled_program_are_within_the_chips_limits(name: str) -> None:
    limits = found(open_trace(XLA / f"{name}-h200.xplane.pb.gz"))
    for word, kind in limits.kinds.items():
        assert max(kind.at_peak_ns, kind.at_bandwidth_ns) <= kind.ns, word
    known = sum(kind.ns for kind in limits.kinds.values())
    assert known > 0.9 * limits.ns


def test_products_of_a_compiled_program_are_counted_in_their_type() -> None:
    gemm = found(open_trace(XLA / "word-vectors-h200.xplane.pb.gz")).kinds["gemm"]
    # Six layers with two, three and twice four times the width, words in and out, and their gradients, in bfloat16.
    tokens, width, words, layers = 16 * 512, 768, 32_128, 6
    products = layers * (3 + 1 + 4 + 4) * width * width + 2 * words * width
    backward = 2 * products - words * width  # the words themselves have no gradient
    assert gemm.at_peak_ns == pytest.approx(2 * tokens * (products + backward) / BF16 * 1e9, rel=1e-3)
    assert gemm.at_peak_ns / gemm.ns > 0.7
    scan = found(open_trace(XLA / "gru-h200.xplane.pb.gz")).kinds["gemm"]
    # Two layers multiply input and state by three times the width; the first needs no gradient of its inputs.
    each = 2 * 128 * 256 * 768 * 3 * 768
    assert scan.at_peak_ns == pytest.approx((4 + 4 + 3) * each / TF32 * 1e9, rel=1e-3)


PROGRAM = """
fused {
  all = f32[100,8] parameter(), index=0
  at = s32[] parameter(), index=1
  scaled = f32[100,8] multiply(all, all)
  part = f32[1,8] dynamic-slice(scaled, at)
  twice = f32[1,8] add(part, part)
}
updated {
  all.2 = f32[100,8] parameter(), index=0
  new = f32[1,8] parameter(), index=1
  at.2 = s32[] parameter(), index=2
  done = f32[100,8] dynamic-update-slice(all.2, new, at.2)
}
both {
  x.2 = f32[100,8] parameter(), index=0
  half = bf16[100,8] convert(x.2)
  sum = f32[] reduce(x.2)
  pair = [] tuple(half, sum)
}
activated {
  x.3 = f32[100,8] parameter(), index=0
  tanh = f32[100,8] tanh(x.3)
}
cut {
  w.4 = f32[8,8] parameter(), index=0
  dot.4 = f32[8,8] dot(w.4, w.4), sums=1x0
  part.4 = f32[1,8] slice(dot.4)
}
main {
  x = f32[100,8] parameter(), index=0
  i = s32[] parameter(), index=1
  w = f32[8,8] parameter(), index=2
  ids = s32[1000] parameter(), index=3
  pairs = s32[1000,2] parameter(), index=4
  sliced = f32[1,8] fusion(x, i), calls=fused
  written = f32[100,8] fusion(x, sliced, i), calls=updated
  two = [] fusion(x), calls=both
  dot = f32[100,100] dot(x, x), sums=1x1
  called = f32[100,8] custom-call(x), target="attention"
  active = f32[100,8] fusion(x), calls=activated
  rows = f32[1000,8] gather(x, ids)
  values = f32[1000] gather(x, pairs)
  row = f32[1,8] fusion(w), calls=cut
  gemm = [] custom-call(x, w), target="__cublas$gemm"
  workspace = f32[4096] get-tuple-element(gemm), index=1
  result = f32[100,8] get-tuple-element(gemm), index=0
}
"""


def test_a_fusion_reads_and_writes_only_the_slices_that_it_uses() -> None:
    needs = needs_of(read_program(made_hlo.encode("jit_f", PROGRAM)))
    whole, row, index = 100 * 8 * 4, 8 * 4, 4
    assert needs["sliced"].bytes == row + index + row
    assert needs["written"].bytes == row + index + row
    assert needs["two"].bytes == whole + whole / 2 + 4
    assert (needs["dot"].operations, needs["dot"].bytes) == (2 * 100 * 100 * 8, whole + 100 * 100 * 4)
    assert "called" not in needs  # who knows what a library does
    assert needs["active"].bytes == 2 * whole
    assert needs["rows"].bytes == whole + 1000 * 4 + 1000 * row, "each row of the table is read once"
    assert needs["values"].bytes == whole + 1000 * 2 * 4 + 1000 * 4, "and each index"
    assert needs["row"].bytes == 8 * 8 * 4 + row, "a product takes all of its operands"
    assert needs["gemm"].bytes == whole + 8 * 8 * 4 + whole, (
        "of what a library returns, the workspace is no result"
    )
