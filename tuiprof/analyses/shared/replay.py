"""The replayed step of a trace, computed once; what the profiler added to it, and the page that begins with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.collectives import peer_waits
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.idle import CALLBACK
from tuiprof.analyses.shared.model_calls import MODEL_CALL, PROBE_RANGE
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.analyses.shared.scope import Scope, step_period_ns, step_times
from tuiprof.analyses.shared.stretches import IN_MOST, long_stretches, new_sizes
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.analyses.shared.waits import KINDS
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Ints, Mask, complement, total, union
from tuiprof.model.report import Answer
from tuiprof.model.steps import Uncaptured
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.trust import Remark, Trust
from tuiprof.model.units import format_count, format_ns, format_share, plural
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.build import GraphBuilder, Unreplayable, Waits
from tuiprof.whatif.graph import MIN_STEPS, Graph
from tuiprof.whatif.replay import TOLERANCE, Calibrated, Kinds, calibrate

#: Maximum number of replayed launches if steps can be omitted or none are marked, so that a replay takes milliseconds.
MAX_LAUNCHES = 5_000
#: Minimum profiler slowdown to report.
SLOWED = 0.05
#: With less of a slowdown, a step without the profiler counts as long as the captured one.
_NO_COST: Final = 0.005
#: Not reported if the session's own steps vary by more than this, from the 10th to the 90th percentile.
SCATTERED = 3.0
#: The range around that of a model's call. Between the starts of both, the probe finds out what that one says.
_PHASE = r"^(forward|evaluation)$"
_ALL_STREAMS = np.isin(KINDS, ("device sync", "allocator"))
#: Work that ends so much later than a call, ns, was not waited for, whatever the clocks of host and device differ by.
_PENDING_NS: Final = 20_000
_BY_EVENT = np.array([kind in ("event sync", "await") for kind in KINDS])


@cached_on_trace
def replayed(trace: Trace) -> Calibrated | str:
    """Return the replayed step of a trace without profiler overhead; else why there is none."""
    main = main_thread(trace)
    if main is None:
        return "no host thread does any work"
    if not len(trace.device_work) and step_times(Scope.of(trace, Window())).host_ahead:
        return "XLA runs its work on the CPU beside the host, which is not replayed"
    long, begun = _long_steps(trace), warm_up(trace)
    seen = trace.uncaptured
    if begun is not None:
        seen = begun.after
    elif long is not None:
        seen = long.usual
    elif (together := awaited_together(trace)) is not None:
        seen = together
    return _calibrated(trace, main, *stretch(trace, main), seen)


#: A session with so many stretches of short steps that a long one ends, in which the host waits for all of them, shows
#: what a step takes on average. A captured step keeps the device busy for as long, up to this share; the host takes
#: less for most steps, by more than this share.
_MIN_STRETCHES: Final = 3
_AGREES: Final = 0.1


@cached_on_trace
def awaited_together(trace: Trace) -> Uncaptured | None:
    """Return the session's steps if a device sets their pace, and the host waits for several at once; None = not so.

    Then the host takes much less for most steps than the device, and one step of several takes as long as the device
    is behind. On average a step takes what the device does.
    """
    seen, count = trace.uncaptured, len(trace.steps)
    work = trace.device_work[trace.steps.step_of[trace.device_work] >= 0]
    if seen is None or trace.as_captured or count < MIN_STEPS or not len(work):
        return None
    busy_ns = total(*union(trace.starts[work], trace.ends[work])) / count
    for times, is_after in ((seen.times_ns, seen.after_capture), (seen.later_ns, True)):
        found = np.array(times, dtype=np.int64)
        ends = np.flatnonzero(are_long(found)) + 1
        if len(ends) <= _MIN_STRETCHES:
            continue
        # Of the first stretch, the beginning is missing.
        means = np.add.reduceat(found[: ends[-1]], ends[:-1]) / np.diff(ends)
        mean_ns, host_ns = float(found[ends[0] : ends[-1]].mean()), float(np.median(found))
        if abs(busy_ns - mean_ns) <= _AGREES * mean_ns and host_ns < (1 - _AGREES) * busy_ns:
            each = np.rint(np.repeat(means, np.diff(ends))).astype(np.int64)
            rare = replace(seen.collections, shown=0.0) if seen.collections is not None else None
            of = replace(_only(seen, each), step_ns=mean_ns, host_ns=host_ns, is_mean=True, collections=rare)
            return replace(of, after_capture=is_after, later_ns=(), last_ns=())
    return None


#: The captured steps are those of a warm-up if so many of them have first uses of a new size, steps before the capture
#: take so many times as long as the last ones of the run, of which so many are known, and a captured step without first
#: uses takes between these multiples of a last one, or so much longer, ns (the profiler).
_SLOWER: Final = 2.0
MIN_LAST: Final = 20
_RESEMBLES: Final = (0.5, 4.0, 20_000_000)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A capture of steps that prepare kernels for new sizes, as the last steps of the run do not."""

    starts: Ints  # when kernels are prepared, ns, shape ``(k,)``
    ends: Ints  # likewise
    in_step_ns: float  # what that takes in a captured step
    calls: str  # the operators that do
    after: Uncaptured  # the last steps of the run

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            f"the captured steps prepare kernels for new sizes ({self.calls}, {format_ns(self.in_step_ns)} a step), as "
            f"the first steps of the run do; its last {format_count(self.after.steps)}, of "
            f"{format_ns(self.after.step_ns)}, do not"
        )


