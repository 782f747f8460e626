"""The replayed step of a trace, computed once; what the profiler added to it, and the page that begins with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.collectives import peer_waits
from tuiprof.analyses.shared.idle import CALLBACK
from tuiprof.analyses.shared.model_calls import MODEL_CALL, PROBE_RANGE
from tuiprof.analyses.shared.scope import Scope, step_period_ns, step_times
from tuiprof.analyses.shared.waits import KINDS
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Ints, complement, union
from tuiprof.model.report import Answer
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.trust import Remark, Trust
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.build import GraphBuilder, Unreplayable, Waits
from tuiprof.whatif.replay import TOLERANCE, Calibrated, calibrate

#: Maximum number of replayed launches if steps can be omitted or none are marked, so that a replay takes milliseconds.
MAX_LAUNCHES = 5_000
#: Minimum profiler slowdown to report.
SLOWED = 0.05
#: Not reported if the session's own steps vary by more than this, from the 10th to the 90th percentile.
SCATTERED = 3.0
#: The range around that of a model's call. Between the starts of both, the probe finds out what that one says.
_PHASE = r"^(forward|evaluation)$"
_ALL_STREAMS = np.isin(KINDS, ("device sync", "allocator"))
_BY_EVENT = np.array([kind in ("event sync", "await") for kind in KINDS])


@cached_on_trace
def replayed(trace: Trace) -> Calibrated | str:
    """Return the replayed step of a trace without profiler overhead; else why there is none."""
    main = main_thread(trace)
    if main is None:
        return "no host thread does any work"
    if not len(trace.device_work) and step_times(Scope.of(trace, Window())).host_ahead:
        return "XLA runs its work on the CPU beside the host, which is not replayed"
    low, high, step_count = stretch(trace, main)
    try:
        builder = GraphBuilder(
            trace,
            _blocking(trace),
            low,
            high,
            main,
            step_count,
            _peers(trace),
            fetches(trace),
            _kernels(trace),
            Coverage(*probe_intervals(trace)),
        )
        graph = builder.graph()
    except Unreplayable as error:
        return str(error)
    found = (
        calibrate(graph, None, recorded_events=False)
        if trace.as_captured
        else calibrate(graph, trace.uncaptured, recorded_events=trace.info.format == "kineto")
    )
    if not found.trusted:
        off = format_share(found.error)
        return f"the replayed step is {off} off the captured one (limit {format_share(TOLERANCE)})"
    return found


def stretch(trace: Trace, main: int) -> tuple[int, int, int]:
    """Return start and end of the replayed stretch, and its number of steps, limited for speed."""
    steps = trace.steps
    if not len(steps):
        mine = np.flatnonzero(trace.track_codes == main)
        start, end = int(trace.starts[mine].min()), int(trace.ends[mine].max())
        if in_part(trace):  # the middle, without startup and end of the run
            launches = trace.starts[trace.links.launches]
            first = (len(launches) - MAX_LAUNCHES) // 2
            start, end = int(launches[first]), int(launches[first + MAX_LAUNCHES])
        return start, end, 0
    order = np.argsort(steps.starts, kind="stable")
    starts, ends = steps.starts[order], steps.ends[order]
    launches = trace.starts[trace.links.launches]
    before, after = np.searchsorted(launches, starts), np.searchsorted(launches, np.maximum.accumulate(ends))
    counts = np.maximum(
        np.searchsorted(after, before + MAX_LAUNCHES, side="right") - np.arange(len(starts)), 1
    )
    limited = counts[after[-1] - before > MAX_LAUNCHES]
    # As many as most steps allow: of steps with few launches, such as those of an evaluation, more would fit.
    count = int(np.median(limited)) if len(limited) else len(starts)
    # Those that take about as long as most: the first captured step is often far longer.
    unusual = np.cumsum(np.append(0.0, np.abs(ends - starts - np.median(ends - starts))))
    possible = np.flatnonzero(counts[: len(counts) - count + 1] >= count)
    first = int(possible[np.argmin((unusual[count:] - unusual[:-count])[possible])])
    return int(starts[first]), int(ends[first : first + count].max()), count


def in_part(trace: Trace) -> bool:
    """Return whether only a part of a trace is replayed, because it is long and marks no steps."""
    return not len(trace.steps) and len(trace.links.launches) > MAX_LAUNCHES


@cached_on_trace
def main_thread(trace: Trace) -> int | None:
    """Return the track of the main thread: with the step markers, else with most launches or calls."""
    threads = np.array([track.kind == "thread" for track in trace.tracks] + [False])
    for rows in _of_main_thread(trace):
        tracks = trace.track_codes[rows]
        tracks = tracks[threads[tracks]]
        if len(tracks):
            return int(np.bincount(tracks).argmax())
    return None


def _of_main_thread(trace: Trace) -> Iterator[Ints]:
    """Yield rows most of which are probably the main thread's, the best sign first."""
    yield np.flatnonzero(trace.named(r"^ProfilerStep#\d+$") & trace.is_category("annotation", "cpu_op"))
    yield _forward_launches(trace)
    yield trace.links.launches
    # JAX step marks have arbitrary names. Waiting threads may have more calls than the main thread.
    yield np.flatnonzero(np.isin(trace.starts, trace.steps.starts) & trace.on_host)
    yield np.flatnonzero(trace.is_category("cpu_op", "python_function", "runtime", "driver"))


