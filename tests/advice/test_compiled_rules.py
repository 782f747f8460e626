"""Rules that read the compiled programs of JAX, on steps that were recorded on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formats import made_hlo, xspace

from tuiprof.advice import advise
from tuiprof.formats import open_trace
from tuiprof.model import Trace

XLA = Path(__file__).parents[1] / "data/xla"
US = 1_000_000  # ps


def findings(trace: Trace) -> dict[str, dict[str, Any]]:
    report = advise(trace)
    assert not [note for note in report.notes if "unavailable" in note], report.notes
    return {row["rule"]: row for row in reversed(report.table("findings").rows.to_dicts())}


def test_a_product_in_a_scan_saves_what_the_fix_saved() -> None:
    found = findings(open_trace(XLA / "gru-h200.xplane.pb.gz"))
    row = next(iter(reversed(found.values())))
    assert row["rule"] == "product-in-scan"
    assert row["where"] == "cell, …/tests/predictions/set20_other_trades.py:731"
    assert "128 iterations" in row["what"]
    assert "gradients included" in row["what"]
    # 7.37 of 28.1 ms were measured without a profiler; this step took 30.7 ms.
    assert row["wins_ns"] == pytest.approx(7.37e6 * 30.7 / 28.1, rel=0.15)
    assert row["wins_low_ns"] < 7.37e6 < row["wins_high_ns"]


def test_a_scan_with_products_of_its_state_is_unrolled_after_that() -> None:
    found = findings(open_trace(XLA / "gru-h200.xplane.pb.gz"))
    row = found["sequential-scan"]
    assert row["where"] == "gru, …/tests/predictions/set20_other_trades.py:737"
    assert "15 kernels" in row["what"]
    assert "unroll" in row["instead"]
    assert "associative_scan" not in row["instead"]
    assert row["wins_low_ns"] == 0
    assert row["wins_ns"] < found["product-in-scan"]["wins_ns"]


def test_one_hot_vectors_in_a_program_save_what_the_fix_saved() -> None:
    found = findings(open_trace(XLA / "word-vectors-h200.xplane.pb.gz"))
    assert list(found) == ["one-hot-product"]
    row = found["one-hot-product"]
    assert row["where"] == "loss, …/tests/predictions/set20_other_trades.py:806"
    assert row["wins_ns"] == pytest.approx(1.72e6, rel=0.1)
    assert row["wins_low_ns"] < 1.72e6 < row["wins_high_ns"]


SCAN = """
body {{
  state = [] parameter()
  count = s32[] get-tuple-element(state), index=0
  h = f32[{rows},256] get-tuple-element(state), index=1
  xs = f32[64,{rows},256] get-tuple-element(state), index=2
  w = f32[256,256] get-tuple-element(state), index=3
  one = s32[] constant()
  slice = f32[{rows},256] dynamic-slice(xs, count), site=2
  dot.1 = f32[{rows},256] dot({left}, w), sums=1x0, op="jit(f)/while/body/dot_general", site=2
  dot.2 = f32[{rows},256] dot(h, w), sums=1x0, op="jit(f)/while/body/dot_general", site=3
  tanh = f32[{rows},256] tanh(dot.1, {right}), site=3
  next = s32[] add(count, one)
  result = [] tuple(next, tanh, xs, w)
}}
main {{
  given = [] parameter()
  loop = [] while(given), calls=body, config="{{'known_trip_count':{{'n':'64'}}}}"
}}
"""
LINES = ("/home/me/train.py:9 main", "/home/me/model.py:31 cell", "/home/me/model.py:32 cell")


def scanned(
    tmp_path: Path,
    *,
    rows: int = 64,
    left: str = "slice",
    right: str = "dot.2",
    kernel: str = "",
    device: str = "NVIDIA H100",
    memory: int = 80 << 30,
) -> Trace:
    """Return steps whose scan takes 10 µs for each product and 2 µs for everything else."""
    text = SCAN.format(rows=rows, left=left, right=right)
    kernels = (("slice", 2), ("dot.1", 10), ("dot.2", 10), ("tanh", 2))
    return launched(tmp_path, text, kernels, kernel, device, memory)


def launched(
    tmp_path: Path,
    text: str,
    kernels: tuple[tuple[str, int], ...],
    kernel: str = "",
    device: str = "NVIDIA H100",
    memory: int = 80 << 30,
) -> Trace:
    """Return steps of 64 iterations that launch some operations, each with what it takes, µs."""
    proto = made_hlo.encode("jit_f", text, LINES).replace(b"'", b'"')
    host = xspace.Plane("/host:CPU", values={"jax_version": "0.11.2"})
    gpu = xspace.Plane("/device:GPU:0", values={"gpu_device_name": device, "memory_size": memory})
    thread, stream = host.line("python", 1000), gpu.line("Stream #7(Compute)", 1000)
    at = correlation = 0
    for step in range(4):
        thread.event("train", step * 400 * US, 390 * US, step_num=step)
        for iteration in range(64):
            for operation, length in kernels:
                correlation += 1
                begin = step * 400 + iteration * 6 + operation.startswith("dot") * 2
                thread.event("cuLaunchKernel", (begin + 1) * US, US, correlation_id=correlation)
                stats = {"hlo_op": operation, "program_id": 1, "kernel_details": "regs:1"}
                name = kernel if kernel and operation == "dot.1" else operation
                stream.event(name, (10 + at) * US, length * US, correlation_id=correlation, **stats)
                at += length
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(xspace.encode(host, gpu, made_hlo.plane(jit_f=proto)))
    return open_trace(path)


#: What keeps a part of a product for each iteration.
COLLECTED = """
collected {
  all = f32[64,64,256] parameter(), index=0
  both = f32[64,512] parameter(), index=1
  at = s32[] parameter(), index=2
  part = f32[64,256] slice(both)
  put = f32[64,64,256] dynamic-update-slice(all, part, at)
}
"""
#: The gradients of a scan's weights in one product, each added up on its own, and those of what they multiply in
#: another, of which one is the state's.
GRADIENTS = (
    """
