"""The step after a capture on a GPU, recorded for the arguments of operators; PyTorch is told to be on a GPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import numpy as np
import pytest
from installed import needs
from probe_runs import Run

from tuiprof.analyses.shared.arguments import arguments
from tuiprof.formats import open_trace
from tuiprof.session import log as records

needs("torch")

#: CUPTI is not there, so PyTorch records no device; the model takes 16 inputs, and rows as the step says.
ON_A_GPU = """
import os, torch
from torch.profiler import ProfilerActivity
torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.get_sync_debug_mode, torch.cuda.set_sync_debug_mode = lambda: 0, lambda mode: None
torch._C._cuda_isHistoryEnabled = lambda: False
made = []
class Profile(torch.profiler._KinetoProfile):
    def __init__(self, *, activities, **options):
        made.append((ProfilerActivity.CUDA in activities, options.get("record_shapes", False)))
        super().__init__(activities=[ProfilerActivity.CPU], **options)
torch.profiler._KinetoProfile = Profile
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(n, before=lambda: None):
    before()
    loss = model(torch.ones(8, 16)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ASKED = {"id": "a", "steps": 2, "at": 5}


def test_arguments_are_those_of_one_more_step(run_forked: Callable[..., Run]) -> None:
    done = run_forked(ON_A_GPU + "for n in range(12): step(n)\nprint(made)", requests=[ASKED])
    assert done.code == 0
    assert done.out.strip() == "[(True, False), (True, True)]"
    written = done.captures("a")[-1]
    assert (written.state, written.first, written.last) == ("written", 5, 6)
    assert [step.n for step in done.of(records.Step) if step.cap] == [4, 5, 6, 7]
    names = sorted(path.name.partition(".")[2].partition(".")[2] for path in done.session.glob("traces/*"))
    assert names == ["pt.trace.json.gz", "shapes.gz", "syncs.jsonl"]

    assert not any("Input Dims" in event.get("args", {}) for event in done.events(written))
    trace = open_trace(done.session)
    assert trace.steps.numbers.tolist() == [5, 6]
    layers = trace.operators("^aten::addmm$")
    assert [(row, given.dims[1]) for row, given in arguments(trace, layers)] == [
        (row, [8, 16]) for row in layers
    ]
    assert len(layers) == 2
    in_backward = trace.operators("^aten::mm$")
    assert [given.dims for _, given in arguments(trace, in_backward)] == 2 * [[[4, 8], [8, 16]]]


@pytest.mark.parametrize(
    "asked", [{"shapes": True}, {"cause": "step 3 took long"}], ids=["shapes", "trigger"]
)
def test_a_capture_with_shapes_and_one_of_a_trigger_have_no_such_step(
    run_forked: Callable[..., Run], asked: dict[str, object]
) -> None:
    done = run_forked(ON_A_GPU + "for n in range(12): step(n)\nprint(made)", requests=[ASKED | asked])
    assert done.out.strip() == f"[(True, {'shapes' in asked})]"
    assert not list(done.session.glob("traces/*.shapes.gz"))
    assert [step.n for step in done.of(records.Step) if step.cap] == [4, 5, 6]


@pytest.mark.parametrize(
    ("script", "beside"),
    [
        ("for n in range(8): step(n)", True),  # the script ends within the step
        ("for n in range(7): step(n)", False),  # and right before it
        (
            "for n in range(12):\n"
            "    step(n, lambda: torch.profiler.profile().__enter__() if n == 7 else None)",  # it profiles itself
            False,
        ),
        (
            "class Broken(Profile):\n"
            "    def start_trace(self):\n"
            "        if self.record_shapes: raise RuntimeError('no')\n"
            "        super().start_trace()\n"
            "torch.profiler._KinetoProfile = Broken\n"
            "for n in range(12): step(n)",
            False,
        ),
    ],
    ids=["ends-within", "ends-before", "profiles-itself", "fails"],
)
def test_the_capture_is_kept_whatever_becomes_of_it(
    run_forked: Callable[..., Run], script: str, beside: bool
) -> None:
    done = run_forked(ON_A_GPU + script, requests=[ASKED])
    assert done.code == 0
    assert "Traceback" not in done.err
    written = done.captures("a")[-1]
    assert (written.state, written.first, written.last, written.why) == ("written", 5, 6, "")
    assert [record.state for record in done.captures("a")].count("written") == 1
    assert not list(done.session.glob("traces/.*")), "nothing temporary is left"
    trace = open_trace(done.session)
    assert len(list(arguments(trace, trace.operators("^aten::addmm$")))) == (2 if beside else 0)


def test_operators_that_only_some_steps_have_have_no_arguments(run_forked: Callable[..., Run]) -> None:
    script = "for n in range(12): step(n, lambda: torch.ones(3).exp() if n == 6 else None)"
    done = run_forked(ON_A_GPU + script, requests=[ASKED])
    trace = open_trace(done.session)
    rows = trace.operators("^aten::(exp|addmm|mm)$")
    known = {row for row, _ in arguments(trace, rows)}
    assert {trace.name(int(row)) for row in rows if int(row) not in known} == {"aten::exp"}
    steps = trace.steps.step_of[np.array(sorted(known))]
    assert np.bincount(steps).tolist() == [2, 2]


def test_a_damaged_step_beside_a_trace_is_none(run_forked: Callable[..., Run]) -> None:
    done = run_forked(ON_A_GPU + "for n in range(12): step(n)", requests=[ASKED])
    [beside] = done.session.glob("traces/*.shapes.gz")
    for damaged in (b"", b"no trace", gzip.compress(json.dumps([1, 2]).encode()), beside.read_bytes()[:-200]):
        beside.write_bytes(damaged)
        trace = open_trace(done.session)
        rows = trace.operators("^aten::addmm$")
        assert len(list(arguments(trace, rows))) in (0, 2)
