"""From marks to steps, and where a step ends that an optimizer ended inside a phase of the script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from probe_runs import Run

from tuiprof.probe.assembly import Assembly
from tuiprof.probe.marks import BACKWARD, BEGIN, DATA, END, STEPPED
from tuiprof.probe.phases import phases_and_cost
from tuiprof.session import records


def made(*marks: tuple[Any, ...]) -> list[tuple[int, int, int, list[Any]]]:
    """Number, end, length and kinds of parts of the steps that these marks make, all taken at once or singly."""
    results = []
    for at_once in (True, False):
        assembly = Assembly(born=1)
        for group in [list(marks)] if at_once else [[mark] for mark in marks]:
            assembly.take(deque(group))
        steps = assembly.complete(keep_last=False)
        results.append([(n, at, dur, [part[0] for part in parts]) for n, at, dur, _, parts, _, _ in steps])
    assert results[0] == results[1]
    return results[0]


def test_the_first_step_begins_with_what_is_seen_first() -> None:
    steps = made((DATA, 5, 8, 8), (BACKWARD, 10, 20, 20), (STEPPED, 20, 30, 0, 31), (STEPPED, 40, 50, 1, 51))
    assert steps == [(0, 30, 25, [DATA, BACKWARD, 2]), (1, 50, 20, [2])]
    assert made((END, 0, 30, None, False, 31)) == [(0, 30, 29, [])], "with the process, if nothing is"


def test_what_lies_before_a_beginning_is_in_no_step() -> None:
    steps = made((DATA, 2, 3, 3), (BEGIN, 10), (DATA, 10, 12, 12), (END, 0, 30, None, False, 31))
    assert steps == [(0, 30, 20, [DATA])]


def test_a_step_ends_with_the_phase_in_which_its_optimizer_stepped() -> None:
    steps = made(
        (BACKWARD, 10, 20, 20), (STEPPED, 22, 30, 0, 31), ("clip", 31, 32, 32), ("optimizer", 21, 35, 35),
        (BACKWARD, 40, 50, 50), (STEPPED, 52, 60, 1, 61), ("optimizer", 51, 65, 65),
    )  # fmt: skip
    assert steps == [
        (0, 35, 25, [BACKWARD, 2, "clip", "optimizer"]),
        (1, 65, 30, [BACKWARD, 2, "optimizer"]),
    ]


def test_what_the_probe_does_inside_a_phase_is_not_its_time() -> None:
    assembly = Assembly(born=1)
    marks = [(BACKWARD, 10, 20, 20), (STEPPED, 22, 30, 0, 31), (BEGIN, 70), ("optimizer", 21, 75, 76)]
    assembly.take(deque(marks))
    ((_, at, dur, began, parts, _, _),) = assembly.complete(keep_last=False)
    assert (at, dur) == (75, 20 + 5), "40 were taken by opening the log"
    assert phases_and_cost(began, parts)[0] == {"forward": 0, "backward": 10, "optimizer": 75 - 21 - 40}


def test_a_phase_around_the_loop_changes_no_step() -> None:
    steps = made(
        (STEPPED, 22, 30, 0, 31), (STEPPED, 42, 50, 1, 51), ("train", 5, 55, 55), (STEPPED, 62, 70, 2, 71)
    )
    assert [step[:3] for step in steps] == [(0, 30, 8), (1, 50, 20), (2, 70, 20)]


def test_steps_under_a_phase_of_the_script_named_optimizer(run: Callable[..., Run]) -> None:
    pytest.importorskip("torch")
    script = """
import time, torch, tuiprof
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    with tuiprof.phase("forward"): loss = model(torch.randn(8, 16)).sum()
    optimizer.zero_grad(); loss.backward()
    with tuiprof.phase("optimizer"):
        optimizer.step()
        time.sleep(0.02)
"""
    explicit = script + "    tuiprof.step()\n"
    for text in (script, explicit):
        done = run(text)
        assert done.code == 0, done.err
        steps = done.of(records.Step)
        assert [step.n for step in steps] == list(range(6))
        for step in steps:
            assert set(step.ph) == {"forward", "backward", "optimizer"}
            assert step.ph["optimizer"] >= 20_000_000
            assert step.dur >= step.ph["optimizer"] + step.ph["backward"] + step.ph["forward"]
