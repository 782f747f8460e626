"""The tables of the launch report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.launches import sequences as _sequences
from tuiprof.analyses.launches.table import Launches, QueueDepth
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.scope import Scope
from tuiprof.model import Chart, Column, RowsOf, Series, Table, Trace
from tuiprof.model.intervals import Ints

#: Upper bounds of the bins of the latency distribution, ns.
_CLASSES_NS = (0, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000)
#: Label of launches outside operators.
OUTSIDE = "outside any operator"
#: Shorter gaps may be the normal transition between kernels.
_GAP_NS = 2_000


@dataclass(frozen=True, slots=True)
class LaunchingOperator:
    """An operator that launches work: a row of the table of launches by operator."""

    operator: str  # its label
    event: int  # row of its typical launch


#: Launches by operator, by the device's idle time before them, longest first.
LAUNCHING_OPERATORS: Final = RowsOf("kernel_launches", "by_operator", LaunchingOperator)


def tables(
    trace: Trace,
    scope: Scope,
    launches: Launches,
    gaps: list[_idle.Gaps],
    depths: list[QueueDepth],
    bound_share: float,
) -> list[Table]:
    """Return the tables, evidence of the verdict first."""
    frame = _frame(trace, scope, launches, gaps)
    return [
        _grouped(scope, frame, "operator", "By operator", "Operator that launched."),
        _sequence_table(trace, scope, launches),
        _grouped(scope, frame, "kernel", "By kernel", "First work of the launch."),
        _latencies(launches),
        _sensitivity(gaps, bound_share),
        _graphs(trace, scope, launches),
        _depth_table(gaps, depths),
    ]


def _frame(trace: Trace, scope: Scope, launches: Launches, gaps: list[_idle.Gaps]) -> pl.DataFrame:
    """Return one row a launch."""
    rows, first = launches.rows, launches.first_work
    host = np.where(launches.waits, -1, trace.ends[rows] - trace.starts[rows])
    work = trace.ends[launches.work] - trace.starts[launches.work]
    idle = np.zeros(len(rows), dtype=np.int64)
    for item in gaps:
        at = np.searchsorted(rows, item.launch)
        inside = (at < len(rows)) & (item.launch >= 0)
        inside[inside] = rows[at[inside]] == item.launch[inside]
        np.add.at(idle, at[inside], item.host_bound[inside])
    return pl.DataFrame(
        {
            "event": rows,
            "operator": _operator(trace, rows),
            "kernel": trace.name_codes[first],
            "host_ns": pl.Series(host).replace(-1, None),
            "device_ns": np.bincount(launches.work_launch, weights=work, minlength=len(rows)).astype(
                np.int64
            ),
            "idle_ns": idle,
            "latency_ns": launches.latency,
            "works": launches.work_count,
            "shorter": (launches.work_count == 1) & (trace.ends[first] - trace.starts[first] < host),
            "in_step": scope.in_steps(rows),
        }
    )


def _operator(trace: Trace, rows: Ints) -> Ints:
    """Return the name code of the innermost operator around each launch; -1 = none."""
    parent, is_operator = trace.nesting.parent, trace.is_category("cpu_op")
    at = parent[rows]
    while True:
        climb = (at >= 0) & ~is_operator[np.maximum(at, 0)]
        if not climb.any():
            break
        at = np.where(climb, parent[np.maximum(at, 0)], at)
    return np.where(at >= 0, trace.name_codes[np.maximum(at, 0)], -1)


def _grouped(scope: Scope, frame: pl.DataFrame, by: str, title: str, help_: str) -> Table:
    steps = scope.step_count
    names = scope.trace.names
    in_step = pl.col("in_step")
    summed = ("idle_ns", "host_ns", "device_ns")
    rows = (
        frame.group_by(by, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(key).sum() for key in summed),
            *(
                (pl.col(key).filter(in_step).sum() / (steps or None)).alias(f"{key}_per_step")
                for key in summed
            ),
            (in_step.sum() / (steps or None)).alias("per_step"),
            pl.col("latency_ns").median().alias("latency_median_ns"),
            (pl.col("device_ns") / pl.col("works")).median().alias("kernel_median_ns"),
            pl.col("host_ns").median().alias("call_median_ns"),
            pl.col("shorter").mean().alias("shorter_share"),
            # The launch before the longest idle time represents the group.
            pl.col("event").get(pl.col("idle_ns").arg_max()),
        )
        # Sorted by the first figure shown: launches outside steps are last.
        .sort(
            *(["idle_ns_per_step"] if steps else []),
            "idle_ns",
            "host_ns",
            descending=True,
            nulls_last=True,
            maintain_order=True,
        )
    )
    labels = {code: _label(names, by, code) for code in rows[by].to_list()}
    rows = rows.with_columns(pl.col(by).replace_strict(labels, return_dtype=pl.String)).with_columns(
        pl.Series("short", [_kernel_names.short_name(label) for label in labels.values()], dtype=pl.String)
        if by == "kernel"
        else pl.col(by).alias("short")
    )
    stepped = bool(steps)
    columns = (
        Column("short", by, "text", help_),
        Column(by, "full name", "text", "As the trace writes it." if by == "kernel" else "", hidden=True),
        Column("per_step", "n/step", "count", "Launches a step.", hidden=not stepped),
        Column("count", "n", "count", "Launches in all.", hidden=stepped),
        Column(
            "idle_ns_per_step",
            "idle/step",
            "ns",
            "Device idle time before it.",
            hidden=not stepped,
        ),
        Column("idle_ns", "idle", "ns", "Device idle time before it.", hidden=stepped),
        Column(
            "host_ns_per_step", "host/step", "ns", "Host time in launch calls a step.", hidden=not stepped
        ),
        Column("host_ns", "host", "ns", "Host time in launch calls.", hidden=stepped),
        Column(
            "device_ns_per_step", "device/step", "ns", "Device time launched, per step.", hidden=not stepped
        ),
        Column("device_ns", "device", "ns", "Device time launched.", hidden=stepped),
        Column("kernel_median_ns", "kernel", "ns", "Median length of a device event."),
        Column("call_median_ns", "call", "ns", "Median length of the launch call."),
        Column("latency_median_ns", "latency", "ns", "Median launch latency."),
        Column("shorter_share", "short", "share", "Launches whose kernel is shorter than the launch call."),
        Column("event", "event", "count", hidden=True),
    )
    return Table(f"by_{by}", title, columns, rows, "Sorted by device idle time before them.")


def _label(names: list[str], by: str, code: int) -> str:
    if code < 0:
        return OUTSIDE
    return operator_label(names[code]) if by == "operator" else names[code]


def _latencies(launches: Launches) -> Table:
    """Return the distribution of launch latency, for all launches and for the unqueued."""
    edges = np.array(_CLASSES_NS, dtype=np.int64)
    unqueued = launches.depth_found == 0
    rows = []
    low: int | None = None
    at = np.searchsorted(edges, launches.latency, side="right")
    for index in range(len(edges) + 1):
        high = int(edges[index]) if index < len(edges) else None
        inside = at == index
        rows.append(
            {
                "from_ns": low,
                "to_ns": high,
                "launches": int(inside.sum()),
                "share": float(inside.mean()),
                "unqueued": int((inside & unqueued).sum()),
            }
        )
        low = high
    wanted = {"p5": 5, "p50": 50, "p95": 95, "p99": 99, "longest": 100}
    values = np.percentile(launches.latency, list(wanted.values())).tolist()
    quantiles = ", ".join(f"{name} {_ns(value)}" for name, value in zip(wanted, values, strict=True))
    return Table(
        "latency",
        "Launch latency",
        (
            Column("from_ns", "from", "ns", "Lower bound; none = below 0."),
            Column("to_ns", "below", "ns", "Upper bound; none = no limit."),
            Column("launches", "launches", "count"),
            Column("share", "share", "share"),
            Column("unqueued", "unqueued", "count", "Launches with nothing queued or running."),
        ),
        pl.DataFrame(rows, schema_overrides={"from_ns": pl.Int64, "to_ns": pl.Int64}),
        quantiles,
        chart=Chart("Launches by latency", (Series("launches"),), at="from_ns", in_text=False),
    )


def _ns(value: float) -> str:
    from tuiprof.model.units import format_ns

    return format_ns(value)


def _sensitivity(gaps: list[_idle.Gaps], bound_share: float) -> Table:
    """Return the verdict at 0.5, 1 and 2 times the thresholds."""
    span = sum(item.high - item.low for item in gaps) or 1
    bound = [item.host_bound for item in gaps]
    share = sum(int(times.sum()) for times in bound) / span
    rows = []
    for factor in (0.5, 1.0, 2.0):
        least = _GAP_NS * factor
        longer = sum(int(t[g.ns >= least].sum()) for t, g in zip(bound, gaps, strict=True)) / span
        rows.append(
            {
                "factor": f"{factor:g}×",
                "threshold": bound_share * factor,
                "share": share,
                "verdict": "launch-bound" if share >= bound_share * factor else "not launch-bound",
                "gap_ns": least,
                "longer_share": longer,
            }
        )
    return Table(
        "sensitivity",
        "Sensitivity of the verdict",
        (
            Column("factor", "of threshold", "text"),
            Column("threshold", "threshold", "share"),
            Column("share", "measured", "share"),
            Column("verdict", "verdict", "text"),
            Column("gap_ns", "gaps from", "ns"),
            Column(
                "longer_share",
                "measured in these",
                "share",
                "The same share, counting only gaps of this length or more.",
            ),
        ),
        pl.DataFrame(rows),
    )


def _graphs(trace: Trace, scope: Scope, launches: Launches) -> Table:
    """Expand the launches of graphs."""
    many = np.flatnonzero(launches.graph)
    work = trace.ends[launches.work] - trace.starts[launches.work]
    device = np.bincount(launches.work_launch, weights=work, minlength=len(launches.rows)).astype(np.int64)
    rows = launches.rows[many]
    frame = pl.DataFrame(
        {
            "event": rows,
            "call": pl.Series([trace.name(row) for row in rows.tolist()], dtype=pl.String),
            "start_ns": trace.starts[rows],
            "host_ns": trace.ends[rows] - trace.starts[rows],
            "works": launches.work_count[many],
            "device_ns": device[many],
            "latency_ns": launches.latency[many],
        }
    ).sort("device_ns", descending=True)
    return Table(
        "graphs",
        "Graph launches, expanded",
        (
            Column("call", "call", "text"),
            Column("start_ns", "at", "ns"),
            Column("works", "device events", "count", "Device events of one launch."),
            Column("host_ns", "call", "ns"),
            Column("device_ns", "device", "ns", "Their total device time."),
            Column("latency_ns", "latency", "ns", "To the first of them."),
            Column("event", "event", "count", hidden=True),
        ),
        frame,
        empty="no graph launches",
    )


def _depth_table(gaps: list[_idle.Gaps], depths: list[QueueDepth]) -> Table:
    frames = [
        pl.DataFrame(
            {
                "device": np.full(len(depth.starts), item.device, dtype=np.int64),
                "start_ns": depth.starts,
                "mean": depth.mean,
                "lowest": depth.lowest,
                "highest": depth.highest,
            }
        )
        for item, depth in zip(gaps, depths, strict=True)
    ]
    return Table(
        "queue_depth",
        "Queue depth over time",
        (
            Column("start_ns", "from", "ns"),
            Column("mean", "mean", "number", "Weighted by time."),
            Column("lowest", "lowest", "count"),
            Column("highest", "highest", "count"),
            Column("device", "device", "count", hidden=len(gaps) == 1),
        ),
        pl.concat(frames),
        chart=Chart("Queue depth over time", (Series("mean", "lowest", "highest"),), at="start_ns"),
    )


def _sequence_table(trace: Trace, scope: Scope, launches: Launches) -> Table:
    kernels = trace.is_category("kernel")[launches.work]
    work, launch = launches.work[kernels], launches.rows[launches.work_launch[kernels]]
    # Kernels of one graph are already launched together: no host time to save.
    alone = ((launches.work_count == 1) & ~launches.graph)[launches.work_launch[kernels]]
    rows = _sequences.sequences(trace, work[alone], launch[alone])
    steps = scope.step_count
    rows = rows.with_columns(
        (pl.col(key) / (steps or None)).alias(f"{key}_per_step") for key in ("times", "host_ns", "idle_ns")
    )
    stepped = bool(steps)
    return Table(
        "sequences",
        "Short kernels in repeated sequences",
        (
            Column(
                "shape", "shape", "text", "loop = repeats without a break; chain = elementwise neighbours."
            ),
            Column("length", "kernels", "count", "Kernels in one pass."),
            Column("times_per_step", "n/step", "count", "Passes a step.", hidden=not stepped),
            Column("times", "n", "count", "Passes in all.", hidden=stepped),
            Column(
                "host_ns_per_step", "host/step", "ns", "Launch calls saved by fusing.", hidden=not stepped
            ),
            Column("host_ns", "host", "ns", "Launch calls saved by fusing.", hidden=stepped),
            Column("idle_ns_per_step", "idle/step", "ns", "Stream idle inside, a step.", hidden=not stepped),
            Column("idle_ns", "idle", "ns", "Stream idle inside.", hidden=stepped),
            Column("device_ns", "device", "ns", "Time of the kernels themselves.", hidden=True),
            Column("kernels", "sequence", "text"),
            Column("event", "event", "count", hidden=True),
        ),
        rows,
        "Upper bounds. Host and idle time overlap: do not add them." if len(rows) else "",
        empty="no sequence of short kernels repeats",
    )
