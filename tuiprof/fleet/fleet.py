"""A job, from its summary: data for several views, computed once, and ranks that differ from the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared.collectives import SAME_LATENESS, chained, own_lateness
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.fleet import meeting
from tuiprof.fleet.meeting import Clocks, Held, Ints, Job, Meetings
from tuiprof.fleet.summary import Summary
from tuiprof.model.intervals import Floats, Mask
from tuiprof.model.report import Kind
from tuiprof.model.units import format_bytes, plural

#: A rank is listed if it is later than the median rank by this share of the step, and by more than the noise.
LISTED_SHARE: Final = 0.005
#: Share of late ranks from which their host is named instead.
HOST_SHARE: Final = 0.75
#: Kernels of a rank are slower if they take this many times as long as on the median rank.
SLOWER: Final = 1.03
#: A straggler loses time at one point of the step if this share of its delay occurs there.
_AT_ONE_PLACE: Final = 0.6
#: Kernels with at least this share of the kernel time are compared.
_COMPARED_SHARE: Final = 0.002
#: Maximum number of stragglers to replay individually.
_REPLAYED: Final = 32


class Fleet:
    """The ranks of a job together."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.read = summary.files.filter(pl.col("problem") == "")
        self.unread = summary.files.filter(pl.col("problem") != "")

    @cached_property
    def groups(self) -> tuple[Meetings, ...]:
        """The collectives in which ranks meet, by process group, the largest group first."""
        return meeting.meetings(self.summary)

    @cached_property
    def files(self) -> Ints:
        """Numbers of the files of the ranks that meet others, ascending, shape ``(r,)``."""
        found = [one.files for one in self.groups]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    @cached_property
    def steps(self) -> Ints:
        """Numbers of the steps in which ranks meet, ascending."""
        found = [one.steps for one in self.groups]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """Rows of ``files`` of the ranks that meet, in the order of :attr:`files`."""
        order = pl.DataFrame({"file": self.files}, schema={"file": pl.Int64})
        return order.join(
            self.read.with_columns(pl.col("file").cast(pl.Int64)), on="file", maintain_order="left"
        )

    @property
    def grouped(self) -> bool:
        """Whether the traces have the process groups of collectives."""
        return any(one.group for one in self.groups)

    def members(self, group: Meetings) -> Ints:
        """Return the indices into :attr:`files` of the rows of a group."""
        return np.searchsorted(self.files, group.files)

    def label(self, group: Meetings) -> str:
        """Return the name of a group for a sentence; empty if unknown, or if it is the group of all ranks."""
        return self._names.get(group.group, "")

    @property
    def number(self) -> Ints:
        """Rank of each of :attr:`files`."""
        return self.ranks["rank"].to_numpy()

    @cached_property
    def step_ns(self) -> float | None:
        """Median step of the median rank; None = no rank marks steps."""
        found = self.read["step_ns"].median()
        return float(found) if isinstance(found, (int, float)) else None

    @cached_property
    def _wait_per_step(self) -> Floats:
        """Waiting time of each rank per step, in all its groups, ns, shape ``(r, steps)``; NaN = no collective."""
        total = np.full((len(self.files), len(self.steps)), np.nan)
        for one in self.groups:
            at = np.ix_(self.members(one), np.searchsorted(self.steps, one.steps))
            more = one.per_step(one.wait)
            total[at] = np.where(np.isnan(more), total[at], np.nan_to_num(total[at]) + more)
        return total

    @cached_property
    def _late_in(self) -> list[tuple[Floats, Floats]]:
        """Delay of the members of each group relative to the others in each step: in total, and originating in the
        group.

        A rank that waited in one group arrives late at the next; that delay does not originate there.
        """
        found = []
        for one in self.groups:
            late = one.per_step(meeting.lateness(one.wait))
            own = late
            if len(self.groups) > 1:
                at = np.ix_(self.members(one), np.searchsorted(self.steps, one.steps))
                own = own_lateness(late, meeting.lateness(self._wait_per_step[at]))
            found.append((late, own))
        return found

    @cached_property
    def home(self) -> Ints:
        """Index into :attr:`groups` of the group that each rank makes wait, shape ``(r,)``.

        This is the group in which its own delay is largest; if several are equal, the one before whose collectives it
        takes longer than the other members.
        """
        if len(self.groups) < 2:
            return np.zeros(len(self.files), dtype=np.int64)
        late, longer = (np.full((len(self.groups), len(self.files)), -np.inf) for _ in range(2))
        for index, (one, (_, own)) in enumerate(zip(self.groups, self._late_in, strict=True)):
            late[index, self.members(one)] = np.nanmedian(own, axis=1)
            gap = one.per_step(one.gap)
            longer[index, self.members(one)] = np.nanmedian(-meeting.lateness(gap), axis=1)
        most = late.max(axis=0)
        near = late >= np.where(most > 0, SAME_LATENESS * most, most)
        chosen: Ints = np.where(near, longer, -np.inf).argmax(axis=0)
        return chosen

    @cached_property
    def held(self) -> Held:
        """Cost of each rank to the others, in the group that it delays; waits and counts cover all its groups."""
        each = [meeting.held(one.wait, len(one.steps)) for one in self.groups]
        if len(each) == 1:
            return each[0]
        nothing = np.zeros(len(self.files))
        found = Held(nothing.astype(np.int64), nothing, nothing.copy(), nothing.copy(), nothing.copy())
        for index, (one, cost, (late, own)) in enumerate(zip(self.groups, each, self._late_in, strict=True)):
            rows = self.members(one)
            found.last[rows] += cost.last
            found.slack[rows] += cost.slack
            caught = np.nanmean(late - own, axis=1)
            here = self.home[rows] == index
            found.waited[rows[here]] = np.maximum(cost.waited - caught, 0.0)[here]
            found.lead[rows[here]] = np.maximum(cost.lead - caught, 0.0)[here]
            found.late[rows[here]] = np.nanmean(own, axis=1)[here]
        return found

    @cached_property
    def hosts(self) -> list[str]:
        """Hosts of the ranks that meet, by name; empty = unknown."""
        return sorted({host for host in self.ranks["host"].to_list() if host})

    @cached_property
    def host_of(self) -> Ints:
        """Index into :attr:`hosts` of each of :attr:`files`; -1 = not known."""
        index = {host: number for number, host in enumerate(self.hosts)}
        return np.array([index.get(host, -1) for host in self.ranks["host"].to_list()], dtype=np.int64)

    @cached_property
    def held_by_host(self) -> Held:
        """Cost of each of :attr:`hosts` to the others, in the multi-host group that waits most for it.

        A host arrives at a collective with the last of its ranks.
        """
        none = np.full(len(self.hosts), -np.inf)
        found = Held(np.zeros(len(none), np.int64), none, none.copy(), none.copy(), none.copy())
        for one in self.groups:
            host = self.host_of[self.members(one)]
            known, own = np.unique(host[host >= 0], return_inverse=True)
            if len(known) < 2:
                continue
            cost = meeting.held(meeting.by_group(one.wait[host >= 0], own), len(one.steps))
            for name in ("waited", "lead", "late", "slack"):
                most = getattr(found, name)
                most[known] = np.maximum(most[known], getattr(cost, name))
            found.last[known] += cost.last
        return found

    @cached_property
    def clocks(self) -> Clocks:
        """Clock offsets of the ranks; only if devices run the collectives, as host threads end them at any time."""
        origin = self.ranks["origin_unix_ns"]
        least = origin.min() or 0
        since = (origin - least).cast(pl.Float64).fill_null(np.nan).to_numpy()
        since = np.where(self.ranks["on_device"].to_numpy(), since, np.nan)
        with warnings.catch_warnings():  # an all-NaN column has no median
            warnings.simplefilter("ignore", RuntimeWarning)
            each = [meeting.clocks(one, since[self.members(one)]) for one in self.groups]
            if len(each) == 1:
                return each[0]
            members = [self.members(one) for one in self.groups]
            offset = chained(members, [one.offset for one in each], len(self.files))
            spread = np.full(len(self.files), np.nan)
            for rows, one in zip(members, each, strict=True):
                spread[rows] = np.fmax(spread[rows], one.spread)
            return Clocks(offset - np.nanmedian(offset), spread)

    @cached_property
    def late(self) -> Mask:
        """Which ranks are clearly later than the median of the others in their group, shape ``(r,)``."""
        if not self.step_ns:
            return np.zeros(len(self.files), dtype=bool)
        return meeting.always_late(self.late_per_step, LISTED_SHARE * self.step_ns)

    @cached_property
    def own_ns(self) -> Floats:
        """Step time of each rank without waiting for others, ns, shape ``(r,)``; 0 = unknown."""
        own: Floats = (
            (self.ranks["own_share"] * self.ranks["step_ns"]).cast(pl.Float64).fill_null(0.0).to_numpy()
        )
        return own

    @cached_property
    def alone_ns(self) -> Floats:
        """Saving of the job per step if one rank arrived together with the second to last, ns, shape ``(r,)``.

        NaN = unknown: with several groups it is replayed, for stragglers only, if the replay matches.
        """
        own = self.own_ns
        second, first = np.partition(own, -2)[-2:] if len(own) > 1 else (0.0, 0.0)
        most = np.where(np.arange(len(own)) == own.argmax(), second, first)
        lead = self.held.lead
        if len(self.groups) > 1:
            lead = np.full(len(own), np.nan)
            for row in np.flatnonzero(self.late)[:_REPLAYED].tolist() if self.job.fits else ():
                lead[row] = self.job.wins_as_others_ns(np.arange(len(own)) == row, slowest=True)
        alone: Floats = np.clip((self.step_ns or 0.0) - most, 0.0, lead)
        return alone

    def wins_ns(self, which: Mask) -> float | None:
        """Return the saving of the job per step if the given ranks arrived with the others of their groups, ns.

        The host of a waiting rank runs ahead, so its waits are longer than the saving: no rank gets faster than without
        waits. None = ranks meet in several groups, and the replayed job does not match the capture.
        """
        if len(self.groups) == 1:
            sooner = meeting.wins_as_median(self.groups[0].wait, which, len(self.steps))
        elif self.job.fits:
            sooner = self.job.wins_as_others_ns(which)
        else:
            return None
        slowest = float(self.own_ns[~which].max(initial=0.0))
        return max(min(sooner, (self.step_ns or 0.0) - slowest), 0.0)

    @cached_property
    def late_hosts(self) -> list[int]:
        """Indices of hosts with mostly late ranks, so that the host is the cause rather than a rank."""
        found = []
        for index in range(len(self.hosts)):
            own = self.host_of == index
            if own.sum() > 1 and self.late[own].mean() >= HOST_SHARE and len(self.hosts) > 1:
                found.append(index)
        return found

    @cached_property
    def late_per_step(self) -> Floats:
        """Delay of each rank relative to the median of the others in its group, shape ``(r, steps)``."""
        found = np.full((len(self.files), len(self.steps)), np.nan)
        for index, (one, (_, own)) in enumerate(zip(self.groups, self._late_in, strict=True)):
            rows = self.members(one)
            here = self.home[rows] == index
            found[np.ix_(rows[here], np.searchsorted(self.steps, one.steps))] = own[here]
        return found

    @cached_property
    def job(self) -> Job:
        """The job's steps, rebuilt from the collectives."""
        return Job(self.groups, self.files)

    @cached_property
    def kernel_factor(self) -> pl.DataFrame:
        """How much longer kernels take on a rank than on the median rank: ``file``, ``name``, ``factor``, ``total_ns``.

        Kernels are compared by the median of their calls.
        """
        # Another device model has other kernels and times.
        kernels = self.summary.kernels.join(self.read.select("file", "device"), on="file")
        typical = kernels.group_by("name", "device").agg(
            pl.col("median_ns").median().alias("typical_ns"),
            pl.len().alias("on"),
            pl.col("total_ns").sum().alias("all"),
        )
        enough = typical.filter(
            (pl.col("on") > 2)
            & (pl.col("typical_ns") > 0)
            & (pl.col("all") >= _COMPARED_SHARE * pl.col("all").sum().over("device"))
        )
        return kernels.join(enough, on=["name", "device"]).with_columns(
            (pl.col("median_ns") / pl.col("typical_ns")).alias("factor")
        )

    @cached_property
    def speed(self) -> pl.DataFrame:
        """Kernel slowdown of each rank: ``file``, ``factor`` (weighted median), ``slower`` (share).

        ``slower`` is the share of the kernels' time spent in kernels that are slower than on the median rank.
        """
        sorted_ = self.kernel_factor.sort("file", "factor").with_columns(
            (pl.col("total_ns").cum_sum() / pl.col("total_ns").sum()).over("file").alias("below")
        )
        return sorted_.group_by("file", maintain_order=True).agg(
            pl.col("factor").filter(pl.col("below") >= 0.5).first(),
            (pl.col("total_ns").filter(pl.col("factor") >= SLOWER).sum() / pl.col("total_ns").sum()).alias(
                "slower"
            ),
        )

    @cached_property
    def because(self) -> dict[int, str]:
        """Differences of a rank, by rank: more syncs, slower kernels, more launches, else where it loses time."""
        found: dict[int, list[str]] = {}
        for one in differing(self.read):
            found.setdefault(one.rank, []).append(one.words)
        speed = self.speed.join(self.read.select("file", "rank"), on="file")
        for rank, factor in speed.filter(pl.col("factor") >= SLOWER).select("rank", "factor").iter_rows():
            found.setdefault(rank, []).append(f"kernels {factor:.2f}×")
        for rank, words in self._points.items():
            found.setdefault(rank, [words])
        return {rank: ", ".join(words) for rank, words in found.items()}

    @property
    def _points(self) -> dict[int, str]:
        """Where in the step stragglers lose most, by rank: ``before collective 7 of 7``."""
        found = {}
        for index, one in enumerate(self.groups):
            rows = self.members(one)
            chosen = np.flatnonzero(self.late[rows] & (self.home[rows] == index))
            if not len(chosen):
                continue
            # With several groups, a delay may originate in another one; the rank's own time does not.
            late = np.nan_to_num(
                meeting.lateness(one.wait) if len(self.groups) == 1 else -meeting.lateness(one.gap)
            )
            place = np.arange(len(one)) - np.searchsorted(one.step, one.step)
            for row in chosen.tolist():
                each = np.bincount(place, weights=late[row])
                most = int(each.argmax())
                if each[most] >= _AT_ONE_PLACE * each.sum():
                    of = " of its group" if len(self.groups) > 1 else ""
                    found[int(self.number[rows[row]])] = f"before collective {most + 1} of {len(each)}{of}"
        return found

    def name(self, key: int) -> str:
        """Return the text of a name."""
        return short_name(self._names.get(key, "?"))

    @cached_property
    def _names(self) -> dict[int, str]:
        return dict(self.summary.names.iter_rows())


