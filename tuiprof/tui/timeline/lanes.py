"""The lanes of a timeline as sorted arrays, so that drawing any zoom of any trace takes a few binary searches.

:func:`build` sorts a whole trace into lanes, :func:`sketch` a sample of a very large one. :func:`build_replayed`
returns the lanes of the step simulated without the profiler, as it is and with a fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import polars as pl

from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.frames import is_user
from tuiprof.analyses.shared.optimizers import closures
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask, Window, union
from tuiprof.model.steps import Steps
from tuiprof.model.trace import Trace, Track
from tuiprof.model.units import format_bytes, format_count
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import Calibrated, Instants, Losses, instants

LaneStyle = Literal["ranges", "calls", "device", "idle", "counter", "lost"]

#: From this many events on, building the exact lanes takes so long that a sketch is shown first.
SKETCH_FROM: Final = 1_000_000
_SKETCHED_EVENTS = 50_000
_NO_ROWS: Final = np.empty(0, dtype=np.int64)
_STEP_NAME = r"^ProfilerStep#\d+$"
#: Maximum number of lanes for levels of Python calls.
_PYTHON_LEVELS = 6
#: Python functions are left out if they take longer than this many steps or, in a trace without steps, this share of
#: the trace: functions such as ``main`` are everywhere.
_LONG_STEPS, _LONG_SHARE = 1.5, 0.9
_MAX_COUNTERS = 4
#: Priorities of replayed lanes.
_DEVICE, _CALLS, _RANGES = 0, 2, 4


class Bars:
    """Events of one lane, in order of start: their own, or where each is drawn from."""

    def __init__(self, trace: Trace, rows: Ints, starts: Ints | None = None) -> None:
        if starts is not None:
            order = np.argsort(starts, kind="stable")
            rows, starts = rows[order], starts[order]
        self._set(rows, trace.starts[rows] if starts is None else starts, trace.ends[rows])

    def _set(self, rows: Ints, starts: Ints, ends: Ints) -> None:
        self.rows, self.starts, self.ends = rows, starts, ends
        # For each event, the one up to it that ends last, which may still run when later ones have ended. None = the
        # events end in order of start, so this is the event itself.
        self._ends_last: Ints | None = None
        if (self.ends[1:] < self.ends[:-1]).any():
            latest = np.where(self.ends == np.maximum.accumulate(self.ends), np.arange(len(rows)), 0)
            self._ends_last = np.maximum.accumulate(latest)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, keep: Mask) -> Bars:
        """Return some of the events, where they are drawn."""
        return MovedBars(self.rows[keep], self.starts[keep], self.ends[keep])

    @cached_property
    def covered(self) -> Coverage:
        """The union of the events."""
        return Coverage(*union(self.starts, self.ends))

    def at(self, instants: Ints) -> Ints:
        """Return the event that runs at each instant (ns), as an index into :attr:`rows`; -1 = none."""
        if not len(self.rows):
            return np.full(len(instants), -1, dtype=np.int64)
        latest = np.searchsorted(self.starts, instants, side="right") - 1
        safe = np.maximum(latest, 0)
        longest = self._last_ending(safe)
        found = np.where(
            self.ends[safe] > instants, safe, np.where(self.ends[longest] > instants, longest, -1)
        )
        return np.where(latest >= 0, found, -1).astype(np.int64)

    def _last_ending(self, indices: Ints) -> Ints:
        """Return for each index the event up to it that ends last."""
        return indices if self._ends_last is None else self._ends_last[indices]

    def within(self, edges: Ints) -> Ints:
        """Return one event for each column: the one that runs at its middle, else the last one that starts in it.

        Edges in ns ascend, shape ``(columns + 1,)``; the result are indices into :attr:`rows`, -1 = none.
        """
        picked = self.at((edges[:-1] + edges[1:]) // 2)
        if not len(self.rows):
            return picked
        last = np.searchsorted(self.starts, edges[1:], side="left") - 1
        safe = np.maximum(last, 0)
        shows = (last >= 0) & ((self.ends[safe] > edges[:-1]) | (self.starts[safe] >= edges[:-1]))
        longest = self._last_ending(safe)
        reaches = (last >= 0) & (self.ends[longest] > edges[:-1])
        fallback = np.where(shows, safe, np.where(reaches, longest, -1))
        return np.where(picked >= 0, picked, fallback).astype(np.int64)

    def shares(self, edges: Ints) -> Floats:
        """Return the share of each column that events cover, 0 to 1."""
        return np.diff(self.covered.up_to(edges)) / np.maximum(np.diff(edges), 1)

    def next_start(self, instant: int, forward: bool) -> int | None:
        """Return the index of the first event that starts after an instant, or of the last before; None = none does."""
        side: Literal["left", "right"] = "right" if forward else "left"
        index = int(np.searchsorted(self.starts, instant, side=side)) - (not forward)
        return index if 0 <= index < len(self.rows) else None


class MovedBars(Bars):
    """Events at other times than in the capture."""

    def __init__(self, rows: Ints, starts: Ints, ends: Ints) -> None:
        order = np.argsort(starts, kind="stable")
        self._set(rows[order], starts[order], np.maximum(ends[order], starts[order] + 1))


class SampledBars(Bars):
    """A sample of the events of a lane, one in ``stride``."""

    def __init__(self, bars: Bars, stride: int) -> None:
        self._set(bars.rows, bars.starts, bars.ends)
        self._stride = stride

    def shares(self, edges: Ints) -> Floats:
        """Return the estimated share of each column that events cover, 0 to 1."""
        middle = (self.starts + self.ends) // 2
        column = np.searchsorted(edges, middle, side="right") - 1
        inside = (column >= 0) & (column < len(edges) - 1)
        lengths = (self.ends - self.starts)[inside] * float(self._stride)
        covered = np.bincount(column[inside], lengths, minlength=len(edges) - 1)
        return np.minimum(covered / np.maximum(np.diff(edges), 1), 1.0)


@dataclass(frozen=True, eq=False)
class Lost:
    """The time that a finding costs, over time."""

    losses: Losses | str  # the time that the fix saves; a text = why it is unknown
    bad: bool  # whether the finding's level is ``bad`` rather than ``warn``

    @cached_property
    def _knots(self) -> tuple[Ints, Floats]:
        if isinstance(self.losses, str) or not len(self.losses.ns):
            return np.zeros(1, dtype=np.int64), np.zeros(1)
        at = np.stack((self.losses.starts, self.losses.ends), axis=1).ravel()
        up_to = np.cumsum(self.losses.ns)
        return at, np.stack((up_to - self.losses.ns, up_to), axis=1).ravel()

    def up_to(self, instants: Ints) -> Floats:
        """Return the ns lost up to each instant."""
        return np.interp(instants, *self._knots)

    def between(self, low: int, high: int) -> float:
        """Return the ns lost between two instants."""
        before, after = self.up_to(np.array([low, high])).tolist()
        return float(after - before)


@dataclass(frozen=True, slots=True)
class Samples:
    """A counter over time; each value is valid until the next."""

    at: Ints  # times in ns, ascending
    values: Floats  # same shape
    is_bytes: bool

    @property
    def peak(self) -> float:
        """The maximum; 0 without samples."""
        return float(self.values.max(initial=0.0))

    def highest(self, edges: Ints) -> Floats:
        """Return the maximum in each column, given ascending column edges in ns; 0 before the first sample."""
        start = np.searchsorted(self.at, edges[:-1], side="right") - 1  # still valid when the column begins
        end = np.searchsorted(self.at, edges[1:], side="left")
        padded = np.append(self.values, 0.0)
        out = np.where(start >= 0, padded[start], 0.0)
        inside = end > start + 1
        if inside.any():
            pairs = np.stack((start[inside] + 1, end[inside]), axis=1).ravel()
            out[inside] = np.maximum(out[inside], np.maximum.reduceat(padded, pairs)[::2])
        return out

    def at_instant(self, instant: int) -> float | None:
        """Return the value at an instant; None = before the first sample."""
        index = int(np.searchsorted(self.at, instant, side="right")) - 1
        return float(self.values[index]) if index >= 0 else None

    def format(self, value: float) -> str:
        """Return a value as text."""
        return format_bytes(value) if self.is_bytes else format_count(value)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One line of the timeline."""

    label: str
    style: LaneStyle
    bars: Bars  # its events; in an idle lane, the work between the gaps
    priority: int  # lanes with lower values are kept if not all fit
    syncs: Bars | None = None  # in a lane of calls, those that wait for the device (``S``)
    launches: Bars | None = None  # in a lane of calls, those that launch work (``L``)
    samples: Samples | None = None  # in a counter lane
    nested: bool = False  # whether its events are inside those of another lane, and shown on request
    lost: Lost | None = None  # in a ``lost`` lane
    steps: Steps | None = None  # its own steps, if they differ from the capture's

    @property
    def has_events(self) -> bool:
        """Whether it shows captured events, which can be opened."""
        return self.style not in ("idle", "counter", "lost") and not isinstance(self.bars, MovedBars)

    def holds(self, row: int) -> bool:
        """Return whether it shows an event, given as a row of the trace."""
        return self.has_events and row in self.bars.rows


