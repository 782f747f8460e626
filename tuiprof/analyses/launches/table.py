"""Launches with their latency, and the queue depth over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.codes import member
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Ints

Mask = npt.NDArray[np.bool_]
#: Calls that launch a recorded graph: CUDA, HIP, compatible runtimes, and SYCL.
_GRAPH_CALL = r"GraphLaunch|EnqueueGraph"


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of a window in order of their call; arrays of shape ``(k,)`` unless said otherwise."""

    rows: Ints  # rows of the calls
    first_work: Ints  # row of the first device work each launched
    work_count: Ints  # number of device events each launched in the whole trace
    #: Whether the call launches a graph, which may have one node; some calls launch several kernels without one.
    graph: Mask
    #: Start of the first work minus end of the call, ns; negative = the work began before the call returned.
    latency: Ints
    impossible: Mask  # whether the work began before the call, which only clock skew can explain
    waits: Mask  # whether the call is a copy in which the host waits for the device
    #: Device events launched but not finished when the call began, on the device it launched to.
    depth_found: Ints
    work: Ints  # rows of all device work launched by them, shape ``(w,)``
    work_launch: Ints  # for each of ``work`` the index of its launch in ``rows``, shape ``(w,)``


def launches(trace: Trace, low: int, high: int) -> Launches:
    """Collect the launches that begin in a window, ns."""
    links = trace.links
    inside = (trace.starts[links.launches] >= low) & (trace.starts[links.launches] < high)
    rows, count = links.launches[inside], links.work_count[inside]
    work = trace.device_work
    launch_of = links.launch_of[work]
    if not len(rows):
        none = np.empty(0, dtype=np.int64)
        no = none.astype(bool)
        return Launches(none, none, none, no, none, no, no, none, none, none)
    at = np.minimum(np.searchsorted(rows, launch_of), len(rows) - 1)
    ours = rows[at] == launch_of
    work, at = work[ours], at[ours]
    first_work = np.full(len(rows), -1, dtype=np.int64)
    first_work[at[::-1]] = work[::-1]  # in order of start, so the first written last stays
    latency = trace.starts[first_work] - trace.ends[rows]
    impossible = trace.starts[first_work] < trace.starts[rows]
    depth = _depth_found(trace, rows, first_work)
    waiting = member(
        rows, _waits.find(trace, Window()).first
    )  # last, because another thread may be finding them
    graph = trace.named(_GRAPH_CALL, rows)
    return Launches(rows, first_work, count, graph, latency, impossible, waiting, depth, work, at)


def _depth_found(trace: Trace, rows: Ints, first_work: Ints) -> Ints:
    """Return the amount of work queued or running on the device when each call began."""
    depth = np.zeros(len(rows), dtype=np.int64)
    devices = trace.ints("device", first_work)
    for device in trace.device_indices:
        work = trace.work_of(device)
        launch = trace.links.launch_of[work]
        launched = np.sort(trace.starts[launch[launch >= 0]])
        ended = np.sort(trace.ends[work[launch >= 0]])
        mine = np.flatnonzero(devices == device)
        begins = trace.starts[rows[mine]]
        depth[mine] = np.searchsorted(launched, begins, side="left") - np.searchsorted(
            ended, begins, side="right"
        )
    # With clock skew, work can end before it was launched.
    return np.maximum(depth, 0)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Device events launched but not finished, over time, in equal slices of a window."""

    starts: Ints  # start of each slice, ns, shape ``(s,)``
    mean: npt.NDArray[np.float64]  # mean depth, weighted by time, shape ``(s,)``
    lowest: Ints  # lowest depth in the slice
    highest: Ints  # highest depth
    mean_all: float  # mean depth over the window
    empty_share: float  # share of the window's time in which nothing was queued or running


def queue_depth(trace: Trace, device: int, low: int, high: int, slices: int = 100) -> QueueDepth:
    """Return the queue depth of a device over time.

    Work counts from the beginning of its launch call to its end on the device. Work without a launch in the
    trace counts while it runs.
    """
    work = trace.work_of(device)
    launch = trace.links.launch_of[work]
    begin = np.where(launch >= 0, trace.starts[np.maximum(launch, 0)], trace.starts[work])
    end = np.maximum(trace.ends[work], begin)
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    keep = end > begin
    # Time and direction in one number, so that one sort puts an end before a begin at the same instant; unsigned, it
    # has room for four times the longest trace.
    whole = np.array([0, high - low], dtype=np.int64)
    moments = np.concatenate(((begin[keep] - low) * 4 + 3, (end[keep] - low) * 4 + 1, whole * 4 + 2)).view(
        np.uint64
    )
    moments.sort(kind="stable")
    times = (moments >> np.uint64(2)).view(np.int64) + low
    depth = np.cumsum((moments & np.uint64(3)).view(np.int64) - 2)
    lengths = np.diff(times, append=high)
    area = np.concatenate(([0], np.cumsum(depth * lengths)))
    slices = int(min(slices, high - low))
    # In integers: floats cannot represent values near 2⁶⁰ ns exactly.
    (each, rest), index = divmod(high - low, slices), np.arange(slices + 1)
    edges = low + each * index + rest * index // slices
    at = np.searchsorted(times, edges, side="right") - 1
    area_at = area[at] + depth[at] * (edges - times[at])
    # The depth at the begin of a slice counts for it, so each slice reduces from the change before it.
    stops = np.maximum(at[1:], at[:-1] + 1)
    bounds = np.column_stack((at[:-1], np.minimum(stops, len(times) - 1))).reshape(-1)
    return QueueDepth(
        edges[:-1],
        np.diff(area_at) / np.diff(edges),
        np.minimum.reduceat(depth, bounds)[::2],
        np.maximum.reduceat(depth, bounds)[::2],
        float(area[-1]) / (high - low),
        float(lengths[depth == 0].sum()) / (high - low),
    )
