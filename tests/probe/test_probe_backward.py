"""Optimizers that step inside ``backward``: the step ends when that has returned, and so does a capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forked import ForkedPython
from installed import needs
from probe_runs import Run, run_script

from tuiprof.session import log as records

needs("torch")

MODEL = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
def loss_of(): return model(torch.randn(8, 16)).square().mean()
"""
LOOP = "for _ in range(30): loss_of().backward()\nprint('trained')\n"
#: "Each its own" is how PyTorch's tutorial saves memory by fusing the optimizer step into the backward pass.
EACH_ITS_OWN = f"""
from torch.utils.checkpoint import checkpoint
optimizers = {{p: torch.optim.SGD([p], lr=0.01, foreach=False) for p in model.parameters()}}
def hook(p): optimizers[p].step(); optimizers[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
{LOOP}
def loss_of():
    x = torch.randn(8, 16, requires_grad=True)
    return checkpoint(model, x, use_reentrant=True).square().mean()
{LOOP}
"""
ONE_AT_THE_LAST = f"""
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def hook(p): optimizer.step(); optimizer.zero_grad()
handle = model[0].weight.register_post_accumulate_grad_hook(hook)
{LOOP}
handle.remove()
leaf = torch.ones(16, requires_grad=True)
for _ in range(30):
    x = leaf * 1.0
    x.register_hook(lambda grad: optimizer.step())
    torch.autograd.grad(model(x).sum(), leaf)
print("trained")
"""
#: Each script trains for 30 steps in one way, then for 30 in another.
CAPTURES = [{"id": "first", "steps": 3, "at": 10}, {"id": "second", "steps": 3, "at": 40}]


@pytest.fixture(scope="module")
def each_its_own(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> Run:
    return run_script(tmp_path_factory.mktemp("each"), MODEL + EACH_ITS_OWN, requests=CAPTURES, forked=forked)


@pytest.fixture(scope="module")
def one_at_the_last(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> Run:
    return run_script(
        tmp_path_factory.mktemp("last"), MODEL + ONE_AT_THE_LAST, requests=CAPTURES, forked=forked
    )


def in_a_hook(run: Run) -> None:
    """Check the first 30 steps, whose optimizers step in hooks of backward."""
    assert (run.code, run.out) == (0, "trained\n" * 2), run.err
    steps = run.of(records.Step)
    assert [step.n for step in steps[:30]] == list(range(30))
    assert [step.n for step in steps[:30] if step.cap] == [9, 10, 11, 12]
    for step in steps[1:30]:
        assert set(step.ph) == {"forward", "backward", "optimizer"}
        assert all(part >= 0 for part in step.ph.values()), step
        assert sum(step.ph.values()) <= step.dur
        assert step.ph["forward"] > 0 < step.ph["optimizer"]

    capture = run.captures("first")[-1]
    assert capture.state == "written"
    events = run.events(capture)
    marks = {event["name"]: event for event in events if event["name"].startswith("ProfilerStep#")}
    assert set(marks) == {"ProfilerStep#10", "ProfilerStep#11", "ProfilerStep#12"}
    for event in events:
        if event.get("name", "").startswith("Optimizer.step#"):
            middle = event["ts"] + event["dur"] / 2
            assert any(mark["ts"] < middle < mark["ts"] + mark["dur"] for mark in marks.values())


def test_optimizers_in_hooks_of_backward(each_its_own: Run) -> None:
    in_a_hook(each_its_own)


def test_checkpointed_activations_and_an_optimizer_in_the_hook(each_its_own: Run) -> None:
    steps = each_its_own.of(records.Step)
    assert len(steps) == 60
    assert all(part >= 0 for step in steps[30:] for part in step.ph.values())
    assert each_its_own.captures("second")[-1].state == "written"


def test_one_optimizer_in_the_last_hook_of_backward(one_at_the_last: Run) -> None:
    in_a_hook(one_at_the_last)


def test_a_backward_pass_that_is_run_otherwise(one_at_the_last: Run) -> None:
    """Nobody sees ``torch.autograd.grad`` return; its steps are counted, and nothing is harmed."""
    assert len(one_at_the_last.of(records.Step)) >= 30 + 29
    assert one_at_the_last.captures("second")[-1].state == "failed"


def test_the_script_ends_a_step_inside_backward(run_forked: Callable[..., Run]) -> None:
    script = """
import tuiprof
model[0].weight.register_post_accumulate_grad_hook(lambda p: tuiprof.step(loss=1.0))
"""
    done = run_forked(MODEL + script + LOOP, requests=CAPTURES[:1])
    assert (done.code, done.out) == (0, "trained\n"), done.err
    steps = done.of(records.Step)
    assert [(step.n, step.v) for step in steps] == [(n, {"loss": 1.0}) for n in range(30)]
    assert all(step.ph["backward"] > 0 for step in steps[1:]), "the step ends with backward, not inside it"
    assert done.captures("first")[-1].state == "written"