_ONE_FIX: Final = ("without the fix", "with this finding's fix")


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The lanes of a trace."""

    trace: Trace
    lanes: tuple[Lane, ...]  # in order of display
    syncs: Bars  # host waits, in order of start
    stride: int = 1  # each event represents this many; 1 = the lanes are not a sketch
    sketch_of: Trace | None = None  # the whole trace, if ``trace`` is a sample of it
    #: Start and end in ns, if the lanes show a simulated step; None = they show the capture.
    replayed: tuple[int, int] | None = None
    meaning: tuple[str, str] = _ONE_FIX  # what ``now`` and ``fix`` show, if they do

    @property
    def exact(self) -> bool:
        """Whether the lanes show all events at the captured times."""
        return self.stride == 1 and self.replayed is None

    @property
    def steps(self) -> Steps:
        first = self.lanes[0].steps if self.lanes else None
        return self.source.steps if first is None else first

    @property
    def source(self) -> Trace:
        """The whole trace, also of a sketch."""
        return self.trace if self.sketch_of is None else self.sketch_of

    @property
    def lost(self) -> Lost | None:
        """The time that a finding costs, if a lane shows it."""
        return next((lane.lost for lane in self.lanes if lane.lost is not None), None)

    def shown(self, *, nested: bool) -> list[Lane]:
        """Return the lanes in order of display, with or without the nested ones."""
        return [lane for lane in self.lanes if nested or not lane.nested]

    def choose(self, count: int, *, nested: bool = True) -> list[Lane]:
        """Return the most important lanes, in order of display."""
        shown = self.shown(nested=nested)
        keep = sorted(range(len(shown)), key=lambda i: shown[i].priority)[:count]
        return [shown[i] for i in sorted(keep)]

    def with_lost(self, lost: Lost | None) -> Lanes:
        """Return the lanes with a ``lost`` lane below the first device's streams; None = without such a lane."""
        lanes = [lane for lane in self.lanes if lane.style != "lost"]
        if lost is not None:
            styles = [lane.style for lane in lanes]
            lane = Lane("lost", "lost", Bars(self.trace, _NO_ROWS), 1, lost=lost)
            start = styles.index("device") if "device" in styles else len(styles)
            end = next((row for row in range(start, len(styles)) if styles[row] != "device"), len(styles))
            lanes.insert(end, lane)
        return replace(self, lanes=tuple(lanes))


