"""The table of waits that the sync report is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tuiprof.analyses import _frames, _sites, _starved, _waits
from tuiprof.analyses._codes import places as places_of
from tuiprof.analyses._scope import Scope
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints, complement

_APART = {_waits.COUNTED: "", _waits.BY_PROFILER: "made by the profiler", _waits.AT_EDGE: "cut by the window"}


@dataclass(frozen=True, slots=True)
class WaitTable:
    """Waits with their cost and place.

    Attributes:
        waits: The waits.
        starvation: What they did to the device.
        sites: Their source lines.
        frame: One row a wait, in order of its end.
    """

    waits: _waits.Waits
    starvation: _starved.Starvation
    sites: _sites.Sites
    frame: pl.DataFrame

    @property
    def counted(self) -> pl.DataFrame:
        """The waits that count."""
        return self.frame.filter(pl.col("apart") == "")


def build(trace: Trace, scope: Scope) -> WaitTable:
    """Find the waits of a window and what they cost.

    Args:
        trace: The trace.
        scope: Window and steps.
    """
    waits = _waits.find(trace, scope.window)
    tracks = trace.ints("track")[waits.last]
    counts = waits.apart == _waits.COUNTED
    starvation = _starved.starvation(
        trace, tracks[counts], waits.copy[counts], waits.starts[counts], waits.ends[counts]
    )
    starvation = _spread(starvation, counts, waits)
    sites = _sites.join(trace, waits.last, waits.ancestry.outer_row)
    step_of = trace.steps.step_of[waits.last]
    numbers = np.append(trace.steps.numbers, -1)
    bytes_ = trace.ints("bytes")
    moved = np.where(waits.copy >= 0, bytes_[np.maximum(waits.copy, 0)], -1) if len(trace) else waits.copy
    frame = pl.DataFrame(
        {
            "event": waits.last,
            "start_ns": waits.starts,
            "end_ns": waits.ends,
            "waited_ns": waits.waited,
            "starved_ns": starvation.ns,
            "can_win_ns": _can_win(trace, waits, starvation, counts),
            "kind": _words(waits.kinds, waits.kind),
            "apart": _words(tuple(_APART.values()), waits.apart),
            "step": pl.Series(
                [
                    str(n) if i >= 0 else ""
                    for n, i in zip(numbers[step_of].tolist(), step_of.tolist(), strict=True)
                ],
                dtype=pl.String,
            ),
            "in_step": scope.in_steps(waits.last),
            "bytes": pl.Series(moved).replace(-1, None),
            "waited_for": _names(trace, starvation.waited_for),
            "delayed": _names(trace, starvation.delayed),
            "calls": _calls(trace, waits),
        }
    ).with_columns(pl.col("kind").cast(pl.String), pl.col("apart").cast(pl.String))
    return WaitTable(waits, starvation, sites, frame.hstack(_places(trace, waits, sites)))


def _spread(starvation: _starved.Starvation, counts: _waits.Mask, waits: _waits.Waits) -> _starved.Starvation:
    """Put the starvation of the counted waits at their places among all; the others starve nobody."""
    result = _starved.Starvation(
        np.full(len(waits), -1, dtype=np.int64),
        waits.starts.copy(),
        waits.starts.copy(),
        np.full(len(waits), -1, dtype=np.int64),
        np.full(len(waits), -1, dtype=np.int64),
    )
    for field in ("device", "starts", "ends", "waited_for", "delayed"):
        getattr(result, field)[counts] = getattr(starvation, field)
    return result


def _can_win(trace: Trace, waits: _waits.Waits, starvation: _starved.Starvation, counts: _waits.Mask) -> Ints:
    """Return the smaller of host wait and device idle time until the next wait; 0 where nothing starves."""
    result = np.zeros(len(waits), dtype=np.int64)
    for device in trace.device_indices:
        mine = np.flatnonzero(counts & (starvation.device == device))
        starts, ends = trace.busy(device)
        if not len(mine) or not len(starts):
            continue
        idle = Coverage(*complement(starts, ends, int(starts[0]), int(ends[-1])))
        begins = waits.starts[mine]
        following = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], ends[-1])
        until_next = idle.between(starvation.starts[mine], np.maximum(following, starvation.ends[mine]))
        result[mine] = np.where(starvation.ns[mine] > 0, np.minimum(waits.waited[mine], until_next), 0)
    return result


def _words(words: tuple[str, ...], codes: Ints) -> pl.Series:
    return (
        pl.Series(np.asarray(codes, dtype=np.uint32))
        .cast(pl.UInt32)
        .replace_strict(list(range(len(words))), list(words), return_dtype=pl.String)
    )


def _names(trace: Trace, rows: Ints) -> pl.Series:
    """Return names of events; null where the row is -1."""
    if not len(rows):
        return pl.Series([], dtype=pl.String)
    codes = np.where(rows >= 0, trace.name_codes[np.maximum(rows, 0)], -1) if len(trace) else rows
    found, inverse = places_of(codes)
    words = pl.Series([trace.names[c] if c >= 0 else None for c in found.tolist()], dtype=pl.String)
    return words.gather(inverse)


def _calls(trace: Trace, waits: _waits.Waits) -> pl.Series:
    """Return the calls of each wait: ``cudaMemcpyAsync + cudaStreamSynchronize``."""
    if not len(waits):
        return pl.Series([], dtype=pl.String)
    first, last = trace.name_codes[waits.first], trace.name_codes[waits.last]
    pairs, inverse = _distinct_rows(np.column_stack((np.where(waits.first != waits.last, first, -1), last)))
    words = [f"{trace.names[a]} + {trace.names[b]}" if a >= 0 else trace.names[b] for a, b in pairs.tolist()]
    return pl.Series(words, dtype=pl.String).gather(inverse)


def _places(trace: Trace, waits: _waits.Waits, sites: _sites.Sites) -> pl.DataFrame:
    """Return ``where``, ``found``, ``through``, ``range`` and ``stack`` of each wait."""
    schema = {
        "place": pl.Int64,
        **dict.fromkeys(("where", "found", "through", "range", "stack"), pl.String),
    }
    if not len(waits):
        return pl.DataFrame(schema=schema)
    ancestry, names = waits.ancestry, trace.names
    keys = np.column_stack(
        (
            sites.of_wait,
            ancestry.annotation,
            ancestry.operators,
            ancestry.frames,
            trace.name_codes[waits.last],
        )
    )
    # A few hundred distinct places stand for a million waits.
    distinct, inverse = _distinct_rows(keys)
    operators = ancestry.operators.shape[1]
    rows = []
    places: dict[tuple[str, str, str], int] = {}
    for key in distinct.tolist():
        site, annotation = key[0], key[1]
        chain = [_frames.operator_label(names[c]) for c in key[2 : 2 + operators] if c >= 0]
        frames = [names[c] for c in key[2 + operators : -1] if c >= 0]
        through = " → ".join(reversed(chain))
        range_ = names[annotation] if annotation >= 0 else ""
        stack = sites.stacks[site] if site >= 0 else "\n".join(frames)
        if site >= 0 and sites.labels[site]:
            where, found = sites.labels[site], "line"
        elif frames:
            where, found = _frames.function_label(frames[0]), "function"
        elif range_:
            where, found = range_, "range"
        else:
            where, found = through or names[key[-1]], "operator"
        # Places that read alike are one, whatever differs further out.
        place = places.setdefault((where, through, range_), len(places))
        rows.append((place, where, found, through, range_, stack))
    return pl.DataFrame(rows, schema=schema, orient="row")[inverse]


def _distinct_rows(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of a table and the place of each row among them."""
    # One hash a row instead of a lexical sort of wide rows.
    weights = np.random.default_rng(1).integers(1, 2**62, keys.shape[1], dtype=np.int64) * 2 + 1
    hashed = (keys * weights).sum(axis=1)
    _, first, inverse = np.unique(hashed, return_index=True, return_inverse=True)
    if (keys[first][inverse] != keys).any():  # two rows with one hash: do it the long way
        first_rows, inverse = np.unique(keys, axis=0, return_inverse=True)
        return first_rows, inverse.reshape(-1)
    return keys[first], inverse.reshape(-1)


