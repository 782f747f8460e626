"""Whether a step is bound by launching kernels, and by which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.launches import Launches, QueueDepth, find_launches, queue_depth, sequences
from tuiprof.analyses.shared.replay import captured_step_ns, launched_faster, replayed
from tuiprof.analyses.shared.scope import Scope, device_word, no_device
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Chart, RowsOf, Series, listed
from tuiprof.model.units import format_ns, format_share, plural
from tuiprof.whatif.replay import Calibrated, Kinds

NAME, TITLE = "kernel_launches", "Launches"

#: Launch-bound from this share of device time idle because the host had not launched yet.
BOUND_SHARE = 0.20
#: Partly launch-bound from this share on.
PARTLY_BOUND_SHARE = 0.10
#: Launch-blocking from this share of launches whose kernel had ended when the call returned.
BLOCKING_SHARE, MIN_BLOCKING = 0.9, 20
#: Code of the verdict that every launch waits for its kernel.
LAUNCH_BLOCKING: Final = "launch-blocking"

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
LAUNCHING_OPERATORS: Final = RowsOf(NAME, "by_operator", LaunchingOperator)

_RULES = (
    Rule(
        "launch",
        "A runtime or driver call whose correlation matches device work. A graph launch counts as one "
        "launch of many kernels.",
    ),
    Rule(
        "launch latency",
        "Start of the first work launched minus end of the call. Negative = it began before the call "
        "returned; if before the call began, the clocks differ. Both are counted and not clipped to 0. "
        "With work queued it is mostly queueing time: `unqueued` covers only launches with nothing "
        "queued or running.",
    ),
    Rule("queue depth", "Device events whose launch call has begun and that have not finished."),
    Rule(
        "launch-bound",
        f"Without the profiler, a step would be at least {format_share(BOUND_SHARE)} shorter if "
        "operators, Python and launch calls took no host time (waits and data loading stay), as the "
        "replayed step shows, and is spent waiting for them while captured. If it cannot be replayed: the "
        "device is idle for that share of the captured time, between its first and last work, while the "
        "host runs operators, Python or calls before the next launch, or the launch itself. From "
        f"{format_share(PARTLY_BOUND_SHARE)} on it is partly launch-bound.",
    ),
    Rule(
        "launch-blocking",
        f"{format_share(BLOCKING_SHARE)} or more of at least {MIN_BLOCKING} kernels had finished "
        "when their launch call returned: CUDA_LAUNCH_BLOCKING=1 or its equivalent.",
    ),
    Rule(
        "host time in launches",
        "Time in launch calls. Copies that wait for the device are syncs and do not count, nor do they "
        "in `shorter than its launch`, which compares a kernel with its own launch call (graph "
        "launches excluded).",
    ),
    Rule(
        "sequences",
        "Kernels below 10 µs that repeat in the same order at least three times: a loop of up to 64 "
        "kernels, or a chain of elementwise, reduction, norm and copy kernels. Host and idle time "
        "overlap: do not add them.",
    ),
)


@dataclass(frozen=True, slots=True)
class _Figures:
    scope: Scope
    launches: Launches
    gaps: list[_idle.Gaps]
    depths: list[QueueDepth]
    captured_bound_ns: int
    span_ns: int
    step: Calibrated | None
    bound_ns: float | None
    blocking_share: float
    kernels: int

    @property
    def captured_bound_share(self) -> float:
        return self.captured_bound_ns / self.span_ns if self.span_ns else 0.0

    @property
    def bound_share(self) -> float:
        if self.step is None or self.bound_ns is None:
            return self.captured_bound_share
        # A device that is busy with its own work does not wait for launches, even if its streams could run in parallel.
        idle_ns = self.step.step_ns - self.step.graph.own_busy_ns
        # Nor does it wait longer than for the host that the profiler slows: faster launches would hide the rest, as by
        # loading a batch.
        captured_ns = self.captured_bound_share * self.step.captured_ns
        return max(min(self.bound_ns, idle_ns, captured_ns), 0.0) / max(self.step.step_ns, 1.0)

    @property
    def bound(self) -> bool:
        return self.bound_share >= BOUND_SHARE

    @property
    def blocking(self) -> bool:
        return self.kernels >= MIN_BLOCKING and self.blocking_share >= BLOCKING_SHARE


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Measure launches and judge whether they bound the step."""
    scope = Scope.of(trace, window)
    launches = find_launches(trace, scope.low, scope.high)
    if not len(launches.rows):
        return _unavailable(trace)
    gaps = [_idle.gaps(trace, device, scope.low, scope.high) for device in trace.device_indices]
    gaps = [item for item in gaps if item.high > item.low]
    if not gaps:
        return Unavailable(
            NAME, "no device works in this window: what it launches runs later", "choose a wider window"
        )
    depths = [queue_depth(trace, item.device, item.low, item.high) for item in gaps]
    kernels = trace.is_category("kernel", "collective")[launches.first_work]
    ended = (trace.ends[launches.first_work] <= trace.ends[launches.rows])[kernels]
    step = replayed(trace) if window.whole else ""
    found = None if isinstance(step, str) else step
    figures = _Figures(
        scope,
        launches,
        gaps,
        depths,
        sum(int(item.host_bound.sum()) for item in gaps),
        sum(item.high - item.low for item in gaps),
        found,
        found.likely_ns(launched_faster(trace, 0.0)) if found is not None else None,
        float(ended.mean()) if len(ended) else 0.0,
        int(kernels.sum()),
    )
    return Report(
        NAME,
        TITLE,
        _verdict(trace, figures),
        _facts(trace, figures),
        _tables(trace, scope, launches, gaps, depths),
        _RULES,
        tuple(_notes(trace, figures)),
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if not len(trace.device_work):
        return no_device(
            trace,
            NAME,
            "operators run where they are called; nothing is launched",
            "see Operators (`kernels`)",
        )
    if len(trace.links.launches):
        return Unavailable(NAME, "nothing is launched in this window", "choose a wider window")
    return Unavailable(
        NAME,
        "no device work has a launch call in this trace: correlations are missing",
        "record ProfilerActivity.CPU together with the device's activity",
    )


def _facts(trace: Trace, figures: _Figures) -> tuple[Fact, ...]:
    scope, launches = figures.scope, figures.launches
    rows = launches.rows
    host = np.where(launches.waits, 0, trace.lengths(rows))
    call = None if launches.waits.all() else float(np.median(host[~launches.waits]))
    unqueued = launches.latency[(launches.depth_found == 0) & (launches.latency >= 0)]
    single = launches.work_count == 1
    work_ns = trace.ends[launches.first_work] - trace.starts[launches.first_work]
    shorter = work_ns[single] < host[single]
    kernels = trace.is_category("kernel", "collective")[launches.first_work]
    ones = np.ones(len(rows))
    work_rows = launches.rows[launches.work_launch]
    depth = figures.depths
    return (
        Fact("launch_bound", "launch-bound", "yes" if figures.bound else "no", "text", _RULES[3].text),
        Fact(
            "launch_bound_share", "of step waiting for launches", figures.bound_share, "share", _RULES[3].text
        ),
        Fact(
            "launch_bound_ns",
            "that is",
            figures.bound_share * figures.step.step_ns if figures.step is not None else None,
            "ns",
            "Per step, or in total if the trace marks none.",
        ),
        Fact(
            "captured_launch_bound_share",
            "waiting for launches while captured",
            figures.captured_bound_share,
            "share",
        ),
        Fact("launches_per_step", "launches a step", scope.per_step(ones, rows), "count"),
        Fact(
            "work_per_step",
            "device events a step",
            scope.per_step(np.ones(len(work_rows)), work_rows),
            "count",
        ),
        Fact("launch_host_ns_per_step", "host time in launches a step", scope.per_step(host, rows), "ns"),
        Fact("launches", "launches in all", len(rows), "count"),
        Fact("launch_host_ns", "host time in launches", int(host.sum()), "ns", "Summed over all threads."),
        Fact("launch_call_median_ns", "launch call, median", call, "ns"),
        Fact("latency_median_ns", "latency, median", float(np.median(launches.latency)), "ns"),
        Fact(
            "latency_unqueued_median_ns",
            "unqueued",
            float(np.median(unqueued)) if len(unqueued) else None,
            "ns",
            "Median latency of launches with nothing queued or running.",
        ),
        Fact(
            "latency_negative", "began before the call returned", int((launches.latency < 0).sum()), "count"
        ),
        Fact("latency_impossible", "began before the call began", int(launches.impossible.sum()), "count"),
        Fact(
            "shorter_than_launch_share",
            "kernels shorter than their launch",
            float(shorter[kernels[single]].mean()) if (kernels & single).any() else None,
            "share",
        ),
        Fact("queue_depth_mean", "queue depth, mean", float(np.mean([d.mean_all for d in depth])), "number"),
        Fact("queue_empty_share", "queue empty", float(np.mean([d.empty_share for d in depth])), "share"),
        Fact("graph_launches", "graph launches", int(launches.graph.sum()), "count"),
        Fact(
            "blocking_share",
            "launches that blocked until done",
            figures.blocking_share,
            "share",
            _RULES[4].text,
        ),
    )


def _verdict(trace: Trace, figures: _Figures) -> Verdict:
    scope, launches, word = figures.scope, figures.launches, device_word(trace)
    per_step = scope.per_step(np.ones(len(launches.rows)), launches.rows)
    amount = (
        f"{plural(per_step, 'launch')} a step"
        if per_step is not None
        else plural(len(launches.rows), "launch")
    )
    share = figures.bound_share
    if figures.blocking:
        return Verdict(
            f"launch-blocking mode: {format_share(figures.blocking_share)} of {amount} returned only after their "
            "kernel had finished; unset CUDA_LAUNCH_BLOCKING before measuring anything",
            "bad",
            LAUNCH_BLOCKING,
        )
    if figures.bound_ns is None:
        idle = f"{format_share(share)} of the time the {word} is idle while the host gets to the next launch"
    else:
        whole = "a step" if scope.step_count else "the time"
        without = (
            "without the profiler, " if figures.step is not None and figures.step.basis != "none" else ""
        )
        idle = f"{without}the {word} waits for launches {format_share(share)} of {whole}"
    kernel = float(np.median(trace.ends[launches.first_work] - trace.starts[launches.first_work]))
    sizes = f"{amount}, median kernel {format_ns(kernel)}"
    if figures.bound:
        return Verdict(f"launch-bound: {idle} ({sizes})", "bad")
    if share >= PARTLY_BOUND_SHARE:
        return Verdict(f"partly launch-bound: {idle} ({sizes})", "warn")
    return Verdict(f"not launch-bound: {idle} ({sizes})", "good")


def _notes(trace: Trace, figures: _Figures) -> list[str]:
    notes = []
    impossible = int(figures.launches.impossible.sum())
    if impossible:
        notes.append(
            f"{plural(impossible, 'launch')} began on the device before the call did: host and device clocks "
            "differ, so latencies are off by about as much."
        )
    step = figures.step
    captured_ns = captured_step_ns(trace, Kinds(step)) if step is not None else 0.0
    if step is not None and captured_ns > 1.02 * step.step_ns:
        notes.append(
            f"While captured, the median step takes {format_ns(captured_ns)} instead of {format_ns(step.step_ns)}: "
            "latencies, call times and idle times below are those of the captured steps."
        )
    unmatched = trace.links.unmatched_work
    if unmatched:
        notes.append(
            f"{plural(unmatched, 'device event')} without a launch in the trace are not counted here."
        )
    return notes


# -- tables -------------------------------------------------------------------------------------------------


def _tables(
    trace: Trace, scope: Scope, launches: Launches, gaps: list[_idle.Gaps], depths: list[QueueDepth]
) -> tuple[Table, ...]:
    """Return the tables, evidence of the verdict first."""
    frame = _frame(trace, scope, launches, gaps)
    return (
        _grouped(scope, frame, "operator", "By operator", "Operator that launched."),
        _sequence_table(trace, scope, launches),
        _grouped(scope, frame, "kernel", "By kernel", "First work of the launch."),
        _latencies(launches),
        _sensitivity(gaps),
        _graphs(trace, launches),
        _depth_table(gaps, depths),
    )


def _frame(trace: Trace, scope: Scope, launches: Launches, gaps: list[_idle.Gaps]) -> pl.DataFrame:
    """Return one row a launch."""
    rows, first = launches.rows, launches.first_work
    host = np.where(launches.waits, -1, trace.lengths(rows))
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
            "device_ns": launches.device_ns(trace),
            "idle_ns": idle,
            "latency_ns": launches.latency,
            "works": launches.work_count,
            "shorter": (launches.work_count == 1) & (trace.lengths(first) < host),
            "in_step": scope.in_steps(rows),
        }
    )


