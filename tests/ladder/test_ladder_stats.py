"""What a ladder's timings say: intervals that cover what they claim, and the words for them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Literal

import pytest

from tuiprof.ladder.plan import left_s, plan
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import Figures, LadderMeta, Trial
from tuiprof.ladder.statistics import judge, median_interval, ratio_interval, t95, word_for
from tuiprof.session.run.interpreter import facts

HEADER = """
[tool.tuiprof]
name = "pair"
baseline = "slow"
variants = [{ name = "slow" }, { name = "quick" }]
"""


@pytest.fixture
def meta(tmp_path: Path) -> LadderMeta:
    """Two variants that are to be timed twice; nothing has run."""
    (tmp_path / "pair.py").touch()
    (tmp_path / "pair.toml").write_text(HEADER, encoding="utf-8")
    return plan(find_ladder("pair", [tmp_path]), facts(), rounds=2, cwd=tmp_path)


def test_an_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    assert median_interval([3.0]) == (one := median_interval([3.0]))
    assert (one.low, one.value, one.high, one.coverage) == (3.0, 3.0, 3.0, 0.0)
    five = median_interval([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (five.low, five.value, five.high, five.coverage) == (1.0, 3.0, 5.0, 0.9375)
    rng = random.Random(7)
    for count in (5, 6, 11):
        covered, said = 0, 0.0
        for _ in range(3000):
            interval = median_interval([rng.expovariate(1.0) for _ in range(count)])
            covered += interval.low <= math.log(2) <= interval.high
            said = interval.coverage
        assert covered / 3000 == pytest.approx(said, abs=0.015)
        assert said >= 0.95 or count < 6


def test_an_interval_of_the_ratio_covers_it_95_times_in_100() -> None:
    assert t95(1) == 12.706
    assert t95(40) == pytest.approx(2.0211, abs=2e-4)
    assert t95(10_000) == pytest.approx(1.9602, abs=2e-4)
    assert ratio_interval([(1.0, 2.0)]) is None
    rng = random.Random(7)
    for count in (2, 3, 5):
        covered = 0
        for _ in range(3000):
            drift = [rng.lognormvariate(0, 1) for _ in range(count)]  # hits both of a pair
            pairs = [(1.2 * d * rng.lognormvariate(0, 0.02), d * rng.lognormvariate(0, 0.02)) for d in drift]
            interval = ratio_interval(pairs)
            assert interval is not None
            covered += interval.low <= 1.2 <= interval.high
        assert covered / 3000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([(50, 100), (51, 100), (49, 100)], "faster"),
        ([(200, 100), (204, 100), (196, 100)], "slower"),
        ([(99.5, 100), (99.6, 100), (99.4, 100)], "no difference"),  # sure, but below 1 %
        ([(98, 100), (102, 100), (100, 100)], "no difference"),
        ([(50, 100), (200, 100), (100, 100)], "undecided"),  # anything may hide in there
        ([(50, 100)], "undecided"),
    ],
)
def test_verdicts(pairs: list[tuple[float, float]], word: str) -> None:
    assert word_for(ratio_interval(pairs)) == word


def test_other_batch_sizes_are_compared_by_the_sample_and_a_wrong_baseline_not_at_all(
    meta: LadderMeta,
) -> None:
    def timed(number: int, variant: str, ms: float, batch: int) -> Trial:
        figures = Figures(ms * 1e6, 20, batch=batch)
        return Trial("timing", number, variant, state="done", wall_ns=10**9, figures=figures)

    meta.trials = [timed(n, "slow", 10, 32) for n in (1, 2)] + [timed(n, "quick", 15, 64) for n in (1, 2)]
    quick = judge(meta)[1]
    assert quick.word == "faster"
    assert quick.ratio is not None
    assert quick.ratio.value == pytest.approx(0.75)
    assert left_s(meta) == pytest.approx(4.0)  # two checks and two captures, from the mean of all
    meta.trials.append(Trial("check", 0, "slow", state="wrong", why="loss"))
    assert [one.word for one in judge(meta)] == ["wrong", "undecided"]


@pytest.mark.parametrize("state", ["wrong", "failed", "unavailable"])
def test_a_variant_that_drops_out_keeps_neither_step_time_nor_speed(
    meta: LadderMeta, state: Literal["wrong", "failed", "unavailable"]
) -> None:
    meta.trials = [
        Trial("timing", n, variant, state="done", wall_ns=10**9, figures=Figures(ms * 1e6, 20), equal=True)
        for n in (1, 2)
        for variant, ms in (("slow", 10), ("quick", 5))
    ]
    timed = judge(meta)[1]
    assert (timed.word, timed.equal) == ("faster", True)
    meta.trials.append(Trial("check", 3, "quick", state=state, why="loss differs"))
    out = judge(meta)[1]
    assert (out.word, out.why, out.step_ns, out.ratio) == (state, "loss differs", None, None)
    assert out.equal is (state != "wrong")


def test_a_median_that_hides_long_steps_is_said_to(meta: LadderMeta) -> None:
    def timed(number: int, variant: str, samples_per_s: float) -> Trial:
        figures = Figures(10e6, 20, batch=32, samples_per_s=samples_per_s)
        return Trial("timing", number, variant, state="done", wall_ns=10**9, figures=figures)

    meta.trials = [timed(n, "slow", 3000) for n in (1, 2)] + [timed(1, "quick", 3200), timed(2, "quick", 64)]
    slow, quick = judge(meta)
    assert "median" not in slow.why
    assert "its mean step takes 50 times its median" in quick.why