sum {
  old = f32[256,256] parameter(), index=0
  both = f32[512,256] parameter(), index=1
  part = f32[256,256] slice(both)
  added = f32[256,256] add(old, part)
}
more {
  old = f32[256,256] parameter(), index=0
  both = f32[512,256] parameter(), index=1
  part = f32[256,256] slice(both)
  added = f32[256,256] add(old, part)
}
product {
  left = f32[64,256] parameter(), index=0
  right = f32[64,256] parameter(), index=1
  dz = f32[64,256] parameter(), index=2
  joined = f32[64,512] concatenate(left, right)
  made = f32[512,256] dot(joined, dz), sums=0x0, op="jit(f)/transpose(jvp())/while/body/dot_general", site=2
}
"""
    + COLLECTED
    + """backward {
  state = [] parameter()
  count = s32[] get-tuple-element(state), index=0
  dh = f32[64,256] get-tuple-element(state), index=1
  xs = f32[64,64,256] get-tuple-element(state), index=2
  hs = f32[64,64,256] get-tuple-element(state), index=3
  w = f32[512,256] get-tuple-element(state), index=4
  dw.1 = f32[256,256] get-tuple-element(state), index=5
  dw.2 = f32[256,256] get-tuple-element(state), index=6
  dxs = f32[64,64,256] get-tuple-element(state), index=7
  one = s32[] constant()
  x.2 = f32[64,256] dynamic-slice(xs, count), site=2
  h.2 = f32[64,256] dynamic-slice(hs, count), site=3
  dot.3 = f32[512,256] fusion(x.2, h.2, dh), calls=product, site=2
  sum.1 = f32[256,256] fusion(dw.1, dot.3), calls=sum
  sum.2 = f32[256,256] fusion(dw.2, dot.3), calls=more
  dot.4 = f32[64,512] dot(dh, w), sums=1x1, op="jit(f)/transpose(jvp())/while/body/dot_general", site=3
  put.1 = f32[64,64,256] fusion(dxs, dot.4, count), calls=collected
  dh.2 = f32[64,256] slice(dot.4), site=3
  next = s32[] add(count, one)
  result = [] tuple(next, dh.2, xs, hs, w, sum.1, sum.2, put.1)
}
"""
)


@pytest.mark.parametrize(
    ("gradients", "saved_us"),
    [
        (GRADIENTS, 10 + 2 + (20 + 2 + 2) / 2 + 6 + 20 / 2),
        # The state takes all of it.
        (GRADIENTS.replace("slice(both)\n  put", "negate(both)\n  put"), 10 + 2 + (20 + 2 + 2) / 2 + 6),
    ],
    ids=["a part is collected", "none of it can leave"],
)
def test_of_products_that_are_made_together_a_part_leaves_with_its_sum(
    tmp_path: Path, gradients: str, saved_us: float
) -> None:
    text = SCAN.format(rows=64, left="slice", right="dot.2").replace("main {", gradients.strip() + "\nmain {")
    loop = "  again = [] while(given), calls=backward, config=\"{'known_trip_count':{'n':'64'}}\"\n}"
    text = text.rstrip().removesuffix("}") + loop + "\n"
    kernels = (("slice", 2), ("dot.1", 10), ("dot.2", 10), ("tanh", 2))
    more = (("x.2", 2), ("h.2", 2), ("dot.3", 20), ("sum.1", 6), ("sum.2", 6), ("dot.4", 20), ("put.1", 2))
    found = findings(launched(tmp_path, text, (*kernels, *more)))
    assert found["product-in-scan"]["wins_ns"] == pytest.approx(64 * 1000 * saved_us, rel=0.05)
    # Of the short kernels beside the state, unrolling would fuse those that stay: a sum and what is collected.
    assert found["sequential-scan"]["wins_ns"] == pytest.approx(64 * 1000 * 0.6 * (6 + 2), rel=0.05)


#: A cell that multiplies its input and its state as one, and its gradients.
JOINED = (
    COLLECTED
    + """body {
  state = [] parameter()
  count = s32[] get-tuple-element(state), index=0
  h = f32[64,256] get-tuple-element(state), index=1
  xs = f32[64,64,256] get-tuple-element(state), index=2
  w = f32[512,256] get-tuple-element(state), index=3
  one = s32[] constant()
  slice = f32[64,256] dynamic-slice(xs, count), site=2
  joined = f32[64,512] concatenate(slice, h), site=2
  dot.1 = f32[64,256] dot(joined, w), sums=1x0, op="jit(f)/while/body/dot_general", site=2
  tanh = f32[64,256] tanh(dot.1), site=3
  next = s32[] add(count, one)
  result = [] tuple(next, tanh, xs, w)
}
backward {
  state = [] parameter()
  count = s32[] get-tuple-element(state), index=0
  dh = f32[64,256] get-tuple-element(state), index=1
  all = f32[64,64,512] get-tuple-element(state), index=2
  w = f32[512,256] get-tuple-element(state), index=3
  dw = f32[512,256] get-tuple-element(state), index=4
  dxs = f32[64,64,256] get-tuple-element(state), index=5
  one = s32[] constant()
  both.2 = f32[64,512] dynamic-slice(all, count), site=2
  dot.2 = f32[512,256] dot(both.2, dh), sums=0x0, op="jit(f)/transpose(jvp())/while/body/dot_general", site=2
  sum.1 = f32[512,256] add(dw, dot.2)
  dot.3 = f32[64,512] dot(dh, w), sums=1x1, op="jit(f)/transpose(jvp())/while/body/dot_general", site=2
  put.1 = f32[64,64,256] fusion(dxs, dot.3, count), calls=collected
  dh.2 = f32[64,256] slice(dot.3), site=3
  next = s32[] add(count, one)
  result = [] tuple(next, dh.2, all, w, sum.1, put.1)
}
main {
  given = [] parameter()
  loop = [] while(given), calls=body, config="{'known_trip_count':{'n':'64'}}", site=3
  again = [] while(given), calls=backward, config="{'known_trip_count':{'n':'64'}}", site=3
}
"""
)


def test_of_what_is_joined_with_the_state_the_inputs_part_leaves_the_loop(tmp_path: Path) -> None:
    kernels = (("slice", 2), ("joined", 3), ("dot.1", 10), ("tanh", 2), ("both.2", 2), ("dot.2", 20))
    found = findings(launched(tmp_path, JOINED, (*kernels, ("sum.1", 6), ("dot.3", 20), ("put.1", 4))))
    row = found["product-in-scan"]
    assert row["where"] == "cell, …/home/me/model.py:31"
    assert "xs @ w[:n]" in row["instead"]
    # Half of each product, of the sum and of the slice for it leave; nothing has to be joined any more.
    left_us = 3 + 10 / 2 + (2 + 20 + 6) / 2 + 20 / 2
    assert row["wins_ns"] == pytest.approx(64 * 1000 * left_us, rel=0.05)
    # Unrolling fuses what stays beside the state, and comes second even if it saves more.
    assert found["sequential-scan"]["wins_ns"] == pytest.approx(64 * 1000 * 0.6 * (2 + 4), rel=0.05)
    slow = launched(tmp_path, JOINED, (*kernels, ("sum.1", 6), ("dot.3", 20), ("put.1", 90)))
    rows = advise(slow).table("findings").rows
    assert rows["rule"].to_list()[:2] == ["product-in-scan", "sequential-scan"]
    assert rows["wins_ns"][0] < rows["wins_ns"][1]


def test_the_product_and_the_slice_for_it_leave_the_loop(tmp_path: Path) -> None:
    row = findings(scanned(tmp_path))["product-in-scan"]
    assert row["where"] == "cell, …/home/me/model.py:31"
    # 64 products of 10 µs and as many slices of 2 µs; the one product takes next to nothing.
    assert row["wins_ns"] == pytest.approx(64 * 12_000, rel=0.05)


def test_a_product_that_is_large_already_gains_nothing(tmp_path: Path) -> None:
    # 3.9 GFLOP in 10 µs are four fifths of the chip's peak.
    assert "product-in-scan" not in findings(scanned(tmp_path, rows=30_000))


@pytest.mark.parametrize(
    ("kernel", "peak"), [("", None), ("ampere_sgemm_128x64_nn", 66.9e12)], ids=["TF32", "float32"]
)
def test_one_product_takes_what_its_bytes_or_its_arithmetic_take(
    tmp_path: Path, kernel: str, peak: float | None
) -> None:
    row = findings(scanned(tmp_path, rows=2048, kernel=kernel))["product-in-scan"]
    # Inputs and results in float32, at 3.35 TB/s; on the tensor cores the arithmetic takes less.
    seconds = 2 * 2048 * 256 * 256 / peak if peak else 2 * 2048 * 256 * 4 / 3.352e12
    assert row["wins_ns"] == pytest.approx(64 * (10_000 - seconds / 0.6 * 1e9 + 2_000), rel=0.05)


def test_what_product_in_scan_removes_is_not_promised_twice(tmp_path: Path) -> None:
    # Beside the state the loop launches only the slice for that product.
    assert list(findings(scanned(tmp_path))) == ["product-in-scan"]


def test_a_slice_that_the_loop_needs_otherwise_stays(tmp_path: Path) -> None:
    row = findings(scanned(tmp_path, right="slice"))["product-in-scan"]
    assert row["wins_ns"] == pytest.approx(64 * 10_000, rel=0.05)


def test_products_of_all_iterations_that_fill_the_memory_stay(tmp_path: Path) -> None:
    # 64 results of 64 KiB
    assert "product-in-scan" not in findings(scanned(tmp_path, memory=32 << 20))


def test_a_product_of_the_state_stays(tmp_path: Path) -> None:
    assert "product-in-scan" not in findings(scanned(tmp_path, left="h"))


def test_on_an_unknown_chip_the_least_saving_is_none(tmp_path: Path) -> None:
    row = findings(scanned(tmp_path, device="GPU"))["product-in-scan"]
    assert row["wins_low_ns"] == 0
    assert row["wins_ns"] == pytest.approx(64 * (0.6 * 10_000 + 2_000), rel=0.05)


#: A layer on the rows of both nodes of each edge, and its gradients.
MESSAGES = """
main {{
  x = f32[1000,256] parameter(), index=0
  from = s32[16000,1] parameter(), index=1
  to = s32[16000,1] parameter(), index=2
  w = f32[512,{columns}] parameter(), index=3
  dy = f32[16000,{columns}] parameter(), index=4
  zero = f32[1000,256] parameter(), index=5
  a = f32[16000,256] gather(x, from), site=2
  b = f32[16000,256] gather(x, to), site=2
  joined = f32[16000,512] concatenate(a, b), site=2
  dot.1 = f32[16000,{columns}] dot(joined, w), sums=1x0, op="jit(f)/dot_general", site=3
  dot.2 = f32[512,{columns}] dot(joined, dy), sums=0x0, op="jit(f)/transpose(jvp())/dot_general", site=3
  dot.3 = f32[16000,512] dot(dy, w), sums=1x1, op="jit(f)/transpose(jvp())/dot_general", site=3
  da = f32[16000,256] slice(dot.3)
  added = f32[1000,256] scatter(zero, from, da)
  {more}
}}
"""


@pytest.mark.parametrize(
    ("columns", "more", "saved_us"),
    [
        # Of 60 µs of products, a 16th remains; what is gathered and added up is as wide, or half as wide.
        (256, "result = [] tuple(dot.1, dot.2, added)", 60 * 15 / 16 + (4 + 4 + 4) / 4),
        (128, "result = [] tuple(dot.1, dot.2, added)", 60 * 15 / 16 + (4 + 4 + 4) * 5 / 8 + 6 / 2),
        # What is gathered now is still needed, and the results are gathered on top.
        (256, "result = [] tuple(dot.1, dot.2, added, joined)", 60 * 15 / 16 - (4 + 4 + 4) * 3 / 4 - 6),
    ],
    ids=["as wide", "half as wide", "needed otherwise"],
)
def test_a_layer_on_gathered_rows_comes_before_the_gather(
    tmp_path: Path, columns: int, more: str, saved_us: float
) -> None:
    kernels = (("a", 4), ("b", 4), ("joined", 4), ("dot.1", 20), ("dot.2", 20), ("dot.3", 20), ("added", 6))
    row = findings(launched(tmp_path, MESSAGES.format(columns=columns, more=more), kernels))[
        "layer-after-gather"
    ]
    assert row["where"] == "cell, …/home/me/model.py:32"
    assert "16 for each one" in row["what"]
    assert "(x @ w[:n])[index]" in row["instead"]
    assert row["wins_ns"] == pytest.approx(64 * 1000 * saved_us, rel=0.05)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_a_small_part_of_the_step_stays_after_its_gather(tmp_path: Path) -> None:
    text = MESSAGES.format(columns=256, more="slow = f32[1000,256] tanh(x)")
    assert "layer-after-gather" not in findings(launched(tmp_path, text, (("dot.1", 1), ("slow", 100))))


RECURRENCE = """
body {{
  state = [] parameter()
  count = s32[] get-tuple-element(state), index=0
  h = f32[16,512] get-tuple-element(state), index=1
  ys = f32[256,16,512] get-tuple-element(state), index=2
  xs = f32[256,16,512] get-tuple-element(state), index=3
  one = s32[] constant()
  x = f32[16,512] dynamic-slice(xs, count)
  ax = f32[16,512] multiply({given}, x)
  turn = f32[16,512] {turn}(ax{more})
  keep = f32[256,16,512] dynamic-update-slice(ys, turn, count)
  next = s32[] add(count, one)
  result = [] tuple(next, turn, keep, xs)
}}
main {{
  given = [] parameter()
  loop = [] while(given), calls=body, site=2, config="{{'known_trip_count':{{'n':'{trips}'}}}}"
}}
"""


def recurrent(
    tmp_path: Path,
    *,
    given: str = "h",
    turn: str = "add",
    trips: int = 256,
    length: int = 1,
    device: str = "NVIDIA H100",
    memory: int = 80 << 30,
) -> Trace:
    """Return steps of a loop that launches five kernels in each iteration; the host takes 3 µs for each launch."""
    text = RECURRENCE.format(
        given=given, turn=turn, more=", x" if turn in ("add", "reduce") else "", trips=trips
    )
    proto = made_hlo.encode("jit_f", text, LINES).replace(b"'", b'"')
    host = xspace.Plane("/host:CPU", values={"jax_version": "0.11.2"})
    gpu = xspace.Plane("/device:GPU:0", values={"gpu_device_name": device, "memory_size": memory})
    thread, stream = host.line("python", 1000), gpu.line("Stream #7(Compute)", 1000)
    at = correlation = 0
    names = ("x", "ax", "turn", "keep", "next")
    took = len(names) * trips * max(3, length) + 100
    for step in range(4):
        thread.event("train", step * took * US, (took - 1) * US, step_num=step)
        for index in range(len(names) * trips):
            correlation += 1
            begin = step * took + 3 * index
            thread.event("cuLaunchKernel", (begin + 1) * US, 2 * US, correlation_id=correlation)
            at = max(at, begin + 5)
            stats = {"hlo_op": names[index % len(names)], "program_id": 1, "kernel_details": "regs:1"}
            stream.event("k", at * US, length * US, correlation_id=correlation, **stats)
            at += length
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(xspace.encode(host, gpu, made_hlo.plane(jit_f=proto)))
    return open_trace(path)


def test_a_linear_recurrence_is_computed_in_a_tree(tmp_path: Path) -> None:
    trace = recurrent(tmp_path)
    row = findings(trace)["sequential-scan"]
    assert row["where"] == "cell, …/home/me/model.py:31"
    assert row["what"].startswith(
        "in each of 256 iterations, a scan launches 5 kernels of 1.00 µs in the median: "
    )
    assert "lax.associative_scan" in row["instead"]
    assert row["sure"] == "high"
    # Of 1 280 launches, 16 remain, and as many as take as long as moving six times the states at 60 % of bandwidth.
    moved_us = 6 * 256 * 16 * 512 * 4 / (0.6 * 3.352e12) * 1e6
    step_ns = 1280 * 3_000 + 100_000
    left = (16 + moved_us) / 1280
    assert row["wins_ns"] == pytest.approx(step_ns * (1 - left), rel=0.06)
    # That the host launches less counts: the device works for a third of the time.
    assert row["wins_ns"] > 1280 * 1_000 * 1.5


@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"turn": "tanh"}, "unroll"),
        ({"memory": 64 << 20}, "unroll"),  # 8 MiB of states are more than a tenth of the memory
        ({"given": "x"}, "jax.vmap"),
    ],
    ids=["not linear", "too large", "apart"],
)
def test_other_loops_of_short_kernels_get_larger_iterations(
    tmp_path: Path, changes: dict[str, Any], instead: str
) -> None:
    row = findings(recurrent(tmp_path, **changes))["sequential-scan"]
    assert instead in row["instead"]
    assert "associative_scan" not in row["instead"]
    assert row["wins_ns"] > 0


@pytest.mark.parametrize(("device", "left"), [("NVIDIA H100", 0.04), ("GPU", 0.3)])
def test_iterations_apart_take_what_their_bytes_take(tmp_path: Path, device: str, left: float) -> None:
    row = findings(recurrent(tmp_path, given="x", device=device))["sequential-scan"]
    # On an H100, 64 KiB and more in 1 µs are a fiftieth of what its memory moves; half of that is expected.
    assert row["wins_ns"] == pytest.approx((1 - left) * 1280 * 3_000, rel=0.04)


def test_sums_in_a_loop_are_fused_with_their_neighbours(tmp_path: Path) -> None:
    row = findings(recurrent(tmp_path, turn="reduce"))["sequential-scan"]
    # Four of five kernels are beside the state, or sums: of these, 40 % remain.
    assert row["wins_ns"] == pytest.approx(0.8 * 0.6 * 1280 * 3_000, rel=0.05)
    assert row["wins_low_ns"] == 0


@pytest.mark.parametrize("changes", [{"trips": 8}, {"length": 20}], ids=["few iterations", "long kernels"])
def test_loops_of_few_iterations_or_long_kernels_stay(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert "sequential-scan" not in findings(recurrent(tmp_path, **changes))
