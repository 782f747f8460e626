"""Lanes that only some traces have: the user's Python functions, counters, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.analyses.shared.frames import is_user
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Trace, Track
from tuiprof.model.units import format_bytes, format_count

Floats = npt.NDArray[np.float64]

#: How many levels of Python calls get a lane.
_LEVELS = 6
#: A function that takes this many steps, or without steps this share of the trace, such as ``main``, says nothing
#: about when.
_MANY_STEPS, _WHOLE = 1.5, 0.9
_MOST_COUNTERS = 4


@dataclass(frozen=True, slots=True)
class Samples:
    """Values over time, each valid until the next.

    Attributes:
        at: Instants in ns, ascending.
        values: What was measured then, same shape.
        is_bytes: Whether they are sizes.
    """

    at: Ints
    values: Floats
    is_bytes: bool

    @property
    def peak(self) -> float:
        """The largest of all; 0 without any."""
        return float(self.values.max(initial=0.0))

    def highest(self, edges: Ints) -> Floats:
        """Return the largest value in each column; before the first sample 0.

        Args:
            edges: Column edges in ns, ascending, shape ``(columns + 1,)``.
        """
        begin = np.searchsorted(self.at, edges[:-1], side="right") - 1  # still valid when the column begins
        end = np.searchsorted(self.at, edges[1:], side="left")
        padded = np.append(self.values, 0.0)
        out = np.where(begin >= 0, padded[begin], 0.0)
        inside = end > begin + 1
        if inside.any():
            pairs = np.stack((begin[inside] + 1, end[inside]), axis=1).ravel()
            out[inside] = np.maximum(out[inside], np.maximum.reduceat(padded, pairs)[::2])
        return out

    def at_instant(self, instant: int) -> float | None:
        """Return the value at an instant; None before the first sample."""
        index = int(np.searchsorted(self.at, instant, side="right")) - 1
        return float(self.values[index]) if index >= 0 else None

    def format(self, value: float) -> str:
        """Return a value as people read it."""
        return format_bytes(value) if self.is_bytes else format_count(value)


def python_levels(trace: Trace, track: Track) -> list[Ints]:
    """Return the calls of Python functions on a thread, one array of rows a level, outermost first.

    Frames of the framework and of the interpreter are omitted if there are others, and so are functions that fill the
    whole trace.
    """
    here = trace.is_category("python_function") & (trace.track_codes == track.index)
    rows: Ints = np.flatnonzero(here)
    if not len(rows):
        return []
    user = np.fromiter((is_user(name) for name in trace.names), dtype=bool, count=len(trace.names))
    mine = rows[user[trace.name_codes[rows]]]
    rows = mine if len(mine) else rows
    low, high = trace.span
    steps = trace.steps
    longest = _MANY_STEPS * int((steps.ends - steps.starts).max()) if len(steps) else _WHOLE * (high - low)
    rows = rows[trace.ends[rows] - trace.starts[rows] < longest]
    levels: list[Ints] = []
    while len(rows) and len(levels) < _LEVELS:
        outer, rows = outermost(trace, rows)
        levels.append(outer)
    return levels


def outermost(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Split rows of one track into those that no earlier one covers, and the rest."""
    if not len(rows):
        return rows, rows
    starts, ends = trace.starts[rows], trace.ends[rows]
    reach = np.maximum.accumulate(ends)
    outer = np.ones(len(rows), dtype=bool)
    outer[1:] = (starts[1:] >= reach[:-1]) | (ends[1:] > reach[:-1])
    return rows[outer], rows[~outer]


def memory_samples(trace: Trace) -> list[tuple[str, Samples]]:
    """Return what each allocator held over time: label and samples, devices before the host."""
    instants = trace.instants
    if instants is None or "total_allocated" not in instants.columns:
        return []
    device = pl.col("device") if "device" in instants.columns else pl.lit(-1, pl.Int64)
    known = instants.filter(pl.col("total_allocated").is_not_null()).with_columns(
        device.fill_null(-1).alias("device")
    )
    found = []
    devices = sorted(known["device"].unique().to_list(), key=lambda d: (d < 0, d))
    several = sum(device >= 0 for device in devices) > 1
    for device in devices:
        frame = known.filter(pl.col("device") == device).sort("ts", maintain_order=True)
        label = "host mem" if device < 0 else f"{device}:memory" if several else "memory"
        found.append((label, _samples(frame["ts"], frame["total_allocated"], is_bytes=True)))
    return found


def counter_samples(trace: Trace) -> list[tuple[str, Samples]]:
    """Return the counters of a trace, those with the most samples first."""
    if trace.counters is None or trace.counters.is_empty():
        return []
    found = []
    for (name, series), frame in trace.counters.group_by("name", "series", maintain_order=True):
        ordered = frame.sort("ts", maintain_order=True)
        label = str(name) if str(series) in ("", "value", str(name)) else f"{name} {series}"
        is_bytes = "bytes" in label.lower() or "memory" in label.lower()
        found.append((label, _samples(ordered["ts"], ordered["value"], is_bytes=is_bytes)))
    return sorted(found, key=lambda item: -len(item[1].at))[:_MOST_COUNTERS]


def _samples(at: pl.Series, values: pl.Series, *, is_bytes: bool) -> Samples:
    return Samples(at.to_numpy().astype(np.int64), values.cast(pl.Float64).to_numpy(), is_bytes)
