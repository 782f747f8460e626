"""Where a device idles, and why."""

from __future__ import annotations

from math import inf

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.frames import Ancestry, ancestry_of
from tuiprof.analyses.shared.replay import replayed_steps
from tuiprof.analyses.shared.scope import Scope, device_word, no_device
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, Mask, total
from tuiprof.model.report import Chart, Level, Series, listed
from tuiprof.model.units import format_ns, format_share, plural

NAME, TITLE = "device_idle", "Idle"

#: Idle shares of the time between first and last work that are rated bad, or worth a look.
BAD_SHARE, WARN_SHARE = 0.30, 0.10
#: The title of the analysis with the source lines of a cause.
_MORE_IN = {
    "sync": "Syncs",
    "allocator": "Syncs",
    "collective wait": "Ranks",
    "compile": "Compile",
    "data loading": "Data",
    **dict.fromkeys(("runtime call", "operator", "Python", "launching"), "Launches"),
}
#: Time before the first and after the last work, as a share of that between them, from which on it is told apart.
_MUCH_OUTSIDE = 0.1
#: Gaps listed one by one.
_LONGEST = 200
#: From this share on, a cause is reported as the only one.
_ALL = 0.9995

_RULES = (
    Rule(
        "idle",
        "Time without any work (kernels, copies, fills, collectives) on any stream of a device, "
        "between its first and last work in the window. Time before and after is listed separately.",
    ),
    Rule(
        "cause",
        "Until the call that launched the work that ended the gap: what the host did on any thread "
        "that launches work, most specific first (sync, allocator, collective, compile, garbage "
        "collector, data loading, host callback, profiler, runtime call, operator, Python, unrecorded). From that "
        "call on: launching. If it was launched before the device ran dry: hand-over. Causes add up to "
        "idle exactly.",
    ),
    Rule("step of a gap", "The step of the call that launched the work that ended it."),
    Rule("verdict", f"bad from {format_share(BAD_SHARE)} idle, a warning from {format_share(WARN_SHARE)}."),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Find the gaps and their causes."""
    scope = Scope.of(trace, window)
    found = [_idle.gaps(trace, device, scope.low, scope.high) for device in trace.device_indices]
    found = [gaps for gaps in found if gaps.high > gaps.low]
    if not found:
        return _reported_use(trace, window) or _unavailable(trace)
    span = sum(gaps.high - gaps.low for gaps in found)
    idle = sum(int(gaps.ns.sum()) for gaps in found)
    in_steps = [gaps.in_steps(scope) for gaps in found]
    causes = _causes(scope, found, in_steps, span)
    before = sum(gaps.low - scope.low for gaps in found)
    after = sum(scope.high - gaps.high for gaps in found)
    uncaptured = _uncaptured(trace, window)
    per_step = None
    linked = any((gaps.launch >= 0).any() for gaps in found) or not any(len(gaps.ns) for gaps in found)
    if scope.step_count and linked:
        per_step = sum(int(g.ns[m].sum()) for g, m in zip(found, in_steps, strict=True)) / scope.step_count
    facts = (
        Fact(
            "idle_share", "idle", idle / span, "share", "Idle time between first and last work, as captured."
        ),
        Fact(
            "uncaptured_idle_share",
            "idle without the profiler",
            uncaptured[0] if uncaptured is not None else None,
            "share",
            "A step without the profiler minus the work of the busiest device.",
        ),
        Fact("idle_ns", "idle in all", idle, "ns"),
        Fact("idle_ns_per_step", "idle a step", per_step, "ns"),
        Fact("busy_ns", "busy", span - idle, "ns", "Union of all work over all streams."),
        Fact("work_ns", "work, sum over streams", _work_ns(trace, found), "ns", "Overlaps count twice."),
        Fact("before_first_ns", "before first work", before, "ns", "From the start of the window."),
        Fact("after_last_ns", "after last work", after, "ns", "To the end of the window."),
        Fact("gaps", "gaps", sum(len(gaps.starts) for gaps in found), "count"),
    )
    word, hosted = device_word(trace), bool(len(trace.host_calls))
    verdict = _verdict(causes, idle, span, per_step, word, uncaptured, before + after, hosted=hosted)
    notes = []
    if len(found) > 1:
        notes.append(f"{len(found)} devices: times are sums over all of them, shares are of all of them.")
    if not trace.is_category("python_function").any() and "unrecorded" in causes["cause"]:
        notes.append("No Python frames: time in Python between operators is `unrecorded`.")
    return Report(
        NAME,
        TITLE,
        verdict,
        facts,
        (_cause_table(scope, causes), _longest(trace, found), *_devices(found)),
        _RULES,
        tuple(notes),
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if len(trace.device_work):
        return Unavailable(NAME, "no device did any work in this window", "choose a wider window")
    return no_device(
        trace, NAME, "the CPU does the work itself", "see Operators (`kernels`) and Data (`data_loading`)"
    )


def _work_ns(trace: Trace, found: list[_idle.Gaps]) -> int:
    summed = 0
    for gaps in found:
        rows = trace.work_of(gaps.device)
        starts, ends = np.maximum(trace.starts[rows], gaps.low), np.minimum(trace.ends[rows], gaps.high)
        keep = ends > starts
        summed += total(starts[keep], ends[keep])
    return summed


def _causes(scope: Scope, found: list[_idle.Gaps], in_steps: list[Mask], span: int) -> pl.DataFrame:
    meaning = {**_idle.HOST_CAUSES, **_idle.DEVICE_CAUSES}
    idle = sum(int(gaps.ns.sum()) for gaps in found) or 1
    rows = []
    for cause in _idle.CAUSES:
        times = np.concatenate([gaps.of(cause) for gaps in found])
        stepped = sum(int(g.of(cause)[m].sum()) for g, m in zip(found, in_steps, strict=True))
        works = np.concatenate([gaps.work for gaps in found])
        rows.append(
            {
                "cause": cause,
                "idle_ns_per_step": stepped / scope.step_count if scope.step_count else None,
                "idle_ns": int(times.sum()),
                "share_of_idle": int(times.sum()) / idle,
                "share": int(times.sum()) / span,
                "gaps": int((times > 0).sum()),
                "longest_ns": int(times.max(initial=0)),
                "meaning": meaning[cause],
                "more_in": _MORE_IN.get(cause, ""),
                "event": int(works[times.argmax()]) if times.any() else None,
            }
        )
    return (
        pl.DataFrame(rows, schema_overrides={"idle_ns_per_step": pl.Float64, "event": pl.Int64})
        .filter(pl.col("idle_ns") > 0)
        .sort("idle_ns", descending=True)
    )


def _uncaptured(trace: Trace, window: Window) -> tuple[float, float] | None:
    """Return the idle share and the time (ns) of a step without the profiler; None if unknown, or as captured."""
    steps = replayed_steps(trace) if window.whole and len(trace.device_indices) == 1 else ""
    if isinstance(steps, str) or steps.usual.basis == "none" or not steps.step_ns:
        return None
    # How a single step of a trace follows the one before it is known from the session alone.
    if steps.usual.graph.step_count < (1 if steps.usual.basis == "session" else 2):
        return None
    return max(1 - steps.device_busy_ns / steps.step_ns, 0.0), steps.step_ns


def _verdict(
    causes: pl.DataFrame,
    idle: int,
    span: int,
    per_step: float | None,
    word: str,
    uncaptured: tuple[float, float] | None,
    outside: int,
    *,
    hosted: bool,
) -> Verdict:
    captured = idle / span
    share, step_ns = (captured, inf) if uncaptured is None else (min(uncaptured[0], captured), uncaptured[1])
    level: Level = "bad" if share >= BAD_SHARE else "warn" if share >= WARN_SHARE else "good"
    amount = f"{format_ns(per_step)} a step" if per_step is not None else format_ns(idle)
    if causes.is_empty():
        return Verdict(f"the {word} is never idle between its first and last work", "good")
    top = causes.row(0, named=True)
    part = "all" if top["share_of_idle"] >= _ALL else format_share(top["share_of_idle"])
    most = f"{part} of that while {top['meaning'].partition(':')[0]}"
    if top["cause"] == _idle.NOT_RECORDED:
        most = (
            f"{part} of that unexplained: {top['meaning'] if hosted else 'the trace has no calls of a host'}"
        )
    # Idle time longer than a step is that of captured steps, which are not as most are.
    if share < 0.9 * captured or (per_step or 0.0) > step_ns:
        return Verdict(
            f"the {word} is idle about {format_share(share)} of a step without the profiler, {format_share(captured)} "
            f"({format_ns(idle if per_step is None else per_step)}) while captured; {most}",
            level,
        )
    within = " from its first work to its last" if outside > _MUCH_OUTSIDE * span else ""
    return Verdict(
        f"the {word} is idle {format_share(captured)} of the time{within} ({amount}); {most}", level
    )


def _cause_table(scope: Scope, causes: pl.DataFrame) -> Table:
    stepped = bool(scope.step_count)
    columns = (
        Column("cause", "cause", "text"),
        Column("idle_ns_per_step", "idle/step", "ns", "Idle time a step.", hidden=not stepped),
        Column("idle_ns", "idle", "ns", "Idle time in all.", hidden=stepped),
        Column("share", "of time", "share", "Of the time between first and last work."),
        Column("share_of_idle", "of idle", "share"),
        Column("gaps", "gaps", "count", "Gaps to which the cause contributes."),
        Column("longest_ns", "longest", "ns"),
        Column("meaning", "meaning", "text"),
        Column("more_in", "more in", "text", "The analysis that names the source lines.", hidden=True),
        Column("event", "event", "count", hidden=True),
    )
    return Table(
        "causes",
        "Idle time by cause",
        columns,
        causes,
        empty="the device is never idle",
        chart=Chart(
            f"Idle time by cause{', a step' if stepped else ''}",
            (Series("idle_ns_per_step" if stepped else "idle_ns"),),
            at="cause",
            form="bars",
        ),
    )


def _longest(trace: Trace, found: list[_idle.Gaps]) -> Table:
    """List the longest gaps with the work before and after, and the location of the host."""
    length = np.concatenate([gaps.ns for gaps in found])
    least = np.partition(length, -_LONGEST)[-_LONGEST] if len(length) > _LONGEST else 0
    long = [np.flatnonzero(gaps.ns >= least) for gaps in found]
    order = np.argsort(-length[length >= least], kind="stable")[:_LONGEST]
    starts, ends, work, launch = (
        np.concatenate([getattr(gaps, name)[mine] for gaps, mine in zip(found, long, strict=True)])[order]
        for name in ("starts", "ends", "work", "launch")
    )
    causes = np.array(
        [
            np.concatenate([gaps.of(cause)[mine] for gaps, mine in zip(found, long, strict=True)])[order]
            for cause in _idle.CAUSES
        ]
    )
    device = np.repeat([gaps.device for gaps in found], [len(mine) for mine in long])[order]
    ancestry = ancestry_of(trace, np.maximum(launch, 0))
    before = _ended_at(trace, starts)
    step = trace.steps.step_of[np.maximum(launch, 0)]
    rows = {
        "start_ns": starts,
        "idle_ns": ends - starts,
        "device": device,
        "step": [
            str(trace.steps.numbers[s]) if s >= 0 and row >= 0 else ""
            for s, row in zip(step.tolist(), launch.tolist(), strict=True)
        ],
        "cause": [_idle.CAUSES[i] for i in causes.argmax(axis=0).tolist()] if len(order) else [],
        "where": [_location(trace, ancestry, i) if row >= 0 else "" for i, row in enumerate(launch.tolist())],
        "before": [_kernel_names.short_name(trace.name(row)) for row in before.tolist()],
        "after": [_kernel_names.short_name(trace.name(row)) for row in work.tolist()],
        "event": work,
    }
    texts = dict.fromkeys(("step", "cause", "where", "before", "after"), pl.String)
    columns = (
        Column("start_ns", "at", "ns", "When the device ran dry."),
        Column("idle_ns", "idle", "ns"),
        Column("step", "step", "text"),
        Column("cause", "main cause", "text", "The cause with the largest share."),
        Column(
            "where",
            "next launch from",
            "text",
            "Where the host launched the work that ended the gap.",
            elide="start",
        ),
        Column("after", "ended by", "text", "The work that ended the gap."),
        Column("before", "after", "text", "The work before it.", hidden=True),
        Column("device", "device", "count", hidden=len(found) == 1),
        Column("event", "event", "count", hidden=True),
    )
    return Table(
        "longest", "Longest gaps", columns, pl.DataFrame(rows, schema_overrides=texts), empty="no gaps"
    )


def _ended_at(trace: Trace, instants: Ints) -> Ints:
    """Return the row of the device work that ends at each instant; if several do, the one that started last."""
    moments, inverse = np.unique(instants, return_inverse=True)
    ends = trace.ends[trace.device_work]
    at = np.searchsorted(moments, ends)
    met = np.flatnonzero(moments[np.minimum(at, len(moments) - 1)] == ends) if len(moments) else at[:0]
    rows = np.zeros(len(moments), dtype=np.int64)
    rows[at[met]] = trace.device_work[met]  # in order of start, so the last stays
    return rows[inverse]


def _location(trace: Trace, ancestry: Ancestry, i: int) -> str:
    """Return the origin of a launch: the user function, else the named range, else the outermost operator."""
    frame, range_, operator = ancestry.frames[i, 0], ancestry.annotation[i], ancestry.outer_operator[i]
    if frame >= 0:
        return _frames.function_label(trace.names[int(frame)])
    if range_ >= 0:
        return trace.names[int(range_)]
    return _frames.operator_label(trace.names[int(operator)]) if operator >= 0 else ""


def _devices(found: list[_idle.Gaps]) -> list[Table]:
    if len(found) < 2:
        return []
    spans = [(gaps, gaps.high - gaps.low, int(gaps.ns.sum())) for gaps in found]
    rows = [(gaps.device, idle / span, idle, span - idle, len(gaps.starts)) for gaps, span, idle in spans]
    columns = (
        Column("device", "device", "count"),
        Column("idle_share", "idle", "share"),
        Column("idle_ns", "idle", "ns"),
        Column("busy_ns", "busy", "ns"),
        Column("gaps", "gaps", "count"),
    )
    return [Table("devices", "By device", columns, listed(columns, rows))]


ANALYSIS = Analysis(NAME, TITLE, "When is the device idle, and why?", run, order=30, without_events=True)


#: Counter series of device utilization, and of memory in use.
_UTIL, _MEMORY = "util", "mem_used_bytes"

_REPORTED_RULES = (
    Rule(
        "utilisation",
        "Share of each report's period in which a device worked, as measured by the monitor; the mean "
        "is over reports that name the device.",
    ),
)


def _reported_use(trace: Trace, window: Window) -> Report | Unavailable | None:
    """Report device utilization from counters; None if the trace is not such a recording."""
    if trace.counters is None or not any(remark.code == "telemetry-only" for remark in trace.stats.remarks):
        return None
    low, high = window.start_ns, window.end_ns
    counters = trace.counters.filter(
        pl.col("ts").is_between(0 if low is None else low, pl.Int64.max() if high is None else high)
    )
    devices = _use_by_device(counters)
    known = len(trace.info.devices)
    if devices.is_empty():
        return Unavailable(
            NAME,
            f"no report names a device in use (of {known})" if known else "no report names a device",
            "record while a model runs",
        )
    reports = counters["ts"].n_unique()
    span = int(counters["ts"].max()) - int(counters["ts"].min())  # type: ignore[arg-type]
    mean = float(devices["util_mean"].mean())  # type: ignore[arg-type]
    peak = float(devices["util_max"].max())  # type: ignore[arg-type]
    count = len(devices)
    over = plural(reports, "report") + (f", {format_ns(span)}" if span else "")
    idle = f"; the other {known - count} of {known} are not in use" if known > count else ""
    columns = (
        Column("device", "device"),
        Column("util_mean", "mean", "share"),
        Column("util_max", "highest", "share"),
        Column("mem_used_bytes", "peak memory", "bytes"),
        Column("reports", "reports", "count"),
    )
    return Report(
        NAME,
        TITLE,
        Verdict(
            f"{plural(count, 'device')} worked {format_share(mean)} of the time on average, at most "
            f"{format_share(peak)} ({over}){idle}. Only a profile shows why they are idle"
        ),
        (
            Fact("idle_share", "idle", 1 - mean, "share", "100 % minus the mean utilisation."),
            Fact("idle_ns_per_step", "idle a step", None, "ns"),
            Fact("reported_util_mean", "utilisation", mean, "share", "Mean over the devices in use."),
            Fact("reported_util_max", "highest", peak, "share", "One device in one report."),
            Fact("reports", "reports", reports, "count"),
            Fact("reported_span_ns", "over", span, "ns", "From the first report to the last."),
        ),
        (Table("devices", "Utilisation by device", columns, devices),),
        _REPORTED_RULES,
        window=window,
    )


def _use_by_device(counters: pl.DataFrame) -> pl.DataFrame:
    """Return mean and maximum utilization by device, without the overall figure if each device has one."""
    value, series = pl.col("value"), pl.col("series")
    found = (
        counters.group_by("name", maintain_order=True)
        .agg(
            value.filter(series == _UTIL).mean().alias("util_mean"),
            value.filter(series == _UTIL).max().alias("util_max"),
            value.filter(series == _MEMORY).max().cast(pl.Int64, strict=False).alias("mem_used_bytes"),
            (series == _UTIL).sum().cast(pl.Int64).alias("reports"),
        )
        .filter(pl.col("reports") > 0)
        .rename({"name": "device"})
    )
    apart = found.filter(pl.col("device").str.contains(r"\d$"))
    return apart if len(apart) else found