@cached_on_trace
def warm_up(trace: Trace) -> WarmUp | None:
    """Return what the captured steps prepare that later steps of the run find prepared; None = they are like those."""
    seen, steps = trace.uncaptured, trace.steps
    if seen is None or len(seen.last_ns) < MIN_LAST or len(steps) < MIN_STEPS or trace.as_captured:
        return None
    found, which = long_stretches(trace), new_sizes(trace)
    inside = found.inside[which]
    lengths = (found.ends - found.starts)[which]
    in_step = np.bincount(steps.step_of[inside], weights=lengths, minlength=len(steps))
    after = _only(replace(seen, later_ns=(), after_capture=True), np.array(seen.last_ns))
    rest_ns = float(np.median(steps.lengths - in_step))
    least, most, longer_ns = _RESEMBLES
    if (
        np.mean(in_step > 0) < IN_MOST
        or seen.step_ns < _SLOWER * after.step_ns
        or not least * after.step_ns <= rest_ns <= max(most * after.step_ns, after.step_ns + longer_ns)
    ):
        return None
    calls_of = list(dict.fromkeys(operator_label(trace.name(row)) for row in inside.tolist()))
    # What was known of the host, of batches and of phases is of the other steps.
    after = replace(after, host_ns=None, slowed_ns={}, fetch_ns=None, phases_ns={}, last_ns=())
    return WarmUp(
        found.starts[which], found.ends[which], float(np.median(in_step)), ", ".join(calls_of), after
    )


def stands_for_last_steps(trace: Trace) -> bool:
    """Return whether savings are for the last steps of a run, although the captured ones are unlike them."""
    return warm_up(trace) is not None and not isinstance(replayed(trace), str)


def _calibrated(
    trace: Trace, main: int, low: int, high: int, step_count: int, uncaptured: Uncaptured | None
) -> Calibrated | str:
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
            Coverage(*_only_captured(trace)),
        )
        graph = builder.graph()
    except Unreplayable as error:
        return str(error)
    if trace.as_captured:
        found = calibrate(graph, None, recorded_events=False)
    else:
        recorded_events = trace.info.format == "kineto"
        usual = _with_usual_batches(trace, graph, uncaptured)
        found = calibrate(usual, uncaptured, recorded_events=recorded_events, phases=_phases(trace))
        if usual is not graph:
            found = replace(found, with_early_batches=graph)
    if not found.trusted:
        off = format_share(found.error)
        return f"the replayed step is {off} off the captured one (limit {format_share(TOLERANCE)})"
    return found


#: Batches come early in a capture if steps of the session wait for them longer by more than this share of the step.
_EARLY: Final = 0.03


def _with_usual_batches(trace: Trace, graph: Graph, uncaptured: Uncaptured | None) -> Graph:
    """Return the captured step, waiting for its batches for as long as in the session.

    While a profiler starts, the workers of a loader get ahead, so that the captured steps find their batches ready.
    """
    if uncaptured is None or uncaptured.fetch_ns is None:
        return graph
    rows = fetches(trace)
    rows = rows[
        (trace.starts[rows] >= graph.low)
        & (trace.ends[rows] <= graph.high)
        & (trace.track_codes[rows] == graph.tracks[0])
    ]
    later_ns = graph.step_count * uncaptured.fetch_ns - float(trace.lengths(rows).sum())
    if not len(rows) or later_ns <= graph.step_count * _EARLY * uncaptured.step_ns:
        return graph
    main = graph.clocks[0].later(trace.starts[rows], trace.ends[rows], later_ns / len(rows))
    return replace(graph, clocks=(main, *graph.clocks[1:]))


