"""Findings: the right rule fires, with its place and its cost, and none fires without its cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from analyses.made import Made, report, site

from tests import real_traces
from tuiprof.advice import Finding, advise, available, priorities, question
from tuiprof.advice.answer import answer as page_of
from tuiprof.advice.pricing import prioritise
from tuiprof.analyses import available as analyses
from tuiprof.analyses import run
from tuiprof.errors import TraceError, UsageProblem
from tuiprof.formats import open_trace
from tuiprof.ladder.scenarios import ladders
from tuiprof.model import Report, Trace
from tuiprof.report import render
from tuiprof.resources import shipped
from tuiprof.whatif import Edit, HostTime


def advice(trace: Trace) -> Report:
    return advise(trace)


def rules(trace: Trace) -> set[str]:
    return set(advice(trace).table("findings").rows["rule"].to_list())


def steps_of(*, operator: str, copy: str, size: int, calls: tuple[str, str]) -> Made:
    """Four steps, each a kernel, then a wait of 60 µs and 30 µs until the next kernel."""
    made = Made()
    for number, at in made.steps(200):
        correlation = number * 10 + 1
        made.launch("gemm", (at, at + 5), (at + 10, at + 90))
        made.op(operator, at + 20, at + 98).call(calls[0], at + 30, at + 92, correlation=correlation + 1)
        if copy:
            made.kernel(copy, at + 90, at + 91, correlation + 1, category="memcpy", bytes=size)
        if calls[1]:
            made.call(calls[1], at + 93, at + 96, correlation=correlation + 2)
        made.launch("add", (at + 115, at + 120), (at + 122, at + 190))
    return made


ITEM = {
    "operator": "aten::_local_scalar_dense",
    "copy": "Memcpy DtoH (Device -> Pageable)",
    "size": 4,
    "calls": ("cudaMemcpyAsync", "cudaStreamSynchronize"),
}


def test_item_in_every_step_names_the_line_the_cost_and_how_sure() -> None:
    made = steps_of(**ITEM)
    trace = made.trace([site(number * 200 + 99, "train.py:57 step") for number in range(4)])
    row = advice(trace).table("findings").rows.row(0, named=True)
    assert (row["rule"], row["where"], row["sure"]) == ("item-each-step", "step, train.py:57", "high")
    # Without the read the host runs ahead: what is left of 200 µs is the device's 148, and two short gaps.
    assert 40_000 <= row["wins_ns"] <= 52_000
    assert row["wins_low_ns"] <= row["wins_ns"] <= row["wins_high_ns"] <= 200_000
    assert "every N steps" in row["instead"]


def test_the_nan_check_of_a_metric_is_told_from_other_reads() -> None:
    made = steps_of(**ITEM)
    for number in range(4):
        made.add(
            "python_function",
            "torchmetrics/aggregation.py(85): _cast_and_nan_check_input",
            number * 200 + 15,
            number * 200 + 99,
        )
    findings = advice(made.trace()).table("findings").rows
    assert findings["rule"].to_list()[0] == "nan-check"
    assert "item-each-step" not in findings["rule"].to_list()
    assert findings["proof"][0] == "tuiprof ladder metrics --variants naive,no-nan-check"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"operator": "aten::nonzero"}, "size-from-device"),
        ({"operator": "aten::copy_", "copy": "Memcpy HtoD (Pageable -> Device)", "size": 4}, "small-copy"),
        (
            {"operator": "aten::copy_", "copy": "Memcpy HtoD (Pageable -> Device)", "size": 1 << 20},
            "pageable-memory",
        ),
        ({"operator": "aten::empty", "copy": "", "calls": ("cudaMalloc", "")}, "allocator-in-steps"),
        ({"operator": "aten::copy_"}, "array-read"),
    ],
)
def test_rules_of_syncs(change: dict[str, object], rule: str) -> None:
    assert rule in rules(steps_of(**{**ITEM, **change}).trace())


def test_a_wait_that_the_script_asks_for() -> None:
    def of(operator: str) -> Made:
        made = Made()
        for _, at in made.steps(200):
            made.launch("gemm", (at, at + 5), (at + 10, at + 90))
            if operator:
                made.op(operator, at + 18, at + 98)
            made.call("cudaDeviceSynchronize", at + 20, at + 92)
            made.launch("add", (at + 115, at + 120), (at + 122, at + 190))
        return made

    made = of("")
    lines = [site(number * 200 + 99, "train.py:31 step") for number in range(4)]
    assert "explicit-wait" not in rules(made.trace()), (
        "without any operators it is not known who asked for it"
    )
    beside = of("").op("aten::add", 114, 121).trace()
    row = advice(beside).table("findings").rows.filter(rule="explicit-wait").row(0, named=True)
    assert (row["where"], row["sure"]) == ("cudaDeviceSynchronize", "medium")
    assert "explicit-wait" not in rules(of("aten::linalg_eigh").trace(lines)), "the operator asked for it"
    trace = made.trace(lines)
    row = advice(trace).table("findings").rows.filter(rule="explicit-wait").row(0, named=True)
    assert (row["where"], row["sure"]) == ("step, train.py:31", "high")
    assert "torch.cuda.synchronize()" in row["what"]


@pytest.mark.parametrize(
    ("wait", "rule", "what"),
    [
        ("np.asarray(jax.Array)", "array-read", "jax.device_get"),
        ("jax.Array.block_until_ready", "explicit-wait", "block_until_ready() blocks the host every step"),
        (
            "api.py(2757): block_until_ready",
            "explicit-wait",
            "block_until_ready() blocks the host every step",
        ),
        ("TfrtGpuBuffer::Await", None, ""),  # the runtime's own
    ],
)
def test_waits_of_xla(wait: str, rule: str | None, what: str) -> None:
    made = Made()
    for _, at in made.steps(200):
        made.launch("gemm", (at, at + 5), (at + 10, at + 90))
        made.add("python_function" if wait.startswith("api") else "runtime", wait, at + 20, at + 98)
        made.launch("add", (at + 115, at + 120), (at + 122, at + 190))
    trace = made.trace(framework="PyTorch/XLA" if wait.startswith("PjRt") else "JAX 0.11.2")
    found = advice(trace).table("findings").rows
    found = found.filter(pl.col("rule").is_in(["array-read", "explicit-wait"]))
    assert found["rule"].to_list() == ([rule] if rule else [])
    if rule:
        assert what in found["what"][0]
        assert found["sure"][0] == "medium"
        assert 40_000 <= found["wins_ns"][0] <= 52_000


@pytest.mark.parametrize("wait", ["np.asarray(jax.Array)", "jax.Array.block_until_ready"])
@pytest.mark.parametrize(("other_us", "hidden_us"), [(2_000, 2_000), (9_000, 8_000)])
def test_behind_a_wait_for_xla_on_a_cpu_the_rest_of_the_step_can_hide(
    wait: str, other_us: int, hidden_us: int
) -> None:
    """What XLA computes takes its time on the same machine, waited for or not."""
    made, at = Made(), 0
    for number in range(4):
        until = at + 8_000 + other_us
        made.step(number, at, until).op("PjitFunction(step)", at + 10, at + 90)
        made.add("runtime", wait, at + 100, at + 8_100)
        at = until
    rows = advice(made.trace(framework="JAX 0.10.2")).table("findings").rows
    (wins_ns,) = rows.filter(pl.col("rule").is_in(["array-read", "explicit-wait"]))["wins_ns"]
    assert wins_ns == pytest.approx(1_000 * hidden_us, rel=0.02)


@pytest.mark.parametrize(
    ("framework", "jit", "alloc"),
    [("PyTorch 2.11", "torch.compile", "PYTORCH_"), ("JAX 0.11.2", "jax.jit", "XLA_")],
)
def test_advice_speaks_of_the_framework_that_made_the_trace(framework: str, jit: str, alloc: str) -> None:
    def of(trace: Trace) -> str:
        trace.info = replace(trace.info, framework=framework)
        return " ".join(advice(trace).table("findings").rows["instead"])

    loop = of(looped(20))
    assert jit in loop
    made = steps_of(operator="aten::empty", copy="", size=0, calls=("cudaMalloc", ""))
    assert alloc in of(made.trace())
    chain = Made()
    for number in range(4):
        chain.step(number, number * 1000, number * 1000 + 900)
        for i in range(30):
            at = number * 1000 + i * 30
            name = ("mul", "add", "tanh")[i % 3]
            kernel = f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}_functor, a>(int)"
            chain.launch(kernel, (at, at + 3), (at + 4, at + 6))
    text = of(chain.trace())
    assert jit in text
    assert ("torch" in text) == framework.startswith("PyTorch"), text


def test_a_loader_without_workers() -> None:
    row = advice(loading(IN_PROCESS)).table("findings").rows.row(0, named=True)
    assert row["rule"] == "loader-workers"
    assert row["wins_ns"] == 0.9 * 4_000_000, "workers make batches beside the step, fetching takes a tenth"


def test_large_batches_of_workers_take_longer_to_fetch() -> None:
    small, large = (
        advice(loading(IN_PROCESS, copied=size)).table("findings").rows["wins_ns"][0]
        for size in (8_000, 8_000_000)
    )
    assert small == pytest.approx(4_000_000 - 300_000 - 1_000, rel=0.001)
    assert large == pytest.approx(4_000_000 - 300_000 - 1_000_000, rel=0.001)


def loading(wait: str, *frames: tuple[str, int, int], device: bool = True, copied: int = 0) -> Trace:
    """Four steps of 10 ms that begin with 4 ms of waiting under a name, with Python frames inside and around."""
    made = Made()
    for _, at in made.steps(10_000):
        category = "cpu_op" if "DataLoader" in wait else "annotation"
        made.add(category, wait, at + 100, at + 4_100).op("aten::mm", at + 4_200, at + 9_990)
        for name, begin, end in frames:
            made.add("python_function", name, at + 100 * begin, at + 100 * end)
        if device:
            made.launch("gemm", (at + 4_500, at + 4_505), (at + 4_510, at + 9_900))
        if copied:
            made.launch("Memcpy HtoD", (at + 4_400, at + 4_405), (at + 4_410, at + 4_420))
            made.rows[-1]["bytes"] = copied
    return made.trace()


IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FRAMES = (
    ("torch/utils/data/dataloader.py(700): __next__", 0, 42),
    ("train.py(20): __getitem__", 2, 40),
    ("train.py(9): decode", 3, 38),
    ("numpy/fft/_pocketfft.py(900): fft2", 4, 30),
)


def test_with_python_stacks_a_loader_without_workers_is_still_one_and_the_slow_function_is_named() -> None:
    row = advice(loading(IN_PROCESS, *FRAMES)).table("findings").rows.row(0, named=True)
    assert row["what"].startswith("batches are loaded in the training process")
    assert row["where"] == "train.py decode() from line 9"
    data = report("data_loading", loading(IN_PROCESS, *FRAMES))
    functions = data.table("functions").rows
    assert functions.select("function", "per_step_ns", "per_step").rows() == [
        ("train.py decode() from line 9", 3_500_000.0, 1.0),
        ("train.py __getitem__() from line 20", 300_000.0, 1.0),
    ]


def test_what_loads_is_not_guessed() -> None:
    row = advice(loading("load_batch")).table("findings").rows.row(0, named=True)
    assert (row["rule"], row["sure"]) == ("loader-workers", "medium")
    assert "workers cannot keep up" not in row["what"]
    workers = advice(loading("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"))
    assert "workers cannot keep up" in workers.verdict.sentence


def test_advice_for_a_cpu_speaks_of_no_device() -> None:
    with_device, without = (
        advice(loading(IN_PROCESS, device=device)).table("findings").rows["instead"][0]
        for device in (True, False)
    )
    assert "pin_memory" in with_device
    assert "pin_memory" not in without
    assert "cores" in without


def looped(op_us: float, *, passes: int = 10, device: bool = False, inside: str = "") -> Trace:
    """Two steps on a CPU that call three operators again and again, in the forward and on autograd's thread."""
    made = Made()
    for _, at in made.steps(4000, 2):
        made.add("python_function", "train.py(46): loss", at + 100, at + 1900)
        if inside:
            made.op(inside, at + 99, at + 1901)
        for i in range(passes * 3):
            name, begin = ("aten::slice", "aten::nll_loss", "aten::add")[i % 3], at + 100 + i * 60
            made.op(name, begin, begin + op_us)
            if not inside:
                back = f"autograd::engine::evaluate_function: {name}"
                made.op(back, begin + 2000, begin + 2000 + op_us, track=1)
        if device:
            made.launch("k", (at + 1, at + 2), (at + 3, at + 4))
    return made.trace()