def build(trace: Trace) -> Lanes:
    """Sort a trace into lanes: host ranges, device calls, streams, idle time, counters."""
    tracks = trace.track_codes
    # Tracks of kind "other" are the profiler's own, except in formats that have no other kind.
    host = [track for track in trace.tracks if track.kind == "thread"] or [
        track for track in trace.tracks if track.kind == "other"
    ]
    lanes: list[Lane] = []
    syncs = Bars(trace, sync_calls(trace))
    steps = trace.named(_STEP_NAME)
    ranges = np.flatnonzero(
        trace.is_category("annotation", "cpu_op", "dataloader", "compile", "other") & ~steps
    ).astype(np.int64)
    by_track = _group(ranges, tracks[ranges])
    main = _main_track(trace, host, by_track, steps)
    if main is not None:
        lanes += _host_lanes(trace, by_track.get(main.index, _NO_ROWS))
        for level, rows in enumerate(python_levels(trace, main)):
            lanes.append(
                Lane("  " * level + "python", "ranges", Bars(trace, rows), 7 + 14 * level, nested=True)
            )
    calls = trace.host_calls
    if len(calls):
        bars = Bars(trace, calls)
        all_launch = len(trace.links.launches) == len(calls)
        launches = bars if all_launch else Bars(trace, trace.links.launches)
        lanes.append(Lane("runtime", "calls", bars, 1, syncs, launches))
    others = [track for track in host if track is not main and len(by_track.get(track.index, _NO_ROWS))]
    for number, track in enumerate(sorted(others, key=lambda t: -len(by_track[t.index]))[:8]):
        label = "thread" if len(others) == 1 else f"thread {number + 2}"
        lanes += _nested(trace, by_track[track.index], label, (40 + number, 60 + number), outer=True)
    lanes += _device_lanes(trace)
    for number, (label, samples) in enumerate((*memory_samples(trace), *counter_samples(trace))):
        lanes.append(Lane(label, "counter", Bars(trace, _NO_ROWS), 8 + 10 * number, samples=samples))
    # Fill the caches here, in the caller's worker thread, so that the first frame is drawn as fast as later ones.
    for lane in lanes:
        _ = lane.bars.covered
    _ = trace.name_codes, trace.category_codes, trace.steps
    return Lanes(trace, tuple(lanes), syncs)


