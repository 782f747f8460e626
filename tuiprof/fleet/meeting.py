"""The collectives in which ranks meet, as one matrix: who came last, what the others waited, and what removing it wins.

A collective ends on all ranks at about the same time. The rank that spends the least time in it came last; what the
others spend beyond that is waiting. This needs no common clock.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.fleet.summary import Summary

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Unchanged, the job rebuilt from its collectives must take what was captured, within this share.
TOLERANCE: Final = 0.02
#: A late rank stands out by so many standard errors of the lateness over the steps.
OUTLIER: Final = 6.0
#: And is late in this share of the steps.
ALWAYS: Final = 0.9
#: Up to so many ranks, each is left out of the median that it is compared with.
_FEW: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Matched collectives, in the order of time.

    Attributes:
        files: Numbers of the files, shape ``(r,)``; rows of the matrices.
        step: Step of each collective, shape ``(c,)``; columns of the matrices.
        name: Key of its name, shape ``(c,)``.
        start: When each rank entered it, ns since the origin of its trace, shape ``(r, c)``; NaN = it was not there.
        dur: How long it was in it, ns, shape ``(r, c)``.
        left_out: Steps of ranks whose collectives are not those of most ranks in the same step.
    """

    files: Ints
    step: Ints
    name: npt.NDArray[np.uint64]
    start: Floats
    dur: Floats
    left_out: int

    def __len__(self) -> int:
        """Return the number of matched collectives."""
        return len(self.step)

    @property
    def steps(self) -> Ints:
        """Numbers of the steps in which ranks meet, ascending."""
        return np.unique(self.step)

    @property
    def wait(self) -> Floats:
        """What each rank waits in each collective for the one that came last, ns, shape ``(r, c)``."""
        waits: Floats = self.dur - np.nanmin(self.dur, axis=0)
        return waits

    def per_step(self, values: Floats) -> Floats:
        """Sum a matrix of collectives over each step, shape ``(r, steps)``; NaN = the rank was in none of it."""
        first = np.searchsorted(self.step, self.steps)
        missing = np.minimum.reduceat(np.isnan(values), first, axis=1)
        found: Floats = np.add.reduceat(np.nan_to_num(values), first, axis=1)
        found[missing] = np.nan
        return found


