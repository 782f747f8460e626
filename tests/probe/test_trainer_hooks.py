"""Evaluation and checkpoints of training frameworks, with stand-ins that have their modules' names and methods."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forked import ForkedPython
from installed import needs
from probe_runs import Run, run_script

from tuiprof.session import log as records

needs("torch")

FRAMEWORKS = """
import os, sys, tempfile, time
folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
def package(name, text=""):
    path = os.path.join(folder, *name.split("."))
    parts = name.split(".")
    for depth in range(1, len(parts)):
        inner = os.path.join(folder, *parts[:depth])
        os.makedirs(inner, exist_ok=True)
        open(os.path.join(inner, "__init__.py"), "a").close()
    with open(path + ".py", "w") as file:
        file.write(text)
package("transformers.trainer", '''
import time
class Trainer:
    def evaluate(self): time.sleep(0.03); self.model.eval()(self.x); self.model.train(); return {}
    def train(self, loop): loop()
    def _save_checkpoint(self): time.sleep(0.02); torch.save(self.model.state_dict(), self.path)
import torch
''')
package("lightning.pytorch.strategies.strategy", '''
class Strategy:
    def training_step(self, *args): return self.lightning_module.training_step(*args)
''')
import torch
import transformers.trainer
from lightning.pytorch.strategies.strategy import Strategy
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAINER = (
    FRAMEWORKS
    + """
trainer = transformers.trainer.Trainer()
trainer.model, trainer.x, trainer.path = model, torch.ones(2, 8), os.path.join(folder, "saved")
trainer.evaluate()
for step in range(10):
    model(trainer.x).sum().backward()
    optimizer.step()
    if step in (3, 7): trainer.evaluate()
    if step == 5: trainer._save_checkpoint()

class Module:
    def training_step(self):
        time.sleep(0.01)
        loss = model(torch.ones(2, 8)).sum()
        if not self.automatic_optimization:
            loss.backward()
            optimizer.step()
        return loss
strategy = Strategy()
strategy.lightning_module = module = Module()
for module.automatic_optimization in (True, False):
    for step in range(5):
        loss = strategy.training_step()
        if module.automatic_optimization:
            loss.backward()
            optimizer.step()
"""
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> list[records.Step]:
    """10 steps under a Trainer, 5 of a Lightning module, and 5 of one that optimizes by itself."""
    done = run_script(tmp_path_factory.mktemp("trainer"), TRAINER, forked=forked)
    return done.of(records.Step)


def test_evaluations_and_checkpoints_have_names_and_hold_all_that_is_in_them(
    steps: list[records.Step],
) -> None:
    assert len(steps) == 20
    evaluated = {step.n: step.ph["evaluation"] for step in steps if "evaluation" in step.ph}
    assert list(evaluated) == [4, 8], "each in the step after it; the one before the first step is in none"
    assert min(evaluated.values()) >= 30_000_000
    assert steps[0].dur - sum(steps[0].ph.values()) < 30_000_000
    saved = {step.n: step.ph["checkpoint"] for step in steps if "checkpoint" in step.ph}
    assert list(saved) == [6]
    assert 20_000_000 <= saved[6] <= steps[6].dur


def test_a_training_step_is_forward_unless_it_optimizes_by_itself(steps: list[records.Step]) -> None:
    forward = [step.ph["forward"] for step in steps]
    assert all(ns >= 10_000_000 for ns in forward[10:15]), forward
    assert all(ns < 10_000_000 for ns in forward[15:]), forward


LOOPS = """
package("accelerate.state", "class AcceleratorState: _shared_state = {}")
from accelerate.state import AcceleratorState
def train():
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("run", "trainer"),
    [
        ("train()", []),
        ("AcceleratorState._shared_state['device'] = 'cpu'; train()", ["accelerate"]),
        ("transformers.trainer.Trainer().train(train)", ["transformers"]),
        (
            "AcceleratorState._shared_state['device'] = 'cpu'; transformers.trainer.Trainer().train(train)",
            ["transformers"],
        ),
    ],
)
def test_the_framework_whose_loop_is_captured_is_recorded_and_none_that_is_only_imported(
    run: str, trainer: list[str], run_forked: Callable[..., Run]
) -> None:
    done = run_forked(FRAMEWORKS + LOOPS + run, requests=[{"id": "a", "steps": 2, "at": 6}])
    assert done.captures("a")[-1].state == "written"
    assert [record.name for record in done.of(records.Trainer)] == trainer


SPAWNING = """
import multiprocessing
def train():
    import torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train, name="trainer")
    process.start()
    process.join()
"""


def test_a_process_that_multiprocessing_started_has_the_name_that_the_script_gave_it(
    run_forked: Callable[..., Run],
) -> None:
    assert [head.process for head in run_forked(SPAWNING).of(records.Head)] == ["trainer"]