def sync_calls(trace: Trace) -> Ints:
    """Return the rows of host calls that wait for the device, in order of start, except those by the profiler."""
    waits = _waits.find(trace, Window())
    return np.sort(waits.last[waits.apart != _waits.BY_PROFILER])


def _group(rows: Ints, keys: Ints) -> dict[int, Ints]:
    """Group rows by key, keeping their order within each group."""
    if not len(rows):
        return {}
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return {int(keys[part[0]]): rows[part] for part in np.split(order, cuts)}


def _main_track(trace: Trace, host: Sequence[Track], by_track: dict[int, Ints], steps: Mask) -> Track | None:
    """Return the thread with the most step markers or, without markers, the most events."""
    if not host:
        return None
    tracks = trace.track_codes
    marked = np.bincount(tracks[steps & ~trace.is_category("device_annotation")], minlength=len(trace.tracks))
    best = max(host, key=lambda t: (marked[t.index], len(by_track.get(t.index, _NO_ROWS))))
    return best if marked[best.index] or best.index in by_track else None


def _host_lanes(trace: Trace, rows: Ints) -> list[Lane]:
    """Return the lanes of the main thread: outermost ranges, nested ranges, levels of operators."""
    codes = trace.is_category("annotation", "dataloader", "compile")[rows]
    ranges, ops = rows[codes], rows[~codes]
    outer, inner = outermost(trace, ranges)
    # An optimizer that runs forward and backward itself, in a closure, is drawn from the end of backward on.
    _, after = closures(trace, outer)
    closing = outer[after > 0]
    if len(closing):
        outer, inner = outermost(trace, np.setdiff1d(ranges, closing))
    if not len(outer):
        found = _nested(trace, ops, "main", (0, 16, 23, 30), outer=True)
        return found or [Lane("main", "ranges", Bars(trace, ops), 0)]
    drawn = np.concatenate((closing, outer))
    starts = np.concatenate((after[after > 0], trace.starts[outer]))
    lanes = [Lane("main", "ranges", Bars(trace, drawn, starts), 0)]
    lanes += _nested(trace, inner, "  within", (5, 19))
    lanes += _nested(trace, ops, "  ops", (4, 16, 23, 30))
    return lanes


def _nested(
    trace: Trace, rows: Ints, label: str, priorities: Sequence[int], *, outer: bool = False
) -> list[Lane]:
    """Return a lane for each level of nested events, outermost first, up to the number of priorities.

    ``outer`` means that the first level is not itself nested in the events of another lane.
    """
    lanes: list[Lane] = []
    for level, priority in enumerate(priorities):
        if not len(rows):
            break
        level_rows, rows = outermost(trace, rows)
        enclosed = bool(level) or not outer
        lanes.append(Lane("  " * level + label, "ranges", Bars(trace, level_rows), priority, nested=enclosed))
    return lanes


