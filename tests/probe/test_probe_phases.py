"""From timed parts to phases."""

from __future__ import annotations

from tuiprof.probe.assembly import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, OPTIMIZER, phases_of


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


def test_phases_of_the_script_are_not_forward() -> None:
    parts = [
        (DATA, 0, 10, 1),
        ("h2d", 10, 14, 1),
        ("inner", 21, 22, 1),
        ("loss", 20, 26, 1),
        (BACKWARD, 30, 50, 1),
    ]
    found = phases_of(0, parts)
    assert found == {"data": 10, "h2d": 4, "inner": 1, "loss": 6, "forward": 20 - 4 - 6, "backward": 20}


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
