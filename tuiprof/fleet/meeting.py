"""The collectives in which ranks meet: which rank was last, how long others waited, and the steps of the job replayed.

A collective ends on all ranks at about the same time. The rank that spends the least time in it arrived last; the
additional time of the others is waiting. This needs no common clock.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.fleet.summary import Summary
from tuiprof.model.intervals import Floats, Mask

Ints = npt.NDArray[np.int64]

#: Relative tolerance of the unchanged replay of the job against the captured time.
TOLERANCE: Final = 0.02
#: Minimum delay of a late rank, in standard errors over the steps.
OUTLIER: Final = 6.0
#: Minimum share of steps in which it is late.
ALWAYS: Final = 0.9
#: Up to this many ranks, a rank is excluded from the median that it is compared with.
_FEW: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Matched collectives of one process group, in the order of time."""

    group: int  # key of the group; 0 = unknown, all ranks
    files: Ints  # numbers of the files, shape ``(r,)``; rows of the matrices
    step: Ints  # step of each collective, shape ``(c,)``; columns of the matrices
    name: npt.NDArray[np.uint64]  # key of its name, shape ``(c,)``
    #: When each rank entered it, ns since the origin of its trace, shape ``(r, c)``; NaN = absent.
    start: Floats
    dur: Floats  # how long it was in it, ns, shape ``(r, c)``
    gap: Floats  # time before it in which the rank was in no collective, ns, shape ``(r, c)``
    left_out: int  # steps of ranks whose collectives differ from those of most ranks in the same step

    def __len__(self) -> int:
        """Return the number of matched collectives."""
        return len(self.step)

    @property
    def steps(self) -> Ints:
        """Numbers of the steps in which ranks meet, ascending."""
        return np.unique(self.step)

    @property
    def wait(self) -> Floats:
        """Waiting time of each rank in each collective for the last one, ns, shape ``(r, c)``."""
        waits: Floats = self.dur - np.nanmin(self.dur, axis=0)
        return waits

    def per_step(self, values: Floats) -> Floats:
        """Sum a matrix of collectives over each step, shape ``(r, steps)``; NaN = the rank was in none of them."""
        first = np.searchsorted(self.step, self.steps)
        missing = np.minimum.reduceat(np.isnan(values), first, axis=1)
        found: Floats = np.add.reduceat(np.nan_to_num(values), first, axis=1)
        found[missing] = np.nan
        return found


def meetings(summary: Summary) -> tuple[Meetings, ...]:
    """Match the collectives of ranks by process group, step, order and name; the largest group first."""
    found = [
        one
        for (group,), rows in summary.collectives.partition_by("group", as_dict=True).items()
        if len(one := _in_group(group, rows)) and len(one.files) > 1
    ]
    return tuple(sorted(found, key=lambda one: (-len(one.files), one.group)))


