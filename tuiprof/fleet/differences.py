"""Ranks that differ from the others: more syncs, launches or memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.model.report import Kind
from tuiprof.model.units import format_bytes

#: Compared figures: column -> (noun, kind, minimum difference, minimum share of the median).
_COMPARED: Final[dict[str, tuple[str, Kind, float, float]]] = {
    "syncs_per_step": ("sync", "count", 0.5, 0.0),
    "launches_per_step": ("launch", "count", 1.0, 0.005),
    "peak_bytes": ("peak memory", "bytes", 64 << 20, 0.05),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one rank that differs from the others.

    Attributes:
        rank: The rank.
        column: The figure.
        noun: What it counts.
        kind: Its unit.
        own: Its value.
        others: The median of all ranks.
    """

    rank: int
    column: str
    noun: str
    kind: Kind
    own: float
    others: float

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
