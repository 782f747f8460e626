"""Statistics of step times: what the live screen, the list and the report call median, jitter and outlier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A step is an outlier beyond this many robust standard deviations …
OUTLIER_SIGMAS: Final = 5.0
#: … and slower than the median by more than this share.
OUTLIER_SHARE: Final = 0.10
#: Minimum number of steps for outliers, as the median of fewer is unreliable.
OUTLIER_MIN_STEPS: Final = 8
OUTLIER_RULE: Final = (
    f"slower than the median by more than {OUTLIER_SIGMAS:.0f} robust standard deviations "
    f"(1.4826 × median absolute deviation) and by more than {OUTLIER_SHARE:.0%}; "
    f"captured steps are left out"
)
JITTER_RULE: Final = "median absolute deviation of the step time, as a share of its median"
#: The host runs ahead if the median device step is longer than the median host step by this share.
AHEAD_SHARE: Final = 0.05
#: Minimum number of device-timed steps for that.
_FIRST_TIMES: Final = 2
RATE_RULE: Final = (
    "By the wall clock: evaluations and checkpoints between steps are in it, captured steps are not, nor is the first "
    f"step of the run where it took more than {_FIRST_TIMES} times the median (compiling, workers that start)."
)
_AHEAD_MIN_STEPS: Final = 8
AHEAD_RULE: Final = (
    f"where the median time between the ends of two steps on the device is above that on the host by more than "
    f"{AHEAD_SHARE:.0%}, the host runs ahead, and a step takes what it takes on the device"
)
_ROBUST: Final = 1.4826  # makes the median absolute deviation of a normal distribution its standard deviation


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of some steps; NaN where there are none.

    Attributes:
        count: Number of steps they are made from (captured ones left out: the profiler slows them down).
        median_ns: Median step time.
        p95_ns: 95th percentile.
        mean_ns: Mean.
        jitter: Median absolute deviation as a share of the median (:data:`JITTER_RULE`).
        rate_hz: Steps per second by the wall clock (:data:`RATE_RULE`).
        outlier_above_ns: Steps longer than this by the host's time are outliers (:data:`OUTLIER_RULE`); infinite = too
            few steps.
        on_device: The times are those of the steps on the device, because the host runs ahead of it
            (:data:`AHEAD_RULE`).
    """

    count: int
    median_ns: float
    p95_ns: float
    mean_ns: float
    jitter: float
    rate_hz: float
    outlier_above_ns: float
    on_device: bool = False


_NAN: Final = float("nan")
_NOT_TIMED: Final[Ints] = np.zeros(0, np.int64)
NO_STATS: Final = StepStats(0, _NAN, _NAN, _NAN, _NAN, _NAN, float("inf"))


def step_stats(
    dur_ns: Ints, device_ns: Ints = _NOT_TIMED, wall_ns: float = _NAN, first_ns: float = 0.0
) -> StepStats:
    """Return the statistics of step times.

    Args:
        dur_ns: Host times of the steps in ns, shape ``(n,)``, captured steps left out.
        device_ns: Times on the device of those of them that were timed, ns.
        wall_ns: What all of them took by the wall clock; NaN = the sum of the host times.
        first_ns: What the first step of the run took of that; 0 = it is not one of them.
    """
    count = len(dur_ns)
    if not count:
        return NO_STATS
    median, deviation = _middle(dur_ns)
    above = _above(median, deviation, count)
    if math.isnan(wall_ns):
        wall_ns = float(dur_ns.sum())
    on_device = len(device_ns) >= _AHEAD_MIN_STEPS and np.median(device_ns) > (1 + AHEAD_SHARE) * median
    if on_device:
        dur_ns = device_ns
        median, deviation = _middle(device_ns)
    return StepStats(
        count=count,
        median_ns=median,
        p95_ns=float(np.percentile(dur_ns, 95)),
        mean_ns=float(dur_ns.mean()),
        jitter=deviation / median if median > 0 else _NAN,
        rate_hz=rate_hz(count, wall_ns, first_ns, median),
        outlier_above_ns=above,
        on_device=bool(on_device),
    )


def rate_hz(count: int, wall_ns: float, first_ns: float, median_ns: float) -> float:
    """Return steps per second by :data:`RATE_RULE`; NaN where there is no time."""
    if count > 2 and first_ns > _FIRST_TIMES * median_ns:
        count, wall_ns = count - 1, wall_ns - first_ns
    return 1e9 * count / wall_ns if wall_ns > 0 else _NAN


def outliers_above_ns(dur_ns: Ints) -> float:
    """Return the time above which a step among these is an outlier, ns; infinite = they are too few."""
    return _above(*_middle(dur_ns), len(dur_ns)) if len(dur_ns) else float("inf")


def _above(median: float, deviation: float, count: int) -> float:
    if count < OUTLIER_MIN_STEPS:
        return float("inf")
    return median + max(OUTLIER_SIGMAS * _ROBUST * deviation, OUTLIER_SHARE * median)


def _middle(times_ns: Ints) -> tuple[float, float]:
    """Return the median and the median absolute deviation."""
    median = float(np.median(times_ns))
    return median, float(np.median(np.abs(times_ns - median)))
