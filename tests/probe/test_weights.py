"""What the probe records of the parameters that are trained or called in a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import lazily
from probe_runs import MODES, Run

from tuiprof.formats import open_trace
from tuiprof.model import steps as model
from tuiprof.probe.frameworks.weights import Weights
from tuiprof.probe.steps.counting import Steps
from tuiprof.session import log as records

torch = lazily("torch")

TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Sequential): pass
net = Net(
    *(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 2, 3)),
    *(nn.Flatten(), nn.Linear(8, 2)),
)
net[0].requires_grad_(False)
x = torch.randn(4, 3, 8, 8)
optimizer = torch.optim.SGD([one for one in net.parameters() if one.requires_grad], 0.1)
def train():
    loss = net(x.to(net[5].weight.dtype)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
"""
SIZES = (3 * 8 * 9 + 8, 8 * 9 + 8, 8 * 4 + 4, 4 * 2 * 9 + 2, 8 * 2 + 2)
CAPTURE = {"id": "a", "steps": 2, "at": 12}
STEPS = "\nfor _ in range(20): loss = train()\nprint(loss.item(), torch.rand(1).item())"


@pytest.mark.parametrize(
    ("change", "kind", "first", "last"),
    [
        ("", "float32", 2, 0),
        ("net.to(memory_format=torch.channels_last)", "float32", 0, 2),
        ("net.double()", "float64", 2, 0),
    ],
)
def test_types_and_layouts_are_recorded_in_a_capture(
    change: str, kind: str, first: int, last: int, run_forked: Callable[..., Run]
) -> None:
    script = TRAINING + change + STEPS
    done, plain = run_forked(script, requests=[CAPTURE]), run_forked(script, TUIPROF_SESSION="")
    assert (done.code, done.out) == (0, plain.out)
    trained, seen = done.of(records.Weights)  # as the capture is prepared, and once the model is called
    assert trained.types == {kind: sum(SIZES[1:])}
    assert (trained.kernels, trained.first + trained.last) == (3, 1)
    assert seen.types == {kind: sum(SIZES)}
    assert (seen.kernels, seen.depthwise, seen.first, seen.last) == (4, 1, first, last)
    found = open_trace(done.session / done.captures("a")[-1].path).uncaptured
    assert found is not None
    assert found.weights == model.Weights({kind: sum(SIZES)}, 4, 1, first, last)


def test_the_threads_of_operators_are_recorded_in_a_capture(run_forked: Callable[..., Run]) -> None:
    done = run_forked(TRAINING + "torch.set_num_threads(3)" + STEPS, requests=[CAPTURE])
    assert [record.n for record in done.of(records.Threads)] == [3]
    found = open_trace(done.session / done.captures("a")[-1].path).uncaptured
    assert found is not None
    assert found.threads == 3


def test_nothing_is_looked_at_without_a_capture(run_forked: Callable[..., Run]) -> None:
    done = run_forked(TRAINING + STEPS)
    assert done.of(records.Step)
    assert not done.of(records.Weights)


def test_the_parameters_of_a_called_model_are_known_without_an_optimizer(
    run_forked: Callable[..., Run],
) -> None:
    script = """
import sys, torch, tuiprof
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).half().eval()
for _ in range(20):
    with torch.no_grad(): model(torch.randn(2, 4).half())
    tuiprof.step()
"""
    done = run_forked(script, requests=[CAPTURE])
    assert [one.types for one in done.of(records.Weights)] == [{"float16": 20 + 10}]


def test_no_mode_of_the_script_sees_that_parameters_are_looked_at(run_forked: Callable[..., Run]) -> None:
    script = """
with Functions(), Dispatch():
    for _ in range(20): train()
print(len(seen), *seen)
"""
    looked = run_forked(TRAINING + MODES + script, requests=[CAPTURE])
    plain = run_forked(TRAINING + MODES + script, TUIPROF_SESSION="")
    assert looked.of(records.Weights)
    assert int(looked.out.split()[0]) > 50
    assert (looked.code, looked.out) == (plain.code, plain.out) == (0, plain.out)


