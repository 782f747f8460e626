"""How sure a difference of step times is: never more than the steps allow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tuiprof.analyses.shared.changes import StepChange, step_change

Noise = Callable[[np.random.Generator, int], np.ndarray]


def drifting(chance: np.random.Generator, n: int) -> np.ndarray:
    """Steps of which each resembles the one before."""
    steps = chance.normal(0, 5e6, n)
    for i in range(1, n):
        steps[i] = 0.6 * steps[i - 1] + 0.8 * steps[i]
    return 1e8 + steps


NOISES: dict[str, Noise] = {
    "normal": lambda chance, n: chance.normal(1e8, 5e6, n),
    "skewed": lambda chance, n: 1e8 + chance.exponential(5e6, n),
    "some slow": lambda chance, n: chance.normal(1e8, 5e6, n) * np.where(chance.random(n) < 0.1, 1.5, 1),
    "two kinds": lambda chance, n: np.where(chance.random(n) < 0.5, 1e8, 1.1e8) + chance.normal(0, 2e6, n),
    "drifting": drifting,
}


def change(before: np.ndarray, after: np.ndarray) -> StepChange:
    found = step_change(before.astype(np.int64), after.astype(np.int64))
    assert found is not None
    return found


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("n", [4, 5, 8, 30])
def test_noise_alone_is_hardly_ever_called_a_difference(name: str, n: int) -> None:
    noise, chance, tries = NOISES[name], np.random.default_rng(n), 300
    found = [change(noise(chance, n), noise(chance, n)) for _ in range(tries)]
    wrong = sum(one.sure == "yes" and one.verdict.level != "info" for one in found)
    # What drifts slowly, or is of two kinds, can hardly be told from a change by four steps.
    hard = name in ("drifting", "two kinds")
    assert wrong <= (0.1 if hard and n < 8 else 0.05) * tries
    assert sum((one.low or 0) <= 1 <= (one.high or 0) for one in found) >= (0.8 if hard else 0.9) * tries


@pytest.mark.parametrize("n", [30, 200])
def test_a_difference_beyond_the_noise_is_found(n: int) -> None:
    chance = np.random.default_rng(n)
    normal = NOISES["normal"]
    found = [change(normal(chance, n), 0.9 * normal(chance, n)) for _ in range(100)]
    assert sum(one.verdict.level == "good" for one in found) >= 90


def test_a_slow_first_step_of_few_hides_nothing() -> None:
    before, after = np.array([31.3e6, 28.3e6, 28.6e6, 28.3e6]), np.array([25.4e6, 25.5e6, 25.5e6, 25.5e6])
    assert change(before, after).verdict.level == "good"


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("slow_first", [False, True])
def test_steps_in_bursts_are_compared_by_their_means(workers: int, slow_first: bool) -> None:
    """As many batches as there are loader workers arrive at once: the first step of them waits, the others do not."""
    chance = np.random.default_rng(workers)
    before = chance.normal(16e6, 4e5, 240)
    after = np.where(np.arange(240) % workers == 0, 16e6, 5e5) + chance.normal(0, 2e4, 240)
    if slow_first:
        after[0] = 5e9
    found = change(before, after)
    mean = (16e6 + (workers - 1) * 5e5) / workers
    assert found.sure == "yes"
    assert found.after_ns == pytest.approx(mean, rel=0.05)
    assert (found.low or 0) <= mean / 16e6 <= (found.high or 0)
    assert "means of 240 and 240 steps" in found.verdict.sentence


@pytest.mark.parametrize(("before", "after"), [(100.0, 101.005), (100.0, 110.0), (100.0, 100.0)])
def test_the_other_way_round_it_is_the_opposite(before: float, after: float) -> None:
    steps = np.array([1.0, 1.0001, 0.9999, 1.0, 1.0002]) * 1e6
    there, back = change(before * steps, after * steps), change(after * steps, before * steps)
    assert there.before_ns == back.after_ns
    assert (there.low or 0) * (back.high or 0) == pytest.approx(1)
    words = [one.verdict.sentence.split(":")[0] for one in (there, back)]
    assert ("slower" in words[0], "faster" in words[0]) == ("faster" in words[1], "slower" in words[1])
    assert there.sure == back.sure