@cached_on_trace
def _phases(trace: Trace) -> dict[str, Coverage]:
    """Return when the phases run that the probe times as well; empty = the steps have none."""
    passes = [calls(trace).rows[nodes] for nodes in calls(trace).backward_passes()]
    backward = np.array(
        [(trace.starts[rows].min(), trace.ends[rows].max()) for rows in passes], dtype=np.int64
    )
    found = updates(trace)
    phases = {"backward": backward.reshape(-1, 2), "optimizer": np.stack((found.starts, found.ends), axis=1)}
    return {name: Coverage(*union(*spans.T)) for name, spans in phases.items() if len(spans)}


#: Steps that take this many times as long as the median, and call so many times as many operators, are another kind of
#: step: with a rollout, or an evaluation. PPO's updates beside a loop over time that computes advantages take 2.75
#: times as long as the others (H200), and call 16 times as many; interruptions call no more operators.
_LONG, _CALLS_MORE = 2.0, 2.0
#: They count from this share of the session's time.
_MIN_LONG: Final = 0.2


@dataclass(frozen=True, slots=True)
class _LongSteps:
    """Steps of another kind."""

    captured: Ints  # as indices into the steps of the trace
    usual: Uncaptured  # the other steps of the session
    long: Uncaptured  # those of the session
    count: int  # how many steps of the session are long …
    of: int  # … of how many


@cached_on_trace
def _long_steps(trace: Trace) -> _LongSteps | None:
    """Return the steps of another kind; None = there are none, none is captured, or they take little time.

    The first captured step does not count: the profiler begins in it.
    """
    seen, lengths = trace.uncaptured, trace.steps.lengths
    if seen is None or not seen.times_ns or trace.as_captured or len(lengths) < MIN_STEPS:
        return None
    times, later = (np.array(found, dtype=np.int64) for found in (seen.times_ns, seen.later_ns))
    long, long_later = are_long(times), are_long(later)
    every = np.concatenate((times[long], later[long_later]))
    steps = trace.steps.step_of[trace.operators()]
    count = np.bincount(steps[steps >= 0], minlength=len(lengths))
    captured = (lengths >= _LONG * np.median(lengths)) & (count >= _CALLS_MORE * np.median(count))
    captured[np.argmin(trace.steps.starts)] = False
    if every.sum() < _MIN_LONG * (times.sum() + later.sum()) or not captured.any():
        return None
    return _LongSteps(
        np.flatnonzero(captured),
        _only(seen, times[~long]),
        _only(seen, times[long] if long.any() else every),
        len(every),
        len(times) + len(later),
    )


def are_long(times: Ints) -> Mask:
    """Return which steps take several times as long as the median, and at least half as long as most of that time.

    Shorter ones may be interrupted.
    """
    if not len(times):
        return np.zeros(0, dtype=bool)
    long: Mask = times >= _LONG * np.median(times)
    ascending = np.sort(times[long])
    taken = np.cumsum(ascending)
    if len(taken):
        long &= 2 * times >= ascending[np.searchsorted(taken, taken[-1] / 2)]
    return long


def _only(seen: Uncaptured, times: Ints) -> Uncaptured:
    """Return some of the steps of a session."""
    low, median, high = np.percentile(times, (10, 50, 90)).tolist()
    return replace(
        seen, steps=len(times), step_ns=median, low_ns=low, high_ns=high, times_ns=tuple(times.tolist())
    )


