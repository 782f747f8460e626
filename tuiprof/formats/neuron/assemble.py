"""From stretches of events of several tables to one table of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats.event_table import far_off, in_words, optional, order_of
from tuiprof.formats.neuron.tables import Coded
from tuiprof.model import Track
from tuiprof.model.schema import CATEGORY_TYPE

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Stretch:
    """Events of one table."""

    table: str  # name of the table
    start: Ints  # starts, ns
    dur: Ints  # lengths, ns
    name: Coded  # names
    category: Coded  # categories
    track: Coded  # what tells tracks apart
    device: Ints | int  # device of each, or of all; -1 = host
    correlation: Ints | int  # correlation of each, or of all; -1 = none
    bytes: Ints | int  # bytes moved by each, or by all; -1 = unknown


@dataclass(frozen=True, slots=True)
class Joined:
    """All events of a profile."""

    events: pl.DataFrame  # the model's table
    tracks: list[str]  # the distinct tracks, in order of their index
    ordinals: list[tuple[str, int, int]]  # ordinals of each stretch: table, first, count
    lost: int = 0  # number of events whose times cannot be true; they are left out
    origin: int = 0  # what was subtracted from all times, ns


def join(stretches: Sequence[Stretch], *, from_first: bool) -> Joined:
    """Make the event table."""
    ordinals, first = [], 0
    for stretch in stretches:
        ordinals.append((stretch.table, first, len(stretch.start)))
        first += len(stretch.start)
    if not first:
        return Joined(empty(), [], ordinals)
    name = _chain([stretch.name for stretch in stretches])
    category = _chain([stretch.category for stretch in stretches])
    track = _chain([stretch.track for stretch in stretches])
    start = np.concatenate([stretch.start for stretch in stretches])
    dur = np.concatenate([stretch.dur for stretch in stretches])
    order = _order(start, dur)
    kept = start if order is None else start[order]
    origin = int(kept[0]) if from_first and len(kept) else 0
    device, correlation, bytes_ = (_together(stretches, key) for key in ("device", "correlation", "bytes"))
    number = {word: code for code, word in enumerate(CATEGORY_TYPE.categories.to_list())}
    kinds = np.array([number[word] for word in category.words], dtype=np.uint8)
    lane = track.codes.astype(np.int64)
    stream = lane if isinstance(device, int) and device >= 0 else np.where(np.asarray(device) < 0, -1, lane)
    columns: dict[str, npt.NDArray[Any] | int] = {
        "dur": dur,
        "name": name.codes,
        "category": kinds[category.codes],
        "track": track.codes,
        "device": device,
        "stream": stream,
        "correlation": correlation,
        "external_id": -1,
        "sequence": -1,
        "bytes": bytes_,
    }
    if order is not None:
        columns = {key: value if isinstance(value, int) else value[order] for key, value in columns.items()}
    count = len(kept)
    ordinal = np.arange(count, dtype=np.uint32) if order is None else order.astype(np.uint32)
    types: dict[str, Any] = {"name": pl.Enum(name.words), "category": CATEGORY_TYPE, "device": pl.Int16}
    series = {key: _series(value, count, types.get(key, pl.Int64)) for key, value in columns.items()}
    series["track"] = series["track"].cast(pl.UInt32)
    events = pl.DataFrame({"ts": kept - origin, **series, "ordinal": ordinal})
    return Joined(events, track.words, ordinals, first - count, origin)


def _order(start: Ints, dur: Ints) -> Ints | None:
    """Return the rows of the table in order, without those whose times cannot be true; None = as they are."""
    backwards, far = dur < 0, far_off(start, np.maximum(dur, 0))
    if far is None and not backwards.any() and (start[1:] > start[:-1]).all():
        return None
    kept = np.flatnonzero(~(backwards if far is None else backwards | far))
    return kept[order_of(start[kept], dur[kept])]


def _together(stretches: Sequence[Stretch], key: str) -> Ints | int:
    """Return a column of all events; a number when it is the same for all."""
    values = [getattr(stretch, key) for stretch in stretches]
    if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
        return int(values[0])
    return np.concatenate(
        [
            np.full(len(stretch.start), value, dtype=np.int64) if isinstance(value, int) else value
            for stretch, value in zip(stretches, values, strict=True)
        ]
    )


def _series(values: npt.NDArray[Any] | int, count: int, kind: Any) -> pl.Series:
    """Return a column of the table; a negative number is null."""
    if isinstance(values, int):
        return pl.Series([None if values < 0 else values], dtype=kind).new_from_index(0, count)
    if isinstance(kind, pl.Enum):
        return in_words(values, kind)
    return optional(values, kind)


def _chain(columns: Sequence[Coded]) -> Coded:
    if len(columns) == 1:
        return columns[0]
    texts = [word for column in columns for word in column.words]
    base = np.cumsum([0, *(len(column.words) for column in columns[:-1])]).astype(np.uint32)
    codes = np.concatenate([column.codes + at for column, at in zip(columns, base, strict=True)])
    return Coded.of(texts, codes)


def empty() -> pl.DataFrame:
    """Return an event table without events."""
    kinds: dict[str, Any] = {
        "ts": pl.Int64, "dur": pl.Int64, "name": pl.Enum([""]), "category": CATEGORY_TYPE, "track": pl.UInt32,
        "device": pl.Int16, "stream": pl.Int64, "correlation": pl.Int64, "external_id": pl.Int64,
        "sequence": pl.Int64, "bytes": pl.Int64, "ordinal": pl.UInt32,
    }  # fmt: skip
    return pl.DataFrame(schema=kinds)


def track_index(tracks: tuple[Track, ...], pid: str) -> int:
    """Return the index of the first track of a process; 0 without any."""
    return next((track.index for track in tracks if track.pid == pid), 0)
