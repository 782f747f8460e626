"""``--step-at`` and ``--step-function``: steps where the user says they are, on every version of Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.session import log as records

PYTHONS = [
    Path(path)
    for name in ("3.9", "3.10", "3.11", "3.12", "3.13")
    for path in sorted((Path.home() / ".pyenv" / "versions").glob(f"{name}.*/bin/python"))
] or [Path(sys.executable)]

SCRIPT = '''"""A script."""
from __future__ import annotations
import sys, threading
import helper

def train_step(x):
    return x + 1

class Model:
    def fit(self, x):
        return x

x = 0
for epoch in range(2):
    for i in range(10):
        if i == 3:
            continue
        x = train_step(x)
        Model().fit(x)
helper.loop(5)
print(x, __name__, __spec__, __package__, __file__ == sys.argv[0] or __file__, sys.path[0], sys.argv[1:])
print(sys._getframe().f_code.co_filename, type(__loader__).__name__, sys.modules["__main__"].x)
'''
HELPER = """
def once(i):
    return i

def loop(n):
    while n:
        n -= 1
        once(n)
"""


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    path = tmp_path / "helper.py"
    path.write_text(HELPER)
    return path


def line_of(text: str, source: str = SCRIPT) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_the_line_of_a_script(run: Callable[..., Run], tmp_path: Path, helper: Path, python: Path) -> None:
    plain = (
        subprocess.run([str(python), "script.py", "--lr", "1"], cwd=tmp_path, capture_output=True, text=True)
        if (tmp_path / "script.py").write_text(SCRIPT)
        else None
    )
    at = f"{tmp_path / 'script.py'}:{line_of('x = train_step')}"
    done = run(SCRIPT, "--lr", "1", how=["script.py"], python=str(python), TUIPROF_STEP_AT=at)
    assert plain is not None
    assert done.out == plain.stdout, "the script sees no difference"
    assert [step.n for step in done.of(records.Step)] == list(range(18))
    (source,) = done.of(records.StepSource)
    assert source.where == at


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_the_line_of_a_loop_counts_its_iterations(
    run: Callable[..., Run], tmp_path: Path, helper: Path, python: Path
) -> None:
    at = f"{tmp_path / 'script.py'}:{line_of('for i in')}"
    done = run(SCRIPT, python=str(python), TUIPROF_STEP_AT=at)
    assert len(done.of(records.Step)) == 20, "continue ends an iteration as well"
    at = f"{helper}:{line_of('while n', HELPER)}"
    done = run(SCRIPT, python=str(python), TUIPROF_STEP_AT=at)
    assert (done.code, len(done.of(records.Step))) == (0, 5), done.err


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_calls_of_a_function(run: Callable[..., Run], helper: Path, python: Path) -> None:
    for name, count in (("__main__:train_step", 18), ("script:Model.fit", 18), ("helper:once", 5)):
        done = run(SCRIPT, python=str(python), TUIPROF_STEP_FUNCTION=name)
        assert (done.code, len(done.of(records.Step))) == (0, count), (name, done.err)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
@pytest.mark.parametrize("kind", ["Bound", "classmethod", "staticmethod"])
def test_a_counted_attribute_of_a_class_is_bound_as_before(
    run: Callable[..., Run], python: Path, kind: str
) -> None:
    script = f"""
import copy, functools
class Bound:
    def __init__(self, function): self.function = function
    def __call__(self, *args): return self.function(*args)
    def __get__(self, instance, owner=None): return functools.partial(self.function, instance)
class Trainer:
    @{kind}
    def step(*args): return len(args)
print([Trainer().step(1) for _ in range(3)], type(copy.copy(vars(Trainer)["step"])).__name__)
"""
    done = run(script, python=str(python), TUIPROF_STEP_FUNCTION="__main__:Trainer.step")
    count = 1 if kind == "staticmethod" else 2
    assert (done.out, len(done.of(records.Step))) == (f"{[count] * 3} {kind}\n", 3), done.err


@pytest.mark.parametrize(
    ("given", "steps"),
    [({"FUNCTION": "__main__:step"}, 1), ({"AT": "script.py:5"}, 2), ({"AT": "script.py:4"}, 2)],
)
def test_a_pickled_copy_of_a_counted_function_needs_no_probe_and_counts_beside_one(
    run: Callable[..., Run], tmp_path: Path, given: dict[str, str], steps: int
) -> None:
    needs("cloudpickle")
    script = """