def group(table: WaitTable, scope: Scope) -> pl.DataFrame:
    """Group the counted waits by place and kind, what starves the device most first.

    Args:
        table: The waits.
        scope: Window and steps.
    """
    steps = scope.step_count or None
    in_step = pl.col("in_step")
    return (
        table.counted.sort("starved_ns", "waited_ns", descending=True)
        .group_by("place", "kind", maintain_order=True)
        .agg(
            *(pl.col(key).first() for key in ("where", "through", "range")),
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(key).sum() for key in ("starved_ns", "waited_ns", "can_win_ns")),
            *(
                (pl.col(key).filter(in_step).sum() / steps).alias(f"{key}_per_step")
                for key in ("starved_ns", "waited_ns", "can_win_ns")
            ),
            (in_step.sum() / steps).alias("per_step"),
            pl.col("bytes").sum(),
            # The most expensive one stands for the group.
            *(pl.col(key).first() for key in ("calls", "found", "stack", "waited_for", "delayed", "event")),
        )
        .sort("starved_ns", "waited_ns", descending=True, maintain_order=True)
    )


def calls(trace: Trace, scope: Scope) -> pl.DataFrame:
    """Count the calls that wait by name, as they stand in the trace.

    Args:
        trace: The trace.
        scope: Window and steps.
    """
    rows, _ = _waits.calls_by_kind(trace)
    rows = rows[trace.in_window(scope.window)[rows]]
    return (
        trace.events[rows]
        .group_by(pl.col("name").cast(pl.String).alias("call"), maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur").sum().alias("total_ns"),
            pl.col("dur").max().alias("longest_ns"),
        )
        .sort("total_ns", "call", descending=[True, False])
    )
