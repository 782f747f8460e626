"""From marks to steps and their phases, and where a step ends that an optimizer ended inside a phase of the script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.probe.assembly import (
    BACKWARD,
    BEGIN,
    CHECKPOINT,
    DATA,
    END,
    EVALUATION,
    FORWARD,
    INTERRUPTED_NS,
    OPTIMIZER,
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


def test_a_step_that_is_found_to_have_ended_inside_a_phase_ends_with_the_phase() -> None:
    update = (OPTIMIZER, 10, 20, HERE), ("update", 5, 25, HERE)
    found = (OPTIMIZER, 30, 40, HERE), (END, 0, 20, None, False, 41)
    assert made((BEGIN, 1), *update, *found, (END, 1, 40, None, False, 41)) == [
        (0, 25, 24, [OPTIMIZER, "update"]),
        (1, 40, 15, [OPTIMIZER]),
    ]


def test_a_step_that_is_found_to_have_ended_does_not_end_with_a_phase_that_began_before_it() -> None:
    parts = (OPTIMIZER, 30, 40, HERE), ("loop", 5, 60, HERE)
    steps = made((BEGIN, 1), (END, 0, 20, None, False, 21), *parts, (END, 1, 40, None, False, 61))
    assert steps == [(0, 20, 19, []), (1, 40, 20, [OPTIMIZER, "loop"])]


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
    needs("torch")
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
        steps = run_forked(text).of(records.Step)
        assert [step.n for step in steps] == list(range(6))
        for step in steps:
            assert set(step.ph) == {"forward", "backward", "optimizer"}
            assert step.ph["optimizer"] >= 20_000_000
            assert step.dur >= step.ph["optimizer"] + step.ph["backward"] + step.ph["forward"]


def test_a_plain_step() -> None:
    parts = [(DATA, 10, 15, 1), (BACKWARD, 40, 70, 1), (OPTIMIZER, 75, 80, 1)]
    assert phases_of(0, parts) == {"data": 5, "forward": 25, "backward": 30, "optimizer": 5}


def test_without_a_loader_forward_begins_with_the_step() -> None:
    assert phases_of(3, [(BACKWARD, 40, 70, 1)]) == {"forward": 37, "backward": 30}


def test_micro_batches_add_up() -> None:
    parts = [
        (DATA, 0, 1, 1),
        (BACKWARD, 3, 5, 1),
        (DATA, 6, 8, 1),
        (BACKWARD, 9, 12, 1),
        (OPTIMIZER, 12, 13, 1),
    ]
    assert phases_of(0, parts) == {"data": 3, "forward": 3, "backward": 5, "optimizer": 1}


def test_phases_of_the_script_inside_one_another_add_up() -> None:
    parts = [
        ("augment", 1, 3, 1),
        ("load", 0, 5, 1),
        ("loss", 7, 9, 1),
        ("loss", 10, 11, 1),
        ("train", 6, 16, 1),
    ]
    assert phases_of(0, parts) == {"augment": 2, "load": 3, "loss": 3, "train": 7}
    assert phases_of(0, [*parts, ("all", 0, 17, 1)])["all"] == 2


def test_phases_of_the_script_are_not_forward() -> None:
    parts = [
        (DATA, 0, 10, 1),
        ("h2d", 10, 14, 1),
        ("inner", 21, 22, 1),
        ("loss", 20, 26, 1),
        (BACKWARD, 30, 50, 1),
    ]
    found = phases_of(0, parts)
    assert found == {"data": 10, "h2d": 4, "inner": 1, "loss": 5, "forward": 20 - 4 - 6, "backward": 20}


def test_what_the_script_times_itself_counts_alone() -> None:
    parts = [
        ("forward", 10, 30, 1),
        (BACKWARD, 33, 49, 1),
        ("backward", 32, 50, 1),
        (OPTIMIZER, 51, 60, 1),
    ]
    assert phases_of(0, parts) == {"forward": 20, "backward": 18, "optimizer": 9}


def test_an_optimizer_with_a_closure_counts_from_its_last_backward() -> None:
    parts = [(DATA, 0, 5, 1), (BACKWARD, 10, 20, 1), (BACKWARD, 23, 30, 1), (OPTIMIZER, 6, 34, 1)]
    assert phases_of(0, parts) == {"data": 5, "forward": 5 + 3, "backward": 17, "optimizer": 4}


def test_a_backward_inside_another_counts_once() -> None:
    parts = [(DATA, 0, 5, 1), (BACKWARD, 12, 15, 1), (BACKWARD, 16, 18, 1), (BACKWARD, 10, 20, 1)]
    assert phases_of(0, parts) == {"data": 5, "forward": 5, "backward": 10}


def test_two_optimizers() -> None:
    parts = [(BACKWARD, 5, 10, 1), (OPTIMIZER, 10, 12, 1), (BACKWARD, 20, 25, 1), (OPTIMIZER, 25, 30, 1)]
    assert phases_of(0, parts) == {"forward": 5 + 8, "backward": 10, "optimizer": 7}


def test_forward_is_the_model_and_not_what_lies_before_backward() -> None:
    usual = [(DATA, 0, 5, 1), (FORWARD, 10, 20, 1), (BACKWARD, 30, 50, 1), (OPTIMIZER, 52, 60, 1)]
    assert phases_of(0, usual) == {"data": 5, "forward": 10, "backward": 20, "optimizer": 8}
    twice = [*usual[:3], (FORWARD, 51, 52, 1), (BACKWARD, 53, 60, 1), (OPTIMIZER, 61, 62, 1)]
    assert phases_of(0, twice) == {"data": 5, "forward": 11, "backward": 27, "optimizer": 1}


def test_a_model_that_backward_calls_is_part_of_backward() -> None:
    parts = [(FORWARD, 0, 10, 1), (FORWARD, 12, 14, 1), (BACKWARD, 11, 20, 1)]
    assert phases_of(0, parts) == {"forward": 10, "backward": 9}


def test_a_closure_that_runs_again_and_again_is_not_the_optimizer() -> None:
    closures = [(FORWARD, 10, 14, 1), (BACKWARD, 14, 20, 1), (FORWARD, 25, 29, 1), (BACKWARD, 29, 35, 1)]
    assert phases_of(0, [*closures, (OPTIMIZER, 5, 40, 1)]) == {"forward": 8, "backward": 12, "optimizer": 15}
    once = [*closures[:2], (OPTIMIZER, 5, 40, 1)]
    assert phases_of(0, once) == {"forward": 4, "backward": 6, "optimizer": 20}, "the rest is the framework's"


def test_evaluation_and_checkpoints_have_names() -> None:
    parts = [(EVALUATION, 0, 50, 1), (CHECKPOINT, 50, 60, 1), (BACKWARD, 70, 80, 1)]
    found = phases_of(0, parts)
    assert (found["evaluation"], found["checkpoint"]) == (50, 10)
    assert found["forward"] == 10, "what lies between the checkpoint and backward"


def test_what_a_framework_calls_evaluation_holds_its_batches_and_models() -> None:
    parts = [
        (DATA, 0, 5, 1),
        (FORWARD, 5, 15, 1),
        (BACKWARD, 16, 30, 1),
        (DATA, 41, 43, 1),
        (FORWARD, 43, 48, 1),
        (CHECKPOINT, 49, 55, 1),
        (EVALUATION, 40, 60, 1),
    ]
    assert phases_of(0, parts) == {"data": 5, "forward": 10, "backward": 14, "evaluation": 20}


class _Time(int):
    """Counts how often it is compared or subtracted."""

    used = 0

    def __lt__(self, other: int) -> bool:
        _Time.used += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        _Time.used += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        _Time.used += 1
        return int(self) > int(other)

    def __ge__(self, other: int) -> bool:
        _Time.used += 1
        return int(self) >= int(other)

    def __sub__(self, other: int) -> int:
        _Time.used += 1
        return int(self) - int(other)


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        ([("crop", 0, 2), (BACKWARD, 4, 10)], {"crop": 2, "forward": 2, "backward": 6}),
        ([("crop", 0, 2), (FORWARD, 3, 4), (BACKWARD, 4, 8)], {"crop": 2, "forward": 1, "backward": 4}),
        (
            [(FORWARD, 2, 4), (BACKWARD, 4, 8), (OPTIMIZER, 1, 9)],
            {"forward": 2, "backward": 4, "optimizer": 1},
        ),
    ],
)
def test_the_work_for_a_step_grows_with_the_number_of_its_parts(
    batch: list[tuple[Any, int, int]], seen: dict[str, int]
) -> None:
    def work(count: int) -> int:
        _Time.used = 0
        parts = [
            (kind, _Time(10 * n + began), _Time(10 * n + ended), HERE)
            for n in range(count)
            for kind, began, ended in batch
        ]
        phases = phases_of(0, parts)
        assert {name: phases[name] // count for name in seen} == seen
        return _Time.used

    assert work(2_000) < 3 * work(1_000)


def test_calls_after_the_last_step_are_not_kept_without_end() -> None:
    assembly = Assembly(born=1)
    assembly.take(deque([(END, 0, 5, None, False, 6)]))
    for n in range(100):
        assembly.take(deque([(EVALUATION, 10 + n, 11 + n, None)] * 1000))
    assert len(assembly.after_last_step()[1]) <= 20_000
