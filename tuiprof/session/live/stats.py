"""Statistics of step times: what the live screen, the list and the report call median, jitter and outlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A step is an outlier beyond so many robust standard deviations …
OUTLIER_SIGMAS: Final = 5.0
#: … and slower than the median by more than this share.
OUTLIER_SHARE: Final = 0.10
#: Fewer steps than this have no outliers: the median of so few means little.
OUTLIER_MIN_STEPS: Final = 8
OUTLIER_RULE: Final = (
    f"slower than the median by more than {OUTLIER_SIGMAS:.0f} robust standard deviations "
    f"(1.4826 × median absolute deviation) and by more than {OUTLIER_SHARE:.0%}; "
    f"captured steps are left out"
)
JITTER_RULE: Final = "median absolute deviation of the step time, as a share of its median"
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
        rate_hz: Steps per second of step time: 1 / mean.
        outlier_above_ns: Steps longer than this are outliers (:data:`OUTLIER_RULE`); infinite = too few steps.
    """

    count: int
    median_ns: float
    p95_ns: float
    mean_ns: float
    jitter: float
    rate_hz: float
    outlier_above_ns: float


_NAN: Final = float("nan")
NO_STATS: Final = StepStats(0, _NAN, _NAN, _NAN, _NAN, _NAN, float("inf"))


def step_stats(dur_ns: Ints) -> StepStats:
    """Return the statistics of step times.

    Args:
        dur_ns: Step times in ns, shape ``(n,)``, captured steps left out.
    """
    count = len(dur_ns)
    if not count:
        return NO_STATS
    median, p95 = (float(value) for value in np.percentile(dur_ns, (50, 95)))
    deviation = float(np.median(np.abs(dur_ns - median)))
    mean = float(dur_ns.mean())
    above = median + max(OUTLIER_SIGMAS * _ROBUST * deviation, OUTLIER_SHARE * median)
    return StepStats(
        count=count,
        median_ns=median,
        p95_ns=p95,
        mean_ns=mean,
        jitter=deviation / median if median > 0 else _NAN,
        rate_hz=1e9 / mean if mean > 0 else _NAN,
        outlier_above_ns=above if count >= OUTLIER_MIN_STEPS else float("inf"),
    )