def optimizing(*, at_the_start: bool) -> Trace:
    """Two steps on a CPU, half of each an optimizer that updates ten parameters one by one, with Python frames."""
    made = Made().add("python_function", "train.py(53): main", 0, 9000)
    made.add(
        "python_function", "torch/profiler/profiler.py(900): start", *((1, 5) if at_the_start else (950, 960))
    )
    for number in range(2):
        at = 1000 + number * 4000
        made.step(number, at, at + 4000)
        if not at_the_start:
            made.op("aten::zero_", at - 90, at - 80)
        made.add("annotation", "Optimizer.step#AdamW.step", at + 100, at + 1900)
        for i in range(20):
            begin = at + 110 + i * 60
            made.op(("aten::mul_", "aten::add_")[i % 2], begin, begin + 20)
    return made.trace()


@pytest.mark.parametrize(
    ("at_the_start", "where"), [(True, "train.py main()"), (False, "train.py main() from line 53")]
)
def test_an_optimizer_on_a_cpu_is_named_by_its_caller_and_a_function_that_ran_before_has_no_first_line(
    at_the_start: bool, where: str
) -> None:
    # Kineto records the line that a function had reached when the profiler started, and the first one of all others.
    findings = advice(optimizing(at_the_start=at_the_start)).table("findings").rows
    row = findings.row(by_predicate=pl.col("rule") == "single-tensor-optimizer", named=True)
    assert row["where"] == where
    assert row["instead"].startswith("fused=True")