def _device_lanes(trace: Trace) -> list[Lane]:
    """Return a lane for each stream with work (the busiest has priority), and an idle lane for each device."""
    work = trace.device_work
    device, tracks = trace.ints("device", work), trace.track_codes[work]
    several = len(trace.device_indices) > 1
    lanes: list[Lane] = []
    groups = _group(work, tracks)
    busy = {track: int(trace.lengths(rows).sum()) for track, rows in groups.items()}
    rank = {track: order for order, track in enumerate(sorted(busy, key=lambda t: -busy[t]))}
    for index in trace.device_indices:
        streams = np.unique(tracks[device == index])
        for track in streams.tolist():
            label = trace.tracks[track].name
            label = f"{index}:{label}" if several else label
            order = rank[track]
            bars = Bars(trace, groups[track])
            lanes.append(Lane(label, "device", bars, 2 if order == 0 else 9 + order))
        whole = bars if len(streams) == 1 else Bars(trace, work[device == index])
        first = index == trace.device_indices[0]
        lanes.append(Lane(f"{index}:idle" if several else "idle", "idle", whole, 3 if first else 6))
    return lanes


def idle_gap(bars: Bars, instant: int, low: int, high: int) -> tuple[int, int] | None:
    """Return start and end (ns) of the idle gap around an instant between ``low`` and ``high``; None = no gap there."""
    starts, ends = bars.covered.starts, bars.covered.ends
    index = int(np.searchsorted(starts, instant, side="right")) - 1
    if not low <= instant < high or (index >= 0 and ends[index] > instant):
        return None
    start = int(ends[index]) if index >= 0 else low
    return start, int(starts[index + 1]) if index + 1 < len(starts) else high


def python_levels(trace: Trace, track: Track) -> list[Ints]:
    """Return the rows of a thread's calls of Python functions by nesting level, outermost first.

    Functions of frameworks and of the interpreter are left out unless there are no others, and so are functions that
    span several steps.
    """
    rows: Ints = np.flatnonzero(trace.is_category("python_function") & (trace.track_codes == track.index))
    if not len(rows):
        return []
    is_user_name = np.fromiter((is_user(name) for name in trace.names), dtype=bool, count=len(trace.names))
    user = rows[is_user_name[trace.name_codes[rows]]]
    rows = user if len(user) else rows
    low, high = trace.span
    steps = trace.steps
    limit = _LONG_STEPS * int(steps.lengths.max()) if len(steps) else _LONG_SHARE * (high - low)
    rows = rows[trace.lengths(rows) < limit]
    levels: list[Ints] = []
    while len(rows) and len(levels) < _PYTHON_LEVELS:
        outer, rows = outermost(trace, rows)
        levels.append(outer)
    return levels