def meetings(summary: Summary) -> Meetings:
    """Match the collectives of ranks by step, order and name."""
    counts = (
        summary.steps.filter(pl.col("sequence") != 0)
        .group_by("step", "sequence")
        .len()
        .sort("step", "len", "sequence", descending=[False, True, False])
    )
    common = counts.unique("step", keep="first").filter(pl.col("len") > 1)
    together = summary.steps.join(common, on=["step", "sequence"]).select("file", "step")
    rows = summary.collectives.join(together, on=["file", "step"])
    # A long trace keeps the collectives of fewer steps than a short one: those that all have are compared.
    meant = together.group_by("step").len("meant")
    met = rows.group_by("step", "place").agg(
        pl.len().alias("here"), pl.col("name").first(), pl.col("start").median().alias("at")
    )
    columns = (
        met.join(meant, on="step")
        .filter(pl.col("here") == pl.col("meant"))
        .sort("step", "place")
        .with_row_index("column")
    )
    rows = rows.join(columns.select("step", "place", "column"), on=["step", "place"])
    files = rows["file"].unique().sort()
    row = files.search_sorted(rows["file"]).to_numpy()
    column = rows["column"].to_numpy()
    start = np.full((len(files), len(columns)), np.nan)
    dur = start.copy()
    start[row, column], dur[row, column] = rows["start"].to_numpy(), rows["dur"].to_numpy()
    return Meetings(
        files.cast(pl.Int64).to_numpy(),
        columns["step"].to_numpy(),
        columns["name"].to_numpy(),
        start,
        dur,
        int(counts["len"].sum()) - len(together),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What some ranks, or hosts of ranks, cost the others; arrays of shape ``(units,)``, ns a step.

    Attributes:
        last: In how many collectives the unit came last.
        waited: What the others waited in those, mean over the others.
        lead: What the job would win if the unit came when the second to last did.
        late: How much later it comes than the median of the others, collectives added.
        slack: What it waits itself: it could be slower by this without anybody noticing.
    """

    last: Ints
    waited: Floats
    lead: Floats
    late: Floats
    slack: Floats


def lateness(wait: Floats) -> Floats:
    """Return how much later than the median of the others each unit comes to each collective, ns, shape as given.

    Args:
        wait: Waits of units in collectives, NaN = was not there.
    """
    if not wait.size or len(wait) < 2:
        return np.zeros_like(wait)
    if len(wait) > _FEW:  # one more or less does not move the median
        late: Floats = np.nanmedian(wait, axis=0) - wait
        return late
    with warnings.catch_warnings():  # a collective of two ranks, of which one is left out
        warnings.simplefilter("ignore", RuntimeWarning)
        others = [np.nanmedian(np.delete(wait, row, axis=0), axis=0) for row in range(len(wait))]
    return np.stack(others) - wait


def always_late(per_step: Floats, least_ns: float) -> npt.NDArray[np.bool_]:
    """Return which units are late step after step, shape ``(units,)``.

    A unit is measured against how it differs from itself from step to step, not against the other units: how those
    differ is what is looked for. Its median step counts, since being held up once makes no straggler, and it must be
    late in nine steps of ten, since a step is much like the one before it.

    Args:
        per_step: Lateness of units, ns, shape ``(units, steps)``; NaN = was not there.
        least_ns: What is less is not listed.
    """
    if not per_step.size:
        return np.zeros(len(per_step), dtype=bool)
    usual = np.nanmedian(per_step, axis=1)
    own = np.nanmedian(np.abs(per_step - usual[:, None]), axis=1)
    error = 1.4826 * float(np.nanmedian(own)) / per_step.shape[1] ** 0.5
    late: npt.NDArray[np.bool_] = (usual >= max(least_ns, OUTLIER * error)) & (
        np.nanquantile(per_step, 1 - ALWAYS, axis=1) >= least_ns
    )
    return late


def held(wait: Floats, steps: int) -> Held:
    """Return what each row of a matrix of waits costs the others.

    Args:
        wait: Waits of units in collectives, shape ``(units, c)``, NaN = was not there.
        steps: Number of steps that they belong to.
    """
    units = len(wait)
    filled = np.where(np.isnan(wait), np.inf, wait)
    order = np.partition(filled, 1, axis=0)[:2] if units > 1 else np.vstack([filled, filled])
    last = filled.argmin(axis=0)
    there = (~np.isnan(wait)).sum(axis=0)
    others = np.nansum(wait, axis=0) / np.maximum(there - 1, 1)
    lead = np.where(np.isfinite(order[1]), order[1], 0.0)
    return Held(
        np.bincount(last, minlength=units),
        np.bincount(last, weights=others, minlength=units) / steps,
        np.bincount(last, weights=lead, minlength=units) / steps,
        np.nansum(lateness(wait), axis=1) / steps,
        np.nansum(wait, axis=1) / steps,
    )


def wins_as_median(wait: Floats, which: npt.NDArray[np.bool_], steps: int) -> float:
    """Return what a job wins a step, ns, where some ranks come no later to any collective than the median of the rest.

    Args:
        wait: Waits of ranks in collectives, shape ``(r, c)``, NaN = was not there.
        which: Those ranks, shape ``(r,)``.
        steps: Number of steps.
    """
    if not wait.size or which.all() or not which.any():
        return 0.0
    late = np.nanmax(wait, axis=0) - wait
    others = np.nanmedian(late[~which], axis=0)
    sooner = late.copy()
    sooner[which] = np.fmin(late[which], np.where(np.isnan(others), late[which], others))
    return float((np.nanmax(late, axis=0) - np.nanmax(sooner, axis=0)).sum()) / steps


def by_group(wait: Floats, group: Ints) -> Floats:
    """Return the waits of groups of ranks: a host comes when the last of its ranks does, shape ``(groups, c)``."""
    filled = np.where(np.isnan(wait), np.inf, wait)
    found = np.stack([filled[group == index].min(axis=0) for index in range(int(group.max()) + 1)])
    found[np.isinf(found)] = np.nan
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """How the clocks of ranks differ, by the ends of collectives.

    Attributes:
        offset: Clock of each rank less the median rank's, ns, shape ``(r,)``; NaN = its trace does not say when it was
            recorded.
        spread: Median absolute deviation of that over the collectives, ns.
    """

    offset: Floats
    spread: Floats


def clocks(found: Meetings, origin_unix_ns: Floats) -> Clocks:
    """Estimate how the clocks of ranks differ.

    Args:
        found: Collectives.
        origin_unix_ns: Unix time of each trace's origin less that of any one, ns, shape ``(r,)``; NaN = unknown.
    """
    ends = found.start + found.dur + origin_unix_ns[:, None]
    if not ends.size or np.isnan(ends).all():
        nothing = np.full(len(found.files), np.nan)
        return Clocks(nothing, nothing)
    known = ~np.isnan(ends).all(axis=1)
    offset, spread = np.full(len(ends), np.nan), np.full(len(ends), np.nan)
    late = ends[known] - np.nanmedian(ends[known], axis=0)
    offset[known] = np.nanmedian(late, axis=1)
    spread[known] = np.nanmedian(np.abs(late - offset[known][:, None]), axis=1)
    return Clocks(offset, spread)


class Job:
    """The steps of a job as all ranks together take them: from one collective to the next the slowest rank counts.

    Between the end of a collective, which all share, and the start of the next one, each rank has work of its own. The
    job takes the longest of those, then the collective itself (the time of the rank that came last).
    """

    def __init__(self, found: Meetings) -> None:
        self.found = found
        ends = found.start + found.dur
        own = np.full(found.dur.shape, np.nan)
        if len(found):
            own[:, 1:] = found.start[:, 1:] - ends[:, :-1]
        #: Columns that follow the one before without a step between them that was not kept.
        self._joined = np.r_[False, np.diff(found.step) <= 1] if len(found) else np.empty(0, bool)
        #: Own work of each rank before each collective, ns; 0 where it is under way at the same time as the one before.
        self.own: Floats = np.where(self._joined, np.maximum(own, 0.0), 0.0)
        self.captured_ns = (
            float(np.nanmedian(np.nansum(np.where(self._joined, own + found.dur, 0.0), axis=1)))
            if len(found)
            else 0.0
        )
        self.base = np.where(self._joined, np.nanmin(found.dur, axis=0), 0.0) if len(found) else np.empty(0)
        self.steps = max(float(len(found.steps)), 1.0)

    def takes_ns(self, own: Floats | None = None) -> float:
        """Return what the matched stretch takes, ns.

        Args:
            own: Own work of each rank before each collective; None = unchanged.
        """
        if not len(self.found):
            return 0.0
        work = self.own if own is None else own
        return float((np.nanmax(np.where(np.isnan(work), -np.inf, work), axis=0) + self.base).sum())

    @property
    def fits(self) -> bool:
        """Whether the job rebuilt unchanged takes what was captured, within the tolerance."""
        return self.captured_ns > 0 and abs(self.takes_ns() / self.captured_ns - 1) <= TOLERANCE

    def wins_ns(self, less: Floats) -> float:
        """Return what the job wins a step where ranks have so much less work of their own a step.

        Args:
            less: Time that each rank saves a step, ns, shape ``(r,)``; taken from its work in proportion.
        """
        total = np.nansum(self.own, axis=1) / self.steps
        keep = 1 - np.clip(np.divide(less, total, out=np.zeros_like(total), where=total > 0), 0, 1)
        return (self.takes_ns() - self.takes_ns(self.own * keep[:, None])) / self.steps
