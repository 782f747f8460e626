"""Launches with their latency, the queue depth over time, and short kernels that repeat in the same order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import loops, runs
from tuiprof.analyses.shared.kernel_names import classify, short_name
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Floats, Ints, Mask, distinct, member

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

    def device_ns(self, trace: Trace) -> Ints:
        """Return the device time that each launched, ns."""
        lengths = trace.lengths(self.work)
        return np.bincount(self.work_launch, weights=lengths, minlength=len(self.rows)).astype(np.int64)


def find_launches(trace: Trace, low: int, high: int) -> Launches:
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
    # Last, because another thread may be finding them.
    waiting = member(rows, _waits.find(trace, Window()).first)
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
        starts = trace.starts[rows[mine]]
        depth[mine] = np.searchsorted(launched, starts, side="left") - np.searchsorted(
            ended, starts, side="right"
        )
    # With clock skew, work can end before it was launched.
    return np.maximum(depth, 0)


#: Maximum number of slices of a window for its queue depth.
_SLICES = 100


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Device events launched but not finished, over time, in equal slices of a window."""

    starts: Ints  # start of each slice, ns, shape ``(s,)``
    mean: Floats  # mean depth, weighted by time, shape ``(s,)``
    lowest: Ints  # lowest depth in the slice
    highest: Ints  # highest depth
    mean_all: float  # mean depth over the window
    empty_share: float  # share of the window's time in which nothing was queued or running


def queue_depth(trace: Trace, device: int, low: int, high: int) -> QueueDepth:
    """Return the queue depth of a device over time.

    Work counts from the beginning of its launch call to its end on the device. Work without a launch in the
    trace counts while it runs.
    """
    work = trace.work_of(device)
    launch = trace.links.launch_of[work]
    start = np.where(launch >= 0, trace.starts[np.maximum(launch, 0)], trace.starts[work])
    end = np.maximum(trace.ends[work], start)
    start, end = np.clip(start, low, high), np.clip(end, low, high)
    keep = end > start
    # Time and direction in one number, so that one sort puts an end before a start at the same instant; unsigned, it
    # has room for four times the longest trace.
    whole = np.array([0, high - low], dtype=np.int64)
    moments = np.concatenate(((start[keep] - low) * 4 + 3, (end[keep] - low) * 4 + 1, whole * 4 + 2)).view(
        np.uint64
    )
    moments.sort(kind="stable")
    times = (moments >> np.uint64(2)).view(np.int64) + low
    depth = np.cumsum((moments & np.uint64(3)).view(np.int64) - 2)
    lengths = np.diff(times, append=high)
    area = np.concatenate(([0], np.cumsum(depth * lengths)))
    slices = min(_SLICES, high - low)
    # In integers: floats cannot represent values near 2⁶⁰ ns exactly.
    (each, rest), index = divmod(high - low, slices), np.arange(slices + 1)
    edges = low + each * index + rest * index // slices
    at = np.searchsorted(times, edges, side="right") - 1
    area_at = area[at] + depth[at] * (edges - times[at])
    # The depth at the start of a slice counts for it, so each slice reduces from the change before it.
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


# -- repeated sequences of short kernels -----------------------------------------------------------------

#: A kernel shorter than this costs about as much to launch as to run.
SHORT_NS = 10_000
#: Maximum period of a loop, and minimum number of repetitions to list a sequence.
LONGEST_PERIOD, MIN_REPEATS = 64, 3
#: Kernels of a sequence whose names are shown.
_SPELLED = 8
_SCHEMA = {
    "shape": pl.String,
    "kernels": pl.String,
    **dict.fromkeys(("length", "times", "device_ns", "idle_ns", "host_ns", "event"), pl.Int64),
}
#: Kinds of kernels that a compiler can fuse with their neighbors.
_FUSABLE = ("elementwise", "reduction", "norm", "copy")