def _operator(trace: Trace, rows: Ints) -> Ints:
    """Return the name code of the innermost operator around each launch; -1 = none."""
    at = trace.nesting.nearest(rows, trace.is_category("cpu_op"))
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
        Column("idle_ns_per_step", "idle/step", "ns", "Device idle time before it.", hidden=not stepped),
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
        rows.append((low, high, int(inside.sum()), float(inside.mean()), int((inside & unqueued).sum())))
        low = high
    wanted = {"p5": 5, "p50": 50, "p95": 95, "p99": 99, "longest": 100}
    values = np.percentile(launches.latency, list(wanted.values())).tolist()
    quantiles = ", ".join(f"{name} {format_ns(value)}" for name, value in zip(wanted, values, strict=True))
    columns = (
        Column("from_ns", "from", "ns", "Lower bound; none = below 0."),
        Column("to_ns", "below", "ns", "Upper bound; none = no limit."),
        Column("launches", "launches", "count"),
        Column("share", "share", "share"),
        Column("unqueued", "unqueued", "count", "Launches with nothing queued or running."),
    )
    chart = Chart("Launches by latency", (Series("launches"),), at="from_ns", in_text=False)
    return Table("latency", "Launch latency", columns, listed(columns, rows), quantiles, chart=chart)


def _sensitivity(gaps: list[_idle.Gaps]) -> Table:
    """Return the verdict at 0.5, 1 and 2 times the thresholds."""
    span = sum(item.high - item.low for item in gaps) or 1
    bound = [item.host_bound for item in gaps]
    share = sum(int(times.sum()) for times in bound) / span
    rows = []
    for factor in (0.5, 1.0, 2.0):
        least = _GAP_NS * factor
        longer = sum(int(t[g.ns >= least].sum()) for t, g in zip(bound, gaps, strict=True)) / span
        said = "launch-bound" if share >= BOUND_SHARE * factor else "not launch-bound"
        rows.append((f"{factor:g}×", BOUND_SHARE * factor, share, said, least, longer))
    longer_help = "The same share, counting only gaps of this length or more."
    columns = (
        Column("factor", "of threshold", "text"),
        Column("threshold", "threshold", "share"),
        Column("share", "measured", "share"),
        Column("verdict", "verdict", "text"),
        Column("gap_ns", "gaps from", "ns"),
        Column("longer_share", "measured in these", "share", longer_help),
    )
    return Table("sensitivity", "Sensitivity of the verdict", columns, listed(columns, rows))


