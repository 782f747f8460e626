"""Backward passes that go through a model beside the trained one, and through one behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from analyses.made import BACKWARD, MAIN, Made, with_arguments

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tuiprof.formats import open_trace
from tuiprof.model import Trace

RULE = "unneeded-gradients"
NODE = "autograd::engine::evaluate_function: {}"
STORES = "torch::autograd::AccumulateGrad"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
HALF = "c10::BFloat16"


def distilled(
    *,
    taken: tuple[list[int], str] = ([8, 32], HALF),
    compared: str = "float",
    first: str = "Embedding",
    marks: bool = False,
    shapes: bool = True,
) -> Trace:
    """Steps of a student of two layers and a teacher of two, whose gradients are added to older ones.

    Args:
        taken: Shape and type of what the teacher's second layer takes; its first layer computes the default.
        compared: Type of the first tensor that the loss takes; the student computes float.
        first: The teacher's first layer; each other layer computes two gradients in its node.
        marks: Whether the calls of both models are marked. Then a view follows the teacher's last layer.
        shapes: Whether the trace has shapes and types.
    """
    made, at, free = Made(), 0.0, 30.0
    recorded: dict[int, dict[str, Any]] = {}

    def event(name: str, begin: float, end: float, *tensors: tuple[list[int], str], **columns: Any) -> None:
        if shapes and tensors:
            dims, types = zip(*tensors, strict=True)
            recorded[len(made.rows)] = {"Input Dims": dims, "Input type": types}
        made.op(name, begin, end, **columns)

    def op(name: str, us: float, sequence: int, *tensors: tuple[list[int], str]) -> None:
        nonlocal at, free
        event(name, at, at + 9, *tensors, sequence=sequence)
        made.launch(GEMM, (at + 3, at + 5), (free, free + us))
        at, free = at + 10, free + us

    def node(name: str, us: float, sequence: int, given: tuple[list[int], str], products: int = 0) -> None:
        nonlocal at, free
        made.op(NODE.format(name), at, at + 29, track=BACKWARD, sequence=sequence)
        event(name, at + 1, at + 28, given, track=BACKWARD, sequence=sequence)
        for number in range(products):
            event("aten::mm", at + 2 + number * 9, at + 9 + number * 9, given, given, track=BACKWARD)
            made.launch(GEMM, (at + 3 + number * 9, at + 5 + number * 9), (free, free + us), thread=BACKWARD)
            free += us
        if not products:
            made.launch(ELEMENTWISE, (at + 3, at + 5), (free, free + us), thread=BACKWARD)
            free += us
        at += 30

    def store(weight: tuple[list[int], str], adds: bool) -> None:
        nonlocal at, free
        made.op(NODE.format(STORES), at, at + 19, track=BACKWARD)
        event(STORES, at + 1, at + 18, weight, track=BACKWARD)
        made.op("aten::add_" if adds else "aten::detach", at + 2, at + 17, track=BACKWARD)
        if adds:
            made.launch(ELEMENTWISE, (at + 3, at + 5), (free, free + 20), thread=BACKWARD)
            free += 20
        at += 20

    for step in range(4):
        begun, number = at, 10 * step
        op("aten::linear", 100, number, ([8, 4], "float"), ([24, 4], "float"))
        op("aten::linear", 100, number + 1, ([8, 24], "float"), ([16, 24], "float"))
        if marks:
            made.add("annotation", "Student #1", begun - 0.5, at - 0.5)
        teacher = at
        op(f"aten::{first.lower()}", 100, number + 2, ([99, 32], HALF), ([8], "long int"))
        op("aten::linear", 100, number + 3, taken, ([16, 32], HALF))
        if marks:
            op("aten::view", 100, number + 4, ([8, 16], HALF))
            made.add("annotation", "Teacher #2", teacher - 0.5, at - 0.5)
        op("aten::sub", 100, number + 5, ([8, 16], compared), ([8, 16], HALF))
        node("SubBackward0", 100, number + 5, ([8, 16], "float"))
        if marks:
            node("ViewBackward0", 100, number + 4, ([8, 16], HALF))
        node("MmBackward0", 100, number + 3, ([8, 16], HALF), 2)
        store(([16, 32], HALF), adds=True)
        node(f"{first}Backward0", 100, number + 2, ([8, 32], HALF), 0 if first == "Embedding" else 2)
        store(([99, 32], HALF), adds=True)
        node("MmBackward0", 100, number + 1, ([8, 16], "float"), 2)
        store(([16, 24], "float"), adds=False)
        node("MmBackward0", 100, number, ([8, 24], "float"), 1)
        store(([24, 4], "float"), adds=False)
        made.add("annotation", "Optimizer.step#AdamW.step", at, at + 9)
        made.op("aten::_fused_adamw_", at + 1, at + 8, track=MAIN)
        made.launch(ELEMENTWISE, (at + 2, at + 3), (free, free + 50))
        at, free = at + 10, free + 50
        made.step(step, begun, at)
    return with_arguments(made.trace(), lambda ordinal: recorded.get(ordinal, {}))


@pytest.mark.parametrize(
    ("marks", "saved_us"),
    [(False, 2 * 100 + 100 + 2 * 20), (True, 100 + 2 * 100 + 100 + 2 * 20)],
    ids=["from its last weight on", "all of it"],
)
def test_a_teacher_needs_no_backward_pass(marks: bool, saved_us: float) -> None:
    row = found(distilled(marks=marks), RULE)
    assert row["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.03)
    assert row["instead"].startswith("torch.no_grad() around the call of that model")


@pytest.mark.parametrize(
    "trace",
    [
        distilled(taken=([8, 24], "float")),
        distilled(compared=HALF),
        distilled(first="Mm"),
        distilled(shapes=False),
    ],
    ids=[
        "it takes what a trained layer computes",
        "the loss takes nothing of the trained model",
        "its first layer computes the gradient of its input",
        "shapes are unknown",
    ],
)
def test_gradients_that_may_go_on_behind_a_model_are_needed(trace: Trace) -> None:
    row = found(trace, RULE)
    assert "no_grad" not in row["instead"]
    assert "requires_grad_(False)" in row["instead"]


_SCRIPT = """
import sys, torch
from torch import nn
F = nn.functional