def sequences(trace: Trace, work: Ints, launch: Ints) -> pl.DataFrame:
    """Find sequences of short kernels that could be fused among kernels in order of start, by the rows of their
    launches.

    Two patterns are searched on every stream. A *loop*: a sequence of up to 64 kernels that repeats at least three
    times without a break (an optimizer without ``foreach``, a loss computed sample by sample). A *chain*: two or more
    short elementwise, reduction, norm or copy kernels in a row, the same chain at least three times. The potential
    saving of one fused kernel is at most the device's idle time inside the sequence, and on the host all launch calls
    but one; the two overlap in time and are not added.
    """
    found = []
    streams, devices = trace.ints("stream", work), trace.ints("device", work)
    for device in distinct(devices).tolist():
        on_device = np.flatnonzero(devices == device)
        numbers, index = np.unique(streams[on_device], return_inverse=True)
        for stream in range(len(numbers)):
            mine = on_device[index == stream]
            found.append(_on_stream(trace, work[mine], launch[mine]))
    if not (several := [one for one in found if len(one)]):
        return pl.DataFrame(schema=_SCHEMA)
    return (
        pl.concat(several)
        .group_by("shape", "kernels", "length", maintain_order=True)
        .agg(pl.col("times", "device_ns", "idle_ns", "host_ns").sum(), pl.col("event").first())
        .filter(pl.col("times") >= MIN_REPEATS)
        .sort("host_ns", descending=True)
    )


def _on_stream(trace: Trace, work: Ints, launch: Ints) -> pl.DataFrame:
    codes = trace.name_codes[work]
    starts, ends = trace.starts[work], trace.ends[work]
    kinds = classify(trace.names, codes)

    def of_kind(*wanted: str) -> Mask:
        return member(codes, [code for code, kind in kinds.items() if kind in wanted])

    short = (ends - starts < SHORT_NS) & ~of_kind("collective")
    whole = of_kind("gemm", "attention", "convolution")  # one of these alone cannot be fused
    gap = np.append(0, np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0))
    taken = np.zeros(len(work), dtype=bool)
    words = np.where(short, codes, -1).astype(np.int32)
    repeated = list(loops(words, LONGEST_PERIOD, MIN_REPEATS, alone=~whole))
    for start, period, passes in repeated:
        taken[start : start + passes * period] = True
    chain_starts, chain_ends = runs(of_kind(*_FUSABLE) & short & ~taken, 2)
    chains = np.column_stack((chain_starts, chain_ends - chain_starts, np.ones_like(chain_starts)))
    first, length, times = np.concatenate((np.array(repeated, dtype=np.int64).reshape(-1, 3), chains)).T
    stop = first + length * times
    host_before = _before(np.where(launch >= 0, trace.lengths(launch), 0))
    device_before, gap_before = _before(ends - starts), _before(gap)
    # One launch per iteration stays; one in total if the same kernel repeats.
    stay = np.where(length > 1, times, 1)
    return pl.DataFrame(
        {
            "shape": pl.Series(["loop"] * len(repeated) + ["chain"] * len(chains), dtype=pl.String),
            "kernels": _spell(trace, codes, first, length),
            "length": length,
            "times": times,
            "device_ns": device_before[stop] - device_before[first],
            "idle_ns": gap_before[stop] - gap_before[first + 1],
            "host_ns": (host_before[stop] - host_before[first]) * (length * times - stay) // (length * times),
            "event": work[first],
        },
        schema=_SCHEMA,
    )


def _spell(trace: Trace, codes: Ints, first: Ints, length: Ints) -> pl.Series:
    """Return the names of the kernels of each sequence, at most eight."""
    spelled: dict[tuple[int, ...], str] = {}
    texts = []
    for start, count in zip(first.tolist(), length.tolist(), strict=True):
        shown = (*codes[start : start + min(count, _SPELLED)].tolist(), *([-1] if count > _SPELLED else []))
        if shown not in spelled:
            spelled[shown] = " → ".join(short_name(trace.names[c]) if c >= 0 else "…" for c in shown)
        texts.append(spelled[shown])
    return pl.Series(texts, dtype=pl.String)


def _before(values: Ints) -> Ints:
    """Return the exclusive prefix sums, with the total at the end."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))
