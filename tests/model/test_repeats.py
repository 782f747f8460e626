"""Steps of traces that mark none, read from what they repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuiprof.formats import open_trace
from tuiprof.model import Trace
from tuiprof.model.steps import anchors

MAIN, STREAM = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}


def host(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **MAIN, "args": args}


def launch(kernel: str, ts: float, number: int) -> list[dict[str, Any]]:
    device = {"device": 0, "stream": 7, "correlation": number}
    return [
        host("cudaLaunchKernel", ts, 2, "cuda_runtime", correlation=number),
        {"ph": "X", "cat": "kernel", "name": kernel, "ts": ts + 5, "dur": 3, **STREAM, "args": device},
    ]


def trace_of(folder: Path, events: list[dict[str, Any]]) -> Trace:
    path = folder / "x.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return open_trace(path)


def kernels(count: int) -> list[dict[str, Any]]:
    names = ["embed", "gemm", "gemm", "softmax", "loss", "adam"]
    found = []
    for step in range(count):
        for place, name in enumerate(names):
            found += launch(name, 1000 * step + 100 * place, 10 * step + place + 1)
    return found


def test_marks_of_pytorchs_optimizer(tmp_path: Path) -> None:
    events = [host("Optimizer.step#AdamW.step", 1000 * n + 900, 50, "user_annotation") for n in range(6)]
    events += [host("aten::mm", 1000 * n + 100, 300) for n in range(6)]
    trace = trace_of(tmp_path, events)
    assert trace.steps.numbers.tolist() == list(range(5)), (
        "what comes before the first mark is no complete step"
    )
    assert (trace.steps.ends - trace.steps.starts).tolist() == [1_000_000] * 5
    assert "AdamW" in trace.steps.read_from
    assert "AdamW" in trace.trust.text


CRITIC, GENERATOR = ("Addmm", "Relu", "Mm"), ("Addmm", "Relu", "Mm", "Conv", "Conv", "Tanh")


def optimized(folder: Path, passes: list[tuple[str, ...]], updates: int = 1) -> Trace:
    """A trace of backward passes, given by their nodes, after each of which that many optimizers step."""
    node, events = "autograd::engine::evaluate_function: ", list[dict[str, Any]]()
    for nodes in passes:
        at = 50 * len(events)
        events += [host(f"{node}{name}Backward0", at + 50 * n, 20) for n, name in enumerate(nodes)]
        at = 50 * len(events)
        events += [
            host("Optimizer.step#Adam.step", at + 50 * n, 20, "user_annotation") for n in range(updates)
        ]
    return trace_of(folder, events)


@pytest.mark.parametrize(
    ("passes", "updates", "per_step", "steps"),
    [
        ((CRITIC, GENERATOR), 1, 2, 7),
        ((*(CRITIC,) * 5, GENERATOR), 1, 6, 7),
        ((CRITIC,), 1, 1, 7),
        ((CRITIC, CRITIC), 1, 1, 15),  # it can't be told
        ((CRITIC,), 2, 1, 7),  # two optimizers after one backward pass
    ],
    ids=["a GAN", "five turns of a critic", "one optimizer", "twice the same", "together"],
)
def test_optimizers_that_take_turns(
    tmp_path: Path, passes: tuple[tuple[str, ...], ...], updates: int, per_step: int, steps: int
) -> None:
    trace = optimized(tmp_path, [*passes] * 8, updates)
    length = 50_000 * (sum(map(len, passes)) + updates * len(passes)) // (steps // 7)
    assert trace.steps.lengths.tolist() == [length] * steps
    assert ("a step" in trace.steps.read_from) == (per_step > 1)
    if steps == 7:
        assert trace.steps.starts[0] == length - 30_000, "a step ends with the last optimizer"


def test_turns_in_a_long_trace_whose_passes_are_about_alike(tmp_path: Path) -> None:
    passes = [part for n in range(120) for part in (CRITIC * 10 + ("Sum",) * (n % 2), GENERATOR * 10)]
    assert len(optimized(tmp_path, passes).steps) == 119


def test_backward_passes_that_vary(tmp_path: Path) -> None:
    of_a_gan = [CRITIC, GENERATOR] * 8
    of_a_gan[3] = ("Sum",) * 20
    assert len(optimized(tmp_path, of_a_gan).steps) == 7
    lengths = 3, 7, 4, 9, 3, 5, 8, 3, 6
    assert len(optimized(tmp_path, [("Addmm",) * length for length in lengths]).steps) == 8


def test_a_jitted_function_that_is_called_again_and_again(tmp_path: Path) -> None:
    events = [host("PjitFunction(update)", 1000 * n, 600) for n in range(8)]
    events += [host("PjitFunction(_mean)", 1000 * n + 700 + 10 * k, 5) for n in range(8) for k in range(4)]
    events += [
        host("PjitFunction(update)", 1000 * n + 1, 590) for n in range(8)
    ]  # on a CPU each call has two marks
    trace = trace_of(tmp_path, events)
    assert len(trace.steps) == 7
    assert "update" in trace.steps.read_from


@pytest.mark.parametrize(
    ("shift", "function"), [(0, "gradient"), (1500, "multiply")], ids=["regular", "in pairs"]
)
def test_operations_outside_of_a_jit_are_parts_of_the_step(tmp_path: Path, shift: int, function: str) -> None:
    """They take longer in all than the one function that is compiled."""
    events = []
    for n in range(8):
        at = 3000 * n + shift * (n % 2) + 20_000 * (n > 4)  # an evaluation
        events += [host("PjitFunction(gradient)", at, 300)]
        events += [host("PjitFunction(multiply)", at + 400 + 40 * k, 30) for k in range(20)]
    trace = trace_of(tmp_path, events)
    assert f"calls of {function}," in trace.steps.read_from


@pytest.mark.parametrize(("inside", "function"), [(True, "update"), (False, "ones")])
def test_of_jitted_functions_the_one_that_launches_the_work_is_the_step(
    tmp_path: Path, inside: bool, function: str
) -> None:
    """An operator outside of it takes longer in all, as it is compiled in its first call."""
    events = []
    for n in range(8):
        events += [
            host("PjitFunction(ones)", 3000 * n, 2000 if n == 0 else 300),
            *launch("fill", 3000 * n + 10, 2 * n + 1),
        ]
        events += [host("PjitFunction(update)", 3000 * n + 2100, 200)]
        step = launch("step", 3000 * n + (2110 if inside else 2400), 2 * n + 2)
        step[1]["dur"] = 500
        events += step
    trace = trace_of(tmp_path, events)
    assert f"calls of {function}," in trace.steps.read_from


def test_a_sequence_of_launches(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, kernels(9))
    assert len(trace.steps) == 8
    assert "6 launches" in trace.steps.read_from
    assert trace.steps.starts[0] == trace.starts.min(), "it begins with what comes first"


def test_layers_that_repeat_within_more_are_no_steps(tmp_path: Path) -> None:
    others = [
        event
        for place in range(60)
        for event in launch(f"postprocess_{place % 7 % 3}", 20_000 + 50 * place, 500 + place)
    ]
    assert len(trace_of(tmp_path, kernels(9)).steps) == 8
    trace = trace_of(tmp_path, kernels(9) + others)
    assert len(trace.steps) == 0, "54 of 114 launches repeat"
    assert "no step markers" in trace.trust.text


def test_a_repetition_with_other_work_in_between_is_no_step(tmp_path: Path) -> None:
    def interrupted(launches: int) -> list[dict[str, Any]]:
        """Nine repetitions, and other launches between the second and the third."""
        events = kernels(9)
        for event in events:
            event["ts"] += 1e6 * (event["ts"] >= 2000)
        for place in range(launches):
            events += launch(f"evaluate_{place}", 10_000 + 50 * place, 500 + place)
        return events

    trace = trace_of(tmp_path, interrupted(8))
    assert (trace.steps.ends - trace.steps.starts).tolist() == [1_000_000] * 7
    assert len(trace_of(tmp_path, interrupted(20)).steps) == 0, "26 of 74 launches lie in between"


def test_what_one_graph_launches_repeats_in_no_time(tmp_path: Path) -> None:
    events = [host("cudaGraphLaunch", 0, 5, "cuda_runtime", correlation=1)]
    names = ["embed", "gemm", "gemm", "softmax", "loss", "adam"]
    events += [launch(names[place % 6], 100 * place, 1)[1] for place in range(54)]
    trace = trace_of(tmp_path, events)
    assert len(trace.steps) == 0
    assert "they are read from" not in trace.trust.text


@pytest.mark.parametrize("marked", [True, False])
def test_marked_steps_and_traces_that_repeat_nothing_stay_as_they_are(tmp_path: Path, marked: bool) -> None:
    events = kernels(2)
    if marked:
        events = kernels(9) + [host(f"ProfilerStep#{n}", 1000 * n, 990, "user_annotation") for n in (4, 5)]
    trace = trace_of(tmp_path, events)
    assert trace.steps.numbers.tolist() == ([4, 5] if marked else [])
    assert trace.steps.read_from == ""


@pytest.mark.parametrize("layers", [2, 12, 60])
def test_the_layers_of_a_model_are_no_steps(layers: int) -> None:
    """A step: its input, so many layers forward and backward, and an optimizer that goes over as many parameters."""
    step = [0, *[1, 2, 3] * layers, 4, *[5, 6, 3] * layers, *[7, 8, 9, 10] * layers]
    assert np.diff(anchors(np.array(step * 6))).tolist() == [len(step)] * 5


def test_nothing_repeats_in_a_single_pass_over_layers() -> None:
    assert not len(anchors(np.array([0, *range(20, 60), *[1, 2, 3] * 20, *range(60, 100)])))