@cached_on_trace
def replayed_steps(trace: Trace) -> Kinds | str:
    """Return the replayed steps of a trace: the usual one, and one of another kind if it was captured too."""
    usual, found, main = replayed(trace), _long_steps(trace), main_thread(trace)
    if isinstance(usual, str) or found is None or main is None:
        return usual if isinstance(usual, str) else Kinds(usual)
    step = int(found.captured[np.argsort(trace.steps.lengths[found.captured])[len(found.captured) // 2]])
    low, high = int(trace.steps.starts[step]), int(trace.steps.ends[step])
    # The steps in which the host runs ahead are the usual ones.
    long = _calibrated(trace, main, low, high, 1, replace(found.long, host_ns=None))
    return Kinds(usual) if isinstance(long, str) else Kinds(usual, long, found.count, found.of)


def stretch(trace: Trace, main: int) -> tuple[int, int, int]:
    """Return start and end of the replayed stretch, and its number of steps, limited for speed."""
    steps = trace.steps
    if not len(steps):
        if in_part(trace):  # the middle, without startup and end of the run
            launches = trace.links.launches
            first = (len(launches) - MAX_LAUNCHES) // 2
            return int(trace.starts[launches[first]]), int(trace.starts[launches[first + MAX_LAUNCHES]]), 0
        mine = np.flatnonzero(trace.track_codes == main)
        return int(trace.starts[mine].min()), int(trace.ends[mine].max()), 0
    order = np.argsort(steps.starts, kind="stable")
    if (long := _long_steps(trace)) is not None:  # the usual ones alone
        order = max(np.split(order, np.flatnonzero(np.isin(order, long.captured))), key=len)
        order = order[~np.isin(order, long.captured)]
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
def probe_intervals(trace: Trace) -> tuple[Ints, Ints]:
    """Return when the probe looked at models that were called, as it does only in captures: starts and ends, ns."""
    models = np.flatnonzero(trace.named(MODEL_CALL) & trace.is_category("annotation"))
    phases = trace.nesting.parent[models]
    inside = phases >= 0
    inside[inside] = trace.named(_PHASE, phases[inside])
    ranges = np.flatnonzero(trace.named(PROBE_RANGE) & trace.is_category("annotation"))
    starts = np.concatenate((trace.starts[phases[inside]], trace.starts[ranges]))
    return union(starts, np.concatenate((trace.starts[models[inside]], trace.ends[ranges])))


def _only_captured(trace: Trace) -> tuple[Ints, Ints]:
    """Return what only captured steps have: the probe's looking at models, and what a warm-up prepares."""
    (starts, ends), begun = probe_intervals(trace), warm_up(trace)
    if begun is None:
        return starts, ends
    return union(np.concatenate((starts, begun.starts)), np.concatenate((ends, begun.ends)))


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
    mine = ~_not_waiting(trace, waits)
    twice = np.flatnonzero(
        mine & (waits.first != waits.last) & (waits.copy >= 0) & (waits.starts == trace.starts[waits.first])
    )
    starts = waits.starts.copy()
    starts[twice] = trace.starts[waits.last[twice]]
    return Waits(
        np.concatenate((waits.last[mine], waits.first[twice])),
        np.concatenate((starts[mine], waits.starts[twice])),
        np.concatenate((waits.ends[mine], trace.ends[waits.first[twice]])),
        np.concatenate((waits.copy[mine], waits.copy[twice])),
        np.concatenate((_ALL_STREAMS[waits.kind[mine]], np.zeros(len(twice), dtype=bool))),
        np.concatenate((_BY_EVENT[waits.kind[mine]], np.zeros(len(twice), dtype=bool))),
        np.concatenate((by_profiler[mine], by_profiler[twice])),
    )


def _not_waiting(trace: Trace, waits: _waits.Waits) -> Mask:
    """Return which calls of the allocator are of a kind that does not wait: one returned while work was pending.

    ``cudaMalloc`` waits for the device on some systems, and for nothing on others.
    """
    allocator = waits.kind == KINDS.index("allocator")
    work = trace.device_work[trace.links.launch_of[trace.device_work] >= 0]
    if not allocator.any() or not len(work) or len(trace.device_indices) > 1:
        return np.zeros(len(allocator), dtype=bool)
    launched = trace.starts[trace.links.launch_of[work]]
    order = np.argsort(launched, kind="stable")
    ends = np.append(np.maximum.accumulate(trace.ends[work[order]]), 0)  # -1 reads the last one
    before = np.searchsorted(launched[order], waits.starts) - 1
    pending = allocator & (ends[before] > waits.ends + _PENDING_NS)
    names = trace.name_codes[waits.last]
    result: Mask = allocator & np.isin(names, names[pending])
    return result


def trust(trace: Trace) -> Trust:
    """Return the limitations of a trace, including the profiler slowdown of its steps."""
    known, step = trace.trust, replayed(trace)
    if isinstance(step, str):
        if not trace.device_indices:
            return known
        remark = Remark("not-replayed", f"savings cannot be predicted: {step}", level="info")
        return Trust(known.events, (*known.remarks, remark))
    own, captured_ns = (
        step.uncaptured if step.basis == "session" else None,
        captured_step_ns(trace, Kinds(step)),
    )
    if (begun := warm_up(trace)) is not None:
        remark = Remark("warm-up", str(begun), "predicted savings are for a step like the last ones", "info")
        return Trust(known.events, (*known.remarks, remark))
    if own is not None and own.high_ns > SCATTERED * own.low_ns:
        said = (
            f"steps took {format_ns(own.low_ns)} to {format_ns(own.high_ns)} before the capture, "
            f"{format_ns(captured_ns)} in it (median): the profiler's overhead and savings are rough estimates"
        )
    elif step.graph.step_count and captured_ns >= (1 + SLOWED) * step.step_ns:
        source = "as the session measured" if own is not None else "estimated from typical costs"
        said = (
            f"the profiler slowed a step from about {format_ns(step.step_ns)} to "
            f"{format_ns(captured_ns)}, {source}"
        )
    else:
        return known
    remark = Remark("slowed", said, "predicted savings are for a step without it", "info")
    return Trust(known.events, (*known.remarks, remark))


def opening(trace: Trace, title: str) -> Answer:
    """Return the page of a trace, without findings and lines of analyses."""
    steps, trusted = replayed_steps(trace), trust(trace)
    found = None if isinstance(steps, str) else steps
    return Answer(
        title,
        next((device.name for device in trace.info.devices if device.name), ""),
        len(trace.steps),
        found.step_ns if found else step_period_ns(trace),
        captured_step_ns(trace, found) if found else None,
        (found.busy_ns or None) if found else None,
        None,
        trusted.text,
        trusted.level in ("good", "info"),
        limited=any(remark.code != "slowed" for remark in trusted.remarks),
        in_part=trusted.level == "bad",
        step_is=which_step(found) if found else "",
        captured_is=("mean" if _is_mean(found) else "median") if found and len(trace.steps) > 1 else "",
    )


def captured_step_ns(trace: Trace, steps: Kinds) -> float:
    """Return the time of a captured step, ns: the median of them, as for steps without the profiler.

    Where savings are the mean over steps of two kinds, or are for the step as captured, it is the replayed mean.
    """
    period_ns = step_period_ns(trace)
    return steps.captured_ns if period_ns is None or _is_mean(steps) else period_ns


def _is_mean(steps: Kinds) -> bool:
    return steps.long is not None or steps.usual.basis == "none" or _costs_nothing(steps.usual)


def _costs_nothing(step: Calibrated) -> bool:
    """Return whether a step takes as long without typical recording costs: the device sets its pace."""
    return step.basis == "table" and step.step_ns > (1 - _NO_COST) * step.captured_ns


def which_step(steps: Kinds, *, with_rare: bool = False) -> str:
    """Return which steps the base of the savings is of: ``median of 24 steps before the capture``; empty = one.

    ``with_rare``: rare long steps are averaged into it.
    """
    step = steps.usual
    if step.basis == "session" and step.uncaptured is not None:
        if steps.long is not None:
            return f"mean of {plural(steps.count, 'step')} of the session"
        where = "after" if step.uncaptured.after_capture else "before"
        kind = "mean" if with_rare or step.uncaptured.is_mean else "median"
        return f"{kind} of {plural(step.uncaptured.steps, 'step')} {where} the capture"
    if step.basis == "table" and not _costs_nothing(step):
        return "without the profiler"
    return f"mean of {plural(step.graph.step_count, 'captured step')}" if step.graph.step_count > 1 else ""


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
    others = np.concatenate((fetches(trace), trace.host_events(CALLBACK)))
    tracks = np.unique(trace.track_codes[trace.links.launches]).tolist()
    parts = []
    for track, (low, high) in product(sorted({*tracks, main}), _stretches(trace, main)):
        apart = [(trace.starts[others], trace.ends[others])]
        if not silences:
            rows = trace.between(low, high)
            rows = rows[trace.track_codes[rows] == track]
            at = np.sort(np.concatenate(([low, high], trace.starts[rows], trace.ends[rows])))
            long = np.flatnonzero(np.diff(at) >= SILENT_NS)
            apart.append((at[long], at[long + 1]))
        if within is not None:
            apart.append(complement(*within, low, high))
        left, right = (np.concatenate(ends) for ends in zip(*apart, strict=True))
        starts, ends = complement(*union(left, right), low, high)
        parts.append((np.full(len(starts), track, dtype=np.int64), starts, ends, np.full(len(starts), keep)))
    return Edit(host=HostTime(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))


def _stretches(trace: Trace, main: int) -> list[tuple[int, int]]:
    """Return start and end of all that is replayed."""
    found, steps = [stretch(trace, main)[:2]], replayed_steps(trace)
    if isinstance(steps, Kinds) and steps.long is not None:
        found.append((steps.long.graph.low, steps.long.graph.high))
    return found


def launched_faster(trace: Trace, keep: float) -> Edit:
    """Return the edit in which launching work keeps a share of its time."""
    return host_faster(trace, keep, silences=False)