def test_a_loop_of_short_operators_on_a_cpu_names_its_function_and_counts_its_backward() -> None:
    findings = advice(looped(20)).table("findings").rows
    assert findings.select("rule", "where").rows() == [("operator-loop", "train.py loss() from line 46")]
    row = findings.row(0, named=True)
    assert "10 times in a row (and again in the backward pass): slice → nll_loss → add" in row["what"]
    # Forward and backward: from the first operator to the end of the last, less one pass of ten.
    assert row["wins_ns"] == pytest.approx(2 * (9 * 180_000 + 120_000 + 20_000) * 9 / 10)


def test_loops_that_call_something_else_on_a_cpu_are_findings_of_their_own() -> None:
    made = Made()
    for _, at in made.steps(4000, 2):
        made.add("python_function", "train.py(46): loss", at + 100, at + 3900)
        for begin, names in ((100, ("slice", "add")), (1300, ("mul", "exp")), (2500, ("add", "slice"))):
            made.op("aten::linear", at + begin - 90, at + begin - 10)
            for index in range(20):
                start = at + begin + index * 50
                made.op(f"aten::{names[index % 2]}", start, start + 20)
    findings = advice(made.trace()).table("findings").rows
    said = findings.filter(pl.col("rule") == "operator-loop")["what"].to_list()
    assert [what.rpartition(": ")[2] for what in said] == ["slice → add", "mul → exp"]