#: Compared figures: column -> (noun, kind, minimum difference, minimum share of the median).
_COMPARED: Final[dict[str, tuple[str, Kind, float, float]]] = {
    "syncs_per_step": ("sync", "count", 0.5, 0.0),
    "launches_per_step": ("launch", "count", 1.0, 0.005),
    "peak_bytes": ("peak memory", "bytes", 64 << 20, 0.05),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one rank that differs from the others."""

    rank: int
    column: str  # the figure
    noun: str  # what it counts
    kind: Kind  # its unit
    own: float  # its value
    others: float  # the median of all ranks

    @property
    def words(self) -> str:
        """``1 more sync a step``."""
        by = abs(self.own - self.others)
        more = "more" if self.own > self.others else "less" if self.kind == "bytes" else "fewer"
        if self.kind == "bytes":
            return f"{format_bytes(by)} {more} {self.noun}"
        count, _, noun = plural(by, self.noun).rpartition(" ")
        return f"{count} {more} {noun} a step"


def differing(files: pl.DataFrame) -> Iterator[Difference]:
    """Yield the figures in which ranks differ from the median rank, the largest difference of each kind first."""
    for column, (noun, kind, least, share) in _COMPARED.items():
        known = files.filter(pl.col(column).is_not_null())
        if len(known) < 3:
            continue
        median = known[column].median()
        assert isinstance(median, (int, float))
        apart = (pl.col(column) - median).abs()
        rows = known.filter(apart >= max(least, share * abs(median))).sort(apart, descending=True)
        # Where half the ranks differ (stages of a pipeline), no rank differs from the others.
        if len(rows) * 2 > len(known):
            continue
        for rank, own in rows.select("rank", column).iter_rows():
            yield Difference(rank, column, noun, kind, own, float(median))
