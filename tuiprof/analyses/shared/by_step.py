"""Times split by step."""

from __future__ import annotations

import numpy as np

from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.scope import Scope
from tuiprof.model import Window
from tuiprof.model.intervals import Coverage, Ints, union


def union_by(keys: Ints, starts: Ints, ends: Ints, count: int) -> Ints:
    """Return the length of the union of intervals for each of ``count`` keys, ns."""
    if not len(keys):
        return np.zeros(count, dtype=np.int64)
    # Keys are offset on one axis, far enough apart not to touch.
    low = int(starts.min())
    stride = int(ends.max()) - low + 1
    merged_starts, merged_ends = union(starts - low + keys * stride, ends - low + keys * stride)
    return np.bincount(merged_starts // stride, weights=merged_ends - merged_starts, minlength=count).astype(
        np.int64
    )


def host_time(scope: Scope, starts: Ints, ends: Ints) -> Ints:
    """Return the length of the union of host intervals inside each step, ns."""
    steps = scope.trace.steps
    coverage = Coverage(*union(starts, ends))
    return coverage.between(steps.starts[scope.steps], steps.ends[scope.steps])


def busy(scope: Scope) -> Ints:
    """Return the device time of the work launched by each step, summed over devices, ns."""
    trace = scope.trace
    work = trace.device_work
    position = _position(scope)[trace.steps.step_of[work]]
    work, position = work[position >= 0], position[position >= 0]
    devices = np.searchsorted(trace.device_indices, trace.ints("device", work))
    count = max(len(trace.device_indices), 1)
    keys = position * count + devices
    times = union_by(keys, trace.starts[work], trace.ends[work], len(scope.steps) * count)
    summed: Ints = times.reshape(-1, count).sum(axis=1)
    return summed


def idle(scope: Scope) -> Ints:
    """Return idle time of devices by step of the launch that ended it, summed over devices, ns."""
    trace = scope.trace
    result = np.zeros(len(scope.steps), dtype=np.int64)
    for device in trace.device_indices:
        gaps = _idle.gaps(trace, device, scope.low, scope.high)
        position = _position(scope)[trace.steps.step_of[np.maximum(gaps.launch, 0)]]
        known = (gaps.launch >= 0) & (position >= 0)
        np.add.at(result, position[known], gaps.ns[known])
    return result


def waits(scope: Scope) -> Ints:
    """Return how long the host waits for the device in each step, ns."""
    found = _waits.find(scope.trace, Window())
    counted = found.apart == _waits.COUNTED
    return host_time(scope, found.starts[counted], found.ends[counted])


def counts(scope: Scope, rows: Ints) -> Ints:
    """Count events by step."""
    position = _position(scope)[scope.trace.steps.step_of[rows]]
    return np.bincount(position[position >= 0], minlength=len(scope.steps)).astype(np.int64)


def _position(scope: Scope) -> Ints:
    """Return for each step of the trace its index in the scope; -1 = outside, also for index -1 (no step)."""
    position = np.full(len(scope.trace.steps) + 1, -1, dtype=np.int64)
    position[scope.steps] = np.arange(len(scope.steps))
    return position
