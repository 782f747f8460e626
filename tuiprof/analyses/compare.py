"""What changed between two traces: by step, by kind of work, by kernel, operator and sync."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from tuiprof.analyses import run
from tuiprof.analyses._scope import Scope
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Kind, Level
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "compare", "Compare"

#: A difference of medians is called sure from this many standard errors on; told from so many steps a side on.
SURE_ERRORS, LEAST_STEPS = 3.0, 4
#: Below this share a difference is called none.
SAME_SHARE = 0.01

_RULES = (
    Rule(
        "per step",
        "Per step where both traces mark steps, else per trace; names are matched exactly.",
    ),
    Rule(
        "sure",
        f"The medians differ by {SURE_ERRORS:g} standard errors or more (from the median absolute deviation of the "
        f"step times of both), with at least {LEAST_STEPS} steps on each side.",
    ),
    Rule("same", f"Below {format_share(SAME_SHARE)} of the step time."),
)
_METRICS: tuple[tuple[str, str, str, Kind], ...] = (
    ("steps", "step_median_ns", "step time, median", "ns"),
    ("steps", "device_busy_ns_per_step", "device busy a step", "ns"),
    ("device_idle", "idle_ns_per_step", "device idle a step", "ns"),
    ("device_idle", "idle_share", "device idle", "share"),
    ("sync_events", "syncs_per_step", "syncs a step", "count"),
    ("sync_events", "device_starved_ns_per_step", "starved by syncs a step", "ns"),
    ("sync_events", "can_win_ns_per_step", "to be won from syncs a step", "ns"),
    ("sync_events", "host_wait_ns_per_step", "host waits a step", "ns"),
    ("kernel_launches", "launches_per_step", "launches a step", "count"),
    ("kernel_launches", "launch_host_ns_per_step", "host time in launches a step", "ns"),
    ("kernel_launches", "launch_bound_share", "idle for want of launches", "share"),
    ("data_loading", "data_wait_ns_per_step", "waiting for a batch a step", "ns"),
)


def compare(
    before: Trace, after: Trace, before_window: Window | None = None, after_window: Window | None = None
) -> Report:
    """Compare two traces of what is meant to be the same work.

    Args:
        before: The baseline.
        after: What to judge.
        before_window: The part of the baseline to look at; None = all of it.
        after_window: The part of the other.

    Returns:
        A report of its own; differences are after minus before, so negative is faster.
    """
    sides = (
        Scope.of(before, before_window or Window()),
        Scope.of(after, after_window or Window()),
    )
    reports = [
        {name: run(name, side.trace, side.window) for name in dict.fromkeys(metric[0] for metric in _METRICS)}
        for side in sides
    ]
    metrics = []
    for analysis, key, label, kind in _METRICS:
        old, new = (_figure(report[analysis], key) for report in reports)
        metrics.append((key, label, kind, old, new))
    verdict, sure = _verdict(sides, metrics)
    facts = [
        Fact(f"{key}_change", label, new - old if old is not None and new is not None else None, kind)
        for key, label, kind, old, new in metrics
    ]
    facts.insert(0, Fact("sure", "sure", sure, "text"))
    stepped = all(side.step_count for side in sides)
    return Report(
        NAME,
        TITLE,
        verdict,
        tuple(facts),
        (
            _metric_table(metrics),
            _changes("kernels", "Device work by name", sides, stepped, _device_times),
            _changes("operators", "Operators by host time", sides, stepped, _operator_times),
            _changes("syncs", "Syncs by place", sides, stepped, _sync_times),
        ),
        _RULES,
        ()
        if stepped
        else ("Not both traces mark steps: totals of the traces are compared, whatever their length.",),
    )


def _figure(report: Report | Unavailable, key: str) -> float | None:
    """Return a figure; None where the analysis, or it alone, cannot tell."""
    value = report.fact(key) if isinstance(report, Report) else None
    return float(value) if isinstance(value, (int, float)) else None


def _times(scope: Scope) -> Ints:
    steps = scope.trace.steps
    return (steps.ends - steps.starts)[scope.steps]


def _verdict(
    sides: tuple[Scope, Scope], metrics: list[tuple[str, str, Kind, float | None, float | None]]
) -> tuple[Verdict, str]:
    old, new = (_times(side) for side in sides)
    if not len(old) or not len(new):
        return Verdict("step times cannot be compared: not both traces mark steps", "info"), "cannot be told"
    a, b = float(np.median(old)), float(np.median(new))
    change = (b - a) / a if a else 0.0
    # 1.4826 makes the deviation that of a normal distribution; a median is 1.2533 times less exact than a mean.
    error = float(
        np.hypot(
            *(1.2533 * 1.4826 * np.median(np.abs(t - np.median(t))) / np.sqrt(len(t)) for t in (old, new))
        )
    )
    if min(len(old), len(new)) < LEAST_STEPS:
        sure = f"cannot be told from {min(len(old), len(new))} steps"
    else:
        sure = "yes" if abs(b - a) >= SURE_ERRORS * error else "no: within the spread of the steps"
    if abs(change) < SAME_SHARE:
        return Verdict(f"a step takes the same: {format_ns(a)} before, {format_ns(b)} after", "info"), sure
    word = "faster" if b < a else "slower"
    level: Level = "info" if sure != "yes" else "good" if b < a else "bad"
    doubt = "" if sure == "yes" else f" (sure: {sure})"
    said = f"a step is {format_share(abs(change))} {word}: {format_ns(a)} before, {format_ns(b)} after{doubt}"
    return Verdict(said, level), sure


def _metric_table(metrics: list[tuple[str, str, Kind, float | None, float | None]]) -> Table:
    from tuiprof.model.units import format_value

    rows = [
        {
            "metric": label,
            "key": key,
            "before": format_value(old, kind),
            "after": format_value(new, kind),
            "change": format_value(new - old, kind) if old is not None and new is not None else "–",
            "ratio": new / old if old and new is not None else None,
        }
        for key, label, kind, old, new in metrics
    ]
    return Table(
        "metrics",
        "What changed",
        (
            Column("metric", "figure", "text"),
            Column("before", "before", "text"),
            Column("after", "after", "text"),
            Column("change", "change", "text"),
            Column("ratio", "after/before", "number"),
            Column("key", "key", "text", hidden=True),
        ),
        pl.DataFrame(rows, schema_overrides={"ratio": pl.Float64}),
    )


def _device_times(scope: Scope) -> pl.DataFrame:
    trace = scope.trace
    work = trace.device_work[trace.in_window(scope.window)[trace.device_work]]
    return _named(scope, work, trace.ends[work] - trace.starts[work])


def _operator_times(scope: Scope) -> pl.DataFrame:
    from tuiprof.analyses.kernels import self_times

    trace = scope.trace
    rows = np.flatnonzero(trace.is_category("cpu_op") & trace.in_window(scope.window)).astype(np.int64)
    return _named(scope, rows, self_times(trace, rows))


def _named(scope: Scope, rows: Ints, ns: Ints) -> pl.DataFrame:
    trace = scope.trace
    return pl.DataFrame(
        {"name": trace.events["name"].cast(pl.String).gather(rows), "ns": ns, "in_step": scope.in_steps(rows)}
    )


def _sync_times(scope: Scope) -> pl.DataFrame:
    found = run("sync_events", scope.trace, scope.window)
    if not isinstance(found, Report):
        return pl.DataFrame(schema={"name": pl.String, "ns": pl.Int64, "in_step": pl.Boolean})
    rows = found.table("syncs").rows
    return rows.select(
        pl.concat_str("where", "through", separator=" ← ").alias("name"),
        pl.col("waited_ns").alias("ns"),
        (pl.col("step") != "").alias("in_step"),
    )


def _changes(
    key: str, title: str, sides: tuple[Scope, Scope], stepped: bool, collect: Callable[[Scope], pl.DataFrame]
) -> Table:
    frames = []
    for side, name in zip(sides, ("before", "after"), strict=True):
        frame = collect(side)
        if stepped:
            frame = frame.filter("in_step")
        per = side.step_count if stepped else 1
        frames.append(
            frame.group_by("name").agg(
                (pl.col("ns").sum() / per).alias(f"{name}_ns"), (pl.len() / per).alias(f"{name}_count")
            )
        )
    joined = (
        frames[0]
        .join(frames[1], on="name", how="full", coalesce=True)
        .with_columns(pl.col("before_ns", "after_ns", "before_count", "after_count").fill_null(0.0))
        .with_columns((pl.col("after_ns") - pl.col("before_ns")).alias("change_ns"))
        .sort(pl.col("change_ns").abs(), "name", descending=[True, False])
    )
    unit = " a step" if stepped else ""
    return Table(
        key,
        title,
        (
            Column("change_ns", "change", "ns", f"After minus before{unit}."),
            Column("before_ns", "before", "ns"),
            Column("after_ns", "after", "ns"),
            Column("before_count", "n before", "count"),
            Column("after_count", "n after", "count"),
            Column("name", "name", "text"),
        ),
        joined,
        empty="in neither trace",
    )
