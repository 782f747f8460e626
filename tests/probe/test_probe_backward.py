"""Optimizers that step inside ``backward``: the step ends when that has returned, and so does a capture."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest
from probe_runs import Run

from tuiprof.session.log import records

pytest.importorskip("torch")

MODEL = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
def loss_of(): return model(torch.randn(8, 16)).square().mean()
"""
#: As in PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass".
EACH_ITS_OWN = """
optimizers = {p: torch.optim.SGD([p], lr=0.01, foreach=False) for p in model.parameters()}
def hook(p): optimizers[p].step(); optimizers[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
"""
ONE_AT_THE_LAST = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def hook(p): optimizer.step(); optimizer.zero_grad()
model[0].weight.register_post_accumulate_grad_hook(hook)
"""
LOOP = "for _ in range(30): loss_of().backward()\nprint('trained')\n"
CAPTURE = {"id": "a", "steps": 3, "at": 10}


@pytest.mark.parametrize("hooks", [EACH_ITS_OWN, ONE_AT_THE_LAST], ids=["each its own", "one at the last"])
def test_an_optimizer_in_a_hook_of_backward(run: Callable[..., Run], hooks: str) -> None:
    done = run(MODEL + hooks + LOOP, requests=[CAPTURE])
    assert (done.code, done.out) == (0, "trained\n"), done.err
    steps = done.of(records.Step)
    assert [step.n for step in steps] == list(range(30))
    assert done.captures("a")[-1].state == "written"
    assert [step.n for step in steps if step.cap] == [9, 10, 11, 12]
    for step in steps[1:]:
        assert set(step.ph) == {"forward", "backward", "optimizer"}
        assert all(part >= 0 for part in step.ph.values()), step
        assert sum(step.ph.values()) <= step.dur
        assert step.ph["forward"] > 0 < step.ph["optimizer"]

    with gzip.open(done.session / done.captures("a")[-1].path, "rt") as file:
        events = json.load(file)["traceEvents"]
    marks = {event["name"]: event for event in events if event["name"].startswith("ProfilerStep#")}
    assert set(marks) == {"ProfilerStep#10", "ProfilerStep#11", "ProfilerStep#12"}
    for event in events:
        if event.get("name", "").startswith("Optimizer.step#"):
            middle = event["ts"] + event["dur"] / 2
            assert any(mark["ts"] < middle < mark["ts"] + mark["dur"] for mark in marks.values())


def test_the_script_ends_a_step_inside_backward(run: Callable[..., Run]) -> None:
    script = """
import tuiprof
model[0].weight.register_post_accumulate_grad_hook(lambda p: tuiprof.step(loss=1.0))
"""
    done = run(MODEL + script + LOOP, requests=[CAPTURE])
    assert (done.code, done.out) == (0, "trained\n"), done.err
    steps = done.of(records.Step)
    assert [(step.n, step.v) for step in steps] == [(n, {"loss": 1.0}) for n in range(30)]
    assert all(step.ph["backward"] > 0 for step in steps[1:]), "the step ends with backward, not inside it"
    assert done.captures("a")[-1].state == "written"


def test_a_backward_pass_that_is_run_otherwise(run: Callable[..., Run]) -> None:
    """Nobody sees ``torch.autograd.grad`` return; its steps are counted, and nothing is harmed."""
    script = """
leaf = torch.ones(16, requires_grad=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x = leaf * 1.0
    x.register_hook(lambda grad: optimizer.step())
    torch.autograd.grad(model(x).sum(), leaf)
print('trained')
"""
    done = run(MODEL + script, requests=[CAPTURE])
    assert (done.code, done.out) == (0, "trained\n"), done.err
    assert len(done.of(records.Step)) >= 29
    assert done.captures("a")[-1].state == "failed"


def test_checkpointed_activations_and_an_optimizer_in_the_hook(run: Callable[..., Run]) -> None:
    script = """
from torch.utils.checkpoint import checkpoint
def loss_of():
    x = torch.randn(8, 16, requires_grad=True)
    return checkpoint(model, x, use_reentrant=True).square().mean()
"""
    done = run(MODEL + script + EACH_ITS_OWN + LOOP, requests=[CAPTURE])
    assert (done.code, done.out) == (0, "trained\n"), done.err
    steps = done.of(records.Step)
    assert len(steps) == 30
    assert all(part >= 0 for step in steps[1:] for part in step.ph.values())
    assert done.captures("a")[-1].state == "written"
