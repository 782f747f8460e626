"""From stretches of events of several tables to one table of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats._arrange import in_words, optional, order_of
from tuiprof.formats.neuron.tables import Coded
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
        track: What tells tracks apart.
        device: Device; -1 = host.
        correlation: Correlation; -1 = none.
        bytes: Bytes moved; -1 = unknown.
    """

    table: str
    start: Ints
    dur: Ints
    name: Coded
    category: Coded
    track: Coded
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
    name = _chain([stretch.name for stretch in stretches])
    category = _chain([stretch.category for stretch in stretches])
    track = _chain([stretch.track for stretch in stretches])
    start = np.concatenate([stretch.start for stretch in stretches])
    dur = np.concatenate([stretch.dur for stretch in stretches])
    kept = np.flatnonzero(dur >= 0)
    order = kept[order_of(start[kept], dur[kept])]
    device = np.concatenate([stretch.device for stretch in stretches])[order]
    lane = track.codes[order]
    number = {word: code for code, word in enumerate(CATEGORY_TYPE.categories.to_list())}
    kinds = np.array([number[word] for word in category.words], dtype=np.uint32)
    frame = pl.DataFrame(
        {
            "ts": start[order],
            "dur": dur[order],
            "name": in_words(name.codes[order], pl.Enum(name.words)),
            "category": in_words(kinds[category.codes[order]], CATEGORY_TYPE),
            "track": lane.astype(np.uint32),
            "device": optional(device, pl.Int16),
            "stream": optional(np.where(device < 0, -1, lane)),
            "correlation": optional(np.concatenate([stretch.correlation for stretch in stretches])[order]),
            "external_id": pl.Series([None], dtype=pl.Int64).new_from_index(0, len(order)),
            "bytes": optional(np.concatenate([stretch.bytes for stretch in stretches])[order]),
            "ordinal": order.astype(np.uint32),
        }
    )
    return frame, track.words, places, first - len(kept)


def _chain(columns: Sequence[Coded]) -> Coded:
    if len(columns) == 1:
        return columns[0]
    texts = [word for column in columns for word in column.words]
    base = np.cumsum([0, *(len(column.words) for column in columns[:-1])])
    codes = np.concatenate([column.codes + at for column, at in zip(columns, base.tolist(), strict=True)])
    return Coded.of(texts, codes)


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