class Text(nn.Module):
    def __init__(self, layers, cross=False):
        super().__init__()
        self.embed, self.cross = nn.Embedding(500, 64), nn.Linear(64, 64) if cross else None
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 500)
    def forward(self, ids, other=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
            if self.cross is not None:
                x = x + self.cross(other).mean(1, keepdim=True)
        return self.head(self.norm(x))

class Picture(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(*both, 3, padding=1) for both in ((3, 16), (16, 16), (16, out)))
    def forward(self, x):
        a, b, c = self.layers
        return c(F.relu(b(F.relu(a(x)))))

def teacher(student=Text(2), other=Text(6)):
    ids = torch.randint(500, (8, 32))
    mine, theirs = student(ids), other(ids)
    return student, F.mse_loss(mine, theirs) + F.cross_entropy(mine.flatten(0, 1), ids.flatten())

def picture_teacher(student=Picture(8), other=Picture(8)):
    x = torch.randn(4, 3, 48, 48)
    return student, F.mse_loss(student(x), other(x))

def captions(encoder=nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 64)), decoder=Text(3, cross=True)):
    ids, features = torch.randint(500, (8, 32)), encoder(torch.randn(8, 10, 48))
    logits = decoder(ids, features)
    return encoder, F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + features.square().mean()

def critic(generator=Picture(3), judge=Picture(1)):
    fake = generator(torch.randn(4, 3, 48, 48))
    return generator, F.softplus(-judge(fake)).mean() + fake.abs().mean()

torch.set_num_threads(1)
for make in (teacher, picture_teacher, captions, critic):
    model, _ = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    def train():
        make()[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(2):
        train()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(3):
            train()
            profile.step()
    profile.export_chrome_trace(f"{sys.argv[1]}/{make.__name__}.pt.trace.json")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with traces of four trainings, recorded here."""
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run([sys.executable, "-c", _SCRIPT, str(folder)], check=True, timeout=240)
    return folder


@pytest.mark.parametrize(
    ("name", "beside"),
    [("teacher", True), ("picture_teacher", True), ("captions", False), ("critic", False)],
)
def test_models_beside_and_behind_the_trained_one_recorded_here(
    recorded: Path, name: str, beside: bool
) -> None:
    row = finding(open_trace(recorded / f"{name}.pt.trace.json"), RULE)
    assert (row is not None and "no_grad" in row["instead"]) == beside


@pytest.mark.parametrize(("models", "advised"), [(("Teacher #1", "Student #2"), True), (("", ""), False)])
def test_a_teacher_that_is_called_first_needs_no_gradients_either(
    models: tuple[str, str], advised: bool
) -> None:
    steps = Steps()
    for _ in steps.each():
        for first, model in zip((0, 2), models, strict=True):
            steps.within(model, *[("aten::linear", ((GEMM, 100),))] * 2, first=first)
        for number in reversed(range(4)):
            steps.op(NODE.format("MmBackward0"), ((GEMM, 100), (GEMM, 100)), sequence=number, track=BACKWARD)
            adds = number < 2
            inside = "aten::add_" if adds else "aten::detach"
            steps.op(NODE.format(STORES), ((ELEMENTWISE, 20),) * adds, inside=inside, track=BACKWARD)
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
    row = found(steps.trace(), RULE)
    assert row["wins_ns"] == pytest.approx(2 * 220_000, rel=0.03)
    assert ("no_grad" in row["instead"]) == advised