@pytest.mark.parametrize(
    "trace",
    [
        looped(58),  # they compute more than their calls cost
        looped(5),  # it is the Python between them that takes the time
        looped(20, passes=7),  # too few to be a loop over samples
        looped(20, device=True),  # told by its launches
        looped(20, inside="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    ],
)
def test_what_is_no_loop_of_short_operators(trace: Trace) -> None:
    assert "operator-loop" not in rules(trace)


def test_an_optimizer_without_multi_tensor_kernels() -> None:
    made = Made()
    for _, at in made.steps(1000, 2):
        made.add("annotation", "Optimizer.step#SGD.step", at + 100, at + 900)
        for i in range(60):
            begin = at + 100 + i * 12
            made.launch("add", (begin, begin + 5), (begin + 6, begin + 10))
    assert {"single-tensor-optimizer", "launch-bound"} <= rules(made.trace())


@pytest.mark.parametrize(
    ("optimizers", "layer", "before_each", "advised"),
    [
        (20, "aten::linear", (), True),
        (4, "aten::linear", (), False),
        (20, "aten::linear", ("aten::linear",), False),  # each learns from a batch of its own
        (
            20,
            "CompiledFunction",
            ("CompiledFunction", "autograd::engine::evaluate_function: CompiledFunctionBackward"),
            False,
        ),
        (1, "CompiledFunction", (), False),
    ],
)
def test_optimizers_that_one_could_replace(
    optimizers: int, layer: str, before_each: Sequence[str], advised: bool
) -> None:
    made = Made()
    for number, at in made.steps(10_000, 8):
        made.op(layer, at, at + 20)
        for i in range(optimizers):
            begin = at + 100 + i * 400
            for index, name in enumerate(before_each):
                begun = begin - 50 + 20 * index
                made.op(name, begun, begun + 15, sequence=number * 100 + i + 1)
            made.add("annotation", "Optimizer.step#AdamW.step", begin, begin + 300)
            made.add("annotation", "Optimizer.zero_grad#AdamW.zero_grad", begin + 300, begin + 310)
            for part in range(3):
                call = begin + 10 + part * 50
                made.launch(f"multi_tensor_apply {part}", (call, call + 5), (call + 10, call + 12))
    found = advice(made.trace()).table("findings").rows
    one_each = found.filter(pl.col("rule") == "single-tensor-optimizer")
    assert len(one_each) == advised
    assert (len(found.filter(pl.col("rule") == "unfused-optimizer")) > 0) != advised
    if advised:
        row = one_each.row(0, named=True)
        assert row["what"].startswith("20 optimizers step")
        assert row["wins_ns"] == pytest.approx(20 * 310_000 * 17 / 20, rel=0.05)


def test_exposed_communication_is_what_nothing_hides() -> None:
    made = Made().step(1, 0, 10).launch("ncclDevKernel_AllReduce", (0, 2), (5, 65))
    made.launch("gemm", (1, 3), (5, 35), track=3, stream=8)
    rows = advice(made.trace()).table("findings").rows.filter(rule="exposed-collectives")
    assert rows["wins_ns"][0] == pytest.approx(0.7 * 30_000, abs=1)


@pytest.mark.parametrize(("framework", "word"), [("PyTorch 2.11", "DDP"), ("JAX 0.10.2", "XLA")])
def test_exposed_communication_has_a_short_name_and_the_words_of_its_framework(
    framework: str, word: str
) -> None:
    kernel = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    trace = Made().step(1, 0, 10).launch(kernel, (0, 2), (5, 65)).trace(framework=framework)
    row = (
        advice(trace)
        .table("findings")
        .rows.row(by_predicate=pl.col("rule") == "exposed-collectives", named=True)
    )
    assert row["where"] == "ncclDevKernel_AllReduce_Sum_f16_RING_LL"
    assert [other in row["instead"] for other in ("DDP", "XLA")] == [word == "DDP", word == "XLA"]


@pytest.mark.parametrize(
    ("operator", "kernel", "word"),
    [
        ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f16", "tensor parallelism"),
        ("autograd::engine::evaluate_function: AccumulateGrad", "ncclDevKernel_AllReduce_Sum_f16", "DDP"),
        ("c10d::_allgather_base_", "ncclDevKernel_AllGather", "FSDP"),
        ("c10d::alltoall_", "ncclDevKernel_SendRecv", "next batch"),
    ],
)
def test_communication_is_overlapped_with_what_it_is_for(operator: str, kernel: str, word: str) -> None:
    made = Made().step(1, 0, 10).op(operator, 0, 4).launch(kernel, (1, 2), (5, 65))
    rows = advice(made.trace()).table("findings").rows.filter(rule="exposed-collectives")
    assert word in rows["instead"][0]


def test_without_steps_an_allocation_may_be_a_warm_up() -> None:
    def row(stepped: bool) -> dict[str, Any]:
        made = steps_of(operator="aten::empty", copy="", size=0, calls=("cudaMalloc", "cudaFree"))
        if not stepped:
            made.rows = [one for one in made.rows if not one["name"].startswith("ProfilerStep")]
            for number, one in enumerate(made.rows):  # nor does anything repeat
                one["name"] = f"{one['name']}_{number}" if one["category"] == "kernel" else one["name"]
        rows = advice(made.trace()).table("findings").rows
        return rows.row(by_predicate=pl.col("rule") == "allocator-in-steps", named=True)

    assert row(True)["sure"] == "high"
    assert row(True)["wins_low_ns"] > 0
    unknown = row(False)
    assert (unknown["sure"], unknown["wins_low_ns"]) == ("low", 0)
    assert "step needs" not in unknown["what"]


@pytest.mark.parametrize(
    ("calls", "said"),
    [(("cudaMalloc", ""), "cudaMalloc runs once a step"), (("cudaMalloc", "cudaFree"), "2 times a step")],
)
def test_how_often_memory_is_allocated(calls: tuple[str, str], said: str) -> None:
    made = steps_of(operator="aten::empty", copy="", size=0, calls=calls)
    rows = advice(made.trace()).table("findings").rows
    assert said in rows.row(by_predicate=pl.col("rule") == "allocator-in-steps", named=True)["what"]


def test_launch_blocking_comes_first_because_it_spoils_every_figure() -> None:
    made = Made()
    for i in range(30):
        made.launch("k", (i * 50, i * 50 + 30), (i * 50 + 5, i * 50 + 25))
    assert advice(made.trace()).table("findings").rows["rule"][0] == "launch-blocking"


def test_nothing_to_say_about_a_busy_device() -> None:
    made = Made().step(1, 0, 1000)
    for i in range(10):
        made.launch("gemm", (i * 5, i * 5 + 4), (10 + i * 98, 108 + i * 98))
    found = advice(made.trace())
    assert found.fact("findings") == 0
    assert found.verdict.level == "good"


def test_a_cpu_trace_gets_advice_without_a_device() -> None:
    assert rules(loading(IN_PROCESS, device=False)) == {"loader-workers"}


def test_advice_is_an_analysis_like_any_other() -> None:
    names = list(analyses())
    assert names.index("advice") > names.index("sync_events")
    trace = steps_of(**ITEM).trace()
    found = report("advice", trace)
    assert found.table("findings").rows.equals(advice(trace).table("findings").rows)
    assert "measured on 4 steps" in render(found, "text")


@pytest.mark.parametrize("name", ["planted-kinds", "planted-syncs", "metrics-naive"])
def test_what_a_finding_says_is_filled_in(name: str) -> None:
    trace = open_trace(shipped("traces") / f"{name}.pt.trace.json.gz")
    found = priorities(trace)
    texts = [
        text
        for item in (*found.findings, *found.small)
        for text in (item.finding.what, item.finding.instead, item.finding.because)
    ]
    assert texts
    assert not [text for text in texts if "{" in text]


def test_every_proof_names_a_scenario_that_is_there() -> None:
    import re
    from pathlib import Path

    import tuiprof.advice

    known = {ladder.name: {variant.name for variant in ladder.variants} for ladder in ladders([])}
    sources = "".join(path.read_text() for path in Path(tuiprof.advice.__file__).parent.rglob("*.py"))
    proofs = set(re.findall(r'"([a-z-]+):([a-z0-9,-]+)"', sources))
    assert len(proofs) >= 5
    for ladder, variants in proofs:
        assert set(variants.split(",")) <= known[ladder], (ladder, variants)
    assert len(available()) >= 15


def test_a_gain_is_a_share_of_what_the_device_needs_where_the_host_runs_ahead() -> None:
    made = Made()
    for number, at in made.steps(40, 5):
        busy = 10 + number * 100
        made.op("aten::mm", at + 1, at + 4)
        made.launch("sm80_xmma_gemm_f32f32_tf32f32", (at + 1, at + 3), (busy, busy + 90))
    found = advice(made.trace())
    assert found.fact("step_ns") == pytest.approx(100_000, rel=0.02)
    row = found.table("findings").rows.row(0, named=True)
    assert (row["rule"], row["wins_ns"]) == ("mixed-precision", 42_300)
    assert row["share"] == pytest.approx(0.423, rel=0.02)


def test_reading_from_the_device_through_jax_device_get_is_priced() -> None:
    """Its wait is an event of Python, with JAX's own read inside."""
    trace = open_trace(shipped("traces") / "jax-waits.xplane.pb.gz")
    syncs = report("sync_events", trace)
    place = syncs.table("groups").rows.row(0, named=True)
    first = advice(trace).table("findings").rows.row(0, named=True)
    assert "device_get" in place["calls"]
    assert place["where"] in first["where"]
    assert first["wins_ns"] == pytest.approx(place["saves_ns_per_step"], rel=0.02)


@pytest.mark.parametrize("path", real_traces.paths("*.json*"), ids=lambda path: path.name)
def test_what_is_said_of_real_traces_holds_together(path: Path) -> None:
    """No gain is larger than the step, no device works longer than it, no sentence speaks of what is not there."""
    try:
        trace = open_trace(path)
    except TraceError:
        return
    report = advice(trace)
    facts = {fact.key: fact.value for fact in report.facts}
    step_ns = facts.get("step_ns", 0.0)
    assert facts.get("floor_ns", 0.0) <= step_ns
    for row in report.table("findings").rows.to_dicts():
        if row["wins_ns"] is not None:
            assert 0 <= row["wins_low_ns"] <= row["wins_ns"] <= row["wins_high_ns"] <= step_ns, row
        assert "forward and backward" not in row["what"] or trace.named("^autograd::engine").any(), row
        assert "(" not in row["where"] or ".py" in row["where"] or "::" not in row["where"], row
    if not len(trace.steps):
        reports = (run(name, trace) for name in ("sync_events", "kernel_launches"))
        sentences = [found.verdict.sentence for found in reports if isinstance(found, Report)]
        assert not any("a step" in sentence for sentence in sentences), sentences
    assert not (trace.steps.read_from and not len(trace.steps))


@pytest.mark.parametrize("name", ["planted-kinds.pt.trace.json.gz", "jax-waits.xplane.pb.gz"])
def test_without_a_question_what_if_repeats_the_savings_of_the_page_by_names_that_can_be_asked_for(
    name: str,
) -> None:
    trace = open_trace(shipped("traces") / name)
    page = page_of(trace, name)
    told = question.answer(trace, [])
    assert isinstance(told, Report)
    *single, together = told.table("changes").rows.iter_rows(named=True)
    saved = [(row["wins_ns"], row["wins_low_ns"], row["wins_high_ns"]) for row in single]
    assert saved == [(one.saves_ns, one.saves_low_ns, one.saves_high_ns) for one in page.changes]
    assert together["wins_ns"] == page.together_ns
    names = [row["change"].removeprefix("without ") for row in single]
    assert len(set(names)) == len(names)
    for text in names:
        [asked] = question.changes(trace, without=[text])
        assert asked.text == f"without {text}"


@pytest.mark.parametrize("with_host", [True, False])
@pytest.mark.parametrize(("works_us", "level"), [(50, "warn"), (9_900, "good")])
def test_without_a_finding_a_device_that_hardly_works_is_not_well_used(
    works_us: float, level: str, with_host: bool
) -> None:
    made = Made()
    if with_host:
        made.step(1, 0, 10_000).launch("gemm", (20, 25), (30, 30 + works_us))
    else:
        made.kernel("gemm", 0, works_us - 1).kernel("gemm", 9_999, 10_000)
    verdict = advice(made.trace()).verdict
    assert verdict.level == level
    assert ("works for only 50.0 µs of 10.0 ms" in verdict.sentence) == (level == "warn")


def test_where_nothing_can_be_replayed_what_takes_longest_comes_first() -> None:
    trace = Made().op("aten::mm", 0, 10).launch("gemm", (2, 5), (20, 120)).trace()
    host = HostTime(*(np.array([part]) for part in (0, 0, 10_000)), np.array([0.0]))
    edits = {"host": Edit(host=host), "device": Edit(work=trace.device_work, keep=np.array([0.5]))}
    findings = [(name, Finding("", "", "", "high", "", edit)) for name, edit in edits.items()]
    assert [item.rule for item in prioritise(findings, None, trace).findings] == ["device", "host"]


def test_kernels_of_a_trace_without_device_work_cannot_be_scaled_and_what_can_is_named() -> None:
    with pytest.raises(UsageProblem, match="no device work in this trace") as found:
        question.changes(loading(IN_PROCESS, device=False), scale=["gemm=0.5"])
    assert "--host F" in found.value.remedy
    with pytest.raises(UsageProblem, match="no kernel has 'conv' in its name"):
        question.changes(loading(IN_PROCESS), scale=["conv=0.5"])
    [asked] = question.changes(loading(IN_PROCESS), scale=["gemm=0.5"])
    assert asked.text.startswith("4 kernels")
