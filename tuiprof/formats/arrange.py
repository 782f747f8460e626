"""Helpers for formats to build the model's event table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]


def order_of(ts: Ints, dur: Ints) -> Ints:
    """Return the order of the model's table: by start, of equal starts the longer first."""
    order = np.argsort(ts, kind="stable")  # input is mostly sorted, which this sort exploits
    sorted_ts = ts[order]
    same = np.zeros(len(ts), dtype=bool)
    equal = sorted_ts[1:] == sorted_ts[:-1]
    same[1:] |= equal
    same[:-1] |= equal
    tied = order[same]
    # Positions of ties are contiguous in time, so putting them back in sorted order keeps each group in place.
    order[same] = tied[np.lexsort((-dur[tied], ts[tied]))]
    return order


def in_words(codes: npt.NDArray[Any], kind: pl.Enum) -> pl.Series:
    """Convert codes to an Enum column without creating strings; the Polars 2 API has another name for it."""
    series = pl.Series(codes.astype(np.uint32, copy=False))
    to = getattr(series.cat, "to", None)
    words: pl.Series = series.cast(kind) if to is None else to(kind)
    return words


def optional(values: Ints, kind: type[pl.DataType] = pl.Int64) -> pl.Series:
    """Return a column in which negative values are null."""
    series = pl.Series(values)
    absent = values < 0
    return (series.set(pl.Series(absent), None) if absent.any() else series).cast(kind)


def step_markers(name: npt.NDArray[Any], step: Ints, start: Ints, end: Ints) -> pl.DataFrame | None:
    """Return ``step``, ``start`` and ``end`` (ns) of the marks of an XLA profile; None without marks.

    Of several kinds (train, eval), distinguished by ``name``, the most frequent one is used.
    """
    if not len(step):
        return None
    kinds, counts = np.unique(name, return_counts=True)
    mine = name == kinds[np.argmax(counts)]
    frame = pl.DataFrame({"step": step[mine], "start": start[mine], "end": end[mine]})
    # One step may be marked on several lines at the same time; a number that recurs later is another step.
    seen_until = pl.col("end").cum_max().shift(1).over("step")
    return frame.sort("start").filter(seen_until.is_null() | (pl.col("start") >= seen_until))