import cloudpickle
def step(x):
    for _ in range(2):
        x = x + 1
    return x
for _ in range(3): step(1)
with open("copy.pickle", "wb") as file: file.write(cloudpickle.dumps(step))
"""
    variables = {f"TUIPROF_STEP_{name}": value for name, value in given.items()}
    done = run(script, **variables)
    assert (done.code, len(done.of(records.Step))) == (0, 3 * steps), done.err
    read = "import pickle; print(pickle.load(open('copy.pickle', 'rb'))(1))"
    plain = subprocess.run(
        [sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert plain.stdout == "3\n", plain.stderr
    worker = run("", how=["-c", read], **variables)
    assert (worker.out, len(worker.of(records.Step))) == ("3\n", steps), worker.err


def test_a_script_with_more_strings_is_a_script_from_its_first_statement_on(
    run: Callable[..., Run],
) -> None:
    script = """'A script.'
print(__spec__, type(__loader__).__name__)
'A part.'
for _ in range(3): pass
'Another part.'
"""
    done = run(script, TUIPROF_STEP_AT="script.py:4")
    assert (done.out, len(done.of(records.Step))) == ("None SourceFileLoader\n", 3), done.err


def test_a_module_run_with_m(run: Callable[..., Run], tmp_path: Path, helper: Path) -> None:
    at = f"{tmp_path / 'script.py'}:{line_of('x = train_step')}"
    done = run(SCRIPT, how=["-m", "script"], TUIPROF_STEP_AT=at)
    assert (done.code, len(done.of(records.Step))) == (0, 18), done.err


def test_a_line_without_a_statement_is_said(run: Callable[..., Run], tmp_path: Path, helper: Path) -> None:
    done = run(SCRIPT, TUIPROF_STEP_AT=f"{tmp_path / 'script.py'}:5")
    assert done.code == 0
    assert "there is no statement at line 5" in done.err


def test_a_function_that_has_not_run_is_said(run_forked: Callable[..., Run], helper: Path) -> None:
    needs("torch")
    for name in ("nowhere:step", "helper:once"):
        done = run_forked("import torch, helper\nhelper.loop(0)", TUIPROF_STEP_FUNCTION=name)
        (writer,) = done.logs
        assert [note.text for note in done.of(records.Note, writer)] == [
            f"--step-function: {name} has not run"
        ]


def test_what_is_given_is_known_by_one_number() -> None:
    from tuiprof.probe.steps import given_steps, sources

    assert given_steps.GIVEN == sources.GIVEN
    assert len(sources.SOURCES) == sources.CLOSED


def test_nothing_else_counts_then(run: Callable[..., Run], tmp_path: Path) -> None:
    needs("torch")
    script = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(5):
    for micro in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    total = update
"""
    done = run(script, TUIPROF_STEP_AT=f"{tmp_path / 'script.py'}:10")
    assert [step.n for step in done.of(records.Step)] == list(range(5))
    assert [source.withdrawn for source in done.of(records.StepSource)] == [0]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
@pytest.mark.parametrize("name", ["respond", "batches", "events"])
def test_a_coroutine_or_generator_stays_one_and_returns_at_its_end(
    run: Callable[..., Run], python: Path, name: str
) -> None:
    script = """
import asyncio, inspect, time
async def respond():
    await asyncio.sleep(0.01)
    ended.append(time.monotonic_ns())
def batches():
    yield 1
    ended.append(time.monotonic_ns())
    return 2
async def events(): yield 1
ended = []
asyncio.run(respond())
list(batches())
print(inspect.iscoroutinefunction(respond), inspect.isgeneratorfunction(batches), inspect.isasyncgenfunction(events))
print(*ended)
"""
    done = run(script, python=str(python), TUIPROF_STEP_FUNCTION=f"__main__:{name}")
    kinds, ended = done.out.splitlines()
    assert (done.code, kinds) == (0, "True True True"), done.err
    if name != "events":
        [step] = done.of(records.Step)
        first, second = map(int, ended.split())
        assert step.at >= (first if name == "respond" else second)