class Counted:
    """What the probe knows of the optimizer."""

    def __init__(self, *parameters: Any, groups: Any = None) -> None:
        self.param_groups = [{"params": list(parameters)}] if groups is None else groups


class Raising:
    """A model that refuses."""

    def modules(self) -> Any:
        raise RuntimeError


def looked_at(optimizer: Any, *models: Any) -> dict[str, Any] | None:
    """Return what the probe records of an optimizer and of models; None = nothing."""
    steps = Steps(lambda *_: None)
    steps.optimizers.counted = lambda: optimizer
    weights = Weights(torch, steps)
    weights.look()
    for one in models:
        weights.called(one)
    return dict(steps.out[-1][1]) if steps.out else None


def types_of(optimizer: Any, *models: Any) -> dict[str, int] | None:
    found = looked_at(optimizer, *models)
    return None if found is None else found["types"]


def test_only_plain_tensors_are_read() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Unreadable(torch.Tensor):  # type: ignore[name-defined,misc]
        """A tensor of which nothing can be read, as of some that are spread over devices."""

        __slots__ = ()

        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise RuntimeError("nothing of it may be read")

    plain = torch.nn.Parameter(torch.zeros(3))
    with FakeTensorMode():
        fake = torch.zeros(5)
    spread = torch.zeros(7).as_subclass(Unreadable)
    sparse, meta = torch.zeros(2, 2).to_sparse(), torch.zeros(11, device="meta")
    assert types_of(Counted(fake, spread, sparse, "no tensor", None, plain)) == {"float32": 3}
    assert types_of(Counted(meta.bfloat16(), plain)) == {"bfloat16": 11, "float32": 3}
    empty = torch.zeros(0, dtype=torch.float16)
    assert types_of(Counted(empty, plain)) == {"float32": 3}
    assert types_of(Counted(empty)) is None
    lazy = torch.nn.LazyLinear(4)
    assert types_of(None, lazy) is None
    assert types_of(Counted(torch.zeros(4, dtype=torch.complex64))) == {"complex64": 4}


def test_an_optimizer_or_a_model_of_another_kind_is_left_alone() -> None:
    plain = torch.zeros(3)
    for groups in (None, 3, [plain], [{"params": plain}], ({"params": [plain]},)):
        strange = Counted()
        strange.param_groups = groups
        assert types_of(strange) is None
    assert types_of(None, Raising(), torch.nn.Linear(2, 2)) == {"float32": 6}


def test_each_parameter_counts_once_and_not_all_of_very_many() -> None:
    net = torch.nn.Linear(2, 2)
    assert types_of(Counted(*net.parameters()), net, torch.nn.Sequential(net)) == {"float32": 6}
    many = torch.nn.ParameterList(torch.zeros(1) for _ in range(3000))
    assert types_of(Counted(), many, many, torch.nn.Linear(2, 2)) == {"float32": 2000}


def test_a_kernel_of_one_pixel_or_one_channel_has_no_layout() -> None:
    dense, point, deep = torch.zeros(4, 3, 3, 3), torch.zeros(4, 3, 1, 1), torch.zeros(4, 1, 3, 3)
    volume = torch.zeros(4, 3, 3, 3, 3)
    last = [one.contiguous(memory_format=torch.channels_last) for one in (dense, point, deep)]
    last.append(volume.contiguous(memory_format=torch.channels_last_3d))
    found = looked_at(Counted(dense, point, deep, volume, torch.zeros(1, 3, 3, 3), torch.zeros(3, 3, 3)))
    assert found is not None
    assert [found[name] for name in ("kernels", "depthwise", "first", "last")] == [4, 1, 2, 0]
    found = looked_at(Counted(*last))
    assert found is not None
    assert [found[name] for name in ("kernels", "depthwise", "first", "last")] == [4, 1, 0, 2]
