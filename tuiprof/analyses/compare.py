"""What changed between two traces: by step, by kind of work, by kernel, operator, launch and sync."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses import run
from tuiprof.analyses.shared.changes import RULES as CHANGE_RULES
from tuiprof.analyses.shared.changes import (
    SAME_SHARE,
    Metric,
    StepChange,
    figure_of,
    metric_table,
    step_change,
)
from tuiprof.analyses.shared.frames import COMPILED_GRAPH
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.analyses.shared.replay import replayed_steps
from tuiprof.analyses.shared.scope import PERIOD_RULE, Scope, step_times
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Verdict, Window
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Kind, listed
from tuiprof.model.units import format_count, format_ns, format_share, format_speed

NAME, TITLE = "compare", "Compare"
#: Key of the figure that says how a step changed without the profiler.
UNCAPTURED: Final = "uncaptured_change"

#: A difference below this share of the longer time is noise: for device times, and for host times.
DEVICE_NOISE: Final = 0.01
HOST_NOISE: Final = 0.10

_RULES = (
    Rule(
        "per step",
        "Per step if both traces mark steps, otherwise per trace. Names are matched exactly; syncs by "
        "file, function, kind and operators, because line numbers shift when a script changes.",
    ),
    Rule(
        "within the noise",
        f"Device times that differ by less than {format_share(DEVICE_NOISE)} of the longer one, host "
        f"times by less than {format_share(HOST_NOISE)} (they vary with load), other figures by less "
        f"than {format_share(SAME_SHARE)}. These rows are grey and last.",
    ),
    PERIOD_RULE,
    *CHANGE_RULES,
)
_METRICS: tuple[tuple[str, str, str, Kind], ...] = (
    ("steps", "step_period_ns", "step under the profiler", "ns"),
    ("steps", "device_busy_ns_per_step", "device busy a step", "ns"),
    ("device_idle", "idle_ns_per_step", "device idle a step", "ns"),
    ("device_idle", "idle_share", "device idle, share of time", "share"),
    ("sync_events", "syncs_per_step", "syncs a step", "count"),
    ("sync_events", "device_empty_ns_per_step", "device empty by syncs a step", "ns"),
    ("sync_events", "saves_ns_per_step", "step time lost to syncs", "ns"),
    ("sync_events", "host_blocked_ns_per_step", "host waits in syncs a step", "ns"),
    ("kernel_launches", "launches_per_step", "launches a step", "count"),
    ("kernel_launches", "launch_host_ns_per_step", "host time in launches a step", "ns"),
    ("kernel_launches", "launch_bound_share", "device waiting for launches", "share"),
    ("data_loading", "data_wait_ns_per_step", "host waits for data a step", "ns"),
)
#: Said of a table without rows.
IN_NEITHER: Final = "in neither trace"
#: Columns of a sync.
_LOCATION = ("name", "where", "through", "kind")


def compare(
    before: Trace | None,
    after: Trace | None,
    before_window: Window | None = None,
    after_window: Window | None = None,
    *,
    names: tuple[str, str] = ("", ""),
    change: StepChange | None = None,
    metrics: Iterable[Metric] = (),
    differences: Sequence[tuple[str, str, str]] = (),
    notes: Iterable[str] = (),
) -> Report:
    """Compare two traces of the same work; differences are after minus before, so negative is faster."""
    recorded, figures = list(metrics), list[Metric]()
    without_profiler: str | None = None
    said = list(notes)
    tables: list[Table] = []
    if before is not None and after is not None:
        sides = (Scope.of(before, before_window or Window()), Scope.of(after, after_window or Window()))
        figures = _figures(sides)
        stepped = all(side.step_count for side in sides)
        if not stepped:
            said.append("Only one trace marks steps: totals are compared, whatever the traces' length.")
        if change is None and (change := step_change(*(step_times(side).period for side in sides))):
            change = replace(change, captured=True)
            without_profiler = _without_profiler(sides)
        said += _profiled_differently(before, after)
        tables = [
            _located(
                _changes("syncs", "Syncs by location", sides, stepped, _sync_times, ("location",), _LOCATION)
            ),
            _shortened(_changes("kernels", "Device work by name", sides, stepped, _device_times)),
            _launch_changes(sides, stepped),
            _changes("operators", "Operators by host time", sides, stepped, _operator_times),
        ]
    share = change.share if change is not None else None
    return Report(
        NAME,
        TITLE,
        change.verdict
        if change is not None
        else Verdict("step times cannot be compared: only one side marks steps", "info"),
        (
            Fact("before", "before", names[0] or None, "text"),
            Fact("after", "after", names[1] or None, "text"),
            Fact(UNCAPTURED, "without the profiler", without_profiler, "text"),
            Fact("sure", "significant", change.sure if change is not None else "unknown", "text"),
            Fact("step_change_share", "step time", share, "share", signed=True),
        ),
        (
            *(
                [metric_table("recorded", "What changed in the runs, without the profiler", recorded)]
                if recorded
                else []
            ),
            metric_table("metrics", "What changed in the traces", figures),
            *tables,
            _difference_table(differences),
        ),
        _RULES,
        tuple(said),
    )


def _without_profiler(sides: tuple[Scope, Scope]) -> str | None:
    """Return the change of the step as replayed without the profiler; None = it is unknown for one side."""
    if not all(side.step_count and side.window.whole for side in sides):
        return None
    before, after = (replayed_steps(side.trace) for side in sides)
    if isinstance(before, str) or isinstance(after, str) or "none" in (before.usual.basis, after.usual.basis):
        return None
    speed = format_speed(after.step_ns / before.step_ns if before.step_ns else 0.0)
    return f"{speed}, {format_ns(before.step_ns)} → {format_ns(after.step_ns)}"


def _figures(sides: tuple[Scope, Scope]) -> list[Metric]:
    reports = [
        {name: run(name, side.trace, side.window) for name in dict.fromkeys(metric[0] for metric in _METRICS)}
        for side in sides
    ]
    figures = (
        Metric(key, label, kind, *(figure_of(report[analysis], key) for report in reports))
        for analysis, key, label, kind in _METRICS
    )
    return [one for one in figures if one.before is not None or one.after is not None]


def _profiled_differently(before: Trace, after: Trace) -> list[str]:
    """Return profiler effects in only one of the traces."""
    notes = []
    stacks = [bool(trace.is_category("python_function").any()) for trace in (before, after)]
    if stacks[0] != stacks[1]:
        slow = "before" if stacks[0] else "after"
        notes.append(f"Only the trace {slow} was recorded with Python stacks, which slow the host.")
    work = [bool(trace.device_indices) for trace in (before, after)]
    if not any(work):
        notes.append("Neither trace has device activity: syncs, launches and device work cannot be compared.")
    elif work[0] != work[1]:
        notes.append(f"Only the trace {'before' if work[0] else 'after'} has device activity.")
    return notes


def _difference_table(differences: Sequence[tuple[str, str, str]]) -> Table:
    columns = (Column("what", "what"), Column("before", "before"), Column("after", "after"))
    title, empty = "What differs between the runs", "no figure is known for both"
    return Table("setup", title, columns, listed(columns, differences), empty=empty)


def _device_times(scope: Scope) -> pl.DataFrame:
    trace = scope.trace
    work = trace.device_work
    # Work launched by a step may run after the window if the device lags behind.
    work = work[trace.in_window(scope.window)[work] | scope.in_steps(work)]
    return _named(scope, work, trace.lengths(work))


def _operator_times(scope: Scope) -> pl.DataFrame:
    from tuiprof.analyses.kernels import self_times

    trace = scope.trace
    rows = np.flatnonzero(trace.is_category("cpu_op") & trace.in_window(scope.window)).astype(np.int64)
    named = _named(scope, rows, self_times(trace, rows))
    # The hash of a compiled graph differs between runs of the same script.
    compiled = pl.col("name").str.starts_with(COMPILED_GRAPH)
    return named.with_columns(
        pl.when(compiled).then(pl.lit("CompiledFxGraph")).otherwise("name").alias("name")
    )


def _named(scope: Scope, rows: Ints, ns: Ints) -> pl.DataFrame:
    trace = scope.trace
    return pl.DataFrame(
        {
            "name": trace.events["name"].cast(pl.String).gather(rows),
            "ns": ns,
            "in_step": scope.in_steps(rows),
            "event": rows,
        }
    )


def _sync_times(scope: Scope) -> pl.DataFrame:
    found = run("sync_events", scope.trace, scope.window)
    if not isinstance(found, Report):
        words = dict.fromkeys((*_LOCATION, "location"), pl.String)
        return pl.DataFrame(schema={**words, "ns": pl.Int64, "in_step": pl.Boolean, "event": pl.Int64})
    rows = found.table("syncs").rows
    # "train.py:31" and "train.py main() from line 20" without their numbers.
    file = pl.col("where").str.replace(r"(:\d+| from line \d+)$", "")
    return rows.select(
        "where",
        "through",
        "kind",
        pl.concat_str("where", "through", separator=" ← ").alias("name"),
        pl.concat_str(file, "in", "kind", "through", separator="\0", ignore_nulls=True).alias("location"),
        pl.col("blocked_ns").alias("ns"),
        "in_step",
        pl.col("event").cast(pl.Int64),
    )


def _changes(
    key: str,
    title: str,
    sides: tuple[Scope, Scope],
    stepped: bool,
    collect: Callable[[Scope], pl.DataFrame],
    by: tuple[str, ...] = ("name",),
    kept: tuple[str, ...] = (),
) -> Table:
    """Compare the collected items of both sides."""
    frames = []
    for side, name in zip(sides, ("before", "after"), strict=True):
        frame = collect(side)
        if stepped:
            frame = frame.filter("in_step")
        per = side.step_count if stepped else 1
        frames.append(
            frame.sort("ns", descending=True, maintain_order=True)
            .group_by(by, maintain_order=True)
            .agg(
                *(pl.col(column).first().alias(f"{name}_{column}") for column in kept),
                (pl.col("ns").sum() / per).alias(f"{name}_ns"),
                (pl.len() / per).alias(f"{name}_count"),
                pl.col("event").first().alias(f"{name}_event"),
            )
        )
    joined = frames[0].join(frames[1], on=by, how="full", coalesce=True)
    joined = joined.with_columns(
        pl.coalesce(f"after_{column}", f"before_{column}").alias(column) for column in kept
    )
    return _change_table(key, title, joined, stepped, DEVICE_NOISE if key == "kernels" else HOST_NOISE)


def _shortened(table: Table) -> Table:
    """Show short kernel names, next to the full ones."""
    rows = table.rows.with_columns(
        pl.col("name").map_elements(short_name, return_dtype=pl.String).alias("short")
    )
    columns = [replace(column, hidden=True) if column.key == "name" else column for column in table.columns]
    columns.insert(-2, Column("short", "kernel", "text"))
    return replace(table, rows=rows, columns=tuple(columns))


def _located(table: Table) -> Table:
    """Show kind and location of syncs in separate columns."""
    columns = [replace(column, hidden=True) if column.key == "name" else column for column in table.columns]
    columns[-3:-3] = [
        Column("kind", "kind", "text", "Why the host waits."),
        Column("where", "where", "text", "Line, function, named range or operator.", elide="start"),
        Column("through", "through", "text", "Operators, outermost first."),
    ]
    return replace(table, columns=tuple(columns))


def _launch_changes(sides: tuple[Scope, Scope], stepped: bool) -> Table:
    """Compare launches by operator, as in the launch view."""
    host, count = ("host_ns_per_step", "per_step") if stepped else ("host_ns", "count")
    frames = []
    for side, name in zip(sides, ("before", "after"), strict=True):
        found = run("kernel_launches", side.trace, side.window)
        schema = {"operator": pl.String, host: pl.Float64, count: pl.Float64, "event": pl.Int64}
        rows = found.table("by_operator").rows if isinstance(found, Report) else pl.DataFrame(schema=schema)
        # `aten::add` and `add` are the same.
        together = rows.group_by(pl.col("operator").alias("name"), maintain_order=True)
        frames.append(
            together.agg(
                pl.col(host).cast(pl.Float64).sum().alias(f"{name}_ns"),
                pl.col(count).cast(pl.Float64).sum().alias(f"{name}_count"),
                pl.col("event").cast(pl.Int64).first().alias(f"{name}_event"),
            )
        )
    joined = frames[0].join(frames[1], on="name", how="full", coalesce=True)
    return _change_table(
        "launches", "Launches by operator, host time in launch calls", joined, stepped, HOST_NOISE
    )


def _change_table(key: str, title: str, joined: pl.DataFrame, stepped: bool, noise: float) -> Table:
    """Sort joined rows by the change of their time; differences below ``noise`` are last."""
    ranked = (
        joined.with_columns(
            pl.col("before_ns", "after_ns", "before_count", "after_count").cast(pl.Float64).fill_null(0.0)
        )
        .with_columns((pl.col("after_ns") - pl.col("before_ns")).alias("change_ns"))
        .with_columns(
            (
                (pl.col("before_count") == pl.col("after_count"))
                & (pl.col("change_ns").abs() <= noise * pl.max_horizontal("before_ns", "after_ns"))
            ).alias("within_noise")
        )
        .sort("within_noise", pl.col("change_ns").abs(), "name", descending=[False, True, False])
    )
    unit = " a step" if stepped else ""
    columns = (
        Column("change_ns", "change", "ns", f"After minus before{unit}.", signed=True),
        Column("before_ns", "before", "ns"),
        Column("after_ns", "after", "ns"),
        Column("before_count", "n before", "count"),
        Column("after_count", "n after", "count"),
        Column("name", "name", "text"),
        Column("before_event", "event before", "count", "Row of the longest event before.", hidden=True),
        Column("within_noise", "within the noise", hidden=True),
        Column("after_event", "event after", "count", "Row of the longest event after.", hidden=True),
    )
    return Table(key, title, columns, ranked, empty=IN_NEITHER, faint="within_noise")


# -- as text ---------------------------------------------------------------------------------------------

#: Differences of time below this share of a step are not mentioned on a device …
DEVICE_SHARE: Final = 0.01
#: … and below this share of the operators' self time on a CPU, where times depend on the load.
HOST_SHARE: Final = 0.10
#: Maximum number of names per kind.
_MAX_NAMES: Final = 3
_LINE: Final = re.compile(r"\.py:\d+$")


def change_clauses(report: Report, before: Trace, after: Trace) -> tuple[str, ...]:
    """Return what changed between two traces with step marks, one clause each, most important first."""
    if before.device_indices and after.device_indices:
        return (
            *_syncs(report),
            *_launches(report),
            *_kinds(before, after, (figure_of(run("steps", before), "step_period_ns") or 0.0) * DEVICE_SHARE),
        )
    return tuple(_operators(report))


def changed_in_words(report: Report, before: Trace | None, after: Trace | None) -> str | None:
    """Return what changed between two traces in one line; None = nothing, or unknown."""
    if before is None or after is None or not (before.steps.numbers.size and after.steps.numbers.size):
        return None
    return " · ".join(change_clauses(report, before, after)) or None


def _metric(report: Report, key: str) -> tuple[str, str, float | None]:
    rows = report.table("metrics").rows.filter(pl.col("key") == key)
    return str(rows["before"][0]), str(rows["after"][0]), rows["ratio"][0]


def _syncs(report: Report) -> list[str]:
    old, new, _ = _metric(report, "syncs_per_step")
    if old == new:
        return []
    rows = report.table("syncs").rows
    return [
        f"syncs {old} → {new} a step",
        *(
            f"{word}: {', '.join(_location(name) for name, _ in items)}{more}"
            for word, items, more in _gone_and_new(rows)
        ),
    ]


def _location(name: str) -> str:
    """Return the location of a sync: its line if known, else with the operators around it."""
    where, _, through = name.partition(" ← ")
    return where if through in ("", where) or _LINE.search(where) else name


def _launches(report: Report) -> list[str]:
    old, new, ratio = _metric(report, "launches_per_step")
    if old == new or (ratio is not None and abs(ratio - 1) < DEVICE_SHARE):
        return []
    return [f"launches {old} → {new} a step"]


def _kinds(before: Trace, after: Trace, min_ns: float) -> list[str]:
    frames = []
    for trace, name in ((before, "before"), (after, "after")):
        kernels = run("kernels", trace)
        if not isinstance(kernels, Report):
            return []
        rows = kernels.table("kinds").rows
        if "per_step_ns" not in rows.columns:
            return []
        frames.append(rows.select("kind", pl.col("per_step_ns").cast(pl.Float64).alias(name)))
    rows = frames[0].join(frames[1], on="kind", how="full", coalesce=True).fill_null(0.0)
    rows = rows.with_columns((pl.col("after") - pl.col("before")).abs().alias("change"))
    largest = rows.filter(pl.col("change") >= max(min_ns, 1.0))
    largest = largest.sort("change", "kind", descending=[True, False]).head(_MAX_NAMES)
    return [
        f"device time of {row['kind']} {format_ns(row['before'])} → {format_ns(row['after'])} a step"
        for row in largest.iter_rows(named=True)
    ]


def _operators(report: Report) -> list[str]:
    """Return what changed in the operators of a CPU: added and removed ones, then shares of their time."""
    rows = report.table("operators").rows
    found = [
        f"{word}: {', '.join(f'{name} ({format_count(round(count, 2))} a step)' for name, count in items)}{more}"
        for word, items, more in _gone_and_new(rows)
    ]
    # Shares, not times: a trace of a busy machine is longer in all parts.
    shares = rows.select(
        "name", *(pl.col(f"{side}_ns") / pl.col(f"{side}_ns").sum() for side in ("before", "after"))
    )
    shares = shares.fill_nan(0.0).with_columns(
        (pl.col("after_ns") - pl.col("before_ns")).abs().alias("change")
    )
    both = (pl.col("before_ns") > 0) & (pl.col("after_ns") > 0)
    largest = shares.filter(both & (pl.col("change") >= HOST_SHARE))
    largest = largest.sort("change", "name", descending=[True, False]).head(_MAX_NAMES)
    found += [
        f"{name} {format_share(before)} → {format_share(after)} of the operators' time"
        for name, before, after in largest.select("name", "before_ns", "after_ns").iter_rows()
    ]
    return found


def _gone_and_new(rows: pl.DataFrame) -> list[tuple[str, list[tuple[str, float]], str]]:
    """Return what only one side has: names and counts per step of the most expensive, and the number of others."""
    found = []
    for word, here, there in (("gone", "before", "after"), ("new", "after", "before")):
        only = rows.filter((pl.col(f"{there}_count") == 0) & (pl.col(f"{here}_count") > 0))
        first = only.sort(f"{here}_ns", "name", descending=[True, False]).head(_MAX_NAMES)
        if len(only):
            more = f" and {len(only) - _MAX_NAMES} more" if len(only) > _MAX_NAMES else ""
            found.append((word, first.select("name", f"{here}_count").rows(), more))
    return found