def _graphs(trace: Trace, launches: Launches) -> Table:
    many = np.flatnonzero(launches.graph)
    rows = launches.rows[many]
    frame = pl.DataFrame(
        {
            "event": rows,
            "call": pl.Series([trace.name(row) for row in rows.tolist()], dtype=pl.String),
            "start_ns": trace.starts[rows],
            "host_ns": trace.lengths(rows),
            "works": launches.work_count[many],
            "device_ns": launches.device_ns(trace)[many],
            "latency_ns": launches.latency[many],
        }
    ).sort("device_ns", descending=True)
    columns = (
        Column("call", "call", "text"),
        Column("start_ns", "at", "ns"),
        Column("works", "device events", "count", "Device events of one launch."),
        Column("host_ns", "call", "ns"),
        Column("device_ns", "device", "ns", "Their total device time."),
        Column("latency_ns", "latency", "ns", "To the first of them."),
        Column("event", "event", "count", hidden=True),
    )
    return Table("graphs", "Graph launches, expanded", columns, frame, empty="no graph launches")


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
    columns = (
        Column("start_ns", "from", "ns"),
        Column("mean", "mean", "number", "Weighted by time."),
        Column("lowest", "lowest", "count"),
        Column("highest", "highest", "count"),
        Column("device", "device", "count", hidden=len(gaps) == 1),
    )
    return Table(
        "queue_depth",
        "Queue depth over time",
        columns,
        pl.concat(frames),
        chart=Chart("Queue depth over time", (Series("mean", "lowest", "highest"),), at="start_ns"),
    )


