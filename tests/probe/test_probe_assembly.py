"""From marks to steps, and where a step ends that an optimizer ended inside a phase of the script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from probe_runs import Run

from tuiprof.probe.assembly import (
    BACKWARD,
    BEGIN,
    DATA,
    END,
    EVALUATION,
    INTERRUPTED_NS,
    STEPPED,
    Assembly,
    phases_of,
)
from tuiprof.session import log as records

HERE, ELSEWHERE = 1, 2  # the thread that steps, and another


def made(*marks: tuple[Any, ...]) -> list[tuple[int, int, int, list[Any]]]:
    """Number, end, length and kinds of parts of the steps that these marks make, all taken at once or singly."""
    results = []
    for at_once in (True, False):
        assembly = Assembly(born=1)
        assembly.thread = HERE
        for group in [list(marks)] if at_once else [[mark] for mark in marks]:
            assembly.take(deque(group))
        steps = assembly.complete(keep_last=False)
        results.append([(n, at, dur, [part[0] for part in parts]) for n, at, dur, _, parts, _, _ in steps])
    assert results[0] == results[1]
    return results[0]


def test_the_first_step_begins_with_what_is_seen_first() -> None:
    steps = made(
        (DATA, 5, 8, HERE), (BACKWARD, 10, 20, HERE), (STEPPED, 20, 30, 0, 31), (STEPPED, 40, 50, 1, 51)
    )
    assert steps == [(0, 30, 25, [DATA, BACKWARD, 2]), (1, 50, 20, [2])]
    assert made((END, 0, 30, None, False, 31)) == [(0, 30, 29, [])], "with the process, if nothing is"


def test_the_first_step_begins_after_an_evaluation_before_it() -> None:
    evaluation = (DATA, 2, 3, HERE), (EVALUATION, 1, 9, HERE)
    steps = made(*evaluation, (DATA, 10, 12, HERE), (BACKWARD, 13, 20, HERE), (STEPPED, 20, 30, 0, 31))
    assert steps == [(0, 30, 20, [DATA, BACKWARD, 2])]


def test_the_first_step_begins_after_the_last_of_many_evaluations() -> None:
    evaluations = [(EVALUATION, n, n + 1, HERE) for n in range(2_000)]
    assert made(*evaluations, (DATA, 2_001, 2_002, HERE), (END, 0, 2_010, None, False, 2_011)) == [
        (0, 2010, 9, [DATA])
    ]


def test_what_lies_before_a_beginning_is_in_no_step() -> None:
    steps = made((DATA, 2, 3, HERE), (BEGIN, 10), (DATA, 10, 12, HERE), (END, 0, 30, None, False, 31))
    assert steps == [(0, 30, 20, [DATA])]


def test_parts_of_other_threads_are_in_no_step() -> None:
    marks = (DATA, 3, 8, HERE), (DATA, 4, 9, ELSEWHERE), (BACKWARD, 10, 20, HERE), ("load", 5, 25, ELSEWHERE)
    assert made(*marks, (STEPPED, 20, 30, 0, 31)) == [(0, 30, 27, [DATA, BACKWARD, 2])]


def test_cost_is_that_of_every_hook_of_the_steps_without_a_profiler() -> None:
    assembly = Assembly(born=1)
    assembly.thread = HERE
    parts = [(DATA, 3, 8, HERE), (BACKWARD, 10, 20, HERE)]
    assembly.take(deque([*parts, (STEPPED, 20, 30, 0, 32)]))
    assert (assembly.cost_steps, assembly.cost_ns) == (1, 3 * 3 * 2), (
        "three hooks, each three times what ended"
    )
    assembly.take(deque([*parts, (END, 1, 130, None, True, 190)]))
    assert (assembly.cost_steps, assembly.cost_ns) == (1, 18), "a profiler slows the hooks down as well"
    assembly.take(deque([(END, 2, 230, None, False, 10_000_230)]))
    assert assembly.cost_ns == 18 + 3 * INTERRUPTED_NS, "what takes so long is somebody else"


def test_a_step_ends_with_the_phase_in_which_its_optimizer_stepped() -> None:
    steps = made(
        (BACKWARD, 10, 20, HERE), (STEPPED, 22, 30, 0, 31), ("clip", 31, 32, HERE), ("optimizer", 21, 35, HERE),
        (BACKWARD, 40, 50, HERE), (STEPPED, 52, 60, 1, 61), ("optimizer", 51, 65, HERE),
    )  # fmt: skip
    assert steps == [
        (0, 35, 25, [BACKWARD, 2, "clip", "optimizer"]),
        (1, 65, 30, [BACKWARD, 2, "optimizer"]),
    ]


def test_what_the_probe_does_inside_a_phase_is_not_its_time() -> None:
    assembly = Assembly(born=1)
    assembly.thread = HERE
    marks = [(BACKWARD, 10, 20, HERE), (STEPPED, 22, 30, 0, 31), (BEGIN, 70), ("optimizer", 21, 75, HERE)]
    assembly.take(deque(marks))
    ((_, at, dur, began, parts, _, _),) = assembly.complete(keep_last=False)
    assert (at, dur) == (75, 20 + 5), "40 were taken by opening the log"
    assert phases_of(began, parts) == {"forward": 0, "backward": 10, "optimizer": 75 - 21 - 40}


def test_a_phase_around_the_loop_changes_no_step() -> None:
    steps = made(
        (STEPPED, 22, 30, 0, 31), (STEPPED, 42, 50, 1, 51), ("train", 5, 55, HERE), (STEPPED, 62, 70, 2, 71)
    )
    assert [step[:3] for step in steps] == [(0, 30, 8), (1, 50, 20), (2, 70, 20)]


def test_steps_under_a_phase_of_the_script_named_optimizer(run_forked: Callable[..., Run]) -> None:
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
        done = run_forked(text)
        assert done.code == 0, done.err
        steps = done.of(records.Step)
        assert [step.n for step in steps] == list(range(6))
        for step in steps:
            assert set(step.ph) == {"forward", "backward", "optimizer"}
            assert step.ph["optimizer"] >= 20_000_000
            assert step.dur >= step.ph["optimizer"] + step.ph["backward"] + step.ph["forward"]
