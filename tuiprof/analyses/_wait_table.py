"""The table of waits that the sync report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tuiprof.analyses import _catch_up, _frames, _sites, _starved, _waits, _xla_waits
from tuiprof.analyses._codes import member
from tuiprof.analyses._codes import places as places_of
from tuiprof.analyses._memo import is_remembered, remember
from tuiprof.analyses._scope import Scope
from tuiprof.analyses._wait_kinds import KINDS, READ
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Ints

_COSTS = "wait costs"
_APART = {_waits.COUNTED: "", _waits.BY_PROFILER: "made by the profiler", _waits.AT_EDGE: "cut by the window"}


@dataclass(frozen=True, slots=True)
class WaitTable:
    """Waits with their cost and place.

    Attributes:
        waits: The waits.
        sites: Their source lines.
        frame: One row a wait, in order of its end.
    """

    waits: _waits.Waits
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
    whole = _waits.find(trace, Window())
    # What a wait costs depends on the waits after it, in the window or not.
    starved, late = costs(trace)
    inside = np.flatnonzero(member(whole.last, waits.last)) if len(whole) else whole.last
    counts = waits.apart == _waits.COUNTED
    starved_ns, late_ns = (np.where(counts, ns[inside], 0) for ns in (starved.ns, late))
    sites = _sites.join(trace, waits.last, waits.ancestry.outer_row)
    step_of = trace.steps.step_of[waits.last]
    numbers = pl.Series([*map(str, trace.steps.numbers.tolist()), ""], dtype=pl.String)
    copied = np.flatnonzero(waits.copy >= 0)
    moved = np.full(len(waits), -1, dtype=np.int64)
    moved[copied] = trace.ints("bytes", waits.copy[copied])
    frame = pl.DataFrame(
        {
            "event": waits.last,
            "start_ns": waits.starts,
            "end_ns": waits.ends,
            "waited_ns": waits.waited,
            "starved_ns": starved_ns,
            "catch_up_ns": late_ns,
            "can_win_ns": np.minimum(waits.waited, starved_ns + late_ns),
            "kind": _words(waits.kinds, waits.kind),
            "apart": _words(tuple(_APART.values()), waits.apart),
            "step": numbers.gather(np.where(step_of >= 0, step_of, len(numbers) - 1)),
            "in_step": scope.in_steps(waits.last),
            "bytes": pl.Series(moved).replace(-1, None),
            "waited_for": _names(trace, starved.waited_for[inside]),
            "delayed": _names(trace, starved.delayed[inside]),
            "calls": _calls(trace, waits),
        }
    ).with_columns(pl.col("kind").cast(pl.String), pl.col("apart").cast(pl.String))
    return WaitTable(waits, sites, frame.hstack(_places(trace, waits, sites)))


def costs(trace: Trace) -> tuple[_starved.Starvation, Ints]:
    """Return starvation and catch-up of all waits of a trace, in the order of the waits; those apart starve nobody.

    Args:
        trace: The trace.
    """
    return remember(trace, _COSTS, lambda: _costs(trace, _waits.find(trace, Window())))


def costs_known(trace: Trace) -> bool:
    """Return whether they were worked out already, so that :func:`costs` answers at once.

    Args:
        trace: The trace.
    """
    return is_remembered(trace, _COSTS)


def _costs(trace: Trace, waits: _waits.Waits) -> tuple[_starved.Starvation, Ints]:
    counts = waits.apart == _waits.COUNTED
    tracks = trace.track_codes[waits.last]
    starts, ends = waits.starts[counts], waits.ends[counts]
    found = _starved.starvation(trace, tracks[counts], waits.copy[counts], starts, ends)
    late = np.zeros(len(waits), dtype=np.int64)
    reads = waits.kind[counts] == KINDS.index(READ)
    late[counts] = _catch_up.catch_up(trace, found, starts, ends, reads)
    nowhere = np.full(len(waits), -1, dtype=np.int64)
    result = _starved.Starvation(
        nowhere, waits.starts.copy(), waits.starts.copy(), nowhere.copy(), nowhere.copy()
    )
    for field in ("device", "starts", "ends", "waited_for", "delayed"):
        getattr(result, field)[counts] = getattr(found, field)
    return result, late


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
    """Return ``where``, ``in``, ``called_from``, ``found``, ``through``, ``range`` and ``stack`` of each wait."""
    schema = {
        "place": pl.Int64,
        **dict.fromkeys(("where", "in", "called_from", "found", "through", "range", "stack"), pl.String),
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
    places: dict[tuple[str, str, str, str], int] = {}
    for key in distinct.tolist():
        site, annotation = key[0], key[1]
        chain = [_frames.operator_label(names[c]) for c in key[2 : 2 + operators] if c >= 0]
        frames = [names[c] for c in key[2 + operators : -1] if c >= 0]
        through = " → ".join(reversed(chain))
        range_ = names[annotation] if annotation >= 0 else ""
        exact = sites.stacks[site].splitlines() if site >= 0 else []
        stack = exact or frames
        spot = _frames.spot(stack)
        if spot is not None:
            where, function, caller = spot
            found = "line" if exact else "function"
        else:
            where, found = (range_, "range") if range_ else (through or names[key[-1]], "operator")
            function = caller = ""
        # Places that read alike are one, whatever differs further out.
        place = places.setdefault((where, function, through, range_), len(places))
        rows.append((place, where, function, caller, found, through, range_, "\n".join(stack)))
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
    """Group the counted waits by place and kind, those whose removal can win most first.

    Args:
        table: The waits.
        scope: Window and steps.
    """
    steps = scope.step_count or None
    in_step = pl.col("in_step")
    place, costs = ("place", "kind"), ("starved_ns", "catch_up_ns", "waited_ns")
    return (
        table.counted.sort("can_win_ns", "starved_ns", "waited_ns", descending=True)
        .group_by(place, maintain_order=True)
        .agg(
            *(pl.col(key).first() for key in ("where", "in", "called_from", "through", "range")),
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(key).sum() for key in costs),
            *((pl.col(key).filter(in_step).sum() / steps).alias(f"{key}_per_step") for key in costs),
            (in_step.sum() / steps).alias("per_step"),
            pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum()).alias("bytes"),
            # The most expensive one stands for the group.
            *(pl.col(key).first() for key in ("calls", "found", "stack", "waited_for", "delayed", "event")),
        )
        .join(recoverable(table.counted, place, steps), on=place, how="left", maintain_order="left")
        .sort(
            "can_win_ns_per_step",
            "can_win_ns",
            "starved_ns",
            "waited_ns",
            descending=True,
            nulls_last=True,
            maintain_order=True,
        )
    )


def recoverable(counted: pl.DataFrame, by: Sequence[str], steps: int | None) -> pl.DataFrame:
    """Return what removing waits together can win at most, in all and per step.

    Within a step that is the smaller of their host waits and of the device time they cost, starved and catch-up:
    without them the host comes no further ahead than by the time it stood.

    Args:
        counted: Waits.
        by: Columns whose values are alike for waits that are removed together; none = all of them.
        steps: Number of steps; None = the trace marks none, and the whole of it counts as one.

    Returns:
        Columns ``by``, ``can_win_ns`` and ``can_win_ns_per_step`` (null without steps).
    """
    cost = pl.col("starved_ns") + pl.col("catch_up_ns")
    in_each = counted.group_by(*by, "step").agg(
        pl.min_horizontal(pl.col("waited_ns").sum(), cost.sum()).alias("can_win_ns"),
        pl.col("in_step").first(),
    )
    total = (
        pl.col("can_win_ns").sum(),
        (pl.col("can_win_ns").filter(pl.col("in_step")).sum() / steps).alias("can_win_ns_per_step"),
    )
    return in_each.group_by(*by).agg(*total) if by else in_each.select(*total)


def calls(trace: Trace, scope: Scope) -> pl.DataFrame:
    """Count the calls that wait by name, as they stand in the trace.

    Args:
        trace: The trace.
        scope: Window and steps.
    """
    rows, _ = _waits.calls_by_kind(trace)
    rows = rows[trace.in_window(scope.window)[rows]]
    begins = trace.starts[rows]
    seconds, firsts = _xla_waits.marks(trace)
    marked = member(rows, seconds)
    begins[marked] = trace.starts[firsts[np.searchsorted(seconds, rows[marked])]]
    each = (
        pl.DataFrame({"code": trace.name_codes[rows], "ns": trace.ends[rows] - begins})
        .group_by("code", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("ns").sum().alias("total_ns"),
            pl.col("ns").max().alias("longest_ns"),
        )
    )
    words = pl.Series([trace.names[code] for code in each["code"].to_list()], dtype=pl.String)
    return each.select(words.alias("call"), pl.exclude("code")).sort(
        "total_ns", "call", descending=[True, False]
    )
