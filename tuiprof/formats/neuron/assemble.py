"""From stretches of events of several tables to one table of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.model import Track
from tuiprof.model.schema import CATEGORY_TYPE

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Stretch:
    """Events of one table.

    Attributes:
        table: Name of the table.
        start: Starts, ns.
        dur: Lengths, ns.
        name: Names.
        category: Categories.
        track: What tells tracks apart, as text.
        device: Device; -1 = host.
        correlation: Correlation; -1 = none.
        bytes: Bytes moved; -1 = unknown.
    """

    table: str
    start: Ints
    dur: Ints
    name: pl.Series
    category: pl.Series
    track: pl.Series
    device: Ints
    correlation: Ints
    bytes: Ints


def join(stretches: Sequence[Stretch]) -> tuple[pl.DataFrame, list[str], list[tuple[str, int, int]], int]:
    """Make the event table.

    Args:
        stretches: The events.

    Returns:
        The table, the distinct tracks in order of their index, the ordinals of each stretch (table, first, count),
        and the number of events that end before they start (they are left out).
    """
    places, first = [], 0
    for stretch in stretches:
        places.append((stretch.table, first, len(stretch.start)))
        first += len(stretch.start)
    if not first:
        return empty(), [], places, 0
    name = pl.concat([stretch.name.cast(pl.String) for stretch in stretches])
    category = pl.concat([stretch.category.cast(pl.String) for stretch in stretches])
    track = pl.concat([stretch.track.cast(pl.String) for stretch in stretches])
    tracks = track.unique(maintain_order=True).to_list()
    frame = pl.DataFrame(
        {
            "ts": np.concatenate([stretch.start for stretch in stretches]),
            "dur": np.concatenate([stretch.dur for stretch in stretches]),
            "name": name.cast(pl.Enum(name.unique(maintain_order=True))),
            "category": category.cast(CATEGORY_TYPE),
            "track": track.cast(pl.Enum(tracks)).to_physical().cast(pl.UInt32),
            "device": _optional(np.concatenate([stretch.device for stretch in stretches])).cast(pl.Int16),
            "correlation": _optional(np.concatenate([stretch.correlation for stretch in stretches])),
            "bytes": _optional(np.concatenate([stretch.bytes for stretch in stretches])),
            "ordinal": np.arange(first, dtype=np.uint32),
        }
    )
    backwards = int((frame["dur"] < 0).sum())
    if backwards:
        frame = frame.filter(pl.col("dur") >= 0)
    stream = pl.when(pl.col("device").is_null()).then(None).otherwise(pl.col("track").cast(pl.Int64))
    frame = frame.with_columns(stream.alias("stream"), pl.lit(None, dtype=pl.Int64).alias("external_id"))
    order = [
        "ts",
        "dur",
        "name",
        "category",
        "track",
        "device",
        "stream",
        "correlation",
        "external_id",
        "bytes",
        "ordinal",
    ]
    frame = frame.select(order).sort("ts", "dur", descending=[False, True], maintain_order=True)
    return frame, tracks, places, backwards


def empty() -> pl.DataFrame:
    """Return an event table without events."""
    kinds: dict[str, Any] = {
        "ts": pl.Int64, "dur": pl.Int64, "name": pl.Enum([""]), "category": CATEGORY_TYPE, "track": pl.UInt32,
        "device": pl.Int16, "stream": pl.Int64, "correlation": pl.Int64, "external_id": pl.Int64, "bytes": pl.Int64,
        "ordinal": pl.UInt32,
    }  # fmt: skip
    return pl.DataFrame(schema=kinds)


def track_index(tracks: tuple[Track, ...], pid: str) -> int:
    """Return the index of the first track of a process; 0 without any.

    Args:
        tracks: The tracks.
        pid: The process as the tracks call it.
    """
    return next((track.index for track in tracks if track.pid == pid), 0)


def _optional(values: Ints) -> pl.Series:
    series = pl.Series(values)
    return series.set(pl.Series(values < 0), None)
