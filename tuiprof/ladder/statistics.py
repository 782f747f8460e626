"""Statistics of a ladder: from the trials of two variants to a verdict, with its rule.

Trials are compared in pairs, round by round, because what disturbs a machine (clocks, temperature, neighbours) lasts
longer than a trial and hits both of a pair. Nothing is drawn at random: the same trials give the same intervals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tuiprof.ladder.state import Figures, LadderMeta

Word = Literal["baseline", "faster", "slower", "no difference", "undecided", "wrong", "failed", "unavailable"]

CONFIDENCE: Final = 0.95
#: A smaller difference, as a share, counts as none, even if it is significant.
MIN_DIFFERENCE: Final = 0.01
#: An interval that contains 1 but extends further from it than this allows no verdict.
MAX_DOUBT: Final = 0.10

#: If the mean step is this many times the median step or more, it is shown too.
UNEVEN: Final = 1.5

#: Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom (any table of the distribution).
_T95: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z95: Final = 1.959964

#: Note on a variant whose speed is not compared.
INTERPRETED: Final = (
    "a kernel was interpreted, as its device is missing: its results count, its speed does not"
)

MEDIAN_RULE: Final = (
    "Median of the trials' medians. Its interval is the narrowest symmetric pair of order statistics that covers the "
    f"median with at least {CONFIDENCE * 100:.0f} %; below six trials none does, and it is their whole range, which "
    "covers it with 1 − 2^(1−n) for n trials (5: 93.8 %, 4: 87.5 %, 3: 75 %, 2: 50 %)."
)
RATIO_RULE: Final = (
    "Step time over that of the baseline (time per sample where the batch sizes differ), trial by trial in the same "
    f"round: geometric mean, with the {CONFIDENCE * 100:.0f} % interval of Student's t on the logarithms. It needs "
    "two rounds."
)
VERDICT_RULE: Final = (
    "`faster` or `slower`: the interval of the ratio excludes 1 and the ratio is more than "
    f"{MIN_DIFFERENCE * 100:.0f} % away from it. `undecided`: the interval contains 1 and reaches further than "
    f"{MAX_DOUBT * 100:.0f} % from it, or there is none, as for an interpreted kernel. `no difference`: otherwise. "
    "`wrong`: the results differ from the reference; its speed does not count."
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its confidence interval."""

    value: float  # the figure
    low: float  # lower end; equal to ``value`` with a single trial
    high: float  # upper end
    coverage: float  # probability that such an interval contains the true value; 0 = one trial


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one variant."""

    name: str
    word: Word  # the verdict
    #: Why it is wrong, failed, unavailable or undecided; for others, what a reader has to know; may be empty.
    why: str
    remedy: str  # what to do about that; may be empty
    step_ns: Interval | None  # step time; None = not measured
    ratio: Interval | None  # step time over the baseline's; None = unknown
    equal: bool | None  # whether its numbers were compared and are equal; None = not compared
    trials: Mapping[int, Figures]  # what its timing trials measured, by round


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None = there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of one or more independent values by :data:`MEDIAN_RULE`."""
    ordered, count = sorted(values), len(values)
    # rank = how many are left out at each end; the chance that the median lies below the (rank+1)-th smallest.
    below, best = 0.0, (0, 1 - 2.0 ** (1 - count))
    for rank in range((count - 1) // 2 + 1):
        below += math.comb(count, rank) / 2.0**count
        if 1 - 2 * below >= CONFIDENCE:
            best = (rank, 1 - 2 * below)
    rank, coverage = best
    return Interval(statistics.median(ordered), ordered[rank], ordered[count - 1 - rank], max(coverage, 0.0))


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Return how one time compares with another by :data:`RATIO_RULE`; below 1 is faster. None = fewer than two pairs.

    A pair is the time of the variant and of its baseline in the same round, each above 0.
    """
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    if len(logs) < 2:
        return None
    mean = statistics.fmean(logs)
    half = t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), CONFIDENCE)


def t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t with one or more degrees of freedom."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    # Beyond the table: the first terms of its expansion around the normal quantile (Abramowitz & Stegun 26.7.5).
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def word_for(ratio: Interval | None) -> Word:
    """Return the verdict that a ratio of step time to the baseline's allows, by :data:`VERDICT_RULE`."""
    if ratio is None:
        return "undecided"
    if ratio.low <= 1 <= ratio.high:
        sure = max(ratio.high, 1 / ratio.low) <= 1 + MAX_DOUBT
        return "no difference" if sure else "undecided"
    if abs(ratio.value - 1) <= MIN_DIFFERENCE:
        return "no difference"
    return "faster" if ratio.value < 1 else "slower"


def judge(meta: LadderMeta) -> list[Judged]:
    """Return the verdict on each variant by the trials so far, in the order of the ladder."""
    times = {rung.name: _times(meta, rung.name) for rung in meta.rungs}
    return [_judge(meta, rung.name, times) for rung in meta.rungs]


def _times(meta: LadderMeta, name: str) -> dict[int, Figures]:
    return {
        trial.round: trial.figures
        for trial in meta.trials
        if trial.variant == name
        and trial.kind in ("timing", "once")
        and trial.state == "done"
        and trial.figures
    }


def _judge(meta: LadderMeta, name: str, times: Mapping[str, Mapping[int, Figures]]) -> Judged:
    rung, own = meta.rung(name), times[name]
    word: Word
    if rung.reason:
        return Judged(name, "unavailable", rung.reason, rung.remedy, None, None, None, {})
    trials = [trial for trial in meta.trials if trial.variant == name]
    out = next((trial for trial in trials if trial.state in ("wrong", "failed", "unavailable")), None)
    equal = True if any(trial.equal for trial in trials) else None
    step = median_interval([figures.median_ns for figures in own.values()]) if own else None
    if out is not None:
        # What was measured before is kept in the trials, but a wrong variant has no speed.
        word = "wrong" if out.state == "wrong" else "failed" if out.state == "failed" else "unavailable"
        return Judged(name, word, out.why, out.remedy, None, None, False if word == "wrong" else equal, own)
    unchecked = "" if equal else "the results were not compared with the reference"
    uneven = _uneven(own.values())
    if rung.baseline == name:
        return Judged(
            name, "baseline", "; ".join(filter(None, (uneven, unchecked))), "", step, None, equal, own
        )
    theirs = times.get(rung.baseline, {})
    base_out = any(trial.variant == rung.baseline and trial.state == "wrong" for trial in meta.trials)
    interpreted = any(figures.interpreted for figures in (*own.values(), *theirs.values()))
    pairs = [] if base_out or interpreted else paired(own, theirs)
    ratio = ratio_interval(pairs)
    word = word_for(ratio)
    why = _undecided(rung.baseline, len(own), len(pairs), base_out) if word == "undecided" else ""
    why = INTERPRETED if interpreted else why
    return Judged(name, word, "; ".join(filter(None, (why, uneven, unchecked))), "", step, ratio, equal, own)


def _uneven(trials: Iterable[Figures]) -> str:
    """Return a note if the median hides most of the time."""
    means = [
        figures.batch / figures.samples_per_s * 1e9 / figures.median_ns
        for figures in trials
        if figures.batch and figures.samples_per_s
    ]
    worst = max(means, default=1.0)
    if worst < UNEVEN:
        return ""
    return (
        f"its mean step takes {worst:.2g} times its median: a few measured steps are far longer, for example because "
        "a new shape is compiled; use a longer warm-up (--steps), or compare samples per second"
    )


def paired(own: Mapping[int, Figures], theirs: Mapping[int, Figures]) -> list[tuple[float, float]]:
    """Return the step times of two variants in the rounds of both; per sample where their batches differ."""
    pairs = []
    for number in sorted(own.keys() & theirs.keys()):
        ours, base = own[number], theirs[number]
        if ours.batch and base.batch and ours.batch != base.batch:
            pairs.append((ours.median_ns / ours.batch, base.median_ns / base.batch))
        else:
            pairs.append((ours.median_ns, base.median_ns))
    return pairs


def _undecided(baseline: str, own: int, pairs: int, base_out: bool) -> str:
    if not own:
        return "not timed yet"
    if base_out:
        return f"the baseline {baseline} is wrong"
    if not pairs:
        return f"the baseline {baseline} was not timed"
    if pairs < 2:
        return "one round: run two or more (--trials, without --once)"
    return "the trials vary too much: use more (--trials) or longer ones (--steps), or an idle machine"
