"""What formats share to build the model's table of events: its order, valid times, and columns of codes.

Times are 64-bit nanoseconds, with room for ends and differences; those outside are dropped after decoding, so that
later code need not check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

# Worker processes need the limit alone, so Polars is imported where it is used.
if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]

#: Limit of starts and lengths, in either direction, and of the length of a trace: 146 years, so that a trace may mix
#: Unix time with times since 0.
LIMIT_NS: Final = 1 << 62
#: In a longer trace, events farther than this from the middle, or longer, are damaged: 36 years.
_FAR_NS: Final = 1 << 60


def far_off(starts: Ints, durs: Ints) -> npt.NDArray[np.bool_] | None:
    """Return which events have implausible times, far from the others; None = none, the usual case."""
    if not len(starts) or int((starts + durs).max()) - int(starts.min()) < LIMIT_NS:
        return None
    middle = int(np.median(starts[durs < _FAR_NS])) if (durs < _FAR_NS).any() else 0
    far: npt.NDArray[np.bool_] = (starts < middle - _FAR_NS) | (starts > middle + _FAR_NS) | (durs >= _FAR_NS)
    return far


def order_of(ts: Ints, dur: Ints, ordinal: npt.NDArray[np.uint32] | None = None) -> Ints:
    """Return the order of the model's table: by start, of equal starts the longer first, then as in the file.

    ``ordinal`` is the position of each event in the file; None = the events are in that order.
    """
    order = np.argsort(ts, kind="stable")  # input is mostly sorted, which this sort exploits
    sorted_ts = ts[order]
    same = np.zeros(len(ts), dtype=bool)
    equal = sorted_ts[1:] == sorted_ts[:-1]
    same[1:] |= equal
    same[:-1] |= equal
    tied = order[same]
    # Positions of ties are contiguous in time, so putting them back in sorted order keeps each group in place.
    keys = (-dur[tied], ts[tied]) if ordinal is None else (ordinal[tied], -dur[tied], ts[tied])
    order[same] = tied[np.lexsort(keys)]
    return order


def in_words(codes: npt.NDArray[Any], kind: pl.Enum) -> pl.Series:
    """Convert codes to an Enum column without creating strings; the Polars 2 API has another name for it."""
    import polars as pl

    series = pl.Series(codes if codes.dtype.kind == "u" else codes.astype(np.uint32))
    to = getattr(series.cat, "to", None)
    words: pl.Series = series.cast(kind) if to is None else to(kind)
    return words


def optional(values: Ints, kind: type[pl.DataType] | None = None) -> pl.Series:
    """Return a column in which negative values are null, of 64-bit integers unless it is to be of another type."""
    import polars as pl

    series = pl.Series(values)
    absent = values < 0
    return (series.set(pl.Series(absent), None) if absent.any() else series).cast(kind or pl.Int64)


def counter_table(rows: list[tuple[int, str, str, float, int | None]]) -> pl.DataFrame:
    """Return rows of time in ns, counter, series, value and track as the model's counters."""
    import polars as pl

    kinds = {"ts": pl.Int64, "name": pl.String, "series": pl.String, "value": pl.Float64, "track": pl.UInt32}
    return pl.DataFrame(rows, schema=kinds, orient="row").sort("ts", maintain_order=True)


def step_markers(name: npt.NDArray[Any], step: Ints, start: Ints, end: Ints) -> pl.DataFrame | None:
    """Return ``step``, ``start`` and ``end`` (ns) of the marks of an XLA profile; None without marks.

    Of several kinds (train, eval), distinguished by ``name``, the most frequent one is used.
    """
    if not len(step):
        return None
    import polars as pl

    kinds, counts = np.unique(name, return_counts=True)
    mine = name == kinds[np.argmax(counts)]
    frame = pl.DataFrame({"step": step[mine], "start": start[mine], "end": end[mine]})
    # One step may be marked on several lines at the same time; a number that recurs later is another step.
    seen_until = pl.col("end").cum_max().shift(1).over("step")
    return frame.sort("start").filter(seen_until.is_null() | (pl.col("start") >= seen_until))