def _in_group(group: int, rows: pl.DataFrame) -> Meetings:
    steps = rows.select("file", "step", "sequence").unique()
    counts = (
        steps.group_by("step", "sequence")
        .len()
        .sort("step", "len", "sequence", descending=[False, True, False])
    )
    common = counts.unique("step", keep="first").filter(pl.col("len") > 1)
    together = steps.join(common, on=["step", "sequence"]).select("file", "step")
    rows = rows.join(together, on=["file", "step"])
    # A long trace keeps the collectives of fewer steps than a short one: common ones are compared.
    meant = together.group_by("step").len("meant")
    met = rows.group_by("step", "place").agg(pl.len().alias("here"), pl.col("name").first())
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

    def matrix(key: str) -> Floats:
        values = np.full((len(files), len(columns)), np.nan)
        values[row, column] = rows[key].to_numpy()
        return values

    return Meetings(
        group,
        files.cast(pl.Int64).to_numpy(),
        columns["step"].to_numpy(),
        columns["name"].to_numpy(),
        matrix("start"),
        matrix("dur"),
        matrix("gap"),
        len(steps) - len(together),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Cost of units (ranks or hosts) to the others; arrays of shape ``(units,)``, ns per step."""

    last: Ints  # number of collectives in which the unit was last
    waited: Floats  # waiting time of the others in those, mean over the others
    lead: Floats  # saving of the job if the unit arrived with the second to last
    late: Floats  # delay relative to the median of the others, summed over collectives
    slack: Floats  # its own waiting time: it could be slower by this without delaying others


def lateness(wait: Floats) -> Floats:
    """Return the delay of each unit relative to the median of the others in each collective, ns, shape as given.

    Waits are NaN where a unit is absent; the same below.
    """
    if not wait.size or len(wait) < 2:
        return np.zeros_like(wait)
    median = np.nanmedian if np.isnan(wait).any() else np.median  # the latter is faster
    if len(wait) > _FEW:  # one rank does not move the median
        late: Floats = median(wait, axis=0) - wait
        return late
    with warnings.catch_warnings():  # a collective of two ranks, one of them excluded
        warnings.simplefilter("ignore", RuntimeWarning)
        others = [median(np.delete(wait, row, axis=0), axis=0) for row in range(len(wait))]
    return np.stack(others) - wait


def always_late(per_step: Floats, min_ns: float) -> Mask:
    """Return which units are late by at least ``min_ns`` in nearly all steps, shape ``(units,)``; delays are ns, shape
    ``(units, steps)``.

    A unit's delay is compared with its own variation between steps, not with the variation between units, which is what
    is being measured. The median step counts, since a single delay makes no straggler, and it must be late in nine of
    ten steps, since consecutive steps are similar.
    """
    if not per_step.size:
        return np.zeros(len(per_step), dtype=bool)
    usual = np.nanmedian(per_step, axis=1)
    own = np.nanmedian(np.abs(per_step - usual[:, None]), axis=1)
    error = 1.4826 * float(np.nanmedian(own)) / per_step.shape[1] ** 0.5
    late: Mask = (usual >= max(min_ns, OUTLIER * error)) & (
        np.nanquantile(per_step, 1 - ALWAYS, axis=1) >= min_ns
    )
    return late


def held(wait: Floats, steps: int) -> Held:
    """Return the cost of each row of a matrix of waits, shape ``(units, c)``, to the others; in ``steps`` steps."""
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


def wins_as_median(wait: Floats, which: Mask, steps: int) -> float:
    """Return the saving of a job per step, ns, if the given ranks arrive no later than the median of the rest."""
    if not wait.size or which.all() or not which.any():
        return 0.0
    late = np.nanmax(wait, axis=0) - wait
    others = np.nanmedian(late[~which], axis=0)
    sooner = late.copy()
    sooner[which] = np.fmin(late[which], np.where(np.isnan(others), late[which], others))
    return float((np.nanmax(late, axis=0) - np.nanmax(sooner, axis=0)).sum()) / steps


def by_group(wait: Floats, group: Ints) -> Floats:
    """Return the waits of groups of ranks: a host arrives with the last of its ranks, shape ``(groups, c)``."""
    filled = np.where(np.isnan(wait), np.inf, wait)
    found = np.stack([filled[group == index].min(axis=0) for index in range(int(group.max()) + 1)])
    found[np.isinf(found)] = np.nan
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """Clock offsets of ranks, from the ends of collectives."""

    #: Clock of each rank minus that of the median rank, ns, shape ``(r,)``; NaN = recording time unknown.
    offset: Floats
    spread: Floats  # median absolute deviation of that over the collectives, ns


def clocks(found: Meetings, origin_unix_ns: Floats) -> Clocks:
    """Estimate the clock offsets of ranks.

    ``origin_unix_ns`` is the Unix time of each trace's origin minus a common reference, ns, shape ``(r,)``; NaN =
    unknown.
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
    """The steps of a job, replayed: a collective begins when the last rank of its group arrives.

    Between two collectives, in any group, each rank has its own work. A collective takes as long as on the rank that
    arrived last. ``files`` are the numbers of the files, ascending, which is the order of ranks.
    """

    def __init__(self, groups: Sequence[Meetings], files: Ints) -> None:
        rank, column, start, dur, step, offset = [], [], [], [], [], 0
        for one in groups:
            rows, columns = np.nonzero(~np.isnan(one.start))
            rank.append(np.searchsorted(files, one.files)[rows])
            column.append(columns + offset)
            start.append(one.start[rows, columns])
            dur.append(one.dur[rows, columns])
            step.append(one.step[columns])
            offset += len(one)
        frame = pl.DataFrame(
            {
                key: np.concatenate(parts) if parts else np.empty(0)
                for key, parts in (
                    ("rank", rank),
                    ("column", column),
                    ("start", start),
                    ("dur", dur),
                    ("step", step),
                )
            }
        ).sort("rank", "start", "column")
        own = pl.col("start") - (pl.col("start") + pl.col("dur")).shift().over("rank")
        frame = frame.with_columns(
            own.alias("own"),
            # A collective after a missing step has no predecessor.
            (pl.col("step").diff().over("rank") <= 1).fill_null(value=False).alias("joined"),
        )
        joined = frame["joined"].to_numpy()
        self.files = files
        self._rank = frame["rank"].to_numpy().astype(np.int64)
        self._column = frame["column"].to_numpy().astype(np.int64)
        #: Own work of each rank before each collective, ns; 0 if it overlaps with the previous one.
        self.own: Floats = np.where(joined, np.maximum(frame["own"].fill_null(0.0).to_numpy(), 0.0), 0.0)
        taken = np.where(joined, frame["own"].fill_null(0.0).to_numpy() + frame["dur"].to_numpy(), 0.0)
        self.captured_ns = (
            float(np.median(np.bincount(self._rank, weights=taken, minlength=len(files))))
            if len(frame)
            else 0.0
        )
        base = np.full(offset, np.inf)
        np.minimum.at(base, self._column[joined], frame["dur"].to_numpy()[joined])
        self._base = np.where(np.isfinite(base), base, 0.0)
        self.steps = max(float(len(np.unique(frame["step"].to_numpy()))), 1.0)

    @cached_property
    def _levels(self) -> list[tuple[Ints, Ints, Ints]] | None:
        """Rows of collectives that can be replayed at once, their starts, and their number of rows.

        None = the ranks' orders of collectives contradict one another, because they overlap.
        """
        size = np.bincount(self._column, minlength=len(self._base))
        bounds = np.searchsorted(self._rank, np.arange(len(self.files) + 1))
        at, stop = bounds[:-1].copy(), bounds[1:]
        levels = []
        while (here := np.flatnonzero(at < stop)).size:
            columns = self._column[at[here]]
            ready = np.bincount(columns, minlength=len(size))[columns] == size[columns]
            if not ready.any():
                return None
            order = np.argsort(columns[ready], kind="stable")
            rows = at[here[ready]][order]
            first = np.flatnonzero(np.diff(self._column[rows], prepend=-1))
            levels.append((rows, first, np.diff(first, append=len(rows))))
            at[here[ready]] += 1
        return levels

    def takes_ns(self, own: Floats | None = None) -> float:
        """Return the duration of the matched stretch with another own work of each rank before each collective, ns."""
        work = self.own if own is None else own
        clock = np.zeros(len(self.files))
        for rows, first, counts in self._levels or ():
            ranks = self._rank[rows]
            last = (
                np.maximum.reduceat(clock[ranks] + work[rows], first) + self._base[self._column[rows[first]]]
            )
            clock[ranks] = np.repeat(last, counts)
        return float(clock.max(initial=0.0))

    @cached_property
    def fits(self) -> bool:
        """Whether the unchanged replay matches the capture, within the tolerance."""
        return self.captured_ns > 0 and abs(self.takes_ns() / self.captured_ns - 1) <= TOLERANCE

    def wins_ns(self, less: Floats) -> float:
        """Return the saving of the job per step if each rank works ``less`` ns a step, taken in proportion."""
        total = np.bincount(self._rank, weights=self.own, minlength=len(self.files)) / self.steps
        keep = 1 - np.clip(np.divide(less, total, out=np.zeros_like(total), where=total > 0), 0, 1)
        return (self.takes_ns() - self.takes_ns(self.own * keep[self._rank])) / self.steps

    def wins_as_others_ns(self, which: Mask, *, slowest: bool = False) -> float:
        """Return the saving of the job per step, ns, if the given ranks have no more own work than the others of their
        group.

        The others are their median, or the ``slowest`` of them.
        """
        chosen = which[self._rank]
        others = pl.DataFrame({"column": self._column, "own": self.own}).filter(~chosen).group_by("column")
        typical = others.agg(pl.col("own").max() if slowest else pl.col("own").median())
        limit = np.full(len(self._base), np.inf)
        limit[typical["column"].to_numpy()] = typical["own"].to_numpy()
        sooner = np.where(chosen, np.minimum(self.own, limit[self._column]), self.own)
        return (self.takes_ns() - self.takes_ns(sooner)) / self.steps