def _sequence_table(trace: Trace, scope: Scope, launches: Launches) -> Table:
    kernels = trace.is_category("kernel")[launches.work]
    work, launch = launches.work[kernels], launches.rows[launches.work_launch[kernels]]
    # Kernels of one graph are already launched together: no host time to save.
    alone = ((launches.work_count == 1) & ~launches.graph)[launches.work_launch[kernels]]
    rows = sequences(trace, work[alone], launch[alone])
    steps = scope.step_count
    rows = rows.with_columns(
        (pl.col(key) / (steps or None)).alias(f"{key}_per_step") for key in ("times", "host_ns", "idle_ns")
    )
    stepped = bool(steps)
    columns = (
        Column("shape", "shape", "text", "loop = repeats without a break; chain = elementwise neighbours."),
        Column("length", "kernels", "count", "Kernels in one pass."),
        Column("times_per_step", "n/step", "count", "Passes a step.", hidden=not stepped),
        Column("times", "n", "count", "Passes in all.", hidden=stepped),
        Column("host_ns_per_step", "host/step", "ns", "Launch calls saved by fusing.", hidden=not stepped),
        Column("host_ns", "host", "ns", "Launch calls saved by fusing.", hidden=stepped),
        Column("idle_ns_per_step", "idle/step", "ns", "Stream idle inside, a step.", hidden=not stepped),
        Column("idle_ns", "idle", "ns", "Stream idle inside.", hidden=stepped),
        Column("device_ns", "device", "ns", "Time of the kernels themselves.", hidden=True),
        Column("kernels", "sequence", "text"),
        Column("event", "event", "count", hidden=True),
    )
    return Table(
        "sequences",
        "Short kernels in repeated sequences",
        columns,
        rows,
        "Upper bounds. Host and idle time overlap: do not add them." if len(rows) else "",
        empty="no sequence of short kernels repeats",
    )


ANALYSIS = Analysis(NAME, TITLE, "Is the step bound by kernel launches, and which ones?", run, order=20)