def _forward_launches(trace: Trace) -> Ints:
    """Return the launches that are probably the main thread's: of more than copies, and outside autograd nodes.

    The threads of those may launch as much as the main thread; JAX copies batches to the device in a thread of its own.
    """
    made, work = calls(trace), trace.device_work
    more = trace.links.launch_of[work[~trace.is_category("memcpy", "memset", rows=work)]]
    launches: Ints = trace.links.launches[np.isin(trace.links.launches, more)]
    inside = made.call_of_host_call[np.searchsorted(trace.host_calls, launches)]
    backward = np.append(made.backward, False)[inside]  # -1 (no call) reads the last entry
    forward: Ints = launches[~backward]
    return forward


@cached_on_trace
def probe_intervals(trace: Trace) -> tuple[Ints, Ints]:
    """Return when the probe looked at models that were called, as it does only in captures: starts and ends, ns."""
    models = np.flatnonzero(trace.named(MODEL_CALL) & trace.is_category("annotation"))
    phases = trace.nesting.parent[models]
    inside = phases >= 0
    inside[inside] = trace.named(_PHASE, phases[inside])
    ranges = np.flatnonzero(trace.named(PROBE_RANGE) & trace.is_category("annotation"))
    starts = np.concatenate((trace.starts[phases[inside]], trace.starts[ranges]))
    return union(starts, np.concatenate((trace.starts[models[inside]], trace.ends[ranges])))


def _kernels(trace: Trace) -> Ints:
    """Return the kernels that compute, without those that communicate."""
    work = trace.device_work
    return work[trace.is_category("kernel", rows=work) & ~calls(trace).works_of("collective")]


def _peers(trace: Trace) -> dict[int, int]:
    waits = peer_waits(trace)
    waiting = waits.ns > 0
    return dict(zip(waits.rows[waiting].tolist(), waits.ns[waiting].tolist(), strict=True))


def _blocking(trace: Trace) -> Waits:
    """Return the waits for the replay: a copy that blocks before its synchronize is a separate wait."""
    waits = _waits.find(trace, Window())
    by_profiler = waits.apart == _waits.BY_PROFILER
    twice = np.flatnonzero(
        (waits.first != waits.last) & (waits.copy >= 0) & (waits.starts == trace.starts[waits.first])
    )
    starts = waits.starts.copy()
    starts[twice] = trace.starts[waits.last[twice]]
    return Waits(
        np.concatenate((waits.last, waits.first[twice])),
        np.concatenate((starts, waits.starts[twice])),
        np.concatenate((waits.ends, trace.ends[waits.first[twice]])),
        np.concatenate((waits.copy, waits.copy[twice])),
        np.concatenate((_ALL_STREAMS[waits.kind], np.zeros(len(twice), dtype=bool))),
        np.concatenate((_BY_EVENT[waits.kind], np.zeros(len(twice), dtype=bool))),
        np.concatenate((by_profiler, by_profiler[twice])),
    )


