"""How long a step takes, where it goes, and what makes slow steps slow."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.model_calls import PROBE_RANGE
from tuiprof.analyses.shared.optimizers import backward_nodes, closures
from tuiprof.analyses.shared.scope import (
    PERIOD_RULE,
    Scope,
    StepTimes,
    device_word,
    host_time_by_step,
    step_times,
)
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, Mask, distinct, union
from tuiprof.model.report import Chart, Level, Series, listed
from tuiprof.model.units import format_ns, plural

NAME, TITLE = "steps", "Steps"
_CHART = Chart("Time of every step", (Series("step_ns"),), at="step")
_PHASES = Chart("Phases on the host, a step", (Series("per_step_ns"),), at="phase", form="bars")

#: A step is slow when it takes this much longer than the median; steps vary when the 95th percentile does.
SLOW, MIN_STEPS = 1.10, 4
_MARKER = r"^ProfilerStep#\d+$"
_FRAMEWORK_RANGE = (
    r"^(Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)|DistributedDataParallel\.|FullyShardedData)"
    r"|^FSDP::"
)
#: Parts of a step whose names are too long for a column.
_LABELS = {"host waits for the device": "in syncs", "garbage collector": "GC"}
#: What an optimizer's closure does before backward.
_CLOSURE = "forward (in a closure)"

_RULES = (
    Rule("step", "From start to end of the step's marker on the host. The device may lag behind."),
    PERIOD_RULE,
    Rule(
        "work of a step",
        "Device work belongs to the step whose call launched it, not to the marker it happens to run "
        "under; busy is the union of that work over all streams.",
    ),
    Rule("slow step", f"Its period is longer than {SLOW:g} times the median; needs {MIN_STEPS} steps."),
    Rule(
        "what explains slow steps",
        "For each part of a step: its mean in slow steps minus its median over all steps. Parts "
        "overlap (the host waits while the device is busy): do not add them.",
    ),
    Rule(
        "phase",
        "Outermost named ranges (record_function, the framework's own) inside the step; `backward "
        "(autograd engine)` is the union of what the autograd threads run outside of them, `other` is "
        "the rest of the step. If an optimizer runs forward and backward itself, in a closure, its own phase "
        "begins after them: the rows add up to it, unless named ranges of several threads overlap.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Measure the steps."""
    scope = Scope.of(trace, window)
    if not scope.step_count:
        return _unavailable(trace)
    both = step_times(scope)
    times = both.host
    parts = _parts(scope)
    median = float(np.median(times))
    slow = both.period > SLOW * float(np.median(both.period))
    explained = _explained(parts, slow) if len(times) >= MIN_STEPS and slow.any() else None
    busy = parts.get("device busy")
    facts = (
        Fact("steps", "steps", len(times), "count"),
        Fact("step_median_ns", "median", median, "ns"),
        Fact(
            "device_step_median_ns",
            "on the device",
            float(np.median(both.device)) if len(both.device) else None,
            "ns",
            "Median of the device's steps.",
        ),
        Fact(
            "step_period_ns",
            "a step takes",
            float(np.median(both.period)),
            "ns",
            "The host's median, or the device's if the host runs ahead.",
        ),
        Fact("step_mean_ns", "mean", float(times.mean()), "ns"),
        Fact("step_p95_ns", "p95", float(np.percentile(times, 95)), "ns"),
        Fact("step_min_ns", "shortest", int(times.min()), "ns"),
        Fact("step_max_ns", "longest", int(times.max()), "ns"),
        Fact(
            "jitter_share",
            "jitter",
            float(np.median(np.abs(times - median)) / median) if len(times) > 1 and median else None,
            "share",
            "Median absolute deviation of the step time, as a share of its median.",
        ),
        Fact("slow_steps", "slow steps", int(slow.sum()) if len(times) >= MIN_STEPS else None, "count"),
        Fact(
            "device_busy_ns_per_step",
            "device busy a step",
            float(busy.mean()) if busy is not None else None,
            "ns",
        ),
        Fact(
            "steps_per_second",
            "steps",
            1e9 / float(both.period.mean()) if both.period.mean() else None,
            "rate",
        ),
    )
    notes = []
    if trace.device_indices and busy is None:
        notes.append("No device work has a launch call in this trace, so device time per step is unknown.")
    if len(times) < MIN_STEPS:
        notes.append(f"Only {plural(len(times), 'step')}: too few to tell slow from normal.")
    return Report(
        NAME,
        TITLE,
        _verdict(scope, both, parts, slow, explained),
        facts,
        tuple(_tables(scope, times, parts, explained)),
        _RULES,
        tuple(notes),
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if len(trace.steps):
        return Unavailable(NAME, "no complete step in this window", "choose a wider window")
    return Unavailable(
        NAME,
        "the trace marks no steps (no ProfilerStep#N ranges)",
        "call `profiler.step()` after each step, or record with `tuiprof run` or `tuiprof record`",
    )


def _parts(scope: Scope) -> dict[str, Ints]:
    """Return the parts of each step, ns, shape ``(steps,)`` each."""
    trace = scope.trace
    parts: dict[str, Ints] = {}
    if len(trace.links.launches):
        parts["device busy"] = _busy(scope)
    if len(trace.host_calls):
        parts["host waits for the device"] = _waiting(scope)
        rows = trace.links.launches
        parts["launch calls"] = host_time_by_step(scope, trace.starts[rows], trace.ends[rows])
    for name, pattern, category in (
        ("data loading", _idle.DATA_LOADING, "dataloader"),
        ("compile", _idle.COMPILE, "compile"),
        ("garbage collector", _idle.GARBAGE, ""),
    ):
        mask = trace.named(pattern) & trace.on_host
        if category:
            mask |= trace.is_category(category)
        rows = np.flatnonzero(mask)
        if len(rows):
            parts[name] = host_time_by_step(scope, trace.starts[rows], trace.ends[rows])
    if "device busy" in parts:
        parts["device idle"] = _idle_time(scope)  # last: the consequence of the others
    return parts


def _explained(parts: dict[str, Ints], slow: Mask) -> pl.DataFrame:
    rows = [
        {
            "part": name,
            "median_ns": float(np.median(values)),
            "slow_ns": float(values[slow].mean()),
            "excess_ns": float(values[slow].mean() - np.median(values)),
        }
        for name, values in parts.items()
    ]
    schema = {"part": pl.String, "median_ns": pl.Float64, "slow_ns": pl.Float64, "excess_ns": pl.Float64}
    return pl.DataFrame(rows, schema=schema).sort("excess_ns", descending=True, maintain_order=True)


def _verdict(
    scope: Scope, both: StepTimes, parts: dict[str, Ints], slow: Mask, explained: pl.DataFrame | None
) -> Verdict:
    times = both.period
    median = float(np.median(times))
    said = f"{format_ns(median)} a step"
    if len(times) > 1:
        said += f", median of {len(times)} captured steps"
        least, most = format_ns(int(times.min())), format_ns(int(times.max()))
        said += f" ({least} to {most})" if least != most else ""
    if both.host_ahead:
        host = format_ns(float(np.median(both.host)))
        said += f", on the {device_word(scope.trace)}; the host runs ahead at {host} a step"
    level: Level = "info"
    if explained is not None and not explained.is_empty():
        excess = float(times[slow].mean()) - median
        # Idle time is the effect of a slow step on the device; the host's activity is more specific.
        reasons = explained.filter((pl.col("part") != "device idle") & (pl.col("excess_ns") >= 0.5 * excess))
        top = (explained if reasons.is_empty() else reasons).row(0, named=True)
        said += f"; {plural(int(slow.sum()), 'slow step')} took {format_ns(excess)} longer"
        if top["excess_ns"] >= 0.3 * excess:
            said += f", {format_ns(min(top['excess_ns'], excess))} of that {top['part']}"
        level = "warn" if excess * slow.sum() >= 0.05 * times.sum() else "info"
    return Verdict(said, level)


def _tables(scope: Scope, times: Ints, parts: dict[str, Ints], explained: pl.DataFrame | None) -> list[Table]:
    trace = scope.trace
    steps = trace.steps
    launches = _counts(scope, trace.links.launches)
    work = _counts(scope, trace.device_work)
    frame = pl.DataFrame(
        {
            "step": [str(n) for n in steps.numbers[scope.steps].tolist()],
            "start_ns": steps.starts[scope.steps],
            "step_ns": times,
            "difference_ns": times - int(np.median(times)),
            "launches": launches,
            "works": work,
            **{_key(name): values for name, values in parts.items()},
        }
    )
    has_device = bool(trace.device_indices)
    columns = (
        Column("step", "step", "text"),
        Column("step_ns", "time", "ns"),
        Column("difference_ns", "Δ median", "ns", "Step time minus median.", signed=True),
        *(Column(_key(name), _LABELS.get(name, name), "ns", name) for name in parts),
        Column("launches", "launches", "count", hidden=not has_device),
        Column("works", "device events", "count", hidden=True),
        Column("start_ns", "at", "ns", hidden=True),
    )
    tables = [_phases(scope, times), Table("steps", "Every step", columns, frame, chart=_CHART)]
    if explained is not None:
        slow_columns = (
            Column("part", "part", "text"),
            Column("median_ns", "median", "ns"),
            Column("slow_ns", "in slow steps", "ns", "Mean over slow steps."),
            Column("excess_ns", "excess", "ns", "In slow steps minus median.", signed=True),
        )
        tables.insert(1, Table("slow", "What explains slow steps", slow_columns, explained))
    return tables


def _key(part: str) -> str:
    return part.replace(" ", "_") + "_ns"


def _phases(scope: Scope, times: Ints) -> Table:
    """Return the outermost named ranges inside the steps, and the rest of the steps."""
    trace = scope.trace
    named = trace.is_category("annotation") | (trace.is_category("cpu_op") & trace.named(_FRAMEWORK_RANGE))
    none = trace.named(f"{_MARKER}|{PROBE_RANGE}")
    rows: Ints = np.flatnonzero(named & ~none & (trace.steps.step_of >= 0))
    rows = _waits.outermost(trace, rows)
    rows = rows[scope.in_steps(rows)]
    backward = backward_nodes(trace)
    starts, ends = trace.starts[rows], trace.ends[rows]
    first, after = closures(trace, rows)
    closing = np.flatnonzero(after > starts)
    starts = np.maximum(starts, after)
    found: list[tuple[str, Ints, int | None, int | None]] = []
    for code in distinct(trace.name_codes[rows]).tolist():
        mine = trace.name_codes[rows] == code
        each = host_time_by_step(scope, starts[mine], ends[mine])
        found.append((trace.names[code], each, int(mine.sum()), int(rows[mine][0])))
    if len(closing):
        each = host_time_by_step(scope, trace.starts[rows][closing], first[closing])
        found.append((_CLOSURE, each, len(closing), int(rows[closing[0]])))
        starts = np.concatenate((starts, trace.starts[rows][closing]))
        ends = np.concatenate((ends, first[closing]))
    named_ns = host_time_by_step(scope, starts, ends)
    covered_ns = host_time_by_step(
        scope, np.concatenate((starts, trace.starts[backward])), np.concatenate((ends, trace.ends[backward]))
    )
    if (covered_ns > named_ns).any():
        found.append(("backward (autograd engine)", covered_ns - named_ns, len(times), int(backward[0])))
    if found:
        found.append(("other", times - covered_ns, None, None))
    columns = (
        Column("phase", "phase", "text"),
        Column("per_step_ns", "a step", "ns", "Mean over the steps."),
        Column("share", "of the step", "share"),
        Column("per_step", "n/step", "count"),
        Column("longest_ns", "longest", "ns", "In one step."),
        Column("event", "event", "count", hidden=True),
    )
    phases = [
        (
            name,
            float(each.mean()),
            float(each.sum() / times.sum()) if times.sum() else None,
            count / len(times) if count is not None else None,
            int(each.max()),
            event,
        )
        for name, each, count, event in found
    ]
    return Table(
        "phases",
        "Phases on the host",
        columns,
        listed(columns, phases).sort("per_step_ns", descending=True),
        empty="no named ranges in the steps: wrap parts of the step in torch.profiler.record_function or tuiprof.phase",
        chart=_PHASES,
    )


def _busy(scope: Scope) -> Ints:
    """Return the device time of the work launched by each step, summed over devices, ns."""
    trace = scope.trace
    work = trace.device_work
    position = _position(scope)[trace.steps.step_of[work]]
    work, position = work[position >= 0], position[position >= 0]
    devices = np.searchsorted(trace.device_indices, trace.ints("device", work))
    count = max(len(trace.device_indices), 1)
    keys = position * count + devices
    times = _union_by(keys, trace.starts[work], trace.ends[work], len(scope.steps) * count)
    summed: Ints = times.reshape(-1, count).sum(axis=1)
    return summed


def _idle_time(scope: Scope) -> Ints:
    """Return idle time of devices by step of the launch that ended it, summed over devices, ns."""
    trace = scope.trace
    result = np.zeros(len(scope.steps), dtype=np.int64)
    for device in trace.device_indices:
        gaps = _idle.gaps(trace, device, scope.low, scope.high)
        position = _position(scope)[trace.steps.step_of[np.maximum(gaps.launch, 0)]]
        known = (gaps.launch >= 0) & (position >= 0)
        np.add.at(result, position[known], gaps.ns[known])
    return result


def _waiting(scope: Scope) -> Ints:
    """Return how long the host waits for the device in each step, ns."""
    found = _waits.find(scope.trace, Window())
    counted = found.apart == _waits.COUNTED
    return host_time_by_step(scope, found.starts[counted], found.ends[counted])


def _counts(scope: Scope, rows: Ints) -> Ints:
    """Count events by step."""
    position = _position(scope)[scope.trace.steps.step_of[rows]]
    return np.bincount(position[position >= 0], minlength=len(scope.steps)).astype(np.int64)


def _position(scope: Scope) -> Ints:
    """Return for each step of the trace its index in the scope; -1 = outside, also for index -1 (no step)."""
    position = np.full(len(scope.trace.steps) + 1, -1, dtype=np.int64)
    position[scope.steps] = np.arange(len(scope.steps))
    return position


def _union_by(keys: Ints, starts: Ints, ends: Ints, count: int) -> Ints:
    """Return the length of the union of intervals for each of ``count`` keys, ns."""
    if not len(keys):
        return np.zeros(count, dtype=np.int64)
    # Keys are offset on one axis, far enough apart not to touch.
    low = int(starts.min())
    stride = int(ends.max()) - low + 1
    starts, ends = union(starts - low + keys * stride, ends - low + keys * stride)
    return np.bincount(starts // stride, weights=ends - starts, minlength=count).astype(np.int64)


ANALYSIS = Analysis(
    NAME, TITLE, "How long is a step, where does the time go, and what makes slow steps slow?", run, order=50
)
