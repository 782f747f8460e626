"""Which of several jitted functions is the step, of frameworks whose ``jit`` is written in Python."""

from __future__ import annotations

import inspect
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from tuiprof.probe.assembly import END, SOURCE
from tuiprof.probe.frameworks.xla_hooks import install_jitted as install
from tuiprof.probe.frameworks.xla_hooks import updates
from tuiprof.probe.steps.counting import Steps


class Model:
    """State, as a framework's."""


class Optimizer:
    """Changed in place, as that of Flax NNX."""


MODEL, OTHER = Model(), Model()


def counted(script: Any) -> tuple[int, str]:
    """Run a script that is given ``jit``; return how many steps counted in the end, and which line ends them."""
    steps = Steps(lambda: None)
    hook = SimpleNamespace(on=True, failed=lambda: pytest.fail("the hook failed"))

    class _JitWrapper:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, *args: Any) -> Any:
            return self.function(*args)

    install(SimpleNamespace(hook=lambda name: hook, steps=steps), SimpleNamespace(_JitWrapper=_JitWrapper))
    script(_JitWrapper)
    marks = list(steps.marks)
    ended = [mark[1] for mark in marks if mark[0] == END]
    (*_, last) = [mark for mark in marks if mark[0] == SOURCE]
    return ended[-1] + 1, last[3].rpartition(":")[2]


def line_of(script: Any, call: str) -> str:
    lines, first = inspect.getsourcelines(script)
    return str(first + next(index for index, line in enumerate(lines) if call in line))


def evaluates_longer_than_it_trains(jit: Any) -> None:
    train, evaluate = jit(lambda model, x: (Model(), x)), jit(lambda model, x: x)
    for _epoch in range(3):
        for _ in range(20):
            train(MODEL, 1)
        for _ in range(50):
            evaluate(MODEL, 1)


def evaluates_first(jit: Any) -> None:
    train, evaluate = jit(lambda model, x: (Model(), x)), jit(lambda model, x: x)
    for _ in range(50):
        evaluate(MODEL, 1)
    for _ in range(62):
        train(MODEL, 1)


def changes_in_place(jit: Any) -> None:
    train, evaluate = jit(lambda model, optimizer, x: x), jit(lambda model, x: x)
    optimizer = Optimizer()
    for _ in range(50):
        evaluate(MODEL, 1)
    for _ in range(62):
        train(MODEL, optimizer, 1)


def discriminates_twice(jit: Any) -> None:
    train_d, train_g = jit(lambda model, x: (Model(), x)), jit(lambda model, x: (Model(), x))
    for _ in range(61):
        for _ in range(2):
            train_d(MODEL, 1)
        train_g(OTHER, 1)


def discriminates_once(jit: Any) -> None:
    train_d, train_g = jit(lambda model, x: (Model(), x)), jit(lambda model, x: (Model(), x))
    for _ in range(62):
        train_d(MODEL, 1)
        train_g(OTHER, 1)


@pytest.mark.parametrize(
    ("script", "call"),
    [
        (evaluates_longer_than_it_trains, "train(MODEL"),
        (evaluates_first, "train(MODEL"),
        (changes_in_place, "train(MODEL"),
        (discriminates_twice, "train_g(OTHER"),
        (discriminates_once, "train_d(MODEL"),
    ],
)
def test_the_jitted_function_that_trains_is_the_step(script: Any, call: str) -> None:
    steps, line = counted(script)
    assert line == line_of(script, call)
    assert 58 <= steps <= 60, "those before it was known are missing"


def test_a_call_that_returns_a_new_version_trains() -> None:
    assert updates(({"w": 1}, 2), ({"w": 3}, 4))
    assert not updates(({"w": 1}, 2), {"loss": 4})
    assert updates((MODEL, 1), (1, OTHER))
    assert not updates((1.0, (1, 2)), (2.0, (3, 4)))
    assert updates((MODEL, Optimizer()), 1.0)


def test_functions_that_the_script_drops_are_not_kept() -> None:
    alive: list[weakref.ref[Any]] = []

    def tries(jit: Any) -> None:
        for _ in range(3):
            train = jit(lambda model, x: (Model(), x))
            alive.append(weakref.ref(train))
            for _ in range(20):
                train(MODEL, 1)
            del train

    steps, _ = counted(tries)
    assert steps == 3 * 18, "each counts from its third call on"
    assert [ref() for ref in alive] == [None] * 3
