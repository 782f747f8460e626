"""Counts that repeat, and those that only seem to."""

from __future__ import annotations

import random

import pytest

from tuiprof.probe.steps.followers import PeriodicCount


def predicted(counts: list[int]) -> list[int]:
    """What is predicted for each count but the first."""
    periodic, found = PeriodicCount(), list[int]()
    for count in counts:
        periodic.add(count)
        found.append(periodic.next)
    return found[:-1]


def test_a_count_that_is_always_the_same_is_known_from_the_first_on() -> None:
    assert predicted([3] * 200) == [3] * 199


@pytest.mark.parametrize(
    ("period", "known_after"),
    [([0, 1], 4), ([1, 0], 4), ([0, 0, 0, 0, 1], 10), ([2, 0, 0, 1, 0, 0], 12)],
)
def test_counts_that_repeat(period: list[int], known_after: int) -> None:
    counts = (period * 100)[:200]
    wrong = [n for n, found in enumerate(predicted(counts), 1) if found != counts[n]]
    assert wrong[-1] < known_after


def test_a_count_that_becomes_another_one_is_known_soon() -> None:
    assert predicted([0] * 30 + [1] * 10) == [0] * 33 + [1] * 6


def test_one_iteration_without_them_is_soon_forgotten() -> None:
    found = predicted([1] * 30 + [0] + [1] * 70)
    assert found[30:46] == [0] * 16
    assert found[46:] == [1] * 54


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.97])
def test_counts_at_random_are_seldom_too_low(share: float) -> None:
    rng = random.Random(0)
    counts = [int(rng.random() < share) for _ in range(5_000)]
    assert sum(count < found for found, count in zip(predicted(counts), counts[1:], strict=True)) <= 4
