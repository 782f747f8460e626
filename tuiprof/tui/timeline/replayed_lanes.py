"""The lanes of a step as it is replayed: without the profiler, and with a change, below one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Trace
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import Bars, Lane, Lanes, MovedBars
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import Calibrated, Instants, instants

#: Priority of lanes if there is no room: device before host before ranges.
_DEVICE, _CALLS, _RANGES = 0, 2, 4


def build(trace: Trace, step: Calibrated, edit: Edit) -> Lanes:
    """Replay the captured stretch from rest, as it is and with a change, on one axis."""
    now, fixed = instants(step), instants(step, edit)
    captured = lane_builder.build(trace)
    lanes = [
        *_lanes(trace, captured, step, now, "now", 0, Edit()),
        *_lanes(trace, captured, step, fixed, "fix", 1, edit),
    ]
    end = max(now.end_ns, fixed.end_ns)
    return Lanes(trace, tuple(lanes), Bars(trace, _none()), replayed=(step.graph.low, end))


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


def _lanes(
    trace: Trace, captured: Lanes, step: Calibrated, at: Instants, label: str, second: int, edit: Edit
) -> list[Lane]:
    """Return what the main thread does, what it calls, and what the busiest stream works."""
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
    bars = _of_host(trace, main.bars.rows if main is not None else _none(), at)
    found.append(Lane(f"{label} main", "ranges", bars, _RANGES + second, steps=moved_steps))
    calls = trace.host_calls[trace.track_codes[trace.host_calls] == graph.tracks[0]]
    calls = calls[(trace.starts[calls] >= graph.low) & (trace.starts[calls] < graph.high)]
    calls = calls[~np.isin(calls, edit.waits)]
    if len(calls):
        launches = calls[np.isin(calls, trace.links.launches)]
        waits = calls[np.isin(calls, captured.syncs.rows)]
        kinds = (_of_host(trace, waits, at), _of_host(trace, launches, at))
        found.append(Lane(f"{label} calls", "calls", _of_host(trace, calls, at), _CALLS + second, *kinds))
    if len(at.work):
        tracks = trace.track_codes[at.work]
        busiest = np.bincount(tracks, weights=(at.ends - at.starts).astype(np.float64)).argmax()
        mine = tracks == busiest
        bars = MovedBars(at.work[mine], at.starts[mine], at.ends[mine])
        found.append(Lane(f"{label} GPU", "device", bars, _DEVICE + second))
    return found


def _of_host(trace: Trace, rows: Ints, at: Instants) -> MovedBars:
    """Return events of the main thread that are replayed, when they happen."""
    rows = rows[(trace.starts[rows] >= at.captured[0]) & (trace.starts[rows] < at.captured[-1])]
    return MovedBars(rows, at.of_host(trace.starts[rows]), at.of_host(trace.ends[rows]))