def outermost(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Split the rows of a track into those that are not inside an earlier one, and the rest."""
    if not len(rows):
        return rows, rows
    starts, ends = trace.starts[rows], trace.ends[rows]
    reach = np.maximum.accumulate(ends)
    outer = np.ones(len(rows), dtype=bool)
    outer[1:] = (starts[1:] >= reach[:-1]) | (ends[1:] > reach[:-1])
    return rows[outer], rows[~outer]


def memory_samples(trace: Trace) -> list[tuple[str, Samples]]:
    """Return label and samples of each allocator's memory, devices before the host."""
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
    """Return label and samples of the counters with the most samples."""
    if trace.counters is None or trace.counters.is_empty():
        return []
    found = []
    for (name, series), frame in trace.counters.group_by("name", "series", maintain_order=True):
        ordered = frame.sort("ts", maintain_order=True)
        label = str(name) if str(series) in ("", "value", str(name)) else f"{name} {series}"
        is_bytes = "bytes" in label.lower() or "memory" in label.lower()
        found.append((label, _samples(ordered["ts"], ordered["value"], is_bytes=is_bytes)))
    return sorted(found, key=lambda item: -len(item[1].at))[:_MAX_COUNTERS]


def _samples(at: pl.Series, values: pl.Series, *, is_bytes: bool) -> Samples:
    return Samples(at.to_numpy().astype(np.int64), values.cast(pl.Float64).to_numpy(), is_bytes)


def sketch(trace: Trace) -> Lanes:
    """Return the lanes of a sample of the events."""
    stride = max(1, len(trace) // _SKETCHED_EVENTS)
    # A random event of each block: at a fixed position, alternating launches and kernels would be sampled unevenly.
    blocks = np.arange(0, len(trace) - stride + 1, stride)
    rows = blocks + np.random.default_rng(0).integers(0, stride, len(blocks))
    sample = Trace(trace.events[rows], trace.tracks, trace.info)
    lanes = build(sample)
    drawn = tuple(replace(lane, bars=SampledBars(lane.bars, stride)) for lane in lanes.lanes)
    return replace(lanes, lanes=drawn, stride=stride, sketch_of=trace)


def build_replayed(trace: Trace, step: Calibrated, edit: Edit, on: Edit) -> Lanes:
    """Return the lanes of the captured steps, simulated without (``now``) and with a fix, on one time axis.

    Both have the fixes that it is priced on top of.
    """
    both = on | edit
    now, fixed = instants(step, on), instants(step, both)
    captured = build(trace)
    lanes = [
        *_replayed_lanes(trace, captured, step, now, "now", 0, on),
        *_replayed_lanes(trace, captured, step, fixed, "fix", 1, both),
    ]
    end = max(now.end_ns, fixed.end_ns)
    on_top = len(on.waits) + len(on.host.starts) + len(on.work) > 0
    return Lanes(
        trace,
        tuple(lanes),
        Bars(trace, _NO_ROWS),
        replayed=(step.graph.low, end),
        meaning=("with the other fixes", "with this one too") if on_top else _ONE_FIX,
    )


def _replayed_lanes(
    trace: Trace, captured: Lanes, step: Calibrated, at: Instants, label: str, second: int, edit: Edit
) -> list[Lane]:
    """Return the lanes of one simulation: ranges and calls of the main thread, and the busiest stream."""
    graph = step.graph
    found = []
    steps = trace.steps
    inside = (steps.starts >= graph.low) & (steps.ends <= graph.high)
    moved_steps = replace(
        steps,
        numbers=steps.numbers[inside],
        starts=at.of_host(steps.starts[inside]),
        ends=at.of_host(steps.ends[inside]),
    )
    main = captured.lanes[0] if captured.lanes and captured.lanes[0].style == "ranges" else None
    bars = _of_host(main.bars if main is not None else Bars(trace, _NO_ROWS), at)
    found.append(Lane(f"{label} main", "ranges", bars, _RANGES + second, steps=moved_steps))
    calls = trace.host_calls[trace.track_codes[trace.host_calls] == graph.tracks[0]]
    calls = calls[(trace.starts[calls] >= graph.low) & (trace.starts[calls] < graph.high)]
    calls = calls[~np.isin(calls, edit.waits)]
    if len(calls):
        launches = calls[np.isin(calls, trace.links.launches)]
        waits = calls[np.isin(calls, captured.syncs.rows)]
        bars, waited, launched = (_of_host(Bars(trace, rows), at) for rows in (calls, waits, launches))
        found.append(Lane(f"{label} calls", "calls", bars, _CALLS + second, waited, launched))
    if len(at.work):
        tracks = trace.track_codes[at.work]
        busiest = np.bincount(tracks, weights=(at.ends - at.starts).astype(np.float64)).argmax()
        kept = tracks == busiest
        bars = MovedBars(at.work[kept], at.starts[kept], at.ends[kept])
        found.append(Lane(f"{label} GPU", "device", bars, _DEVICE + second))
    return found


def _of_host(bars: Bars, at: Instants) -> MovedBars:
    """Return the simulated ones of these events of the main thread, at their simulated times."""
    inside = (bars.starts >= at.captured[0]) & (bars.starts < at.captured[-1])
    return MovedBars(bars.rows[inside], at.of_host(bars.starts[inside]), at.of_host(bars.ends[inside]))
