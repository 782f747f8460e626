"""How much a step time changed, with its confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tuiprof.model import Rule, Verdict
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share, format_speed, format_speed_range

#: Standard errors from which on a difference of medians is significant; minimum number of steps per side.
SURE_ERRORS, LEAST_STEPS = 3.0, 4
#: Smaller differences, as a share, count as none.
SAME_SHARE = 0.01
#: 1.4826 makes a median absolute deviation the standard deviation of a normal distribution; a median is 1.2533
#: times less exact than a mean. 1.96 standard errors on either side contain the true value in 95 % of the cases.
_ROBUST, _MEDIAN_ERROR, _Z95 = 1.4826, 1.2533, 1.96
#: Factor on the error for few steps: Student's t for 95 % divided by that of a normal distribution.
_FEW = {4: 1.62, 5: 1.42, 6: 1.31, 7: 1.25}

#: Maximum assumed correlation of neighboring steps.
_MOST_ALIKE = 0.9

RULES = (
    Rule(
        "sure",
        f"The medians differ by {SURE_ERRORS:g} standard errors or more, with at least {LEAST_STEPS} steps on each "
        "side; the error comes from the spread of step times around the median and grows when steps are few or "
        "correlated. The interval is 1.96 of these errors. "
        "It covers noise within the two runs, not between runs: for that, run interleaved trials "
        "(`tuiprof ladder`).",
    ),
    Rule("same", f"Below {format_share(SAME_SHARE)} of the longer step time."),
)


@dataclass(frozen=True, slots=True)
class StepChange:
    """The change of a step time."""

    before_ns: float  # median before, ns
    after_ns: float  # median after, ns
    low: float | None  # lower end of the 95 % interval of after / before; None = unknown
    high: float | None  # its upper end
    sure: str  # ``yes``; ``no: …`` within the spread; ``unknown: …`` from too few steps
    basis: str  # what it was derived from: ``180 and 200 steps``

    @property
    def share(self) -> float:
        """Change as a share of the time before; negative is faster."""
        return (self.after_ns - self.before_ns) / self.before_ns if self.before_ns else 0.0

    @property
    def verdict(self) -> Verdict:
        """The answer in one sentence."""
        a, b = format_ns(self.before_ns), format_ns(self.after_ns)
        span = self._span()
        if abs(self.after_ns - self.before_ns) < SAME_SHARE * max(self.before_ns, self.after_ns):
            return Verdict(f"a step takes the same: {a} before, {b} after{span}", "info")
        faster = self.after_ns < self.before_ns
        level: Level = "info" if self.sure != "yes" else "good" if faster else "bad"
        doubt = "" if self.sure == "yes" else f"; not sure: {self.sure.partition(': ')[2]}"
        how = "is" if self.sure == "yes" else "may be"
        speed = format_speed(self.after_ns / self.before_ns if self.before_ns else 0.0)
        return Verdict(f"a step {how} {speed}: {a} before, {b} after{span}{doubt}", level)

    def _span(self) -> str:
        if self.low is None or self.high is None:
            return f" ({self.basis})"
        return f" (95 %: {format_speed_range(self.low, self.high)}, {self.basis})"


def step_change(before: Ints, after: Ints) -> StepChange | None:
    """Compare step times, ns; None where one side has no steps."""
    if not len(before) or not len(after):
        return None
    a, b = float(np.median(before)), float(np.median(after))
    fewest = min(len(before), len(after))
    basis = f"{len(before)} and {len(after)} steps"
    if fewest < LEAST_STEPS:
        return StepChange(a, b, None, None, f"unknown: only {fewest} step{'s' if fewest > 1 else ''}", basis)
    errors = (_error(before), _error(after))
    error = float(np.hypot(errors[0], errors[1]))
    sure = "yes" if abs(b - a) >= SURE_ERRORS * error else "no: within step-to-step noise"
    if not (a and b):
        return StepChange(a, b, None, None, sure, basis)
    # The relative errors of a ratio add up; on a log scale, so that no end is below 0.
    wide = _Z95 * float(np.hypot(errors[0] / a, errors[1] / b))
    ratio = b / a
    return StepChange(a, b, ratio * float(np.exp(-wide)), ratio * float(np.exp(wide)), sure, basis)


def _error(times: Ints) -> float:
    """Return the standard error of the median of step times, ns.

    From the median absolute deviation, assuming a normal distribution; from eight steps on, the maximum of that and a
    distribution-free estimate from two order statistics around the median, which also covers bimodal steps (R. M.
    Price, D. G. Bonett: "Estimating the variance of the sample median", 2001). With fewer steps the error is enlarged
    by Student's t. Correlated steps contain less information than their number: with the rank correlation ``r`` of
    neighbors the error grows by ``sqrt((1 + r) / (1 - r))``.
    """
    n = len(times)
    error = _MEDIAN_ERROR * _ROBUST * float(np.median(np.abs(times - np.median(times)))) / math.sqrt(n)
    if n in _FEW:
        error *= _FEW[n]
    else:
        low, errors = _around_median(n)
        ordered = np.sort(times)
        error = max(error, float(ordered[n - low] - ordered[low - 1]) / (2 * errors))
    alike = min(max(_likeness(times), 0.0), _MOST_ALIKE)
    return error * math.sqrt((1 + alike) / (1 - alike))


def _around_median(n: int) -> tuple[int, float]:
    """Return an order statistic, counted from either end, and its distance from the median in standard errors."""
    low = max(round((n + 1) / 2 - math.sqrt(n)), 1)
    if n > 200:
        return low, 2.0
    beyond = sum(math.comb(n, i) for i in range(low)) / 2**n
    return low, NormalDist().inv_cdf(1 - beyond)


def _likeness(times: Ints) -> float:
    """Return the rank correlation of neighboring steps, corrected for their number."""
    ranks = np.argsort(np.argsort(times, kind="stable"), kind="stable") - (len(times) - 1) / 2
    return float((ranks[1:] * ranks[:-1]).sum() / (ranks * ranks).sum()) + 1 / len(times)