def trust(trace: Trace) -> Trust:
    """Return the limitations of a trace, including the profiler slowdown of its steps."""
    known, step = trace.trust, replayed(trace)
    if isinstance(step, str):
        if not trace.device_indices:
            return known
        remark = Remark("not-replayed", f"savings cannot be predicted: {step}", level="info")
        return Trust(known.events, (*known.remarks, remark))
    own = step.uncaptured if step.basis == "session" else None
    if own is not None and own.high_ns > SCATTERED * own.low_ns:
        said = (
            f"steps took {format_ns(own.low_ns)} to {format_ns(own.high_ns)} before the capture, and "
            f"{format_ns(step.captured_ns)} in it: too far apart to tell the profiler's overhead, or a saving closely"
        )
    elif step.graph.step_count and step.captured_ns >= (1 + SLOWED) * step.step_ns:
        source = "as the session measured" if own is not None else "estimated from typical costs"
        said = (
            f"the profiler slowed a step from about {format_ns(step.step_ns)} to "
            f"{format_ns(step.captured_ns)}, {source}"
        )
    else:
        return known
    remark = Remark("slowed", said, "predicted savings are for a step without it", "info")
    return Trust(known.events, (*known.remarks, remark))


def opening(trace: Trace, title: str) -> Answer:
    """Return the page of a trace, without findings and lines of analyses."""
    step, trusted = replayed(trace), trust(trace)
    found = None if isinstance(step, str) else step
    return Answer(
        title,
        next((device.name for device in trace.info.devices if device.name), ""),
        len(trace.steps),
        found.step_ns if found else step_period_ns(trace),
        found.captured_ns if found else None,
        (found.graph.own_busy_ns or None) if found else None,
        None,
        trusted.text,
        all(remark.code == "slowed" for remark in trusted.remarks),
        in_part=trusted.level == "bad",
        step_is=_which_step(found) if found else "",
    )


def _which_step(step: Calibrated) -> str:
    if step.basis == "session" and step.uncaptured is not None:
        return f"{'after' if step.uncaptured.after_capture else 'before'} the capture"
    return "without the profiler" if step.basis == "table" else ""


#: A thread without events for this long does not launch work: it computes, or initializes a library; ns.
SILENT_NS = 1_000_000


def host_faster(
    trace: Trace, keep: float, *, silences: bool = True, within: tuple[Ints, Ints] | None = None
) -> Edit:
    """Return the edit in which the launching threads keep a share of their time: operators, Python and calls.

    Waits, data loading and callbacks of compiled functions stay as they are, as does what lies outside of some
    disjoint intervals.
    """
    main = main_thread(trace)
    if main is None:
        return Edit()
    low, high, _ = stretch(trace, main)
    inside = trace.between(low, high)
    others = np.concatenate((fetches(trace), trace.host_events(CALLBACK)))
    tracks = np.unique(trace.track_codes[trace.links.launches]).tolist()
    parts = []
    for track in sorted({*tracks, main}):
        apart = [(trace.starts[others], trace.ends[others])]
        if not silences:
            rows = inside[trace.track_codes[inside] == track]
            at = np.sort(np.concatenate(([low, high], trace.starts[rows], trace.ends[rows])))
            long = np.flatnonzero(np.diff(at) >= SILENT_NS)
            apart.append((at[long], at[long + 1]))
        if within is not None:
            apart.append(complement(*within, low, high))
        left, right = (np.concatenate(ends) for ends in zip(*apart, strict=True))
        starts, ends = complement(*union(left, right), low, high)
        parts.append((np.full(len(starts), track, dtype=np.int64), starts, ends, np.full(len(starts), keep)))
    return Edit(host=HostTime(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))


def launched_faster(trace: Trace, keep: float) -> Edit:
    """Return the edit in which launching work keeps a share of its time."""
    return host_faster(trace, keep, silences=False)
