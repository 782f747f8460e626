"""What a script makes of its models and optimizers is the same under the probe, also during a capture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import ForkedPython
from installed import needs
from probe_runs import Run

needs("torch")

SCRIPT = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x): return self.layer(x).relu()
model, x = Net(), torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step():
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: The script's code after two of three captured steps.
IN_CAPTURE = """
for number in range(8):
    step()
    if number == 5: check()
"""
CAPTURE = {"id": "a", "steps": 3, "at": 4}


def test_a_pickled_copy_of_a_script_s_class_does_not_need_the_probe(
    run_forked: Callable[..., Run], forked: ForkedPython, tmp_path: Path
) -> None:
    needs("cloudpickle")
    script = """
import cloudpickle
class Own(Net):
    def __call__(self, x): return super().__call__(x) + 1
class Opt(torch.optim.SGD):
    def step(self, closure=None): return super().step(closure)
model = Own().train()
optimizer = Opt(model.parameters(), 0.1)
for _ in range(3): step()
with open("copies.pickle", "wb") as file: file.write(cloudpickle.dumps([Net().train(), model, Opt]))
"""
    run_forked(SCRIPT + script)
    read = """
import pickle, torch
net, own, Opt = pickle.load(open("copies.pickle", "rb"))
optimizer = Opt(own.parameters(), 0.1)
for _ in range(3): own(torch.ones(1, 8)).sum().backward(); optimizer.step()
print(tuple(net(torch.ones(1, 8)).shape), bool((own(torch.ones(1, 8)) >= 1).all()))
"""
    (tmp_path / "read.py").write_text(read)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    status, out, err = forked.run(tmp_path / "read.py", env=env, cwd=tmp_path)
    assert (status, out) == (0, "(1, 8) True\n"), err


def test_another_base_of_a_subclass_of_a_model_has_its_turn(run_forked: Callable[..., Run]) -> None:
    script = """
class Loud(torch.nn.Module):
    def __call__(self, *args):
        print("called")
        return super().__call__(*args)
class Both(Net, Loud): pass
both = Both().train()
both(x)
"""
    assert run_forked(SCRIPT + script).out == "called\n"


def test_a_model_may_be_called_through_an_object(run_forked: Callable[..., Run]) -> None:
    script = """
class Doubled:
    def __call__(self, x): return 2 * x
class Other(torch.nn.Module):
    __call__ = Doubled()
print(Other().train()(1))
"""
    done = run_forked(SCRIPT + script)
    assert done.out == "2\n", done.err


def test_a_model_is_exported_and_traced_as_without_the_probe(run_forked: Callable[..., Run]) -> None:
    script = (
        SCRIPT
        + """
import gc
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
class Listed(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        names.append(str(function))
        return function(*args, **kwargs or {})
class Heard(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        names.append(function.__name__)
        return function(*args, **kwargs or {})
def names_in(graph):
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}
def check():
    global names
    model(x)
    for strict in (False, True):
        exported = torch.export.export(model, (x,), strict=strict)
        print(names_in(exported.graph) == {"aten.linear.default", "aten.relu.default"})
    expected = {"aten.t.default", "aten.addmm.default", "aten.relu.default", "aten.detach.default"}
    print(names_in(make_fx(model)(x).graph) == expected)
    def collecting(x):
        gc.collect()
        return x + 1
    print(names_in(make_fx(collecting)(x).graph) == {"aten.add.Tensor"})
    names = []
    with Listed(): model(x)
    print(set(names) == expected)
    names = []
    with Heard(): model(x)
    print(names == ["linear", "relu"])
    traced = torch.jit.trace(model, x)
    print({node.kind() for node in traced.inlined_graph.nodes()} == {"prim::GetAttr", "aten::linear", "aten::relu"})
"""
    )
    before = run_forked(script + "step()\ncheck()\n")
    assert before.out == 7 * "True\n", before.err
    during = run_forked(script + IN_CAPTURE, requests=[CAPTURE])
    assert during.out == 7 * "True\n", during.err
    assert "Warning" not in during.err
    assert during.captures("a")[-1].state == "written"


@pytest.mark.parametrize(("number", "state"), [(5, "failed"), (6, "written")], ids=["in it", "behind it"])
def test_tensors_that_a_captured_model_has_seen_can_be_swapped(
    run_forked: Callable[..., Run], number: int, state: str
) -> None:
    """Not while the profiler refers to them, so the capture gives way."""
    script = """
def check():
    model(x)
    torch.utils.swap_tensors(x, torch.zeros(4, 8))
    torch.utils.swap_tensors(model.layer.weight, torch.nn.Parameter(torch.zeros(8, 8)))
    print(float(x.sum()), float(model.layer.weight.sum()))
"""
    done = run_forked(
        SCRIPT + script + IN_CAPTURE.replace("number == 5", f"number == {number}"), requests=[CAPTURE]
    )
    assert done.out == "0.0 0.0\n", done.err
    assert done.captures("a")[-1].state == state
