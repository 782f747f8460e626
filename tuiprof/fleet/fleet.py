"""A job as its summary shows it: what several views need, computed once."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.fleet import meeting
from tuiprof.fleet.meeting import Clocks, Floats, Held, Ints, Job, Meetings
from tuiprof.fleet.summary import Summary

#: A rank is listed where it comes later than the median rank by this share of the step, and stands out of the noise.
LISTED_SHARE: Final = 0.005
#: A host is named rather than its ranks where so many of them are late.
HOST_SHARE: Final = 0.75
#: Kernels of a rank are slower where they take this many times the median rank's.
SLOWER: Final = 1.03
#: A straggler loses time at one place of the step where so much of its lateness arises there.
_AT_ONE_PLACE: Final = 0.6
#: A kernel is compared where it takes this share of all kernel time.
_COMPARED_SHARE: Final = 0.002


class Fleet:
    """The ranks of a job together."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.read = summary.files.filter(pl.col("problem") == "")
        self.unread = summary.files.filter(pl.col("problem") != "")

    @cached_property
    def meetings(self) -> Meetings:
        """The collectives in which ranks meet."""
        return meeting.meetings(self.summary)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """Rows of ``files`` of the ranks that meet, in the order of the rows of :attr:`meetings`."""
        order = pl.DataFrame({"file": self.meetings.files}, schema={"file": pl.Int64})
        return order.join(
            self.read.with_columns(pl.col("file").cast(pl.Int64)), on="file", maintain_order="left"
        )

    @property
    def number(self) -> Ints:
        """Rank of each row of :attr:`meetings`."""
        return self.ranks["rank"].to_numpy()

    @cached_property
    def step_ns(self) -> float | None:
        """Median step of the median rank; None = no rank marks steps."""
        found = self.read["step_ns"].median()
        return float(found) if isinstance(found, (int, float)) else None

    @cached_property
    def held(self) -> Held:
        """What each rank costs the others."""
        return meeting.held(self.meetings.wait, len(self.meetings.steps))

    @cached_property
    def hosts(self) -> list[str]:
        """Hosts of the ranks that meet, by name; empty = the traces do not say."""
        return sorted({host for host in self.ranks["host"].to_list() if host})

    @cached_property
    def host_of(self) -> Ints:
        """Index into :attr:`hosts` of each row of :attr:`meetings`; -1 = not known."""
        index = {host: number for number, host in enumerate(self.hosts)}
        return np.array([index.get(host, -1) for host in self.ranks["host"].to_list()], dtype=np.int64)

    @cached_property
    def clocks(self) -> Clocks:
        """How the ranks' clocks differ; only where devices run the collectives: host threads end them at will."""
        origin = self.ranks["origin_unix_ns"]
        least = origin.min() or 0
        since = (origin - least).cast(pl.Float64).fill_null(np.nan).to_numpy()
        since = np.where(self.ranks["on_device"].to_numpy(), since, np.nan)
        with warnings.catch_warnings():  # a column of which nothing is known has no median
            warnings.simplefilter("ignore", RuntimeWarning)
            return meeting.clocks(self.meetings, since)

    @cached_property
    def late(self) -> npt.NDArray[np.bool_]:
        """Which ranks come clearly later than the median rank, shape ``(r,)``."""
        if not self.step_ns:
            return np.zeros(len(self.meetings.files), dtype=bool)
        return meeting.always_late(self.late_per_step, LISTED_SHARE * self.step_ns)

    @cached_property
    def own_ns(self) -> Floats:
        """What a step of each rank would take if it never waited for others, ns, shape ``(r,)``; 0 = not known."""
        own: Floats = (
            (self.ranks["own_share"] * self.ranks["step_ns"]).cast(pl.Float64).fill_null(0.0).to_numpy()
        )
        return own

    @cached_property
    def alone_ns(self) -> Floats:
        """What the job wins a step if one rank alone came when the second to last does, ns, shape ``(r,)``."""
        own = self.own_ns
        second, first = np.partition(own, -2)[-2:] if len(own) > 1 else (0.0, 0.0)
        most = np.where(np.arange(len(own)) == own.argmax(), second, first)
        alone: Floats = np.clip((self.step_ns or 0.0) - most, 0.0, self.held.lead)
        return alone

    def wins_ns(self, which: npt.NDArray[np.bool_]) -> float:
        """Return what the job wins a step if some ranks came when the others do, ns.

        A rank that waits runs ahead, so that its waits are longer than what it would save: no rank gets faster than it
        is by itself.

        Args:
            which: Those ranks, shape ``(r,)``.
        """
        sooner = meeting.wins_as_median(self.meetings.wait, which, len(self.meetings.steps))
        slowest = float(self.own_ns[~which].max(initial=0.0))
        return max(min(sooner, (self.step_ns or 0.0) - slowest), 0.0)

    @cached_property
    def late_hosts(self) -> list[int]:
        """Indices of hosts of which most ranks are late, so that the host is the cause rather than a rank."""
        found = []
        for index in range(len(self.hosts)):
            own = self.host_of == index
            if own.sum() > 1 and self.late[own].mean() >= HOST_SHARE and len(self.hosts) > 1:
                found.append(index)
        return found

    @cached_property
    def late_per_step(self) -> Floats:
        """How much later than the median of the others each comes, added over a step, shape ``(r, steps)``."""
        wait = self.meetings.wait
        return self.meetings.per_step(meeting.lateness(wait)) if wait.size else wait

    @cached_property
    def job(self) -> Job:
        """The job's steps, rebuilt from the collectives."""
        return Job(self.meetings)

    @cached_property
    def kernel_factor(self) -> pl.DataFrame:
        """How much longer kernels take on a rank than on the median rank: ``file``, ``name``, ``factor``, ``total_ns``.

        Kernels are compared by the median of their calls.
        """
        kernels = self.summary.kernels.join(
            self.read.select("file", "device"), on="file"
        )  # another model of device has other kernels, and other times
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
        """Of each rank how much longer its kernels take: ``file``, ``factor`` (weighted median), ``slower`` (share).

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
        """What sets a rank apart, by its rank: more syncs, slower kernels, more launches, else where it loses time."""
        from tuiprof.fleet.differences import differing

        found: dict[int, list[str]] = {}
        for one in differing(self.read):
            found.setdefault(one.rank, []).append(one.words)
        speed = self.speed.join(self.read.select("file", "rank"), on="file")
        for rank, factor in speed.filter(pl.col("factor") >= SLOWER).select("rank", "factor").iter_rows():
            found.setdefault(rank, []).append(f"kernels {factor:.2f}×")
        for rank, words in self._places.items():
            found.setdefault(rank, [words])
        return {rank: ", ".join(words) for rank, words in found.items()}

    @property
    def _places(self) -> dict[int, str]:
        """Where in the step stragglers lose most, by rank: ``before collective 7 of 7``."""
        wait, step = self.meetings.wait, self.meetings.step
        late = np.nan_to_num(meeting.lateness(wait))
        place = np.arange(len(step)) - np.searchsorted(step, step)
        found = {}
        for row in np.flatnonzero(self.late).tolist():
            each = np.bincount(place, weights=late[row])
            most = int(each.argmax())
            if each[most] >= _AT_ONE_PLACE * each.sum():
                found[int(self.number[row])] = f"before collective {most + 1} of {len(each)}"
        return found

    def name(self, key: int) -> str:
        """Return the text of a name."""
        from tuiprof.analyses.shared.kernel_names import short_name

        return short_name(self._names.get(key, "?"))

    @cached_property
    def _names(self) -> dict[int, str]:
        return dict(self.summary.names.iter_rows())
